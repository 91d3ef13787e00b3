"""The events table: what was received, byte for byte, beside what its rules made of it (DESIGN §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from postroom.event import Event, EventFilter, EventState, EventTodo, Incoming
from postroom.model import NewTodo
from postroom.store import steps
from postroom.store.engine import Row, Tx
from postroom.text import dump_json


@dataclass(frozen=True, slots=True)
class Decided:
    """What an event's rules made of it, as it is stored: state, reason, trace, and the version of the rules."""

    state: EventState
    reason: str | None
    trace: tuple[str, ...] = ()
    rules_version: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A todo to be made with its event: its id, what it is, its payload's JSON text, and the rule that asks for it."""

    id: str
    new: NewTodo
    payload: str | None
    rule: str


@dataclass(frozen=True, slots=True)
class Coming:
    """A delivery on its way in, under the id that its event will have, with its decision and the todos it asks for."""

    id: str
    delivery: Incoming
    decided: Decided
    todos: Sequence[Asked]


def _event_of(row: Row) -> Event:
    fields: list[Any] = list(row)
    fields[8] = EventState(fields[8])
    fields[18] = bool(fields[18])
    return Event(*fields)


def _link_of(row: Row) -> EventTodo:
    return EventTodo(row[0], row[1], row[2], row[3], bool(row[4]))


class EventTable:
    """The statements over events and the todos they led to."""

    async def insert(self, tx: Tx, id_: str, delivery: Incoming, decided: Decided) -> Event:
        """Nothing -> an event; a known (source, delivery key) only counts one delivery more, after the first's commit."""
        rows = await tx.rows(
            "event_insert", **_coming(id_, delivery), body=delivery.body, **_reading(delivery, decided)
        )
        return _event_of(rows[0])

    async def take_in(self, tx: Tx, comings: Sequence[Coming]) -> list[Event | None]:
        """Nothing -> events with their todos and links, by one statement; PostgreSQL's alone.

        A known delivery only counts, as with `insert`. None where a live todo holds one of the keys: of that event nothing
        is done. No two may have one delivery key, one body or one todo's key. Raises the engine's Duplicate, with nothing
        done at all, when another transaction made such a todo just now.
        """
        sizes = [len(one.delivery.body) for one in comings]
        places = accumulate(sizes, initial=1)
        rows = await tx.rows(
            "event_take_in",
            events=[
                {
                    "place": place,
                    "size": size,
                    **_coming(one.id, one.delivery),
                    **_reading(one.delivery, one.decided),
                }
                for one, place, size in zip(comings, places, sizes, strict=False)
            ],
            bodies=b"".join(one.delivery.body for one in comings),
            todos=[
                {
                    "event_id": one.id,
                    "id": asked.id,
                    "queue": asked.new.queue,
                    "source": asked.new.source,
                    "rule": asked.rule,
                    "kind": asked.new.kind,
                    "title": asked.new.title,
                    "key": asked.new.idempotency_key,
                    "assignee": asked.new.assignee,
                    "max_attempts": asked.new.max_attempts,
                    "priority": asked.new.priority,
                    "delay": asked.new.delay_ms,
                    "payload": asked.payload,
                }
                for one in comings
                for asked in one.todos
            ],
        )
        made = {(event.source, event.delivery_key): event for event in map(_event_of, rows)}
        return [made.get((one.delivery.source, one.delivery.delivery_key)) for one in comings]

    async def redecide(
        self, tx: Tx, id_: str, delivery: Incoming, decided: Decided, *, held: bool, past: str, by: str
    ) -> Event | None:
        """An event -> what it is by another reading and decision; None when it is gone or, with `held`, not held.

        `past` is the word for what was done, and `by` who did it.
        """
        was = await tx.rows("event_steered", id=id_)
        rows = await tx.rows("event_redecide", id=id_, held=1 if held else None, **_reading(delivery, decided))
        if not rows:
            return None
        await _note(tx, id_, past, by, was[0])
        return _event_of(rows[0])

    async def discard(self, tx: Tx, id_: str, words: str, by: str) -> Event | None:
        """Held -> ignored, for a reason that begins with these words; None when it is not held."""
        was = await tx.rows("event_steered", id=id_)
        rows = await tx.rows("event_discard", id=id_, words=words)
        if not rows:
            return None
        await _note(tx, id_, "discarded", by, was[0])
        return _event_of(rows[0])

    async def get(self, tx: Tx, id_: str) -> Event | None:
        """The whole event, its raw body aside."""
        rows = await tx.rows("event_get", id=id_)
        return _event_of(rows[0]) if rows else None

    async def raw(self, tx: Tx, id_: str) -> bytes | None:
        """The body exactly as it came."""
        rows = await tx.rows("event_raw", id=id_)
        return bytes(rows[0][0]) if rows else None

    async def page(self, tx: Tx, wanted: EventFilter, before: int | None, limit: int) -> list[Event]:
        """A page of events without bodies, newest first."""
        rows = await tx.rows("event_list", **_wanted(wanted), before=before, limit=limit)
        return [_event_of(row) for row in rows]

    async def seqs(self, tx: Tx, wanted: EventFilter, after: int | None, limit: int) -> list[tuple[int, str]]:
        """The numbers and ids of events in the order of their receipt."""
        rows = await tx.rows("event_seqs", **_wanted(wanted), after=after, limit=limit)
        return [(row[0], row[1]) for row in rows]

    async def link(self, tx: Tx, link: EventTodo) -> None:
        """Note that a rule led from an event to a todo."""
        await tx.rows(
            "event_todo_insert",
            event_id=link.event_id,
            todo_id=link.todo_id,
            queue=link.queue,
            rule=link.rule,
            created=link.created,
        )

    async def links(self, tx: Tx, event_ids: Sequence[str]) -> list[EventTodo]:
        """The todos these events led to."""
        return [_link_of(row) for row in await tx.rows("event_todos_of", ids=list(event_ids))]

    async def links_of_todo(self, tx: Tx, todo_id: str) -> list[EventTodo]:
        """The events that led to this todo."""
        return [_link_of(row) for row in await tx.rows("event_ids_of_todo", id=todo_id)]


async def _note(tx: Tx, id_: str, past: str, by: str, was: Row) -> None:
    state, reason = was
    why = "" if reason is None else f": {reason}"
    await steps.note(tx, id_, past, f"by {by}; it was {state}{why}")


def _coming(id_: str, delivery: Incoming) -> dict[str, object]:
    return {
        "id": id_,
        "source": delivery.source,
        "provider": delivery.provider,
        "delivery_key": delivery.delivery_key,
        "verification": delivery.verification,
        "digest": delivery.digest,
        "headers": dump_json(delivery.headers),
        "signed_key": delivery.signed_key,
    }


def _reading(delivery: Incoming, decided: Decided) -> dict[str, object]:
    return {
        "kind": delivery.kind,
        "action": delivery.action,
        "title": delivery.title,
        "body_json": delivery.body_json,
        "state": decided.state.value,
        "reason": decided.reason,
        "trace": dump_json(decided.trace),
        "rules_version": decided.rules_version,
    }


def _wanted(wanted: EventFilter) -> dict[str, object]:
    held = wanted.state == EventState.HELD
    return {
        "source": wanted.source,
        "kind": wanted.kind,
        "action": wanted.action,
        "held": 1 if held else None,
        "state": None if held else wanted.state,
        "since": wanted.since,
        "until": wanted.until,
        "suspected": 1 if wanted.suspected_replay is True else None,
        "unsuspected": 1 if wanted.suspected_replay is False else None,
    }
