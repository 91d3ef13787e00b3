"""Deliveries that come at one time go into the database together, one statement for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from postroom.errors import PostroomError
from postroom.event import Event
from postroom.store.engine import Engine, Tx
from postroom.store.events import Coming, EventTable

MAX_TOGETHER: Final = 16
MAX_AT_ONCE: Final = 2
MAX_TOGETHER_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Waiting:
    coming: Coming
    keys: frozenset[Hashable]
    size: int
    future: asyncio.Future[Event | None]


class Together:
    """Takes deliveries in by one statement at a time: those that come while it runs make up the next one.

    A delivery that comes alone waits for nobody. Each is answered after its own commit. Deliveries that could meet (the
    same id, the same body, a todo of the same key) never stand in one statement.
    """

    def __init__(self, engine: Engine, events: EventTable) -> None:
        self._engine = engine
        self._events = events
        self._waiting: deque[_Waiting] = deque()
        self._running: set[asyncio.Task[Any] | None] = set()
        self._under_way: set[Hashable] = set()

    async def take(self, coming: Coming) -> Event | None:
        """The event as it is stored, or None when nothing was done and it must go alone. Raises Unavailable."""
        keys = list(_keys(coming))
        size = len(coming.delivery.body) + len(coming.delivery.body_json or "")
        if size > MAX_TOGETHER_BYTES or len(set(keys)) < len(keys):
            return None
        loop = asyncio.get_running_loop()
        waiting = _Waiting(coming, frozenset(keys), size, loop.create_future())
        self._waiting.append(waiting)
        if len(self._running) < MAX_AT_ONCE:
            task = loop.create_task(self._run())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await waiting.future

    async def _run(self) -> None:
        try:
            while group := self._next():
                keys = {key for one in group for key in one.keys}
                self._under_way |= keys
                try:
                    await self._take_in(group)
                finally:
                    self._under_way -= keys
        finally:
            # In the step that found nothing more: what comes before the task's own end is told must not count on it.
            self._running.discard(asyncio.current_task())

    def _next(self) -> list[_Waiting]:
        """The longest waiting ones that may stand in one statement; the others stay in their order."""
        group: list[_Waiting] = []
        taken = set(self._under_way)
        later: deque[_Waiting] = deque()
        size = 0
        while self._waiting and len(group) < MAX_TOGETHER:
            one = self._waiting.popleft()
            if one.future.done():
                continue
            if not taken.isdisjoint(one.keys) or (group and size + one.size > MAX_TOGETHER_BYTES):
                # What comes after it and could meet it must not overtake it.
                later.append(one)
            else:
                group.append(one)
                size += one.size
            taken |= one.keys
        self._waiting.extendleft(reversed(later))
        return group

    async def _take_in(self, group: list[_Waiting]) -> None:
        comings = [one.coming for one in group]
        found: list[Event | None] = [None] * len(group)
        fault: PostroomError | None = None

        async def operation(tx: Tx) -> list[Event | None]:
            return await self._events.take_in(tx, comings)

        try:
            found = await self._engine.transact(operation, one=True)
        except PostroomError as error:
            fault = error
        except Exception:
            # One of them is at fault, and nothing was done for any: each goes alone, so that it fails alone.
            pass
        finally:
            for one, event in zip(group, found, strict=True):
                if one.future.done():
                    continue
                if fault is not None:
                    one.future.set_exception(fault)
                else:
                    one.future.set_result(event)


def _keys(coming: Coming) -> Iterator[Hashable]:
    delivery = coming.delivery
    yield "delivery", delivery.source, delivery.delivery_key
    yield "body", delivery.source, delivery.digest
    for asked in coming.todos:
        if asked.new.idempotency_key is not None:
            yield "todo", asked.new.queue, asked.new.idempotency_key
