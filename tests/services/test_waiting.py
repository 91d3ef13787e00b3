"""The waiting room: no wake-up is lost, the longest waiting is served first, and nothing is claimed for who has gone.

Looking again after a time is put off beyond the test's end, so that only a wake-up can serve a waiter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from postroom.errors import Conflict, Invalid, NotFound, Unavailable
from postroom.model import ClaimRequest, NewTodo, OutcomeItem, Principal, Todo, TodoChange, TodoState, Verb
from postroom.services import waiting
from postroom.store.engine import Operation, T
from postroom.store.postgres import PostgresEngine
from tests.conftest import Store
from tests.offices import ADMIN, ANN, BOB, Bench, gather, titles
from tests.processes import until

WAIT = 30_000


@pytest.fixture(autouse=True)
def no_looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a wake-up serves a waiter."""
    monkeypatch.setattr(waiting, "LOOK_AGAIN", 600.0)
    monkeypatch.setattr(waiting, "LOOK_AGAIN_DEAF", 600.0)


async def wait(
    bench: Bench, who: Principal = ANN, *queues: str, wait_ms: int = WAIT, **more: Any
) -> asyncio.Task[tuple[Todo, ...]]:
    """A long-poll that has looked and sleeps."""
    request = ClaimRequest(queues or ("inbox",), **more)
    task = asyncio.create_task(bench.office.waiting.claim_next(who, request, wait_ms))
    room = bench.office.waiting
    before = {number for number, waiter in room._waiters.items() if not waiter.looking}
    await until(
        lambda: task.done() or {n for n, waiter in room._waiters.items() if not waiter.looking} - before, "it sleeps"
    )
    await until(lambda: task.done() or not room._rung.is_set(), "the dispatcher has looked")
    return task


async def served(task: asyncio.Task[tuple[Todo, ...]]) -> list[str]:
    """The titles a long-poll is answered with, which must come well before its time is over."""
    async with asyncio.timeout(WAIT / 2000):
        return titles(await task)


async def test_what_is_there_is_given_at_once_and_nothing_is_empty(bench: Bench) -> None:
    # S18
    await bench.create(title="there")
    assert await served(await wait(bench)) == ["there"]
    assert await bench.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), 1) == ()
    assert await bench.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), 0) == ()
    assert bench.office.waiting.waiting == 0


async def test_a_wait_out_of_bounds_or_of_foreign_queues_is_refused(bench: Bench) -> None:
    for wait_ms in (-1, 50_001):
        with pytest.raises(Invalid) as caught:
            await bench.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), wait_ms)
        assert caught.value.field == "wait_s"
    with pytest.raises(NotFound):
        await bench.office.waiting.claim_next(Principal("eve", queues=("other",)), ClaimRequest(("inbox",)), WAIT)
    assert bench.office.waiting.waiting == 0


async def test_a_new_todo_reaches_who_waits(bench: Bench) -> None:
    task = await wait(bench)
    await bench.create(title="new")
    assert await served(task) == ["new"]


async def test_a_batch_reaches_as_many_as_wait(bench: Bench) -> None:
    tasks = [await wait(bench, Principal(f"w{n}")) for n in range(5)]
    await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", str(n)) for n in range(5)])
    assert [await served(task) for task in tasks] == [["0"], ["1"], ["2"], ["3"], ["4"]]


class _Held:
    """An engine that holds the answer of a claim back until it is let go: what comes between the look and the sleep."""

    def __init__(self, engine: Store) -> None:
        self._engine = engine
        self.looked = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def transact(self, operation: Operation[T], *, heavy: bool = False, one: bool = False) -> T:
        answer = await self._engine.transact(operation, heavy=heavy, one=one)
        self.looked.set()
        await self.go.wait()
        return answer


async def test_a_todo_created_while_a_waiter_looks_is_not_missed(bench: Bench) -> None:
    held = _Held(bench.store)
    slow = Bench(held)  # type: ignore[arg-type]
    task = asyncio.create_task(slow.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), WAIT))
    await held.looked.wait()
    made = await bench.create(title="between")
    slow.office.wake.work([made.queue])
    held.go.set()
    assert await served(task) == ["between"]
    await slow.office.waiting.close()


async def test_many_creations_meet_many_waits_and_none_is_lost(bench: Bench) -> None:
    async def consume(name: str) -> int:
        got = 0
        while got < 25:
            todos = await bench.office.waiting.claim_next(Principal(name), ClaimRequest(("inbox",)), WAIT)
            assert todos
            got += len(todos)
        return got

    async def produce() -> None:
        for number in range(50):
            await bench.create(title=str(number))
            if number % 3 == 0:
                await asyncio.sleep(0)

    async with asyncio.timeout(WAIT / 1000):
        answers = await gather(*[consume(f"w{n}") for n in range(4)], produce(), produce())
    assert answers[:4] == [25] * 4, answers


async def test_the_longest_waiting_is_served_first(bench: Bench) -> None:
    tasks = [await wait(bench, Principal(f"w{n}")) for n in range(4)]
    for number in range(4):
        await bench.create(title=str(number))
        assert await served(tasks[number]) == [str(number)]
        assert [task.done() for task in tasks] == [n <= number for n in range(4)]


async def test_who_waits_for_several_queues_is_woken_by_each(bench: Bench) -> None:
    for queue in ("a", "b", "c"):
        task = await wait(bench, ANN, "a", "b", "c")
        await bench.create(queue, title=queue)
        assert await served(task) == [queue]
    everything = asyncio.create_task(bench.office.waiting.claim_next(ANN, ClaimRequest(), WAIT))
    await until(lambda: bench.office.waiting.waiting == 1, "it waits")
    await bench.create("brand/new", title="brand")
    assert await served(everything) == ["brand"]


async def test_assigned_work_reaches_its_assignee_past_longer_waiters(bench: Bench) -> None:
    # S6
    first = await wait(bench, ANN)
    second = await wait(bench, BOB)
    third = await wait(bench, BOB, worker="w2")
    await bench.create(title="for w2", assignee="bob/w2")
    assert await served(third) == ["for w2"]
    await bench.create(title="for bob", assignee="bob")
    assert await served(second) == ["for bob"]
    assert not first.done()
    await bench.create(title="for anybody")
    assert await served(first) == ["for anybody"]


async def test_reassigned_work_reaches_its_new_assignee(bench: Bench) -> None:
    todo = await bench.create(title="moved", assignee="ann")
    task = await wait(bench, BOB)
    await bench.office.todos.update(ADMIN, todo.id, TodoChange(assignee="bob", assignee_given=True))
    assert await served(task) == ["moved"]


# What comes with time: no sweep runs here, the room's own alarm rings.


async def test_a_delayed_todo_reaches_who_waits_when_it_comes_due(bench: Bench) -> None:
    task = await wait(bench)
    await bench.create(title="delayed", delay_ms=150)
    assert await served(task) == ["delayed"]


async def test_a_parked_todo_reaches_who_waits_when_it_comes_due(bench: Bench) -> None:
    # S10
    held = await bench.claimed(title="parked")
    task = await wait(bench, BOB)
    await bench.fail(ANN, held, retry_in_ms=150)
    assert await served(task) == ["parked"]
    (again,) = task.result()
    task = await wait(bench, ANN)
    await bench.fail(BOB, again, retry_in_ms=0)
    assert await served(task) == ["parked"]


async def test_a_lapsed_lease_reaches_who_waits(bench: Bench) -> None:
    # S10 # S11
    todo = await bench.create(title="lapsed")
    await bench.office.claims.claim(ANN, todo.id, 1_000, None, None)
    bench.move(850)
    assert await served(await wait(bench, BOB)) == ["lapsed"]


async def test_due_work_of_one_assignee_reaches_it_past_longer_waiters(bench: Bench) -> None:
    first = await wait(bench, ANN)
    second = await wait(bench, BOB)
    await bench.create(title="bob's", assignee="bob", delay_ms=100)
    assert await served(second) == ["bob's"]
    first.cancel()
    await gather(first)


async def test_the_room_does_not_spin_over_due_work_that_nobody_may_take(bench: Bench) -> None:
    await bench.create(assignee="carol", delay_ms=1)
    bench.move(60_000)
    looks = 0
    take = bench.office.claims.take

    async def counted(principal: Principal, request: ClaimRequest) -> tuple[tuple[Todo, ...], bool]:
        nonlocal looks
        looks += 1
        return await take(principal, request)

    bench.office.claims.take = counted  # type: ignore[method-assign]
    assert await bench.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), 1_000) == ()
    assert looks <= 12


# What frees a place or opens a queue.


@pytest.mark.parametrize("how", ["complete", "fail", "release", "cancel", "batch", "fused", "reap", "raise"])
async def test_a_freed_place_wakes(bench: Bench, how: str) -> None:
    await bench.office.queues.put(ADMIN, "inbox", {"max_in_flight": 1})
    held = await bench.claimed(title="first")
    await bench.create(title="second")
    task = await wait(bench, BOB)
    item = OutcomeItem(held.id, Verb.COMPLETE, held.lease_id)
    match how:
        case "complete":
            await bench.complete(ANN, held)
        case "fail":
            await bench.fail(ANN, held)
        case "release":
            await bench.office.todos.update(ADMIN, (await _pending(bench)).id, TodoChange(priority=5))
            await bench.release(ANN, held)
        case "cancel":
            await bench.office.todos.cancel(ADMIN, held.id)
        case "batch":
            await bench.office.endings.end_many(ANN, [item])
        case "fused":
            await bench.office.claims.end_and_claim(ANN, [item], ClaimRequest(("elsewhere",)))
        case "reap":
            bench.move(300_001)
            await bench.office.sweep.once()
        case "raise":
            await bench.office.queues.put(ADMIN, "inbox", {"max_in_flight": 2})
    expected = ["first"] if how == "reap" else ["second"]
    assert await served(task) == expected


async def _pending(bench: Bench) -> Todo:
    rows = await bench.rows("select id from todos where state = 'pending'")
    return await bench.get(rows[0][0])


async def test_a_resumed_queue_wakes(bench: Bench) -> None:
    await bench.create(title="held up")
    await bench.office.queues.pause(ADMIN, "inbox", paused=True)
    task = await wait(bench)
    await bench.office.queues.pause(ADMIN, "inbox", paused=False)
    assert await served(task) == ["held up"]


async def test_released_retried_and_revoked_work_wakes(bench: Bench) -> None:
    held = await bench.claimed()
    task = await wait(bench, BOB)
    await bench.release(ANN, held)
    assert await served(task) == ["work"]
    (held,) = task.result()
    dead = await bench.fail(BOB, held, retry=False)
    task = await wait(bench, ANN)
    await bench.office.todos.retry(ADMIN, dead.id)
    assert await served(task) == ["work"]
    task = await wait(bench, BOB)
    await bench.office.tokens.create(ADMIN, "ann")
    await bench.office.tokens.revoke(ADMIN, "ann")
    assert await served(task) == ["work"]


# Who goes away.


async def test_a_cancelled_waiter_takes_nothing_with_it(bench: Bench) -> None:
    task = await wait(bench, ANN)
    task.cancel()
    await gather(task)
    assert bench.office.waiting.waiting == 0
    await bench.create(title="kept")
    assert titles(await bench.claim(BOB)) == ["kept"]


def _right_after_serving(bench: Bench, act: Callable[[], object]) -> None:
    """Do this in the very turn of the loop in which a waiter was served, before the waiter itself runs."""
    room = bench.office.waiting
    serve = room._try

    async def served_then(waiter: Any) -> bool:
        done = await serve(waiter)
        if done:
            act()
        return done

    room._try = served_then  # type: ignore[method-assign]


async def _is_free(bench: Bench, todo: Todo) -> None:
    async def free() -> bool:
        return (await bench.get(todo)).state is TodoState.PENDING

    await until(free, "the claim is given back")
    assert (await bench.get(todo)).attempt == 0


async def test_what_was_claimed_for_who_went_in_that_moment_is_given_back(bench: Bench) -> None:
    task = await wait(bench, ANN)
    _right_after_serving(bench, task.cancel)
    made = await bench.create()
    assert isinstance((await gather(task))[0], asyncio.CancelledError)
    await _is_free(bench, made)


async def test_who_is_served_in_the_moment_its_time_runs_out_gets_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[Any] = []

    class _Asyncio:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        def timeout_at(self, when: float) -> asyncio.Timeout:
            timeouts.append(asyncio.timeout_at(when))
            return timeouts[-1]  # type: ignore[no-any-return]

    monkeypatch.setattr(waiting, "asyncio", _Asyncio())
    task = await wait(bench, ANN)
    _right_after_serving(bench, timeouts[0]._on_timeout)
    await bench.create(title="just in time")
    assert await served(task) == ["just in time"]


async def test_what_was_claimed_while_its_waiter_went_is_given_back(bench: Bench) -> None:
    made = await bench.create()
    held = _Held(bench.store)
    slow = Bench(held)  # type: ignore[arg-type]
    task = asyncio.create_task(slow.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), WAIT))
    await held.looked.wait()
    task.cancel()
    assert isinstance((await gather(task))[0], asyncio.CancelledError)
    held.go.set()
    await slow.office.waiting.close()
    await _is_free(bench, made)


async def test_a_waiter_that_goes_while_the_dispatcher_claims_gives_it_back(bench: Bench) -> None:
    held = _Held(bench.store)
    held.go.set()
    slow = Bench(held)  # type: ignore[arg-type]
    task = await wait(slow, ANN)
    held.go.clear()
    held.looked.clear()
    made = await bench.create(title="given back")
    slow.office.wake.work(["inbox"])
    await held.looked.wait()
    task.cancel()
    await gather(task)
    held.go.set()
    await _is_free(bench, made)
    await slow.office.waiting.close()


# Claim keys.


async def test_the_same_key_again_takes_the_place_of_the_earlier_call(bench: Bench) -> None:
    first = await wait(bench, ANN, claim_key="c1")
    other = await wait(bench, BOB, claim_key="c1")
    second = await wait(bench, ANN, claim_key="c1")
    assert await served(first) == []
    assert not second.done()
    for _ in range(2):
        await bench.create()
    assert len(await served(second)) == 1
    assert len(await served(other)) == 1


async def test_a_claim_under_a_key_stays_for_who_asks_again(bench: Bench) -> None:
    task = await wait(bench, ANN, claim_key="c1")
    _right_after_serving(bench, task.cancel)
    await bench.create(title="kept")
    await gather(task)
    assert await served(await wait(bench, ANN, claim_key="c1")) == ["kept"]
    assert await bench.rows("select count(*) from attempts") == [(0,)]


async def test_a_call_that_replaces_one_being_served_gets_its_claim(bench: Bench) -> None:
    held = _Held(bench.store)
    held.go.set()
    slow = Bench(held)  # type: ignore[arg-type]
    first = await wait(slow, ANN, claim_key="c1")
    held.go.clear()
    held.looked.clear()
    await bench.create(title="handed on")
    slow.office.wake.work(["inbox"])
    await held.looked.wait()
    second = asyncio.create_task(slow.office.waiting.claim_next(ANN, ClaimRequest(("inbox",), claim_key="c1"), WAIT))
    await until(first.done, "the earlier call is answered")
    held.go.set()
    assert await served(second) == ["handed on"]
    (todo,) = second.result()
    await bench.complete(ANN, todo)
    await slow.office.waiting.close()


# Trouble.


class _Broken:
    """An engine whose claims fail as long as `error` is set."""

    def __init__(self, engine: Store) -> None:
        self._engine = engine
        self.error: Exception | None = None
        self.failed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def transact(self, operation: Operation[T], *, heavy: bool = False, one: bool = False) -> T:
        if self.error is not None:
            self.failed.set()
            raise self.error
        return await self._engine.transact(operation, heavy=heavy, one=one)


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("unforeseen")], ids=["away", "unforeseen"])
async def test_waiters_outlast_a_database_that_fails(bench: Bench, error: Exception) -> None:
    broken = _Broken(bench.store)
    other = Bench(broken)  # type: ignore[arg-type]
    task = await wait(other, ANN)
    broken.error = error
    await bench.create(title="after all")
    other.office.wake.work(["inbox"])
    await broken.failed.wait()
    assert not task.done()
    broken.error = None
    assert await served(task) == ["after all"]
    await other.office.waiting.close()


async def test_a_refusal_reaches_the_one_waiter_it_is_for(bench: Bench) -> None:
    broken = _Broken(bench.store)
    other = Bench(broken)  # type: ignore[arg-type]
    task = await wait(other, ANN)
    broken.error = Conflict("no")
    other.office.wake.work(["inbox"])
    with pytest.raises(Conflict):
        await task
    await other.office.waiting.close()


async def test_closing_answers_every_waiter_with_nothing(bench: Bench) -> None:
    tasks = [await wait(bench, Principal(f"w{n}")) for n in range(3)]
    await bench.office.waiting.close()
    assert [await served(task) for task in tasks] == [[], [], []]


async def test_a_thousand_wait_and_each_is_served(bench: Bench) -> None:
    request = ClaimRequest(("inbox",))
    tasks = [
        asyncio.create_task(bench.office.waiting.claim_next(Principal(f"w{n}"), request, WAIT)) for n in range(1000)
    ]
    room = bench.office.waiting
    await until(lambda: sum(not waiter.looking for waiter in room._waiters.values()) == 1000, "all wait")
    await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", str(n)) for n in range(1000)])
    async with asyncio.timeout(WAIT / 1000):
        answers = await asyncio.gather(*tasks)
    assert [titles(answer) for answer in answers] == [[str(n)] for n in range(1000)]


# Other processes, on PostgreSQL.


@pytest.fixture
async def two(postgres_url: str) -> AsyncIterator[tuple[Bench, Bench]]:
    """Two daemons' offices over one PostgreSQL database, listening."""
    benches = [Bench(PostgresEngine(postgres_url)) for _ in range(2)]
    for one in benches:
        await one.store.open()
    await until(lambda: all(one.store.listening for one in benches), "they listen")
    yield benches[0], benches[1]
    for one in benches:
        await one.office.waiting.close()
        await one.store.close()


async def test_work_made_by_another_daemon_wakes_by_notify(two: tuple[Bench, Bench]) -> None:
    here, there = two
    task = await wait(here)
    await there.create(title="from there")
    assert await served(task) == ["from there"]


async def test_a_burst_of_hints_ends_with_one_that_sees_it_all(two: tuple[Bench, Bench]) -> None:
    here, there = two
    tasks = [await wait(here, Principal(f"w{n}")) for n in range(30)]
    for number in range(30):
        await there.create(title=str(number))
    assert sorted([(await served(task))[0] for task in tasks], key=int) == [str(n) for n in range(30)]


async def test_the_last_hint_of_a_short_lived_process_is_sent(two: tuple[Bench, Bench], postgres_url: str) -> None:
    here, _ = two
    task = await wait(here)
    brief = Bench(PostgresEngine(postgres_url))
    await brief.store.open()
    await brief.create(title="in passing")
    await brief.store.close()
    assert await served(task) == ["in passing"]


async def test_after_listening_again_every_waiter_looks(two: tuple[Bench, Bench]) -> None:
    here, there = two
    task = await wait(here)
    there.store.hint = lambda queue: None  # type: ignore[method-assign]
    await there.create(title="unheard")
    assert not task.done()
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query ~* '^listen'"
    await there.rows(cut)
    assert await served(task) == ["unheard"]


async def test_behind_a_transaction_pooler_waiters_poll(
    two: tuple[Bench, Bench], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, there = two
    monkeypatch.setattr(waiting, "LOOK_AGAIN_DEAF", 0.05)
    deaf = Bench(PostgresEngine(f"{postgres_url}&pooler=transaction"))
    await deaf.store.open()
    assert not deaf.store.listening
    task = asyncio.create_task(deaf.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), WAIT))
    await until(lambda: deaf.office.waiting.waiting == 1, "it waits")
    await there.create(title="polled")
    assert await served(task) == ["polled"]
    await deaf.office.waiting.close()
    await deaf.store.close()
