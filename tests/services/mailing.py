"""The words that tests of the post use most, over a bench: send, attach, carry, and let time pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom.delivery import Policy
from postroom.endpoint import ANY_REACH, CarrierKind, Endpoint, NewEndpoint
from postroom.ids import RandomIds
from postroom.message import Admitted, Delivery, NewMessage, Written
from postroom.model import Principal
from postroom.services.appointed import Appointments
from postroom.store.endpoints import EndpointTable
from tests.offices import ADMIN, Bench


class Mail:
    """A bench's post."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.office = bench.office

    async def send(self, payload: str = "hello", by: Principal = ADMIN, **more: Any) -> Admitted:
        """Send to the session ses_1, or wherever is said."""
        if not {"to", "channel", "target_repo"} & set(more):
            more["to"] = "ses_1"
        return await self.office.post.send(by, NewMessage(payload, **more))

    async def pane(self, number: int, by: Principal = ADMIN, **more: Any) -> Endpoint:
        """Attach a terminal's pane, each number a place of its own."""
        new = NewEndpoint(CarrierKind.TMUX, {"pane": f"%{number}"}, f"tmux:s:1:2:%{number}", **more)
        return await self.office.registry.attach(by, new)

    async def wake(self, repository: str = "repo", by: Principal = ADMIN, **more: Any) -> Admitted:
        """What the coordination engine sends: to a repository, under a client's key."""
        asked = {"client_id": "engine", "idempotency_key": "lease-1", "payload": "wake up", **more}
        return await self.office.post.send(by, NewMessage(target_repo=repository, **asked))

    async def carry(self, target_key: str, outcome: Written = Written.WRITTEN, reach: str = ANY_REACH) -> Delivery:
        """Lease what is first at a target, and settle it."""
        parcel = await self.office.dispatch.lease(target_key, [reach])
        assert parcel is not None, f"nothing is ready at {target_key}"
        settled = await self.office.dispatch.settle(parcel, outcome, None)
        assert settled is not None
        return settled

    async def count(self, table: str) -> int:
        """How many rows a table has."""
        return int((await self.bench.rows(f"select count(*) from {table}"))[0][0])


def only(admitted: Admitted) -> Delivery:
    """The one delivery of what was admitted."""
    assert admitted.posted is not None
    (delivery,) = admitted.posted.deliveries
    return delivery


def appointments(bench: Bench, wanted: Sequence[NewEndpoint]) -> Appointments:
    """The webhooks that a daemon's settings name."""
    return Appointments(
        bench.store, EndpointTable(Policy().live), bench.office.wake, RandomIds(), CarrierKind.WEBHOOK, wanted
    )
