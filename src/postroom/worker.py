"""The worker: claims ahead in batches, runs a handler on each todo, keeps the leases, and flushes endings together."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final

from postroom.desk import ClaimNext, Desk
from postroom.errors import Conflict, Invalid, NotFound
from postroom.flush import AGAIN, CALL_S, Flush, message, pause
from postroom.hand import Hand, Held, Stats
from postroom.limits import MAX_DELAY, MAX_WAIT, check_lease, check_name, check_range, check_seconds
from postroom.model import Todo, Verb

FLUSH_ON_STOP_S: Final = 10.0
AFTER_CANCEL_S: Final = 5.0
BEATS_AT_ONCE: Final = 16
LONGEST_TICK_S: Final = 5.0

Handler = Callable[[Todo], Awaitable[Any]] | Callable[[Todo], Any]


class Retry(Exception):
    """Raised by a handler: held -> parked for `delay_s` (or the queue's backoff), with a note; the attempt counts."""

    def __init__(self, delay_s: float | None = None, note: str | None = None) -> None:
        super().__init__(note or "the handler asks for another attempt")
        self.delay_s: Final = delay_s
        self.note: Final = note


class Refuse(Exception):
    """Raised by a handler: held -> a dead letter with this error, whatever attempts are left."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error: Final = error


class Release(Exception):
    """Raised by a handler: held -> pending, at once or after `delay_s`, the attempt given back."""

    def __init__(self, note: str | None = None, delay_s: float | None = None) -> None:
        super().__init__(note or "released")
        self.note: Final = note
        self.delay_s: Final = delay_s


class Worker:
    """Runs `handler` on the todos of `queues`, `concurrency` at a time, until stopped.

    `handler(todo)` may be async or plain (then it runs in a thread). What it returns is the result; an exception is a
    failure with its message; Retry, Refuse and Release choose another ending. `prefetch` is how many todos are claimed
    beyond those in work: by default up to 20, and no more than are begun within half a second. When a lease is lost
    the async handler is cancelled and its ending dropped; a plain one runs on, its ending dropped as well. `on_error`
    is told of handlers' exceptions, refused endings and faults (with the todo, or None); by default they are logged.
    Work is at least once: handlers must bear a repetition (S17).
    """

    def __init__(
        self,
        desk: Desk,
        queues: Sequence[str] | None,
        handler: Handler,
        *,
        concurrency: int = 16,
        prefetch: int | None = None,
        lease_s: float | None = None,
        name: str | None = None,
        wait_s: float = 20.0,
        flush_s: float = 0.005,
        shutdown_s: float = 30.0,
        on_error: Callable[[BaseException, Todo | None], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        keys: Callable[[], str] = lambda: secrets.token_urlsafe(12),
    ) -> None:
        if isinstance(queues, str):
            raise Invalid(f"queues is the text {queues[:64]!r}; expected a list of names", field="queues")
        self.stats: Final = Stats()
        self._desk = desk
        self._queues = None if queues is None else tuple(queues)
        self._handler = handler
        self._concurrency = check_range(concurrency, 1, 1000, "concurrency")
        self._prefetch = None if prefetch is None else check_range(prefetch, 0, 1000, "prefetch")
        check_lease(None if lease_s is None else round(lease_s * 1000), "lease_s")
        self._lease_s = lease_s
        self._name = None if name is None else check_name(name, "name")
        self._wait_s = check_seconds(round(wait_s * 1000), 0, MAX_WAIT, "wait_s") / 1000
        self._flush_s = check_seconds(round(flush_s * 1000), 0, 1000, "flush_s") and flush_s
        self._shutdown_s = check_seconds(round(shutdown_s * 1000), 0, 86_400_000, "shutdown_s") / 1000
        self._on_error = on_error
        self._clock = clock
        self._jitter = jitter
        self._keys = keys
        call = getattr(handler, "__call__", None)  # noqa: B004
        self._async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        self._hand: Hand | None = None
        self._stop = asyncio.Event()
        self._hurry = False

    # Running and stopping.

    async def run(self, *, drain: bool = False, signals: bool = False) -> Stats:
        """Work until `stop`, or with `drain` until a claim comes back empty with nothing in hand.

        `signals` makes SIGTERM and SIGINT stop it, a second one without waiting for handlers. On stop it claims no
        more, releases what is not begun, waits up to shutdown_s for handlers, then cancels and releases theirs, and
        flushes; when cancelled it does the same without waiting. Raises what makes further work senseless, such as a
        token that is no longer good or a queue that may not be used.
        """
        if self._hand is not None:
            raise Invalid("this worker runs already")
        if self._stop.is_set():
            self._stop.clear()
            return self.stats
        hand = self._hand = Hand(self.stats, self._concurrency, self._prefetch, self._lease_s)
        threads = None if self._async else ThreadPoolExecutor(self._concurrency, "postroom-worker")
        fetch = asyncio.create_task(self._fetch(hand, drain))
        claim = ClaimNext(self._queues, self._lease_s, worker=self._name)
        flusher = Flush(hand, self._desk, claim, self._flush_s, self._clock, self._jitter, self._tell)
        flush = asyncio.create_task(flusher.run())
        rest = [asyncio.create_task(self._slot(hand, threads)) for _ in range(self._concurrency)]
        rest += [asyncio.create_task(self._keep(hand)), asyncio.create_task(self._halt())]
        tasks = [fetch, flush, *rest]
        try:
            with self._signals() if signals else contextlib.nullcontext():
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                except asyncio.CancelledError:
                    self._hurry = True
                    raise
                finally:
                    await self._close(hand, fetch, flush)
        finally:
            for task in tasks:
                task.cancel()
            # A handler that will not be cancelled is left behind: its lease was given back, its ending is dropped.
            await asyncio.wait(tasks, timeout=AFTER_CANCEL_S)
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)
            self._stop.clear()
            self._hurry = False
            self._hand = None
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return self.stats

    def stop(self) -> None:
        """Running -> stopping; called again, handlers are not waited for. For the loop's own thread."""
        self._hurry = self._stop.is_set()
        self._stop.set()
        if self._hand is not None:
            self._hand.changed.set()

    async def _halt(self) -> None:
        await self._stop.wait()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    async def _close(self, hand: Hand, fetch: asyncio.Task[None], flush: asyncio.Task[None]) -> None:
        hand.closing = True
        fetch.cancel()
        await asyncio.wait({fetch}, timeout=AFTER_CANCEL_S)
        hand.give_back()
        if not self._hurry:
            await hand.until(lambda: not hand.held or self._hurry, self._shutdown_s)
        for held in list(hand.held.values()):
            held.interrupted = True
            if held.task is not None:
                held.task.cancel()
        await hand.until(lambda: not hand.held, AFTER_CANCEL_S)
        for held in list(hand.held.values()):
            hand.end(held, Verb.RELEASE, note="the worker stopped while its handler would not")
        await hand.until(lambda: hand.told or flush.done(), FLUSH_ON_STOP_S)

    def _tell(self, error: BaseException, todo: Todo | None) -> None:
        log = logging.getLogger("postroom.worker")
        if self._on_error is None:
            log.warning("%s: %s: %s", "worker" if todo is None else todo.id, type(error).__name__, message(error))
            return
        try:
            self._on_error(error, todo)
        except Exception:
            log.exception("on_error itself failed")

    # Handling: each slot runs one handler at a time, and no task is made for a todo.

    async def _slot(self, hand: Hand, threads: ThreadPoolExecutor | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        ready, clock, end = hand.ready, self._clock, hand.end
        handler: Callable[[Todo], Awaitable[Any]] = self._handler
        if threads is not None:
            handler = _in_thread(self._handler, asyncio.get_running_loop(), threads)
        while not hand.closing:
            if not ready:
                await hand.rest()
                continue
            held = ready.popleft()
            held.task = task
            begun = clock()
            try:
                result = await handler(held.todo)
            except asyncio.CancelledError:
                if held.interrupted:
                    end(held, Verb.RELEASE, note="the worker stopped in mid-work")
                elif not held.lost:
                    if task.cancelling():
                        raise
                    end(held, Verb.FAIL, error="CancelledError: the handler cancelled itself")
            except Retry as asked:
                end(held, Verb.FAIL, error=asked.note or str(asked), retry_in_ms=_delay(asked.delay_s))
            except Refuse as asked:
                end(held, Verb.FAIL, error=asked.error, retry=False)
            except Release as asked:
                end(held, Verb.RELEASE, note=asked.note, delay_ms=_delay(asked.delay_s))
            except Exception as error:
                if held.interrupted:
                    end(held, Verb.RELEASE, note=f"the worker stopped in mid-work: {message(error)}")
                elif not held.lost:
                    self._tell(error, held.todo)
                    end(held, Verb.FAIL, error=message(error))
            else:
                end(held, Verb.COMPLETE, result=result)
            held.task = None
            if held.lost or held.interrupted:
                while task.cancelling():
                    task.uncancel()
            hand.took(clock() - begun)

    # Claiming: by the flush while there is something to flush, else by a claim of its own that waits for work.

    async def _fetch(self, hand: Hand, drain: bool) -> None:
        def wanted() -> bool:
            return hand.room() > 0 and (hand.empty if drain else hand.dry or hand.told)

        wait_s = 0.0 if drain else self._wait_s
        key, faults, unanswered = self._keys(), 0, False
        try:
            while True:
                await hand.until(wanted)
                asked, unanswered = self._clock(), True
                hand.polling = True
                try:
                    todos = await self._claim(hand.room(), wait_s, key)
                except AGAIN as error:
                    faults += 1
                    self._tell(error, None)
                    await pause(faults, self._jitter)
                    continue
                finally:
                    hand.polling = False
                # A waiting claim begins its leases just before it answers; one that was repeated, perhaps long ago.
                hand.adopt(todos, self._clock() if wait_s else asked, beat_now=faults > 0)
                key, faults, unanswered = self._keys(), 0, False
                hand.dry = not todos
                if drain and not todos:
                    return
                # The slots begin first: only then is it seen whether there is room for more.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if unanswered:
                # What was claimed but not yet answered is asked for by its key once more, to be given back.
                with contextlib.suppress(Exception):
                    hand.adopt(await self._claim(1, 0.0, key), self._clock())
            raise

    async def _claim(self, limit: int, wait_s: float, key: str) -> list[Todo]:
        async with asyncio.timeout(wait_s + CALL_S):
            return await self._desk.claim_next(
                self._queues, ttl_s=self._lease_s, limit=limit, wait_s=wait_s, claim_key=key, worker=self._name
            )

    # Leases: one loop for all; it never waits for a call, so that a call which hangs cannot hide a passed deadline.

    async def _keep(self, hand: Hand) -> None:
        beats: set[asyncio.Task[None]] = set()
        turn = asyncio.Semaphore(BEATS_AT_ONCE)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(hand.shortest_lease / 12, LONGEST_TICK_S)):
                        hand.shorter.clear()
                        await hand.shorter.wait()
                now = self._clock()
                for held in list(hand.held.values()):
                    if now >= held.deadline:
                        self._lose(hand, held, "it could not be prolonged in time")
                    elif now >= held.beat_at:
                        # Not again while this one is on its way: it ends at the deadline at the latest.
                        held.beat_at = held.deadline
                        beat = asyncio.create_task(self._beat(hand, held, turn))
                        beats.add(beat)
                        beat.add_done_callback(beats.discard)
        finally:
            for beat in list(beats):
                beat.cancel()

    async def _beat(self, hand: Hand, held: Held, turn: asyncio.Semaphore) -> None:
        try:
            async with asyncio.timeout(max(held.deadline - self._clock(), 0.01)), turn:
                asked = self._clock()
                await self._desk.heartbeat(held.todo.id, held.todo.lease_id, ttl_s=self._lease_s)
        except (Conflict, NotFound) as error:
            self._lose(hand, held, str(error))
        except Exception as error:
            self._tell(error, held.todo)
            held.beat_at = self._clock() + held.lease_s / 12
        else:
            held.beat_at = asked + held.lease_s / 4
            held.deadline = max(held.deadline, asked + held.lease_s * 0.9)

    def _lose(self, hand: Hand, held: Held, why: str) -> None:
        if hand.lose(held):
            self._tell(Conflict(f"the lease on {held.todo.id} is lost: {why}"), held.todo)


def _in_thread(
    handler: Callable[[Todo], Any], loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor
) -> Callable[[Todo], Awaitable[Any]]:
    def call(todo: Todo) -> Any:
        try:
            return handler(todo)
        except StopIteration as error:
            # A future cannot carry it: whoever awaits one would wait for ever.
            raise RuntimeError("the handler raised StopIteration") from error

    async def run(todo: Todo) -> Any:
        result = await loop.run_in_executor(threads, copy_context().run, call, todo)
        return await result if inspect.isawaitable(result) else result

    return run


def _delay(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    return round(min(seconds * 1000, MAX_DELAY)) if seconds > 0 else 0
