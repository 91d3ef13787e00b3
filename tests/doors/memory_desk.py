"""A desk in memory, made of the lifecycle's own functions: what the doors' tests stand before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from postroom import lifecycle as life
from postroom import limits, wire
from postroom.desk import UNSET, ClaimNext, OutcomeResult, Unset
from postroom.errors import Conflict, NotFound, PostroomError, RateLimited
from postroom.ids import Prefix, RandomIds, check_id
from postroom.model import Attempt, ClaimRequest, Created, Ended, NewTodo, OutcomeItem, Todo, TodoPage, TodoState
from postroom.text import check_text, dump_json, result_json, store_json


class Shelf:
    """What several desks share: the todos, what ended attempts answered, and the bell for waiting claims."""

    def __init__(self, now: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.now = now
        self.ids = RandomIds()
        self.todos: dict[str, Todo] = {}
        self.ended: dict[tuple[str, str], str] = {}
        self.requests: dict[tuple[str, str], str] = {}
        self.bell = asyncio.Event()
        self.waiting = 0
        self.cancelled = 0

    def ring(self) -> None:
        """Wake every waiting claim."""
        self.bell.set()
        self.bell = asyncio.Event()


class MemoryDesk:
    """The desk of one principal's name over a shelf."""

    def __init__(self, shelf: Shelf, name: str = "agent") -> None:
        self.shelf = shelf
        self.name = name

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
        shelf, now = self.shelf, self.shelf.now()
        new = NewTodo(
            queue,
            title,
            kind,
            payload,
            priority,
            assignee,
            idempotency_key,
            max_attempts,
            wire.seconds_ms(delay_s, "delay_s"),
            None if available_at is None else wire.datetime_ms(available_at, "available_at"),
        )
        limits.check_new(new)
        text = None if payload is None else store_json(payload, "payload", limits.MAX_JSON_BYTES)
        if request_id is not None:
            limits.check_key(request_id, "request_id")
            if known := shelf.requests.get((self.name, request_id)):
                return Created(shelf.todos[known], created=True, replayed=True)
        for todo in shelf.todos.values():
            if idempotency_key and todo.live and (todo.queue, todo.idempotency_key) == (queue, idempotency_key):
                return Created(todo, created=False)
        todo = Todo(
            seq=len(shelf.todos) + 1,
            id=shelf.ids.new(Prefix.TODO),
            queue=queue,
            source="api",
            kind=kind,
            title=title,
            event_id=None,
            idempotency_key=idempotency_key,
            assignee=assignee,
            state=TodoState.PENDING,
            owner=None,
            lease_id=None,
            lease_expires_at=None,
            claim_key=None,
            attempt=0,
            max_attempts=max_attempts or limits.DEFAULT_MAX_ATTEMPTS,
            priority=priority,
            available_at=now + new.delay_ms if new.delay_ms else new.available_at,
            next_retry_at=None,
            reason=None,
            error=None,
            created_by=self.name,
            created_at=now,
            updated_at=now,
            claimed_at=None,
            completed_at=None,
            payload_bytes=0 if text is None else len(text.encode()),
            payload_json=text,
            result_json=None,
        )
        shelf.todos[todo.id] = todo
        if request_id is not None:
            shelf.requests[self.name, request_id] = todo.id
        shelf.ring()
        return Created(todo, created=True)

    async def create_many(
        self, todos: Sequence[NewTodo], *, worker: str | None = None, request_id: str | None = None
    ) -> list[Created | PostroomError]:
        return [
            await self.create(new.queue, new.title, payload=new.payload, idempotency_key=new.idempotency_key)
            for new in todos
        ]

    def _find(self, id: str) -> Todo:
        found = self.shelf.todos.get(check_id(id, Prefix.TODO, "todo"))
        if found is None:
            raise NotFound(f"no todo {id}", field="id")
        return found

    async def get(self, id: str) -> Todo:
        return self._find(id)

    async def list_todos(
        self,
        *,
        queue: str | None = None,
        state: str | None = None,
        assignee: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> TodoPage:
        if queue is not None:
            limits.check_queue(queue)
        for field, value in (("assignee", assignee), ("cursor", cursor)):
            check_text(value or "", field)
        below = int(cursor) if cursor else len(self.shelf.todos) + 1
        found = [
            todo
            for todo in sorted(self.shelf.todos.values(), key=lambda todo: -todo.seq)
            if todo.seq < below
            and (queue is None or todo.queue == queue)
            and (assignee is None or todo.assignee == assignee)
            and (
                state is None
                or state == todo.state
                or (state == "parked" and todo.parked)
                or (state == "dead" and todo.dead)
            )
        ]
        page = found[: limit or limits.DEFAULT_LIST]
        more = len(found) > len(page)
        return TodoPage(
            tuple(replace(todo, payload_json=None, result_json=None, history=()) for todo in page),
            str(page[-1].seq) if more else None,
        )

    def _take(self, todo: Todo, ttl_s: float | None, lease_id: str, key: str | None, worker: str | None) -> Todo:
        owner = self.name if worker is None else f"{self.name}/{worker}"
        ttl = wire.seconds_ms(ttl_s, "ttl_s") or limits.DEFAULT_LEASE
        taken = life.claim(todo, self.shelf.now(), owner, ttl, lease_id, key)
        self.shelf.todos[todo.id] = taken
        return taken

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
        shelf = self.shelf
        owner = self.name if worker is None else f"{self.name}/{worker}"
        asked = ClaimRequest(
            None if queues is None else tuple(queues), wire.seconds_ms(ttl_s, "ttl_s"), limit, claim_key, worker
        )
        limits.check_claim(asked)
        end = asyncio.get_running_loop().time() + wait_s
        shelf.waiting += 1
        try:
            while True:
                bell = shelf.bell
                held = [t for t in shelf.todos.values() if claim_key and t.owner == owner and t.claim_key == claim_key]
                if held:
                    return held
                ready = [
                    todo
                    for todo in shelf.todos.values()
                    if life.claimable(todo, shelf.now(), owner) and (queues is None or todo.queue in queues)
                ]
                ready.sort(key=lambda todo: (-todo.priority, todo.created_at, todo.seq))
                if ready:
                    lease = shelf.ids.new(Prefix.LEASE)
                    return [self._take(todo, ttl_s, lease, claim_key, worker) for todo in ready[:limit]]
                try:
                    async with asyncio.timeout_at(end):
                        await bell.wait()
                except TimeoutError:
                    return []
        except asyncio.CancelledError:
            shelf.cancelled += 1
            raise
        finally:
            shelf.waiting -= 1

    async def claim(
        self, id: str, *, ttl_s: float | None = None, claim_key: str | None = None, worker: str | None = None
    ) -> Todo:
        todo = self._find(id)
        if claim_key and todo.claim_key == claim_key:
            return todo
        try:
            return self._take(todo, ttl_s, self.shelf.ids.new(Prefix.LEASE), claim_key, worker)
        except Conflict as error:
            raise Conflict(error.message, state=str(todo.state), owner=todo.owner) from None

    async def heartbeat(self, id: str, lease_id: str | None = None, *, ttl_s: float | None = None) -> Todo:
        ttl = wire.seconds_ms(ttl_s, "ttl_s") or limits.DEFAULT_LEASE
        kept = life.heartbeat(self._find(id), self.shelf.now(), self.name, ttl, lease_id)
        self.shelf.todos[id] = kept
        return kept

    def _end(self, verb: str, id: str, lease_id: str | None, ending: Callable[[Todo], Todo]) -> Ended:
        todo = self._find(id)
        if self.shelf.ended.get((id, str(lease_id))) == verb:
            return Ended(todo, replayed=True)
        self.shelf.todos[id] = ended = ending(todo)
        self.shelf.ended[id, str(lease_id)] = verb
        self.shelf.ring()
        return Ended(ended)

    async def complete(self, id: str, lease_id: str | None = None, *, result: Any = None) -> Ended:
        text = None if result is None else result_json(result, limits.MAX_JSON_BYTES)
        return self._end(
            "complete", id, lease_id, lambda todo: life.complete(todo, self.shelf.now(), self.name, lease_id, text)
        )

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
        text = None if result is None else dump_json(result)
        return self._end(
            "fail",
            id,
            lease_id,
            lambda todo: life.fail(
                todo,
                self.shelf.now(),
                self.name,
                lease_id,
                error,
                wire.seconds_ms(retry_in_s, "retry_in_s") or life.backoff(todo.attempt),
                retry=retry,
                result_json=text,
            ),
        )

    async def release(
        self, id: str, lease_id: str | None = None, *, note: str | None = None, delay_s: float | None = None
    ) -> Ended:
        delay = wire.seconds_ms(delay_s, "delay_s")
        return self._end(
            "release", id, lease_id, lambda todo: life.release(todo, self.shelf.now(), self.name, lease_id, note, delay)
        )

    async def outcomes(
        self, items: Sequence[OutcomeItem], claim: ClaimNext | None = None
    ) -> tuple[list[OutcomeResult], list[Todo]]:
        raise RateLimited("no door under test ends in batches")

    async def retry(self, id: str, *, request_id: str | None = None) -> Todo:
        self.shelf.todos[id] = life.retry(self._find(id), self.shelf.now())
        return self.shelf.todos[id]

    async def cancel(self, id: str, *, reason: str | None = None, request_id: str | None = None) -> Todo:
        self.shelf.todos[id] = life.cancel(self._find(id), self.shelf.now(), reason)
        return self.shelf.todos[id]

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
        todo = self._find(id)
        self.shelf.todos[id] = replace(todo, title=title or todo.title)
        return self.shelf.todos[id]

    async def aclose(self) -> None:
        """Nothing to close."""

    def add_history(self, id: str, entries: Sequence[Attempt]) -> None:
        """Give a todo a past."""
        self.shelf.todos[id] = replace(self.shelf.todos[id], history=tuple(entries))
