"""Intake: a verified delivery becomes an event and its rules' todos, in one transaction (DESIGN §5)."""

from __future__ import annotations

from postroom.event import EventTodo, Incoming, Received
from postroom.ids import Ids, Prefix
from postroom.services import tellings
from postroom.services.rulesets import Sorting
from postroom.services.sorting import Sorted, Sorter
from postroom.services.together import Together
from postroom.services.wake import Wake
from postroom.store.engine import Engine, Reader, Tx
from postroom.store.events import Coming, EventTable
from postroom.store.statements import Dialect


class IntakeService:
    """Takes in what a source has verified; nothing that was answered is lost, nothing is taken in twice."""

    def __init__(self, engine: Engine, events: EventTable, sorter: Sorter, wake: Wake, ids: Ids) -> None:
        self._engine = engine
        self._events = events
        self._sorter = sorter
        self._wake = wake
        self._ids = ids
        self._together = Together(engine, events)

    async def receive(self, delivery: Incoming, source: Sorting) -> Received:
        """Nothing -> an event and its todos; a delivery known by its key waits for the first's commit and is a duplicate.

        The same bytes under another id that nobody signed are kept and sorted all the same, and marked as suspected.
        """
        event_id = self._ids.new(Prefix.EVENT)
        done = await self._sorter.sort(source, delivery, event_id)

        async def operation(tx: Tx) -> Received:
            event = await self._events.insert(tx, event_id, delivery, done.decided)
            if event.id != event_id:
                return Received(event, True, tuple(await self._events.links(tx, [event.id])))
            return Received(event, False, await self._sorter.make(tx, event_id, done))

        received = await self._at_once(event_id, done)
        if received is None:
            received = await self._engine.transact(operation)
        if not received.duplicate:
            self._wake.work({link.queue for link in received.todos if link.created})
        self._wake.told(tellings.event_received, received, done.wanted)
        return received

    async def _at_once(self, event_id: str, done: Sorted) -> Received | None:
        """All of it in one statement, with others that come now, where the engine has one for it; None: it must go alone."""
        if self._engine.dialect is not Dialect.POSTGRES:
            return None
        coming = Coming(event_id, done.delivery, done.decided, self._sorter.ask(done))
        event = await self._together.take(coming)
        if event is None:
            return None
        if event.id != event_id:
            return Received(event, True, tuple(await self._events.links(Reader(self._engine), [event.id])))
        links = tuple(EventTodo(event_id, one.id, one.new.queue, one.rule, True) for one in coming.todos)
        return Received(event, False, links)
