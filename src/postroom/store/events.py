"""The events table: what was received, byte for byte, beside what its rules made of it (DESIGN §5)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from postroom.event import Event, EventFilter, EventState, EventTodo, Incoming
from postroom.store.engine import Row, Tx


@dataclass(frozen=True, slots=True)
class Decided:
    """What an event's rules made of it, as it is stored: state, reason, trace, and the version of the rules."""

    state: EventState
    reason: str | None
    trace: tuple[str, ...] = ()
    rules_version: int | None = None


def _event_of(row: Row) -> Event:
    fields: list[Any] = list(row)
    fields[8] = EventState(fields[8])
    fields[18] = bool(fields[18])
    return Event(*fields)


def _link_of(row: Row) -> EventTodo:
    return EventTodo(row[0], row[1], row[2], row[3], bool(row[4]))


class EventTable:
    """The statements over events and the todos they led to."""

    async def insert(self, tx: Tx, id_: str, delivery: Incoming, decided: Decided, body_json: str | None) -> Event:
        """Nothing -> an event; a known (source, delivery key) only counts one delivery more, after the first's commit."""
        rows = await tx.rows(
            "event_insert",
            id=id_,
            source=delivery.source,
            provider=delivery.provider,
            delivery_key=delivery.delivery_key,
            verification=delivery.verification,
            digest=delivery.digest,
            headers=json.dumps(list(delivery.headers), separators=(",", ":")),
            body=delivery.body,
            signed_key=delivery.signed_key,
            **_reading(delivery, decided, body_json),
        )
        return _event_of(rows[0])

    async def redecide(
        self, tx: Tx, id_: str, delivery: Incoming, decided: Decided, body_json: str | None, *, held: bool
    ) -> Event | None:
        """An event -> what it is by another reading and decision; None when it is gone or, with `held`, not held."""
        rows = await tx.rows(
            "event_redecide", id=id_, held=1 if held else None, **_reading(delivery, decided, body_json)
        )
        return _event_of(rows[0]) if rows else None

    async def discard(self, tx: Tx, id_: str, words: str) -> Event | None:
        """Held -> ignored, for a reason that begins with these words; None when it is not held."""
        rows = await tx.rows("event_discard", id=id_, words=words)
        return _event_of(rows[0]) if rows else None

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


def _reading(delivery: Incoming, decided: Decided, body_json: str | None) -> dict[str, object]:
    return {
        "kind": delivery.kind,
        "action": delivery.action,
        "title": delivery.title,
        "body_json": body_json,
        "state": decided.state.value,
        "reason": decided.reason,
        "trace": json.dumps(list(decided.trace), separators=(",", ":")),
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
