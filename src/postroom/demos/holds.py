"""Holds: where an actor of a demo waits until the story has come to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

MOST_S: Final = 60.0
POLL_S: Final = 0.02


async def passed(folder: Path, what: str) -> None:
    """Wait while the stage holds this; at most a minute, so that no actor outlives its story by much."""
    hold = folder / "holds" / what
    for _ in range(int(MOST_S / POLL_S)):
        if not hold.exists():
            return
        await asyncio.sleep(POLL_S)
