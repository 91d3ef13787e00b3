"""The worker as a process: what becomes of its todos on SIGTERM and on a handler's exception, over both kinds of desk."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from postroom.daemon import connect
from postroom.desk import Desk
from postroom.model import Outcome, TodoState
from tests.processes import Processes, until
from tests.system.daemons import Daemon

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


@dataclass
class Bench:
    """A desk of the test's own, and a worker's process at the same todos."""

    desk: Desk
    where: dict[str, str]
    processes: Processes
    folder: Path

    @property
    def gate(self) -> Path:
        """What the handlers wait for."""
        return self.folder / "gate"

    def begun(self) -> list[str]:
        """The todos whose handlers have begun."""
        log = self.folder / "begun"
        return log.read_text().split() if log.exists() else []

    def work(self) -> subprocess.Popen[str]:
        """Start the worker."""
        asked = json.dumps({**self.where, "gate": str(self.gate), "log": str(self.folder / "begun")})
        return self.processes.python("-m", "tests.system.handling", asked, env={"PYTHONPATH": str(ROOT)})

    async def states(self) -> dict[str, TodoState]:
        """Where each todo stands."""
        return {todo.id: todo.state for todo in (await self.desk.list_todos(limit=200)).todos}

    def has(self, state: TodoState, count: int) -> Callable[[], Awaitable[bool]]:
        """The condition that so many todos are in this state."""

        async def holds() -> bool:
            return list((await self.states()).values()).count(state) == count

        return holds


@pytest.fixture(params=["client", "connect"])
async def bench(
    request: pytest.FixtureRequest, new_daemon: Callable[..., Daemon], processes: Processes, tmp_path: Path
) -> AsyncIterator[Bench]:
    """A worker over a daemon's client, or over a store in its own process (with PostgreSQL, which lets both look)."""
    if request.param == "client":
        daemon = await asyncio.to_thread(new_daemon().start)
        async with daemon.client() as desk:
            yield Bench(desk, {"socket": str(daemon.socket)}, processes, tmp_path)
    else:
        url: str = request.getfixturevalue("postgres_url")
        async with connect(url, name="test") as desk:
            yield Bench(desk, {"url": url}, processes, tmp_path)


# S17, S24
async def test_on_sigterm_it_gives_back_what_it_has_not_begun_and_finishes_the_rest(bench: Bench) -> None:
    ids = [(await bench.desk.create("inbox", f"todo {number}")).todo.id for number in range(8)]
    worker = bench.work()
    await until(lambda: len(bench.begun()) == 2, "two handlers have begun")
    await until(bench.has(TodoState.CLAIMED, 6), "four more are claimed ahead")
    worker.terminate()
    await until(bench.has(TodoState.PENDING, 6), "what was not begun is given back")
    assert worker.poll() is None
    begun = bench.begun()
    assert {id_ for id_, state in (await bench.states()).items() if state is TodoState.CLAIMED} == set(begun)
    bench.gate.touch()
    assert await asyncio.to_thread(worker.wait, 20) == 0, bench.processes.output(worker)
    assert bench.begun() == begun
    for number, id_ in enumerate(ids):
        todo = await bench.desk.get(id_)
        if id_ in begun:
            assert todo.state is TodoState.DONE
            assert todo.result == {"looked_at": f"todo {number}"}
            assert todo.owner is not None
            assert todo.owner.endswith("/w1")
        else:
            assert (todo.state, todo.attempt) == (TodoState.PENDING, 0)
            assert all(entry.outcome is Outcome.RELEASED for entry in todo.history)
    given = [await bench.desk.get(id_) for id_ in ids]
    assert sum(len(todo.history) for todo in given) == 4


# S17
async def test_a_second_sigterm_does_not_wait_for_the_handlers(bench: Bench) -> None:
    ids = [(await bench.desk.create("inbox", f"todo {number}")).todo.id for number in range(4)]
    worker = bench.work()
    await until(lambda: len(bench.begun()) == 2, "two handlers have begun")
    await until(bench.has(TodoState.CLAIMED, 4), "two more are claimed ahead")
    worker.terminate()
    await until(bench.has(TodoState.PENDING, 2), "what was not begun is given back")
    worker.terminate()
    assert await asyncio.to_thread(worker.wait, 20) == 0, bench.processes.output(worker)
    for id_ in ids:
        todo = await bench.desk.get(id_)
        assert (todo.state, todo.attempt) == (TodoState.PENDING, 0)
        assert [entry.outcome for entry in todo.history] == [Outcome.RELEASED]


# S9
async def test_an_exception_fails_the_todo_with_its_message(bench: Bench) -> None:
    payload = {"branch": "fix/é"}
    id_ = (await bench.desk.create("inbox", "bad", payload=payload)).todo.id
    last = (await bench.desk.create("inbox", "bad", payload=payload, max_attempts=1)).todo.id
    worker = bench.work()
    await until(bench.has(TodoState.FAILED, 2), "both have failed")
    todo, dead = await bench.desk.get(id_), await bench.desk.get(last)
    assert todo.parked
    assert todo.error == "ValueError: no branch 'fix/é' there"
    assert [(entry.outcome, entry.note) for entry in todo.history] == [(Outcome.FAILED, todo.error)]
    assert dead.dead
    assert dead.reason == "exhausted"
    assert dead.error == todo.error
    worker.terminate()
    assert await asyncio.to_thread(worker.wait, 20) == 0
