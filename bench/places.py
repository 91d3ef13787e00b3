"""Where the measurements run: temporary SQLite files, and databases of a durable PostgreSQL server of our own."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psycopg
from tests.postgres import LASTING, PostgresServer


class Place(Protocol):
    """One engine's place: `fresh` gives the URL of an empty database."""

    engine: str

    async def fresh(self) -> str:
        """The URL of a new, empty database."""
        ...


class SqlitePlace:
    """Files in one temporary folder."""

    engine = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    async def fresh(self) -> str:
        """The URL of a file that is not there yet."""
        return f"sqlite:///{self._folder / f'{next(self._numbers)}.db'}"


class PostgresPlace:
    """Databases on one server with fsync and synchronous_commit on."""

    engine = "postgres"

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()

    async def fresh(self) -> str:
        """The URL of a new database."""
        name = f"bench_{next(self._numbers)}"
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            await connection.execute(f"create database {name}".encode())
        return self._url.replace("/postroom?", f"/{name}?")


@contextmanager
def sqlite_place() -> Iterator[SqlitePlace]:
    """A folder for SQLite files, removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="postroom-bench-"))
    try:
        yield SqlitePlace(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_place() -> Iterator[PostgresPlace]:
    """A server of our own, with settings as a small production server has them."""
    server = PostgresServer({**LASTING, "shared_buffers": "512MB", "max_wal_size": "4GB"})
    try:
        yield PostgresPlace(server.url)
    finally:
        server.remove()
