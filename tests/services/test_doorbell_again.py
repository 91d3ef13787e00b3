"""The doorbell again: when a ring is repeated, when it is over, and what takes it back."""

from __future__ import annotations

import pytest

from postroom.limits import MINUTE, SECOND
from postroom.message import DeliveryState, Written
from postroom.model import Principal
from postroom.services.doorbell import CLAIMED
from tests.offices import ADMIN, Bench
from tests.services.bells import STEPS, Bell

ANN, CID = Principal("ann"), Principal("cid")


@pytest.fixture
def bell(bench: Bench) -> Bell:
    return Bell(bench)


async def test_while_nobody_claims_it_rings_again_and_ever_more_seldom(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.work()
    await bell.look()
    for number, step in enumerate((*STEPS, STEPS[-1]), start=1):
        await bell.alive(ann)
        await bell.write(ann)
        bell.bench.move(step - MINUTE)
        await bell.alive(ann)
        assert await bell.look() == 0
        bell.bench.move(MINUTE)
        await bell.alive(ann)
        assert await bell.look() == 1, step
        assert len(await bell.rings()) == number + 1


async def test_the_next_idle_one_is_rung_when_nobody_answers(bell: Bell) -> None:
    seats = [await bell.seat(name) for name in ("ann", "bob", "cid")]
    await bell.work()
    await bell.look()
    for n in range(3):
        await bell.write(seats[n])
        bell.bench.move(STEPS[n])
        await bell.alive(*seats)
        assert await bell.look() == 1
    assert await bell.rung() == [seat.id for seat in (*seats, seats[0])]
    assert await bell.bench.rows("select endpoint_id, step from rings where message_id is not null") == [
        (seats[0].id, 3)
    ]


async def test_a_ring_that_never_got_there_is_rung_again_without_a_longer_pause(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.work()
    await bell.look()
    for number in (2, 3):
        bell.bench.move(STEPS[0])
        await bell.alive(ann)
        await bell.office.sweep.once()
        assert await bell.look() == 1
        assert len(await bell.rings()) == number
    assert await bell.bench.rows("select step from rings") == [(0,)]


async def test_who_cannot_be_reached_is_left_alone_and_another_one_is_rung(bell: Bell) -> None:
    ann, bob = await bell.seat("ann"), await bell.seat("bob")
    await bell.work()
    await bell.look()
    await bell.write(ann, Written.PERMANENT)
    assert await bell.look() == 1
    assert await bell.rung() == [ann.id, bob.id]
    assert await bell.look() == 0
    await bell.office.registry.detach(ADMIN, bob.id)
    assert await bell.look() == 0
    bell.bench.move(STEPS[0])
    await bell.alive(ann)
    assert await bell.look() == 1
    assert (await bell.rung())[-1] == ann.id


async def test_a_ring_at_an_endpoint_that_ended_is_over(bell: Bell) -> None:
    ann, bob = await bell.seat("ann"), await bell.seat("bob")
    await bell.work()
    await bell.look()
    await bell.office.registry.detach(ADMIN, ann.id)
    assert await bell.look() == 1
    assert [(ring.endpoint_id, ring.state, ring.reason) for ring in await bell.rings()] == [
        (ann.id, "failed", "cancelled"),
        (bob.id, "pending", None),
    ]
    assert await bell.bench.rows("select endpoint_id from rings") == [(bob.id,)]


async def test_an_endpoint_that_attaches_is_rung_whoever_was(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.work()
    await bell.look()
    await bell.write(ann)
    bob = await bell.seat("bob")
    assert await bell.office.doorbell.turn() == 1
    await bell.seat("cid", rings=False)
    assert await bell.office.doorbell.turn() == 0
    assert await bell.rung() == [ann.id, bob.id]


async def test_an_endpoint_that_attached_before_it_rang_had_its_chance(bell: Bell) -> None:
    await bell.look()
    ann, bob = await bell.seat("ann"), await bell.seat("bob")
    await bell.work()
    # As another daemon does it, which heard of the work first.
    assert await Bell(Bench(bell.bench.store)).look() == 1
    assert await bell.office.doorbell.turn() == 0
    assert await bell.rung() == [ann.id]
    assert bob.created_at > ann.created_at


async def test_each_claim_rings_the_next_while_work_is_left(bell: Bell) -> None:
    seats = {name: await bell.seat(name) for name in ("ann", "bob", "cid", "dan")}
    await bell.work("1", "2", "3")
    await bell.look()
    for name, rung in (("ann", 1), ("bob", 1), ("cid", 0)):
        await bell.write(seats[name])
        assert await bell.bench.claim(Principal(name), "review")
        assert await bell.office.doorbell.turn() == rung
    assert await bell.rung() == [seats[name].id for name in ("ann", "bob", "cid")]
    assert await bell.bench.rows("select count(*) from rings where message_id is not null") == [(0,)]


async def test_a_claim_through_another_daemon_is_found_by_looking(bell: Bell) -> None:
    ann, bob = await bell.seat("ann"), await bell.seat("bob")
    await bell.work("1", "2")
    await bell.look()
    elsewhere = Bench(bell.bench.store)
    assert await elsewhere.claim(ANN, "review")
    # Nothing was told here but what the look itself finds.
    bell.office.doorbell._news.clear()
    assert await bell.look() == 1
    assert await bell.rung() == [ann.id, bob.id]


@pytest.mark.parametrize("written", [False, True])
async def test_its_claim_takes_a_ring_back_that_was_not_written(bell: Bell, written: bool) -> None:
    ann = await bell.seat("ann")
    await bell.work("1", "2")
    await bell.look()
    if written:
        await bell.write(ann)
    assert await bell.bench.claim(ANN, "review")
    await bell.office.doorbell.turn()
    (ring,) = await bell.rings()
    assert (ring.state, ring.reason) == (("injected", None) if written else ("failed", "cancelled"))
    assert await bell.bench.rows("select message_id, next_at from rings") == [(None, None)]


async def test_an_empty_queue_takes_it_back_whoever_emptied_it(bell: Bell) -> None:
    await bell.seat("ann")
    await bell.work("1", "2")
    await bell.look()
    assert await bell.bench.claim(CID, "review")
    await bell.office.doorbell.turn()
    assert [ring.state for ring in await bell.rings()] == ["pending"]
    assert await bell.bench.claim(CID, "review")
    await bell.office.doorbell.turn()
    (ring,) = await bell.rings()
    assert (ring.state, ring.reason) == ("failed", "cancelled")
    posted = await bell.office.post.get(ADMIN, ring.id)
    assert posted.deliveries[0].last_failure_reason == CLAIMED


async def test_what_is_being_written_is_not_taken_back(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.work()
    await bell.look()
    parcel = await bell.office.dispatch.lease(ann.target_key, ["any"])
    assert parcel is not None
    assert await bell.bench.claim(ANN, "review")
    await bell.office.doorbell.turn()
    assert [ring.state for ring in await bell.rings()] == ["pending"]
    settled = await bell.office.dispatch.settle(parcel, Written.WRITTEN)
    assert settled is not None
    assert settled.state is DeliveryState.INJECTED


async def test_a_claim_begins_anew(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.work("1")
    await bell.look()
    await bell.write(ann)
    bell.bench.move(STEPS[0])
    await bell.alive(ann)
    await bell.look()
    await bell.write(ann)
    (held,) = await bell.bench.claim(ANN, "review")
    await bell.bench.complete(ANN, held)
    await bell.work("2")
    assert await bell.office.doorbell.turn() == 1
    assert await bell.bench.rows("select step from rings") == [(0,)]


@pytest.mark.parametrize("how", ["released", "lapsed"])
async def test_what_comes_back_rings_again_though_a_ring_is_out(bell: Bell, how: str) -> None:
    ann, bob = await bell.seat("ann"), await bell.seat("bob")
    await bell.work("1", "2")
    (held,) = await bell.bench.claim(CID, "review")
    await bell.look()
    await bell.write(ann)
    assert await bell.look() == 0
    if how == "released":
        await bell.bench.release(CID, held)
    else:
        await bell.bench.rows("update todos set lease_expires_at = 1 where id = ?", held.id)
        bell.bench.move(SECOND)
        await bell.office.sweep.once()
    assert await bell.office.doorbell.turn() == 1
    assert await bell.rung() == [ann.id, bob.id]
    assert await bell.look() == 0
    assert await bell.bench.rows("select endpoint_id, step from rings where message_id is not null") == [(bob.id, 0)]


async def test_who_gave_it_back_is_rung_when_nobody_else_is_there(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.work()
    await bell.look()
    await bell.write(ann)
    (held,) = await bell.bench.claim(ANN, "review")
    await bell.office.doorbell.turn()
    await bell.bench.release(ANN, held)
    assert await bell.office.doorbell.turn() == 1
    assert await bell.rung() == [ann.id, ann.id]
