"""What PostgreSQL's engine alone must get right: servers that go, conflicts, idle sessions, poolers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import psycopg
import pytest

from postroom.errors import Unavailable
from postroom.model import NewTodo, OutcomeItem, TodoState, Verb
from postroom.store import postgres
from postroom.store.engine import Duplicate, Row, Tx
from postroom.store.postgres import PostgresEngine
from tests.offices import ADMIN, ANN, BOB, Bench, gather
from tests.postgres import PostgresServer
from tests.processes import until


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[PostgresEngine]:
    """An opened engine on a database of its own."""
    made = PostgresEngine(postgres_url)
    await made.open()
    yield made
    await made.close()


async def test_a_killed_server_is_unavailable_and_service_resumes_by_itself(private_postgres: PostgresServer) -> None:
    # S1 S20
    engine = PostgresEngine(private_postgres.url)
    await engine.open()
    bench = Bench(engine)
    held = await bench.claimed(title="before")
    await until(lambda: engine.listening, "it listens")
    answered: list[str] = []
    faults: list[Exception] = []
    stop = asyncio.Event()

    async def create() -> None:
        while not stop.is_set():
            try:
                answered.append((await bench.office.todos.create(ADMIN, NewTodo("inbox", "x"))).todo.id)
            except Unavailable as error:
                faults.append(error)
                await asyncio.sleep(0.01)

    creators = [asyncio.create_task(create()) for _ in range(4)]
    await until(lambda: len(answered) > 50, "todos are made")
    await asyncio.get_running_loop().run_in_executor(None, private_postgres.kill_immediate)
    await until(lambda: len(faults) > 4, "the calls are told")
    assert not [task for task in creators if task.done()]  # Unavailable, and nothing else.
    await asyncio.get_running_loop().run_in_executor(None, private_postgres.start)
    before = len(answered)
    await until(lambda: len(answered) > before + 50, "todos are made again")
    stop.set()
    await asyncio.gather(*creators)
    kept = {row[0] for row in await bench.rows("select id from todos")}
    assert set(answered) <= kept
    await until(lambda: engine.listening, "it listens again")
    assert (await bench.complete(ANN, held)).state is TodoState.DONE
    await engine.close()


async def test_a_server_that_is_not_there_is_unavailable(private_postgres: PostgresServer) -> None:
    private_postgres.stop()
    engine = PostgresEngine(private_postgres.url)
    with pytest.raises(Unavailable):
        await engine.open()
    with pytest.raises(Unavailable):
        await engine.read("clock")
    private_postgres.start()
    await engine.open()
    assert (await Bench(engine).create()).state is TodoState.PENDING
    await engine.close()


@pytest.mark.parametrize("kind", [psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure])
async def test_a_conflict_of_transactions_is_tried_again_from_the_start(
    engine: PostgresEngine, kind: type[psycopg.Error]
) -> None:
    tries = 0

    async def operation(tx: Tx) -> list[Row]:
        nonlocal tries
        tries += 1
        rows = await tx.rows("request_insert", principal="p", key="k", verb="v", digest="d")
        if tries < 4:
            raise kind("somebody else was first")
        return rows

    assert await engine.transact(operation) == [("k",)]
    assert tries == 4
    tries = -100
    with pytest.raises(Unavailable):
        await engine.transact(operation)
    assert await Bench(engine).rows("select count(*) from requests") == [(1,)]


async def test_real_deadlocks_are_resolved(engine: PostgresEngine) -> None:
    bench = Bench(engine)
    one, two = await bench.create(), await bench.create()
    both = asyncio.Barrier(2)

    async def cancel(first: str, second: str) -> int:
        tries = 0

        async def operation(tx: Tx) -> None:
            nonlocal tries
            tries += 1
            await tx.rows("todo_update", id=first, priority=tries)
            if tries == 1:
                await both.wait()
            await tx.rows("todo_update", id=second, priority=tries)

        await engine.transact(operation)
        return tries

    answers = await gather(cancel(one.id, two.id), cancel(two.id, one.id))
    assert sorted(answers) == [1, 2], answers


async def test_a_row_that_somebody_else_just_made_is_a_duplicate(engine: PostgresEngine) -> None:
    token = {"name": "a", "role": "agent", "queues": "[]", "speaks_as": "[]", "digest": "same"}
    await engine.write("token_insert", id="t1", **token)
    with pytest.raises(Duplicate):
        await engine.write("token_insert", id="t2", **{**token, "name": "b"})


async def test_a_session_idle_in_a_transaction_is_ended(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "idle_in_transaction_session_timeout=15000" in postgres.SESSION
    monkeypatch.setattr(postgres, "SESSION", postgres.SESSION.replace("session_timeout=15000", "session_timeout=100"))
    engine = PostgresEngine(postgres_url)
    await engine.open()
    bench = Bench(engine)
    todo = await bench.create()
    locked = asyncio.Event()
    go = asyncio.Event()

    async def stalls(tx: Tx) -> None:
        await tx.rows("todo_update", id=todo.id, priority=9)
        locked.set()
        await go.wait()
        await tx.rows("clock")

    stalled = asyncio.create_task(engine.transact(stalls))
    await locked.wait()
    # Its lock goes with its session, and the others go on.
    assert (await bench.office.todos.cancel(ADMIN, todo.id)).priority == 0
    go.set()
    with pytest.raises(Unavailable):
        await stalled
    assert (await bench.get(todo)).priority == 0
    await engine.close()


async def test_a_statement_has_a_deadline(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "statement_timeout=30000" in postgres.SESSION
    assert "lock_timeout=10000" in postgres.SESSION
    monkeypatch.setattr(postgres, "SESSION", postgres.SESSION.replace("lock_timeout=10000", "lock_timeout=100"))
    engine = PostgresEngine(postgres_url)
    await engine.open()
    bench = Bench(engine)
    todo = await bench.create()
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        await other.execute("select 1 from todos for update")
        with pytest.raises(Unavailable):
            await bench.office.todos.cancel(ADMIN, todo.id)
        assert await bench.claim() == []  # Claims pass locked rows by.
    assert len(await bench.claim()) == 1
    await engine.close()


async def test_a_broken_pooled_connection_is_replaced(engine: PostgresEngine) -> None:
    bench = Bench(engine)
    await bench.create()
    cut = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and application_name = 'postroom'"
    )
    for _ in range(2):
        await bench.rows(cut)

        async def works() -> bool:
            try:
                await bench.create()
            except Unavailable:
                return False
            return True

        await until(works, "a new connection is made")


async def test_a_broken_pooled_connection_fails_one_caller_and_not_one_for_each_that_lies_idle(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(engine)
    await bench.create()
    hand = engine._hand
    assert hand is not None
    lent = [await hand.pool.getconn() for _ in range(5)]
    for one in lent:
        await hand.pool.putconn(one)
    # Hints would meet a broken one first, unseen.
    monkeypatch.setattr(engine, "hint", lambda queue: None)
    await bench.rows(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and application_name = 'postroom'"
    )
    with pytest.raises(Unavailable):
        await bench.create()
    for number in range(6):
        await bench.create(title=str(number))


# Poolers.


async def test_a_pooler_in_transaction_mode_gets_no_session_state(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    engine = PostgresEngine(f"{postgres_url}&pooler=transaction")
    options = engine._connect_options()
    assert options["prepare_threshold"] is None
    assert "options" not in options
    assert "pooler" not in engine._url
    await engine.open()
    bench = Bench(engine)
    for number in range(12):
        await bench.create(title=str(number), idempotency_key=f"k{number}")
    for _ in range(3):
        (held,) = await bench.claim()
        await bench.complete(ANN, held)
    held_many = await bench.claim(BOB, limit=5, claim_key="c")
    items = [OutcomeItem(todo.id, Verb.FAIL, todo.lease_id) for todo in held_many]
    assert all(one.error is None for one in await bench.office.endings.end_many(BOB, items))
    await bench.office.sweep.once()
    assert not engine.listening
    prepared, listening = "select count(*) from pg_prepared_statements", "select count(*) from pg_listening_channels()"
    async with engine._connection() as connection:
        for query in (prepared, listening, "select count(*) from pg_locks where locktype = 'advisory'"):
            cursor = await connection.execute(query.encode())
            assert await cursor.fetchall() == [(0,)]
        cursor = await connection.execute(b"select setting from pg_settings where name = 'plan_cache_mode'")
        assert await cursor.fetchall() == [("auto",)]
    await engine.close()


@pytest.mark.parametrize(
    ("url", "bare", "pooled"),
    [
        ("postgresql://u:p@h:1/db", "postgresql://u:p@h:1/db", False),
        ("postgresql://h/db?pooler=transaction", "postgresql://h/db", True),
        ("postgresql://h/db?pooler=session", "postgresql://h/db", False),
        ("postgresql://h/db?a=1&pooler=transaction&b=%2Ftmp", "postgresql://h/db?a=1&b=%2Ftmp", True),
        ("postgresql:///db?host=/tmp/x", "postgresql:///db?host=%2Ftmp%2Fx", False),
    ],
)
def test_the_urls_pooler_word_is_ours_alone(url: str, bare: str, pooled: bool) -> None:
    assert postgres._split_pooler(url) == (bare, pooled)


async def test_two_engines_share_one_database(engine: PostgresEngine, postgres_url: str) -> None:
    # S5 S20 S21
    other = PostgresEngine(postgres_url)
    await other.open()
    here, there = Bench(engine), Bench(other)
    await here.office.todos.create_many(ADMIN, [NewTodo("inbox", str(n)) for n in range(100)])

    async def drain(bench: Bench) -> list[str]:
        got: list[str] = []
        while taken := await bench.claim(limit=3):
            got += [todo.id for todo in taken]
        return got

    answers = await gather(*[drain(bench) for bench in (here, there) * 4])
    got = [id_ for answer in answers for id_ in answer]
    assert len(got) == len(set(got)) == 100
    await other.close()


async def test_a_cancellation_is_never_lost_to_a_connection_that_comes_at_the_same_moment(postgres_url: str) -> None:
    engine = PostgresEngine(postgres_url, pool_size=1)
    await engine.open()
    try:
        for turns in range(12):
            async with engine._connection():
                task = asyncio.create_task(engine.read("queue_names", all_of=1))
                await until(lambda: engine._hand and engine._hand.pool.get_stats()["requests_waiting"] == 1, "it waits")
            for _ in range(turns):
                await asyncio.sleep(0)
            cancelled = task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() is cancelled, turns
        assert await engine.read("queue_names", all_of=1) == []
    finally:
        await engine.close()
