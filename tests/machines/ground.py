"""The ground under a state machine: one engine for all examples, emptied between them, and its rows read in one go."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import apsw
import psycopg

from postroom.daemon import Office, compose
from postroom.ids import Prefix, message_id
from postroom.store.postgres import PostgresEngine
from postroom.store.sqlite import SqliteEngine
from tests.offices import NoJitter

T = TypeVar("T")

COLUMNS = (
    "seq, id, queue, source, kind, title, event_id, idempotency_key, assignee, state, owner, lease_id, "
    "lease_expires_at, claim_key, attempt, max_attempts, priority, available_at, next_retry_at, reason, error, "
    "created_by, created_at, updated_at, claimed_at, completed_at, coalesce(octet_length(payload), 0), payload, result"
)
TODOS = f"select {COLUMNS} from todos order by seq"
ATTEMPTS = "select todo_id, owner, claimed_at, ended_at, outcome, note, lease_id from attempts"
EMPTY = ("todos", "attempts", "queues", "requests", "tokens")

Snapshot = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], int]


class CountedIds:
    """Ids that count up, in the shape of the real ones."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, prefix: Prefix) -> str:
        return f"{prefix.value}00000000-0000-7000-8000-{next(self._numbers):012x}"

    def message(self, at_ms: int) -> str:
        return message_id(at_ms, f"{next(self._numbers):08x}")


class Ground(Protocol):
    """What a state machine stands on."""

    office: Office
    halves_at_once: bool

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call of the office to its end."""
        ...

    def empty(self) -> None:
        """Make every table empty and the time now."""
        ...

    def move(self, ms: int) -> None:
        """Let time pass."""
        ...

    def look(self) -> Snapshot:
        """Every todo, every ended attempt, and the database's time."""
        ...


class _Ground:
    def __init__(self, engine: SqliteEngine | PostgresEngine) -> None:
        self.engine = engine
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self.office = compose(engine, ids=CountedIds(), jitter=NoJitter())
        self.run(engine.open())

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    def move(self, ms: int) -> None:
        self.engine.skew += ms

    def close(self) -> None:
        self.run(self.engine.close())
        self._runner.close()


class SqliteGround(_Ground):
    """SQLite that waits for no disk."""

    halves_at_once = False

    def __init__(self, engine: SqliteEngine) -> None:
        super().__init__(engine)
        self._engine = engine
        self._beside = apsw.Connection(str(engine.path))
        self._beside.set_busy_timeout(5000)

    def empty(self) -> None:
        self._beside.execute("begin immediate; " + "".join(f"delete from {name};" for name in EMPTY) + " commit")
        self._engine.skew = 0
        self._engine._last_now = 0

    def look(self) -> Snapshot:
        todos = self._beside.execute(TODOS).fetchall()
        attempts = self._beside.execute(ATTEMPTS).fetchall()
        return todos, attempts, self._engine._now()

    def close(self) -> None:
        self._beside.close()
        super().close()


class PostgresGround(_Ground):
    """PostgreSQL, read beside the engine by one round trip."""

    halves_at_once = True

    def __init__(self, engine: PostgresEngine) -> None:
        super().__init__(engine)
        self._engine = engine
        self._beside = psycopg.connect(engine._url, autocommit=True, options="-c lock_timeout=20000")
        self._look = (
            f"{TODOS}; {ATTEMPTS}; select cast(extract(epoch from statement_timestamp()) * 1000 as bigint)".encode()
        )

    def empty(self) -> None:
        self._beside.execute(f"truncate {', '.join(EMPTY)}".encode())
        self._engine.skew = 0

    def look(self) -> Snapshot:
        cursor = self._beside.execute(self._look)
        todos = cursor.fetchall()
        cursor.nextset()
        attempts = cursor.fetchall()
        cursor.nextset()
        (clock,) = cursor.fetchall()[0]
        return todos, attempts, clock + self._engine.skew

    def close(self) -> None:
        self._beside.close()
        super().close()
