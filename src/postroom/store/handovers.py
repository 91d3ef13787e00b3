"""The handovers table: ended work whose creator, who gave it to somebody else, is to be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from postroom.model import TodoState
from postroom.store.engine import Row, Tx


@dataclass(frozen=True, slots=True)
class Handover:
    """A todo as it ended; `owner` is who held it last, if anybody did, and `ended_at` ms UTC."""

    seq: int
    todo_id: str
    queue: str
    title: str
    assignee: str
    owner: str | None
    creator: str
    state: TodoState
    reason: str | None
    error: str | None
    attempt: int
    ended_at: int


class HandoverTable:
    """The statements over handovers; rows are made by the database itself, where a todo ends."""

    async def due(self, tx: Tx) -> bool:
        """Whether anybody is to be told of anything."""
        return bool(await tx.rows("handover_due"))

    async def take(self, tx: Tx, limit: int) -> list[Handover]:
        """The oldest -> gone with this transaction, for whoever tells of them in it."""
        rows = await tx.rows("handover_take", limit=limit)
        return sorted((_handover_of(row) for row in rows), key=lambda one: one.seq)


def _handover_of(row: Row) -> Handover:
    fields: list[Any] = list(row)
    fields[7] = TodoState(fields[7])
    return Handover(*fields)
