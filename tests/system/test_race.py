"""Sixty-four processes race for a thousand todos, on each engine: every todo has one winner, whichever way it is claimed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom.daemon import connect
from postroom.desk import Desk
from postroom.errors import PostroomError
from postroom.model import NewTodo, TodoState
from tests.processes import Processes
from tests.system.daemons import Daemon

pytestmark = pytest.mark.system

RACERS = 64
TODOS = 1000
GROUPS = 8
"""By their ids the todos are claimed by eight groups of eight racers, each racer in an order of its own."""
SECONDS = 90
ROOT = Path(__file__).parents[2]


async def enqueue(desk: Desk, queue: str) -> list[str]:
    """The ids of a thousand new todos."""
    made = await desk.create_many([NewTodo(queue, f"todo {number}") for number in range(TODOS)])
    ids = [one.todo.id for one in made if not isinstance(one, PostroomError)]
    assert len(set(ids)) == TODOS
    return ids


def run_race(processes: Processes, out: Path, **asked: Any) -> list[dict[str, Any]]:
    """What every racer says when the race is over."""
    out.mkdir()
    spec = out.with_suffix(".spec")
    spec.write_text(json.dumps({"racers": RACERS, "groups": GROUPS, "out": str(out), **asked}))
    started = processes.python("-m", "tests.system.racers", str(spec), env={"PYTHONPATH": str(ROOT)})
    code = started.wait(SECONDS)
    assert code == 0, processes.output(started)[-4000:]
    said = [json.loads(path.read_text()) for path in out.iterdir()]
    assert len(said) == RACERS
    return said


async def check(desk: Desk, queue: str, ids: list[str], said: list[dict[str, Any]]) -> None:
    """Every todo was won once, by whom its row names, under a lease that no other racer was given."""
    won = {id_: owner for one in said for id_, _, owner, _ in one["won"]}
    times = Counter(id_ for one in said for id_, *_ in one["won"])
    assert [wrong for one in said for wrong in one["wrong"]] == []
    assert set(times) == set(ids)
    assert set(times.values()) == {1}
    assert {attempt for one in said for *_, attempt in one["won"]} == {1}
    holders: dict[str, set[str]] = {}
    for one in said:
        for _, lease, _, _ in one["won"]:
            holders.setdefault(lease, set()).add(one["name"])
    assert all(len(names) == 1 for names in holders.values())
    cursor = None
    seen: dict[str, str | None] = {}
    while True:
        page = await desk.list_todos(queue=queue, cursor=cursor, limit=200)
        assert all(todo.state is TodoState.CLAIMED and todo.attempt == 1 for todo in page.todos)
        seen |= {todo.id: todo.owner for todo in page.todos}
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == won


async def race(desk: Desk, processes: Processes, out: Path, **where: Any) -> None:
    """Both races, one after the other."""
    ids = await enqueue(desk, "any")
    said = run_race(processes, out / "any", queue="any", ids=None, **where)
    await check(desk, "any", ids, said)
    ids = await enqueue(desk, "each")
    said = run_race(processes, out / "each", queue="each", ids=ids, **where)
    await check(desk, "each", ids, said)
    assert all(len(one["won"]) + one["late"] == TODOS // GROUPS for one in said)
    assert sum(one["late"] for one in said) == TODOS * (RACERS // GROUPS - 1)


# S5, S6, S21
@pytest.mark.slow
async def test_every_todo_has_one_winner_through_a_daemon(
    new_daemon: Callable[..., Daemon], processes: Processes, tmp_path: Path
) -> None:
    daemon = new_daemon().start()
    async with daemon.client() as desk:
        await race(desk, processes, tmp_path, socket=str(daemon.socket))


# S5, S6, S20, S21
@pytest.mark.slow
async def test_every_todo_has_one_winner_on_postgres(postgres_url: str, processes: Processes, tmp_path: Path) -> None:
    async with connect(postgres_url, name="starter") as desk:
        await race(desk, processes, tmp_path, url=postgres_url)
