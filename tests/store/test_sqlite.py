"""What SQLite's engine alone must get right: groups, full disks, locked files, and a clock that goes back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import pytest

from postroom.errors import Conflict, Unavailable
from postroom.model import NewTodo, TodoState
from postroom.store import sqlite
from postroom.store.engine import Duplicate, Row, Tx
from postroom.store.sqlite import SqliteEngine
from tests.offices import ADMIN, ANN, Bench, gather
from tests.processes import Processes, until, wait_until

INSERT = "request_insert"
BIG = "x" * 900_000


@pytest.fixture
async def engine(
    tmp_path: Path, clock: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SqliteEngine]:
    """An opened engine on a file of its own, whose groups are not cut short by a slow moment of the machine."""
    monkeypatch.setattr(sqlite, "MAX_GROUP_SECONDS", 3600.0)
    made = SqliteEngine(tmp_path / "postroom.db", clock)
    await made.open()
    yield made
    await made.close()


def _commits(engine: SqliteEngine) -> list[int]:
    counted: list[int] = []
    assert engine._writer is not None

    def commit() -> bool:
        counted.append(1)
        return False

    engine._writer.set_commit_hook(commit)
    return counted


async def _others_write(engine: SqliteEngine) -> None:
    """As when several had written together just before: what comes now waits for its group."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    engine._last_group = 2


def _insert(key: str) -> dict[str, object]:
    return {"principal": "p", "key": key, "verb": "v", "digest": "d"}


async def test_writes_that_wait_at_the_same_moment_commit_together(engine: SqliteEngine) -> None:
    commits = _commits(engine)
    await gather(*[engine.write(INSERT, **_insert(str(n))) for n in range(50)])
    assert len(commits) <= 2  # The first may have gone alone, before the others were known.
    commits.clear()
    await _others_write(engine)
    await gather(*[engine.write(INSERT, **_insert(f"group {n}")) for n in range(50)])
    assert len(commits) == 1
    for number in range(3):
        await engine.write(INSERT, **_insert(f"alone {number}"))
    assert len(commits) == 4


async def test_no_write_is_answered_before_its_commit(engine: SqliteEngine) -> None:
    beside = apsw.Connection(str(engine.path))
    count = "select count(*) from requests"
    seen: list[int] = []

    async def write(number: int) -> None:
        await engine.write(INSERT, **_insert(str(number)))
        seen.append(int(str(beside.execute(count).get)))

    await write(-1)
    assert seen.pop() == 1
    await _others_write(engine)
    await gather(*[write(n) for n in range(20)])
    assert seen[0] == 21  # the whole group was there when the first was answered


async def test_a_group_is_bounded(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "MAX_GROUP", 10)
    commits = _commits(engine)
    answers = await gather(*[engine.write(INSERT, **_insert(str(n))) for n in range(95)])
    assert answers == [[(str(n),)] for n in range(95)]
    assert len(commits) >= 10
    monkeypatch.setattr(sqlite, "MAX_GROUP_SECONDS", 0.0)
    commits.clear()
    await gather(*[engine.write(INSERT, **_insert(f"b{n}")) for n in range(5)])
    assert len(commits) == 5


async def test_one_operation_of_a_group_is_rolled_back_alone(engine: SqliteEngine) -> None:
    commits = _commits(engine)

    async def refused(tx: Tx) -> None:
        await tx.rows(INSERT, **_insert("never"))
        raise Conflict("no")

    async def broken(tx: Tx) -> None:
        await tx.rows(INSERT, **_insert("never either"))
        raise ZeroDivisionError

    async def unique(tx: Tx) -> list[Row]:
        await tx.rows(INSERT, **_insert("nor this"))
        await tx.rows("token_insert", id="t1", name="a", role="agent", queues="[]", speaks_as="[]", digest="same")
        return await tx.rows(
            "token_insert", id="t2", name="b", role="agent", queues="[]", speaks_as="[]", digest="same"
        )

    await _others_write(engine)
    answers = await gather(
        engine.write(INSERT, **_insert("first")),
        engine.transact(refused),
        engine.transact(broken),
        engine.transact(unique),
        engine.write(INSERT, **_insert("last")),
    )
    assert [type(answer).__name__ for answer in answers] == [
        "list",
        "Conflict",
        "ZeroDivisionError",
        "Duplicate",
        "list",
    ]
    assert isinstance(answers[3], Duplicate)
    assert len(commits) == 1
    rows = await Bench(engine).rows("select key from requests order by key")
    assert rows == [("first",), ("last",)]


async def test_an_operation_whose_caller_has_gone_is_not_begun(engine: SqliteEngine) -> None:
    await _others_write(engine)
    task = asyncio.ensure_future(engine.write(INSERT, **_insert("gone")))
    kept = asyncio.ensure_future(engine.write(INSERT, **_insert("kept")))
    asyncio.get_running_loop().call_soon(task.cancel)  # after it was handed over, before the group is run
    await gather(task, kept)
    assert await Bench(engine).rows("select key from requests") == [("kept",)]


async def test_a_full_disk_fails_the_whole_group_and_service_resumes(engine: SqliteEngine) -> None:
    bench = Bench(engine)
    kept = await bench.create(title="before")
    assert engine._writer is not None
    writer = engine._writer
    pages = int(str(writer.execute("pragma page_count").get))
    writer.execute(f"pragma max_page_count = {pages + 4}").fetchall()
    news = [NewTodo("inbox", "small"), NewTodo("inbox", "big", payload=BIG), NewTodo("inbox", "after")]
    await _others_write(engine)
    answers = await gather(*[bench.office.todos.create(ADMIN, new) for new in news])
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    assert engine._writer is not writer  # The connection was let go, and its limit with it.
    assert await bench.rows("select title from todos") == [("before",)]
    made = await bench.create(title="again")
    assert (await bench.get(made)).title == "again"
    assert (await bench.get(kept)).title == "before"


LIMITED = """
import asyncio, resource, signal, sys, time
from pathlib import Path
from postroom.daemon import compose
from postroom.errors import Unavailable
from postroom.model import Created, NewTodo, Principal, Role
from postroom.store.sqlite import SqliteEngine

async def main():
    engine = SqliteEngine(Path(sys.argv[1]), lambda: time.time_ns() // 1_000_000)
    await engine.open()
    office, root = compose(engine), Principal("root", Role.ADMIN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, most))
    made, refused = [], 0
    while refused < 3:
        news = [NewTodo("inbox", "x", payload="y" * 300_000) for _ in range(3)]
        answers = await asyncio.gather(*[office.todos.create(root, new) for new in news], return_exceptions=True)
        kinds = {type(answer) for answer in answers}
        assert kinds <= {Unavailable, Created}, answers
        refused += Unavailable in kinds
        made += [answer.todo.id for answer in answers if isinstance(answer, Created)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    made.append((await office.todos.create(root, NewTodo("inbox", "again", payload="z" * 300_000))).todo.id)
    for id_ in made:
        await office.todos.get(root, id_)
    count = (await engine.read("queue_depths", queues=["inbox"]))[0][2]
    assert count == len(made), (count, len(made))
    await engine.close()
    print("resumed", len(made), flush=True)

asyncio.run(main())
"""


async def test_a_file_that_may_not_grow_is_unavailable_until_it_may(tmp_path: Path, processes: Processes) -> None:
    process = processes.start(sys.executable, "-c", LIMITED, str(tmp_path / "limited.db"))
    assert process.wait(60) == 0, processes.output(process)
    assert "resumed" in processes.output(process)


LOCK = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("begin exclusive")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("rollback")
print("free", flush=True)
sys.stdin.readline()
"""


async def test_a_locked_file_is_waited_for_and_then_unavailable(
    engine: SqliteEngine, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(engine)
    first = await bench.create(title="first")
    other = processes.start(sys.executable, "-c", LOCK, str(engine.path), pipes=True)
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    waiting = asyncio.ensure_future(bench.create(title="second"))
    await until(lambda: engine._flushing, "the write waits")
    assert (await bench.get(first)).title == "first"  # Reads go on meanwhile, and so does the loop.
    assert not waiting.done()
    other.stdin.write("\n")
    other.stdin.flush()
    assert (await asyncio.wait_for(waiting, 20)).title == "second"
    # And now past the deadline.
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    locked = apsw.Connection(str(engine.path))
    locked.execute("begin immediate")
    answers = await gather(*[bench.create(title="third") for _ in range(3)])
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    locked.execute("rollback")
    assert (await bench.create(title="third")).title == "third"
    assert await bench.rows("select count(*) from todos") == [(3,)]


async def test_a_clock_that_goes_back_moves_no_time_back(tmp_path: Path) -> None:
    # S15
    now = 1_700_000_000_000
    engine = SqliteEngine(tmp_path / "postroom.db", lambda: now)
    await engine.open()
    bench = Bench(engine)
    held = await bench.claimed()
    first = await bench.create(title="first")
    now -= 3_600_000
    second = await bench.create(title="second")
    assert second.created_at == first.created_at
    assert engine.clock_steps_back > 0
    assert "clock" in (await bench.office.sweep.warnings())[0]
    await bench.office.sweep.once()
    assert (await bench.get(held)).state is TodoState.CLAIMED
    assert [todo.title for todo in await bench.claim(ANN, limit=5)] == ["first", "second"]
    now += 3_600_000 + 300_001
    await bench.office.sweep.once()
    assert (await bench.get(held)).state is TodoState.PENDING
    await engine.close()


async def test_an_operation_that_awaits_something_else_is_refused(engine: SqliteEngine) -> None:
    async def sleeps(tx: Tx) -> None:
        await tx.rows(INSERT, **_insert("x"))
        await asyncio.sleep(0.01)

    with pytest.raises(RuntimeError, match="awaits nothing but its transaction"):
        await engine.transact(sleeps)
    assert await Bench(engine).rows("select count(*) from requests") == [(0,)]


async def test_a_closed_engine_is_unavailable_and_frees_its_lock(tmp_path: Path, clock: Callable[[], int]) -> None:
    engine = SqliteEngine(tmp_path / "postroom.db", clock)
    with pytest.raises(Unavailable):
        await engine.read("clock")
    await engine.open()
    writes = [asyncio.ensure_future(engine.write(INSERT, **_insert(str(n)))) for n in range(20)]
    await asyncio.sleep(0)
    await engine.close()
    assert [await write for write in writes] == [[(str(n),)] for n in range(20)]
    with pytest.raises(Unavailable):
        await engine.write(INSERT, **_insert("late"))
    again = SqliteEngine(tmp_path / "postroom.db", clock)
    await again.open()
    assert await Bench(again).rows("select count(*) from requests") == [(20,)]
    await again.close()


CRASH = """
import asyncio, sys, time
from pathlib import Path
from postroom.daemon import compose
from postroom.model import NewTodo, Principal, Role
from postroom.store.sqlite import SqliteEngine

async def main():
    engine = SqliteEngine(Path(sys.argv[1]), lambda: time.time_ns() // 1_000_000)
    await engine.open()
    office, root = compose(engine), Principal("root", Role.ADMIN)
    async def create():
        while True:
            print((await office.todos.create(root, NewTodo("inbox", "x"))).todo.id, flush=True)
    await asyncio.gather(*[create() for _ in range(8)])

asyncio.run(main())
"""


async def test_what_was_answered_outlives_a_kill(
    tmp_path: Path, clock: Callable[[], int], processes: Processes
) -> None:
    # S1
    path = tmp_path / "postroom.db"
    answered: set[str] = set()
    for _ in range(3):
        process = processes.start(sys.executable, "-c", CRASH, str(path))
        wait_until(lambda process=process: processes.output(process).count("\n") > 300, "many were answered")  # type: ignore[misc]
        process.kill()
        process.wait(10)
        answered |= set(processes.output(process).rpartition("\n")[0].split())
    engine = SqliteEngine(path, clock)
    await engine.open()
    kept = {row[0] for row in await Bench(engine).rows("select id from todos")}
    assert answered <= kept
    await engine.close()
