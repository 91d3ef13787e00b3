"""Whereabouts: what an endpoint's place is called in one word, which daemon can carry there, and its directory now.

RULINGS 21 and 31 say how a place is named and who reaches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from postroom.carriers.carrier import Carrier
from postroom.carriers.webhook_place import BY_SETTINGS
from postroom.endpoint import ANY_REACH, CarrierKind, Endpoint
from postroom.errors import Invalid
from postroom.postage import check_party

Placed = tuple[Mapping[str, Any], str, str]


@runtime_checkable
class Locates(Protocol):
    """A carrier that can tell, without much ado, in which directory an endpoint's place is."""

    async def directory(self, endpoint: Endpoint) -> str | None:
        """The directory, or None when it cannot be told now; raises nothing but CancelledError."""
        ...


class Whereabouts:
    """The whereabouts an installation knows: those of its carriers, and of the two kinds that need none to be known."""

    def __init__(self, carriers: Iterable[Carrier] = ()) -> None:
        self._carriers = {carrier.kind: carrier for carrier in carriers}

    def __call__(self, kind: CarrierKind, address: Mapping[str, Any], name: str | None = None) -> Placed:
        """The address as it is stored, its target key and its reach; `name` is the endpoint's. Raises Invalid by field."""
        if kind is CarrierKind.WEBHOOK:
            # Whoever may attach an endpoint could have this daemon call any address there is.
            raise Invalid(BY_SETTINGS, field="carrier")
        carrier = self._carriers.get(kind)
        if carrier is not None:
            return carrier.check_address(address)
        match kind:
            case CarrierKind.INBOX:
                return _inbox(address, name)
            case CarrierKind.OPENCODE:
                return _session(address)
            case CarrierKind.TMUX | CarrierKind.CHANNEL:
                known = dict.fromkeys([CarrierKind.INBOX, CarrierKind.OPENCODE, *self._carriers])
                known.pop(CarrierKind.WEBHOOK, None)
                raise Invalid(
                    f"carrier {kind} is not at work here; expected one of {', '.join(known)}", field="carrier"
                )

    def carries(self, endpoint: Endpoint) -> bool:
        """Whether messages get there: by a carrier of this daemon, or by another daemon or process that has its reach."""
        here = endpoint.carrier is CarrierKind.INBOX or endpoint.carrier in self._carriers
        return here or endpoint.reach != ANY_REACH

    async def directory(self, endpoint: Endpoint) -> str | None:
        """The directory that whoever sits at the endpoint is in; None when no carrier of this daemon can tell."""
        carrier = self._carriers.get(endpoint.carrier)
        if carrier is None or endpoint.reach not in carrier.reaches or not isinstance(carrier, Locates):
            return None
        return await carrier.directory(endpoint)


def _inbox(address: Mapping[str, Any], name: str | None) -> Placed:
    for key in address:
        raise Invalid(f"address has {key[:64]!r}; expected nothing: an inbox is its name", field="address")
    if name is None:
        raise Invalid("name is missing: an inbox goes by its name", field="name")
    return {}, f"inbox:{name}", ANY_REACH


def _session(address: Mapping[str, Any]) -> Placed:
    for key in address:
        if key != "session":
            raise Invalid(f"address has {key[:64]!r}; expected session alone", field="address")
    session = address.get("session")
    if not isinstance(session, str) or not session.startswith("ses_") or len(session) > 128:
        raise Invalid("address.session is expected to be the id of a session, ses_…", field="address.session")
    return {"session": check_party(session, "address.session")}, f"opencode:{session}", ANY_REACH
