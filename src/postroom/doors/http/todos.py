"""Todos over HTTP: made, one or many; looked at; steered by their creator or an admin."""

from __future__ import annotations

from typing import Annotated, Any

from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.fields import (
    OWNER_PATTERN,
    Asked,
    Assignee,
    Cursor,
    Delay,
    IdempotencyKey,
    Kind,
    Limit,
    MaxAttempts,
    Moment,
    Nothing,
    Payload,
    Priority,
    Queue,
    Title,
    Words,
    Worker,
    told,
)
from postroom.doors.http.route import MANY, ONE, Call, Route
from postroom.doors.http.schemas import FLAG, TEXT, many, maybe, named, record
from postroom.doors.http.views import as_left, whole
from postroom.errors import Invalid
from postroom.limits import MAX_CREATE
from postroom.model import Created, NewTodo, TodoChange, TodoFilter
from postroom.services.todos import FILTER_STATES
from postroom.wire import read_time, seconds_ms, todo_view

NOUN = "todos"


class OneTodo(Asked):
    """A todo to be made, beside others."""

    queue: Queue
    title: Title
    kind: Kind | None = None
    payload: Payload = None
    priority: Priority | None = None
    assignee: Assignee | None = None
    idempotency_key: IdempotencyKey | None = None
    max_attempts: MaxAttempts | None = None
    delay_s: Delay | None = None
    available_at: Moment | None = None

    def new(self) -> NewTodo:
        """The todo as the services take it. Raises Invalid naming the field."""
        return NewTodo(
            queue=self.queue,
            title=self.title,
            kind=self.kind or "",
            payload=self.payload,
            priority=self.priority or 0,
            assignee=self.assignee,
            idempotency_key=self.idempotency_key,
            max_attempts=self.max_attempts,
            delay_ms=seconds_ms(self.delay_s, "delay_s"),
            available_at=None if self.available_at is None else read_time(self.available_at, "available_at"),
        )


class CreateTodo(OneTodo):
    """A todo to be made."""

    worker: Worker | None = None


class CreateTodos(Asked):
    """Todos to be made together."""

    todos: Annotated[list[OneTodo], told("The todos, in the order of their answers.", minItems=1, maxItems=MAX_CREATE)]
    worker: Worker | None = None


class UpdateTodo(Asked):
    """What changes in a todo; what is absent stays, and null clears where it is allowed."""

    title: Title = ""
    payload: Payload = None
    priority: Priority = 0
    assignee: Assignee | None = None
    available_at: Moment | None = None


class CancelTodo(Asked):
    """Why a todo is cancelled."""

    reason: Annotated[Words, told("Why, for the history.")] | None = None


class ListTodos(Asked):
    """Which todos a list shows."""

    queue: Queue | None = None
    state: (
        Annotated[
            str, told("Only this state; parked, dead and cancelled are kinds of failed.", enum=list(FILTER_STATES))
        ]
        | None
    ) = None
    assignee: Annotated[str, told("Only todos assigned to this owner.", pattern=OWNER_PATTERN)] | None = None
    cursor: Cursor | None = None
    limit: Limit | None = None


def _made(one: Created) -> dict[str, Any]:
    shown: dict[str, Any] = {"todo": as_left(one.todo), "created": one.created}
    if one.replayed:
        shown["replayed"] = True
    return shown


async def create(call: Call, asked: CreateTodo) -> Answer:
    """Nothing -> pending: 201; 200 when the key's live todo is given, or an earlier answer again."""
    made = await call.api.todos.create(call.principal, asked.new(), call.request_id, asked.worker)
    return json_answer(_made(made), 201 if made.created and not made.replayed else 200)


async def create_many(call: Call, asked: CreateTodos) -> Answer:
    """Create together, each with its own answer."""
    news: list[NewTodo] = []
    for n, todo in enumerate(asked.todos):
        try:
            news.append(todo.new())
        except Invalid as error:
            error.field = f"todos[{n}].{error.field}"
            raise
    answers = await call.api.todos.create_many(call.principal, news, call.request_id, asked.worker)
    return json_answer(
        {"results": [_made(one) if isinstance(one, Created) else {"error": one.as_dict()} for one in answers]}
    )


async def list_todos(call: Call, asked: ListTodos) -> Answer:
    """A page, newest first."""
    wanted = TodoFilter(asked.queue, asked.state, asked.assignee, asked.cursor, asked.limit)
    page = await call.api.todos.page(call.principal, wanted)
    shown = [todo_view(todo, whole=False) for todo in page.todos]
    return json_answer({"todos": shown, "next_cursor": page.next_cursor})


async def get(call: Call, _: None) -> Answer:
    """The whole todo, with its lease id for the holder."""
    todo = await call.api.todos.get(call.principal, call.path["id"])
    return json_answer({"todo": whole(todo, lease=call.principal.holds(todo))})


async def retry(call: Call, _: Nothing) -> Answer:
    """Failed -> pending."""
    todo = await call.api.todos.retry(call.principal, call.path["id"], call.request_id)
    return json_answer({"todo": as_left(todo)})


async def cancel(call: Call, asked: CancelTodo) -> Answer:
    """Live -> failed, cancelled."""
    todo = await call.api.todos.cancel(call.principal, call.path["id"], asked.reason, call.request_id)
    return json_answer({"todo": as_left(todo)})


async def update(call: Call, asked: UpdateTodo) -> Answer:
    """Pending -> pending, changed where the request says so."""
    given = asked.model_fields_set
    change = TodoChange(
        title=asked.title if "title" in given else None,
        payload=asked.payload,
        payload_given="payload" in given,
        priority=asked.priority if "priority" in given else None,
        assignee=asked.assignee,
        assignee_given="assignee" in given,
        available_at=None if asked.available_at is None else read_time(asked.available_at, "available_at"),
        available_at_given="available_at" in given,
    )
    todo = await call.api.todos.update(call.principal, call.path["id"], change, call.request_id)
    return json_answer({"todo": as_left(todo)})


_TODO = record({"todo": named("Todo")})
_MADE = record({"todo": named("Todo"), "created": FLAG}, {"replayed": FLAG})
_ONE_OF_MANY = {"anyOf": [_MADE, named("Error")]}

ROUTES = (
    Route(
        "POST",
        "/v1/todos",
        NOUN,
        "Create a todo; a live one under the same idempotency_key is given instead.",
        create,
        {201: _MADE, 200: _MADE},
        body=CreateTodo,
        refusals=(404, 409),
        most=ONE,
        keyed=True,
    ),
    Route(
        "POST",
        "/v1/todos/batch",
        NOUN,
        f"Create up to {MAX_CREATE} todos in one transaction, each with its own result.",
        create_many,
        {200: record({"results": many(_ONE_OF_MANY)})},
        body=CreateTodos,
        refusals=(409,),
        most=MANY,
        keyed=True,
    ),
    Route(
        "GET",
        "/v1/todos",
        NOUN,
        "List todos, newest first, without payloads.",
        list_todos,
        {200: record({"todos": many(named("ListedTodo")), "next_cursor": maybe(TEXT)})},
        query=ListTodos,
        refusals=(404,),
    ),
    Route("GET", "/v1/todos/{id}", NOUN, "Get a whole todo with payload, result and history.", get, {200: _TODO}),
    Route(
        "PATCH",
        "/v1/todos/{id}",
        NOUN,
        "Change a pending todo; for its creator and admins.",
        update,
        {200: _TODO},
        body=UpdateTodo,
        refusals=(409,),
        most=ONE,
        keyed=True,
    ),
    Route(
        "POST",
        "/v1/todos/{id}/retry",
        NOUN,
        "Put a failed todo back with its attempts anew; for its creator and admins.",
        retry,
        {200: _TODO},
        body=Nothing,
        refusals=(409,),
        keyed=True,
    ),
    Route(
        "POST",
        "/v1/todos/{id}/cancel",
        NOUN,
        "Cancel a live todo; for its creator and admins.",
        cancel,
        {200: _TODO},
        body=CancelTodo,
        refusals=(409,),
        keyed=True,
    ),
)
