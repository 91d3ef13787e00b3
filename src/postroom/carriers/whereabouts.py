"""Whereabouts: what an endpoint's place is called in one word, and which daemon can carry there (RULINGS 21, 31)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from postroom.carriers.carrier import Carrier
from postroom.endpoint import ANY_REACH, CarrierKind
from postroom.errors import Invalid
from postroom.postage import check_party

Placed = tuple[Mapping[str, Any], str, str]


class Whereabouts:
    """The whereabouts an installation knows: those of its carriers, and of the two kinds that need none to be known."""

    def __init__(self, carriers: Iterable[Carrier] = ()) -> None:
        self._carriers = {carrier.kind: carrier for carrier in carriers}

    def __call__(self, kind: CarrierKind, address: Mapping[str, Any], name: str | None = None) -> Placed:
        """The address as it is stored, its target key and its reach; `name` is the endpoint's. Raises Invalid by field."""
        carrier = self._carriers.get(kind)
        if carrier is not None:
            return carrier.check_address(address)
        match kind:
            case CarrierKind.INBOX:
                return _inbox(address, name)
            case CarrierKind.OPENCODE:
                return _session(address)
            case CarrierKind.TMUX | CarrierKind.CHANNEL | CarrierKind.WEBHOOK:
                known = dict.fromkeys([CarrierKind.INBOX, CarrierKind.OPENCODE, *self._carriers])
                raise Invalid(
                    f"carrier {kind} is not at work here; expected one of {', '.join(known)}", field="carrier"
                )


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
