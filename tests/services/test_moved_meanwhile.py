"""A delivery that somebody else changes while a verb waits for its row: the verb goes by what the row is then.

On PostgreSQL a statement that waited looks at the row anew, but first checks what it would make of the row as it was: what
it takes from other rows must fit both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from postroom.endpoint import CarrierKind, NewEndpoint
from postroom.message import AckMode, DeliveryState, Written
from postroom.store.postgres import PostgresEngine
from tests.offices import ADMIN, Bench
from tests.processes import until
from tests.services.mailing import Mail, only
from tests.services.postings import ANY, Postings

SEEN = "seen_at = updated_at"
WRITTEN = "state = 'injected', lease_id = null, lease_expires_at = null, handoff_seq = 1, delivered_at = updated_at"
AWAITED = "state = 'awaiting_ack', handoff_seq = 1, ack_deadline = updated_at + 30000, delivered_at = updated_at"
ACKNOWLEDGED = "state = 'acknowledged', acknowledged_at = updated_at, handoff_seq = 1"

pytestmark = pytest.mark.parametrize("new_engine", ["postgres"], indirect=True)


@asynccontextmanager
async def moved(bench: Bench, id_: str, how: str) -> AsyncIterator[None]:
    """Inside, somebody has changed the delivery; what is done inside waits for that to be committed."""
    assert isinstance(bench.store, PostgresEngine)
    async with await psycopg.AsyncConnection.connect(bench.store._url) as there:
        await there.execute(f"update deliveries set {how} where id = %s".encode(), (id_,))
        if "handoff_seq" in how:
            await there.execute(
                "insert into mailboxes (name, handoff_seq) select mailbox, 1 from deliveries where id = %s", (id_,)
            )
        yield
        await there.commit()


async def waits(bench: Bench, verb: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """The verb, begun, once it waits for a row."""
    task = asyncio.create_task(verb)

    async def blocked() -> bool:
        found = await bench.rows("select count(*) from pg_locks where not granted")
        return task.done() or found[0][0] > 0

    await until(blocked, "the verb waits")
    assert not task.done(), "nothing was waited for"
    return task


@pytest.mark.parametrize("how", [SEEN, WRITTEN])
async def test_an_acknowledgement_gives_it_its_place(bench: Bench, how: str) -> None:  # T36
    post = Postings(bench)
    one = await post.add()
    parcel = await bench.office.dispatch.lease(one.target_key, ANY)
    assert parcel is not None
    async with moved(bench, one.id, how):
        acking = await waits(bench, bench.office.receipts.ack(ADMIN, one.message_id))
    await acking
    kept = await post.get(one.id)
    assert (kept.state, kept.handoff_seq) == (DeliveryState.ACKNOWLEDGED, 1)


@pytest.mark.parametrize("how", [SEEN, ACKNOWLEDGED])
@pytest.mark.parametrize("outcome", list(Written))
@pytest.mark.parametrize("carrier", [CarrierKind.OPENCODE, CarrierKind.CHANNEL])
async def test_a_settlement_gives_it_its_place(bench: Bench, outcome: Written, carrier: CarrierKind, how: str) -> None:
    post = Postings(bench)
    target = f"{carrier}:ses_a"
    one = await post.add(target, carrier=carrier)
    parcel = await bench.office.dispatch.lease(target, ANY)
    assert parcel is not None
    async with moved(bench, one.id, how):
        settling = await waits(bench, bench.office.dispatch.settle(parcel, outcome, "because"))
    assert await settling is not None
    kept = await post.get(one.id)
    assert kept.lease_id is None
    if how is ACKNOWLEDGED:
        assert (kept.state, kept.handoff_seq) == (DeliveryState.ACKNOWLEDGED, 1)
        return
    # A channel's push that was seen meanwhile has arrived.
    shown = outcome is Written.WRITTEN or (outcome is Written.UNKNOWN and carrier is CarrierKind.CHANNEL)
    assert kept.handoff_seq == (1 if shown else None)
    assert (kept.state is DeliveryState.INJECTED) == shown


@pytest.mark.parametrize("how", [SEEN, AWAITED])
async def test_an_inbox_that_takes_it_over_gives_it_its_place(bench: Bench, how: str) -> None:  # T46
    mail = Mail(bench)
    old = await mail.pane(1, repositories=("repo",), name="bob")
    first = await mail.wake(ack_mode=AckMode.ACKNOWLEDGED)
    await bench.office.registry.detach(ADMIN, old.id)
    inbox = NewEndpoint(CarrierKind.INBOX, {}, "inbox:bob", name="bob", repositories=("repo",))
    await bench.office.registry.attach(ADMIN, inbox)
    async with moved(bench, only(first).id, how):
        repeating = await waits(bench, mail.wake(ack_mode=AckMode.ACKNOWLEDGED))
    again = await repeating
    assert again.rebound
    assert (only(again).state, only(again).handoff_seq) == (DeliveryState.AWAITING_ACK, 1)
