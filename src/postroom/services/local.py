"""The desk over services in this process, for one principal: seconds in, values out (desk.Desk)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from postroom.desk import UNSET, ClaimNext, OutcomeResult, Unset
from postroom.errors import PostroomError
from postroom.model import (
    ClaimRequest,
    Created,
    Ended,
    NewTodo,
    OutcomeItem,
    Principal,
    Todo,
    TodoChange,
    TodoFilter,
    TodoPage,
    Verb,
)
from postroom.services.claims import ClaimService
from postroom.services.endings import EndingService
from postroom.services.giving_back import GivingBack
from postroom.services.local_post import LocalPost
from postroom.services.todos import TodoService
from postroom.services.waiting import WaitingRoom
from postroom.wire import datetime_ms, seconds_ms


class LocalDesk:
    """Every verb of the queue for one principal, straight to the services; `source` is what its todos say of it.

    post: the verbs of the post for the same principal.
    """

    def __init__(
        self,
        principal: Principal,
        todos: TodoService,
        claims: ClaimService,
        endings: EndingService,
        waiting: WaitingRoom,
        giving: GivingBack,
        post: LocalPost,
        source: str = "python",
    ) -> None:
        self.principal = principal
        self.post = post
        self._todos = todos
        self._claims = claims
        self._endings = endings
        self._waiting = waiting
        self._giving = giving
        self._source = source

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
        """Nothing -> pending, or the live todo that holds the key."""
        new = NewTodo(
            queue=queue,
            title=title,
            kind=kind,
            payload=payload,
            priority=priority,
            assignee=assignee,
            idempotency_key=idempotency_key,
            max_attempts=max_attempts,
            delay_ms=seconds_ms(delay_s, "delay_s"),
            available_at=None if available_at is None else datetime_ms(available_at, "available_at"),
            source=self._source,
        )
        return await self._todos.create(self.principal, new, request_id, worker)

    async def create_many(
        self, todos: Sequence[NewTodo], *, worker: str | None = None, request_id: str | None = None
    ) -> list[Created | PostroomError]:
        """Create up to 1000 in one transaction, each with its own answer."""
        return await self._todos.create_many(self.principal, todos, request_id, worker)

    async def get(self, id: str) -> Todo:
        """The whole todo."""
        return await self._todos.get(self.principal, id)

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
        return await self._todos.page(self.principal, TodoFilter(queue, state, assignee, cursor, limit))

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
        """Claimable -> claimed, up to `limit`, waiting up to wait_s for the first."""
        request = ClaimRequest(
            None if queues is None else tuple(queues), seconds_ms(ttl_s, "ttl_s"), limit, claim_key, worker
        )
        return list(await self._waiting.claim_next(self.principal, request, seconds_ms(wait_s, "wait_s") or 0))

    async def claim(
        self, id: str, *, ttl_s: float | None = None, claim_key: str | None = None, worker: str | None = None
    ) -> Todo:
        """This todo, claimable -> claimed."""
        claim = self._claims.claim(self.principal, id, seconds_ms(ttl_s, "ttl_s"), claim_key, worker)
        return await self._giving.guard(self.principal, claim_key, claim, lambda todo: (todo,))

    async def heartbeat(self, id: str, lease_id: str | None = None, *, ttl_s: float | None = None) -> Todo:
        """Held -> its lease never shortened."""
        return await self._endings.heartbeat(self.principal, id, lease_id, seconds_ms(ttl_s, "ttl_s"))

    async def complete(self, id: str, lease_id: str | None = None, *, result: Any = None) -> Ended:
        """Held -> done."""
        return await self._endings.complete(self.principal, id, lease_id, result)

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
        """Held -> parked or dead."""
        retry_in = seconds_ms(retry_in_s, "retry_in_s")
        item = OutcomeItem(id, Verb.FAIL, lease_id, result=result, error=error, retry=retry, retry_in_ms=retry_in)
        return await self._endings.end(self.principal, item)

    async def release(
        self, id: str, lease_id: str | None = None, *, note: str | None = None, delay_s: float | None = None
    ) -> Ended:
        """Held -> pending, the attempt given back."""
        item = OutcomeItem(id, Verb.RELEASE, lease_id, note=note, delay_ms=seconds_ms(delay_s, "delay_s"))
        return await self._endings.end(self.principal, item)

    async def outcomes(
        self, items: Sequence[OutcomeItem], claim: ClaimNext | None = None
    ) -> tuple[list[OutcomeResult], list[Todo]]:
        """End up to 200 attempts together, and claim besides."""
        if claim is None:
            ended = await self._endings.end_many(self.principal, items)
            todos: tuple[Todo, ...] = ()
        else:
            queues = None if claim.queues is None else tuple(claim.queues)
            request = ClaimRequest(queues, seconds_ms(claim.ttl_s, "claim.ttl_s"), claim.limit, None, claim.worker)
            both = self._claims.end_and_claim(self.principal, items, request)
            ended, todos = await self._giving.guard(self.principal, None, both, itemgetter(1))
        return [OutcomeResult(one.id, one.state, one.replayed, one.error) for one in ended], list(todos)

    async def retry(self, id: str, *, request_id: str | None = None) -> Todo:
        """Failed -> pending with attempts anew."""
        return await self._todos.retry(self.principal, id, request_id)

    async def cancel(self, id: str, *, reason: str | None = None, request_id: str | None = None) -> Todo:
        """Live -> failed, cancelled."""
        return await self._todos.cancel(self.principal, id, reason, request_id)

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
        """Pending -> pending, changed."""
        change = TodoChange(
            title=title,
            payload=None if isinstance(payload, Unset) else payload,
            payload_given=not isinstance(payload, Unset),
            priority=priority,
            assignee=None if isinstance(assignee, Unset) else assignee,
            assignee_given=not isinstance(assignee, Unset),
            available_at=None
            if isinstance(available_at, Unset) or available_at is None
            else datetime_ms(available_at, "available_at"),
            available_at_given=not isinstance(available_at, Unset),
        )
        return await self._todos.update(self.principal, id, change, request_id)
