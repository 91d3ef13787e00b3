"""Queues: their settings and depths; they come to exist by use (DESIGN §4, RULINGS 16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from postroom import limits
from postroom.errors import Forbidden, Invalid, NotFound
from postroom.model import Principal, QueueSettings, QueueStatus
from postroom.services import tellings
from postroom.services.wake import Wake
from postroom.store.engine import Engine, Reader, Tx
from postroom.store.queues import QueueTable


class QueueService:
    """The verbs over queues for a principal."""

    def __init__(self, engine: Engine, table: QueueTable, wake: Wake) -> None:
        self._engine = engine
        self._table = table
        self._wake = wake
        self._reader = Reader(engine)

    async def names(self, principal: Principal) -> list[str]:
        """Every queue there is for this principal, by name."""
        names = await self._table.names(self._reader, finished=True)
        return [name for name in names if principal.may_use(name)]

    async def status(self, principal: Principal, name: str | None = None) -> list[QueueStatus]:
        """Settings and depths of every queue of this principal, or of one. Raises NotFound for another's."""
        if name is None:
            names = await self.names(principal)
        elif principal.may_use(limits.check_queue(name, "name")):
            names = [name]
        else:
            raise NotFound(f"there is no queue {name!r} for {principal.name}", field="name")
        settings = await self._table.settings(self._reader, names)
        depths: dict[tuple[str, str], int] = {}
        oldest: dict[str, int] = {}
        for state, queue, count, since in await self._table.depths(self._reader, names) if names else []:
            depths[queue, state] = depths.get((queue, state), 0) + count
            if since is not None:
                oldest[queue] = min(since, oldest.get(queue, since))
        now = (await self._reader.rows("clock"))[0][0]
        return [
            QueueStatus(
                settings=settings.get(queue, QueueSettings(queue)),
                pending=depths.get((queue, "pending"), 0),
                claimed=depths.get((queue, "claimed"), 0),
                parked=depths.get((queue, "parked"), 0),
                dead=depths.get((queue, "dead"), 0),
                oldest_pending_age_ms=max(now - oldest[queue], 0) if queue in oldest else None,
            )
            for queue in names
        ]

    async def put(self, principal: Principal, name: str, changes: dict[str, Any]) -> QueueSettings:
        """Change the given settings of a queue, None being the default; for admins. Raises Invalid, Forbidden."""
        if not principal.admin:
            raise Forbidden("only an admin sets a queue")
        limits.check_queue(name, "name")
        known = {field for field in QueueSettings.__slots__ if field != "name"}
        for field in changes:
            if field not in known:
                raise Invalid(
                    f"{field} is no setting of a queue; expected one of {', '.join(sorted(known))}", field=field
                )

        async def operation(tx: Tx) -> QueueSettings:
            # The row is made first, so that two admins who change different settings wait for each other.
            await self._table.touch(tx, name)
            after = replace((await self._table.settings(tx, [name]))[name], **changes)
            limits.check_settings(after)
            if (after.backoff_cap_ms or limits.DEFAULT_BACKOFF_CAP) < (after.backoff_ms or 0):
                raise Invalid("backoff_cap_s is less than backoff_s", field="backoff_cap_s")
            return await self._table.put(tx, after)

        settings = await self._engine.transact(operation)
        self._wake.told(tellings.queue_changed, name, principal.name)
        self._wake.work([name])
        return settings

    async def pause(self, principal: Principal, name: str, *, paused: bool) -> QueueSettings:
        """Stop or resume the claims of a queue, and nothing else; for admins."""
        return await self.put(principal, name, {"paused": paused})
