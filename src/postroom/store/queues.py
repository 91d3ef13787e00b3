"""The queues table: settings, and the names and depths that the todos themselves give (RULINGS 16)."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.model import QueueSettings
from postroom.store.engine import Row, Tx


def _settings_of(row: Row) -> QueueSettings:
    return QueueSettings(row[0], bool(row[1]), *row[2:])


class QueueTable:
    """The statements over queues."""

    async def names(self, tx: Tx, *, finished: bool = False) -> list[str]:
        """Queues with live work; with `finished` also those with settings or finished todos."""
        return [row[0] for row in await tx.rows("queue_names", all_of=1 if finished else None)]

    async def settings(self, tx: Tx, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        """The settings of the queues that have any, by name."""
        rows = await tx.rows("queue_settings", queues=list(queues) if queues is not None else None)
        return {row[0]: _settings_of(row) for row in rows}

    async def put(self, tx: Tx, settings: QueueSettings) -> QueueSettings:
        """Set every setting of a queue."""
        rows = await tx.rows(
            "queue_put",
            name=settings.name,
            paused=settings.paused,
            lease_ms=settings.lease_ms,
            max_attempts=settings.max_attempts,
            backoff_ms=settings.backoff_ms,
            backoff_cap_ms=settings.backoff_cap_ms,
            max_in_flight=settings.max_in_flight,
            keep_done_ms=settings.keep_done_ms,
            keep_dead_ms=settings.keep_dead_ms,
        )
        return _settings_of(rows[0])

    async def touch(self, tx: Tx, name: str) -> None:
        """Make sure that a queue has its row, and lock it until the transaction's end."""
        await tx.rows("queue_touch", name=name)

    async def depths(self, tx: Tx, queues: Sequence[str]) -> list[tuple[str, str, int, int | None]]:
        """(state, queue, count, oldest created_at) for pending, claimed, parked and dead."""
        return [(row[0], row[1], row[2], row[3]) for row in await tx.rows("queue_depths", queues=list(queues))]
