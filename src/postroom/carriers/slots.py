"""Slots: how many lanes work at a time, so that a burst over many targets does not do everything at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """How many lanes work at a time. Who takes longer than `patience` (seconds) keeps working and counts no more: a
    target that hangs takes no place from the others."""

    def __init__(self, count: int, patience: float = 1.0) -> None:
        self._free = asyncio.Semaphore(count)
        self._patience = patience

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """A place, while it is used and not for longer than the patience."""
        await self._free.acquire()
        kept = True

        def give() -> None:
            nonlocal kept
            if kept:
                kept = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._patience, give)
        try:
            yield
        finally:
            timer.cancel()
            give()
