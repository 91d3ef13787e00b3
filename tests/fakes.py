"""A desk in memory, built on the pure transitions, with a clock to move and faults to order."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from postroom import lifecycle, limits
from postroom.desk import UNSET, ClaimNext, OutcomeResult, Unset
from postroom.errors import Conflict, NotFound, PostroomError
from postroom.ids import Ids, Prefix, RandomIds
from postroom.limits import DEFAULT_LEASE, MAX_JSON_BYTES, MAX_NOTE_BYTES
from postroom.model import (
    ClaimRequest,
    Created,
    Ended,
    NewTodo,
    OutcomeItem,
    Principal,
    Role,
    Todo,
    TodoChange,
    TodoPage,
    TodoState,
    Verb,
)
from postroom.text import cut, result_json, store_json
from postroom.wire import datetime_ms, seconds_ms

T = TypeVar("T")


class Clock:
    """A clock that stands until it is moved: `now` in ms UTC, and `monotonic` seconds with it."""

    def __init__(self, now: int = 1_800_000_000_000) -> None:
        self.now = now

    def advance(self, seconds: float) -> None:
        """Move on."""
        self.now += round(seconds * 1000)

    def monotonic(self) -> float:
        """The same clock in seconds, for a worker."""
        return self.now / 1000


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the desk got it."""

    verb: str
    args: dict[str, Any]


class MemoryDesk:
    """The Desk of one principal over todos in memory.

    `break_next(verb, error)` makes a coming call raise: before it did anything, or with `after=True` when all of it is
    done and only the answer is lost. `gate(verb)` gives an event; calls of that verb wait for it before they begin.
    `calls` records what was asked. Time moves with `clock` alone; call `wake` after moving it when someone waits.
    """

    def __init__(
        self, name: str = "me", *, clock: Clock | None = None, ids: Ids | None = None, lease_ms: int = DEFAULT_LEASE
    ) -> None:
        self.principal = Principal(name, Role.ADMIN)
        self.clock = clock or Clock()
        self.ids = ids or RandomIds()
        self.lease_ms = lease_ms
        self.todos: dict[str, Todo] = {}
        self.calls: list[Call] = []
        self.done: dict[tuple[str, str | None], Verb] = {}
        self.waiting = 0
        self._faults: dict[str, deque[tuple[BaseException, bool]]] = defaultdict(deque)
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self._requests: dict[str, Any] = {}

    # What a test orders and asks.

    def break_next(self, verb: str, error: BaseException, *, times: int = 1, after: bool = False) -> None:
        """Make the next calls of the verb raise."""
        self._faults[verb].extend([(error, after)] * times)

    def mend(self, verb: str) -> None:
        """Take back what was ordered to break."""
        self._faults[verb].clear()

    def gate(self, verb: str) -> asyncio.Event:
        """Hold calls of the verb until the event is set."""
        return self._gates.setdefault(verb, asyncio.Event())

    def asked(self, verb: str) -> list[dict[str, Any]]:
        """The arguments of each call of the verb."""
        return [call.args for call in self.calls if call.verb == verb]

    def states(self) -> list[TodoState]:
        """The todos' states in the order of their making."""
        return [todo.state for todo in self.todos.values()]

    async def wake(self) -> None:
        """Let waiting claims look again."""
        async with self._changed:
            self._changed.notify_all()

    async def seed(self, count: int, queue: str = "work", **fields: Any) -> list[Todo]:
        """Create so many todos at once."""
        made = [self._insert(NewTodo(queue, f"todo {n}", payload={"n": n}, **fields)) for n in range(count)]
        await self.wake()
        return made

    def steal(self, id: str, owner: str = "thief") -> Todo:
        """Let another owner have it, as after a lapsed lease that was not noticed here."""
        todo = self.todos[id]
        lapsed = replace(todo, lease_expires_at=self.clock.now) if todo.state is TodoState.CLAIMED else todo
        return self._put(lifecycle.claim(lapsed, self.clock.now, owner, self.lease_ms, self.ids.new(Prefix.LEASE)))

    # The desk.

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
        """Nothing -> pending, or the live todo under the same key."""
        at = None if available_at is None else datetime_ms(available_at, "available_at")
        new = NewTodo(queue, title, kind, payload, priority, assignee, idempotency_key, max_attempts)
        new = replace(new, delay_ms=seconds_ms(delay_s, "delay_s"), available_at=at)

        def work() -> Created:
            if request_id is not None and request_id in self._requests:
                return Created(self.todos[self._requests[request_id]], True, replayed=True)
            made = self._create(new, worker)
            if request_id is not None:
                self._requests[request_id] = made.todo.id
            return made

        made = await self._do("create", {"new": new, "request_id": request_id}, work)
        await self.wake()
        return made

    async def create_many(
        self, todos: Sequence[NewTodo], *, worker: str | None = None, request_id: str | None = None
    ) -> list[Created | PostroomError]:
        """Each created, with its own answer."""

        def one(new: NewTodo) -> Created | PostroomError:
            try:
                return self._create(new, worker)
            except PostroomError as error:
                return error

        made = await self._do("create_many", {"todos": todos, "request_id": request_id}, lambda: [*map(one, todos)])
        await self.wake()
        return made

    async def get(self, id: str) -> Todo:
        """The whole todo."""
        return await self._do("get", {"id": id}, lambda: self._find(id))

    async def list_todos(
        self,
        *,
        queue: str | None = None,
        state: str | None = None,
        assignee: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> TodoPage:
        """A page of todos, newest first."""

        def fits(todo: Todo) -> bool:
            word = "parked" if todo.parked else "dead" if todo.dead else str(todo.state)
            return (
                (queue is None or todo.queue == queue)
                and (state is None or state in {word, str(todo.state)})
                and (assignee is None or todo.assignee == assignee)
                and (cursor is None or todo.seq < int(cursor))
            )

        def work() -> TodoPage:
            size = min(limit or limits.DEFAULT_LIST, limits.MAX_LIST)
            found = sorted(filter(fits, self.todos.values()), key=lambda todo: -todo.seq)
            page = tuple(replace(todo, payload_json=None, lease_id=None, history=()) for todo in found[:size])
            return TodoPage(page, str(page[-1].seq) if len(found) > size else None)

        return await self._do("list_todos", {"queue": queue, "state": state, "cursor": cursor, "limit": limit}, work)

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
        """Claimable -> claimed, up to `limit` in claim order; waits up to wait_s for one."""
        names = None if queues is None else tuple(queues)
        request = ClaimRequest(names, seconds_ms(ttl_s, "ttl_s"), limit, claim_key, worker)
        limits.check_claim(request)
        limits.check_seconds(seconds_ms(wait_s, "wait_s") or 0, 0, limits.MAX_WAIT, "wait_s")
        args = {"request": request, "wait_s": wait_s}
        return await self._do("claim_next", args, lambda: self._take(request), wait_s=wait_s)

    async def claim(
        self, id: str, *, ttl_s: float | None = None, claim_key: str | None = None, worker: str | None = None
    ) -> Todo:
        """This todo, claimable -> claimed."""
        ttl = seconds_ms(ttl_s, "ttl_s")

        def work() -> Todo:
            owner, lease = self.principal.owner(worker), self.ids.new(Prefix.LEASE)
            return self._put(
                lifecycle.claim(self._find(id), self.clock.now, owner, ttl or self.lease_ms, lease, claim_key)
            )

        return await self._do("claim", {"id": id, "ttl_s": ttl_s, "worker": worker}, work)

    async def heartbeat(self, id: str, lease_id: str | None = None, *, ttl_s: float | None = None) -> Todo:
        """Held -> its lease never shortened."""
        ttl = seconds_ms(ttl_s, "ttl_s") or self.lease_ms

        def work() -> Todo:
            return self._put(lifecycle.heartbeat(self._find(id), self.clock.now, self.principal.name, ttl, lease_id))

        return await self._do("heartbeat", {"id": id, "lease_id": lease_id, "ttl_s": ttl_s}, work)

    async def complete(self, id: str, lease_id: str | None = None, *, result: Any = None) -> Ended:
        """Held -> done; replays by lease id."""
        return await self._one("complete", OutcomeItem(id, Verb.COMPLETE, lease_id, result))

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
        """Held -> parked or a dead letter; replays by lease id."""
        delay = seconds_ms(retry_in_s, "retry_in_s")
        return await self._one("fail", OutcomeItem(id, Verb.FAIL, lease_id, result, error, retry, delay))

    async def release(
        self, id: str, lease_id: str | None = None, *, note: str | None = None, delay_s: float | None = None
    ) -> Ended:
        """Held -> pending, the attempt given back; replays by lease id."""
        delay = seconds_ms(delay_s, "delay_s")
        return await self._one("release", OutcomeItem(id, Verb.RELEASE, lease_id, note=note, delay_ms=delay))

    async def outcomes(
        self, items: Sequence[OutcomeItem], claim: ClaimNext | None = None
    ) -> tuple[list[OutcomeResult], list[Todo]]:
        """End up to 200 attempts, each with its own result, and claim besides."""
        limits.check_range(len(items), 0, limits.MAX_OUTCOMES, "items", " items")

        def one(item: OutcomeItem) -> OutcomeResult:
            try:
                ended = self._end(item)
            except PostroomError as error:
                return OutcomeResult(item.id, error=error)
            return OutcomeResult(item.id, ended.todo.state, ended.replayed)

        def work() -> tuple[list[OutcomeResult], list[Todo]]:
            results = [one(item) for item in items]
            if claim is None:
                return results, []
            names = None if claim.queues is None else tuple(claim.queues)
            request = ClaimRequest(names, seconds_ms(claim.ttl_s, "ttl_s"), claim.limit, None, claim.worker)
            limits.check_claim(request)
            return results, self._take(request)

        answer = await self._do("outcomes", {"items": list(items), "claim": claim}, work)
        await self.wake()
        return answer

    async def retry(self, id: str, *, request_id: str | None = None) -> Todo:
        """Failed -> pending with attempts anew."""
        args = {"id": id, "request_id": request_id}
        return await self._do("retry", args, lambda: self._put(lifecycle.retry(self._find(id), self.clock.now)))

    async def cancel(self, id: str, *, reason: str | None = None, request_id: str | None = None) -> Todo:
        """Live -> failed, cancelled."""
        args = {"id": id, "reason": reason, "request_id": request_id}
        return await self._do(
            "cancel", args, lambda: self._put(lifecycle.cancel(self._find(id), self.clock.now, reason))
        )

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
        at = None if isinstance(available_at, Unset) or available_at is None else datetime_ms(available_at, "at")
        change = TodoChange(
            title=title,
            payload=None if isinstance(payload, Unset) else payload,
            payload_given=not isinstance(payload, Unset),
            priority=priority,
            assignee=None if isinstance(assignee, Unset) else assignee,
            assignee_given=not isinstance(assignee, Unset),
            available_at=at,
            available_at_given=not isinstance(available_at, Unset),
        )
        limits.check_change(change)
        text = None if change.payload is None else store_json(change.payload, "payload", MAX_JSON_BYTES)
        args = {"id": id, "change": change, "request_id": request_id}
        return await self._do(
            "update", args, lambda: self._put(lifecycle.update(self._find(id), self.clock.now, change, text))
        )

    # How it works.

    async def _do(self, verb: str, args: dict[str, Any], work: Callable[[], T], wait_s: float = 0.0) -> T:
        self.calls.append(Call(verb, args))
        if verb in self._gates:
            await self._gates[verb].wait()
        # A real desk always lets others run.
        await asyncio.sleep(0)
        error, after = self._faults[verb].popleft() if self._faults[verb] else (None, False)
        if error is not None and not after:
            raise error
        done = work()
        if wait_s and not done:
            done = await self._wait(work, wait_s)
        if error is not None:
            raise error
        return done

    async def _wait(self, work: Callable[[], T], wait_s: float) -> T:
        self.waiting += 1
        try:
            async with asyncio.timeout(wait_s), self._changed:
                while not (done := work()):
                    await self._changed.wait()
                return done
        except TimeoutError:
            return work()
        finally:
            self.waiting -= 1

    def _find(self, id: str) -> Todo:
        if id not in self.todos:
            raise NotFound(f"no todo {id}", field="id")
        return self.todos[id]

    def _put(self, todo: Todo) -> Todo:
        self.todos[todo.id] = todo
        return todo

    def _create(self, new: NewTodo, worker: str | None = None) -> Created:
        limits.check_new(new)
        if new.idempotency_key is not None:
            for todo in self.todos.values():
                if (todo.queue, todo.idempotency_key) == (new.queue, new.idempotency_key) and todo.live:
                    return Created(todo, False)
        return Created(self._insert(new, worker), True)

    def _insert(self, new: NewTodo, worker: str | None = None) -> Todo:
        now = self.clock.now
        text = None if new.payload is None else store_json(new.payload, "payload", MAX_JSON_BYTES)
        return self._put(
            Todo(
                seq=len(self.todos) + 1,
                id=self.ids.new(Prefix.TODO),
                queue=new.queue,
                source=new.source,
                kind=new.kind,
                title=new.title,
                event_id=new.event_id,
                idempotency_key=new.idempotency_key,
                assignee=new.assignee,
                state=TodoState.PENDING,
                owner=None,
                lease_id=None,
                lease_expires_at=None,
                claim_key=None,
                attempt=0,
                max_attempts=new.max_attempts or limits.DEFAULT_MAX_ATTEMPTS,
                priority=new.priority,
                available_at=now + new.delay_ms if new.delay_ms else new.available_at,
                next_retry_at=None,
                reason=None,
                error=None,
                created_by=self.principal.owner(worker),
                created_at=now,
                updated_at=now,
                claimed_at=None,
                completed_at=None,
                payload_bytes=0 if text is None else len(text.encode()),
                payload_json=text,
                result_json=None,
            )
        )

    def _take(self, request: ClaimRequest) -> list[Todo]:
        now, owner, called = (
            self.clock.now,
            self.principal.owner(request.worker),
            self.principal.called(request.worker),
        )
        if request.claim_key is not None:
            same = [
                todo
                for todo in self.todos.values()
                if (todo.state, todo.owner, todo.claim_key) == (TodoState.CLAIMED, owner, request.claim_key)
            ]
            if same:
                return same
        found = [
            todo
            for todo in self.todos.values()
            if (request.queues is None or todo.queue in request.queues)
            and lifecycle.claimable(todo, now, owner, called)
        ]
        found.sort(key=lambda todo: (-todo.priority, todo.created_at, todo.seq))
        lease, ttl = self.ids.new(Prefix.LEASE), request.ttl_ms or self.lease_ms
        return [
            self._put(lifecycle.claim(todo, now, owner, ttl, lease, request.claim_key, called))
            for todo in found[: request.limit]
        ]

    async def _one(self, verb: str, item: OutcomeItem) -> Ended:
        ended = await self._do(verb, {"item": item}, lambda: self._end(item))
        await self.wake()
        return ended

    def _end(self, item: OutcomeItem) -> Ended:
        limits.check_outcome(item)
        todo, now, owner = self._find(item.id), self.clock.now, self.principal.name
        if not lifecycle.held_by(todo, owner, item.lease_id):
            if item.lease_id is not None and self.done.get((item.id, item.lease_id)) is item.verb:
                return Ended(todo, replayed=True)
            raise Conflict(f"{item.id} is {todo.state}, not held by {owner}", state=str(todo.state), owner=todo.owner)
        lease = todo.lease_id
        result = None if item.result is None else result_json(item.result, MAX_JSON_BYTES)
        words = item.note if item.verb is Verb.RELEASE else item.error
        words = None if words is None else cut(words, MAX_NOTE_BYTES)
        match item.verb:
            case Verb.COMPLETE:
                ended = lifecycle.complete(todo, now, owner, lease, result)
            case Verb.FAIL:
                wait = lifecycle.backoff(todo.attempt) if item.retry_in_ms is None else item.retry_in_ms
                ended = lifecycle.fail(todo, now, owner, lease, words, wait, retry=item.retry, result_json=result)
            case Verb.RELEASE:
                ended = lifecycle.release(todo, now, owner, lease, words, item.delay_ms)
        self.done[(item.id, lease)] = item.verb
        return Ended(self._put(ended))
