"""The sweep's statements: what falls due and what has been kept long enough, in short batches (RULINGS 15)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from postroom.store import steps
from postroom.store.engine import Row, Tx
from postroom.store.statements import Dialect


class SweepKind(IntEnum):
    """The kinds of sweep, each with its own lock."""

    LAPSED = 1
    PARKED = 2
    DELAYED = 3
    RETENTION = 4
    POST_LAPSED = 5
    POST_OVERDUE = 6
    POST_EXPIRED = 7
    POST_TURNS = 8


class SweepTable:
    """The statements that nobody asks for."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    async def lock(self, tx: Tx, kind: SweepKind) -> bool:
        """Whether this transaction alone sweeps this kind now."""
        if self._dialect is Dialect.SQLITE:
            return True
        return bool((await tx.rows("sweep_lock", kind=int(kind)))[0][0])

    async def lapsed(self, tx: Tx, queues: Sequence[str], limit: int) -> list[tuple[str, str, str]]:
        """Claimed and lapsed -> pending, or dead when spent (S11): id, queue and new state of each."""
        return [(row[0], row[1], row[2]) for row in await tx.rows("sweep_lapsed", queues=list(queues), limit=limit)]

    async def parked(self, tx: Tx, queues: Sequence[str], limit: int) -> list[tuple[str, str, str]]:
        """Parked and due -> pending (S10)."""
        return [(row[0], row[1], row[2]) for row in await tx.rows("sweep_parked", queues=list(queues), limit=limit)]

    async def delayed(self, tx: Tx, queues: Sequence[str], limit: int) -> list[tuple[str, str, str]]:
        """Pending and due -> ready: its time is taken off, so that it stands in claim order (RULINGS 1)."""
        return [(row[0], row[1], row[2]) for row in await tx.rows("sweep_delayed", queues=list(queues), limit=limit)]

    async def old_done(self, tx: Tx, queue: str, keep: int, limit: int) -> list[str]:
        """Ids of done todos that were kept long enough."""
        return [row[0] for row in await tx.rows("sweep_done_ids", queue=queue, keep=keep, limit=limit)]

    async def old_dead(self, tx: Tx, queue: str, keep: int, limit: int) -> list[str]:
        """Ids of dead and cancelled todos that were kept long enough."""
        return [row[0] for row in await tx.rows("sweep_dead_ids", queue=queue, keep=keep, limit=limit)]

    async def delete_todos(self, tx: Tx, ids: Sequence[str]) -> int:
        """Finished -> gone, with their attempts and links; what came back to life stays."""
        return await self._forgotten(tx, await tx.rows("sweep_todos_delete", ids=list(ids)))

    async def delete_events(self, tx: Tx, keep: int, limit: int) -> int:
        """Old events that no kept todo names -> gone."""
        return await self._forgotten(tx, await tx.rows("sweep_events", keep=keep, limit=limit))

    async def delete_requests(self, tx: Tx, keep: int, limit: int) -> int:
        """Old request keys -> gone."""
        return len(await tx.rows("sweep_requests", keep=keep, limit=limit))

    async def delete_messages(self, tx: Tx, keep: int, limit: int) -> int:
        """Old messages that have come to an end everywhere -> gone, with their deliveries."""
        return await self._forgotten(tx, await tx.rows("sweep_messages", keep=keep, limit=limit))

    async def _forgotten(self, tx: Tx, gone: Sequence[Row]) -> int:
        """What was noted about these rows -> gone as well: their number."""
        await steps.forget(tx, [row[0] for row in gone])
        return len(gone)

    async def delete_admissions(self, tx: Tx, keep: int, limit: int) -> int:
        """Old keys of admission -> gone: a repeat of them would be a new message."""
        return len(await tx.rows("sweep_admissions", keep=keep, limit=limit))

    async def delete_endpoints(self, tx: Tx, keep: int, limit: int) -> int:
        """Endpoints that ended long ago and that no delivery names -> gone."""
        return len(await tx.rows("sweep_endpoints", keep=keep, limit=limit))

    async def clock(self, tx: Tx) -> int:
        """The time (ms UTC) that every statement goes by."""
        return int((await tx.rows("clock"))[0][0])

    async def version(self, tx: Tx) -> str:
        """The version of the engine, as it says it itself."""
        return str((await tx.rows("engine_version"))[0][0])

    async def snapshot_age(self, tx: Tx) -> float:
        """Seconds since the oldest open snapshot began; 0 on SQLite."""
        if self._dialect is Dialect.SQLITE:
            return 0.0
        return float((await tx.rows("oldest_snapshot"))[0][0])
