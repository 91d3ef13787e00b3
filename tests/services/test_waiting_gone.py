"""The waiting room when somebody goes, asks again, or the database fails; and between daemons."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from postroom.errors import Conflict, Unavailable
from postroom.model import ClaimRequest, NewTodo, Principal, Todo, TodoState
from postroom.services import waiting
from postroom.store.engine import Operation, T
from postroom.store.postgres import PostgresEngine
from tests.conftest import Store
from tests.offices import ADMIN, ANN, BOB, Bench, gather, titles
from tests.processes import until
from tests.services.room import WAIT, HeldBack, served, wait

pytestmark = pytest.mark.usefixtures("no_looking_again")


# Who goes away.


async def test_a_cancelled_waiter_takes_nothing_with_it(bench: Bench) -> None:
    task = await wait(bench, ANN)
    task.cancel()
    await gather(task)
    assert bench.office.waiting.waiting == 0
    await bench.create(title="kept")
    # What may have been under way for it is given back at once.
    assert titles(await until(lambda: bench.claim(BOB), "somebody else gets it")) == ["kept"]


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


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The times that waiters wait for, to be let run out at will."""
    timeouts: list[Any] = []

    class _Asyncio:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        def timeout_at(self, when: float) -> asyncio.Timeout:
            timeouts.append(asyncio.timeout_at(when))
            return timeouts[-1]  # type: ignore[no-any-return]

    monkeypatch.setattr(waiting, "asyncio", _Asyncio())
    return timeouts


async def test_who_is_served_in_the_moment_its_time_runs_out_gets_it(bench: Bench, timeouts: list[Any]) -> None:
    task = await wait(bench, ANN)
    _right_after_serving(bench, timeouts[0]._on_timeout)
    await bench.create(title="just in time")
    assert await served(task) == ["just in time"]


async def _held_in_a_claim(bench: Bench) -> tuple[HeldBack, Bench, asyncio.Task[tuple[Todo, ...]], Todo]:
    """A waiter for whom a todo was claimed in this moment, the answer still on its way."""
    held = HeldBack(bench.store)
    held.go.set()
    slow = Bench(held)  # type: ignore[arg-type]
    task = await wait(slow, ANN)
    held.go.clear()
    held.looked.clear()
    made = await bench.create(title="under way")
    slow.office.wake.work(["inbox"])
    await held.looked.wait()
    return held, slow, task, made


async def test_who_is_being_served_when_its_time_runs_out_gets_it(bench: Bench, timeouts: list[Any]) -> None:
    held, slow, task, made = await _held_in_a_claim(bench)
    timeouts[0]._on_timeout()
    waiters = slow.office.waiting._waiters.values()
    await until(lambda: [waiter.expired for waiter in waiters] == [True], "its time is over")
    held.go.set()
    assert await served(task) == ["under way"]
    assert (await bench.get(made)).state is TodoState.CLAIMED
    assert await bench.rows("select count(*) from attempts") == [(0,)]
    await slow.office.waiting.close()


async def test_what_is_being_claimed_when_the_room_closes_is_given_back(bench: Bench) -> None:
    held, slow, task, made = await _held_in_a_claim(bench)
    closing = asyncio.create_task(slow.office.waiting.close())
    assert await served(task) == []
    held.go.set()
    await closing
    await _is_free(bench, made)


async def test_what_was_claimed_while_its_waiter_went_is_given_back(bench: Bench) -> None:
    made = await bench.create()
    held = HeldBack(bench.store)
    slow = Bench(held)  # type: ignore[arg-type]
    task = asyncio.create_task(slow.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), WAIT))
    await held.looked.wait()
    task.cancel()
    assert isinstance((await gather(task))[0], asyncio.CancelledError)
    held.go.set()
    await slow.office.waiting.close()
    await _is_free(bench, made)


async def test_a_waiter_that_goes_while_the_dispatcher_claims_gives_it_back(bench: Bench) -> None:
    held, slow, task, made = await _held_in_a_claim(bench)
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
    held = HeldBack(bench.store)
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
