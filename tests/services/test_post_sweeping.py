"""What falls due by itself in the post: leases that are over, deadlines that pass, lives that end."""

from __future__ import annotations

import asyncio

import pytest

from postroom import delivery as oracle
from postroom.delivery import Policy
from postroom.message import AckMode, Cause, DeliveryState, Written
from tests.offices import Bench, gather
from tests.processes import until
from tests.services.postings import A, B, C, Postings

POLICY = Policy()


@pytest.fixture
def post(bench: Bench) -> Postings:
    """Deliveries in the bench's store."""
    return Postings(bench)


async def test_each_kind_goes_where_it_belongs_and_wakes_its_target(post: Postings) -> None:
    # T29 T33 T35
    leased = await post.add(A)
    for target, most in ((B, 2), (C, 1)):
        await post.add(target, ack_mode=AckMode.ACKNOWLEDGED, max_attempts=most)
        await post.dispatch.settle(await post.lease(target), Written.WRITTEN)
    expiring = await post.add("opencode:ses_d", ttl=1000)
    held = await post.lease(A)
    before = {row[0]: await post.get(row[0]) for row in await post.bench.rows("select id from deliveries")}
    woken: list[str | None] = []
    post.bench.office.wake.listen_post(woken.append)
    assert (await post.dispatch.sweep(10)).total == 0
    post.bench.move(max(POLICY.lease, POLICY.ack))
    swept = await post.dispatch.sweep(10)
    assert (swept.lapsed, swept.overdue, swept.expired, swept.turns) == (1, 2, 1, 0)
    assert set(woken) - {None} == {A, B, C, "opencode:ses_d"}
    for id_, old in before.items():
        now = await post.get(id_)
        if id_ == leased.id:
            assert now == oracle.lapse(held.delivery, now.updated_at, POLICY)
        elif id_ == expiring.id:
            assert now == oracle.expire(old, now.updated_at)
        else:
            assert now == oracle.overdue(old, now.updated_at)
    assert (await post.lease(B)).delivery.round == 1
    causes = await post.bench.rows("select reason from deliveries where state = 'failed' order by reason")
    assert causes == [(Cause.ACK_TIMEOUT,), (Cause.EXPIRED,)]


async def test_what_is_held_does_not_expire_under_its_courier(post: Postings) -> None:
    await post.add(ttl=1000)
    parcel = await post.lease()
    post.bench.move(1000)
    assert (await post.dispatch.sweep(10)).total == 0
    settled = await post.dispatch.settle(parcel, Written.BUSY)
    assert settled is not None
    assert (await post.dispatch.sweep(10)).expired == 1


async def test_what_lapses_after_its_life_expires_in_the_same_sweep(post: Postings) -> None:
    made = await post.add(ttl=1000)
    await post.lease()
    post.bench.move(POLICY.lease)
    swept = await post.dispatch.sweep(10)
    assert (swept.lapsed, swept.expired) == (1, 1)
    assert (await post.get(made)).reason is Cause.EXPIRED


async def test_a_sweep_takes_more_than_one_batch(post: Postings) -> None:
    for number in range(7):
        await post.add(f"opencode:{number}", ttl=1000)
    post.bench.move(1000)
    assert (await post.dispatch.sweep(3)).expired == 7


async def test_sweeps_at_once_count_each_delivery_once(post: Postings) -> None:
    for number in range(30):
        await post.add(f"opencode:{number:02}")
        await post.lease(f"opencode:{number:02}")
    post.bench.move(POLICY.lease)
    others = [Bench(post.bench.store) for _ in range(4)]
    answers = await gather(*[other.office.dispatch.sweep(7) for other in others])
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    assert sum(answer.lapsed for answer in answers) == 30
    assert await post.bench.rows("select count(*) from deliveries where doubtful and lease_id is null") == [(30,)]


async def test_the_loop_sweeps_the_post(post: Postings) -> None:
    made = await post.add(ack_mode=AckMode.ACKNOWLEDGED)
    await post.dispatch.settle(await post.lease(), Written.WRITTEN)
    running = asyncio.create_task(post.bench.office.sweep.run())
    post.bench.move(POLICY.ack)

    async def again() -> bool:
        return (await post.get(made)).state is DeliveryState.PENDING

    await until(again, "the delivery is pending again")
    await until(lambda: post.bench.office.sweep.report.post == 1, "the sweep has counted it")
    running.cancel()
    await gather(running)
