"""An office over a test's store: every service, a few principals, time that is moved, and the rows as they are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import apsw
import psycopg

from postroom.daemon import Office, compose
from postroom.model import ClaimRequest, NewTodo, OutcomeItem, Principal, Role, Todo, Verb
from postroom.store.sqlite import SqliteEngine
from tests.conftest import Store

ADMIN = Principal("root", Role.ADMIN)
ANN = Principal("ann")
BOB = Principal("bob")
SECOND = 1000


class NoJitter(random.Random):
    """Randomness that is always nothing, so that a backoff is exactly what was asked for."""

    def random(self) -> float:
        return 0.0


class Bench:
    """An office with the words that tests use most; `rows` reads and writes the tables past every guard."""

    def __init__(self, store: Store, office: Office | None = None) -> None:
        self.store = store
        self.office = office or compose(store, jitter=NoJitter())

    def move(self, ms: int) -> None:
        """Let this much time pass."""
        self.store.skew += ms

    async def create(self, queue: str = "inbox", title: str = "work", by: Principal = ADMIN, **more: Any) -> Todo:
        """A new todo."""
        created = await self.office.todos.create(by, NewTodo(queue, title, **more))
        assert created.created
        return created.todo

    async def claim(
        self, who: Principal = ANN, *queues: str, limit: int = 1, worker: str | None = None, **more: Any
    ) -> list[Todo]:
        """Claim what there is now, of `inbox` when no queue is named."""
        request = ClaimRequest(queues or ("inbox",), limit=limit, worker=worker, **more)
        return list(await self.office.claims.claim_next(who, request))

    async def claimed(self, who: Principal = ANN, queue: str = "inbox", **more: Any) -> Todo:
        """A new todo that `who` has claimed."""
        todo = await self.create(queue, **more)
        return await self.office.claims.claim(who, todo.id, None, None, None)

    async def fail(self, who: Principal, todo: Todo, **more: Any) -> Todo:
        """End an attempt as failed."""
        item = OutcomeItem(todo.id, Verb.FAIL, todo.lease_id, **more)
        return (await self.office.endings.end(who, item)).todo

    async def release(self, who: Principal, todo: Todo, **more: Any) -> Todo:
        """Give an attempt back."""
        item = OutcomeItem(todo.id, Verb.RELEASE, todo.lease_id, **more)
        return (await self.office.endings.end(who, item)).todo

    async def complete(self, who: Principal, todo: Todo, result: Any = None) -> Todo:
        """End an attempt as done."""
        return (await self.office.endings.complete(who, todo.id, todo.lease_id, result)).todo

    async def get(self, todo: Todo | str) -> Todo:
        """The whole todo as it is now."""
        return await self.office.todos.get(ADMIN, todo if isinstance(todo, str) else todo.id)

    async def rows(self, text: str, *params: object) -> list[tuple[Any, ...]]:
        """Run SQL on a connection beside the engine's own; parameters are written `?`."""
        if isinstance(self.store, SqliteEngine):
            connection = apsw.Connection(str(self.store.path))
            connection.set_busy_timeout(5000)
            try:
                return connection.execute(text, params).fetchall()
            finally:
                connection.close()
        async with await psycopg.AsyncConnection.connect(self.store._url, autocommit=True) as there:
            cursor = await there.execute(text.replace("%", "%%").replace("?", "%s").encode(), params)
            return await cursor.fetchall() if cursor.description else []


async def gather(*calls: Any) -> list[Any]:
    """Run calls at the same time; exceptions are given among the answers."""
    return list(await asyncio.gather(*calls, return_exceptions=True))


def titles(todos: Sequence[Todo]) -> list[str]:
    """The titles of todos, in order."""
    return [todo.title for todo in todos]
