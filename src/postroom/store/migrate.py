"""Migrations: numbered SQL files, forward only, each in a transaction, safe when several daemons start at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from postroom.errors import Misconfigured
from postroom.store.statements import Dialect

TABLE = (
    "create table if not exists schema_migrations "
    "(version integer primary key, name text not null, applied_at bigint not null)"
)

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    version: int
    name: str
    sql: str


@lru_cache(maxsize=2)
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """Every migration of a dialect, in order."""
    found = []
    for file in (files("postroom.store") / "migrations" / dialect.value).iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            found.append(Migration(int(match.group(1)), match.group(2), file.read_text("utf-8")))
    return tuple(sorted(found, key=lambda step: step.version))


def outstanding(dialect: Dialect, applied: int) -> tuple[Migration, ...]:
    """The migrations after version `applied`; raises Misconfigured when the database is newer than the program."""
    known = migrations(dialect)
    newest = known[-1].version
    if applied > newest:
        raise Misconfigured(
            f"the database has schema {applied}, this program knows schema {newest}: run a newer Postroom",
            field="database",
        )
    return tuple(step for step in known if step.version > applied)
