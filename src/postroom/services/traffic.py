"""Traffic: how many deliveries wait and why, which failed, and how many endpoints are there to get them."""

from __future__ import annotations

from typing import Final

from postroom.endpoint import CarrierKind
from postroom.post import CarrierTraffic, Deferral, Traffic
from postroom.store.engine import Engine, Reader
from postroom.store.traffic import Count, TrafficTable

SHOWN: Final = 20
"""How many targets are told of that hold their deliveries up."""
COUNTED: Final = 1000
"""How far the deliveries of one such target are counted."""


class TrafficService:
    """Tells how the post stands. It shows places and numbers, and nothing that anybody wrote."""

    def __init__(self, engine: Engine, table: TrafficTable) -> None:
        self._table = table
        self._reader = Reader(engine)

    async def now(self) -> Traffic:
        """How the post stands at this moment."""
        counts = await self._table.counts(self._reader)
        deferred = await self._table.deferred(self._reader, SHOWN, COUNTED)
        live, standing = await self._table.endpoints(self._reader)
        return Traffic(
            tuple(
                _of_carrier(carrier, found)
                for carrier in CarrierKind
                if (found := {one.stage: one for one in counts if one.carrier == carrier.value})
            ),
            tuple(Deferral(row[0], CarrierKind(row[1]), *row[2:]) for row in deferred),
            live,
            standing,
        )


def _of_carrier(carrier: CarrierKind, found: dict[str, Count]) -> CarrierTraffic:
    def count(stage: str) -> int:
        return found[stage].n if stage in found else 0

    ages = [one.oldest_age for one in found.values() if one.oldest_age is not None]
    return CarrierTraffic(
        carrier,
        pending=count("ready") + count("retrying") + count("being_written"),
        retrying=count("retrying"),
        being_written=count("being_written"),
        awaiting_ack=count("awaiting_ack"),
        failed=count("failed"),
        oldest_pending_age=max(0, *ages) if ages else None,
    )
