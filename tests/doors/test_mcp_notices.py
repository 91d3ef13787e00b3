"""Notices that resources changed: how often, of what, and when they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from postroom.doors.mcp.notices import Pacer, following
from postroom.doors.mcp.resources import place_of
from postroom.errors import Unavailable
from postroom.happening import LAGGED, Happening, HappeningFilter
from tests.doors.mcp_rig import until


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_pacer_tells_at_once_then_rests_and_never_forgets_the_last() -> None:
    clock = Clock()
    pacer = Pacer(clock, pause_s=0.1)
    pacer.touch(["a", "b", "a"])
    assert [await pacer.take(), await pacer.take()] == ["a", "b"]
    for _ in range(1000):
        pacer.touch(["a"])
    taking = asyncio.ensure_future(pacer.take())
    await asyncio.sleep(0)
    assert not taking.done()
    pacer.touch(["c"])
    assert await taking == "c"
    clock.now = 0.1
    assert await pacer.take() == "a"
    clock.now = 5.0
    pacer.touch(["a"])
    assert await pacer.take() == "a"


@asynccontextmanager
async def _hearing(items: list[Happening], wanted: HappeningFilter) -> AsyncIterator[AsyncIterator[Happening]]:
    async def heard() -> AsyncIterator[Happening]:
        for item in items:
            yield item
        await asyncio.Event().wait()

    yield heard()


async def test_lagging_is_a_notice_for_everything_that_is_followed() -> None:
    places = [place_of(uri) for uri in ("queue://a", "queue://%61", "queue://b", "inbox://c")]
    came: list[str] = []

    async def tell(uri: str) -> None:
        came.append(uri)

    def hear(wanted: HappeningFilter) -> Any:
        lag = Happening(0, LAGGED, "")
        one = Happening(0, "todo.created", "td_1", "a")
        return _hearing([lag] if wanted.mailboxes else [one], wanted)

    async with following(hear, places, tell):
        await until(lambda: len(came) == 3)
    assert sorted(came) == ["inbox://c", "queue://%61", "queue://a"]


async def test_a_hearing_that_breaks_ends_the_whole_following() -> None:
    async def broken() -> AsyncIterator[Happening]:
        yield Happening(0, LAGGED, "")
        raise Unavailable("the daemon is away")

    @asynccontextmanager
    async def hear(wanted: HappeningFilter) -> AsyncIterator[AsyncIterator[Happening]]:
        yield broken()

    async def tell(_: str) -> None:
        return

    async with following(hear, [place_of("queue://a")], tell) as task:
        with pytest.raises(Unavailable):
            await asyncio.shield(task)


async def test_a_following_that_is_cancelled_closes_what_it_heard_and_is_no_fault() -> None:
    ended: list[str] = []
    reading = asyncio.Event()

    async def heard() -> AsyncGenerator[Happening]:
        try:
            reading.set()
            await asyncio.Event().wait()
            yield Happening(0, LAGGED, "")
        finally:
            # As a connection does that takes some turns of the loop to close.
            for _ in range(5):
                await asyncio.sleep(0)
            ended.append("heard")

    @asynccontextmanager
    async def hear(wanted: HappeningFilter) -> AsyncIterator[AsyncIterator[Happening]]:
        items = heard()
        try:
            yield items
        finally:
            await items.aclose()
            ended.append("left")

    async def tell(_: str) -> None:
        return

    with anyio.CancelScope() as request:
        async with following(hear, [place_of("queue://a")], tell):
            await reading.wait()
            request.cancel()
            await asyncio.Event().wait()
    assert request.cancelled_caught
    assert ended == ["heard", "left"]
