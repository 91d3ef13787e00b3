"""Migrations: from nothing, by several at once, never past a newer schema; and a schema that repeats the lifecycle."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from postroom.errors import Misconfigured
from postroom.store.migrate import TABLE, migrations, outstanding
from postroom.store.postgres import PostgresEngine
from postroom.store.sqlite import SqliteEngine
from postroom.store.statements import Dialect
from tests.conftest import Store
from tests.offices import Bench
from tests.postgres import Databases
from tests.processes import Processes, wait_until


@pytest.fixture
def bare_url(databases: Databases) -> Iterator[str]:
    """A PostgreSQL database without any schema."""
    url = databases.create_bare()
    yield url
    databases.drop(url)


def _schema_of_postgres(url: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    with psycopg.connect(url, autocommit=True) as connection:
        for query in (
            "select table_name, column_name, data_type, is_nullable, column_default from information_schema.columns "
            "where table_schema = 'public'",
            "select indexname, indexdef from pg_indexes where schemaname = 'public'",
            "select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint "
            "where connamespace = 'public'::regnamespace",
            "select relname, reloptions::text from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'",
        ):
            found += sorted(connection.execute(query.encode()).fetchall(), key=str)
    return found


def _schema_of_sqlite(path: Path) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(path))
    return sorted(connection.execute("select type, name, tbl_name, sql from sqlite_schema").fetchall(), key=str)


async def _step_by_step_postgres(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE.encode())
        first = migrations(Dialect.POSTGRES)[0]
        connection.execute(first.sql.encode())
        connection.execute("insert into schema_migrations values (%s, %s, 0)", (first.version, first.name))


async def test_a_fresh_schema_equals_a_migrated_one_on_postgres(databases: Databases, bare_url: str) -> None:
    # S19
    fresh = databases.create_bare()
    engine = PostgresEngine(fresh)
    await engine.open()
    await engine.close()
    await _step_by_step_postgres(bare_url)
    engine = PostgresEngine(bare_url)
    await engine.open()
    await engine.close()
    assert _schema_of_postgres(fresh) == _schema_of_postgres(bare_url)
    databases.drop(fresh)


async def test_a_fresh_schema_equals_a_migrated_one_on_sqlite(tmp_path: Path, clock: Callable[[], int]) -> None:
    # S19
    old = apsw.Connection(str(tmp_path / "old.db"))
    first = migrations(Dialect.SQLITE)[0]
    old.execute(TABLE)
    old.execute(first.sql)
    old.execute("insert into schema_migrations values (?, ?, 0)", (first.version, first.name))
    old.close()
    for name in ("fresh.db", "old.db"):
        engine = SqliteEngine(tmp_path / name, clock)
        await engine.open()
        await engine.close()
    assert _schema_of_sqlite(tmp_path / "fresh.db") == _schema_of_sqlite(tmp_path / "old.db")


async def test_several_daemons_may_start_at_once_on_nothing(bare_url: str) -> None:
    # S19 S20
    engines = [PostgresEngine(bare_url) for _ in range(8)]
    await asyncio.gather(*[engine.open() for engine in engines])
    made = await Bench(engines[3]).create()
    assert (await Bench(engines[7]).get(made)) == made
    rows = await Bench(engines[0]).rows("select version from schema_migrations order by version")
    assert [row[0] for row in rows] == [step.version for step in migrations(Dialect.POSTGRES)]
    await asyncio.gather(*[engine.close() for engine in engines])


async def test_opening_again_changes_nothing(new_engine: Callable[[], Store]) -> None:
    for _ in range(2):
        engine = new_engine()
        await engine.open()
        rows = await Bench(engine).rows("select count(*) from schema_migrations")
        assert rows == [(len(migrations(engine.dialect)),)]
        await engine.close()


async def test_a_newer_schema_is_refused_naming_both(new_engine: Callable[[], Store]) -> None:
    engine = new_engine()
    await engine.open()
    known = migrations(engine.dialect)[-1].version
    await Bench(engine).rows("insert into schema_migrations (version, name, applied_at) values (9999, 'future', 0)")
    await engine.close()
    with pytest.raises(Misconfigured) as caught:
        await new_engine().open()
    assert "9999" in caught.value.message
    assert str(known) in caught.value.message
    again = new_engine()
    with pytest.raises(Misconfigured):
        await again.open()


async def test_a_migration_that_breaks_leaves_nothing_behind(
    tmp_path: Path, clock: Callable[[], int], monkeypatch: pytest.MonkeyPatch, bare_url: str
) -> None:
    from postroom.store import migrate, postgres, sqlite

    def broken(dialect: Dialect, applied: int) -> tuple[migrate.Migration, ...]:
        return (
            *outstanding(dialect, applied),
            migrate.Migration(9, "broken", "create table half (n integer); nonsense"),
        )

    for module in (sqlite, postgres):
        monkeypatch.setattr(module, "outstanding", broken)
    engine = SqliteEngine(tmp_path / "x.db", clock)
    with pytest.raises(Exception, match="nonsense"):
        await engine.open()
    with pytest.raises(psycopg.Error):
        await PostgresEngine(bare_url).open()
    assert _schema_of_sqlite(tmp_path / "x.db") == []
    assert _schema_of_postgres(bare_url) == []
    monkeypatch.undo()
    again = SqliteEngine(tmp_path / "x.db", clock)
    await again.open()
    await again.close()


def test_migrations_are_numbered_without_gaps_and_alike() -> None:
    numbers = [[(step.version, step.name) for step in migrations(dialect)] for dialect in Dialect]
    assert numbers[0] == numbers[1]
    assert [version for version, _ in numbers[0]] == list(range(1, len(numbers[0]) + 1))


def test_both_schemas_have_the_same_tables_columns_and_indexes() -> None:
    """The two texts differ in their types alone."""

    def bare(dialect: Dialect) -> list[str]:
        text = "\n".join(step.sql for step in migrations(dialect))
        text = re.sub(r"--.*", "", text)
        text = re.sub(r"alter table \w+ set \([^;]*\);", "", text)
        text = re.sub(
            r"bigint generated by default as identity primary key|integer primary key autoincrement", "SEQ", text
        )
        text = re.sub(r"\b(bigint|integer|boolean|bytea|blob)\b", "T", text)
        text = (
            text.replace("\n) strict;", "\n);")
            .replace("default false", "default 0")
            .replace("default true", "default 1")
        )
        text = re.sub(r" check \(\w+ in \(0, 1\)\)", "", text)
        for holder in ("split_part(owner, '/', 1)", "substr(owner, 1, instr(owner || '/', '/') - 1)"):
            text = text.replace(holder, "HOLDER")
        # What a trigger does is the tests' of who is told of ended work.
        text = re.sub(r"create function .*?\$\$;", "", text, flags=re.DOTALL)
        text = re.sub(r"create trigger .*?(\nend;|execute function \w+\(\);)", "", text, flags=re.DOTALL)
        return [line.strip().rstrip(",") for line in text.splitlines() if line.strip()]

    assert bare(Dialect.SQLITE) == bare(Dialect.POSTGRES)


# One SQLite file, one process.

HOLD = """
import asyncio, sys, time
from pathlib import Path
from postroom.store.sqlite import SqliteEngine
async def main():
    engine = SqliteEngine(Path(sys.argv[1]), lambda: time.time_ns() // 1_000_000)
    await engine.open()
    print("open", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_a_second_process_on_one_file_is_refused_naming_the_first(
    tmp_path: Path, clock: Callable[[], int], processes: Processes
) -> None:
    path = tmp_path / "postroom.db"
    holder = processes.start(sys.executable, "-c", HOLD, str(path))
    wait_until(lambda: "open" in processes.output(holder), "the first process has the file")
    (tmp_path / "link.db").symlink_to(path)
    for name in (path, tmp_path / "link.db"):
        with pytest.raises(Misconfigured) as caught:
            await SqliteEngine(name, clock).open()
        assert caught.value.details["pid"] == str(holder.pid)
        assert str(holder.pid) in caught.value.message
    holder.kill()
    holder.wait(10)
    engine = SqliteEngine(path, clock)
    await engine.open()
    await Bench(engine).create()
    with pytest.raises(Misconfigured):
        await SqliteEngine(path, clock).open()
    await engine.close()


async def test_a_file_that_is_no_database_is_a_wrong_setting(tmp_path: Path, clock: Callable[[], int]) -> None:
    (tmp_path / "text.db").write_text("this is some text and no database at all, long enough for a header\n" * 50)
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "text.db", tmp_path / "file" / "x.db", tmp_path):
        with pytest.raises(Misconfigured):
            await SqliteEngine(path, clock).open()


# The CHECKs repeat the lifecycle.

ILLEGAL = [
    "state = 'unknown'",
    "state = 'claimed'",
    "state = 'claimed', owner = 'a', lease_id = 'l', claimed_at = 1",
    "state = 'claimed', lease_expires_at = 1, lease_id = 'l', claimed_at = 1",
    "state = 'claimed', lease_expires_at = 1, owner = 'a', claimed_at = 1",
    "lease_expires_at = 1",
    "state = 'done'",
    "state = 'done', completed_at = 1",
    "state = 'failed'",
    "state = 'failed', completed_at = 1",
    "state = 'failed', reason = 'refused'",
    "state = 'failed', reason = 'refused', completed_at = 1, next_retry_at = 1",
    "state = 'failed', reason = 'bored', completed_at = 1",
    "state = 'failed', next_retry_at = 1, completed_at = 1",
    "state = 'failed', next_retry_at = 1, available_at = 1",
    "next_retry_at = 1",
    "reason = 'refused'",
    "completed_at = 1",
    "claim_key = 'c'",
    "attempt = -1",
    "max_attempts = 0",
    "max_attempts = 101",
    "priority = 101",
    "priority = -101",
]


async def test_no_statement_can_break_the_lifecycle_unseen(store: Store) -> None:
    # S1 S13
    bench = Bench(store)
    await bench.create()
    (before,) = await bench.rows("select * from todos")
    for change in ILLEGAL:
        with pytest.raises((apsw.ConstraintError, psycopg.errors.CheckViolation)):
            await bench.rows(f"update todos set {change}")
        assert await bench.rows("select * from todos") == [before], change


async def test_a_key_is_unique_among_live_todos_alone(store: Store) -> None:
    # S2 S14
    bench = Bench(store)
    await bench.create(idempotency_key="k")
    with pytest.raises((apsw.ConstraintError, psycopg.errors.UniqueViolation)):
        await bench.rows(
            "insert into todos (id, queue, source, title, created_by, created_at, updated_at, idempotency_key) "
            "values ('x', 'inbox', 's', 't', 'c', 1, 1, 'k')"
        )
