"""Notices that a resource changed: what happens is followed by queue and mailbox, and told by address, not too often."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio

from postroom.doors.mcp.resources import Kind, Place
from postroom.happening import LAGGED, Happening, HappeningFilter

PAUSE_S = 0.1
"""The least time between two notices of one address."""

MOST_PLACES = 32
"""How many resources one client may follow."""

END_S = 2.0
"""How long the end of a following is waited for."""

Hear = Callable[[HappeningFilter], AbstractAsyncContextManager[AsyncIterable[Happening]]]
Tell = Callable[[str], Awaitable[Any]]


class Pacer:
    """The addresses of which there is something to tell: each at once, and again no sooner than `pause_s` later.

    What changes meanwhile is told by one notice when the pause is over, so the last change is never left out. However
    fast things change and however slowly it is read, no more waits here than one entry an address.
    """

    def __init__(self, clock: Callable[[], float], pause_s: float = PAUSE_S) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._due: dict[str, float] = {}
        self._rested: dict[str, float] = {}
        self._changed = asyncio.Event()

    def touch(self, uris: Iterable[str]) -> None:
        """There is something to tell of these."""
        now = self._clock()
        for uri in uris:
            if uri not in self._due:
                self._due[uri] = max(now, self._rested.get(uri, now))
                self._changed.set()

    async def take(self) -> str:
        """The address that is due next, once it is."""
        while True:
            self._changed.clear()
            pause: float | None = None
            if self._due:
                uri = min(self._due, key=self._due.__getitem__)
                now = self._clock()
                pause = self._due[uri] - now
                if pause <= 0:
                    del self._due[uri]
                    self._rested[uri] = now + self._pause_s
                    return uri
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()


@contextlib.asynccontextmanager
async def following(hear: Hear, places: Sequence[Place], tell: Tell) -> AsyncIterator[asyncio.Task[None]]:
    """While inside, tell of each of these resources that may have changed since the entering; the task ends with the
    hearing, and gives its error."""
    pacer = Pacer(asyncio.get_running_loop().time)
    async with contextlib.AsyncExitStack() as stack:
        heard: list[tuple[AsyncIterable[Happening], dict[str, list[str]]]] = []
        for kind in Kind:
            by_name: dict[str, list[str]] = {}
            for place in places:
                if place.kind is kind:
                    by_name.setdefault(place.name, []).append(place.uri)
            if by_name:
                names = tuple(by_name)
                wanted = HappeningFilter(queues=names) if kind is Kind.QUEUE else HappeningFilter(mailboxes=names)
                heard.append((await stack.enter_async_context(hear(wanted)), by_name))
        task = asyncio.create_task(_follow(heard, pacer, tell), name="mcp-notices")
        try:
            yield task
        finally:
            task.cancel()
            # The SDK cancels a request again at every turn of the loop: what is heard would be closed while it is read.
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task], timeout=END_S)


async def _follow(
    heard: Sequence[tuple[AsyncIterable[Happening], dict[str, list[str]]]], pacer: Pacer, tell: Tell
) -> None:
    telling = asyncio.create_task(_tell(pacer, tell), name="mcp-tell")
    hearing = [asyncio.create_task(_hear(items, by_name, pacer), name="mcp-hear") for items, by_name in heard]
    try:
        # Whichever ends first, the rest would be half of what was asked for.
        done, _ = await asyncio.wait([telling, *hearing], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (telling, *hearing):
            task.cancel()
        await asyncio.gather(telling, *hearing, return_exceptions=True)


async def _hear(items: AsyncIterable[Happening], by_name: dict[str, list[str]], pacer: Pacer) -> None:
    everything = [uri for uris in by_name.values() for uri in uris]
    async for happening in items:
        if happening.what == LAGGED:
            pacer.touch(everything)
        else:
            for name in (happening.queue, happening.mailbox):
                if name is not None:
                    pacer.touch(by_name.get(name, ()))


async def _tell(pacer: Pacer, tell: Tell) -> None:
    while True:
        await tell(await pacer.take())
