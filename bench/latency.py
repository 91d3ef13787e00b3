"""From a todo's creation to the waiter's hands: a long-poll on an idle queue, in process and through HTTP."""

from __future__ import annotations

import asyncio
import statistics
import time

from bench.places import Place
from bench.served import served
from bench.table import Table
from postroom.client import Client
from postroom.daemon import connect
from postroom.desk import Desk


async def _handed(waiter: Desk, maker: Desk, count: int) -> list[float]:
    """Milliseconds from the call of create to the waiter's return, one at a time on an idle queue."""
    times: list[float] = []
    for n in range(count):
        claim = asyncio.create_task(waiter.claim_next(["latency"], wait_s=20))
        await asyncio.sleep(0.012 + (n % 5) * 0.001)
        started = time.perf_counter()
        await maker.create("latency", "wake up")
        (todo,) = await claim
        times.append((time.perf_counter() - started) * 1000)
        await waiter.complete(todo.id, todo.lease_id)
    return times


def _print(table: Table, words: str, times: list[float], p50: float, p99: float) -> None:
    table.at_most(f"created → handed, {words}, p50", statistics.median(times), p50, "ms")
    table.at_most(f"created → handed, {words}, p99", statistics.quantiles(times, n=100)[98], p99, "ms")


async def run(place: Place, table: Table, scale: float) -> None:
    """Print the section of one engine."""
    count = max(int(400 * scale), 50)
    table.section(f"{place.engine}: how soon waiting claims are served")
    async with connect(await place.fresh()) as desk:
        await _handed(desk, desk, 20)
        _print(table, "in process", await _handed(desk, desk, count), 3, 15)
    database = None if place.engine == "sqlite" else await place.fresh()
    with served(database=database) as daemon:
        async with Client(daemon.url, daemon.token) as waiter, Client(daemon.url, daemon.token) as maker:
            await _handed(waiter, maker, 20)
            _print(table, "HTTP", await _handed(waiter, maker, count), 10, 40)
