"""A lane: one target's deliveries, carried one after the other (DESIGN §6, RULINGS 22-29).

Free is asked before the lease and again under it; what may have been written already is looked for first; a turn that
a write began is watched to its end. The database decides who leases, whatever a lane believes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from postroom.carriers import pauses
from postroom.carriers.carrier import Carrier, Look, Standing, Turn, Writing
from postroom.carriers.guarded import LOOK_SHARE, Guarded, lease_seconds
from postroom.carriers.slots import Slots
from postroom.endpoint import ANY_REACH, CarrierKind
from postroom.errors import Unavailable
from postroom.message import Delivery, Parcel, Written
from postroom.services.dispatch import DispatchService

SETTLE_SECONDS = 3.0
"""How long a lane that is cancelled tries to hand back what it holds."""

ENDPOINT_GONE = "endpoint_gone"
OUT_OF_REACH = "out_of_reach"
NO_CARRIER = "no_carrier"
TOO_SLOW = "the target was looked at for so long that the lease is too short for a write"
CUT_SHORT = "the courier was stopped while it wrote"

_PROCESS = f"{CarrierKind.CHANNEL}:"

log = logging.getLogger("postroom.courier")


@dataclass(frozen=True, slots=True)
class Carried:
    """One delivery that a lane has settled, for who counts them."""

    target_key: str
    outcome: Written


class Lane:
    """Works on one target while there is something to do; `told` hears of each settled write."""

    def __init__(
        self,
        key: str,
        carrier: Carrier | None,
        dispatch: DispatchService,
        slots: Slots,
        told: Callable[[Carried], None],
    ) -> None:
        self.key = key
        self.holding = False
        """Whether it has a lease, or is just taking one."""
        self.closing = False
        self.stranded = False
        """Whether all that waits here is for another daemon, or for a carrier that does not run."""
        self._carrier = None if carrier is None else Guarded(carrier, key)
        self._dispatch = dispatch
        self._slots = slots
        self._told = told
        self._rung = asyncio.Event()
        self._turn: Parcel | None = None
        self._noted = False
        self._changed = False
        self._watch_at = 0.0
        self._polls = 0
        self._busy = 0
        self._away = 0
        self._empty = 0
        self._held_until = 0.0
        self._strand_until = 0.0
        self._deferred: str | None = None

    def ring(self) -> None:
        """Asleep -> looking again."""
        self._rung.set()

    def changed(self) -> None:
        """The carrier saw something happen at the target."""
        self._changed = True
        self._busy = 0
        self._rung.set()

    def watch(self, turn: Parcel) -> None:
        """Take on a turn that another process began, or this one before it was started anew."""
        if self._turn is None or self._turn.delivery.id != turn.delivery.id:
            self._begin_turn(turn)
            self._watch_at = 0.0
            self._rung.set()

    async def run(self) -> None:
        """Work until nothing is left to do for this target; never raises for a fault of the database or the carrier."""
        while not self.closing:
            self._rung.clear()
            try:
                async with self._slots.held():
                    rest = await self._pass()
                self._away = 0
            except Unavailable as error:
                rest = self._put_off(error.message)
            except Exception:
                log.exception("%s could not be served and will be tried again", self.key)
                rest = self._put_off(None)
            if self.closing or (rest is None and not self._rung.is_set()):
                return
            await self._sleep(rest or 0.0)

    def _put_off(self, message: str | None) -> float:
        if message is not None and self._away == 0:
            log.warning("%s is put off: %s", self.key, message)
        self._away += 1
        return pauses.step(pauses.AWAY, self._away)

    async def _sleep(self, seconds: float) -> None:
        hold = self._held_until - _now()
        if hold > 0:
            await asyncio.sleep(hold)
            seconds -= hold
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._rung.wait()
            except TimeoutError:
                pass

    async def _pass(self) -> float | None:
        """Do the next thing: how long to rest after it (seconds), None when nothing is left."""
        carrier = self._carrier
        if carrier is None:
            return await self._strand(NO_CARRIER)
        await self._watch(carrier)
        reaches = carrier.reaches
        if self._turn is not None:
            due = await self._dispatch.next_due(self.key, reaches)
            if due is None or due > 0:
                return await self._behind_the_turn(self._turn, due)
        head = await self._dispatch.head(self.key, reaches)
        if head is None:
            return await self._nothing(reaches)
        self.stranded = False
        look = await carrier.look(head)
        match look.standing:
            case Standing.BUSY:
                # What was written in doubt may be the very thing that the target works on.
                if not await carrier.seen(head):
                    return await self._wait_for_it(head, look.reason)
            case Standing.GONE:
                await self._show(head, ENDPOINT_GONE)
                return pauses.GONE
            case Standing.FREE | Standing.FAULT | Standing.ABSENT:
                pass
            case _:
                assert_never(look.standing)
        if self.closing:
            return None
        self.holding = True
        try:
            parcel = await self._dispatch.lease(self.key, reaches)
            if parcel is None:
                self._empty += 1
                return min(0.05 * 2.0**self._empty, 1.0)
            self._empty = 0
            return await self._carry(carrier, parcel, look)
        finally:
            self.holding = False

    async def _behind_the_turn(self, turn: Parcel, due: int | None) -> float:
        """Nothing may go before the turn's end: rest until it is looked at again, or something else falls due."""
        rest = max(self._watch_at - _now(), 0.0)
        if due is None:
            return rest
        await self._defer(f"waits for the end of the answer to {turn.message.id}")
        return min(rest, due / 1000)

    async def _nothing(self, reaches: Sequence[str]) -> float | None:
        due = await self._dispatch.next_due(self.key, reaches)
        if due is not None:
            self.stranded = False
            # What is due and yet not to be had is another's: each look finds it less urgent.
            self._empty = self._empty + 1 if due <= 0 else 0
            return max(due / 1000, min(0.02 * 2.0**self._empty, 1.0))
        if self._turn is not None:
            return max(self._watch_at - _now(), 0.0)
        if reaches != (ANY_REACH,):
            return await self._strand(OUT_OF_REACH)
        await self._leave()
        return None

    async def _strand(self, reason: str) -> float | None:
        """Nothing waits that this lane could carry: is there anything for others, and does nobody come for it?

        One more message for others changes neither: they are looked for again when it is time.
        """
        rest = self._strand_until - _now()
        if rest > 0:
            return rest
        due = await self._dispatch.next_due(self.key, None)
        if due is None:
            self.stranded = False
            await self._leave()
            return None
        if due > 0 or not self.stranded:
            # Held, paused or in its turn: somebody sees to it. What is ready may be taken in a moment.
            self.stranded = due <= 0
            return self._strand_for(pauses.STRANDED[0])
        head = await self._dispatch.head(self.key, (ANY_REACH,))
        if head is None or head.target.busy_reason is None:
            await self._defer(await self._missing(reason))
        return self._strand_for(pauses.STRANDED[1])

    async def _leave(self) -> None:
        """Nothing that could be carried is left: say that what waits has lost its endpoint, or that nothing waits."""
        await self._defer(ENDPOINT_GONE if await self._dispatch.bereft(self.key) else None)

    async def _missing(self, reason: str) -> str:
        """Why nobody comes: a process that gave no sign of life for too long, or has left, is not coming back."""
        if self.key.startswith(_PROCESS) and not await self._dispatch.seated(self.key):
            return ENDPOINT_GONE
        return reason

    def _strand_for(self, seconds: float) -> float:
        self._strand_until = _now() + seconds
        return seconds

    async def _wait_for_it(self, parcel: Parcel, reason: str) -> float:
        await self._show(parcel, reason or "busy")
        self._busy += 1
        return pauses.step(pauses.BUSY, self._busy)

    async def _show(self, parcel: Parcel, reason: str | None) -> None:
        """Say why the target waits, where it does not say so yet."""
        if parcel.target.busy_reason != reason:
            await self._dispatch.defer(self.key, reason, parcel)
        self._deferred = reason

    async def _defer(self, reason: str | None) -> None:
        if reason != self._deferred:
            await self._dispatch.defer(self.key, reason)
            self._deferred = reason

    # Under the lease.

    async def _carry(self, carrier: Guarded, parcel: Parcel, look: Look) -> float:
        wrote = False

        async def write() -> Writing:
            nonlocal wrote
            wrote = True
            return await carrier.write(parcel)

        fault = look.standing in {Standing.FAULT, Standing.ABSENT}
        try:
            if self.closing:
                writing = Writing(Written.BUSY)
            elif fault:
                writing = _refusal(look)
            else:
                writing, fault = await self._deliver(carrier, parcel, write)
        except asyncio.CancelledError:
            writing = Writing(Written.UNKNOWN, CUT_SHORT) if wrote else Writing(Written.BUSY)
            await self._hand_back(parcel, writing)
            raise
        settled = await self._settle(parcel, writing)
        self._told(Carried(self.key, writing.outcome))
        return await self._after(parcel, writing, settled, fault=fault)

    async def _deliver(
        self, carrier: Guarded, parcel: Parcel, write: Callable[[], Awaitable[Writing]]
    ) -> tuple[Writing, bool]:
        """What came of the delivery, and whether a fault of the target is why."""
        began = _now()
        if await carrier.seen(parcel):
            progress = await carrier.progress(parcel)
            return Writing(Written.WRITTEN, turn=progress.turn is Turn.WORKING), False
        look = await carrier.look(parcel)
        match look.standing:
            case Standing.FREE if _now() - began > LOOK_SHARE * lease_seconds(parcel):
                return Writing(Written.REFUSED, TOO_SLOW), True
            case Standing.FREE if not await self._attached(parcel):
                return Writing(Written.BUSY, ENDPOINT_GONE), False
            case Standing.FREE:
                return await write(), False
            case Standing.BUSY:
                return Writing(Written.BUSY, look.reason), False
            case Standing.GONE:
                return Writing(Written.BUSY, ENDPOINT_GONE), False
            case Standing.FAULT | Standing.ABSENT:
                return _refusal(look), True
            case _:
                assert_never(look.standing)

    async def _attached(self, parcel: Parcel) -> bool:
        """Whether it is still to go there; where the database cannot say so, nothing is written."""
        try:
            return await self._dispatch.attached(parcel)
        except Unavailable:
            return False

    async def _settle(self, parcel: Parcel, writing: Writing) -> Delivery | None:
        """Tell the database what came of it, for as long as it takes: what was written must not be written again."""
        tries = 0
        while True:
            try:
                return await self._dispatch.settle(parcel, writing.outcome, writing.reason, turn=writing.turn)
            except Unavailable as error:
                if tries == 0:
                    log.warning("%s cannot be settled yet: %s", parcel.delivery.id, error.message)
                tries += 1
                await asyncio.sleep(pauses.step(pauses.AWAY, tries))

    async def _hand_back(self, parcel: Parcel, writing: Writing) -> None:
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._settle(parcel, writing)
        except TimeoutError:
            log.warning("%s was not handed back in time; its lease lapses", parcel.delivery.id)

    async def _after(self, parcel: Parcel, writing: Writing, settled: Delivery | None, *, fault: bool) -> float:
        match writing.outcome:
            case Written.WRITTEN:
                self._busy = 0
                self._deferred = None
                if writing.turn:
                    self._begin_turn(parcel)
                return 0.0
            case Written.PERMANENT:
                await self._show(parcel, None)
                return 0.0
            case Written.REFUSED:
                log.info("%s to %s failed: %s", parcel.message.id, self.key, writing.reason)
                await self._show(parcel, None)
                if fault:
                    await self._dispatch.pause(self.key, pauses.fault_ms(settled))
                return self._hold(pauses.FAILED)
            case Written.UNKNOWN if writing.pushed:
                self._busy = 0
                await self._show(parcel, None)
                return 0.0
            case Written.UNKNOWN:
                log.info("%s to %s may have been written: %s", parcel.message.id, self.key, writing.reason)
                await self._show(parcel, None)
                await self._dispatch.pause(self.key, pauses.MAX_FAULT_MS)
                return self._hold(pauses.FAILED)
            case Written.BUSY:
                return 0.0 if self.closing else await self._wait_for_it(parcel, writing.reason or "")
            case _:
                assert_never(writing.outcome)

    def _hold(self, seconds: float) -> float:
        self._held_until = _now() + seconds
        return seconds

    # The turn.

    def _begin_turn(self, turn: Parcel) -> None:
        self._turn, self._noted, self._polls = turn, False, 0
        self._watch_at = _now() + pauses.TURN[0]

    async def _watch(self, carrier: Guarded) -> None:
        """Ask how the turn stands where an event came or it is time, and end it when it is over."""
        turn = self._turn
        if turn is None or not (self._changed or _now() >= self._watch_at):
            return
        self._changed = False
        progress = await carrier.progress(turn)
        match progress.turn:
            case Turn.WORKING | Turn.UNKNOWN:
                self._polls += 1
                self._watch_at = _now() + pauses.step(pauses.TURN, self._polls)
                if progress.seen and not self._noted:
                    await self._dispatch.note_seen(turn.delivery.id)
                    self._noted = True
            case Turn.ANSWERED | Turn.LOST:
                answered = progress.turn is Turn.ANSWERED
                if progress.seen and not answered and not self._noted:
                    await self._dispatch.note_seen(turn.delivery.id)
                await self._dispatch.end_turn(self.key, turn.delivery.id, answered=answered, reason=progress.reason)
                self._turn = None
                # That told this very lane, which is about to look anyway.
                self._rung.clear()
            case _:
                assert_never(progress.turn)


def _refusal(look: Look) -> Writing:
    return Writing(Written.PERMANENT if look.standing is Standing.ABSENT else Written.REFUSED, look.reason)


def _now() -> float:
    return asyncio.get_running_loop().time()
