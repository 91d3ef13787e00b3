"""The events table: what was received, byte for byte, beside what its rules made of it (DESIGN §5)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from postroom.model import Delivery, Event, EventState, EventTodo
from postroom.store.engine import Row, Tx


def _event_of(row: Row) -> Event:
    fields: list[Any] = list(row)
    fields[8] = EventState(fields[8])
    return Event(*fields)


def _link_of(row: Row) -> EventTodo:
    return EventTodo(row[0], row[1], row[2], row[3], bool(row[4]))


class EventTable:
    """The statements over events and the todos they led to."""

    async def insert(
        self, tx: Tx, id_: str, delivery: Delivery, state: EventState, reason: str | None, body_json: str | None
    ) -> Event:
        """Nothing -> an event; a known (source, delivery key) only counts one delivery more, after the first's commit."""
        rows = await tx.rows(
            "event_insert",
            id=id_,
            source=delivery.source,
            provider=delivery.provider,
            delivery_key=delivery.delivery_key,
            kind=delivery.kind,
            action=delivery.action,
            title=delivery.title,
            state=state.value,
            reason=reason,
            verification=delivery.verification,
            digest=delivery.digest,
            headers=json.dumps(list(delivery.headers), separators=(",", ":")),
            body_json=body_json,
            body=delivery.body,
        )
        return _event_of(rows[0])

    async def get(self, tx: Tx, id_: str) -> Event | None:
        """The whole event, its raw body aside."""
        rows = await tx.rows("event_get", id=id_)
        return _event_of(rows[0]) if rows else None

    async def raw(self, tx: Tx, id_: str) -> bytes | None:
        """The body exactly as it came."""
        rows = await tx.rows("event_raw", id=id_)
        return bytes(rows[0][0]) if rows else None

    async def page(
        self, tx: Tx, source: str | None, kind: str | None, state: str | None, before: int | None, limit: int
    ) -> list[Event]:
        """A page of events without bodies, newest first."""
        rows = await tx.rows("event_list", source=source, kind=kind, state=state, before=before, limit=limit)
        return [_event_of(row) for row in rows]

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
