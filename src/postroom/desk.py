"""The desk: every verb of the queue as one caller has it, whether the store is in this process or behind a daemon.

`postroom.connect` gives a desk over a store of its own, `postroom.Client` one over a daemon; the MCP door and the
worker take either. Durations are seconds, as on the wire; todos come back as `model.Todo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from postroom.errors import PostroomError
from postroom.model import Created, Ended, NewTodo, OutcomeItem, Todo, TodoPage, TodoState


class Unset:
    """The type of UNSET."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()
"""An argument of `update` that was not given: None is a value there."""


@dataclass(frozen=True, slots=True)
class OutcomeResult:
    """What became of one ending of a batch: the todo's new state, or the error."""

    id: str
    state: TodoState | None = None
    replayed: bool = False
    error: PostroomError | None = None


@dataclass(frozen=True, slots=True)
class ClaimNext:
    """The arguments of `claim_next`, for verbs that claim besides."""

    queues: Sequence[str] | None = None
    ttl_s: float | None = None
    limit: int = 1
    worker: str | None = None


class Desk(Protocol):
    """The verbs of DESIGN §4 for one principal. Each raises errors of the family in `postroom.errors`."""

    async def create(
        self,
        queue: str,
        title: str,
        *,
        kind: str = "",
        payload: Any = None,
        priority: int = 0,
        assignee: str | None = None,
        idempotency_key: str | None = None,
        max_attempts: int | None = None,
        delay_s: float | None = None,
        available_at: datetime | None = None,
        worker: str | None = None,
        request_id: str | None = None,
    ) -> Created:
        """Nothing -> pending; a live todo under the same (queue, idempotency_key) is given instead, created False.

        worker: under which name of its own the creator goes, as in claims.
        """
        ...

    async def create_many(
        self, todos: Sequence[NewTodo], *, worker: str | None = None, request_id: str | None = None
    ) -> list[Created | PostroomError]:
        """Create up to 1000 in one transaction, each with its own answer in the order asked."""
        ...

    async def get(self, id: str) -> Todo:
        """The whole todo with payload, result and history; NotFound when there is none for this principal."""
        ...

    async def list_todos(
        self,
        *,
        queue: str | None = None,
        state: str | None = None,
        assignee: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> TodoPage:
        """A page of todos without payloads, newest first."""
        ...

    async def claim_next(
        self,
        queues: Sequence[str] | None = None,
        *,
        ttl_s: float | None = None,
        limit: int = 1,
        wait_s: float = 0.0,
        claim_key: str | None = None,
        worker: str | None = None,
    ) -> list[Todo]:
        """Claimable -> claimed, up to `limit` in claim order; waits up to wait_s (50 s at most) for one, then is empty."""
        ...

    async def claim(
        self, id: str, *, ttl_s: float | None = None, claim_key: str | None = None, worker: str | None = None
    ) -> Todo:
        """This todo, claimable -> claimed; Conflict telling its state when it is not."""
        ...

    async def heartbeat(self, id: str, lease_id: str | None = None, *, ttl_s: float | None = None) -> Todo:
        """Held -> its lease never shortened; Conflict when not held."""
        ...

    async def complete(self, id: str, lease_id: str | None = None, *, result: Any = None) -> Ended:
        """Held -> done; the same lease id again gives the same todo, replayed."""
        ...

    async def fail(
        self,
        id: str,
        lease_id: str | None = None,
        *,
        error: str | None = None,
        result: Any = None,
        retry: bool = True,
        retry_in_s: float | None = None,
    ) -> Ended:
        """Held -> parked until its backoff is over, or a dead letter; replays by lease id."""
        ...

    async def release(
        self, id: str, lease_id: str | None = None, *, note: str | None = None, delay_s: float | None = None
    ) -> Ended:
        """Held -> pending at once with the attempt given back; replays by lease id."""
        ...

    async def outcomes(
        self, items: Sequence[OutcomeItem], claim: ClaimNext | None = None
    ) -> tuple[list[OutcomeResult], list[Todo]]:
        """End up to 200 attempts together, each with its own result, and claim besides; neither half stops the other."""
        ...

    async def retry(self, id: str, *, request_id: str | None = None) -> Todo:
        """Failed -> pending with attempts anew; for admins and the todo's creator."""
        ...

    async def cancel(self, id: str, *, reason: str | None = None, request_id: str | None = None) -> Todo:
        """Live -> failed, cancelled; for admins and the todo's creator."""
        ...

    async def update(
        self,
        id: str,
        *,
        title: str | None = None,
        payload: Any = UNSET,
        priority: int | None = None,
        assignee: str | Unset | None = UNSET,
        available_at: datetime | Unset | None = UNSET,
        request_id: str | None = None,
    ) -> Todo:
        """Pending -> pending, changed; for admins and the todo's creator."""
        ...
