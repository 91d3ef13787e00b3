"""SIGKILL under load, twenty-five times on each engine: what was answered is there, is done once, and nothing is stuck."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from postroom.client import Client
from postroom.errors import PostroomError, Unavailable
from postroom.model import NewTodo, Outcome, OutcomeItem, Todo, Verb
from tests.postgres import PostgresServer
from tests.processes import Processes, until
from tests.system.daemons import Daemon

pytestmark = [pytest.mark.system, pytest.mark.slow]

KILLS = 25
CREATORS = 3
LABOURERS = ("hand", "worker", "hand", "worker")
QUEUE = "kills"
SETTLE_S = 60.0

Count = Callable[[str, object], None]


class Load:
    """Creators in this process, workers in their own, and what both were answered."""

    def __init__(self, daemons: Sequence[Daemon], processes: Processes, logs: Path, chance: random.Random) -> None:
        self.daemons = daemons
        self.answered: dict[str, str] = {}
        self.keyed: set[str] = set()
        self._processes = processes
        self._logs = logs
        self._chance = chance
        self._labourers: list[subprocess.Popen[str]] = []
        self._number = 0
        self._closing = False

    def hire(self, place: int) -> subprocess.Popen[str]:
        """Start a worker, in the place of one that was killed when there was one."""
        self._number += 1
        name = f"w{self._number}"
        asked = {
            "socket": str(self.daemons[self._number % len(self.daemons)].socket),
            "queue": QUEUE,
            "name": name,
            "log": str(self._logs / name),
            "kind": LABOURERS[place],
        }
        root = str(Path(__file__).parents[2])
        started = self._processes.python("-m", "tests.system.labourer", json.dumps(asked), env={"PYTHONPATH": root})
        self._labourers[place : place + 1] = [started]
        return started

    def kill_daemon(self) -> None:
        """Kill a daemon and start it again."""
        daemon = self._chance.choice(self.daemons)
        daemon.kill()
        daemon.start()

    def kill_worker(self) -> None:
        """Kill a worker and start another."""
        place = self._chance.randrange(len(LABOURERS))
        self._labourers[place].send_signal(signal.SIGKILL)
        self._labourers[place].wait(10)
        self.hire(place)

    async def create(self, client: Client, number: int) -> None:
        """Create until told to stop, and note what was answered; what was not may be there or not.

        Titles that are asked for under a request id until there is an answer must be there once.
        """
        turn = 0
        while not self._closing:
            turn += 1
            title = f"{number}.{turn}"
            try:
                match turn % 4:
                    case 0:
                        titles = [f"{title}.{part}" for part in range(5)]
                        made = await client.create_many([NewTodo(QUEUE, one, max_attempts=100) for one in titles])
                        for one in made:
                            assert not isinstance(one, PostroomError), one
                            self._note(one.todo)
                    case 1:
                        self.keyed.add(title)
                        await self._surely(client, title)
                    case _:
                        self._note((await client.create(QUEUE, title, max_attempts=100)).todo)
            except Unavailable:
                pass
            await asyncio.sleep(0.02)

    async def _surely(self, client: Client, title: str) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                made = await client.create(QUEUE, title, max_attempts=100, request_id=f"request-{title}")
                self._note(made.todo)
                return
            await asyncio.sleep(0.02)

    def _note(self, todo: Todo) -> None:
        assert self.answered.setdefault(todo.id, todo.title) == todo.title

    def close(self) -> None:
        """Let the creators finish what they are at."""
        self._closing = True

    def dismiss(self) -> None:
        """End the workers."""
        for labourer in self._labourers:
            labourer.send_signal(signal.SIGKILL)
            labourer.wait(10)

    def lines(self) -> list[list[str]]:
        """What all workers have written."""
        written = [path.read_text() for path in sorted(self._logs.iterdir())]
        return [line.split() for text in written for line in text.splitlines()]


async def run_load(load: Load, killers: list[Callable[[], Any]], chance: random.Random) -> None:
    """Load, and kills at random moments: each kind of them at least once, what they hit is started again."""
    for place in range(len(LABOURERS)):
        load.hire(place)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(daemon.client()) for daemon in load.daemons]
        creators = [
            asyncio.create_task(load.create(clients[number % len(clients)], number)) for number in range(CREATORS)
        ]
        await until(lambda: any(line[0] == "asks" for line in load.lines()), "the workers work")
        order = [*killers, *chance.choices(killers, k=KILLS - len(killers))]
        chance.shuffle(order)
        for kill in order:
            await asyncio.sleep(chance.random() * 0.8)
            for creator in creators:
                assert not creator.done(), creator.exception()
            await asyncio.to_thread(kill)
        load.close()
        async with asyncio.timeout(SETTLE_S):
            await asyncio.gather(*creators)


async def everything(client: Client) -> dict[str, Todo]:
    """Every todo there is."""
    found: dict[str, Todo] = {}
    cursor = None
    while True:
        page = await client.list_todos(queue=QUEUE, cursor=cursor, limit=200)
        found |= {todo.id: todo for todo in page.todos}
        cursor = page.next_cursor
        if cursor is None:
            return found


async def check(load: Load, engine: str, kills: int, count: Count) -> None:
    """Nothing is left undone; then every lease under which a completion was asked for is asked about once more."""

    def live() -> int:
        answer = load.daemons[0].ask("GET", "/v1/queues")
        (queue,) = (one for one in answer.value["queues"] if one["name"] == QUEUE)
        return int(queue["pending"] + queue["claimed"] + queue["parked"])

    async def settled() -> bool:
        return await asyncio.to_thread(live) == 0

    await until(settled, "nothing is stuck once leases have lapsed", SETTLE_S)
    load.dismiss()
    async with load.daemons[0].client() as client:
        todos = await everything(client)
        lost = [id_ for id_ in load.answered if id_ not in todos or todos[id_].state != "done"]
        titles = [todo.title for todo in todos.values()]
        twice = [title for title in load.keyed if titles.count(title) != 1]
        asked = sorted({(line[1], line[2]) for line in load.lines() if line[0] == "asks"})
        winners: dict[str, list[str]] = {id_: [] for id_ in todos}
        for start in range(0, len(asked), 200):
            items = [OutcomeItem(id_, Verb.COMPLETE, lease) for id_, lease in asked[start : start + 200]]
            results, _ = await client.outcomes(items)
            for item, result in zip(items, results, strict=True):
                if result.error is None:
                    assert result.replayed, f"{item.id} was done by {item.lease_id} only now"
                    winners[item.id].append(str(item.lease_id))
        whole = {id_: await client.get(id_) for id_ in chosen(todos)}
    said = [line for line in load.lines() if line[0] == "done"]
    fresh = [line[1] for line in said if line[3] == "new"]
    double = [id_ for id_, leases in winners.items() if len(leases) > 1]
    double += [id_ for id_ in set(fresh) if fresh.count(id_) > 1]
    count(
        "counted",
        f"{engine}: kills={kills} creates answered={len(load.answered)} "
        f"done={sum(todo.state == 'done' for todo in todos.values())} lost={len(lost)} double={len(double)}",
    )
    assert (lost, twice, double) == ([], [], [])
    assert all(todo.state == "done" for todo in todos.values())
    assert all(len(leases) == 1 for leases in winners.values()), "somebody completed what nobody had asked for"
    for _, id_, lease, _ in said:
        assert winners[id_] == [lease], f"{id_}: {lease} was told that it is done"
    for id_, todo in whole.items():
        assert todo.result == {"lease": winners[id_][0]}
        assert [entry.outcome for entry in todo.history].count(Outcome.DONE) <= 1
    assert {todo.title for todo in todos.values()} >= set(load.answered.values())
    assert len(load.answered) > 4 * kills


def chosen(todos: dict[str, Todo]) -> list[str]:
    """Those that had the most attempts, to be looked at as a whole."""
    return sorted(todos, key=lambda id_: todos[id_].attempt, reverse=True)[:100]


@pytest.fixture
def chance() -> random.Random:
    """Randomness whose seed is told; KILLS_SEED in the environment has the same kills again."""
    seed = int(os.environ.get("KILLS_SEED") or secrets.randbelow(1 << 32))
    print(f"KILLS_SEED={seed}")
    return random.Random(seed)


# S1, S8, S10, S17, S22
async def test_kills_on_sqlite(
    new_daemon: Callable[..., Daemon],
    processes: Processes,
    tmp_path: Path,
    chance: random.Random,
    record_property: Count,
) -> None:
    daemon = new_daemon().start()
    (tmp_path / "logs").mkdir()
    load = Load([daemon], processes, tmp_path / "logs", chance)
    await run_load(load, [load.kill_daemon, load.kill_worker], chance)
    await check(load, "sqlite", KILLS, record_property)


# S1, S8, S10, S17, S20, S22: two daemons share the database.
async def test_kills_on_postgres(
    new_daemon: Callable[..., Daemon],
    private_postgres: PostgresServer,
    processes: Processes,
    tmp_path: Path,
    chance: random.Random,
    record_property: Count,
) -> None:
    first = new_daemon(database=private_postgres.url).start()
    second = Daemon(processes, first.folder / "second", database=private_postgres.url).start()
    (tmp_path / "logs").mkdir()
    load = Load([first, second], processes, tmp_path / "logs", chance)

    def kill_postgres() -> None:
        private_postgres.kill_immediate()
        private_postgres.start()

    await run_load(load, [load.kill_daemon, load.kill_worker, kill_postgres], chance)
    await check(load, "postgres", KILLS, record_property)
