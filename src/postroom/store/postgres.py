"""PostgreSQL 14 and newer: a pool of autocommit connections, one transaction an operation, LISTEN as a hint.

No session state is set on a pooled connection, so that a transaction-mode pooler may stand between: with
`pooler=transaction` in the URL, statements are not prepared, no settings are sent and nothing is listened to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg import errors as pg
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from postroom.errors import PostroomError, Unavailable
from postroom.store.engine import Duplicate, Operation, Row, T
from postroom.store.migrate import TABLE, outstanding
from postroom.store.statements import Dialect, Statement, Statements

CHANNEL = "postroom_queue"
POOL_SIZE = 10
HAND_SECONDS = 60.0
DRAIN_SECONDS = 1.0
"""How often at most a broken connection makes the pool drop all that it has."""
CONNECT_SECONDS = 5
STATEMENT_SECONDS = 30
RETRIES = 5
MIGRATION_LOCK = 727_006
HINT_SECONDS = 0.01
OWN_BACKENDS = 64
"""How many of the backends that its own hints were sent through are remembered, the latest."""

# Every hot statement is written for its index, so the plan never depends on the values; to plan it anew costs more than
# to run it. A plan that was made while the tables were empty must not be to read them whole when they have grown.
SESSION = (
    "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off "
    f"-c statement_timeout={STATEMENT_SECONDS * 1000} -c lock_timeout=10000 "
    "-c idle_in_transaction_session_timeout=15000 -c timezone=UTC"
)
_NONE: frozenset[str] = frozenset()
_TRY_AGAIN = (pg.DeadlockDetected, pg.SerializationFailure)
_GONE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    pg.IdleInTransactionSessionTimeout,
    pg.ReadOnlySqlTransaction,  # a standby, for a moment, in a failover
    PoolTimeout,
    PoolClosed,
    TimeoutError,
    OSError,
)

log = logging.getLogger("postroom.store")


class _Hand:
    """The pool, and one connection of it that a caller who works alone keeps in hand from statement to statement.

    It goes back to the pool when others work too, when it comes back bad, and after a minute, so that the pool's own
    rules of age and repair hold for it as well.
    """

    def __init__(self, pool: AsyncConnectionPool[psycopg.AsyncConnection[Row]]) -> None:
        self.pool = pool
        self._kept: psycopg.AsyncConnection[Row] | None = None
        self._since = 0.0
        self._drained = -DRAIN_SECONDS
        self._lent = 0

    async def take(self) -> psycopg.AsyncConnection[Row]:
        """The connection in hand, else one of the pool."""
        self._lent += 1
        kept, self._kept = self._kept, None
        if kept is not None:
            return kept
        try:
            connection = await self.pool.getconn(CONNECT_SECONDS)
        except BaseException:
            self._lent -= 1
            raise
        self._since = time.monotonic()
        return connection

    async def give(self, connection: psycopg.AsyncConnection[Row], *, good: bool) -> None:
        """Keep it in hand, or give it back to the pool."""
        self._lent -= 1
        if good and self._lent == 0 and self._kept is None and time.monotonic() - self._since < HAND_SECONDS:
            self._kept = connection
            return
        broken = connection.closed
        await self.pool.putconn(connection)
        if broken and time.monotonic() - self._drained > DRAIN_SECONDS:
            # The others that lie idle are as old, and each would fail a caller of its own.
            self._drained = time.monotonic()
            await self.pool.drain()

    async def close(self) -> None:
        """Give back what is in hand, and close the pool."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await self.pool.putconn(kept)
        await self.pool.close(timeout=CONNECT_SECONDS)


class _Lent:
    """A connection for as long as a statement or transaction needs it."""

    __slots__ = ("_connection", "_hand")

    def __init__(self, hand: _Hand) -> None:
        self._hand = hand

    async def __aenter__(self) -> psycopg.AsyncConnection[Row]:
        task = asyncio.current_task()
        cancelled = 0 if task is None else task.cancelling()
        self._connection = await self._hand.take()
        if task is not None and task.cancelling() > cancelled:
            # The pool waits by asyncio.wait_for, which before Python 3.12 loses a cancellation that comes with its result.
            await self._hand.give(self._connection, good=True)
            raise asyncio.CancelledError
        return self._connection

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self._hand.give(self._connection, good=kind is None)


class _PostgresTx:
    def __init__(self, engine: PostgresEngine, connection: psycopg.AsyncConnection[Row]) -> None:
        self._engine = engine
        self._connection = connection

    async def rows(self, name: str, /, **params: object) -> list[Row]:
        """Run a named statement and give its rows."""
        return await self._engine.run(self._connection, name, params)


class PostgresEngine:
    """The engine for teams and for several daemons (DESIGN §3, RULINGS 10, 13, 14). `skew` (ms) moves its clock in tests."""

    dialect = Dialect.POSTGRES

    def __init__(self, url: str, *, pool_size: int = POOL_SIZE) -> None:
        self._url, self._pooled = _split_pooler(url)
        self.skew = 0
        self.listening = False
        self.clock_steps_back = 0
        self._statements = Statements(Dialect.POSTGRES)
        self._hint_calls: list[Callable[[str | None], None]] = []
        self._news_calls: list[Callable[[str | None], None]] = []
        self._own: deque[int] = deque(maxlen=OWN_BACKENDS)
        self._hints: dict[str, None] = {}
        self._texts: dict[tuple[str, frozenset[str]], tuple[Statement, bytes]] = {}
        self._hinted = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._pool_size = pool_size
        self._hand: _Hand | None = None

    def _connect_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "autocommit": True,
            "connect_timeout": CONNECT_SECONDS,
            "prepare_threshold": None if self._pooled else 2,
            "application_name": "postroom",
            "cursor_factory": psycopg.AsyncRawCursor,
            "keepalives_idle": 30,
        }
        if not self._pooled:
            options["options"] = SESSION
        return options

    async def open(self) -> None:
        """Migrate, then open the pool and start listening; raises Unavailable while the server cannot be reached."""
        await self._migrate()
        pool: AsyncConnectionPool[psycopg.AsyncConnection[Row]] = AsyncConnectionPool(
            self._url,
            kwargs=self._connect_options(),
            min_size=1,
            max_size=self._pool_size,
            timeout=CONNECT_SECONDS,
            max_lifetime=3600,
            reconnect_timeout=5,
            open=False,
        )
        await pool.open(wait=False)
        self._hand = _Hand(pool)
        self._start(self._send_hints())
        if not self._pooled:
            self._start(self._listen())

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _migrate(self) -> None:
        try:
            async with asyncio.timeout(120):
                connection = await psycopg.AsyncConnection.connect(self._url, **self._connect_options())
                async with connection, connection.transaction():
                    await connection.execute("select pg_advisory_xact_lock($1)", (MIGRATION_LOCK,))
                    await connection.execute(TABLE.encode())
                    cursor = await connection.execute("select coalesce(max(version), 0) from schema_migrations")
                    (applied,) = (await cursor.fetchone()) or (0,)
                    for step in outstanding(Dialect.POSTGRES, applied):
                        await connection.execute(step.sql.encode())
                        await connection.execute(
                            "insert into schema_migrations "
                            "values ($1, $2, cast(extract(epoch from now()) * 1000 as bigint))",
                            (step.version, step.name),
                        )
        except _GONE as error:
            raise Unavailable(f"cannot reach PostgreSQL: {_said(error)}") from error

    # Statements.

    async def run(self, connection: psycopg.AsyncConnection[Row], name: str, params: dict[str, object]) -> list[Row]:
        """Run a named statement on a connection and give its rows.

        The driver's raw cursor takes numbered parameters: it does not read a long text anew at each call.
        """
        optional = self._statements.optional(name)
        given = frozenset([key for key in optional if params.get(key) is not None]) if optional else _NONE
        statement, text = self._text(name, given)
        for key in statement.lists:
            params[key] = json.dumps(params[key])
        params["skew"] = self.skew
        cursor = await connection.execute(text, [params[key] for key in statement.params])
        result = cursor.pgresult
        return await cursor.fetchall() if result is not None and result.nfields else []

    def _text(self, name: str, given: frozenset[str]) -> tuple[Statement, bytes]:
        known = self._texts.get((name, given))
        if known is None:
            statement = self._statements.get(name, given)
            known = self._texts[name, given] = (statement, statement.steps[0].encode())
        return known

    def _connection(self) -> _Lent:
        if self._hand is None:
            raise Unavailable("the database has not been reached yet")
        return _Lent(self._hand)

    async def read(self, name: str, /, **params: object) -> list[Row]:
        """Run one query."""
        return await self.write(name, **params)

    async def write(self, name: str, /, **params: object) -> list[Row]:
        """Run one statement, which is a transaction by itself."""
        for attempt in range(RETRIES + 1):
            try:
                async with asyncio.timeout(STATEMENT_SECONDS + CONNECT_SECONDS), self._connection() as connection:
                    return await self.run(connection, name, params)
            except _TRY_AGAIN as error:
                await _pause(attempt, error)
            except pg.UniqueViolation as error:
                raise Duplicate(_said(error)) from error
            except _GONE as error:
                raise _unavailable(error) from error
        raise Unavailable("the database kept refusing a conflicting change")

    async def transact(self, operation: Operation[T], *, heavy: bool = False, one: bool = False) -> T:
        """Run an operation in one transaction; a deadlock or serialisation failure runs it again from the start."""
        for attempt in range(RETRIES + 1):
            try:
                async with asyncio.timeout(STATEMENT_SECONDS + CONNECT_SECONDS), self._connection() as connection:
                    if one:
                        return await operation(_PostgresTx(self, connection))
                    async with connection.transaction():
                        return await operation(_PostgresTx(self, connection))
            except _TRY_AGAIN as error:
                await _pause(attempt, error)
            except PostroomError:
                raise
            except pg.UniqueViolation as error:
                raise Duplicate(_said(error)) from error
            except _GONE as error:
                raise _unavailable(error) from error
        raise Unavailable("the database kept refusing a conflicting change")

    # Hints: one NOTIFY a queue and 10 ms, with a trailing edge; the listener does nothing but listen.

    def hint(self, queue: str) -> None:
        """Queue a NOTIFY that names this queue; several within 10 ms are one."""
        self._hints[queue] = None
        self._hinted.set()

    async def _send_hints(self) -> None:
        while not self._closing.is_set():
            await self._hinted.wait()
            self._hinted.clear()
            await self._notify()
            await asyncio.sleep(HINT_SECONDS)

    async def _notify(self) -> None:
        queues, self._hints = list(self._hints), {}
        with contextlib.suppress(*_GONE, psycopg.Error, Unavailable):
            async with asyncio.timeout(CONNECT_SECONDS), self._connection() as connection:
                if (backend := connection.info.backend_pid) not in self._own:
                    self._own.append(backend)
                await connection.execute("select pg_notify($1, q) from unnest(cast($2 as text[])) q", (CHANNEL, queues))

    def on_hint(self, call: Callable[[str | None], None]) -> None:
        """Call this with each hinted queue, and with None after every (re)connect."""
        self._hint_calls.append(call)

    def on_news(self, call: Callable[[str | None], None]) -> None:
        """The same without the hints that this engine sent, as far as it knows the backends that sent them."""
        self._news_calls.append(call)

    async def _listen(self) -> None:
        delay = 0.1
        while not self._closing.is_set():
            try:
                connection = await psycopg.AsyncConnection.connect(self._url, **self._connect_options())
                async with connection:
                    await connection.execute(f"listen {CHANNEL}".encode())
                    self.listening = True
                    delay = 0.1
                    self._tell(None, own=False)
                    while not self._closing.is_set():
                        async for note in connection.notifies(timeout=30):
                            self._tell(note.payload, own=note.pid in self._own)
                        async with asyncio.timeout(CONNECT_SECONDS):
                            await connection.execute("select 1")
            except _GONE as error:
                log.warning("not listening for hints: %s", _said(error))
            self.listening = False
            await asyncio.sleep(delay + random.random() * delay)
            delay = min(delay * 2, 5.0)

    def _tell(self, queue: str | None, *, own: bool) -> None:
        for call in self._hint_calls:
            call(queue)
        if not own:
            for call in self._news_calls:
                call(queue)

    async def close(self) -> None:
        """Send the last hints, stop listening and close the pool."""
        self._closing.set()
        if self._hints:
            await self._notify()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._hand is not None:
            await self._hand.close()


async def _pause(attempt: int, error: BaseException) -> None:
    if attempt == RETRIES:
        raise Unavailable(f"the database kept refusing a conflicting change: {_said(error)}") from error
    await asyncio.sleep(random.random() * 0.005 * 2**attempt)


def _unavailable(error: BaseException) -> Unavailable:
    return Unavailable(f"the database cannot answer now: {_said(error)}")


def _said(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _split_pooler(url: str) -> tuple[str, bool]:
    """The URL for the driver, and whether it says that a transaction-mode pooler stands between."""
    bare, mark, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    pooled = ("pooler", "transaction") in pairs
    kept = urlencode([pair for pair in pairs if pair[0] != "pooler"])
    return (bare + mark + kept if kept else bare), pooled
