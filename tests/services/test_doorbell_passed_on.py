"""A ring that cannot get there: another endpoint that listens hears of the work, and each ring is written once."""

from __future__ import annotations

import pytest

from postroom.daemon import compose
from postroom.limits import MINUTE
from postroom.message import Written
from postroom.model import Principal
from postroom.services.ring_plan import PATIENCE, REST
from postroom.store.rings import PASSED_ON
from tests.conftest import Store
from tests.offices import ADMIN, ANN, Bench, NoJitter
from tests.services.bells import Bell

BOB = Principal("bob")


@pytest.fixture
def bell(bench: Bench) -> Bell:
    return Bell(bench)


async def put_off(bell: Bell, ms: int = PATIENCE) -> int:
    """So much time passes, and nothing is carried meanwhile: how many rings are rung then."""
    bell.bench.move(ms)
    return await bell.look()


async def test_what_is_put_off_for_too_long_is_rung_at_the_next_one(bell: Bell) -> None:
    bob, ann = await bell.seat("bob"), await bell.seat("ann")
    (id_,) = await bell.work()
    assert await bell.look() == 1
    assert await put_off(bell, PATIENCE - 1000) == 0
    assert await put_off(bell, 1000) == 1
    assert [(one.endpoint_id, one.state) for one in await bell.rings()] == [(bob.id, "failed"), (ann.id, "pending")]
    rows = await bell.bench.rows("select last_failure_reason from deliveries where endpoint_id = ?", bob.id)
    assert rows == [(PASSED_ON,)]
    assert "todo" in (await bell.rings())[1].text
    await bell.write(ann)
    assert await put_off(bell) == 0
    assert await bell.office.dispatch.head(bob.target_key, ["any"]) is None
    await bell.bench.claim(ANN, "review")
    await bell.bench.complete(ANN, await bell.bench.get(id_))
    await bell.look()

    # Whoever put it off has been idle for longer, and is passed over for as long as his ring would have lived.
    await bell.work()
    assert await bell.look() == 1
    assert (await bell.rung())[2:] == [ann.id]
    await bell.write(ann)
    await bell.bench.claim(ANN, "review")
    bell.bench.move(REST)
    await bell.alive(ann, bob)
    await bell.look()
    await bell.bench.claim(ANN, "review")
    await bell.work()
    assert await bell.look() == 1
    assert (await bell.rung())[3:] == [bob.id]


async def test_who_rests_is_rung_where_nobody_else_is_there(bell: Bell) -> None:
    bob, ann = await bell.seat("bob"), await bell.seat("ann")
    await bell.work()
    await bell.look()
    assert await put_off(bell) == 1
    await bell.office.registry.detach(ADMIN, ann.id)
    assert await bell.look() == 1
    assert await bell.rung() == [bob.id, ann.id, bob.id]
    # Nobody is left to hear of it: it waits where it is.
    assert await put_off(bell) == 0
    await bell.write(bob)


async def test_a_claim_ends_the_rest(bell: Bell) -> None:
    bob, ann = await bell.seat("bob"), await bell.seat("ann")
    await bell.work()
    await bell.look()
    assert await put_off(bell) == 1
    (held,) = await bell.bench.claim(BOB, "review")
    await bell.look()
    await bell.bench.complete(BOB, held)
    # Ann's was taken back, so that she has been idle for less long than who claims nothing.
    (row,) = await bell.bench.rows("select message_id from rings where endpoint_id = ?", bob.id)
    assert row == (None,)
    assert ann.id in await bell.rung()


@pytest.mark.parametrize("how", ["being written", "may be written", "written"])
async def test_what_may_have_been_written_stays_where_it_is(bell: Bell, how: str) -> None:
    bob, _ = await bell.seat("bob"), await bell.seat("ann")
    await bell.work()
    await bell.look()
    if how == "being written":
        assert await bell.office.dispatch.lease(bob.target_key, ["any"]) is not None
    else:
        await bell.write(bob, Written.WRITTEN if how == "written" else Written.UNKNOWN)
    assert await put_off(bell) == 0
    assert await bell.rung() == [bob.id]


async def test_a_failed_attempt_is_passed_on_too(bell: Bell) -> None:
    bob, ann = await bell.seat("bob"), await bell.seat("ann")
    await bell.work()
    await bell.look()
    await bell.write(bob, Written.REFUSED)
    assert await put_off(bell) == 1
    assert await bell.rung() == [bob.id, ann.id]


async def test_work_of_its_own_goes_to_another_place_of_the_same_name(bell: Bell) -> None:
    first, other, same = [await bell.seat(name) for name in ("bob", "ann", "bob")]
    await bell.work(assignee="bob")
    assert await bell.look() == 1
    assert await put_off(bell) == 1
    assert await bell.rung() == [first.id, same.id]
    assert await put_off(bell) == 0
    assert other.id not in await bell.rung()


async def test_it_says_as_much_for_the_next_in_line_and_no_longer_pause_begins(bell: Bell) -> None:
    bob, ann = await bell.seat("bob"), await bell.seat("ann")
    await bell.work()
    await bell.look()
    assert await put_off(bell) == 1
    rows = await bell.bench.rows("select endpoint_id, step, next_at - rung_at from rings order by rung_at")
    assert rows == [(bob.id, 0, 5 * MINUTE), (ann.id, 0, 5 * MINUTE)]


async def test_where_nothing_carries_nobody_is_rung(store: Store) -> None:
    office = compose(store, jitter=NoJitter(), carries=lambda endpoint: endpoint.name != "ses_y")
    bell = Bell(Bench(store, office))
    away = await bell.seat("ses_y")
    await bell.work("one", "two", "three")
    assert await bell.look() == 0
    bob = await bell.seat("bob")
    for _ in range(3):
        assert await bell.look() == 1
        await bell.write(bob)
        (held,) = await bell.bench.claim(BOB, "review")
        await bell.look()
        await bell.bench.complete(BOB, held)
    assert set(await bell.rung()) == {bob.id}
    assert away.id != bob.id


async def test_a_token_is_rung_for_its_queues_alone(bell: Bell) -> None:
    mal, ann = await bell.seat("mal", by=Principal("mal")), await bell.seat("ann")
    await bell.office.tokens.create(ADMIN, "mal", queues=["open*"])
    await bell.work()
    assert await bell.look() == 1
    assert await bell.rung() == [ann.id]
    assert mal.id != ann.id
