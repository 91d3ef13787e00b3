"""Acknowledging, retrying and cancelling: who may, which delivery is meant, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from postroom import delivery as oracle
from postroom.delivery import Policy
from postroom.errors import Conflict, Forbidden, NotFound
from postroom.message import AckMode, Cause, Delivery, DeliveryState, Written
from postroom.model import Principal
from tests.offices import ADMIN, ANN, BOB, Bench
from tests.services.postings import ANY, A, B, C, Postings

POLICY = Policy()
SES_A = Principal("ses_a")
SENDER = Principal("ses_s")


@pytest.fixture
def post(bench: Bench) -> Postings:
    """Deliveries in the bench's store."""
    return Postings(bench)


async def written(post: Postings, outcome: Written = Written.WRITTEN, **more: Any) -> Delivery:
    """A delivery whose write came to this."""
    made = await post.add(**more)
    parcel = await post.lease(made.target_key)
    assert parcel.delivery.id == made.id
    settled = await post.dispatch.settle(parcel, outcome, "because")
    assert settled is not None
    return settled


# Acknowledging.


async def test_any_state_becomes_acknowledged_and_twice_is_the_same(post: Postings) -> None:
    # T25 T36
    states = [
        await post.add(),
        await written(post, target=B),
        await written(post, target=C, ack_mode=AckMode.ACKNOWLEDGED),
        await written(post, Written.PERMANENT, target="opencode:ses_d"),
        await written(post, Written.REFUSED, target="opencode:ses_e"),
    ]
    for before in states:
        (shown,) = (await post.bench.office.receipts.ack(ADMIN, before.message_id)).deliveries
        assert shown == replace(oracle.ack(before, shown.updated_at, 1), deferred_reason=None, deferred_since=None), (
            before.state
        )
        post.bench.move(1000)
        assert (await post.bench.office.receipts.ack(ADMIN, before.message_id)).deliveries == (shown,)
        assert await post.get(before) == shown
    assert await post.dispatch.ready_targets(ANY, 10) == []


async def test_an_acknowledgement_keeps_the_place_that_was_taken_before(post: Postings) -> None:
    first = await written(post, ack_mode=AckMode.ACKNOWLEDGED)
    second = await written(post)
    third = await post.add()
    assert [(await post.receipt(one)).handoff_seq for one in (first, third, second)] == [1, 3, 2]


async def test_an_acknowledgement_leaves_the_lease_to_its_courier(post: Postings) -> None:
    # T36
    made = await post.add(ack_mode=AckMode.ACKNOWLEDGED)
    parcel = await post.lease()
    await post.add()
    acknowledged = await post.receipt(made)
    assert acknowledged.lease_id == parcel.delivery.lease_id
    assert await post.dispatch.lease(A, ANY) is None
    settled = await post.dispatch.settle(parcel, Written.UNKNOWN, "?")
    assert settled is not None
    assert settled == replace(acknowledged, lease_id=None, lease_expires_at=None, updated_at=settled.updated_at)
    assert await post.dispatch.settle(parcel, Written.PERMANENT, "?") is None
    assert (await post.lease()).delivery.id != made.id


async def test_an_acknowledged_lease_that_lapses_only_ends(post: Postings) -> None:
    made = await post.add()
    await post.lease()
    acknowledged = await post.receipt(made)
    post.bench.move(POLICY.lease)
    assert (await post.dispatch.sweep(10)).lapsed == 1
    ended = await post.get(made)
    assert ended == replace(acknowledged, lease_id=None, lease_expires_at=None, updated_at=ended.updated_at)


async def test_only_recipients_acknowledge_and_others_know_of_nothing(post: Postings) -> None:
    await post.endpoint("ep_1", "ann", "tmux:x")
    made = await post.add("tmux:x", mailbox="ep_1", endpoint_id="ep_1")
    ack = post.bench.office.receipts.ack
    with pytest.raises(NotFound):
        await ack(BOB, made.message_id)
    with pytest.raises(Forbidden, match="only its recipient"):
        await ack(SENDER, made.message_id)
    with pytest.raises(NotFound, match="no message"):
        await ack(ADMIN, "msg_never")
    for who in (ANN, Principal("eve", speaks_as=("ep_*",))):
        assert (await ack(who, made.message_id)).delivery is not None
    assert (await post.get(made)).state is DeliveryState.ACKNOWLEDGED


async def test_the_caller_s_own_delivery_is_meant_or_the_only_one(post: Postings) -> None:
    deliveries = await post.add_many(A, to=(B, C))
    ack = post.bench.office.receipts.ack
    message_id = deliveries[0].message_id
    with pytest.raises(Conflict) as refused:
        await ack(ADMIN, message_id)
    assert refused.value.code == "ambiguous_endpoint"
    assert refused.value.field == "endpoint"
    with pytest.raises(NotFound) as unknown:
        await ack(ADMIN, message_id, "ep_other")
    assert unknown.value.field == "endpoint"
    posted = await ack(SES_A, message_id)
    assert [one.state for one in posted.deliveries] == [
        DeliveryState.ACKNOWLEDGED,
        DeliveryState.PENDING,
        DeliveryState.PENDING,
    ]
    assert posted.delivery is None
    both = Principal("x", speaks_as=("ses_b", "ses_c"))
    with pytest.raises(Conflict):
        await ack(both, message_id)
    await ack(both, message_id, "ses_b")
    await ack(ADMIN, message_id, C)
    with pytest.raises(Forbidden):
        await ack(SES_A, message_id, "ses_c")
    assert [(await post.get(one)).state for one in deliveries] == [DeliveryState.ACKNOWLEDGED] * 3


async def test_a_message_to_nobody_has_nothing_to_acknowledge(post: Postings) -> None:
    made = await post.add()
    await post.bench.rows("delete from deliveries")
    for call in ("ack", "retry", "cancel"):
        with pytest.raises(Conflict):
            await getattr(post.bench.office.receipts, call)(ADMIN, made.message_id)


# Retrying.


@pytest.mark.parametrize(
    "cause", [Cause.NO_SUCH_TARGET, Cause.EXHAUSTED, Cause.UNCONFIRMED, Cause.ACK_TIMEOUT, Cause.CANCELLED]
)
async def test_a_failed_one_is_retried_with_its_attempts_anew(post: Postings, cause: Cause) -> None:
    # T37
    outcomes = {
        Cause.NO_SUCH_TARGET: Written.PERMANENT,
        Cause.EXHAUSTED: Written.REFUSED,
        Cause.UNCONFIRMED: Written.UNKNOWN,
        Cause.ACK_TIMEOUT: Written.WRITTEN,
    }
    if cause is Cause.CANCELLED:
        before = await post.add()
        await post.bench.office.receipts.cancel(ADMIN, before.message_id)
    else:
        before = await written(post, outcomes[cause], max_attempts=1, ack_mode=AckMode.ACKNOWLEDGED)
    post.bench.move(POLICY.ack)
    await post.dispatch.sweep(10)
    before = await post.get(before)
    assert before.reason is cause
    posted = await post.bench.office.receipts.retry(SENDER, before.message_id)
    (shown,) = posted.deliveries
    assert shown == oracle.retry(before, shown.updated_at)
    assert await post.get(before) == shown
    assert shown.round == (1 if cause is Cause.ACK_TIMEOUT else 0)
    assert (await post.lease()).delivery.attempt_count == 1


@pytest.mark.parametrize("again", [None, Written.REFUSED, Written.UNKNOWN])
async def test_what_was_written_is_written_again_when_it_is_retried(post: Postings, again: Written | None) -> None:
    # T37
    receipts = post.bench.office.receipts
    first = await written(post, ack_mode=AckMode.ACKNOWLEDGED)
    if again is not None:
        post.bench.move(POLICY.ack)
        await post.dispatch.sweep(10)
        await post.dispatch.settle(await post.lease(), again, "not now")
    await receipts.cancel(SENDER, first.message_id)
    before = await post.get(first)
    (shown,) = (await receipts.retry(SENDER, first.message_id)).deliveries
    assert shown == oracle.retry(before, shown.updated_at)
    # In a round of its own nothing on the target passes for it; a write in doubt is looked for in the round it was of.
    assert shown.round == {None: 1, Written.REFUSED: 2, Written.UNKNOWN: 1}[again]


async def test_nothing_but_the_failed_is_retried_and_never_the_expired(post: Postings) -> None:
    # T37
    pending, injected = await post.add(target=B), await written(post, target=C)
    expired = await post.add(ttl=1000)
    post.bench.move(1000)
    assert (await post.dispatch.sweep(10)).expired == 1
    for one, said in ((pending, "pending"), (injected, "injected"), (expired, "expired")):
        with pytest.raises(Conflict, match=said):
            await post.bench.office.receipts.retry(ADMIN, one.message_id)


async def test_only_the_sender_and_admins_retry_and_cancel(post: Postings) -> None:
    made = await post.add()
    for call in (post.bench.office.receipts.retry, post.bench.office.receipts.cancel):
        with pytest.raises(Forbidden, match="only an admin or its sender, ses_s"):
            await call(SES_A, made.message_id)
        with pytest.raises(NotFound):
            await call(BOB, made.message_id)
    await post.bench.office.receipts.cancel(Principal("x", speaks_as=("ses_*",)), made.message_id)


async def test_of_several_the_failed_one_is_retried(post: Postings) -> None:
    deliveries = await post.add_many(A, to=(B, C))
    retry = post.bench.office.receipts.retry
    await post.dispatch.settle(await post.lease(B), Written.PERMANENT, "gone")
    posted = await retry(SENDER, deliveries[0].message_id)
    assert [one.state for one in posted.deliveries] == [DeliveryState.PENDING] * 3
    with pytest.raises(Conflict) as refused:
        await retry(SENDER, deliveries[0].message_id)
    assert refused.value.code == "ambiguous_endpoint"
    with pytest.raises(Conflict, match="is pending"):
        await retry(SENDER, deliveries[0].message_id, C)


async def test_a_request_key_retries_and_cancels_once(post: Postings) -> None:
    made = await written(post, Written.PERMANENT)
    receipts = post.bench.office.receipts
    first = await receipts.retry(SENDER, made.message_id, request_id="r1")
    assert await receipts.retry(SENDER, made.message_id, request_id="r1") == first
    with pytest.raises(Conflict):
        await receipts.cancel(SENDER, made.message_id, request_id="r1")
    await receipts.cancel(SENDER, made.message_id, "no more", request_id="r2")
    (shown,) = (await receipts.cancel(SENDER, made.message_id, "no more", request_id="r2")).deliveries
    assert (shown.reason, shown.last_failure_reason) == (Cause.CANCELLED, "no more")
    assert [one.state for one in (await receipts.retry(SENDER, made.message_id, request_id="r1")).deliveries] == [
        DeliveryState.FAILED
    ]


# Cancelling.


async def test_what_is_under_way_is_cancelled(post: Postings) -> None:
    pending = await post.add()
    waiting = await written(post, target=B, ack_mode=AckMode.ACKNOWLEDGED)
    for before in (pending, waiting):
        (shown,) = (await post.bench.office.receipts.cancel(SENDER, before.message_id)).deliveries
        assert shown == oracle.cancel(before, shown.updated_at, "cancelled by ses_s")
        with pytest.raises(Conflict, match="only what is under way"):
            await post.bench.office.receipts.cancel(SENDER, before.message_id)
    post.bench.move(POLICY.ack)
    assert (await post.dispatch.sweep(10)).total == 0


async def test_what_is_being_written_is_not_cancelled(post: Postings) -> None:
    deliveries = await post.add_many(A, to=(B,))
    cancel = post.bench.office.receipts.cancel
    parcel = await post.lease()
    posted = await cancel(SENDER, deliveries[0].message_id, "stop")
    assert [one.state for one in posted.deliveries] == [DeliveryState.PENDING, DeliveryState.FAILED]
    with pytest.raises(Conflict) as refused:
        await cancel(SENDER, deliveries[0].message_id)
    assert refused.value.details["state"] == "being_written"
    await post.dispatch.settle(parcel, Written.WRITTEN)
    with pytest.raises(Conflict, match="failed and injected"):
        await cancel(SENDER, deliveries[0].message_id)
