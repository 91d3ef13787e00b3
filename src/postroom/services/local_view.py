"""A view over an installation's own services: what one principal sees of queues, and hears of what happens there."""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from postroom.happening import Happening, HappeningFilter
from postroom.model import Principal
from postroom.services.happenings import Happenings
from postroom.services.queues import QueueService
from postroom.wire import queue_view


class LocalView:
    """Queues as `/v1` shows them, and happenings, for a principal."""

    def __init__(self, principal: Principal, queues: QueueService, happenings: Happenings) -> None:
        self._principal = principal
        self._queues = queues
        self._happenings = happenings

    async def queues(self) -> list[dict[str, Any]]:
        """Every queue it may use, by name."""
        return [queue_view(status) for status in await self._queues.status(self._principal)]

    async def queue(self, name: str) -> dict[str, Any]:
        """One queue, used or not. Raises NotFound for one it may not use."""
        (status,) = await self._queues.status(self._principal, name)
        return queue_view(status)

    def hear(self, wanted: HappeningFilter) -> AbstractAsyncContextManager[AsyncIterable[Happening]]:
        """What happens from its entering on. Raises Unavailable when too many listen."""
        return self._happenings.subscribe(self._principal, wanted)
