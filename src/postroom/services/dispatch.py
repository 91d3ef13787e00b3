"""Dispatch: the courier's side of the post, decided by the database: one lease a target, one turn a target.

A courier asks which targets have something to carry, looks at the first delivery, leases it, writes, and settles what
the write came to. Every verb is right whoever else does the same at the same moment, in this process or another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from postroom.ids import Ids, Prefix
from postroom.limits import MAX_NOTE_BYTES
from postroom.message import Delivery, Parcel, Written
from postroom.postage import RING_KIND
from postroom.services import tellings
from postroom.services.wake import Wake
from postroom.store.deliveries import DeliveryTable, Leased, Touch, Touched, parcel_of
from postroom.store.engine import Duplicate, Engine, Once, Reader, Tx
from postroom.store.statements import Dialect
from postroom.store.sweeps import SweepKind, SweepTable
from postroom.store.targets import TargetTable
from postroom.text import cut

_BY_ITSELF = {SweepKind.POST_LAPSED: "lapsed", SweepKind.POST_OVERDUE: "overdue"}
"""What becomes of a delivery that a sweep does not end."""
MOST_BATCHES = 20
"""How many batches of a kind one sweep takes at the most; the rest waits for the next."""


@dataclass(frozen=True, slots=True)
class Swept:
    """How many deliveries a sweep moved, by what had fallen due; and how many turns it ended."""

    lapsed: int = 0
    overdue: int = 0
    expired: int = 0
    turns: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.lapsed + self.overdue + self.expired + self.turns


class DispatchService:
    """Which targets are ready, leases and their settlements, turns, and what falls due by itself."""

    def __init__(
        self, engine: Engine, deliveries: DeliveryTable, targets: TargetTable, sweeps: SweepTable, wake: Wake, ids: Ids
    ) -> None:
        self._engine = engine
        self._deliveries = deliveries
        self._targets = targets
        self._sweeps = sweeps
        self._wake = wake
        self._ids = ids
        self._once = Once(engine)
        self._reader = Reader(engine)

    # What there is to carry.

    async def ready_targets(self, reaches: Sequence[str], limit: int, after: str = "") -> list[str]:
        """Keys of targets with something to carry now, in their order; `after` goes on from the last one of a page.

        A busy target is among them: only the courier knows when it is worth another look.
        """
        return await self._targets.ready(self._reader, reaches, limit, after)

    async def head(self, target_key: str, reaches: Sequence[str]) -> Parcel | None:
        """What `lease` would take of this target now, as far as can be told without taking it; nothing changes."""
        return await self._deliveries.head(self._reader, target_key, reaches)

    async def next_due(self, target_key: str, reaches: Sequence[str] | None = None) -> int | None:
        """How many ms until something of this target may be carried, if nothing else happens; 0 when it may now.

        Counted are delayed deliveries, a pause, another courier's lease, and the longest time that a turn may take;
        None when nothing waits there within these reaches (None: any).
        """
        return await self._targets.next_due(self._reader, target_key, reaches)

    async def seated(self, target_key: str) -> bool:
        """Whether a live endpoint stands at this target."""
        return await self._targets.seated(self._reader, target_key)

    async def bereft(self, target_key: str) -> bool:
        """Whether something waits at this target for an endpoint that has ended: nobody may carry it (RULINGS 29)."""
        return await self._targets.bereft(self._reader, target_key)

    async def attached(self, parcel: Parcel) -> bool:
        """Whether the endpoint that the parcel is for is attached still, or again; True where it is for none."""
        held = parcel.delivery
        return held.endpoint_id is None or await self._deliveries.attached(self._reader, held.id)

    # Leases.

    async def lease(self, target_key: str, reaches: Sequence[str]) -> Parcel | None:
        """The target's first ready delivery -> leased by this call alone, attempt + 1 (T27, RULINGS 22).

        None when nothing is ready, the target is paused or in its turn, or another courier has it.
        """
        lease_id = self._ids.new(Prefix.LEASE)
        touched: Touched = []

        async def at_once(tx: Tx) -> Leased:
            return await self._deliveries.lease(tx, target_key, reaches, lease_id)

        async def after_lapse(tx: Tx) -> Leased:
            touched[:] = await self._deliveries.lapse(tx, target_key)
            return await self._deliveries.lease(tx, target_key, reaches, lease_id)

        try:
            if self._engine.dialect is Dialect.SQLITE:
                leased = await self._engine.transact(after_lapse)
            else:
                leased = await self._engine.transact(at_once, one=True)
                if leased.lapsed:
                    leased = await self._engine.transact(after_lapse)
        except Duplicate:
            return None
        self._wake.changed(one.message_id for one in touched)
        self._wake.told(tellings.swept, "lapsed", touched)
        return leased.parcel

    async def settle(
        self, parcel: Parcel, outcome: Written, reason: str | None = None, *, turn: bool = False
    ) -> Delivery | None:
        """Leased -> what its write came to; an acknowledged one only loses its lease (RULINGS 26, 30).

        turn: a write that was made began the target's turn, which is noted in the same transaction. A ring is pushed to a
        channel once; the doorbell repeats it. None when the lease is no longer this parcel's: somebody has settled it as
        lapsed, and what was written will be looked for.
        """
        held = parcel.delivery
        words = _words(reason)
        once = parcel.message.kind == RING_KIND

        async def operation(tx: Tx) -> Delivery | None:
            return await self._deliveries.settle(tx, held, outcome, words, turn=turn, once=once)

        settled = await self._engine.transact(operation, one=True)
        if settled is not None:
            shown = settled.handoff_seq is not None and held.handoff_seq is None
            self._wake.changed([settled.message_id], [settled.mailbox] if shown else ())
            self._wake.post([settled.target_key])
            self._wake.told(tellings.settled, parcel, settled, outcome, words)
        return settled

    async def lapse_all(self) -> int:
        """Every lease of an SQLite file -> a failed attempt whose write may have been made: for its process's start.

        On PostgreSQL nothing, since other processes may hold theirs; the sweep finds those that lapse.
        """
        if self._engine.dialect is not Dialect.SQLITE:
            return 0
        return self._tell("lapsed", await self._deliveries.lapse_all(self._once))

    # Targets.

    async def defer(self, target_key: str, reason: str | None, parcel: Parcel | None = None) -> None:
        """Why nothing of this target is tried now -> this reason, since now; unchanged when it is the same; None ends it.

        parcel: the target's first delivery, where it was looked at.
        """
        words = _words(reason)
        if await self._targets.defer(self._once, target_key, words) and words is not None:
            self._wake.told(tellings.deferred, target_key, words, parcel)

    async def pause(self, target_key: str, ms: int) -> None:
        """Nothing of this target is carried for so many ms from now; 0 ends a pause (RULINGS 27)."""
        await self._targets.pause(self._once, target_key, ms)
        if ms <= 0:
            self._wake.post([target_key])

    async def turns(self, reaches: Sequence[str], limit: int) -> list[Parcel]:
        """The turns that are on, the oldest first, each with the delivery that began it."""
        return [parcel_of(row) for row in await self._targets.turns(self._reader, reaches, limit)]

    async def end_turn(self, target_key: str, delivery_id: str, *, answered: bool, reason: str | None = None) -> bool:
        """This delivery's turn -> over, and answered or noted as lost; False when it is not the one that is on."""

        async def operation(tx: Tx) -> tuple[bool, str | None]:
            return await self._targets.end_turn(tx, target_key, delivery_id, answered=answered, reason=_words(reason))

        ended, message_id = await self._engine.transact(operation, one=True)
        if ended:
            self._wake.changed([message_id] if message_id is not None else ())
            self._wake.post([target_key])
        return ended

    async def note_seen(self, delivery_id: str) -> None:
        """Not yet seen on its target -> seen now; once."""
        message_id = await self._deliveries.seen(self._once, delivery_id)
        self._wake.changed([message_id] if message_id is not None else ())

    # What falls due by itself.

    async def sweep(self, limit: int) -> Swept:
        """Lapsed leases, passed deadlines, expired deliveries -> where they belong, `limit` at a time; too long turns end."""

        async def turns_over(tx: Tx, most: int) -> Touched:
            return [Touch(key) for key in await self._targets.turns_over(tx, most)]

        due = await self._deliveries.due(self._reader)
        swept = self._batches
        lapsed = await swept(SweepKind.POST_LAPSED, self._deliveries.lapsed, limit) if due.lapsed else 0
        overdue = await swept(SweepKind.POST_OVERDUE, self._deliveries.overdue, limit) if due.overdue else 0
        # What just came back to pending may have outlived its life meanwhile.
        expiring = due.expired or lapsed or overdue
        return Swept(
            lapsed,
            overdue,
            expired=await swept(SweepKind.POST_EXPIRED, self._deliveries.expired, limit) if expiring else 0,
            turns=await swept(SweepKind.POST_TURNS, turns_over, limit) if due.turns else 0,
        )

    async def _batches(self, kind: SweepKind, statement: Callable[[Tx, int], Awaitable[Touched]], limit: int) -> int:
        async def operation(tx: Tx) -> Touched:
            return await statement(tx, limit) if await self._sweeps.lock(tx, kind) else []

        total = 0
        for _ in range(MOST_BATCHES):
            touched = await self._engine.transact(operation)
            total += self._tell(_BY_ITSELF.get(kind, ""), touched)
            if len(touched) < limit:
                break
        return total

    def _tell(self, what: str, touched: Touched) -> int:
        self._wake.changed(one.message_id for one in touched if one.message_id)
        self._wake.post(one.target_key for one in touched)
        self._wake.told(tellings.swept, what, touched)
        return len(touched)


def _words(reason: str | None) -> str | None:
    return cut(reason, MAX_NOTE_BYTES) if reason else None
