"""A carrier as a lane calls it: one that breaks its contract, by raising or by hanging, is a fault and wedges nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from postroom.carriers.carrier import Carrier, Look, Progress, Standing, Turn, Writing
from postroom.message import Parcel, Written

T = TypeVar("T")

CALL_SECONDS = 20.0
"""What a call may take before it counts as broken; a carrier's own deadlines are shorter."""
LOOK_SHARE = 0.25
WRITE_SHARE = 0.65
"""Of a lease: when a write must have begun, and how long it may take. Together they leave time to settle."""

log = logging.getLogger("postroom.courier")


def lease_seconds(parcel: Parcel) -> float:
    """How long the parcel's lease is, from its beginning; by the database's clock alone."""
    held = parcel.delivery
    return ((held.lease_expires_at or held.updated_at) - held.updated_at) / 1000


class Guarded:
    """The four calls of one carrier for one target, each with an answer whatever happens."""

    def __init__(self, carrier: Carrier, key: str) -> None:
        self._carrier = carrier
        self._key = key

    @property
    def reaches(self) -> tuple[str, ...]:
        """The reaches it has now: they come and go with those who are attached to it."""
        return self._carrier.reaches

    async def look(self, parcel: Parcel) -> Look:
        """Whether the target takes a message now; a broken look is a fault."""
        return await self._call(self._carrier.look(parcel), lambda words: Look(Standing.FAULT, words))

    async def write(self, parcel: Parcel) -> Writing:
        """Put the message on the target; what a broken write did is unknown."""
        seconds = min(CALL_SECONDS, WRITE_SHARE * lease_seconds(parcel))
        return await self._call(self._carrier.write(parcel), lambda words: Writing(Written.UNKNOWN, words), seconds)

    async def seen(self, parcel: Parcel) -> bool:
        """Whether this round of the message stands there; asked only where an earlier write of it is in doubt."""
        if not parcel.delivery.doubtful:
            return False
        nobody_knows: Callable[[str], bool | None] = lambda words: None  # noqa: E731
        found: bool | None = await self._call(self._carrier.seen(parcel), nobody_knows)
        return found is True

    async def progress(self, parcel: Parcel) -> Progress:
        """What became of a turn."""
        return await self._call(self._carrier.progress(parcel), lambda words: Progress(Turn.UNKNOWN, reason=words))

    async def _call(self, call: Awaitable[T], broken: Callable[[str], T], seconds: float | None = None) -> T:
        most = CALL_SECONDS if seconds is None else seconds
        try:
            async with asyncio.timeout(most):
                return await call
        except TimeoutError:
            return broken(f"the carrier did not answer within {most:g} s")
        except Exception as error:
            log.exception("the carrier of %s failed", self._key)
            return broken(f"the carrier failed: {type(error).__name__}")
