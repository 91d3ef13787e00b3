"""SQLite: one file, one writer whose waiting operations commit together, readers with their own connections.

Operations that were handed over in one turn of the event loop, or while a commit was under way, form a group: each in
its own savepoint, one commit for all, and no answer before it. While commits are quick the loop commits by itself,
which spares a thread hop of about the same length; slow disks, locked files and heavy operations go to a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw

from postroom.errors import Misconfigured, PostroomError, Unavailable
from postroom.store.engine import Duplicate, Operation, Row, T
from postroom.store.entry import Entry, drive, unavailable
from postroom.store.lock import database_lock
from postroom.store.migrate import TABLE, outstanding
from postroom.store.statements import Dialect, Statement, Statements

MAX_GROUP = 256
MAX_GROUP_SECONDS = 0.005
QUICK_COMMIT = 0.0015
"""A commit shorter than this (seconds, running mean) is made on the event loop itself."""
BUSY_SECONDS = 5.0
ALONE_WRITES = 8
"""How many writes one task alone may commit before the loop takes its turn."""

_UNIQUE = {apsw.SQLITE_CONSTRAINT_UNIQUE, apsw.SQLITE_CONSTRAINT_PRIMARYKEY}
_NONE: frozenset[str] = frozenset()
_FATAL = (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.CorruptError, apsw.NotADBError, apsw.ReadOnlyError)


class _SqliteTx:
    def __init__(self, engine: SqliteEngine, connection: apsw.Connection) -> None:
        self._engine = engine
        self._connection = connection
        self.now = 0

    async def rows(self, name: str, /, **params: object) -> list[Row]:
        """Run a named statement and give the rows of its last step."""
        return self._engine.run(self._connection, name, params, self.now)


class SqliteEngine:
    """The embedded engine on one file (DESIGN §3, RULINGS 9, 14, 18). `clock` gives ms UTC; `skew` moves it in tests."""

    dialect = Dialect.SQLITE
    listening = True

    def __init__(self, path: Path, clock: Callable[[], int], *, synchronous: str = "full") -> None:
        self.path = path
        self.skew = 0
        self.clock_steps_back = 0
        self._clock = clock
        self._last_now = 0
        self._synchronous = synchronous
        self._lock = database_lock(path)
        self._statements = Statements(Dialect.SQLITE)
        self._ready: dict[str, tuple[Statement, frozenset[str]]] = {}
        self._writer: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._scanner: apsw.Connection | None = None
        self._waiting: deque[Entry] = deque()
        self._flushing = False
        self._last_group = 0
        self._turn_writes = 0
        self._turn_task: asyncio.Task[Any] | None = None
        self._commit_mean = 0.0
        self._busy_seconds = BUSY_SECONDS
        self._write_thread = ThreadPoolExecutor(1, "postroom-sqlite-write")
        self._scan_thread = ThreadPoolExecutor(1, "postroom-sqlite-scan")
        self._closed = False
        self._idle: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Take the file's lock, connect, and migrate; raises Misconfigured when another process has it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock.acquire()
        except OSError as error:
            raise Misconfigured(f"{self.path} cannot be used: {error.strerror}", field="database") from error
        try:
            await asyncio.get_running_loop().run_in_executor(self._write_thread, self._open)
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        try:
            # Made here when it is new, since SQLite would let others read it; its companions get the same mode.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise Misconfigured(f"{self.path} cannot be used: {error.strerror}", field="database") from error
        try:
            self._writer = self._connect()
            self._migrate(self._writer)
            self._reader = self._connect(readonly=True)
            self._scanner = self._connect(readonly=True)
        except apsw.NotADBError as error:
            raise Misconfigured(f"{self.path} is no SQLite database: {error}", field="database") from error
        except apsw.Error as error:
            raise Unavailable(f"cannot open {self.path}: {error}") from error

    def _connect(self, *, readonly: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | (0 if readonly else apsw.SQLITE_OPEN_CREATE)
        connection = apsw.Connection(str(self.path), flags=flags, statementcachesize=200)
        connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        # Plans are made once: else what is weighed against a partial index is planned at each run, ten times its cost.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        if not readonly:
            mode = connection.execute("pragma journal_mode = wal").get
            if mode != "wal":
                raise Misconfigured(
                    f"{self.path} is on a file system without shared memory (journal mode {mode}); use a local disk",
                    field="database",
                )
        else:
            connection.execute("pragma query_only = on").fetchall()
        connection.execute(f"pragma synchronous = {self._synchronous}").fetchall()
        connection.execute("pragma cache_size = -16384; pragma temp_store = memory").fetchall()
        return connection

    def _migrate(self, connection: apsw.Connection) -> None:
        connection.execute("begin immediate").fetchall()
        try:
            connection.execute(TABLE).fetchall()
            applied = connection.execute("select coalesce(max(version), 0) from schema_migrations").get
            for step in outstanding(Dialect.SQLITE, int(str(applied))):
                connection.execute(step.sql).fetchall()
                connection.execute(
                    "insert into schema_migrations values (?, ?, ?)", (step.version, step.name, self._now())
                ).fetchall()
            connection.execute("commit").fetchall()
        except BaseException:
            with contextlib.suppress(apsw.Error):
                connection.execute("rollback").fetchall()
            raise

    # Time: the host's clock, never going back (RULINGS 14).

    def _now(self) -> int:
        now = self._clock()
        if now < self._last_now - 5000:
            self.clock_steps_back += 1
        self._last_now = max(now, self._last_now)
        return self._last_now + self.skew

    # Statements.

    def run(self, connection: apsw.Connection, name: str, params: dict[str, object], now: int) -> list[Row]:
        """Run every step of a named statement on a connection and give the last one's rows."""
        optional = self._statements.optional(name)
        given = frozenset([key for key in optional if params.get(key) is not None]) if optional else _NONE
        statement = self._statements.get(name, given)
        for key in statement.lists:
            params[key] = json.dumps(params[key])
        params["now"] = now
        rows: list[Row] = []
        for step in statement.steps:
            rows = connection.execute(step, params).fetchall()
        return rows

    async def read(self, name: str, /, **params: object) -> list[Row]:
        """Run a query on the reader's connection; a `slow` one on a thread of its own."""
        try:
            if self._statements.get(name).slow:
                return await asyncio.get_running_loop().run_in_executor(self._scan_thread, self._scan, name, params)
            return self.run(_opened(self._reader), name, params, self._now())
        except apsw.Error as error:
            raise Unavailable(f"the database cannot be read: {error}") from error

    def _scan(self, name: str, params: dict[str, object]) -> list[Row]:
        return self.run(_opened(self._scanner), name, params, self._now())

    async def write(self, name: str, /, **params: object) -> list[Row]:
        """Run one statement in the next group."""
        single = len(self._statements.get(name).steps) == 1
        rows: list[Row] = await self._submit(Entry(None, name, params, heavy=False, single=single))
        return rows

    async def transact(self, operation: Operation[T], *, heavy: bool = False, one: bool = False) -> T:
        """Run an operation in the next group, in a savepoint of its own."""
        answer: T = await self._submit(Entry(operation, "", {}, heavy=heavy, single=False))
        return answer

    async def _submit(self, entry: Entry) -> Any:
        if self._closed:
            raise Unavailable("the store is closed")
        loop = asyncio.get_running_loop()
        if not entry.heavy and not self._flushing and self._quick() and self._is_alone(loop) and self._run_alone(entry):
            if entry.error is not None:
                raise entry.error
            return entry.answer
        entry.future = loop.create_future()
        self._waiting.append(entry)
        if not self._flushing:
            self._flushing = True
            loop.call_soon(self._flush, loop)
        return await entry.future

    def _is_alone(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether one task writes and nobody else: it commits at once, and lets the loop turn after some writes."""
        task = asyncio.current_task()
        if self._turn_writes == 0:
            if self._last_group > 1:
                return False
            self._turn_task = task
            loop.call_soon(self._turn_over)
        elif task is not self._turn_task or self._turn_writes >= ALONE_WRITES:
            return False
        self._turn_writes += 1
        return True

    def _turn_over(self) -> None:
        self._turn_writes = 0
        self._turn_task = None

    def _quick(self) -> bool:
        return self._writer is not None and self._commit_mean < QUICK_COMMIT

    def _run_alone(self, entry: Entry) -> bool:
        """A lone writer's operation, committed at once; False when another process holds the file."""
        try:
            self._run_group([entry], busy_seconds=0.0)
        except apsw.BusyError:
            return False
        return True

    # Groups.

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        group: list[Entry] = []
        while self._waiting and len(group) < MAX_GROUP:
            entry = self._waiting.popleft()
            # A caller may have gone before anything was done for it.
            if entry.future is None or not entry.future.done():
                group.append(entry)
        if not group:
            self._answer(loop, group, [])
            return
        self._last_group = len(group)
        if self._quick() and not any(entry.heavy for entry in group):
            try:
                left = self._run_group(group, busy_seconds=0.0)
            except apsw.BusyError:
                pass
            else:
                self._answer(loop, group, left)
                return

        def in_thread() -> None:
            left: list[Entry] = []
            try:
                left = self._run_group(group, busy_seconds=BUSY_SECONDS)
            except BaseException as error:
                for entry in group:
                    entry.error = unavailable(error)
            loop.call_soon_threadsafe(self._answer, loop, group, left)

        self._write_thread.submit(in_thread)

    def _answer(self, loop: asyncio.AbstractEventLoop, group: list[Entry], left: list[Entry]) -> None:
        self._waiting.extendleft(reversed(left))
        for entry in group[: len(group) - len(left)]:
            if entry.future is None or entry.future.done():
                continue
            if entry.error is not None:
                entry.future.set_exception(entry.error)
            else:
                entry.future.set_result(entry.answer)
        if self._waiting:
            loop.call_soon(self._flush, loop)
        else:
            self._flushing = False
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

    def _run_group(self, group: list[Entry], *, busy_seconds: float) -> list[Entry]:
        """Run and commit a group; gives back those it had no time for. Raises BusyError before anything was done."""
        if self._writer is None:
            self._reopen()
        writer = _opened(self._writer)
        if busy_seconds != self._busy_seconds:
            writer.set_busy_timeout(int(busy_seconds * 1000))
            self._busy_seconds = busy_seconds
        try:
            writer.execute("begin immediate").fetchall()
        except apsw.BusyError:
            raise
        except apsw.Error as error:
            self._fail_group(group, error)
            return []
        tx = _SqliteTx(self, writer)
        tx.now = self._now()
        started = time.monotonic()
        done = 0
        sole = len(group) == 1
        try:
            for entry in group:
                self._run_entry(tx, writer, entry, sole=sole)
                done += 1
                if done < len(group) and time.monotonic() - started > MAX_GROUP_SECONDS:
                    break
            before_commit = time.monotonic()
            writer.execute("rollback" if sole and entry.error is not None else "commit").fetchall()
        except apsw.Error as error:
            self._fail_group(group, error)
            return []
        took = time.monotonic() - before_commit
        self._commit_mean += (took - self._commit_mean) * 0.1
        return group[done:]

    def _run_entry(self, tx: _SqliteTx, writer: apsw.Connection, entry: Entry, *, sole: bool) -> None:
        """Run one entry, in a savepoint when its failure could leave half of it and others share the transaction."""
        apart = not entry.single and not sole
        if apart:
            writer.execute("savepoint entry").fetchall()
        try:
            if entry.operation is None:
                entry.answer = self.run(writer, entry.name, entry.params, tx.now)
            else:
                entry.answer = drive(entry.operation, tx)
        except _FATAL:
            raise
        except (apsw.Error, PostroomError) as error:
            if not writer.in_transaction:
                raise
            entry.error = error if isinstance(error, PostroomError) else _unexpected(error)
        except BaseException as error:
            entry.error = error
        if apart:
            if entry.error is not None:
                writer.execute("rollback to entry").fetchall()
            writer.execute("release entry").fetchall()

    def _fail_group(self, group: list[Entry], error: BaseException) -> None:
        """The transaction is gone whole: every operation of the group is unavailable, and the connection is remade."""
        for entry in group:
            entry.error = unavailable(error)
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(apsw.Error):
                writer.close(True)
        self._commit_mean = QUICK_COMMIT * 2

    def _reopen(self) -> None:
        self._writer = self._connect()
        self._busy_seconds = BUSY_SECONDS
        self._commit_mean = 0.0

    # Hints: one process has the file, so there is nobody else to tell.

    def hint(self, queue: str) -> None:
        """Nothing: the process that wrote is the only one that waits."""

    def on_hint(self, call: Callable[[str | None], None]) -> None:
        """Nothing: no hint ever comes from elsewhere."""

    def on_news(self, call: Callable[[str | None], None]) -> None:
        """Nothing: there are no other processes."""

    async def close(self) -> None:
        """Commit what waits, close every connection, and free the lock."""
        self._closed = True
        if self._flushing:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._write_thread.shutdown(wait=True)
        self._scan_thread.shutdown(wait=True)
        for connection in (self._reader, self._scanner, self._writer):
            if connection is not None:
                with contextlib.suppress(apsw.Error):
                    connection.close()
        self._reader = self._scanner = self._writer = None
        self._lock.release()


def _opened(connection: apsw.Connection | None) -> apsw.Connection:
    if connection is None:
        raise Unavailable("the store is not open")
    return connection


def _unexpected(error: apsw.Error) -> BaseException:
    if isinstance(error, apsw.ConstraintError) and getattr(error, "extendedresult", 0) in _UNIQUE:
        return Duplicate(str(error))
    return RuntimeError(f"the statement was refused: {error}")
