"""A worker to be killed, run as a program: claims under short leases, ends what it claims, and writes down each step.

Its argument is JSON: `socket`, `queue`, `name`, `log` and `kind`, which is `hand` (it makes each call itself) or `worker`
(the product's worker makes them). A line is written before a completion is asked for and after it was answered, straight
to the file, so that a kill loses none: `asks ID LEASE`, then `done ID LEASE new|replayed` or `lost ID LEASE`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
from typing import Any

from postroom import Client, Worker
from postroom.errors import Conflict, PostroomError, Unavailable
from postroom.model import Todo

LEASE_S = 1.0
WAIT_S = 2.0


class Labourer:
    """One worker's calls and its log."""

    def __init__(self, client: Client, asked: dict[str, Any]) -> None:
        self._client = client
        self._queue: str = asked["queue"]
        self._name: str = asked["name"]
        self._log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._chance = random.Random()

    def _write(self, *words: str) -> None:
        os.write(self._log, (" ".join(words) + "\n").encode())

    async def by_hand(self) -> None:
        """Claim and end for ever; a fault is waited out."""
        while True:
            try:
                todos = await self._client.claim_next(
                    [self._queue], ttl_s=LEASE_S, limit=self._chance.randint(1, 5), wait_s=WAIT_S, worker=self._name
                )
                for todo in todos:
                    await self._end(todo)
            except PostroomError:
                await asyncio.sleep(0.05)

    async def _end(self, todo: Todo) -> None:
        lease = str(todo.lease_id)
        match self._chance.randrange(20):
            case 0:
                return  # forgotten: its lease lapses
            case 1:
                await self._quietly(self._client.release(todo.id, lease))
            case 2:
                await self._quietly(self._client.fail(todo.id, lease, error="try again", retry_in_s=0.1))
            case _:
                await self._complete(todo.id, lease)

    @staticmethod
    async def _quietly(call: Any) -> None:
        with contextlib.suppress(Conflict):
            await call

    async def _complete(self, id_: str, lease: str) -> None:
        """Ask until it is known what became of it: the lease id tells a repetition from a second completion."""
        self._write("asks", id_, lease)
        while True:
            try:
                ended = await self._client.complete(id_, lease, result={"lease": lease})
            except Conflict:
                self._write("lost", id_, lease)
                return
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                self._write("done", id_, lease, "replayed" if ended.replayed else "new")
                return

    async def by_worker(self) -> None:
        """Let the product's worker do the same."""

        async def handle(todo: Todo) -> dict[str, str | None]:
            await asyncio.sleep(self._chance.random() * 0.01)
            self._write("asks", todo.id, str(todo.lease_id))
            return {"lease": todo.lease_id}

        worker = Worker(
            self._client, [self._queue], handle, concurrency=4, lease_s=LEASE_S, wait_s=WAIT_S, name=self._name
        )
        await worker.run(signals=True)


async def main(asked: dict[str, Any]) -> None:
    """Work until killed."""
    async with Client(socket=asked["socket"]) as client:
        labourer = Labourer(client, asked)
        await (labourer.by_hand() if asked["kind"] == "hand" else labourer.by_worker())


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
