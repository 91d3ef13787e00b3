"""Intake: a verified delivery becomes an event and its rules' todos, in one transaction (DESIGN §5)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from postroom import lifecycle
from postroom.ids import Ids, Prefix
from postroom.lifecycle import MAX_JSON_BYTES
from postroom.model import Delivery, EventState, EventTodo, NewTodo, Received
from postroom.services.rules import Decision
from postroom.services.wake import Wake
from postroom.store.engine import Engine, Reader, Tx
from postroom.store.events import EventTable
from postroom.store.todos import TodoTable
from postroom.text import clean, dump_json, store_json

log = logging.getLogger("postroom.intake")

Decide = Callable[[Delivery, str], Decision]
"""What a source's rules make of a delivery, whose event will have this id."""


class IntakeService:
    """Takes in what a source has verified; nothing that was answered is lost, nothing is taken in twice."""

    def __init__(self, engine: Engine, events: EventTable, todos: TodoTable, wake: Wake, ids: Ids) -> None:
        self._engine = engine
        self._events = events
        self._todos = todos
        self._wake = wake
        self._ids = ids
        self._reader = Reader(engine)

    async def receive(self, delivery: Delivery, decide: Decide) -> Received:
        """Nothing -> an event and its todos; a delivery known by its key waits for the first's commit and is a duplicate.

        Rules that break hold the event for the operator: that is never taken for "no rule matched".
        """
        event_id = self._ids.new(Prefix.EVENT)
        state, reason, wanted = self._decided(delivery, decide, event_id)
        body = None if delivery.unparsed is not None else dump_json(delivery.data)
        creator = f"source:{delivery.source}"

        async def operation(tx: Tx) -> Received:
            event = await self._events.insert(tx, event_id, delivery, state, reason, body)
            if event.id != event_id:
                return Received(event, True, tuple(await self._events.links(tx, [event.id])))
            links: list[EventTodo] = []
            for rule, new, payload in wanted:
                id_ = self._ids.new(Prefix.TODO)
                todo, created = await self._todos.insert(tx, id_, replace(new, event_id=event_id), payload, creator)
                link = EventTodo(event_id, todo.id, todo.queue, rule, created)
                await self._events.link(tx, link)
                links.append(link)
            return Received(event, False, tuple(links))

        received = await self._engine.transact(operation)
        if not received.duplicate:
            self._wake.work({link.queue for link in received.todos if link.created})
        return received

    def _decided(
        self, delivery: Delivery, decide: Decide, event_id: str
    ) -> tuple[EventState, str | None, list[tuple[str, NewTodo, str | None]]]:
        try:
            decision = decide(delivery, event_id)
            wanted = []
            for ruled in decision.todos:
                lifecycle.check_new(ruled.new)
                payload = (
                    None if ruled.new.payload is None else store_json(ruled.new.payload, "payload", MAX_JSON_BYTES)
                )
                wanted.append((ruled.rule, ruled.new, payload))
        except Exception as error:
            log.exception("the rules of %s hold an event", delivery.source)
            return EventState.HELD, clean(f"a rule failed: {error}")[:500], []
        return decision.state, decision.reason, wanted
