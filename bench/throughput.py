"""Enqueue, drain and group commit: the desk and the worker in process, against the raw floor on the same engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from bench.floor import QUEUE, Floor, PostgresFloor, SqliteFloor
from bench.places import Place
from bench.table import Table, paired
from postroom.daemon import connect
from postroom.desk import ClaimNext, Desk
from postroom.model import NewTodo, OutcomeItem, Todo, Verb
from postroom.worker import Worker

TITLE = "A title of ordinary length"
VALUE = {"repository": "octo/repo", "number": 7, "title": TITLE}


async def fill(desk: Desk, count: int, queues: Sequence[str] = (QUEUE,)) -> None:
    """Put plain todos into the queues, in batches."""
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        await desk.create_many([NewTodo(queues[n % len(queues)], TITLE, payload=VALUE) for n in range(size)])


async def _noop(_: Todo) -> Any:
    return 1


class Product:
    """The same verbs as the floor's, through the desk; each gives rows a second."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def create_single(self, count: int) -> float:
        """One caller, each create awaited."""
        started = time.perf_counter()
        for _ in range(count):
            await self.desk.create(QUEUE, TITLE, payload=VALUE)
        return count / (time.perf_counter() - started)

    async def create_together(self, count: int, callers: int) -> float:
        """Many callers, each awaiting its own creates."""

        async def one() -> None:
            for _ in range(count // callers):
                await self.desk.create(QUEUE, TITLE, payload=VALUE)

        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(callers)))
        return count / (time.perf_counter() - started)

    async def complete_single(self, count: int) -> float:
        """One caller, each complete awaited; the claims before are not counted."""
        held = await self._hold(count)
        started = time.perf_counter()
        for todo in held:
            await self.desk.complete(todo.id, todo.lease_id, result=1)
        return count / (time.perf_counter() - started)

    async def complete_together(self, count: int, callers: int) -> float:
        """Many callers, each awaiting its own completes."""
        held = await self._hold(count)

        async def one(mine: list[Todo]) -> None:
            for todo in mine:
                await self.desk.complete(todo.id, todo.lease_id, result=1)

        started = time.perf_counter()
        await asyncio.gather(*(one(held[n::callers]) for n in range(callers)))
        return count / (time.perf_counter() - started)

    async def _hold(self, count: int) -> list[Todo]:
        held: list[Todo] = []
        while len(held) < count:
            held += await self.desk.claim_next([QUEUE], limit=min(100, count - len(held)))
        return held

    async def create_batch(self, count: int) -> float:
        """A thousand a call."""
        started = time.perf_counter()
        await fill(self.desk, count)
        return count / (time.perf_counter() - started)

    async def drain_single(self, count: int) -> float:
        """Claim one, complete it."""
        started = time.perf_counter()
        for _ in range(count):
            (todo,) = await self.desk.claim_next([QUEUE])
            await self.desk.complete(todo.id, todo.lease_id, result=1)
        return count / (time.perf_counter() - started)

    async def drain_fused(self, count: int) -> float:
        """Complete one and claim the next in one call."""
        (todo,) = await self.desk.claim_next([QUEUE])
        started = time.perf_counter()
        for _ in range(count):
            _, (todo,) = await self.desk.outcomes(
                [OutcomeItem(todo.id, Verb.COMPLETE, todo.lease_id, result=1)], ClaimNext([QUEUE])
            )
        rate = count / (time.perf_counter() - started)
        await self.desk.release(todo.id, todo.lease_id)
        return rate

    async def drain_worker(self, count: int) -> float:
        """A worker with 16 slots and a handler that does nothing, over `count` todos put there first."""
        await self.drop()
        await fill(self.desk, count)
        worker = Worker(self.desk, [QUEUE], _noop, concurrency=16)
        started = time.perf_counter()
        await worker.run(drain=True)
        return worker.stats.completed / (time.perf_counter() - started)

    async def drop(self) -> None:
        """Finish whatever is left, so that the next measure begins with an empty queue."""
        while held := await self.desk.claim_next([QUEUE], limit=100):
            await self.desk.outcomes([OutcomeItem(todo.id, Verb.COMPLETE, todo.lease_id) for todo in held])


async def run(place: Place, table: Table, scale: float) -> None:
    """Print the section of one engine."""
    engine = place.engine
    count, many = int(1000 * scale), int(10000 * scale)
    url, floor_url = await place.fresh(), await place.fresh()
    floor: Floor
    if engine == "sqlite":
        from pathlib import Path

        floor = SqliteFloor(Path(floor_url.removeprefix("sqlite:///")))
    else:
        async with connect(floor_url):
            pass
        floor = PostgresFloor(floor_url)
    table.section(f"{engine}: todos a second, against the same statements raw")
    async with connect(url) as desk:
        ours = Product(desk)

        def said(ours: float, raw: float) -> str:
            return f"{ours:9,.0f}/s   floor {raw:9,.0f}/s"

        one, raw, ratio = await paired(lambda: ours.create_single(count), lambda: floor.create_single(count))
        table.at_least("create, one caller", ratio, 0.75, said(one, raw))
        if engine == "sqlite":
            together, single, ratio = await paired(
                lambda: ours.create_together(count * 4, 16), lambda: ours.create_single(count), 3
            )
            table.at_least("create, 16 callers over one", ratio, 3.0, f"{together:9,.0f}/s   one   {single:9,.0f}/s")
            together, single, ratio = await paired(
                lambda: ours.complete_together(count, 16), lambda: ours.complete_single(count // 2), 3
            )
            table.at_least("complete, 16 callers over one", ratio, 3.0, f"{together:9,.0f}/s   one   {single:9,.0f}/s")
        one, raw, ratio = await paired(lambda: ours.create_batch(many), lambda: floor.create_batch(many, 1000))
        table.at_least("create, batches of 1,000", ratio, 0.45, said(one, raw))
        bound = 0.7 if engine == "sqlite" else 0.8
        one, raw, ratio = await paired(lambda: ours.drain_single(count), lambda: floor.drain_single(count))
        table.at_least("claim + complete, one by one", ratio, bound, said(one, raw))
        one, raw, ratio = await paired(lambda: ours.drain_fused(count), lambda: floor.drain_single(count))
        if engine == "postgres":
            table.at_least("complete fused with the next claim", ratio, 1.0, said(one, raw))
        else:
            table.plain("complete fused with the next claim", said(one, raw))

        async def floor_batched() -> float:
            await floor.drain_batched(10**9, 50)
            await floor.create_batch(many, 1000)
            return await floor.drain_batched(many, 50)

        one, raw, ratio = await paired(lambda: ours.drain_worker(many), floor_batched)
        table.at_least("Worker(16), no-op handler", ratio, 0.4 if engine == "sqlite" else 0.6, said(one, raw))
    await floor.close()
