"""The worker over a desk in memory: what it claims, how it ends, what it survives, how it stops."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest

from postroom.desk import ClaimNext, OutcomeResult
from postroom.errors import Conflict, Invalid, NotFound, PostroomError, Unauthenticated, Unavailable
from postroom.limits import MAX_OUTCOMES
from postroom.model import Outcome, OutcomeItem, Reason, Todo, TodoState, Verb
from postroom.worker import Refuse, Release, Retry, Worker
from tests.fakes import Clock, MemoryDesk

PENDING, CLAIMED, DONE, FAILED = TodoState.PENDING, TodoState.CLAIMED, TodoState.DONE, TodoState.FAILED


async def until(fact: Callable[[], Any]) -> None:
    """Wait for a condition; the deadline only ends a test that would hang."""
    async with asyncio.timeout(30):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(worker: Worker, **how: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """The worker's run as a task that is ended with the test."""
    task = asyncio.create_task(worker.run(**how))
    try:
        yield task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


class Told:
    """What on_error was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[BaseException, Todo | None]] = []

    def __call__(self, error: BaseException, todo: Todo | None) -> None:
        self.heard.append((error, todo))


async def nothing(todo: Todo) -> None:
    """The shortest handler."""


def held_open() -> tuple[Callable[[Todo], Awaitable[str]], asyncio.Event, list[str]]:
    """A handler that begins, notes it, and waits for the event."""
    begun: list[str] = []
    event = asyncio.Event()

    async def handler(todo: Todo) -> str:
        begun.append(todo.id)
        await event.wait()
        return "finished"

    return handler, event, begun


class TestWork:
    async def test_drains_and_ends_when_nothing_is_left(self) -> None:
        desk = MemoryDesk()
        await desk.seed(500)

        async def handler(todo: Todo) -> dict[str, int]:
            return {"twice": 2 * todo.payload["n"]}

        stats = await Worker(desk, ["work"], handler).run(drain=True)
        assert (stats.claimed, stats.completed, stats.lost) == (500, 500, 0)
        assert set(desk.states()) == {DONE}
        assert [todo.result["twice"] for todo in desk.todos.values()] == [2 * n for n in range(500)]
        assert all(todo.attempt == 1 for todo in desk.todos.values())

    async def test_claims_ahead_in_batches_and_fuses_them_with_the_endings(self) -> None:
        desk = MemoryDesk()
        await desk.seed(400)
        await Worker(desk, ["work"], nothing, name="w1").run(drain=True)
        flushes = desk.asked("outcomes")
        fused = [call["claim"] for call in flushes if call["claim"] is not None]
        assert len(flushes) <= 400 / 20 + 2
        assert all(claim == ClaimNext(("work",), None, claim.limit, "w1") for claim in fused)
        assert len(desk.asked("claim_next")) == 2, "the first claim, and the one that proves that nothing is left"
        assert {todo.owner for todo in desk.todos.values()} == {"me/w1"}

    async def test_each_flush_is_small_and_names_a_todo_once(self) -> None:
        desk = MemoryDesk()
        await desk.seed(900)
        gate = desk.gate("outcomes")
        worker = Worker(desk, ["work"], nothing, concurrency=300, prefetch=300)
        async with running(worker, drain=True) as task:
            await until(lambda: len(desk.asked("outcomes")) == 1)
            gate.set()
            await task
        for call in desk.asked("outcomes"):
            ids = [item.id for item in call["items"]]
            assert 0 < len(ids) == len(set(ids)) <= MAX_OUTCOMES
        assert worker.stats.completed == 900

    async def test_all_kinds_of_endings_in_one_flush(self) -> None:
        desk = MemoryDesk()
        made = await desk.seed(6)
        told = Told()

        async def handler(todo: Todo) -> Any:
            match todo.payload["n"]:
                case 0:
                    return [1, "two"]
                case 1:
                    raise ValueError("no such branch")
                case 2:
                    raise Retry(7.5, "come back")
                case 3:
                    raise Refuse("never")
                case 4:
                    raise Release("not mine", delay_s=60)
                case _:
                    raise Retry

        worker = Worker(desk, ["work"], handler, on_error=told)
        await worker.run(drain=True)
        done, failed, retried, refused, released, plain = (desk.todos[todo.id] for todo in made)
        assert len(desk.asked("outcomes")) == 1
        assert (done.state, done.result) == (DONE, [1, "two"])
        assert (failed.parked, failed.error) == (True, "ValueError: no such branch")
        assert failed.next_retry_at == desk.clock.now + 30_000
        assert (retried.error, retried.next_retry_at) == ("come back", desk.clock.now + 7_500)
        assert (refused.dead, refused.reason, refused.error) == (True, Reason.REFUSED, "never")
        assert (released.state, released.attempt) == (PENDING, 0)
        assert (released.available_at, released.history[0].note) == (desk.clock.now + 60_000, "not mine")
        assert (plain.parked, plain.next_retry_at) == (True, desk.clock.now + 30_000)
        assert (worker.stats.completed, worker.stats.failed, worker.stats.released) == (1, 4, 1)
        assert [(type(error), todo and todo.id) for error, todo in told.heard] == [(ValueError, failed.id)]

    async def test_waits_for_work_and_takes_it_when_it_comes(self) -> None:
        desk = MemoryDesk()
        worker = Worker(desk, ["work"], nothing)
        async with running(worker):
            await until(lambda: desk.waiting == 1)
            await desk.create("work", "late")
            await until(lambda: worker.stats.completed == 1)
            await until(lambda: desk.waiting == 1)
            await desk.create("other", "not for it")
            await desk.create("work", "later")
            await until(lambda: worker.stats.completed == 2)
        assert all(call["wait_s"] == 20.0 for call in desk.asked("claim_next")[:2])

    async def test_a_handler_that_ends_while_a_claim_waits_is_flushed_at_once(self) -> None:
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        handler, event, begun = held_open()
        async with running(Worker(desk, ["work"], handler)):
            await until(lambda: begun and desk.waiting == 1)
            event.set()
            await until(lambda: desk.todos[todo.id].state is DONE)
            assert desk.waiting == 1
        assert desk.asked("outcomes")[0]["claim"] is None

    async def test_no_more_than_concurrency_at_once(self) -> None:
        desk = MemoryDesk()
        await desk.seed(60)
        now = most = 0

        async def handler(todo: Todo) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1

        await Worker(desk, ["work"], handler, concurrency=3).run(drain=True)
        assert most == 3

    @pytest.mark.parametrize("queues", [None, ["a", "b"]])
    async def test_queues_are_those_named_or_all(self, queues: list[str] | None) -> None:
        desk = MemoryDesk()
        for queue in ("a", "b", "c"):
            await desk.create(queue, "x")
        await Worker(desk, queues, nothing).run(drain=True)
        assert desk.states() == [DONE, DONE, DONE if queues is None else PENDING]

    async def test_runs_again_after_it_ended(self) -> None:
        desk = MemoryDesk()
        worker = Worker(desk, ["work"], nothing)
        for n in (1, 2):
            await desk.seed(3)
            assert (await worker.run(drain=True)).completed == 3 * n

    async def test_a_second_run_at_once_is_refused(self) -> None:
        worker = Worker(MemoryDesk(), ["work"], nothing)
        async with running(worker):
            await asyncio.sleep(0)
            with pytest.raises(Invalid):
                await worker.run()


class TestHandlers:
    async def test_a_plain_function_runs_in_threads_of_its_own(self) -> None:
        desk = MemoryDesk()
        await desk.seed(8)
        meeting = threading.Barrier(8)

        def handler(todo: Todo) -> str:
            # All eight must be in it at once, or the barrier breaks.
            meeting.wait(timeout=20)
            return threading.current_thread().name

        await Worker(desk, ["work"], handler, concurrency=8).run(drain=True)
        names = {todo.result for todo in desk.todos.values()}
        assert len(names) == 8
        assert all(name.startswith("postroom-worker") for name in names)

    async def test_a_plain_function_ends_as_an_async_one_does(self) -> None:
        desk = MemoryDesk()
        made = await desk.seed(5)

        def handler(todo: Todo) -> Any:
            match todo.payload["n"]:
                case 0:
                    raise StopIteration
                case 1:
                    raise KeyError("x")
                case 2:
                    raise Refuse("no")
                case 3:
                    return asyncio.sleep(0, "awaited")
                case _:
                    return 5

        await Worker(desk, ["work"], handler, on_error=Told()).run(drain=True)
        stopped, failed, refused, awaited, plain = (desk.todos[todo.id] for todo in made)
        assert stopped.error == "RuntimeError: the handler raised StopIteration"
        assert (failed.error, refused.reason) == ("KeyError: 'x'", Reason.REFUSED)
        assert (awaited.result, plain.result) == ("awaited", 5)

    async def test_an_object_with_an_async_call_is_awaited(self) -> None:
        class Handler:
            async def __call__(self, todo: Todo) -> str:
                return threading.current_thread().name

        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        await Worker(desk, ["work"], Handler()).run(drain=True)
        assert desk.todos[todo.id].result == threading.current_thread().name

    async def test_an_ending_never_fails_for_what_it_says(self) -> None:
        """Bad text in results and errors, errors that cannot be shown, results that are no JSON."""
        desk = MemoryDesk()
        made = await desk.seed(6)

        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        class Odd:
            def __str__(self) -> str:
                raise RuntimeError

        async def handler(todo: Todo) -> Any:
            match todo.payload["n"]:
                case 0:
                    return {"nul": "a\x00b", "half": "\ud800", "nan": float("nan")}
                case 1:
                    raise ValueError("a\x00b\ud800")
                case 2:
                    raise Mute
                case 3:
                    return Odd()
                case 4:
                    raise Retry(float("inf"))
                case _:
                    raise Retry(float("nan"))

        worker = Worker(desk, ["work"], handler, on_error=Told())
        await worker.run(drain=True)
        clean, bad, mute, odd, far, now = (desk.todos[todo.id] for todo in made)
        assert clean.result == {"nul": "a\ufffdb", "half": "\ufffd", "nan": "nan"}
        assert bad.error == "ValueError: a\ufffdb\ufffd"
        assert mute.error == "Mute: (its message cannot be shown)"
        assert odd.error == "its result is no JSON: RuntimeError"
        assert far.parked
        assert now.attempt == now.max_attempts, "a delay that is no number is none"
        assert worker.stats.lost == 0

    async def test_a_result_is_copied_when_it_is_handed_over(self) -> None:
        desk = MemoryDesk()
        await desk.seed(3)
        shared: dict[str, Any] = {}

        async def handler(todo: Todo) -> dict[str, Any]:
            shared["n"] = todo.payload["n"]
            return shared

        await Worker(desk, ["work"], handler, concurrency=1, prefetch=5).run(drain=True)
        assert [todo.result for todo in desk.todos.values()] == [{"n": 0}, {"n": 1}, {"n": 2}]

    async def test_a_handler_that_cancels_itself_has_failed(self) -> None:
        desk = MemoryDesk()
        made = await desk.seed(2)

        async def handler(todo: Todo) -> None:
            if todo.id == made[0].id:
                raise asyncio.CancelledError

        worker = Worker(desk, ["work"], handler, concurrency=1)
        await worker.run(drain=True)
        first, second = (desk.todos[todo.id] for todo in made)
        assert (first.parked, first.error) == (True, "CancelledError: the handler cancelled itself")
        assert second.state is DONE

    async def test_the_choices_pass_through_context_managers(self) -> None:
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)

        @contextmanager
        def around() -> Any:
            yield

        async def handler(todo: Todo) -> None:
            with around():
                raise Refuse("no")

        await Worker(desk, ["work"], handler).run(drain=True)
        assert desk.todos[todo.id].error == "no"

    async def test_on_error_that_breaks_breaks_nothing(self) -> None:
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)

        async def handler(todo: Todo) -> None:
            raise ValueError("x")

        def on_error(error: BaseException, todo: Todo | None) -> None:
            raise RuntimeError("broken")

        await Worker(desk, ["work"], handler, on_error=on_error).run(drain=True)
        assert desk.todos[todo.id].parked

    @pytest.mark.parametrize(
        ("setting", "field"),
        [
            ({"concurrency": 0}, "concurrency"),
            ({"prefetch": -1}, "prefetch"),
            ({"lease_s": 0.5}, "lease_s"),
            ({"name": "a/b"}, "name"),
            ({"wait_s": 51}, "wait_s"),
            ({"flush_s": -1}, "flush_s"),
            ({"shutdown_s": -1}, "shutdown_s"),
        ],
    )
    def test_bad_settings_are_named(self, setting: dict[str, Any], field: str) -> None:
        with pytest.raises(Invalid) as caught:
            Worker(MemoryDesk(), ["work"], nothing, **setting)
        assert caught.value.field == field

    def test_queues_given_as_text_are_refused(self) -> None:
        with pytest.raises(Invalid):
            Worker(MemoryDesk(), "work", nothing)


class TestPrefetch:
    async def test_slow_handlers_are_not_claimed_ahead_for(self) -> None:
        """What no slot could begin soon stays for other workers."""
        desk = MemoryDesk()
        await desk.seed(50)
        handler, event, begun = held_open()
        async with running(Worker(desk, ["work"], handler, concurrency=2)):
            await until(lambda: len(begun) == 2)
            assert desk.states().count(CLAIMED) == 2
            event.set()

    async def test_prefetch_is_the_most_beyond_those_in_work(self) -> None:
        desk = MemoryDesk()
        await desk.seed(50)
        handler, event, begun = held_open()
        worker = Worker(desk, ["work"], handler, concurrency=2, prefetch=5)
        async with running(worker):
            await until(lambda: worker.stats.claimed == 7 and len(begun) == 2)
            assert len(desk.asked("claim_next")) == 1
            event.set()
            await until(lambda: worker.stats.completed == 50)

    async def test_claims_only_once_few_are_ready(self) -> None:
        desk = MemoryDesk()
        await desk.seed(40)
        permits = asyncio.Semaphore(0)

        async def handler(todo: Todo) -> None:
            await permits.acquire()

        worker = Worker(desk, ["work"], handler, concurrency=1, prefetch=10, flush_s=0)
        async with running(worker):
            await until(lambda: worker.stats.claimed == 11)
            for n in range(1, 5):
                permits.release()
                await until(partial(lambda n: worker.stats.completed == n, n))
            assert worker.stats.claimed == 11
            permits.release()
            await until(lambda: worker.stats.claimed == 16)

    async def test_what_is_unflushed_bounds_what_is_claimed(self) -> None:
        """A desk that takes no endings gets no more claims than fit in hand (back-pressure)."""
        desk = MemoryDesk()
        await desk.seed(500)
        desk.break_next("outcomes", Unavailable("down"), times=1000)
        told = Told()
        worker = Worker(desk, ["work"], nothing, concurrency=4, prefetch=6, on_error=told)
        async with running(worker):
            await until(lambda: len(desk.asked("outcomes")) >= 4)
            assert worker.stats.claimed == 10
            assert desk.states().count(CLAIMED) == 10
            assert worker.stats.completed == 0
            desk.mend("outcomes")
            await until(lambda: worker.stats.completed == 500)
        assert all(isinstance(error, Unavailable) and todo is None for error, todo in told.heard)


class TestFaults:
    async def test_a_lost_answer_is_repeated_behind_the_lease(self) -> None:
        desk = MemoryDesk()
        await desk.seed(5)
        desk.break_next("outcomes", Unavailable("the connection broke"), after=True)
        worker = Worker(desk, ["work"], nothing, on_error=Told())
        await worker.run(drain=True)
        first, second = desk.asked("outcomes")
        assert [item.id for item in first["items"]] == [item.id for item in second["items"]]
        assert second["claim"] is None, "a claim whose answer was lost is not made twice"
        assert worker.stats.completed == 5
        assert worker.stats.lost == 0

    @pytest.mark.parametrize("after", [False, True])
    async def test_a_lost_claim_is_asked_for_by_its_key(self, after: bool) -> None:
        desk = MemoryDesk()
        await desk.seed(3)
        desk.break_next("claim_next", Unavailable("the connection broke"), times=2, after=after)
        worker = Worker(desk, ["work"], nothing, on_error=Told())
        await worker.run(drain=True)
        keys = [call["request"].claim_key for call in desk.asked("claim_next")]
        assert len(set(keys[:3])) == 1
        assert len(set(keys)) == 2
        assert all(todo.attempt == 1 for todo in desk.todos.values())
        assert worker.stats.completed == 3

    async def test_a_timeout_is_as_a_broken_connection(self) -> None:
        desk = MemoryDesk()
        await desk.seed(1)
        desk.break_next("claim_next", TimeoutError())
        desk.break_next("outcomes", TimeoutError(), after=True)
        worker = Worker(desk, ["work"], nothing, on_error=Told())
        await worker.run(drain=True)
        assert worker.stats.completed == 1

    async def test_one_ending_that_cannot_be_told_holds_no_other_back(self) -> None:
        desk = MemoryDesk()
        made = await desk.seed(5)

        class Picky(MemoryDesk):
            async def outcomes(
                self, items: Any, claim: ClaimNext | None = None
            ) -> tuple[list[OutcomeResult], list[Todo]]:
                if any(item.result == "poison" for item in items):
                    raise PostroomError("cannot take it")
                return await MemoryDesk.outcomes(self, items, claim)

        picky = Picky()
        picky.todos = desk.todos

        async def handler(todo: Todo) -> str:
            return "poison" if todo.id == made[2].id else "fine"

        worker = Worker(picky, ["work"], handler, on_error=Told())
        await worker.run(drain=True)
        assert worker.stats.completed == 4
        poisoned = desk.todos[made[2].id]
        assert (poisoned.parked, poisoned.error) == (True, "its ending was refused: PostroomError: cannot take it")

    async def test_single_results_unavailable_are_told_again(self) -> None:
        desk = MemoryDesk()
        made = await desk.seed(4)
        wait = {made[1].id, made[3].id}

        class Partial(MemoryDesk):
            async def outcomes(
                self, items: Any, claim: ClaimNext | None = None
            ) -> tuple[list[OutcomeResult], list[Todo]]:
                now = [item for item in items if item.id not in wait]
                late = [OutcomeResult(item.id, error=Unavailable("busy")) for item in items if item.id in wait]
                wait.clear()
                results, todos = await MemoryDesk.outcomes(self, now, claim)
                return results + late, todos

        partial = Partial()
        partial.todos = desk.todos
        worker = Worker(partial, ["work"], nothing, on_error=Told())
        await worker.run(drain=True)
        assert worker.stats.completed == 4
        assert [len(call["items"]) for call in partial.asked("outcomes")] == [2, 2]

    @pytest.mark.parametrize("error", [Unauthenticated("revoked"), NotFound("no such queue"), Invalid("bad queue")])
    async def test_a_claim_that_can_never_succeed_ends_the_run(self, error: PostroomError) -> None:
        desk = MemoryDesk()
        desk.break_next("claim_next", error)
        with pytest.raises(type(error)):
            await Worker(desk, ["work"], nothing).run()
        assert len(desk.asked("claim_next")) == 1

    async def test_a_token_revoked_in_mid_work_ends_the_run(self) -> None:
        desk = MemoryDesk()
        await desk.seed(3)
        desk.break_next("outcomes", Unauthenticated("revoked"))
        worker = Worker(desk, ["work"], nothing)
        with pytest.raises(Unauthenticated):
            await worker.run()
        assert worker.stats.completed == 0

    async def test_a_claim_refused_beside_endings_does_not_lose_the_endings(self) -> None:
        desk = MemoryDesk()
        await desk.seed(3)

        class Paused(MemoryDesk):
            async def outcomes(
                self, items: Any, claim: ClaimNext | None = None
            ) -> tuple[list[OutcomeResult], list[Todo]]:
                if claim is not None:
                    raise Invalid("no such queue any more", field="claim.queues")
                return await MemoryDesk.outcomes(self, items, claim)

        paused = Paused()
        paused.todos = desk.todos
        worker = Worker(paused, ["work"], nothing, on_error=Told())
        await worker.run(drain=True)
        assert worker.stats.completed == 3


class TestLeases:
    def make(self, desk: MemoryDesk, clock: Clock, handler: Any, **settings: Any) -> tuple[Worker, Told]:
        told = Told()
        settings = {"lease_s": 1.0, "on_error": told, "clock": clock.monotonic, **settings}
        return Worker(desk, ["work"], handler, **settings), told

    async def test_beats_for_all_it_holds_begun_or_not(self) -> None:  # S7 S25
        clock = Clock()
        desk = MemoryDesk(clock=clock)
        made = await desk.seed(5)
        handler, event, begun = held_open()
        worker, told = self.make(desk, clock, handler, concurrency=2, prefetch=3)
        async with running(worker):
            await until(lambda: worker.stats.claimed == 5 and len(begun) == 2)
            for n in range(1, 5):
                clock.advance(0.3)
                await until(partial(lambda n: len(desk.asked("heartbeat")) == 5 * n, n))
                assert {desk.todos[todo.id].lease_expires_at for todo in made} == {clock.now + 1000}
            assert {call["ttl_s"] for call in desk.asked("heartbeat")} == {1.0}
            assert {call["id"] for call in desk.asked("heartbeat")} == {todo.id for todo in made}
            assert len(begun) == 2
            event.set()
            await until(lambda: worker.stats.completed == 5)
        assert told.heard == []

    async def test_beats_a_third_of_the_queues_own_lease(self) -> None:
        clock = Clock()
        desk = MemoryDesk(clock=clock, lease_ms=3000)
        await desk.seed(1)
        handler, event, begun = held_open()
        worker, _ = self.make(desk, clock, handler, lease_s=None)
        async with running(worker):
            await until(lambda: begun)
            clock.advance(0.7)
            await asyncio.sleep(0.3)
            assert desk.asked("heartbeat") == []
            clock.advance(0.3)
            await until(lambda: desk.asked("heartbeat"))
            assert desk.asked("heartbeat")[0]["ttl_s"] is None
            event.set()

    async def test_no_beat_for_what_is_over(self) -> None:
        clock = Clock()
        desk = MemoryDesk(clock=clock)
        await desk.seed(1)
        worker, _ = self.make(desk, clock, nothing)
        async with running(worker):
            await until(lambda: worker.stats.completed == 1)
            clock.advance(0.9)
            await asyncio.sleep(0.2)
            assert desk.asked("heartbeat") == []

    async def test_a_lease_taken_by_another_cancels_the_handler(self) -> None:  # S22
        clock = Clock()
        desk = MemoryDesk(clock=clock)
        (todo,) = await desk.seed(1)
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def handler(todo: Todo) -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        worker, told = self.make(desk, clock, handler, concurrency=1)
        async with running(worker):
            await until(begun.is_set)
            stolen = desk.steal(todo.id)
            clock.advance(0.3)
            await asyncio.wait_for(cancelled.wait(), 20)
            await until(lambda: worker.stats.lost == 1)
            assert desk.todos[todo.id] == stolen
            # The slot is free again.
            (other,) = await desk.seed(1)
            await until(lambda: desk.todos[other.id].state is CLAIMED)
        assert len(told.heard) == 1
        assert isinstance(told.heard[0][0], Conflict)
        assert {item.id for call in desk.asked("outcomes") for item in call["items"]} == {other.id}

    async def test_a_prefetched_todo_whose_lease_is_lost_is_never_begun(self) -> None:
        clock = Clock()
        desk = MemoryDesk(clock=clock)
        first, second, third = await desk.seed(3)
        handler, event, begun = held_open()
        worker, _ = self.make(desk, clock, handler, concurrency=1, prefetch=2)
        async with running(worker):
            await until(lambda: worker.stats.claimed == 3)
            desk.steal(second.id)
            clock.advance(0.3)
            await until(lambda: worker.stats.lost == 1)
            event.set()
            await until(lambda: worker.stats.completed == 2)
        assert begun == [first.id, third.id]

    async def test_a_desk_out_of_reach_ends_the_handler_at_the_deadline(self) -> None:
        clock = Clock()
        desk = MemoryDesk(clock=clock)
        await desk.seed(1)
        desk.break_next("heartbeat", Unavailable("down"), times=1000)
        handler, _, begun = held_open()
        worker, told = self.make(desk, clock, handler)
        async with running(worker):
            await until(lambda: begun)
            clock.advance(0.8)
            await until(lambda: desk.asked("heartbeat"))
            assert worker.stats.lost == 0
            clock.advance(0.15)
            await until(lambda: worker.stats.lost == 1)
        assert isinstance(told.heard[-1][0], Conflict)
        assert "in time" in str(told.heard[-1][0])
        assert desk.asked("outcomes") == []

    async def test_a_heartbeat_that_hangs_does_not_hide_the_deadline(self) -> None:
        clock = Clock()
        desk = MemoryDesk(clock=clock)
        await desk.seed(2)
        gate = desk.gate("heartbeat")
        handler, _, begun = held_open()
        worker, _ = self.make(desk, clock, handler)
        async with running(worker):
            await until(lambda: len(begun) == 2)
            clock.advance(0.3)
            await until(lambda: len(desk.asked("heartbeat")) == 2)
            clock.advance(0.65)
            await until(lambda: worker.stats.lost == 2)
            gate.set()

    async def test_a_heartbeat_is_tried_again_before_the_deadline(self) -> None:
        clock = Clock()
        desk = MemoryDesk(clock=clock)
        (todo,) = await desk.seed(1)
        desk.break_next("heartbeat", Unavailable("down"))
        handler, event, begun = held_open()
        worker, _ = self.make(desk, clock, handler)
        async with running(worker):
            await until(lambda: begun)
            clock.advance(0.3)
            await until(lambda: len(desk.asked("heartbeat")) == 1)
            clock.advance(0.1)
            await until(lambda: len(desk.asked("heartbeat")) == 2)
            await until(lambda: desk.todos[todo.id].lease_expires_at == clock.now + 1000)
            event.set()
            await until(lambda: worker.stats.completed == 1)

    async def test_a_late_ending_is_refused_by_the_lease(self) -> None:  # S22
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        handler, event, begun = held_open()
        told = Told()
        worker = Worker(desk, ["work"], handler, on_error=told)
        async with running(worker):
            await until(lambda: begun)
            # Nobody has noticed yet: not even the same name gets past the lease id.
            stolen = desk.steal(todo.id, "me")
            event.set()
            await until(lambda: worker.stats.lost == 1)
        assert desk.todos[todo.id] == stolen
        assert [(type(error), held and held.id) for error, held in told.heard] == [(Conflict, todo.id)]

    async def test_a_handler_that_ignores_its_cancellation_says_nothing(self) -> None:
        clock = Clock()
        desk = MemoryDesk(clock=clock)
        (todo,) = await desk.seed(1)

        begun = asyncio.Event()

        async def handler(todo: Todo) -> str:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                return "done all the same"
            return "never"

        worker, _ = self.make(desk, clock, handler, concurrency=1)
        async with running(worker):
            await until(begun.is_set)
            stolen = desk.steal(todo.id)
            clock.advance(0.3)
            await until(lambda: worker.stats.lost == 1)
            (other,) = await desk.seed(1)
            await until(lambda: desk.todos[other.id].state is CLAIMED)
            assert desk.todos[todo.id] == stolen

    async def test_a_todo_claimed_anew_by_itself_replaces_the_lost_attempt(self) -> None:
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        leases: list[str | None] = []
        event = asyncio.Event()

        async def handler(todo: Todo) -> str:
            leases.append(todo.lease_id)
            if len(leases) == 1:
                await asyncio.sleep(3600)
            await event.wait()
            return "second"

        worker = Worker(desk, ["work"], handler, on_error=Told())
        async with running(worker):
            await until(lambda: len(leases) == 1)
            desk.clock.advance(301)
            await desk.wake()
            await until(lambda: len(leases) == 2)
            event.set()
            await until(lambda: worker.stats.completed == 1)
        done = desk.todos[todo.id]
        assert (done.result, done.lease_id, done.attempt) == ("second", leases[1], 2)
        assert worker.stats.lost == 1

    async def test_a_plain_handler_whose_lease_is_lost_says_nothing(self) -> None:
        clock = Clock()
        desk = MemoryDesk(clock=clock)
        (todo,) = await desk.seed(1)
        begun, go = threading.Event(), threading.Event()

        def handler(todo: Todo) -> str:
            begun.set()
            go.wait(20)
            return "late"

        worker, _ = self.make(desk, clock, handler)
        async with running(worker):
            await until(begun.is_set)
            stolen = desk.steal(todo.id)
            clock.advance(0.3)
            await until(lambda: worker.stats.lost == 1)
            go.set()
        assert desk.todos[todo.id] == stolen
        assert desk.asked("outcomes") == []


class TestStopping:
    async def test_releases_what_is_not_begun_and_lets_handlers_finish(self) -> None:  # S24
        desk = MemoryDesk()
        made = await desk.seed(6)
        handler, event, begun = held_open()
        worker = Worker(desk, ["work"], handler, concurrency=2, prefetch=3)
        async with running(worker) as task:
            await until(lambda: worker.stats.claimed == 5 and len(begun) == 2)
            worker.stop()
            await until(lambda: worker.stats.released == 3)
            assert not task.done()
            event.set()
            stats = await task
        assert (stats.completed, stats.released, stats.failed) == (2, 3, 0)
        assert desk.states() == [DONE, DONE, PENDING, PENDING, PENDING, PENDING]
        assert begun == [todo.id for todo in made[:2]]
        assert all(todo.attempt == 0 for todo in list(desk.todos.values())[2:])
        assert desk.todos[made[3].id].history[0].outcome is Outcome.RELEASED

    async def test_an_attempt_interrupted_by_the_stop_is_released_not_failed(self) -> None:  # S24
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        handler, _, begun = held_open()
        worker = Worker(desk, ["work"], handler, shutdown_s=0)
        async with running(worker) as task:
            await until(lambda: begun)
            worker.stop()
            stats = await task
        assert (stats.released, stats.failed) == (1, 0)
        assert (desk.todos[todo.id].state, desk.todos[todo.id].attempt) == (PENDING, 0)
        assert desk.todos[todo.id].history[0].note == "the worker stopped in mid-work"

    async def test_what_breaks_because_of_the_interruption_is_released_too(self) -> None:
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        begun = asyncio.Event()

        async def handler(todo: Todo) -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise ConnectionError("cut off") from None

        worker = Worker(desk, ["work"], handler, shutdown_s=0, on_error=Told())
        async with running(worker) as task:
            await begun.wait()
            worker.stop()
            await task
        assert desk.todos[todo.id].state is PENDING

    async def test_a_second_stop_does_not_wait(self) -> None:
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        handler, _, begun = held_open()
        worker = Worker(desk, ["work"], handler, shutdown_s=3600)
        async with running(worker) as task:
            await until(lambda: begun)
            worker.stop()
            await asyncio.sleep(0.01)
            assert not task.done()
            worker.stop()
            await task
        assert desk.todos[todo.id].state is PENDING

    async def test_cancelled_it_gives_back_and_stays_cancelled(self) -> None:
        desk = MemoryDesk()
        await desk.seed(4)
        handler, _, begun = held_open()
        worker = Worker(desk, ["work"], handler, concurrency=2, prefetch=2)
        async with running(worker) as task:
            await until(lambda: len(begun) == 2 and worker.stats.claimed == 4)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert desk.states() == [PENDING] * 4
        assert worker.stats.released == 4

    async def test_a_waiting_claim_is_given_up_and_what_it_got_given_back(self) -> None:
        """The claim was made, its answer was not yet here when the worker stopped."""

        class Slow(MemoryDesk):
            made = asyncio.Event()

            async def claim_next(self, *args: Any, **asked: Any) -> list[Todo]:
                todos = await MemoryDesk.claim_next(self, *args, **asked)
                if not self.made.is_set():
                    self.made.set()
                    await asyncio.sleep(3600)
                return todos

        desk = Slow()
        await desk.seed(3)
        worker = Worker(desk, ["work"], nothing)
        async with running(worker) as task:
            await until(desk.made.is_set)
            assert CLAIMED in desk.states()
            worker.stop()
            await task
        assert desk.states() == [PENDING] * 3
        assert all(todo.attempt == 0 for todo in desk.todos.values())

    async def test_stops_at_once_when_idle(self) -> None:
        desk = MemoryDesk()
        worker = Worker(desk, ["work"], nothing)
        async with running(worker) as task:
            await until(lambda: desk.waiting == 1)
            worker.stop()
            await task
        assert desk.asked("outcomes") == []

    async def test_flushes_on_stop_through_an_outage(self) -> None:
        desk = MemoryDesk()
        await desk.seed(3)
        handler, event, begun = held_open()
        worker = Worker(desk, ["work"], handler, on_error=Told())
        async with running(worker) as task:
            await until(lambda: len(begun) == 3)
            desk.break_next("outcomes", Unavailable("down"), times=3)
            worker.stop()
            event.set()
            await task
        assert desk.states() == [DONE] * 3

    async def test_a_handler_that_will_not_end_is_left_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("postroom.worker.AFTER_CANCEL_S", 0.05)
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        begun, go, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handler(todo: Todo) -> str:
            begun.set()
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue
            over.set()
            return "too late"

        worker = Worker(desk, ["work"], handler, shutdown_s=0)
        async with running(worker) as task:
            await begun.wait()
            worker.stop()
            await task
        assert desk.todos[todo.id].history[0].note == "the worker stopped while its handler would not"
        go.set()
        await over.wait()
        await asyncio.sleep(0)
        assert desk.todos[todo.id].state is PENDING

    async def test_beats_go_on_while_it_waits_for_handlers(self) -> None:
        clock = Clock()
        desk = MemoryDesk(clock=clock)
        (todo,) = await desk.seed(1)
        handler, event, begun = held_open()
        worker = Worker(desk, ["work"], handler, lease_s=1.0, clock=clock.monotonic)
        async with running(worker) as task:
            await until(lambda: begun)
            worker.stop()
            clock.advance(0.3)
            await until(lambda: desk.asked("heartbeat"))
            event.set()
            await task
        assert desk.todos[todo.id].state is DONE

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    async def test_signals_stop_it_and_are_put_back(self, number: signal.Signals) -> None:
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        before = signal.getsignal(number)
        handler, _, begun = held_open()
        worker = Worker(desk, ["work"], handler, shutdown_s=3600)
        async with running(worker, signals=True) as task:
            await until(lambda: begun)
            os.kill(os.getpid(), number)
            await until(worker._stop.is_set)
            assert not task.done()
            os.kill(os.getpid(), number)
            await task
        assert desk.todos[todo.id].state is PENDING
        assert signal.getsignal(number) is before

    async def test_stopped_before_it_ran_it_claims_nothing(self) -> None:
        desk = MemoryDesk()
        await desk.seed(1)
        worker = Worker(desk, ["work"], nothing)
        worker.stop()
        await worker.run()
        assert desk.states() == [PENDING]


class TestFakeDesk:
    """The desk in memory keeps the promises that the worker leans on."""

    async def test_the_lease_id_fences_and_replays(self) -> None:
        desk = MemoryDesk()
        await desk.seed(1)
        (todo,) = await desk.claim_next(["work"])
        assert not (await desk.complete(todo.id, todo.lease_id, result=1)).replayed
        assert (await desk.complete(todo.id, todo.lease_id, result=2)).todo.result == 1
        assert (await desk.complete(todo.id, todo.lease_id)).replayed
        with pytest.raises(Conflict):
            await desk.fail(todo.id, todo.lease_id)

    async def test_a_claim_key_gives_the_same_claim(self) -> None:
        desk = MemoryDesk()
        await desk.seed(3)
        first = await desk.claim_next(["work"], limit=2, claim_key="k")
        assert await desk.claim_next(["work"], limit=1, claim_key="k") == first
        assert len(await desk.claim_next(["work"], limit=5, claim_key="l")) == 1

    async def test_two_endings_of_one_todo_never_share_a_flush(self) -> None:
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        (first,) = await desk.claim_next(["work"])
        item = OutcomeItem(todo.id, Verb.RELEASE, first.lease_id)
        (result,), (second,) = await desk.outcomes([item], ClaimNext(["work"]))
        assert result.state is PENDING
        assert (second.id, second.attempt) == (todo.id, 1)
        (stale,), _ = await desk.outcomes([OutcomeItem(todo.id, Verb.COMPLETE, first.lease_id)])
        assert isinstance(stale.error, Conflict)
