"""Calls that wait: for as long as their client does, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from postroom.doors.http.errors import Gone

T = TypeVar("T")


async def gone(receive: Receive) -> None:
    """Wait until the client has gone; what else it sends is passed over."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of work that only looks; it is given up once the client has gone. Raises Gone."""
    looking = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({looking, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        done = looking.done()
        for task in (looking, watching):
            task.cancel()
        await asyncio.wait({looking, watching})
    if not done:
        raise Gone
    return looking.result()
