"""The deliveries table: every transition of a delivery after its admission, as named statements (RULINGS 22-33)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from postroom.delivery import LAPSED, NO_ACK, Policy
from postroom.endpoint import CarrierKind
from postroom.message import AckMode, Cause, Delivery, DeliveryState, Message, Parcel, Written
from postroom.store.endpoints import ENDPOINT_WIDTH, endpoint_of
from postroom.store.engine import Row, Tx
from postroom.store.messages import MESSAGE_WIDTH, message_of
from postroom.store.statements import Dialect
from postroom.store.targets import TARGET_WIDTH, target_of

DELIVERY_WIDTH = 31
"""How many columns of a row are the delivery's, with the two of its target that say why it waits."""

_CARRIERS = {carrier.value: carrier for carrier in CarrierKind}
_STATES = {state.value: state for state in DeliveryState}
_ACK_MODES = {mode.value: mode for mode in AckMode}


def delivery_of(row: Sequence[Any]) -> Delivery:
    """The delivery of a row's first columns."""
    fields: list[Any] = list(row[:DELIVERY_WIDTH])
    fields[4] = _CARRIERS[fields[4]]
    fields[8] = _STATES[fields[8]]
    fields[10] = _ACK_MODES[fields[10]]
    fields[16] = bool(fields[16])
    if fields[19] is not None:
        fields[19] = Cause(fields[19])
    return Delivery(*fields)


def parcel_of(row: Sequence[Any]) -> Parcel:
    """The parcel of a row: delivery, message, target, and the endpoint where it has one."""
    message, target = DELIVERY_WIDTH, DELIVERY_WIDTH + MESSAGE_WIDTH
    endpoint = row[target + TARGET_WIDTH :]
    return Parcel(
        delivery_of(row),
        message_of(row[message:target]),
        target_of(row[target:]),
        endpoint_of(endpoint) if endpoint[:ENDPOINT_WIDTH][1] is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Leased:
    """What asking for a lease gave: a parcel, or none; `lapsed` says that an earlier lease must be settled first."""

    parcel: Parcel | None
    lapsed: bool = False


@dataclass(frozen=True, slots=True)
class Due:
    """Whether any lease is over, any acknowledgement's deadline past, any life over, and any turn too long."""

    lapsed: bool
    overdue: bool
    expired: bool
    turns: bool


@dataclass(frozen=True, slots=True)
class Receipt:
    """A delivery as its message's receipts show it, and who attached the endpoint that it goes to."""

    delivery: Delivery
    endpoint_creator: str | None


class Touch(NamedTuple):
    """A delivery that a statement changed by itself, and whose it is; a turn that ended has no message here."""

    target_key: str
    message_id: str = ""
    mailbox: str = ""
    state: str = ""
    reason: str | None = None
    sender: str = ""
    created_by: str = ""


Touched = list[Touch]


class DeliveryTable:
    """The statements over deliveries but their admission."""

    def __init__(self, dialect: Dialect, policy: Policy) -> None:
        self._dialect = dialect
        self._policy = policy

    # The courier's.

    async def head(self, tx: Tx, target_key: str, reaches: Sequence[str]) -> Parcel | None:
        """What `lease` would take of this target now."""
        if self._dialect is Dialect.SQLITE:
            id_ = await self._head_id(tx, target_key, reaches)
            rows = [] if id_ is None else await tx.rows("delivery_parcel", id=id_)
        else:
            rows = await tx.rows("delivery_head", target_key=target_key, reaches=list(reaches))
        return parcel_of(rows[0]) if rows else None

    async def _head_id(self, tx: Tx, target_key: str, reaches: Sequence[str]) -> str | None:
        rows = await tx.rows("delivery_head_id", target_key=target_key, reaches=list(reaches))
        return rows[0][0] if rows else None

    async def lease(self, tx: Tx, target_key: str, reaches: Sequence[str], lease_id: str) -> Leased:
        """The target's first ready delivery -> leased, when nobody holds the target (T27).

        Raises Duplicate when another courier took it at the same moment.
        """
        taking = {"lease_id": lease_id, "lease": self._policy.lease}
        if self._dialect is Dialect.SQLITE:
            id_ = await self._head_id(tx, target_key, reaches)
            if id_ is None:
                return Leased(None)
            await tx.rows("delivery_lease", id=id_, **taking)
            return Leased(parcel_of((await tx.rows("delivery_parcel", id=id_))[0]))
        rows = await tx.rows("delivery_lease", target_key=target_key, reaches=list(reaches), **taking)
        lapsed, *parcel = rows[0]
        return Leased(parcel_of(parcel) if parcel[1] is not None else None, bool(lapsed))

    async def attached(self, tx: Tx, id_: str) -> bool:
        """Whether the delivery has somebody to go to: no endpoint of its own, or one that has not ended."""
        return bool(await tx.rows("delivery_attached", id=id_))

    async def lapse(self, tx: Tx, target_key: str) -> Touched:
        """This target's lease, when it is over -> a failed attempt whose write may have been made (T29)."""
        return _touched(await tx.rows("delivery_lapse", target_key=target_key, **self._lapsing()))

    async def lapse_all(self, tx: Tx) -> Touched:
        """Every lease of an SQLite file -> a failed attempt: who held it is gone."""
        return _touched(await tx.rows("delivery_lapse_all", **self._lapsing()))

    def _lapsing(self) -> dict[str, object]:
        return {"why": LAPSED, "unknown": self._policy.unknown}

    async def settle(
        self, tx: Tx, delivery: Delivery, outcome: Written, reason: str | None, *, turn: bool, once: bool = False
    ) -> Delivery | None:
        """Leased, under this very lease -> what its write came to; `turn` begins the target's turn with it (RULINGS 23).

        once: a channel is not pushed to again. None when the lease is no longer this one.
        """
        rows = await tx.rows(
            "delivery_settle",
            id=delivery.id,
            lease_id=delivery.lease_id,
            target_key=delivery.target_key,
            outcome=outcome.value,
            reason=reason,
            turn=turn,
            once=once,
            ack=self._policy.ack,
            unknown=self._policy.unknown,
        )
        return delivery_of(rows[0]) if rows else None

    async def seen(self, tx: Tx, id_: str) -> str | None:
        """Not yet seen -> seen now: its message's id."""
        rows = await tx.rows("delivery_seen", id=id_)
        return rows[0][0] if rows else None

    # The sender's and the recipient's.

    async def of_messages(self, tx: Tx, message_ids: Sequence[str]) -> list[Delivery]:
        """The deliveries of these messages, in the order of their admission."""
        return [delivery_of(row) for row in await tx.rows("deliveries_of", message_ids=list(message_ids))]

    async def receipts(self, tx: Tx, message_id: str) -> tuple[Message, list[Receipt]] | None:
        """A message with its deliveries and who attached their endpoints; None when there is no such message."""
        rows = await tx.rows("delivery_receipts", id=message_id)
        if not rows:
            return None
        at = 1 + MESSAGE_WIDTH
        found = [Receipt(delivery_of(row[at:]), row[0]) for row in rows if row[at + 1] is not None]
        return message_of(rows[0][1:at]), found

    async def read(self, tx: Tx, mailbox: str, place: int) -> Touched:
        """Pushed on a channel and not known to have arrived -> written, for what is in this mailbox up to this place."""
        return _touched(await tx.rows("delivery_read", mailbox=mailbox, place=place, ack=self._policy.ack))

    async def ack(self, tx: Tx, id_: str) -> Delivery | None:
        """Any other state -> acknowledged, a courier's lease left to it (RULINGS 30); None when it was before."""
        return _one(await tx.rows("delivery_ack", id=id_))

    async def retry(self, tx: Tx, id_: str) -> Delivery | None:
        """Failed, unless expired -> pending with its attempts anew (T37)."""
        return _one(await tx.rows("delivery_retry", id=id_))

    async def cancel(self, tx: Tx, message_id: str, why: str) -> list[str]:
        """Each delivery of the message that is under way and with no courier -> cancelled: their ids."""
        return [row[0] for row in await tx.rows("delivery_cancel", message_id=message_id, why=why)]

    # What falls due by itself.

    async def due(self, tx: Tx) -> Due:
        """What has fallen due by itself: one look before a sweep."""
        rows = await tx.rows("post_due", turn_most=self._policy.turn_most)
        return Due(*map(bool, rows[0]))

    async def lapsed(self, tx: Tx, limit: int) -> Touched:
        """Leases that are over -> failed attempts whose write may have been made."""
        return _touched(await tx.rows("post_lapsed", limit=limit, **self._lapsing()))

    async def overdue(self, tx: Tx, limit: int) -> Touched:
        """Past their acknowledgement's deadline -> pending in a new round, or `ack_timeout` (T33, T35)."""
        return _touched(await tx.rows("post_overdue", limit=limit, why=NO_ACK))

    async def expired(self, tx: Tx, limit: int) -> Touched:
        """Pending, with no courier, and past their life -> `expired`."""
        return _touched(await tx.rows("post_expired", limit=limit))


def _one(rows: list[Row]) -> Delivery | None:
    return delivery_of(rows[0]) if rows else None


def _touched(rows: list[Row]) -> Touched:
    return [Touch(*row) for row in rows]
