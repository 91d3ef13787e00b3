"""Long-polls for the tests of the waiting room, and an engine that can hold an answer back."""

from __future__ import annotations

import asyncio
from typing import Any

from postroom.model import ClaimRequest, Principal, Todo
from postroom.store.engine import Operation, T
from tests.conftest import Store
from tests.offices import ANN, Bench, titles
from tests.processes import until

WAIT = 30_000


async def wait(
    bench: Bench, who: Principal = ANN, *queues: str, wait_ms: int = WAIT, **more: Any
) -> asyncio.Task[tuple[Todo, ...]]:
    """A long-poll that has looked and sleeps."""
    request = ClaimRequest(queues or ("inbox",), **more)
    task = asyncio.create_task(bench.office.waiting.claim_next(who, request, wait_ms))
    room = bench.office.waiting
    before = {number for number, waiter in room._waiters.items() if not waiter.looking}
    await until(
        lambda: task.done() or {n for n, waiter in room._waiters.items() if not waiter.looking} - before, "it sleeps"
    )
    await until(lambda: task.done() or not room._rung.is_set(), "the dispatcher has looked")
    return task


async def served(task: asyncio.Task[tuple[Todo, ...]]) -> list[str]:
    """The titles a long-poll is answered with, which must come well before its time is over."""
    async with asyncio.timeout(WAIT / 2000):
        return titles(await task)


class HeldBack:
    """An engine that holds the answer of a claim back until it is let go, for what comes between the look and the sleep."""

    def __init__(self, engine: Store) -> None:
        self._engine = engine
        self.looked = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def transact(self, operation: Operation[T], *, heavy: bool = False, one: bool = False) -> T:
        answer = await self._engine.transact(operation, heavy=heavy, one=one)
        self.looked.set()
        await self.go.wait()
        return answer
