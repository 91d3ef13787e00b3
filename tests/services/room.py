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
    """A long-poll that has looked and sleeps, and so does who serves it: nothing is under way for it any more."""
    room = bench.office.waiting
    await until(lambda: bench.store.listening, "the engine listens")
    request = ClaimRequest(queues or ("inbox",), **more)
    before = set(room._waiters)
    task = asyncio.create_task(room.claim_next(who, request, wait_ms))

    def quiet() -> bool:
        sleeping = any(not waiter.looking for number, waiter in room._waiters.items() if number not in before)
        return sleeping and bool(room._rung._waiters) and not room._rung.is_set()

    await until(lambda: task.done() or quiet(), "it sleeps")
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
