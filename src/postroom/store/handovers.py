"""What somebody is to be told of ended work: who gave it to somebody else, and whoever listens for dead letters."""

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

    @property
    def holder(self) -> str | None:
        """The token of who held it last, where the work was that token's own to do; else None."""
        own = self.owner is not None and self.owner.partition("/")[0] == self.assignee.partition("/")[0]
        return None if self.owner is None or not own else self.owner.partition("/")[0]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A todo as it became a dead letter, when somebody was subscribed to hear of those; `ended_at` is ms UTC."""

    seq: int
    todo_id: str
    queue: str
    title: str
    reason: str
    error: str | None
    attempt: int
    max_attempts: int
    ended_at: int


@dataclass(frozen=True, slots=True)
class Due:
    """Of what there is something to tell."""

    handovers: bool
    dead_letters: bool


class HandoverTable:
    """The statements over handovers and dead letters; rows are made by the database itself, where a todo ends."""

    async def due(self, tx: Tx) -> Due:
        """Whether anybody is to be told of anything."""
        ((handovers, dead_letters),) = await tx.rows("handover_due")
        return Due(bool(handovers), bool(dead_letters))

    async def take(self, tx: Tx, limit: int) -> list[Handover]:
        """The oldest -> gone with this transaction, for whoever tells of them in it."""
        rows = await tx.rows("handover_take", limit=limit)
        return sorted((_handover_of(row) for row in rows), key=lambda one: one.seq)

    async def take_dead_letters(self, tx: Tx, limit: int) -> list[DeadLetter]:
        """The same for dead letters."""
        rows = await tx.rows("dead_letter_take", limit=limit)
        return sorted((DeadLetter(*row) for row in rows), key=lambda one: one.seq)


def _handover_of(row: Row) -> Handover:
    fields: list[Any] = list(row)
    fields[7] = TodoState(fields[7])
    return Handover(*fields)
