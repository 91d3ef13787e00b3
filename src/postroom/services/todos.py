"""Todos: made, looked at and steered by those who may (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from postroom import limits
from postroom.errors import Conflict, Invalid, NotFound, PostroomError, TooLarge
from postroom.ids import Ids, Prefix, check_id
from postroom.limits import MAX_JSON_BYTES, MAX_NOTE_BYTES
from postroom.model import Created, NewTodo, Principal, Todo, TodoChange, TodoFilter, TodoPage
from postroom.services import tellings
from postroom.services.owners import Owners
from postroom.services.pages import page_limit, read_cursor, show_cursor
from postroom.services.refusals import missing, told
from postroom.services.requests import Answer, Requests
from postroom.services.wake import Wake
from postroom.store.engine import Duplicate, Engine, Once, Reader, Tx
from postroom.store.todos import TodoTable
from postroom.text import cut, store_json

RIVALS = 3
"""How often a retry looks for the holder of its key when one appears in the very moment."""
FILTER_STATES = ("pending", "claimed", "done", "failed", "parked", "dead", "cancelled")


class TodoService:
    """The verbs over todos for a principal."""

    def __init__(
        self,
        engine: Engine,
        table: TodoTable,
        owners: Owners,
        requests: Requests,
        wake: Wake,
        ids: Ids,
    ) -> None:
        self._engine = engine
        self._table = table
        self._owners = owners
        self._requests = requests
        self._wake = wake
        self._ids = ids
        self._once = Once(engine)
        self._reader = Reader(engine)

    # create

    def prepare(self, principal: Principal, new: NewTodo) -> str | None:
        """Pass what may be created by this principal and give the payload's text. Raises Invalid, TooLarge, NotFound."""
        limits.check_new(new)
        self.check_queue(principal, new.queue)
        return None if new.payload is None else store_json(new.payload, "payload", MAX_JSON_BYTES)

    def check_queue(self, principal: Principal, queue: str, field: str = "queue") -> None:
        """Pass a queue this principal may use; another one is as if it were not there."""
        if not principal.may_use(queue):
            raise NotFound(f"there is no queue {queue!r} for {principal.name}", field=field)

    async def create(
        self, principal: Principal, new: NewTodo, request_id: str | None = None, worker: str | None = None
    ) -> Created:
        """Nothing -> pending, or the live todo that holds the key, created False (S2); `worker` as claims have it."""
        payload = self.prepare(principal, new)
        creator = _created_by(principal, worker)
        id_ = self._ids.new(Prefix.TODO)
        if request_id is None:
            await self._owners.check_assignee(self._reader, new.assignee, new.queue)
            # Alone, the insert needs no transaction around it: each statement of the loop stands by itself.
            made = Created(*await self._table.insert(self._once, id_, new, payload, creator))
        else:

            async def run(tx: Tx) -> tuple[Created, Answer]:
                await self._owners.check_assignee(tx, new.assignee, new.queue)
                todo, created = await self._table.insert(tx, id_, new, payload, creator)
                return Created(todo, created), (todo.id, created)

            async def replay(tx: Tx, answer: Answer) -> Created:
                todo = await self._table.get(tx, str(answer[0]))
                return Created(_there(todo, str(answer[0])), bool(answer[1]), replayed=True)

            made = await self._requests.once(
                principal, request_id, "create", _new_body(new, payload, worker), run, replay
            )
        if made.created:
            self._wake.work([new.queue])
            if not made.replayed:
                self._wake.told(tellings.todos_created, [made.todo])
        return made

    async def create_many(
        self,
        principal: Principal,
        news: Sequence[NewTodo],
        request_id: str | None = None,
        worker: str | None = None,
    ) -> list[Created | PostroomError]:
        """Create up to 1000 in one transaction; what may not be created has its error, the rest is made (RULINGS 10)."""
        limits.check_range(len(news), 1, limits.MAX_CREATE, "todos", " items")
        creator = _created_by(principal, worker)
        answers: list[Created | PostroomError | None] = [None] * len(news)
        good: list[int] = []
        payloads: list[str | None] = []
        for n, new in enumerate(news):
            try:
                payloads.append(self.prepare(principal, new))
                good.append(n)
            except (Invalid, TooLarge, NotFound) as error:
                answers[n] = error
        ids = [self._ids.new(Prefix.TODO) for _ in good]
        wanted = [news[n] for n in good]

        async def run(tx: Tx) -> tuple[list[Created | PostroomError], Answer]:
            refused = await self._owners.check_assignees(tx, [(new.assignee, new.queue) for new in wanted])
            kept = [n for n in range(len(wanted)) if n not in refused]
            made = await self._table.insert_many(
                tx, [ids[n] for n in kept], [wanted[n] for n in kept], [payloads[n] for n in kept], creator
            )
            said: list[Created | PostroomError] = [refused.get(n) or Created(*made.pop(0)) for n in range(len(wanted))]
            return said, tuple((one.todo.id, one.created) if isinstance(one, Created) else str(one) for one in said)

        async def replay(tx: Tx, answer: Answer) -> list[Created | PostroomError]:
            pairs = [(str(one[0]), bool(one[1])) if isinstance(one, list | tuple) else str(one) for one in answer]
            found = await self._table.by_ids(tx, [one[0] for one in pairs if not isinstance(one, str)])
            todos = {todo.id: todo for todo in found}
            return [
                Invalid(one, field="assignee")
                if isinstance(one, str)
                else Created(_there(todos.get(one[0]), one[0]), one[1], replayed=True)
                for one in pairs
            ]

        made: list[Created | PostroomError] = []
        if request_id is not None:
            body = [_new_body(new, payload, worker) for new, payload in zip(wanted, payloads, strict=True)]
            made = await self._requests.once(principal, request_id, "create_many", body, run, replay)
        elif good:
            made, _ = await self._engine.transact(run, heavy=len(good) > 100)
        for n, one in zip(good, made, strict=True):
            answers[n] = one
        for n, answer in enumerate(answers):
            if isinstance(answer, PostroomError):
                answer.field = f"todos[{n}].{answer.field}" if answer.field else f"todos[{n}]"
        here = [one for one in made if isinstance(one, Created)]
        self._wake.work({one.todo.queue for one in here if one.created})
        if self._wake.heard:
            self._wake.told(tellings.todos_created, [one.todo for one in here if one.created and not one.replayed])
        return [answer for answer in answers if answer is not None]

    # look

    async def get(self, principal: Principal, id_: str) -> Todo:
        """The whole todo; NotFound when there is none for this principal (S12)."""
        todo = await self._table.get(self._reader, check_id(id_, Prefix.TODO, "todo"))
        if todo is None or not principal.may_use(todo.queue):
            raise missing(id_)
        return todo

    async def page(self, principal: Principal, wanted: TodoFilter) -> TodoPage:
        """A page without payloads, newest first; a limit over 200 is 200."""
        if wanted.state is not None and wanted.state not in FILTER_STATES:
            raise Invalid(
                f"state {wanted.state[:40]!r} is expected to be one of {', '.join(FILTER_STATES)}", field="state"
            )
        if wanted.assignee is not None:
            limits.check_owner(wanted.assignee)
        if wanted.queue is not None:
            self.check_queue(principal, limits.check_queue(wanted.queue))
        limit = page_limit(wanted.limit)
        before = read_cursor(wanted.cursor)
        queues: list[str] | None = None
        if wanted.queue is None and "*" not in principal.queues:
            names = await self._reader.rows("queue_names", all_of=1)
            queues = [row[0] for row in names if principal.may_use(row[0])]
        todos = await self._table.page(self._reader, wanted, queues, before, limit + 1)
        more = len(todos) > limit
        return TodoPage(tuple(todos[:limit]), show_cursor(todos[limit - 1].seq) if more else None)

    # steer

    async def retry(self, principal: Principal, id_: str, request_id: str | None = None) -> Todo:
        """Failed -> pending with attempts anew; for admins and the creator (S26)."""

        async def run(tx: Tx) -> Todo | None:
            try:
                return await self._table.retry(tx, id_, _creator(principal), principal.name)
            except Conflict:
                # Who may not retry it is not told what else holds its key.
                todo = (await self._table.standings(tx, [(id_, None)]))[0].todo
                if todo is not None and principal.may_use(todo.queue) and (principal.admin or principal.made(todo)):
                    raise
                return None

        return await self._steer(principal, id_, "retry", "retried", {"id": id_}, run, request_id)

    async def cancel(
        self, principal: Principal, id_: str, reason: str | None = None, request_id: str | None = None
    ) -> Todo:
        """Live -> failed, cancelled; for admins and the creator."""
        entry = self._ids.new(Prefix.LEASE)
        why = cut(reason, MAX_NOTE_BYTES) if reason else None

        async def run(tx: Tx) -> Todo | None:
            return await self._table.cancel(tx, id_, _creator(principal), entry, why, principal.name)

        body = {"id": id_, "reason": why or f"cancelled by {principal.name}"}
        return await self._steer(principal, id_, "cancel", "cancelled", body, run, request_id)

    async def update(self, principal: Principal, id_: str, change: TodoChange, request_id: str | None = None) -> Todo:
        """Pending -> pending, changed; for admins and the creator."""
        limits.check_change(change)
        payload = None if change.payload is None else store_json(change.payload, "payload", MAX_JSON_BYTES)

        async def run(tx: Tx) -> Todo | None:
            todo = await self._table.update(tx, id_, _creator(principal), change, payload, principal.name)
            if todo is not None and change.assignee_given:
                await self._owners.check_assignee(tx, change.assignee, todo.queue)
            return todo

        body = {
            "id": id_,
            "title": change.title,
            "payload": payload if change.payload_given else "-",
            "priority": change.priority,
            "assignee": change.assignee if change.assignee_given else "-",
            "available_at": change.available_at if change.available_at_given else "-",
        }
        return await self._steer(principal, id_, "update", "updated", body, run, request_id)

    async def _steer(
        self,
        principal: Principal,
        id_: str,
        verb: str,
        past: str,
        body: object,
        run: Callable[[Tx], Awaitable[Todo | None]],
        request_id: str | None,
    ) -> Todo:
        check_id(id_, Prefix.TODO, "todo")
        repeated = False

        async def operation(tx: Tx) -> Todo:
            todo = await run(tx)
            if todo is None or not principal.may_use(todo.queue):
                standing = (await self._table.standings(tx, [(id_, None)]))[0]
                raise told(principal, id_, standing, verb)
            return replace(todo, lease_id=None)

        async def keyed(tx: Tx) -> tuple[Todo, Answer]:
            return await operation(tx), (id_,)

        async def replay(tx: Tx, answer: Answer) -> Todo:
            nonlocal repeated
            repeated = True
            return _there(await self._table.get(tx, str(answer[0])), id_)

        for _ in range(RIVALS):
            try:
                if request_id is None:
                    todo = await self._engine.transact(operation)
                else:
                    todo = await self._requests.once(principal, request_id, verb, body, keyed, replay)
            except Duplicate:
                continue  # A rival came between the look and the update; the next look finds it, and names it.
            self._wake.work([todo.queue])
            if not repeated:
                self._wake.told(tellings.todo_steered, past, todo, principal)
            return todo
        raise Conflict(f"the key of {id_} is held by a newer todo")


def _created_by(principal: Principal, worker: str | None) -> str:
    return principal.owner(None if worker is None else limits.check_name(worker, "worker"))


def _creator(principal: Principal) -> str | None:
    return None if principal.admin else principal.name


def _there(todo: Todo | None, id_: str) -> Todo:
    if todo is None:
        raise missing(id_)
    return todo


def _new_body(new: NewTodo, payload: str | None, worker: str | None) -> dict[str, object]:
    return {
        **({} if worker is None else {"worker": worker}),
        "queue": new.queue,
        "title": new.title,
        "kind": new.kind,
        "payload": payload,
        "priority": new.priority,
        "assignee": new.assignee,
        "idempotency_key": new.idempotency_key,
        "max_attempts": new.max_attempts,
        "delay_ms": new.delay_ms,
        "available_at": new.available_at,
    }
