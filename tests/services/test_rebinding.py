"""Rebinding: a repeat moves a message from a dead endpoint to a live one, and never between two that live (RULINGS 29)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from postroom import delivery as life
from postroom.endpoint import ANY_REACH, CarrierKind, NewEndpoint
from postroom.errors import Ambiguous, Conflict
from postroom.message import Admitted, DeliveryState, NewMessage, Written
from tests.offices import ADMIN, Bench, gather
from tests.services.mailing import Mail, only

SILENT = 46_000


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


@pytest.mark.parametrize("gone", ["ended", "silent"])
async def test_an_identical_wake_moves_to_the_replacement(mail: Mail, gone: str) -> None:
    # T45 # T46
    old = await mail.pane(1, repositories=("repo",))
    first = await mail.wake()
    if gone == "ended":
        await mail.office.registry.detach(ADMIN, old.id)
    else:
        mail.bench.move(SILENT)
    # Nobody has come in its place: the message stays, and a repeat is only a repeat.
    again = await mail.wake()
    stays = replace(only(again), deferred_reason=None, deferred_since=None)
    assert (again.deduplicated, again.rebound, stays) == (True, False, only(first))
    new = await mail.pane(2, repositories=("repo",), name="bob")
    moved = await mail.wake()
    assert (moved.id, moved.deduplicated, moved.rebound) == (first.id, True, True)
    stands = only(moved)
    now = stands.updated_at
    assert stands == life.rebind(only(first), now, new, 1)
    # The old instance never lives again, and is attached to nothing.
    ended = await mail.office.registry.get(ADMIN, old.id)
    assert ended.ended_at is not None
    assert ended.repositories == ()
    with pytest.raises(Conflict):
        await mail.office.registry.heartbeat(ADMIN, old.id)
    once_more = await mail.wake()
    assert (once_more.deduplicated, once_more.rebound, only(once_more)) == (True, False, stands)
    assert (await mail.carry(new.target_key)).id == stands.id


async def test_a_name_moves_as_a_repository_does(mail: Mail) -> None:
    # T46
    old = await mail.pane(1, name="bob")
    first = await mail.send(to="bob", msg_id="m")
    await mail.office.registry.detach(ADMIN, old.id)
    assert not (await mail.send(to="bob", msg_id="m")).rebound
    new = await mail.pane(2, name="bob")
    moved = await mail.send(to="bob", msg_id="m")
    assert moved.rebound
    assert (only(moved).id, only(moved).endpoint_id) == (only(first).id, new.id)


async def test_it_never_moves_between_two_that_live(mail: Mail) -> None:
    # T47 # T20
    first = await mail.pane(1, repositories=("repo",))
    admitted = await mail.wake()
    second = await mail.pane(2, repositories=("repo",))
    with pytest.raises(Conflict) as refused:
        await mail.wake(endpoint_id=second.id)
    assert refused.value.field == "endpoint_id"
    assert refused.value.details["endpoint_id"] == first.id
    assert (await mail.wake(endpoint_id=first.id)).posted == admitted.posted
    # Two candidates and none named: the endpoint it has lives, so there is nothing to choose.
    assert (await mail.wake()).posted == admitted.posted
    third = await mail.pane(3, repositories=("repo",))
    await mail.office.registry.detach(ADMIN, first.id)
    with pytest.raises(Ambiguous):
        await mail.wake()
    moved = await mail.wake(endpoint_id=third.id)
    assert (moved.rebound, only(moved).endpoint_id) == (True, third.id)


async def test_other_content_never_moves_it(mail: Mail) -> None:
    # T20
    old = await mail.pane(1, repositories=("repo",))
    first = await mail.wake()
    await mail.office.registry.detach(ADMIN, old.id)
    await mail.pane(2, repositories=("repo",))
    with pytest.raises(Conflict):
        await mail.wake(payload="something else")
    (stays,) = (await mail.office.post.get(ADMIN, first.id)).deliveries
    assert replace(stays, deferred_reason=None, deferred_since=None) == only(first)


async def test_what_was_injected_or_acknowledged_stays(mail: Mail) -> None:
    # T46
    old = await mail.pane(1, repositories=("repo",))
    await mail.wake(idempotency_key="1")
    await mail.carry(old.target_key)
    acked = await mail.wake(idempotency_key="2")
    await mail.office.receipts.ack(ADMIN, acked.id)
    await mail.office.registry.detach(ADMIN, old.id)
    await mail.pane(2, repositories=("repo",))
    for key, state in (("1", DeliveryState.INJECTED), ("2", DeliveryState.ACKNOWLEDGED)):
        again = await mail.wake(idempotency_key=key)
        assert (again.rebound, only(again).state, only(again).endpoint_id) == (False, state, old.id)


async def test_one_that_waits_for_its_acknowledgement_goes_again(mail: Mail) -> None:
    # T46
    old = await mail.pane(1, repositories=("repo",), ack_mode="acknowledged")
    await mail.wake()
    waiting = await mail.carry(old.target_key)
    assert waiting.state is DeliveryState.AWAITING_ACK
    await mail.office.registry.detach(ADMIN, old.id)
    new = await mail.pane(2, repositories=("repo",))
    moved = only(await mail.wake())
    assert moved == life.rebind(waiting, moved.updated_at, new, 1)
    assert (moved.state, moved.round, moved.handoff_seq) == (DeliveryState.PENDING, 1, None)


async def test_a_failed_one_moves_and_stays_failed_until_retried(mail: Mail) -> None:
    # T46 # T37
    old = await mail.pane(1, repositories=("repo",))
    first = await mail.wake()
    await mail.carry(old.target_key, Written.PERMANENT)
    await mail.office.registry.detach(ADMIN, old.id)
    new = await mail.pane(2, repositories=("repo",))
    moved = only(await mail.wake())
    assert (moved.state, moved.reason, moved.endpoint_id) == (DeliveryState.FAILED, "no_such_target", new.id)
    await mail.office.receipts.retry(ADMIN, first.id)
    assert (await mail.carry(new.target_key)).state is DeliveryState.INJECTED


async def test_what_is_being_written_is_not_moved(mail: Mail) -> None:
    # RULINGS 30
    old = await mail.pane(1, repositories=("repo",))
    await mail.wake()
    parcel = await mail.office.dispatch.lease(old.target_key, [ANY_REACH])
    assert parcel is not None
    await mail.office.registry.detach(ADMIN, old.id)
    new = await mail.pane(2, repositories=("repo",))
    with pytest.raises(Conflict) as refused:
        await mail.wake()
    assert refused.value.details["state"] == "being_written"
    await mail.office.dispatch.settle(parcel, Written.REFUSED, "gone")
    assert only(await mail.wake()).endpoint_id == new.id


async def test_an_inbox_in_its_place_has_it_at_once(mail: Mail) -> None:
    old = await mail.pane(1, repositories=("repo",))
    first = await mail.wake()
    await mail.office.registry.detach(ADMIN, old.id)
    new = NewEndpoint(CarrierKind.INBOX, {}, "inbox:bob", name="bob", repositories=("repo",))
    there = await mail.office.registry.attach(ADMIN, new)
    await mail.send(to="bob")
    moved = only(await mail.wake())
    assert moved == life.rebind(only(first), moved.updated_at, there, 2)
    assert (moved.id, moved.carrier, moved.state) == (only(first).id, CarrierKind.INBOX, DeliveryState.INJECTED)
    assert (moved.handoff_seq, moved.mailbox) == (2, "bob")
    page = await mail.office.inbox.page(ADMIN, "bob", "s.1", None)
    assert [letter.message.id for letter in page.letters] == [first.id]


async def test_identical_wakes_at_once_move_it_once(mail: Mail) -> None:
    # T46 # T47
    for n in range(5):
        old = await mail.pane(1, repositories=("repo",))
        first = await mail.wake(idempotency_key=str(n))
        await mail.office.registry.detach(ADMIN, old.id)
        panes = [await mail.pane(2 + k, repositories=("repo",)) for k in range(2)]
        answers: list[Any] = await gather(
            *[mail.wake(idempotency_key=str(n), endpoint_id=panes[k % 2].id) for k in range(10)]
        )
        moved = [one for one in answers if isinstance(one, Admitted) and one.rebound]
        assert len(moved) == 1, answers
        winner = only(moved[0]).endpoint_id
        for one in answers:
            if isinstance(one, Admitted):
                assert (one.id, only(one).endpoint_id) == (first.id, winner)
            else:
                assert isinstance(one, Conflict), one
        assert sum(isinstance(one, Conflict) for one in answers) == 5
        for pane in panes:
            await mail.office.registry.detach(ADMIN, pane.id)


async def test_a_sign_of_life_and_a_move_exclude_each_other(mail: Mail) -> None:
    # T47: either the old one was alive and keeps it, or it is dead for ever and the new one has it.
    outcomes = set()
    for n in range(12):
        old = await mail.pane(1, repositories=("repo",))
        await mail.wake(idempotency_key=str(n))
        mail.bench.move(SILENT)
        new = await mail.pane(2, repositories=("repo",))
        calls: list[Any] = [
            mail.office.registry.touch([old.id]),
            mail.office.post.send(ADMIN, _wake(str(n), new.id)),
        ]
        await gather(*(calls if n % 2 else reversed(calls)))
        stands = await mail.bench.rows("select endpoint_id from deliveries order by seq desc limit 1")
        ended = (await mail.office.registry.get(ADMIN, old.id)).ended_at is not None
        assert ended == (stands == [(new.id,)]), n
        outcomes.add(ended)
        await mail.office.registry.detach(ADMIN, old.id)
        await mail.office.registry.detach(ADMIN, new.id)
    assert outcomes


def _wake(key: str, endpoint_id: str) -> NewMessage:
    new = NewMessage("wake up", target_repo="repo", client_id="engine", idempotency_key=key)
    return replace(new, endpoint_id=endpoint_id)
