"""Sorting: a delivery's decision made ready to be stored, and its todos made, for what comes and what is replayed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from postroom import limits
from postroom.event import EventState, EventTodo, Incoming
from postroom.ids import Ids, Prefix
from postroom.limits import MAX_JSON_BYTES
from postroom.model import NewTodo
from postroom.services.rulesets import RuleSetService, Sorting, judge
from postroom.store.engine import Tx
from postroom.store.events import Asked, Decided, EventTable
from postroom.store.todos import TodoTable
from postroom.text import clean, cut, store_json

MAX_LINE_BYTES = 512

log = logging.getLogger("postroom.sorting")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A todo that a rule asks for, checked, with its payload's JSON text."""

    rule: str
    new: NewTodo
    payload: str | None


@dataclass(frozen=True, slots=True)
class Sorted:
    """A delivery as it is to be stored: the decision and the todos."""

    delivery: Incoming
    decided: Decided
    wanted: tuple[Wanted, ...]

    @property
    def creator(self) -> str:
        """In whose name its todos are made."""
        return f"source:{self.delivery.source}"


class Sorter:
    """Decides by today's rules; what breaks on the way holds the event, and is never taken for "no rule matched"."""

    def __init__(self, rulesets: RuleSetService, events: EventTable, todos: TodoTable, ids: Ids) -> None:
        self._rulesets = rulesets
        self._events = events
        self._todos = todos
        self._ids = ids

    async def sort(self, source: Sorting, delivery: Incoming, event_id: str) -> Sorted:
        """A delivery -> what to store. Raises Unavailable when the rules cannot be read now."""
        own = await self._rulesets.in_force(source)
        try:
            decision, version = judge(source, own, delivery, event_id)
            wanted = tuple(_checked(ruled.rule, ruled.new) for ruled in decision.todos)
        except Exception as error:
            log.exception("the rules of %s hold an event", delivery.source)
            reason = clean(f"a rule failed: {error}")[:500]
            return Sorted(delivery, Decided(EventState.HELD, reason, (reason,), own.version or None), ())
        trace = tuple(cut(line, MAX_LINE_BYTES) for line in decision.trace)
        return Sorted(delivery, Decided(decision.state, decision.reason, trace, version), wanted)

    def ask(self, done: Sorted) -> list[Asked]:
        """The todos of an event to come, each under an id of its own."""
        return [Asked(self._ids.new(Prefix.TODO), one.new, one.payload, one.rule) for one in done.wanted]

    async def make(self, tx: Tx, event_id: str, done: Sorted) -> tuple[EventTodo, ...]:
        """The todos of a stored event, each new or the live one that holds its key, and their links."""
        links: list[EventTodo] = []
        creator = done.creator
        for one in done.wanted:
            new = replace(one.new, event_id=event_id)
            todo, created = await self._todos.insert(tx, self._ids.new(Prefix.TODO), new, one.payload, creator)
            link = EventTodo(event_id, todo.id, todo.queue, one.rule, created)
            await self._events.link(tx, link)
            links.append(link)
        return tuple(links)


def _checked(rule: str, new: NewTodo) -> Wanted:
    limits.check_new(new)
    payload = None if new.payload is None else store_json(new.payload, "payload", MAX_JSON_BYTES)
    return Wanted(rule, new, payload)
