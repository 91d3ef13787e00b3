"""The doorbell: who is rung for waiting work, when, how often, and when not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from postroom.endpoint import CarrierKind, NewEndpoint
from postroom.limits import HOUR, MINUTE
from postroom.message import AckMode, Priority, Written
from postroom.model import Principal, TodoChange
from postroom.services.doorbell import KIND, LIFE
from postroom.store.engine import Once
from tests.offices import ADMIN, Bench
from tests.services.bells import STEPS, Bell

ANN, BOB, CID = (Principal(name) for name in ("ann", "bob", "cid"))


@pytest.fixture
def bell(bench: Bench) -> Bell:
    return Bell(bench)


# What a ring is.


async def test_a_ring_is_one_low_line_that_says_what_waits_where(bell: Bell) -> None:
    ann = await bell.seat("ann")
    first, *_ = await bell.work("one", "two", "three")
    assert await bell.look() == 1
    (ring,) = await bell.rings()
    assert ring.text == (
        '3 todos wait in queue review. Claim with claim_next(queues=["review"]). This is a notice and grants nothing.'
    )
    posted = await bell.office.post.get(ADMIN, ring.id)
    message, delivery = posted.message, posted.deliveries[0]
    assert (message.sender, message.kind, message.priority, message.ack_mode) == (
        "postroom",
        KIND,
        Priority.LOW,
        AckMode.INJECTED,
    )
    assert message.metadata == {"queue": "review", "todo_id": first, "count": 3}
    assert message.correlation_id == first
    assert message.expires_at == message.created_at + LIFE
    assert (delivery.endpoint_id, delivery.target_key, delivery.state) == (ann.id, ann.target_key, "pending")


async def test_one_todo_waits_and_a_thousand_are_not_counted_further(bell: Bell) -> None:
    await bell.seat("ann")
    await bell.seat("bob", "big")
    await bell.work("one")
    rows = [f"('td_{n}', 'big', 'api', 'x', 'root', 0, 0)" for n in range(1001)]
    await bell.bench.rows(
        f"insert into todos (id, queue, source, title, created_by, created_at, updated_at) values {', '.join(rows)}"
    )
    await bell.look()
    texts = sorted(ring.text.partition(".")[0] for ring in await bell.rings())
    assert texts == ["1 todo waits in queue review", "1000 or more todos wait in queue big"]


async def test_a_ring_never_holds_up_a_direct_message(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.work()
    await bell.look()
    sent = await bell.mail.send("first things first", to=ann.id)
    parcel = await bell.office.dispatch.lease(ann.target_key, ["any"])
    assert parcel is not None
    assert parcel.message.id == sent.id


async def test_what_waits_unwritten_ends_with_its_life_and_is_no_dead_letter(bell: Bell) -> None:
    await bell.seat("ann")
    await bell.work()
    await bell.look()
    bell.bench.move(LIFE)
    await bell.office.sweep.once()
    (ring,) = await bell.rings()
    assert (ring.state, ring.reason) == ("failed", "expired")


# Who is rung.


async def test_nobody_is_rung_where_nothing_waits_or_nobody_listens(bell: Bell) -> None:
    await bell.work()
    assert await bell.look() == 0
    await bell.seat("ann", "other")
    await bell.seat("bob", "review", rings=False)
    assert await bell.look() == 0
    assert await bell.rings() == []
    assert await bell.mail.count("rings") == 0


async def test_one_is_rung_and_nobody_else_while_that_ring_is_out(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.seat("bob")
    await bell.work()
    assert await bell.look() == 1
    await bell.work("more", "and more")
    assert await bell.look() == 0
    await bell.write(ann)
    assert await bell.look() == 0
    assert await bell.rung() == [ann.id]


async def test_the_longest_idle_one_is_rung_first(bell: Bell) -> None:
    ann, bob, cid = [await bell.seat(name) for name in ("ann", "bob", "cid")]
    # Ann was written to last, Bob claimed before that, Cid had nothing to do at all since it came.
    await bell.office.doorbell.once()
    await bell.bench.complete(BOB, await bell.bench.claimed(BOB, "review"))
    await bell.look()
    bell.bench.move(1)
    await bell.mail.send("hello", to=ann.id)
    await bell.write(ann)
    for expected in (cid, bob, ann):
        await bell.work()
        await bell.look()
        assert (await bell.rung())[-1] == expected.id
        await bell.write(expected)
        principal = Principal(str(expected.name))
        for todo in await bell.bench.claim(principal, "review", limit=10):
            bell.bench.move(1)
            await bell.bench.complete(principal, todo)
        await bell.look()


async def test_who_has_something_to_do_is_not_rung(bell: Bell) -> None:
    names = ("pending", "delayed", "leased", "turn", "acks", "holds", "worker", "silent", "ended", "free")
    seats = {name: await bell.seat(name, ack_mode="acknowledged" if name == "acks" else "injected") for name in names}
    dispatch = bell.office.dispatch
    for name in ("pending", "delayed", "leased", "turn", "acks"):
        await bell.mail.send(to=seats[name].id)
    await bell.write(seats["delayed"], Written.REFUSED)
    assert await dispatch.lease(seats["leased"].target_key, ["any"]) is not None
    parcel = await dispatch.lease(seats["turn"].target_key, ["any"])
    assert parcel is not None
    await dispatch.settle(parcel, Written.WRITTEN, turn=True)
    await bell.write(seats["acks"])
    await bell.bench.claimed(Principal("holds"), "elsewhere")
    await bell.bench.create("elsewhere")
    assert await bell.bench.claim(Principal("worker"), "elsewhere", worker="w1")
    await bell.bench.rows("update endpoints set seen_at = 0 where id = ?", seats["silent"].id)
    await bell.office.registry.detach(ADMIN, seats["ended"].id)
    await bell.work()
    for _ in range(3):
        await bell.look()
    assert await bell.rung() == [seats["free"].id]


async def test_who_is_done_is_rung_for_what_waits(bell: Bell) -> None:
    ann = await bell.seat("ann")
    held = await bell.bench.claimed(ANN, "elsewhere")
    await bell.work()
    assert await bell.look() == 0
    await bell.bench.complete(ANN, held)
    assert await bell.look() == 1
    assert await bell.rung() == [ann.id]


async def test_a_lapsed_claim_keeps_nobody_busy(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.bench.claimed(ANN, "elsewhere")
    await bell.work()
    bell.bench.move(HOUR)
    await bell.alive(ann)
    assert await bell.look() == 1


@pytest.mark.parametrize("worker", ["pane-1", "other"])
async def test_a_worker_of_who_attached_it_is_the_endpoint_of_that_name(bell: Bell, worker: str) -> None:
    plugin = Principal("plugin", speaks_as=("pane-*",))
    await bell.seat("pane-1", by=plugin)
    await bell.bench.create("elsewhere")
    assert await bell.bench.claim(plugin, "elsewhere", worker=worker)
    await bell.work()
    assert await bell.look() == (worker == "other")


async def test_an_endpoint_without_a_name_claims_as_who_attached_it(bell: Bell) -> None:
    new = NewEndpoint(CarrierKind.TMUX, {}, "tmux:1", queues=("review",))
    await bell.office.registry.attach(ANN, new)
    held = await bell.bench.claimed(ANN, "elsewhere")
    await bell.work()
    assert await bell.look() == 0
    await bell.bench.complete(ANN, held)
    assert await bell.look() == 1


async def test_an_inbox_that_listens_has_its_ring_at_once(bell: Bell) -> None:
    new = NewEndpoint(CarrierKind.INBOX, {}, "inbox:ann", name="ann", queues=("review",))
    await bell.office.registry.attach(ANN, new)
    await bell.work()
    assert await bell.look() == 1
    page = await bell.office.inbox.page(ANN, None, None, None)
    assert [letter.message.kind for letter in page.letters] == [KIND]


# Assigned work.


async def test_an_assigned_todo_rings_only_an_endpoint_of_that_name(bell: Bell) -> None:
    ann, bob = await bell.seat("ann"), await bell.seat("bob")
    (id_,) = await bell.work(assignee="bob")
    await bell.work(assignee="nobody")
    assert await bell.look() == 1
    (ring,) = await bell.rings()
    assert (ring.endpoint_id, ring.text.partition(".")[0]) == (bob.id, "1 todo waits in queue review")
    assert await bell.look() == 0
    # What anybody may claim rings somebody else meanwhile, and Bob's own work rings him beside that.
    await bell.work("for all")
    assert await bell.look() == 1
    assert await bell.rung() == [bob.id, ann.id]
    assert (await bell.office.post.get(ADMIN, ring.id)).message.metadata["todo_id"] == id_


async def test_own_work_rings_beside_a_ring_that_is_out(bell: Bell) -> None:
    ann, bob = await bell.seat("ann"), await bell.seat("bob")
    await bell.work()
    await bell.look()
    await bell.work(assignee="bob")
    await bell.look()
    assert await bell.rung() == [ann.id, bob.id]


async def test_one_of_several_endpoints_of_a_name_is_rung_for_its_work(bell: Bell) -> None:
    first = await bell.seat("ann")
    await bell.seat("ann")
    await bell.work(assignee="ann")
    for _ in range(2):
        await bell.look()
    assert await bell.rung() == [first.id]


async def test_who_is_rung_for_its_own_work_hears_of_the_rest(bell: Bell) -> None:
    await bell.seat("ann")
    await bell.work("mine", assignee="ann")
    await bell.work("anybody's", "too")
    assert await bell.look() == 1
    (ring,) = await bell.rings()
    assert ring.text.startswith("3 todos wait")
    assert await bell.look() == 0


async def test_own_work_is_rung_for_again_in_its_time(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.seat("bob")
    await bell.work(assignee="ann")
    await bell.look()
    await bell.write(ann)
    bell.bench.move(STEPS[0])
    await bell.alive(ann)
    assert await bell.look() == 1
    assert await bell.rung() == [ann.id, ann.id]
    assert await bell.bench.rows("select step, own from rings where message_id is not null") in ([(1, 1)], [(1, True)])


async def test_work_that_is_assigned_later_rings_its_new_owner(bell: Bell) -> None:
    await bell.seat("ann")
    bob = await bell.seat("bob")
    (id_,) = await bell.work(assignee="nobody")
    assert await bell.look() == 0
    await bell.office.todos.update(ADMIN, id_, TodoChange(assignee="bob", assignee_given=True))
    assert await bell.office.doorbell.turn() == 1
    assert await bell.rung() == [bob.id]


# Queues that hand nothing out.


async def test_a_paused_queue_does_not_ring(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.office.queues.put(ADMIN, "review", {"paused": True})
    await bell.work()
    await bell.work(assignee="ann")
    assert await bell.look() == 0
    await bell.office.queues.put(ADMIN, "review", {"paused": False})
    assert await bell.office.doorbell.turn() == 1
    assert await bell.rung() == [ann.id]
    await bell.office.queues.put(ADMIN, "review", {"paused": True})
    await bell.look()
    (ring,) = await bell.rings()
    assert ring.reason == "cancelled"


async def test_a_full_queue_does_not_ring_until_a_place_is_free(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.office.queues.put(ADMIN, "review", {"max_in_flight": 1})
    held = await bell.bench.claimed(CID, "review")
    await bell.work()
    assert await bell.look() == 0
    await bell.bench.complete(CID, held)
    assert await bell.office.doorbell.turn() == 1
    assert await bell.rung() == [ann.id]


async def test_what_waits_for_its_time_rings_when_that_has_come(bell: Bell) -> None:
    await bell.seat("ann")
    await bell.work(delay_ms=MINUTE // 2)
    assert await bell.look() == 0
    bell.bench.move(MINUTE // 2)
    await bell.office.sweep.once()
    assert await bell.office.doorbell.turn() == 1


async def test_queues_are_rung_for_apart(bell: Bell) -> None:
    ann = await bell.seat("ann", "review", "build")
    await bell.work()
    await bell.look()
    await bell.work(queue="build")
    # Something is under way to Ann.
    assert await bell.look() == 0
    await bell.write(ann)
    assert await bell.look() == 1
    queues = await bell.bench.rows("select metadata from messages order by seq")
    assert [json.loads(row[0])["queue"] for row in queues] == ["review", "build"]


async def test_what_an_operator_is_told(bell: Bell) -> None:
    await bell.seat("ann")
    await bell.work()
    await bell.look()
    assert bell.office.doorbell.status() == {"queues": 1, "rung": 1, "problem": None}


@pytest.mark.parametrize("new_engine", ["postgres"], indirect=True)
async def test_an_endpoint_that_goes_in_the_very_moment_is_not_rung(
    bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite nothing goes between a look and what is done upon it: the writer is alone."""
    ann = await bell.seat("ann")
    await bell.work()
    table = bell.office.doorbell._table
    seats = table.seats
    calls = 0

    async def stale(tx: Any, queue: str) -> Any:
        nonlocal calls
        calls += 1
        found = await seats(tx, queue)
        # The first look only reads, the second is under the lock.
        return [replace(seat, endpoint=replace(seat.endpoint, id="ep_gone")) for seat in found] if calls == 2 else found

    monkeypatch.setattr(table, "seats", stale)
    assert await bell.look() == 1
    assert calls == 4
    assert await bell.rung() == [ann.id]
    assert await bell.bench.rows("select endpoint_id from rings") == [(ann.id,)]


async def test_two_rings_are_never_out_at_one_endpoint_for_one_queue(bell: Bell) -> None:
    ann = await bell.seat("ann")
    await bell.work()
    await bell.look()
    once = Once(bell.bench.store)
    table = bell.office.doorbell._table
    assert not await table.ring(once, "review", ann.id, "msg_x", None, 1, 0, own=False)
    assert not await table.ring(once, "review", ann.id, "msg_x", "msg_y", 1, 0, own=False)
    assert len(await bell.rung()) == 1
