"""The words that tests of the doorbell use: seats that listen to queues, and the rings that came to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from postroom.endpoint import ANY_REACH, Endpoint
from postroom.limits import HOUR, MINUTE
from postroom.message import Written
from postroom.model import Principal
from postroom.services.doorbell import KIND
from tests.offices import ADMIN, Bench
from tests.services.mailing import Mail

STEPS = (5 * MINUTE, 20 * MINUTE, HOUR, 6 * HOUR)


@dataclass(frozen=True)
class Rung:
    """A ring as its message and delivery stand."""

    id: str
    endpoint_id: str
    text: str
    state: str
    reason: str | None


class Bell:
    """A bench's doorbell, turned by hand."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.mail = Mail(bench)
        self.office = bench.office
        self._panes = 0

    async def seat(self, name: str, *queues: str, by: Principal = ADMIN, **more: Any) -> Endpoint:
        """A new pane of this name that listens to these queues, `review` when none is named; each a moment later."""
        self._panes += 1
        self.bench.move(1)
        return await self.mail.pane(self._panes, by=by, name=name, queues=queues or ("review",), **more)

    async def work(self, *titles: str, queue: str = "review", **more: Any) -> list[str]:
        """New todos in `review`: their ids."""
        return [(await self.bench.create(queue, title, **more)).id for title in titles or ("work",)]

    async def look(self) -> int:
        """Have every queue looked at, a moment later: how many rings were rung."""
        self.bench.move(1)
        return await self.office.doorbell.once()

    async def rings(self) -> list[Rung]:
        """Every ring there was, the first one first."""
        rows = await self.bench.rows(
            "select m.id, d.endpoint_id, m.payload, d.state, d.reason from messages m "
            "join deliveries d on d.message_id = m.id where m.kind = ? order by m.seq",
            KIND,
        )
        return [Rung(*row) for row in rows]

    async def rung(self) -> list[str]:
        """The endpoints that were rung, in order."""
        return [one.endpoint_id for one in await self.rings()]

    async def write(self, endpoint: Endpoint, outcome: Written = Written.WRITTEN) -> None:
        """Carry what waits at an endpoint's place."""
        self.bench.move(1)
        parcel = await self.office.dispatch.lease(endpoint.target_key, [ANY_REACH])
        assert parcel is not None, f"nothing is ready at {endpoint.target_key}"
        assert await self.office.dispatch.settle(parcel, outcome, "so it was") is not None

    async def alive(self, *endpoints: Endpoint) -> None:
        """Their panes are seen now."""
        await self.office.registry.touch([endpoint.id for endpoint in endpoints])
