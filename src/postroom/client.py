"""The desk of a daemon: every verb of the queue over HTTP `/v1`, by loopback port or Unix socket."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx2

from postroom import wire
from postroom.address import find
from postroom.bodies import encode, given, header, names, query_of, words
from postroom.connection import Connection
from postroom.desk import UNSET, ClaimNext, OutcomeResult, Unset
from postroom.errors import Invalid, NotFound, PostroomError, Unavailable, from_dict
from postroom.following import follow
from postroom.happening import Happening, HappeningFilter
from postroom.ids import Prefix, check_id
from postroom.limits import MAX_JSON_BYTES, check_queue
from postroom.mail_client import ClientPost
from postroom.model import Created, Ended, NewTodo, OutcomeItem, Todo, TodoPage, TodoState
from postroom.text import check_json, result_json

MAX_BODY: Final = 4 * 1024 * 1024


def new_key() -> str:
    """A claim key of 96 random bits."""
    return secrets.token_urlsafe(12)


class Client:
    """A desk over a daemon. Use it as `async with`, or call `aclose`.

    `timeout` is how many seconds a call may take in all, besides the time it was asked to wait for work. A call whose
    repetition is harmless is repeated a few times within it when the connection broke or the daemon answered 503.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        socket: str | Path | None = None,
        timeout: float = 30.0,
        keys: Callable[[], str] = new_key,
        jitter: Callable[[], float] = random.random,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = find(url, token, socket, environ=os.environ)
        self._connection = Connection(self.address, timeout, jitter, transport)
        self._keys = keys

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; later calls are unavailable."""
        await self._connection.aclose()

    @property
    def post(self) -> ClientPost:
        """The verbs of the post, over the same connection."""
        return ClientPost(self._call)

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        query: Mapping[str, str] | None = None,
        key: str | None = None,
        again: bool = False,
        wait_s: float = 0.0,
    ) -> dict[str, Any]:
        content = body if body is None or isinstance(body, bytes) else encode(body)
        key = None if key is None else header(key)
        return await self._connection.call(method, path, content, query=query, key=key, again=again, wait_s=wait_s)

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
        """Nothing -> pending; a live todo under the same (queue, idempotency_key) is given instead, created False."""
        at = None if available_at is None else wire.datetime_ms(available_at, "available_at")
        new = NewTodo(queue, title, kind, payload, priority, assignee, idempotency_key, max_attempts, available_at=at)
        body = {**_new_body(new), **given(worker=worker)}
        if delay_s is not None:
            body["delay_s"] = delay_s
        again = request_id is not None or idempotency_key is not None
        return _created(await self._call("POST", "/v1/todos", body, key=request_id, again=again))

    async def create_many(
        self, todos: Sequence[NewTodo], *, worker: str | None = None, request_id: str | None = None
    ) -> list[Created | PostroomError]:
        """Create up to 1000 in one transaction, each with its own answer in the order asked."""
        again = request_id is not None or all(new.idempotency_key is not None for new in todos)
        body = {
            "todos": [_new_body(new, f"todos[{at}].payload") for at, new in enumerate(todos)],
            **given(worker=worker),
        }
        answer = await self._call("POST", "/v1/todos/batch", body, key=request_id, again=again)
        return [from_dict(item["error"]) if "error" in item else _created(item) for item in answer["results"]]

    async def get(self, id: str) -> Todo:
        """The whole todo with payload, result and history; NotFound when there is none for this principal."""
        return wire.todo_of((await self._call("GET", _todo_path(id), again=True))["todo"])

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
        query = query_of(queue=queue, state=state, assignee=assignee, cursor=cursor, limit=limit)
        answer = await self._call("GET", "/v1/todos", query=query, again=True)
        return TodoPage(tuple(map(wire.todo_of, answer["todos"])), answer["next_cursor"])

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
        """Claimable -> claimed, up to `limit` in claim order; waits up to wait_s (50 s at most) for one, then is empty.

        Without a claim_key the call gets one of its own, so that a broken connection strands nothing.
        """
        body = given(
            queues=names(queues),
            ttl_s=ttl_s,
            limit=limit,
            wait_s=wait_s or None,
            claim_key=self._keys() if claim_key is None else claim_key,
            worker=worker,
        )
        wait = min(max(wait_s, 0.0), 60.0)
        answer = await self._call("POST", "/v1/todos/claim", body, again=True, wait_s=wait)
        return list(map(wire.todo_of, answer["todos"]))

    async def claim(
        self, id: str, *, ttl_s: float | None = None, claim_key: str | None = None, worker: str | None = None
    ) -> Todo:
        """This todo, claimable -> claimed; Conflict telling its state when it is not."""
        key = self._keys() if claim_key is None else claim_key
        body = given(ttl_s=ttl_s, claim_key=key, worker=worker)
        return wire.todo_of((await self._call("POST", _todo_path(id, "claim"), body, again=True))["todo"])

    async def heartbeat(self, id: str, lease_id: str | None = None, *, ttl_s: float | None = None) -> Todo:
        """Held -> its lease never shortened; Conflict when not held."""
        body = given(lease_id=lease_id, ttl_s=ttl_s)
        return wire.todo_of((await self._call("POST", _todo_path(id, "heartbeat"), body, again=True))["todo"])

    async def complete(self, id: str, lease_id: str | None = None, *, result: Any = None) -> Ended:
        """Held -> done; the same lease id again gives the same todo, replayed."""
        return await self._end(id, "complete", lease_id, given(lease_id=lease_id), result)

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
        body = given(lease_id=lease_id, error=words(error), retry=None if retry else False, retry_in_s=retry_in_s)
        return await self._end(id, "fail", lease_id, body, result)

    async def release(
        self, id: str, lease_id: str | None = None, *, note: str | None = None, delay_s: float | None = None
    ) -> Ended:
        """Held -> pending at once with the attempt given back; replays by lease id."""
        body = given(lease_id=lease_id, note=words(note), delay_s=delay_s)
        return await self._end(id, "release", lease_id, body, None)

    async def _end(self, id: str, verb: str, lease_id: str | None, body: dict[str, Any], result: Any) -> Ended:
        content = _with_result(body, result).encode()
        answer = await self._call("POST", _todo_path(id, verb), content, again=lease_id is not None)
        return Ended(wire.todo_of(answer["todo"]), answer["replayed"])

    async def outcomes(
        self, items: Sequence[OutcomeItem], claim: ClaimNext | None = None
    ) -> tuple[list[OutcomeResult], list[Todo]]:
        """End up to 200 attempts together, each with its own result, and claim besides; neither half stops the other.

        What is too much for one body goes in several, the claim with the last.
        """
        again = all(item.lease_id is not None for item in items)
        bodies = [f'{{"items":[{batch}]' for batch in _batches(map(_item_text, items))]
        results: list[OutcomeResult] = []
        for body in bodies if claim is None else bodies[:-1]:
            answer = await self._call("POST", "/v1/todos/outcomes", f"{body}}}".encode(), again=again)
            results += map(_result, answer["results"])
        if claim is None:
            return results, []
        fields = given(queues=names(claim.queues), ttl_s=claim.ttl_s, limit=claim.limit, worker=claim.worker)
        asked = f'{bodies[-1]},"claim":{encode(fields).decode()}}}'.encode()
        try:
            answer = await self._call("POST", "/v1/todos/outcomes", asked)
        except Unavailable:
            # The endings may be said again; a claim whose answer was lost may not, it would strand the first.
            if not again or not items:
                raise
            answer = await self._call("POST", "/v1/todos/outcomes", f"{bodies[-1]}}}".encode(), again=True)
        results += map(_result, answer["results"])
        return results, list(map(wire.todo_of, answer.get("todos", ())))

    async def retry(self, id: str, *, request_id: str | None = None) -> Todo:
        """Failed -> pending with attempts anew; for admins and the todo's creator."""
        return await self._change("POST", _todo_path(id, "retry"), {}, request_id)

    async def cancel(self, id: str, *, reason: str | None = None, request_id: str | None = None) -> Todo:
        """Live -> failed, cancelled; for admins and the todo's creator."""
        return await self._change("POST", _todo_path(id, "cancel"), given(reason=words(reason)), request_id)

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
        body = given(title=title, priority=priority)
        if not isinstance(payload, Unset):
            check_json(payload, "payload")
            body["payload"] = payload
        if not isinstance(assignee, Unset):
            body["assignee"] = assignee
        if not isinstance(available_at, Unset):
            at = None if available_at is None else wire.datetime_ms(available_at, "available_at")
            body["available_at"] = wire.show_time(at)
        return await self._change("PATCH", _todo_path(id), body, request_id)

    async def _change(self, method: str, path: str, body: dict[str, Any], request_id: str | None) -> Todo:
        answer = await self._call(method, path, body, key=request_id, again=request_id is not None)
        return wire.todo_of(answer["todo"])

    async def queues(self) -> dict[str, Any]:
        """The queues with settings and depths, as `GET /v1/queues` answers."""
        return await self._call("GET", "/v1/queues", again=True)

    async def queue(self, name: str) -> dict[str, Any]:
        """A queue with settings and depths, used or not; NotFound for who may not use it."""
        answer = await self._call("GET", f"/v1/queues/{quote(check_queue(name, 'name'), safe='')}", again=True)
        return dict(answer["queue"])

    async def put_queue(self, name: str, **settings: Any) -> dict[str, Any]:
        """Set a queue's settings by their wire names (`paused`, `lease_s`, ...); repeating it changes nothing more."""
        path = f"/v1/queues/{quote(check_queue(name, 'name'), safe='')}"
        return await self._call("PUT", path, settings, again=True)

    async def event(self, id: str) -> dict[str, Any]:
        """An event with its headers, body and todos, as `GET /v1/events/ID` answers; NotFound when there is none."""
        return await self._call("GET", f"/v1/events/{check_id(id, Prefix.EVENT, 'event')}", again=True)

    def stream(self, wanted: HappeningFilter | None = None) -> AsyncGenerator[Happening, None]:
        """What happens from now on, for ever: `lagged` comes first, and after each break, so that the reader looks.

        A connection that breaks, or a daemon that is away, is tried anew after a pause. Raises what the daemon refuses.
        """
        return follow(self._connection, wanted or HappeningFilter())

    async def trace(self, id: str) -> dict[str, Any]:
        """The story of an event, todo or message, as `GET /v1/trace/ID` answers; NotFound when there is none."""
        if not id.strip("."):
            raise NotFound(f"nothing is named {id!r}", field="id")
        return await self._call("GET", f"/v1/trace/{quote(id, safe='', errors='replace')}", again=True)


# From arguments to bodies.


def _todo_path(id: str, verb: str = "") -> str:
    path = f"/v1/todos/{check_id(id, Prefix.TODO, 'todo')}"
    return f"{path}/{verb}" if verb else path


def _new_body(new: NewTodo, field: str = "payload") -> dict[str, Any]:
    if new.event_id is not None:
        raise Invalid("event_id is set by intake alone", field="event_id")
    check_json(new.payload, field)
    return {
        "queue": new.queue,
        "title": new.title,
        **given(
            kind=new.kind or None,
            payload=new.payload,
            priority=new.priority or None,
            assignee=new.assignee,
            idempotency_key=new.idempotency_key,
            max_attempts=new.max_attempts,
            delay_s=None if new.delay_ms is None else new.delay_ms / 1000,
            available_at=wire.show_time(new.available_at),
        ),
    }


def _with_result(body: Mapping[str, Any], result: Any) -> str:
    """The JSON text of a body with its result cleaned and cut: an ending is never refused for what it says."""
    text = encode(body).decode()
    if result is None:
        return text
    comma = "," if body else ""
    return f'{text[:-1]}{comma}"result":{result_json(result, MAX_JSON_BYTES)}}}'


def _item_text(item: OutcomeItem) -> str:
    body: dict[str, Any] = {"id": item.id, "verb": str(item.verb)}
    if item.lease_id is not None:
        body["lease_id"] = item.lease_id
    if item.error is not None:
        body["error"] = words(item.error)
    if not item.retry:
        body["retry"] = False
    if item.retry_in_ms is not None:
        body["retry_in_s"] = item.retry_in_ms / 1000
    if item.note is not None:
        body["note"] = words(item.note)
    if item.delay_ms is not None:
        body["delay_s"] = item.delay_ms / 1000
    return _with_result(body, item.result)


def _batches(texts: Iterable[str]) -> Iterable[str]:
    batch: list[str] = []
    size = 0
    for text in texts:
        length = len(text) if text.isascii() else len(text.encode())
        if batch and size + length > MAX_BODY:
            yield ",".join(batch)
            batch, size = [], 0
        batch.append(text)
        size += length
    yield ",".join(batch)


# From answers to values.


def _created(answer: Mapping[str, Any]) -> Created:
    return Created(wire.todo_of(answer["todo"]), answer["created"], answer.get("replayed", False))


def _result(shown: Mapping[str, Any]) -> OutcomeResult:
    if "error" in shown:
        return OutcomeResult(shown["id"], error=from_dict(shown["error"]))
    return OutcomeResult(shown["id"], TodoState(shown["state"]), shown.get("replayed", False))
