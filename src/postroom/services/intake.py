"""Intake: a verified delivery becomes an event and its rules' todos, in one transaction (DESIGN §5)."""

from __future__ import annotations

from postroom.event import Incoming, Received
from postroom.ids import Ids, Prefix
from postroom.services.rulesets import Sorting
from postroom.services.sorting import Sorter
from postroom.services.wake import Wake
from postroom.store.engine import Engine, Tx
from postroom.store.events import EventTable


class IntakeService:
    """Takes in what a source has verified; nothing that was answered is lost, nothing is taken in twice."""

    def __init__(self, engine: Engine, events: EventTable, sorter: Sorter, wake: Wake, ids: Ids) -> None:
        self._engine = engine
        self._events = events
        self._sorter = sorter
        self._wake = wake
        self._ids = ids

    async def receive(self, delivery: Incoming, source: Sorting) -> Received:
        """Nothing -> an event and its todos; a delivery known by its key waits for the first's commit and is a duplicate.

        The same bytes under another id that nobody signed are kept and sorted all the same, and marked as suspected.
        """
        event_id = self._ids.new(Prefix.EVENT)
        done = await self._sorter.sort(source, delivery, event_id)

        async def operation(tx: Tx) -> Received:
            event = await self._events.insert(tx, event_id, delivery, done.decided, done.body_json)
            if event.id != event_id:
                return Received(event, True, tuple(await self._events.links(tx, [event.id])))
            return Received(event, False, await self._sorter.make(tx, event_id, done))

        received = await self._engine.transact(operation)
        if not received.duplicate:
            self._wake.work({link.queue for link in received.todos if link.created})
        return received
