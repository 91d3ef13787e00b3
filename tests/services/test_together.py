"""Deliveries taken in together: none is left waiting when the statements before it end at the moment in which it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from postroom.event import Event, EventState, Incoming
from postroom.services.together import MAX_AT_ONCE, Together
from postroom.store.events import Coming, Decided
from tests.processes import until


class Held:
    """An engine and a table of events: each statement waits at a gate of its own."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Future[None]] = []

    async def transact(self, operation: Any, *, heavy: bool = False, one: bool = False) -> Any:
        self.gates.append(asyncio.get_running_loop().create_future())
        await self.gates[-1]
        return await operation(self)

    async def take_in(self, tx: object, comings: Sequence[Coming]) -> list[Event | None]:
        return [None] * len(comings)


def coming(key: str) -> Coming:
    delivery = Incoming("gh", "github", key, "push", None, "t", "hmac", b"{}", [], None, f"digest of {key}")
    return Coming(key, delivery, Decided(EventState.ROUTED, None), ())


def _open(held: Held, number: int) -> bool:
    return len(held.gates) == number


async def test_what_comes_as_the_last_statements_end_is_not_left_waiting() -> None:
    held: Any = Held()
    together = Together(held, held)

    async def one_after_the_other() -> None:
        await together.take(coming("first"))
        await together.take(coming("at once after it"))

    calls: list[asyncio.Future[Any]] = [asyncio.ensure_future(one_after_the_other())]
    for number in range(1, MAX_AT_ONCE):
        await until(partial(_open, held, number), "a statement of its own")
        calls.append(asyncio.ensure_future(together.take(coming(f"beside {number}"))))
    await until(partial(_open, held, MAX_AT_ONCE), "as many statements as may run at once")
    for gate in held.gates:
        gate.set_result(None)
    await until(partial(_open, held, MAX_AT_ONCE + 1), "one more statement, for what came when they ended")
    held.gates[-1].set_result(None)
    await asyncio.gather(*calls)
