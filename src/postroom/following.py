"""Following a daemon's stream of happenings, for as long as its reader likes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

from postroom.connection import Connection
from postroom.errors import Unavailable
from postroom.happening import LAGGED, Happening, HappeningFilter
from postroom.happening_wire import PATH, QUIET_S, EventReader, query_pairs

FIRST_PAUSE_S: Final = 0.2
MOST_PAUSE_S: Final = 5.0


async def follow(connection: Connection, wanted: HappeningFilter) -> AsyncGenerator[Happening, None]:
    """What happens from now on, for ever: `lagged` comes first, and after each break, so that the reader looks.

    A connection that breaks, or a daemon that is away, is tried anew after a pause. Raises what the daemon refuses.
    """
    pairs = query_pairs(wanted)
    pause = FIRST_PAUSE_S
    while True:
        try:
            async with connection.opened(PATH, pairs, 3 * QUIET_S) as pieces:
                yield Happening(time.time_ns() // 1_000_000, LAGGED, "", words="listening: look now")
                pause = FIRST_PAUSE_S
                reader = EventReader()
                async for piece in pieces:
                    for happening in reader.feed(piece):
                        yield happening
        except (Unavailable, ValueError) as error:
            if isinstance(error, Unavailable) and connection.closed:
                raise
        await asyncio.sleep(pause * (0.5 + connection.jitter()))
        pause = min(pause * 2, MOST_PAUSE_S)
