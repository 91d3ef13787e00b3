"""Racers for todos, run as a program: one warm process forks many, which begin together and write down what they won.

Its argument is a JSON file: `racers` how many; `socket` or `url` where the todos are; `queue`; `ids`, those to be claimed
one by one, or none to claim whatever is next; `groups`, among how many groups of racers these are dealt out; `out`, the
folder for what each racer says.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import postroom.daemon
import postroom.store.postgres
from postroom.errors import Conflict, PostroomError, from_dict
from tests.system.daemons import SocketConnection, exchange

Won = list[tuple[str, str, str, int]]
Next = Callable[[int], Awaitable[Won]]
One = Callable[[str], Awaitable[Won]]

LEASE_S = 600
WAIT_S = 1
OPENING = 8
PR_SET_PDEATHSIG = 1


@asynccontextmanager
async def at_daemon(path: str, queue: str, name: str) -> AsyncIterator[tuple[Next, One]]:
    """The two ways to claim, over one connection to a daemon's socket."""
    connection = SocketConnection(path)
    connection.connect()

    def ask(where: str, body: dict[str, Any]) -> Any:
        answer = exchange(connection, "POST", where, {"ttl_s": LEASE_S, "worker": name, **body}, {})
        if answer.status != 200:
            raise from_dict(answer.value["error"])
        return answer.value

    def won(view: dict[str, Any]) -> tuple[str, str, str, int]:
        return view["id"], view["lease_id"], view["owner"], view["attempt"]

    async def claim_next(limit: int) -> Won:
        return [won(view) for view in ask("/v1/todos/claim", _wanted(queue, limit))["todos"]]

    async def claim(id_: str) -> Won:
        return [won(ask(f"/v1/todos/{id_}/claim", {})["todo"])]

    yield claim_next, claim
    connection.close()


@asynccontextmanager
async def at_database(url: str, queue: str, name: str) -> AsyncIterator[tuple[Next, One]]:
    """The same over a store in this process, with connections of its own."""
    async with postroom.daemon.connect(url, name=name) as desk:

        async def claim_next(limit: int) -> Won:
            todos = await desk.claim_next(ttl_s=LEASE_S, **_wanted(queue, limit))
            return [(todo.id, str(todo.lease_id), str(todo.owner), todo.attempt) for todo in todos]

        async def claim(id_: str) -> Won:
            todo = await desk.claim(id_, ttl_s=LEASE_S)
            return [(todo.id, str(todo.lease_id), str(todo.owner), todo.attempt)]

        yield claim_next, claim


def _wanted(queue: str, limit: int) -> dict[str, Any]:
    return {"queues": [queue], "limit": limit, "wait_s": WAIT_S}


async def race(number: int, asked: dict[str, Any], begin: Callable[[], None]) -> dict[str, Any]:
    """One racer's whole race: what it won, how often it came too late, and what should not have happened."""
    name = f"racer-{number}"
    place = at_daemon(asked["socket"], asked["queue"], name) if "socket" in asked else None
    won: Won = []
    late = 0
    wrong: list[str] = []
    async with place or at_database(asked["url"], asked["queue"], name) as (claim_next, claim):
        begin()
        if asked["ids"] is None:
            while got := await claim_next(1 + number % 3):
                won += got
        else:
            ids = asked["ids"][number % asked["groups"] :: asked["groups"]]
            random.Random(number).shuffle(ids)
            for id_ in ids:
                try:
                    won += await claim(id_)
                except Conflict:
                    late += 1
                except PostroomError as error:
                    wrong.append(f"{id_}: {error.code}: {error.message}")
    return {"name": name, "won": won, "late": late, "wrong": wrong}


def _end_with_starter() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def main() -> int:
    """Fork the racers, let them go when all stand at the line, and wait for the last: 0 when each came through."""
    asked = json.loads(Path(sys.argv[1]).read_text())
    ready_in, ready_out = os.pipe()
    go_in, go_out = os.pipe()

    def begin() -> None:
        os.write(ready_out, b"r")
        os.read(go_in, 1)  # ends when the starter closes its end

    racers: list[int] = []
    at_line = 0
    for number in range(asked["racers"]):
        # All at once, they would keep each other from opening their connections in time.
        while at_line <= number - OPENING:
            at_line += len(os.read(ready_in, OPENING))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _end_with_starter()
                os.close(go_out)
                said = asyncio.run(race(number, asked, begin))
                (Path(asked["out"]) / f"{number}.json").write_text(json.dumps(said))
                code = 0
            except BaseException:
                traceback.print_exc()
                os.write(ready_out, b"r")  # nobody waits at the line for one that never comes there
            finally:
                sys.stderr.flush()
                os._exit(code)
        racers.append(pid)
    os.close(ready_out)
    while at_line < len(racers):
        at_line += len(os.read(ready_in, len(racers)))
    os.close(go_out)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in racers]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
