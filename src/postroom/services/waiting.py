"""The waiting room: claims that wait for work, the longest waiting served first, and no wake-up lost (RULINGS 13)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass, field
from operator import itemgetter

from postroom import limits
from postroom.errors import PostroomError, Unavailable
from postroom.limits import MAX_WAIT
from postroom.model import ClaimRequest, Principal, Todo
from postroom.services.claims import ClaimService
from postroom.services.giving_back import GivingBack
from postroom.services.wake import Wake
from postroom.store.claims import ClaimTable
from postroom.store.engine import Engine, Reader
from postroom.store.queues import QueueTable

LOOK_AGAIN = 5.0
"""Every waiter looks again this often (seconds), for hints may be lost."""
LOOK_AGAIN_DEAF = 1.0
"""The same where no hints of other processes arrive."""
CLOSING_SECONDS = 5.0
"""How long the closing of the room waits for a claim that is under way."""
CONTENDED_SECONDS = 0.05
"""How soon a waiter looks again whose empty answer rested on rows that others had locked (RULINGS 2)."""

log = logging.getLogger("postroom.waiting")


@dataclass(slots=True, eq=False)
class _Waiter:
    number: int
    principal: Principal
    request: ClaimRequest
    future: asyncio.Future[tuple[Todo, ...]]
    looking: bool = True
    claiming: bool = False
    """A claim for it is under way."""
    expired: bool = False
    missed: bool = False
    contended: bool = False

    def covers(self, queue: str | None) -> bool:
        if queue is None:
            return True
        named = self.request.queues
        return queue in named if named is not None else self.principal.may_use(queue)


@dataclass(slots=True)
class _Alarm:
    handle: asyncio.TimerHandle | None = field(default=None)

    def cancel(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None


class WaitingRoom:
    """claim_next for those who wait."""

    def __init__(
        self,
        engine: Engine,
        table: ClaimTable,
        queue_table: QueueTable,
        claims: ClaimService,
        giving: GivingBack,
        wake: Wake,
    ) -> None:
        self._engine = engine
        self._table = table
        self._queue_table = queue_table
        self._claims = claims
        self._giving = giving
        self._reader = Reader(engine)
        self._numbers = itertools.count()
        self._waiters: dict[int, _Waiter] = {}
        self._by_key: dict[tuple[str, str], _Waiter] = {}
        self._dirty: set[str | None] = set()
        self._rung = asyncio.Event()
        self._alarm = _Alarm()
        self._overdue = 0
        self._dispatcher: asyncio.Task[None] | None = None
        self._closed = False
        wake.listen(self._hear)

    @property
    def waiting(self) -> int:
        """How many long-polls wait now."""
        return len(self._waiters)

    async def claim_next(self, principal: Principal, request: ClaimRequest, wait_ms: int) -> tuple[Todo, ...]:
        """Claimable -> claimed; waits up to wait_ms for the first, then is empty (S18)."""
        limits.check_seconds(wait_ms, 0, MAX_WAIT, "wait_s")
        if wait_ms == 0:
            now = self._claims.claim_next(principal, request)
            return await self._giving.guard(principal, request.claim_key, now, tuple)
        self._claims.check(principal, request)
        if self._closed:
            raise Unavailable("the store is stopping: nobody waits for work any more")
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        waiter = _Waiter(next(self._numbers), principal, request, loop.create_future())
        if request.claim_key is not None:
            place = (principal.owner(request.worker), request.claim_key)
            earlier = self._by_key.pop(place, None)
            if earlier is not None and not earlier.future.done():
                earlier.future.set_result(())
            self._by_key[place] = waiter
        self._waiters[waiter.number] = waiter
        try:
            # Subscribe, look, sleep: what comes between the look and the sleep is in `missed`.
            while True:
                waiter.missed = False
                todos = await self._look(waiter)
                if todos or waiter.future.done():
                    return todos
                if not waiter.missed:
                    waiter.looking = False
                    self._start()
                    return await self._sleep(waiter, until)
        except asyncio.CancelledError:
            self._giving.give_back_soon(principal, request.claim_key, _served(waiter))
            raise
        finally:
            waiter.future.cancel()
            self._waiters.pop(waiter.number, None)
            if request.claim_key is not None:
                place = (principal.owner(request.worker), request.claim_key)
                if self._by_key.get(place) is waiter:
                    del self._by_key[place]

    async def _look(self, waiter: _Waiter) -> tuple[Todo, ...]:
        """Claim for a new waiter; when it is cancelled in the middle, what was claimed for it goes back."""
        principal, request = waiter.principal, waiter.request
        claim = self._claims.take(principal, request)
        todos, waiter.contended = await self._giving.guard(principal, request.claim_key, claim, itemgetter(0))
        return todos

    async def _sleep(self, waiter: _Waiter, until: float) -> tuple[Todo, ...]:
        """What the waiter is given until its time is over; a claim that is under way for it then is waited for."""
        try:
            async with asyncio.timeout_at(until):
                return await asyncio.shield(waiter.future)
        except TimeoutError:
            # It may have been served in the very turn in which its time ran out. And what is being claimed for it may
            # be written already: if it were given back, all who wait could be told that there is nothing.
            waiter.expired = True
            return await asyncio.shield(waiter.future) if waiter.claiming else _served(waiter)

    def _hear(self, queue: str | None) -> None:
        if not self._waiters:
            return
        self._dirty.add(queue)
        self._rung.set()
        for waiter in self._waiters.values():
            if waiter.looking and waiter.covers(queue):
                waiter.missed = True

    def _start(self) -> None:
        self._dirty.add("")  # no queue's name: only the alarm is set anew
        self._rung.set()
        if self._dispatcher is None or self._dispatcher.done():
            self._dispatcher = asyncio.get_running_loop().create_task(self._dispatch())

    async def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        look_again = loop.time() + LOOK_AGAIN
        while self._waiters and not self._closed:
            contended = any(waiter.contended for waiter in self._waiters.values())
            period = LOOK_AGAIN if self._engine.listening else LOOK_AGAIN_DEAF
            wait = CONTENDED_SECONDS if contended else max(0.0, min(look_again - loop.time(), period))
            try:
                async with asyncio.timeout(wait):
                    await self._rung.wait()
            except TimeoutError:
                self._dirty.add(None)
                look_again = loop.time() + period
            self._rung.clear()
            dirty, self._dirty = self._dirty, set()
            try:
                for queue in [None] if None in dirty else sorted(queue for queue in dirty if queue):
                    await self._serve(queue)
                await self._set_alarm()
            except Exception as error:
                if isinstance(error, Unavailable):
                    log.warning("waiting claims cannot be served now: %s", error.message)
                else:
                    log.exception("serving the waiting claims failed and will be tried again")
                await asyncio.sleep(0.2)
                look_again = loop.time()
        self._alarm.cancel()

    async def _serve(self, queue: str | None) -> None:
        """Serve the queue's waiters, longest waiting first, until there is nothing left for anyone or for each its own."""
        for waiter in self._asleep(queue):
            if not await self._try(waiter) and queue is not None:
                break
        left = self._asleep(queue)
        if queue is None or not left:
            return
        assignees = await self._table.assignees(self._reader, queue)
        for waiter in left:
            principal, worker = waiter.principal, waiter.request.worker
            if assignees & {principal.name, principal.owner(worker), principal.called(worker)}:
                await self._try(waiter)

    def _asleep(self, queue: str | None) -> list[_Waiter]:
        return [
            waiter
            for waiter in self._waiters.values()
            if not waiter.looking and not waiter.future.done() and waiter.covers(queue)
        ]

    async def _try(self, waiter: _Waiter) -> bool:
        if waiter.future.done():
            return True
        waiter.claiming = True
        todos: tuple[Todo, ...] = ()
        try:
            todos, waiter.contended = await self._claims.take(waiter.principal, waiter.request)
        except Unavailable:
            raise
        except PostroomError as error:
            if not waiter.future.done():
                waiter.future.set_exception(error)
            return True
        finally:
            waiter.claiming = False
            if waiter.expired and not todos and not waiter.future.done():
                waiter.future.set_result(())
        if not todos:
            return False
        if waiter.future.done():
            await self._giving.give_back(waiter.principal, waiter.request.claim_key, todos)
        else:
            waiter.future.set_result(todos)
        return True

    async def _set_alarm(self) -> None:
        """Wake when the next delayed, parked or leased todo of a waited queue falls due."""
        self._alarm.cancel()
        asleep = self._asleep(None)
        if not asleep:
            return
        queues: set[str] = set()
        for waiter in asleep:
            queues.update(waiter.request.queues or ())
        if any(waiter.request.queues is None for waiter in asleep):
            queues.update(await self._queue_table.names(self._reader))
        due = await self._table.next_due(self._reader, sorted(queues)) if queues else None
        # What is due and still there nobody could take (paused, capped, another's): each look finds it less urgent.
        self._overdue = self._overdue + 1 if due is not None and due <= 0 else 0
        if due is not None and due / 1000 < LOOK_AGAIN:
            seconds = max(due / 1000, min(0.01 * 2 ** min(self._overdue, 10), 1.0))
            self._alarm.handle = asyncio.get_running_loop().call_later(seconds, self._hear, None)

    async def close(self) -> None:
        """Answer every waiter with nothing, and stop: who asks again at once is unavailable, and keeps nobody up."""
        self._closed = True
        self._alarm.cancel()
        for waiter in list(self._waiters.values()):
            if not waiter.future.done():
                waiter.future.set_result(())
        if self._dispatcher is not None:
            # What it claims in this moment for one of them goes back; cut off, it would be held for nobody.
            self._rung.set()
            await asyncio.wait([self._dispatcher], timeout=CLOSING_SECONDS)
            self._dispatcher.cancel()
            await asyncio.gather(self._dispatcher, return_exceptions=True)
        await self._giving.close()


def _served(waiter: _Waiter) -> tuple[Todo, ...]:
    """What a waiter was given; nothing when it was given nothing yet."""
    future = waiter.future
    if not future.done() or future.cancelled() or future.exception() is not None:
        return ()
    return future.result()
