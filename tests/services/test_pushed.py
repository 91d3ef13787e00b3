"""What is pushed to a channel: shown in its mailbox at once, and arrived only once it was read there or acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.delivery import Policy
from postroom.endpoint import CarrierKind, Endpoint, NewEndpoint
from postroom.limits import SECOND
from postroom.message import AckMode, Cause, Delivery, DeliveryState, Written
from postroom.services.doorbell import CLAIMED
from postroom.services.inbox import show_since
from tests.offices import ADMIN, Bench
from tests.services.bells import STEPS, Bell
from tests.services.mailing import Mail

POLICY = Policy()


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


async def channel(mail: Mail, name: str = "claude", **more: Any) -> Endpoint:
    """A channel's endpoint."""
    new = NewEndpoint(CarrierKind.CHANNEL, {}, "channel:", "process:", name=name, **more)
    return await mail.office.registry.attach(ADMIN, new)


async def pushed(mail: Mail, endpoint: Endpoint) -> Delivery:
    """What is first there, once a process has had it."""
    parcel = await mail.office.dispatch.lease(endpoint.target_key, [endpoint.reach])
    assert parcel is not None, "nothing is ready"
    settled = await mail.office.dispatch.settle(parcel, Written.UNKNOWN, "so it was")
    assert settled is not None
    return settled


async def now_of(mail: Mail, message: str) -> Delivery:
    """The one delivery of a message."""
    (one,) = (await mail.office.post.get(ADMIN, message)).deliveries
    return one


async def read(mail: Mail, name: str = "claude") -> list[str]:
    """Read a mailbox to its end: what it shows."""
    page = await mail.office.inbox.page(ADMIN, name, None, None)
    await mail.office.inbox.mark_read(ADMIN, name, page.next_since)
    return [letter.message.id for letter in page.letters]


async def test_an_endpoint_of_a_process_goes_by_its_own_id(mail: Mail) -> None:
    first, second = await channel(mail), await channel(mail)
    assert (first.target_key, first.reach) == (f"channel:{first.id}", f"process:{first.id}")
    assert first.id != second.id
    assert (await mail.office.registry.get(ADMIN, first.id)).ended_at is None


async def test_a_push_is_shown_and_is_no_delivery(mail: Mail) -> None:
    endpoint = await channel(mail)
    sent = await mail.send(to="claude")
    waiting = asyncio.create_task(mail.office.post.wait_for(ADMIN, sent.id, "handed_off", 50 * SECOND))
    one = await pushed(mail, endpoint)
    assert (one.state, one.doubtful, one.delivered_at, one.handoff_seq) == (DeliveryState.PENDING, True, None, 1)
    assert one.next_attempt_at == one.updated_at + POLICY.unknown
    assert await mail.office.dispatch.lease(endpoint.target_key, [endpoint.reach]) is None
    assert await read(mail) == [sent.id]
    arrived = await now_of(mail, sent.id)
    assert (arrived.state, arrived.doubtful, arrived.next_attempt_at) == (DeliveryState.INJECTED, False, None)
    assert arrived.seen_at == arrived.delivered_at is not None
    # Who waited for it was not told of the push.
    assert (await waiting).deliveries == (arrived,)


async def test_it_is_pushed_again_under_the_same_id_until_it_is_acknowledged(mail: Mail) -> None:
    endpoint = await channel(mail, max_attempts=3)
    sent = await mail.send(to="claude")
    for attempt in (1, 2):
        one = await pushed(mail, endpoint)
        assert (one.message_id, one.attempt_count, one.handoff_seq) == (sent.id, attempt, 1)
        mail.bench.move(POLICY.unknown)
    one = await pushed(mail, endpoint)
    assert (one.state, one.reason, one.doubtful) == (DeliveryState.FAILED, Cause.UNCONFIRMED, True)
    await mail.office.receipts.ack(ADMIN, sent.id)
    assert (await now_of(mail, sent.id)).state is DeliveryState.ACKNOWLEDGED


async def test_what_was_given_up_as_unconfirmed_arrives_when_it_is_read(mail: Mail) -> None:
    endpoint = await channel(mail, max_attempts=1)
    sent = await mail.send(to="claude")
    assert (await pushed(mail, endpoint)).reason == Cause.UNCONFIRMED
    await read(mail)
    one = await now_of(mail, sent.id)
    assert (one.state, one.reason, one.doubtful) == (DeliveryState.INJECTED, None, False)


async def test_what_is_read_after_it_had_failed_is_told_with_the_time_it_failed(mail: Mail) -> None:
    endpoint = await channel(mail)
    sent = await mail.send(to="claude")
    await pushed(mail, endpoint)
    await mail.office.receipts.cancel(ADMIN, sent.id)
    failed_at = (await now_of(mail, sent.id)).updated_at
    mail.bench.move(POLICY.unknown)
    await read(mail)
    one = await now_of(mail, sent.id)
    assert one.seen_at is not None
    assert one.seen_at >= failed_at + POLICY.unknown
    assert (one.state, one.reason) == (DeliveryState.FAILED, Cause.CANCELLED)
    told = await mail.office.trace.trace(ADMIN, sent.id)
    assert [step.at for step in told.steps if step.what == "failed"] == [failed_at]


async def test_reading_is_no_acknowledgement_where_one_is_wanted(mail: Mail) -> None:
    endpoint = await channel(mail)
    sent = await mail.send(to="claude", ack_mode=AckMode.ACKNOWLEDGED)
    await pushed(mail, endpoint)
    await read(mail)
    one = await now_of(mail, sent.id)
    assert one.state is DeliveryState.AWAITING_ACK
    assert one.ack_deadline is not None
    mail.bench.move(POLICY.ack)
    await mail.office.dispatch.sweep(10)
    # It is known by now that somebody reads there: the new round waits for the acknowledgement alone.
    again = await pushed(mail, endpoint)
    assert (again.state, again.round, again.handoff_seq) == (DeliveryState.AWAITING_ACK, 1, 1)


async def test_what_is_read_while_it_is_pushed_again_is_not_in_doubt(mail: Mail) -> None:
    endpoint = await channel(mail)
    sent = await mail.send(to="claude")
    await pushed(mail, endpoint)
    mail.bench.move(POLICY.unknown)
    parcel = await mail.office.dispatch.lease(endpoint.target_key, [endpoint.reach])
    assert parcel is not None
    await read(mail)
    held = await now_of(mail, sent.id)
    assert (held.state, held.lease_expires_at is None) == (DeliveryState.PENDING, False)
    assert held.seen_at is not None
    settled = await mail.office.dispatch.settle(parcel, Written.UNKNOWN, "pushed")
    assert settled is not None
    assert (settled.state, settled.attempt_count) == (DeliveryState.INJECTED, 2)


async def test_only_what_was_read_has_arrived(mail: Mail) -> None:
    endpoint = await channel(mail)
    sent = [(await mail.send(str(n), to="claude")).id for n in range(3)]
    for _ in sent:
        await pushed(mail, endpoint)
    await mail.office.inbox.mark_read(ADMIN, "claude", show_since(2))
    states = [(await now_of(mail, id_)).state for id_ in sent]
    assert states == [DeliveryState.INJECTED, DeliveryState.INJECTED, DeliveryState.PENDING]


async def test_the_inbox_of_a_pane_is_as_it_was(mail: Mail) -> None:
    pane = await mail.pane(1, name="ann")
    sent = await mail.send(to="ann")
    one = await mail.carry(pane.target_key, Written.UNKNOWN)
    assert one.handoff_seq is None
    assert await read(mail, "ann") == []
    assert (await now_of(mail, sent.id)).state is DeliveryState.PENDING


async def test_whoever_was_silent_for_too_long_sits_there_no_more(mail: Mail) -> None:
    endpoint = await channel(mail)
    assert await mail.office.dispatch.seated(endpoint.target_key)
    mail.bench.move(POLICY.live + 1)
    assert not await mail.office.dispatch.seated(endpoint.target_key)
    await mail.office.registry.heartbeat(ADMIN, endpoint.id)
    assert await mail.office.dispatch.seated(endpoint.target_key)
    await mail.office.registry.detach(ADMIN, endpoint.id)
    assert not await mail.office.dispatch.seated(endpoint.target_key)


# Rings.


async def test_a_ring_is_pushed_once_and_repeated_ever_more_seldom_until_somebody_claims(mail: Mail) -> None:
    bell = Bell(mail.bench)
    endpoint = await channel(mail, queues=("review",))
    await bell.work()
    assert await bell.look() == 1
    for number, step in enumerate(STEPS[:3], start=1):
        await bell.alive(endpoint)
        one = await pushed(mail, endpoint)
        assert one.state is DeliveryState.PENDING
        assert one.next_attempt_at == one.expires_at
        mail.bench.move(2 * POLICY.unknown)
        # The unknown write is not made again: the doorbell sees to it in its own time.
        assert await mail.office.dispatch.lease(endpoint.target_key, [endpoint.reach]) is None
        mail.bench.move(step - 3 * POLICY.unknown)
        await mail.office.sweep.once()
        await bell.alive(endpoint)
        assert await bell.look() == 0, "it is not its time yet"
        mail.bench.move(POLICY.unknown)
        await bell.alive(endpoint)
        assert await bell.look() == 1
        assert len(await bell.rings()) == number + 1
    await pushed(mail, endpoint)
    await mail.bench.claim(ADMIN, "review", worker="claude")
    await bell.office.doorbell.turn()
    last = (await bell.rings())[-1]
    assert (last.state, last.reason) == ("failed", "cancelled")
    assert (await now_of(mail, last.id)).last_failure_reason == CLAIMED
    mail.bench.move(STEPS[-1])
    await bell.alive(endpoint)
    assert await bell.look() == 0


async def test_a_ring_that_was_read_stays_out(mail: Mail) -> None:
    bell = Bell(mail.bench)
    endpoint = await channel(mail, queues=("review",))
    await bell.work()
    await bell.look()
    await pushed(mail, endpoint)
    await read(mail)
    assert [one.state for one in await bell.rings()] == ["injected"]
    assert await bell.look() == 0
    mail.bench.move(STEPS[0])
    await bell.alive(endpoint)
    assert await bell.look() == 1


async def test_what_was_pushed_keeps_nobody_from_being_rung(mail: Mail) -> None:
    bell = Bell(mail.bench)
    endpoint = await channel(mail, queues=("review", "deploy"))
    await mail.send(to="claude")
    await bell.work()
    assert await bell.look() == 0, "a message is on its way"
    await pushed(mail, endpoint)
    assert await bell.look() == 1
    await pushed(mail, endpoint)
    await bell.work(queue="deploy")
    assert await bell.look() == 1
    assert await bell.rung() == [endpoint.id, endpoint.id]


async def test_a_push_is_told_as_one(mail: Mail) -> None:
    bell = Bell(mail.bench)
    endpoint = await channel(mail, queues=("review",))
    (todo,) = await bell.work()
    await bell.look()
    await pushed(mail, endpoint)
    told = await mail.office.trace.trace(ADMIN, todo)
    assert [step.what for step in told.steps] == ["created", "rung", "ring pushed"]
