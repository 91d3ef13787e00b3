"""The raw floor: the product's own named statements through its drivers, with constants bound and no service code."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import apsw
import psycopg

from postroom.ids import Prefix, RandomIds
from postroom.store.claims import SPARE
from postroom.store.migrate import TABLE, migrations
from postroom.store.postgres import SESSION
from postroom.store.statements import Dialect, Statements

QUEUE = "bench"
PAYLOAD = json.dumps({"repository": "octo/repo", "number": 7, "title": "A title of ordinary length"})


def now_ms() -> int:
    """The host's clock in ms UTC."""
    return time.time_ns() // 1_000_000


def new_todo(ids: RandomIds, queue: str = QUEUE) -> dict[str, Any]:
    """The parameters of a plain todo."""
    return {
        "id": ids.new(Prefix.TODO),
        "queue": queue,
        "source": "bench",
        "kind": "",
        "title": "A title of ordinary length",
        "event_id": None,
        "idempotency_key": None,
        "assignee": None,
        "max_attempts": None,
        "priority": 0,
        "available_at": None,
        "delay": None,
        "created_by": "bench",
        "payload": PAYLOAD,
    }


class Floor(Protocol):
    """One engine's floor: each verb gives how many rows a second it reached."""

    async def create_single(self, count: int) -> float:
        """One todo a commit."""
        ...

    async def create_batch(self, count: int, size: int) -> float:
        """`size` todos a commit."""
        ...

    async def drain_single(self, count: int) -> float:
        """Claim one and complete it, each in a commit of its own."""
        ...

    async def drain_batched(self, count: int, size: int, queues: Sequence[str] = (QUEUE,)) -> float:
        """Claim `size` and complete them together."""
        ...

    async def claim_rate(self, count: int, size: int, queues: Sequence[str] = (QUEUE,)) -> float:
        """Claims alone, `size` a commit."""
        ...

    async def close(self) -> None:
        """Let go of the database."""
        ...


class SqliteFloor:
    """apsw on one connection, WAL, synchronous full."""

    def __init__(self, path: Path) -> None:
        self._ids = RandomIds()
        self._texts = Statements(Dialect.SQLITE)
        fresh = not path.exists()
        self.connection = apsw.Connection(str(path), statementcachesize=200)
        for pragma in ("journal_mode = wal", "synchronous = full", "cache_size = -16384", "temp_store = memory"):
            self.connection.execute(f"pragma {pragma}").fetchall()
        if fresh:
            self.connection.execute(TABLE).fetchall()
            for step in migrations(Dialect.SQLITE):
                self.connection.execute(step.sql).fetchall()

    def run(self, name: str, given: Sequence[str] = (), /, **params: Any) -> list[Any]:
        """Every step of a named statement."""
        params["now"] = now_ms()
        rows: list[Any] = []
        for step in self._texts.get(name, frozenset(given)).steps:
            rows = self.connection.execute(step, params).fetchall()
        return rows

    def _begin(self) -> None:
        self.connection.execute("begin immediate").fetchall()

    def _commit(self) -> None:
        self.connection.execute("commit").fetchall()

    async def create_single(self, count: int) -> float:
        """One todo a commit."""
        todos = [new_todo(self._ids) for _ in range(count)]
        started = time.perf_counter()
        for todo in todos:
            self._begin()
            self.run("todo_insert", **todo)
            self._commit()
        return count / (time.perf_counter() - started)

    async def create_batch(self, count: int, size: int) -> float:
        """`size` todos a commit."""
        todos = [new_todo(self._ids) for _ in range(count)]
        started = time.perf_counter()
        for batch in _batched(todos, size):
            self._begin()
            for todo in batch:
                self.run("todo_insert", **todo)
            self._commit()
        return count / (time.perf_counter() - started)

    def _claim(self, size: int, queues: Sequence[str]) -> list[Any]:
        self.run("claim_barriers", queues=json.dumps(list(queues)))
        found: list[Any] = []
        for queue in queues:
            found += self.run(
                "claim_candidates",
                queue=queue,
                owner="bench",
                name="bench",
                called=None,
                window=size,
                due_window=size + SPARE,
            )
        found.sort(key=lambda row: (-row[2], row[3], row[4]))
        if not found:
            return []
        return self.run(
            "claim_take",
            ids=json.dumps([row[0] for row in found[:size]]),
            owner="bench",
            new_lease=self._ids.new(Prefix.LEASE),
            claim_key=None,
            ttl=None,
        )

    async def drain_single(self, count: int) -> float:
        """Claim one and complete it, each in a commit of its own."""
        started = time.perf_counter()
        for _ in range(count):
            self._begin()
            row = self._claim(1, [QUEUE])[0]
            self._commit()
            self._begin()
            self.run("todo_complete", ("lease_id",), id=row[1], owner="bench", lease_id=row[11], result="1")
            self._commit()
        return count / (time.perf_counter() - started)

    async def drain_batched(self, count: int, size: int, queues: Sequence[str] = (QUEUE,)) -> float:
        """Claim `size`, then end them all and claim the next in one commit."""
        done = 0
        rows: list[Any] = []
        started = time.perf_counter()
        while done < count:
            self._begin()
            if rows:
                items = json.dumps([[row[1], row[11], "1"] for row in rows])
                self.run("todo_complete_many", items=items, owner="bench")
            done += len(rows)
            rows = self._claim(size, queues)
            self._commit()
            if not rows:
                break
        return done / (time.perf_counter() - started)

    async def claim_rate(self, count: int, size: int, queues: Sequence[str] = (QUEUE,)) -> float:
        """Claims alone, `size` a commit."""
        done = 0
        started = time.perf_counter()
        while done < count:
            self._begin()
            done += len(self._claim(size, queues))
            self._commit()
        return done / (time.perf_counter() - started)

    async def close(self) -> None:
        """Let go of the file."""
        self.connection.close()


def _batched(items: list[Any], size: int) -> list[list[Any]]:
    return [items[n : n + size] for n in range(0, len(items), size)]


class PostgresFloor:
    """psycopg, async, autocommit; `width` connections work side by side in the drains."""

    def __init__(self, url: str) -> None:
        self._ids = RandomIds()
        self._url = url
        self._texts = Statements(Dialect.POSTGRES)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, prepare_threshold=2, options=SESSION, cursor_factory=psycopg.AsyncRawCursor
        )

    def _text(self, name: str, *given: str) -> tuple[bytes, tuple[str, ...]]:
        """The text of a named statement and its parameters in the order of their numbers."""
        statement = self._texts.get(name, frozenset(given))
        return statement.steps[0].encode(), statement.params

    async def create_single(self, count: int) -> float:
        """One todo a commit."""
        text, names = self._text("todo_insert")
        rows = [new_todo(self._ids) | {"skew": 0} for _ in range(count)]
        bound = [[row[name] for name in names] for row in rows]
        async with await self._connect() as connection:
            started = time.perf_counter()
            for values in bound:
                await (await connection.execute(text, values)).fetchall()
            return count / (time.perf_counter() - started)

    async def create_batch(self, count: int, size: int) -> float:
        """`size` todos a statement."""
        text, names = self._text("todo_insert_many")
        fixed = {"created_by": "bench", "skew": 0}
        bound = []
        for _ in range(0, count, size):
            items = [new_todo(self._ids) for _ in range(size)]
            values = fixed | {"items": json.dumps(items)}
            bound.append([values[name] for name in names])
        async with await self._connect() as connection:
            started = time.perf_counter()
            for batch in bound:
                await (await connection.execute(text, batch)).fetchall()
            return count / (time.perf_counter() - started)

    def _ask(self, size: int, queues: Sequence[str], names: Sequence[str]) -> list[Any]:
        values = {
            "queues": list(queues),
            "rooms": [None] * len(queues),
            "capped": False,
            "owner": "bench",
            "name": "bench",
            "called": None,
            "ttl": None,
            "limit": size,
            "window": size + SPARE,
            "new_lease": self._ids.new(Prefix.LEASE),
            "claim_key": None,
            "skew": 0,
        }
        return [values[name] for name in names]

    async def drain_single(self, count: int) -> float:
        """Claim one and complete it, each a statement and a commit of its own."""
        claim, asked = self._text("todo_claim")
        complete, held = self._text("todo_complete", "lease_id")
        async with await self._connect() as connection:
            started = time.perf_counter()
            for _ in range(count):
                (row,) = await (await connection.execute(claim, self._ask(1, [QUEUE], asked))).fetchall()
                values = {"id": row[3], "owner": "bench", "lease_id": row[13], "result": "1", "skew": 0}
                await (await connection.execute(complete, [values[name] for name in held])).fetchall()
            return count / (time.perf_counter() - started)

    async def drain_batched(self, count: int, size: int, queues: Sequence[str] = (QUEUE,), width: int = 2) -> float:
        """Claim `size`, complete them in one statement, on `width` connections side by side."""
        claim, asked = self._text("todo_claim")
        end, ended = self._text("todo_complete_many")
        left, done = [count], [0]

        async def one(connection: psycopg.AsyncConnection[Any]) -> None:
            while left[0] > 0:
                left[0] -= size
                rows = await (await connection.execute(claim, self._ask(size, queues, asked))).fetchall()
                rows = [row for row in rows if row[3] is not None]
                if not rows:
                    return
                items = json.dumps([{"id": row[3], "lease_id": row[13], "result": "1"} for row in rows])
                values = {"owner": "bench", "items": items, "skew": 0}
                done[0] += len(await (await connection.execute(end, [values[name] for name in ended])).fetchall())

        connections = [await self._connect() for _ in range(width)]
        started = time.perf_counter()
        await asyncio.gather(*(one(connection) for connection in connections))
        rate = done[0] / (time.perf_counter() - started)
        for connection in connections:
            await connection.close()
        return rate

    async def claim_rate(self, count: int, size: int, queues: Sequence[str] = (QUEUE,)) -> float:
        """Claims alone, `size` a statement."""
        claim, asked = self._text("todo_claim")
        done = 0
        async with await self._connect() as connection:
            started = time.perf_counter()
            while done < count:
                rows = await (await connection.execute(claim, self._ask(size, queues, asked))).fetchall()
                done += sum(1 for row in rows if row[3] is not None)
            return done / (time.perf_counter() - started)

    async def close(self) -> None:
        """Nothing is held between the measurements."""
