"""The assignments table: work that was given to somebody who is to hear of it."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.store.engine import Tx


@dataclass(frozen=True, slots=True)
class Assignment:
    """That a todo was given to somebody: to a token's name, or to name/worker; by whom, where a verb of ours did it."""

    seq: int
    todo_id: str
    assignee: str
    giver: str | None

    @property
    def token(self) -> str:
        """The name of the token that may claim it."""
        return self.assignee.partition("/")[0]

    @property
    def giver_token(self) -> str | None:
        """The name of the token that gave it away."""
        return None if self.giver is None else self.giver.partition("/")[0]


class AssignmentTable:
    """The statements over assignments; the database itself makes a row where a todo gets its assignee."""

    async def due(self, tx: Tx) -> bool:
        """Whether anybody is to be told of anything."""
        return bool(await tx.rows("assignment_due"))

    async def take(self, tx: Tx, limit: int) -> list[Assignment]:
        """The oldest -> gone with this transaction, for whoever tells of them in it."""
        rows = await tx.rows("assignment_take", limit=limit)
        return sorted((Assignment(*row) for row in rows), key=lambda one: one.seq)
