"""Traffic as the tables have it: how many deliveries stand where, what holds them up, and who is there to get them."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.store.engine import Tx


@dataclass(frozen=True, slots=True)
class Count:
    """How many deliveries of a carrier are at a stage; `oldest_age` is the age (ms) of the first that waits, else None."""

    carrier: str
    stage: str
    n: int
    oldest_age: int | None


class TrafficTable:
    """The queries over what is under way; `silent` is how long (ms) a live endpoint may give no sign."""

    def __init__(self, silent: int) -> None:
        self._silent = silent

    async def counts(self, tx: Tx) -> list[Count]:
        """Each stage of each carrier that has any: ready, retrying, being_written, awaiting_ack, failed."""
        return [Count(*row) for row in await tx.rows("traffic_counts")]

    async def deferred(self, tx: Tx, limit: int, most: int) -> list[tuple[str, str, str, int, int, str]]:
        """Target, carrier, reason, since when, how many wait there, up to `most`, and its mailbox; the longest first."""
        rows = await tx.rows("traffic_deferred", limit=limit, most=most)
        return [(row[0], row[1], row[2], row[3], row[4], row[5]) for row in rows]

    async def endpoints(self, tx: Tx) -> tuple[int, int]:
        """How many endpoints are live, and how many have not ended."""
        row = (await tx.rows("traffic_endpoints", silent=self._silent))[0]
        return row[0], row[1]
