"""The rings table: who was rung for which queue, and what there is to know before somebody is (RULINGS 34)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.endpoint import Endpoint
from postroom.message import Cause, DeliveryState
from postroom.store.endpoints import ENDPOINT_WIDTH, MOST, endpoint_of
from postroom.store.engine import Tx
from postroom.store.statements import Dialect
from postroom.store.tokens import is_barred

COUNTED = 1000
"""Up to how many waiting todos are counted."""
HEAD = 8
"""How many of a queue's first todos are looked at for one that came back."""

PASSED_ON = "it was put off for too long there; somebody else was rung"
"""Why the message of a ring is cancelled that another endpoint was rung in place of."""

_STATES = {state.value: state for state in DeliveryState}


@dataclass(frozen=True, slots=True)
class Work:
    """What a queue has at `now` (ms UTC) that anybody may claim: how many (`COUNTED` at the most), and the first.

    closed: nothing is handed out, since it is paused or full. assigned: there is work that only its assignees may claim.
    back_at: when one of the first was last released, or lapsed.
    """

    now: int
    closed: bool
    waiting: int
    head: str | None
    assigned: bool
    back_at: int | None


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring that is out at an endpoint, as its row has it, and how its delivery stands; times are ms UTC.

    step: how often nobody answered before it. own: it was rung for work that only this endpoint may claim.
    state: None when the delivery is no longer kept. shown: it stands in its mailbox, and a channel was pushed to.
    doubtful: it may have been written. why: what is told of its last failure, or of its end.
    """

    endpoint_id: str
    message_id: str
    rung_at: int
    next_at: int
    step: int
    own: bool
    state: DeliveryState | None
    reason: str | None
    leased: bool
    shown: bool
    doubtful: bool = False
    why: str | None = None

    @property
    def written(self) -> bool:
        """Whether it got there as far as can be told, or is being written."""
        return self.leased or self.shown or self.state not in {DeliveryState.PENDING, DeliveryState.FAILED}

    @property
    def unwritten(self) -> bool:
        """Whether it is under way, and can be taken back."""
        return self.state is DeliveryState.PENDING and not self.leased

    @property
    def deferred(self) -> bool:
        """Whether it surely was not written, and nobody is at it."""
        return self.unwritten and not self.shown and not self.doubtful

    @property
    def passed_on(self) -> bool:
        """Whether another endpoint was rung in its place."""
        return self.state is DeliveryState.FAILED and self.reason == Cause.CANCELLED and self.why == PASSED_ON

    @property
    def expired(self) -> bool:
        """Whether its life was over before it could be written."""
        return self.state is DeliveryState.FAILED and self.reason == Cause.EXPIRED and not self.shown

    @property
    def failed(self) -> bool:
        """Whether its target could not be reached."""
        return self.state is DeliveryState.FAILED and self.reason not in {Cause.EXPIRED, Cause.CANCELLED}


@dataclass(frozen=True, slots=True)
class Seat:
    """An endpoint that listens to a queue, and whether it may be rung.

    busy: something is under way to it, its turn is on, or it holds a todo. idle_since: when it last had anything to do
    (ms UTC). holds: it holds a todo of this queue. own, own_head: the work that only it may claim, counted, and its first.
    carried: whether a daemon may be there that carries to it.
    """

    endpoint: Endpoint
    live: bool
    busy: bool
    idle_since: int
    holds: bool
    own: int
    own_head: str | None
    carried: bool = True

    @property
    def id(self) -> str:
        """The endpoint's id."""
        return self.endpoint.id

    @property
    def claimant(self) -> str:
        """The name under which it claims."""
        return self.endpoint.name or self.endpoint.created_by

    def claims_as(self, owner: str) -> bool:
        """Whether a claim of this owner is one of this endpoint's."""
        token, _, worker = owner.partition("/")
        return token == self.claimant or (token == self.endpoint.created_by and worker == self.endpoint.name)


class RingTable:
    """The statements over rings; `silent` is how long (ms) a live endpoint may give no sign."""

    def __init__(self, dialect: Dialect, silent: int) -> None:
        self._dialect = dialect
        self._silent = silent

    async def lock(self, tx: Tx, queue: str) -> None:
        """Wait until nobody else decides this queue's rings; held until the transaction's end."""
        if self._dialect is Dialect.POSTGRES:
            await tx.rows("ring_lock", lock_name=f"\x1fring\x1f{queue}")

    async def queues(self, tx: Tx) -> frozenset[str]:
        """The queues that somebody listens to, and those where somebody was rung."""
        return frozenset(row[0] for row in await tx.rows("ring_queues", limit=MOST))

    async def work(self, tx: Tx, queue: str) -> Work:
        """What there is to claim of a queue."""
        ((now, closed, waiting, head, assigned, back_at),) = await tx.rows(
            "ring_work", queue=queue, most=COUNTED, window=HEAD
        )
        return Work(now, bool(closed), waiting, head, bool(assigned), back_at)

    async def rings(self, tx: Tx, queue: str) -> tuple[list[Ring], dict[str, int]]:
        """The rings that are out for a queue; and of each endpoint that has a row, rung or not, when it last claimed."""
        rows = await tx.rows("rings_of", queue=queue)
        out = [
            Ring(
                id_,
                msg,
                rung_at,
                next_at,
                step,
                bool(own),
                _STATES.get(state),
                reason,
                bool(leased),
                bool(shown),
                bool(doubtful),
                why,
            )
            for id_, _, msg, rung_at, next_at, step, own, state, reason, leased, shown, doubtful, why in rows
            if msg is not None
        ]
        return out, {row[0]: row[1] or 0 for row in rows}

    async def seats(self, tx: Tx, queue: str) -> list[Seat]:
        """The endpoints that listen to a queue and let themselves be rung, live or silent.

        Not those of a token that may not use the queue: it may have been given fewer since.
        """
        rows = await tx.rows("ring_seats", queue=queue, silent=self._silent, most=COUNTED, limit=MOST)
        seats: list[Seat] = []
        for row in rows:
            live, busy, idle_since, holds, own, own_head, allowed = row[ENDPOINT_WIDTH:]
            if allowed is not None and is_barred(allowed, queue):
                continue
            seats.append(Seat(endpoint_of(row), bool(live), bool(busy), idle_since, bool(holds), own, own_head))
        return seats

    async def ring(
        self, tx: Tx, queue: str, endpoint_id: str, message_id: str, old: str | None, wait: int, step: int, *, own: bool
    ) -> bool:
        """Not rung, or rung by `old` -> rung by this message, out for `wait` ms; False when it was rung by another."""
        rows = await tx.rows(
            "ring_set",
            queue=queue,
            endpoint_id=endpoint_id,
            message_id=message_id,
            old=old,
            wait=wait,
            step=step,
            own=own,
        )
        return bool(rows)

    async def answer(self, tx: Tx, queue: str, endpoint_id: str) -> None:
        """Rung or not -> claimed now, and not rung."""
        await tx.rows("ring_answer", queue=queue, endpoint_id=endpoint_id)

    async def end(self, tx: Tx, queue: str, endpoint_ids: Sequence[str]) -> None:
        """Rung -> not rung."""
        await tx.rows("ring_end", queue=queue, endpoint_ids=list(endpoint_ids))

    async def forget(self, tx: Tx, queue: str, endpoint_ids: Sequence[str]) -> None:
        """What is known of endpoints that listen no more -> gone."""
        await tx.rows("ring_forget", queue=queue, endpoint_ids=list(endpoint_ids))
