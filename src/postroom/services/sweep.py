"""The sweep: what falls due and what was kept long enough, in short batches and by whoever comes first (RULINGS 15)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from postroom import limits, postage
from postroom.errors import Unavailable
from postroom.model import QueueSettings
from postroom.services import tellings
from postroom.services.dispatch import DispatchService
from postroom.services.wake import Wake
from postroom.store.engine import Engine, Reader, Tx
from postroom.store.queues import QueueTable
from postroom.store.sweeps import SweepKind, SweepTable
from postroom.text import many

INTERVAL = 1.0
"""Seconds between two sweeps; no lease is shorter (S16)."""
RETENTION_INTERVAL = 60.0
BATCH = 200
DELETE_BATCH = 500
MOST_BATCHES = 20
OLD_SNAPSHOT = 60.0
"""A snapshot open for longer than this (seconds) is worth a warning."""

log = logging.getLogger("postroom.sweep")

Swept = list[tuple[str, str, str]]
Statement = Callable[[Tx, Sequence[str], int], Awaitable[Swept]]
Listed = Callable[[Tx, str, int, int], Awaitable[list[str]]]


@dataclass(slots=True)
class SweepReport:
    """What the sweep has done since the start."""

    last_run_at: int | None = None
    lapsed: int = 0
    due: int = 0
    post: int = 0
    deleted: int = 0
    failures: int = 0


class Sweep:
    """Puts lapsed claims, due todos and the post's due deliveries back, and deletes what is past its retention.

    `clock` gives ms UTC.
    """

    def __init__(
        self,
        engine: Engine,
        table: SweepTable,
        queues: QueueTable,
        dispatch: DispatchService,
        wake: Wake,
        clock: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._table = table
        self._queues = queues
        self._dispatch = dispatch
        self._wake = wake
        self._clock = clock
        self._reader = Reader(engine)
        self.report = SweepReport()
        self.away: str | None = None
        """Why the last sweep could not reach the database, None when it could."""
        self._version: str | None = None

    async def run(self) -> None:
        """Sweep until cancelled; a database that is away is tried again at the next turn."""
        loop = asyncio.get_running_loop()
        keep_at = loop.time() + RETENTION_INTERVAL
        while True:
            try:
                await self.once()
                self.away = None
                if loop.time() >= keep_at:
                    await self.retention()
                    keep_at = loop.time() + RETENTION_INTERVAL
            except Unavailable as error:
                self.report.failures += 1
                self.away = error.message
                log.warning("the sweep is put off: %s", error.message)
            except Exception:
                self.report.failures += 1
                log.exception("the sweep failed and will be tried again")
            await asyncio.sleep(INTERVAL)

    async def once(self) -> None:
        """Lapsed -> pending or dead, parked and due -> pending, delayed and due -> ready (S10, S11); the post's besides."""
        names = await self._queues.names(self._reader)
        if names:
            self.report.lapsed += await self._batches(SweepKind.LAPSED, self._table.lapsed, names)
            self.report.due += await self._batches(SweepKind.PARKED, self._table.parked, names)
            self.report.due += await self._batches(SweepKind.DELAYED, self._table.delayed, names)
        self.report.post += (await self._dispatch.sweep(BATCH)).total
        self.report.last_run_at = self._clock()

    async def warnings(self) -> list[str]:
        """What an operator should know: snapshots that keep dead rows, a clock that went back (RULINGS 14)."""
        said: list[str] = []
        age = await self._table.snapshot_age(self._reader)
        if age > OLD_SNAPSHOT:
            said.append(f"a database snapshot has been open for {age:.0f} s: dead rows stay and claims slow down")
        if self._engine.clock_steps_back:
            said.append(f"the host's clock went back {many(self._engine.clock_steps_back, 'time')} since the start")
        return said

    async def clock_skew_ms(self) -> int:
        """How far the database's clock is ahead of this host's, to within the time that asking takes."""
        before = self._clock()
        told = await self._table.clock(self._reader)
        return told - (before + self._clock()) // 2

    async def engine_version(self) -> str:
        """The engine's version; it is asked once."""
        if self._version is None:
            self._version = await self._table.version(self._reader)
        return self._version

    async def _batches(self, kind: SweepKind, statement: Statement, names: Sequence[str]) -> int:
        total = 0

        async def operation(tx: Tx) -> Swept:
            return await statement(tx, names, BATCH) if await self._table.lock(tx, kind) else []

        for _ in range(MOST_BATCHES):
            swept = await self._engine.transact(operation)
            total += len(swept)
            self._wake.told(tellings.todos_lapsed if kind is SweepKind.LAPSED else tellings.todos_due, swept)
            self._wake.work({queue for _, queue, _ in swept})
            if len(swept) < BATCH:
                break
        return total

    async def retention(self) -> int:
        """Todos, events, messages, keys and endpoints that were kept long enough -> gone, never a live row."""
        names = await self._queues.names(self._reader, finished=True)
        settings = await self._queues.settings(self._reader)
        gone = 0
        for name in names:
            chosen = settings.get(name, QueueSettings(name))
            keeps = (
                (self._table.old_done, chosen.keep_done_ms or limits.KEEP_DONE),
                (self._table.old_dead, chosen.keep_dead_ms or limits.KEEP_DEAD),
            )
            for listed, keep in keeps:
                gone += await self._forget(listed, name, keep)
        gone += await self._delete(partial(self._table.delete_events, keep=limits.KEEP_EVENTS, limit=DELETE_BATCH))
        for delete, keep in (
            (self._table.delete_requests, limits.KEEP_REQUESTS),
            (self._table.delete_messages, postage.KEEP_MESSAGES),
            (self._table.delete_admissions, postage.KEEP_ADMISSIONS),
            (self._table.delete_endpoints, postage.KEEP_ENDPOINTS),
        ):
            gone += await self._delete(partial(delete, keep=keep, limit=DELETE_BATCH))
        self.report.deleted += gone
        return gone

    async def _forget(self, listed: Listed, queue: str, keep: int) -> int:
        gone = 0
        for _ in range(MOST_BATCHES):
            ids = await listed(self._reader, queue, keep, DELETE_BATCH)
            if not ids:
                break
            gone += await self._delete(partial(self._table.delete_todos, ids=ids), most=1)
            if len(ids) < DELETE_BATCH:
                break
        return gone

    async def _delete(self, statement: Callable[[Tx], Awaitable[int]], most: int = MOST_BATCHES) -> int:
        gone = 0

        async def operation(tx: Tx) -> int:
            return await statement(tx) if await self._table.lock(tx, SweepKind.RETENTION) else 0

        for _ in range(most):
            count = await self._engine.transact(operation, heavy=True)
            gone += count
            if count < DELETE_BATCH:
                break
        return gone
