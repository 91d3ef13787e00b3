"""Whom to ring for a queue: the pure decision over what was found, the same in every daemon (DESIGN §6, RULINGS 34).

A ring is out from its insert until its endpoint claims from the queue, nothing is left there for it, or its time is
over. While one is out nobody else is rung, unless an endpoint claims, attaches, or has work of its own; or the ring is
put off by its target for longer than `PATIENCE`, and another endpoint is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from postroom.limits import HOUR, MINUTE
from postroom.store.rings import Ring, Seat, Work

STEPS: Final = (5 * MINUTE, 20 * MINUTE, 1 * HOUR, 6 * HOUR)
"""How long (ms) a first, second and further ring that nobody answers is out; the last repeats."""
PATIENCE: Final = 4000
"""How long (ms) a ring may be put off where another could hear it: its courier has looked three times by then."""
REST: Final = 5 * MINUTE
"""For how long (ms) an endpoint whose ring was passed on is rung after all others: as long as its ring would have lived."""


@dataclass(frozen=True, slots=True)
class News:
    """What happened since the queue was last looked at: which owners claimed from it, when, and which endpoints came."""

    claimed: Mapping[str, int] = field(default_factory=dict)
    attached: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Call:
    """One ring to be rung: at which seat, for how many todos and the first of them, after how many unanswered ones.

    old: the message of the ring that this one follows at the same endpoint.
    """

    seat: Seat
    count: int
    todo_id: str
    step: int
    own: bool
    old: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done: endpoints that claimed, rings that are over, rows of endpoints that went, and new rings.

    recalled: the messages of rings that are over and were not written. passed_on: the messages of rings that one of the
    calls is in place of: each call stands only if they could be taken back.
    """

    answered: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    recalled: tuple[str, ...] = ()
    passed_on: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.answered or self.ended or self.forgotten or self.calls)


def make_plan(work: Work, out: Sequence[Ring], known: Mapping[str, int], seats: Sequence[Seat], news: News) -> Plan:
    """What to do for a queue; `known` says of each endpoint with a row, rung or not, which claim of it is known."""
    return _Planning(work, out, known, seats, news).plan()


class _Planning:
    """One decision under way."""

    def __init__(
        self, work: Work, out: Sequence[Ring], known: Mapping[str, int], seats: Sequence[Seat], news: News
    ) -> None:
        self._work = work
        self._news = news
        self._seats = {seat.id: seat for seat in seats}
        self._rung = {ring.endpoint_id: ring for ring in out}
        self._known = known
        self._gone = sorted(set(known) - set(self._seats))
        self._answered = [seat.id for seat in seats if self._claimed(seat)]
        self._ended: set[str] = set()
        self._standing: dict[str, Ring] = {}
        self._over: dict[str, Ring] = {}
        self._void: set[str] = set()
        self._resting: set[str] = set()
        self._passed_on: list[str] = []
        self._calls: dict[str, Call] = {}

    def _claimed(self, seat: Seat) -> bool:
        """Whether it claimed, and nobody has acted on that claim yet: another daemon may have found it by looking."""
        if seat.holds and seat.id in self._rung:
            return True
        known = self._known.get(seat.id, 0)
        return any(at > known and seat.claims_as(owner) for owner, at in self._news.claimed.items())

    def plan(self) -> Plan:
        for ring in self._rung.values():
            if ring.endpoint_id in self._seats and ring.endpoint_id not in self._answered:
                self._judge(ring)
        if not self._work.closed:
            free = [seat for seat in self._seats.values() if self._may_ring(seat)]
            # Who claimed in this very moment comes last, as it will once that is written down; who put a ring off, after.
            free.sort(
                key=lambda seat: (
                    seat.id in self._resting,
                    seat.id in self._answered,
                    seat.idle_since,
                    seat.endpoint.seq,
                )
            )
            self._ring_for_own_work(free)
            self._pass_on(free)
            if self._work.waiting:
                self._ring_for_any(free)
        over = {*self._answered, *self._ended, *self._gone, *self._calls}
        recalled = [ring.message_id for id_, ring in self._rung.items() if id_ in over and ring.unwritten]
        return Plan(
            tuple(self._answered),
            tuple(sorted(self._ended - set(self._calls))),
            tuple(self._gone),
            tuple(self._calls.values()),
            tuple(recalled),
            tuple(self._passed_on),
        )

    def _judge(self, ring: Ring) -> None:
        """Nothing is left for it, it is over, it never got there, or it is out."""
        seat, work = self._seats[ring.endpoint_id], self._work
        if ring.passed_on:
            # What waits meanwhile is for others, if there are others.
            (self._resting if work.now < ring.rung_at + REST else self._ended).add(seat.id)
            return
        came_back = work.back_at is not None and work.back_at > ring.rung_at
        if work.closed or not (work.waiting or seat.own):
            self._ended.add(seat.id)
        elif work.now >= ring.next_at or ring.expired or (came_back and ring.written and not ring.own):
            self._over[seat.id] = ring
        elif ring.failed or not seat.live:
            # Somebody else may be rung at once; this endpoint not before its time.
            self._void.add(seat.id)
        else:
            self._standing[seat.id] = ring

    def _may_ring(self, seat: Seat) -> bool:
        return (
            seat.live and seat.carried and not seat.busy and seat.id not in self._standing and seat.id not in self._void
        )

    def _ring_for_own_work(self, free: Sequence[Seat]) -> None:
        """Who has work of its own is rung for it, whoever else is; of several seats of one name the longest idle."""
        heard = {self._seats[id_].claimant for id_ in self._standing}
        for seat in free:
            if seat.own and seat.claimant not in heard:
                heard.add(seat.claimant)
                over = [ring for id_, ring in self._over.items() if self._seats[id_].claimant == seat.claimant]
                self._call(seat, self._step(over), own=True)
                self._ended |= {ring.endpoint_id for ring in over if ring.own}

    def _pass_on(self, free: Sequence[Seat]) -> None:
        """A ring that was put off for too long is rung at another endpoint that puts nothing off, if there is one."""
        for id_, ring in list(self._standing.items()):
            if not ring.deferred or self._work.now < ring.rung_at + PATIENCE:
                continue
            claimant = self._seats[id_].claimant
            for seat in free:
                hears = seat.own and seat.claimant == claimant if ring.own else self._work.waiting
                if hears and seat.id not in self._calls and seat.id not in self._resting:
                    self._call(seat, ring.step, own=ring.own)
                    self._passed_on.append(ring.message_id)
                    del self._standing[id_]
                    break

    def _ring_for_any(self, free: Sequence[Seat]) -> None:
        passed_on = [call for call in self._calls.values() if not call.own]
        free = [seat for seat in free if seat.id not in self._calls]
        standing = [ring for ring in self._standing.values() if not ring.own]
        out = len(standing) + len(passed_on)
        over = {id_: ring for id_, ring in self._over.items() if not ring.own}
        if standing:
            # Who came after that hears of it as well; who was there before had its chance.
            last = max(ring.rung_at for ring in standing)
            for seat in free:
                if seat.id in self._news.attached and seat.endpoint.created_at >= last:
                    self._call(seat, 0)
        free = [seat for seat in free if seat.id not in self._calls]
        if out == 0 and free:
            self._call(free.pop(0), self._step(over.values()))
            out += 1
        elif out == 0 and self._calls:
            # Whoever is rung for its own work hears of the rest besides.
            id_, call = next(iter(self._calls.items()))
            self._calls[id_] = Call(call.seat, call.count, call.todo_id, call.step, False, call.old)
            out += 1
        elif self._answered and free and out < self._work.waiting:
            self._call(free.pop(0), 0)
            out += 1
        if out:
            self._ended |= set(over)

    def _step(self, over: Iterable[Ring]) -> int:
        """One more than the last ring that got there in vain; a todo that came back begins anew."""
        steps = [min(ring.step + ring.written, len(STEPS) - 1) for ring in over if self._is_late(ring)]
        return max(steps, default=0)

    def _is_late(self, ring: Ring) -> bool:
        return self._work.now >= ring.next_at or ring.expired

    def _call(self, seat: Seat, step: int, *, own: bool = False) -> None:
        count = self._work.waiting + seat.own
        todo_id = seat.own_head or self._work.head
        if todo_id is not None:
            old = None if seat.id in self._answered else self._rung.get(seat.id)
            self._calls[seat.id] = Call(seat, count, todo_id, step, own, old.message_id if old is not None else None)
