"""The ground under the post's state machine: engines whose time stands still, emptied between examples, and read whole."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

import apsw
import psycopg

from postroom.delivery import Policy
from postroom.message import Delivery, Target
from postroom.office import Office, compose
from postroom.store.deliveries import delivery_of
from postroom.store.postgres import PostgresEngine
from postroom.store.sqlite import SqliteEngine
from postroom.store.targets import target_of
from tests.machines.ground import CountedIds
from tests.services.postings import Insertion, as_written

T = TypeVar("T")
START = 1_700_000_000_000
COURIERS = 3
EMPTY = ("deliveries", "messages", "targets", "mailboxes", "endpoints", "requests")
SHOWN = [field.name for field in fields(Delivery) if not field.name.startswith("deferred")]
DELIVERIES = f"select {', '.join(SHOWN)} from deliveries order by seq"
TARGETS = "select target_key, carrier, turn_delivery, turn_since, not_before, busy_reason, busy_since from targets"
PLACES = "select name, handoff_seq from mailboxes"
assert [field.name for field in fields(Target)][1:] == TARGETS.removeprefix("select target_key, ").split(" from")[
    0
].split(", ")


class PostGround(Protocol):
    """What the machine stands on: offices of several couriers over one store."""

    offices: list[Office]
    one_process: bool

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end."""
        ...

    def empty(self) -> None:
        """Make every table empty and the time START."""
        ...

    def move(self, ms: int) -> None:
        """Let time pass."""
        ...

    def put(self, made: Sequence[Insertion]) -> None:
        """Run insertions past every service."""
        ...

    def look(self) -> tuple[dict[str, Delivery], dict[str, Target], dict[str, int]]:
        """Every delivery, every target, and the last place of every mailbox."""
        ...


class _PostGround:
    def __init__(self, engine: SqliteEngine | PostgresEngine, policy: Policy) -> None:
        self.engine = engine
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        ids = CountedIds()
        self.offices = [compose(engine, ids=ids, policy=policy) for _ in range(COURIERS)]
        self.run(engine.open())

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    def move(self, ms: int) -> None:
        self.engine.skew += ms

    def close(self) -> None:
        self.run(self.engine.close())
        self._runner.close()


class SqlitePostGround(_PostGround):
    """SQLite that waits for no disk, on a clock that stands."""

    one_process = True

    def __init__(self, path: Path, policy: Policy) -> None:
        engine = SqliteEngine(path, lambda: 0, synchronous="off")
        super().__init__(engine, policy)
        self._beside = apsw.Connection(str(path))
        self._beside.set_busy_timeout(5000)

    def empty(self) -> None:
        self._beside.execute("begin immediate; " + "".join(f"delete from {name};" for name in EMPTY) + " commit")
        self.engine.skew = START

    def put(self, made: Sequence[Insertion]) -> None:
        with self._beside:
            for text, params in made:
                self._beside.execute(text, params)

    def look(self) -> tuple[dict[str, Delivery], dict[str, Target], dict[str, int]]:
        return _shown(*(self._beside.execute(text).fetchall() for text in (DELIVERIES, TARGETS, PLACES)))

    def close(self) -> None:
        self._beside.close()
        super().close()


class PostgresPostGround(_PostGround):
    """PostgreSQL whose statements take the time from the engine's skew alone."""

    one_process = False

    def __init__(self, url: str, policy: Policy) -> None:
        engine = PostgresEngine(url)
        engine._statements._fragments["now"] = "cast(:skew as bigint)"
        super().__init__(engine, policy)
        self._beside = psycopg.connect(url, autocommit=True, options="-c lock_timeout=20000")

    def empty(self) -> None:
        self._beside.execute(f"truncate {', '.join(EMPTY)}".encode())
        self.engine.skew = START

    def put(self, made: Sequence[Insertion]) -> None:
        with self._beside.transaction():
            for text, params in made:
                self._beside.execute(as_written(text).encode(), params)

    def look(self) -> tuple[dict[str, Delivery], dict[str, Target], dict[str, int]]:
        cursor = self._beside.execute(f"{DELIVERIES}; {TARGETS}; {PLACES}".encode())
        parts = [cursor.fetchall()]
        while cursor.nextset():
            parts.append(cursor.fetchall())
        return _shown(*parts)

    def close(self) -> None:
        self._beside.close()
        super().close()


def _shown(
    deliveries: Sequence[Sequence[Any]], targets: Sequence[Sequence[Any]], places: Sequence[Sequence[Any]]
) -> tuple[dict[str, Delivery], dict[str, Target], dict[str, int]]:
    return (
        {row[1]: delivery_of((*row, None, None)) for row in deliveries},
        {row[0]: target_of(row) for row in targets},
        {row[0]: row[1] for row in places},
    )
