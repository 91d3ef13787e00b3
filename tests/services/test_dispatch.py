"""The courier's verbs, one by one, against the pure arithmetic of a delivery's life."""

from __future__ import annotations

from dataclasses import replace

import pytest

from postroom import delivery as oracle
from postroom.delivery import Policy
from postroom.endpoint import CarrierKind
from postroom.limits import SECOND
from postroom.message import AckMode, Cause, Delivery, DeliveryState, Priority, Written
from tests.offices import ADMIN, Bench
from tests.services.postings import ANY, A, B, C, Postings

POLICY = Policy()


@pytest.fixture
def post(bench: Bench) -> Postings:
    """Deliveries in the bench's store."""
    return Postings(bench)


def same(actual: Delivery, expected: Delivery) -> None:
    """Pass when they are equal but for what is the target's."""
    assert replace(actual, deferred_reason=None, deferred_since=None) == replace(
        expected, deferred_reason=None, deferred_since=None
    )


# What there is to carry.


async def test_nothing_is_ready_where_nothing_is(post: Postings) -> None:
    assert await post.dispatch.ready_targets(ANY, 10) == []
    assert await post.dispatch.head(A, ANY) is None
    assert await post.dispatch.lease(A, ANY) is None
    assert await post.dispatch.next_due(A, ANY) is None
    assert await post.dispatch.turns(ANY, 10) == []


async def test_ready_targets_come_in_pages(post: Postings) -> None:
    for target in (C, A, B, A):
        await post.add(target)
    assert await post.dispatch.ready_targets(ANY, 10) == [A, B, C]
    assert await post.dispatch.ready_targets(ANY, 2) == [A, B]
    assert await post.dispatch.ready_targets(ANY, 2, after=B) == [C]


async def test_ready_targets_leave_out_what_cannot_be_carried_now(post: Postings) -> None:
    # T27
    names = ("leased", "paused", "turn", "delayed", "reach", "expired", "free")
    for name in names:
        more = {"reach": "host:x"} if name == "reach" else {"ttl": SECOND} if name == "expired" else {}
        await post.add(f"opencode:{name}", **more)
    await post.lease("opencode:leased")
    await post.add("opencode:leased")
    await post.dispatch.pause("opencode:paused", 60 * SECOND)
    await post.dispatch.settle(await post.lease("opencode:turn"), Written.WRITTEN, turn=True)
    await post.add("opencode:turn")
    await post.dispatch.settle(await post.lease("opencode:delayed"), Written.REFUSED, "no")
    post.bench.move(SECOND)
    assert await post.dispatch.ready_targets(ANY, 10) == ["opencode:delayed", "opencode:free"]
    assert await post.dispatch.ready_targets(("host:x", "any"), 10) == [
        "opencode:delayed",
        "opencode:free",
        "opencode:reach",
    ]
    await post.add("opencode:turn", priority=Priority.URGENT)
    assert "opencode:turn" in await post.dispatch.ready_targets(ANY, 10)
    for name in names:
        head = await post.dispatch.head(f"opencode:{name}", ANY)
        assert (head is not None) == (name in {"delayed", "free", "turn"}), name


async def test_the_order_is_urgent_normal_low_then_admission(post: Postings) -> None:
    # P6 T27
    low = await post.add(priority=Priority.LOW)
    first, second = await post.add(), await post.add()
    urgent = await post.add(priority=Priority.URGENT)
    came = []
    for _ in range(4):
        head = await post.dispatch.head(A, ANY)
        parcel = await post.lease()
        assert head is not None
        assert head.delivery.id == parcel.delivery.id
        came.append(parcel.delivery.id)
        await post.dispatch.settle(parcel, Written.WRITTEN)
    assert came == [urgent.id, first.id, second.id, low.id]


async def test_a_failed_one_holds_nobody_back_and_comes_again_in_its_time(post: Postings) -> None:
    # P14 T28 T30
    first, second = await post.add(), await post.add(priority=Priority.LOW)
    await post.dispatch.settle(await post.lease(), Written.REFUSED, "no such luck")
    parcel = await post.lease()
    assert parcel.delivery.id == second.id
    await post.dispatch.settle(parcel, Written.REFUSED, "nor here")
    assert await post.dispatch.lease(A, ANY) is None
    due = await post.dispatch.next_due(A, ANY)
    assert due is not None
    assert 0 < due <= SECOND
    post.bench.move(due)
    assert await post.dispatch.next_due(A, ANY) == 0
    assert (await post.lease()).delivery.id == first.id


async def test_next_due_knows_pauses_turns_leases_and_reach(post: Postings) -> None:
    await post.add()
    assert await post.dispatch.next_due(A) == 0
    assert await post.dispatch.next_due(A, ("host:x",)) is None
    await post.dispatch.pause(A, 5 * SECOND)
    due = await post.dispatch.next_due(A)
    assert due is not None
    assert 0 < due <= 5 * SECOND
    await post.dispatch.pause(A, 0)
    parcel = await post.lease()
    assert await post.dispatch.next_due(A) is None
    await post.add()
    due = await post.dispatch.next_due(A)
    assert due is not None
    assert 0 < due <= POLICY.lease
    await post.dispatch.settle(parcel, Written.WRITTEN, turn=True)
    due = await post.dispatch.next_due(A)
    assert due is not None
    assert POLICY.lease < due <= POLICY.turn_most
    await post.add(priority=Priority.URGENT)
    assert await post.dispatch.next_due(A) == 0


# Leases.


async def test_a_lease_counts_an_attempt_and_is_the_only_one_of_its_target(post: Postings) -> None:
    # T27
    made = await post.add()
    await post.add()
    parcel = await post.lease()
    held = parcel.delivery
    assert held.lease_id is not None
    same(held, oracle.lease(made, held.updated_at, held.lease_id, POLICY))
    assert (parcel.message.id, parcel.message.payload, parcel.target.key) == (made.message_id, "hello", A)
    assert parcel.endpoint is None
    assert await post.dispatch.lease(A, ANY) is None
    assert await post.dispatch.head(A, ANY) is None
    same(await post.get(made), held)


async def test_a_parcel_has_the_endpoint_with_what_it_is_attached_to(post: Postings) -> None:
    await post.endpoint("ep_1", "ann", "tmux:x", name="reviewer")
    for what, name in (("repository", "a/b"), ("queue", "review"), ("channel", "news"), ("repository", "a/a")):
        await post.bench.rows("insert into attachments (what, name, endpoint_id) values (?, ?, 'ep_1')", what, name)
    await post.add("tmux:x", endpoint_id="ep_1", carrier=CarrierKind.TMUX)
    head = await post.dispatch.head("tmux:x", ANY)
    parcel = await post.lease("tmux:x")
    assert head is not None
    for one in (head.endpoint, parcel.endpoint):
        assert one is not None
        assert (one.id, one.name, one.address, one.spill, one.rings) == (
            "ep_1",
            "reviewer",
            {"pane": "%1"},
            False,
            True,
        )
        assert (one.repositories, one.queues, one.channels) == (("a/a", "a/b"), ("review",), ("news",))
    await post.dispatch.settle(parcel, Written.WRITTEN, turn=True)
    (turn,) = await post.dispatch.turns(ANY, 10)
    assert turn.endpoint == parcel.endpoint


async def test_a_lapsed_lease_is_a_failed_attempt_that_is_looked_for(post: Postings) -> None:
    # T29 T48
    await post.add()
    second = await post.add()
    lost = await post.lease()
    post.bench.move(POLICY.lease + 1)
    parcel = await post.lease()
    assert parcel.delivery.id == second.id
    doubted = await post.get(lost.delivery)
    same(doubted, oracle.lapse(lost.delivery, doubted.updated_at, POLICY))
    assert (doubted.doubtful, doubted.last_failure_reason) == (True, oracle.LAPSED)
    assert await post.dispatch.settle(lost, Written.WRITTEN) is None
    same(await post.get(lost.delivery), doubted)


async def test_a_lapsed_lease_at_the_cap_is_unconfirmed(post: Postings) -> None:
    # T29
    await post.add(max_attempts=1)
    lost = await post.lease()
    post.bench.move(POLICY.lease + 1)
    assert await post.dispatch.lease(A, ANY) is None
    failed = await post.get(lost.delivery)
    same(failed, oracle.lapse(lost.delivery, failed.updated_at, POLICY))
    assert (failed.state, failed.reason) == (DeliveryState.FAILED, Cause.UNCONFIRMED)


async def test_every_lease_lapses_when_the_process_of_a_file_starts(post: Postings) -> None:
    # T48
    held = [await post.add(target) for target in (A, B)]
    parcels = [await post.lease(target) for target in (A, B)]
    await post.receipt(held[1])
    lapsed = await post.dispatch.lapse_all()
    if post.bench.store.dialect == "postgres":
        assert lapsed == 0
        assert (await post.get(held[0])).lease_id is not None
        return
    assert lapsed == 2
    first, second = await post.get(held[0]), await post.get(held[1])
    over = replace(parcels[0].delivery, lease_expires_at=first.updated_at)
    same(first, oracle.lapse(over, first.updated_at, POLICY))
    assert (second.state, second.lease_id, second.next_attempt_at) == (DeliveryState.ACKNOWLEDGED, None, None)


# Settling.


@pytest.mark.parametrize("outcome", list(Written))
@pytest.mark.parametrize("mode", list(AckMode))
@pytest.mark.parametrize("spent", [False, True])
@pytest.mark.parametrize("carrier", [CarrierKind.OPENCODE, CarrierKind.TMUX])
async def test_a_write_settles_as_the_arithmetic_says(
    post: Postings, outcome: Written, mode: AckMode, spent: bool, carrier: CarrierKind
) -> None:
    # T28 T32 T33
    await post.add(ack_mode=mode, max_attempts=1 if spent else 3, carrier=carrier)
    parcel = await post.lease()
    settled = await post.dispatch.settle(parcel, outcome, "because")
    assert settled is not None
    assert parcel.delivery.lease_id is not None
    expected = oracle.settle(
        parcel.delivery, settled.updated_at, parcel.delivery.lease_id, outcome, "because", 1, POLICY
    )
    same(settled, expected)
    same(await post.get(parcel.delivery), expected)
    assert await post.dispatch.settle(parcel, outcome, "because") is None
    places = await post.bench.rows("select handoff_seq from mailboxes where name = 'ses_a'")
    assert places == ([(1,)] if outcome is Written.WRITTEN else [])


@pytest.mark.parametrize("carrier", list(CarrierKind))
async def test_the_waits_grow_as_the_policy_says(post: Postings, carrier: CarrierKind) -> None:
    # P14 T30 T31
    most = oracle.attempts_of(carrier)
    await post.add(carrier=carrier, max_attempts=most)
    waits = []
    settled = None
    for attempt in range(1, most + 1):
        parcel = await post.lease()
        settled = await post.dispatch.settle(parcel, Written.REFUSED, f"no {attempt}")
        assert settled is not None
        assert (settled.attempt_count, settled.last_failure_reason) == (attempt, f"no {attempt}")
        if settled.next_attempt_at is not None:
            waits.append(settled.next_attempt_at - settled.updated_at)
            post.bench.move(waits[-1])
    assert settled is not None
    assert waits == [oracle.delay(carrier, attempt) for attempt in range(1, most)]
    assert (settled.state, settled.reason) == (DeliveryState.FAILED, Cause.EXHAUSTED)


async def test_busy_gives_it_back_at_once_with_its_attempt_counted(post: Postings) -> None:
    # T27
    made = await post.add()
    for attempt in (1, 2):
        settled = await post.dispatch.settle(await post.lease(), Written.BUSY, "it works")
        assert settled is not None
        assert (settled.attempt_count, settled.state, settled.lease_id) == (attempt, DeliveryState.PENDING, None)
        assert (settled.id, settled.last_failure_reason, settled.next_attempt_at) == (made.id, None, None)


async def test_an_unknown_write_waits_longer_and_is_looked_for(post: Postings) -> None:
    await post.add()
    settled = await post.dispatch.settle(await post.lease(), Written.UNKNOWN, "it hung up")
    assert settled is not None
    assert settled.doubtful
    assert settled.next_attempt_at == settled.updated_at + POLICY.unknown
    post.bench.move(POLICY.unknown)
    parcel = await post.lease()
    assert parcel.delivery.doubtful
    refused = await post.dispatch.settle(parcel, Written.REFUSED, "not now")
    assert refused is not None
    assert refused.doubtful, "an earlier write of this round may still have been made"
    post.bench.move(oracle.delay(CarrierKind.OPENCODE, 2))
    written = await post.dispatch.settle(await post.lease(), Written.WRITTEN)
    assert written is not None
    assert not written.doubtful


async def test_a_failure_without_words_keeps_the_earlier_ones_only_at_its_end(post: Postings) -> None:
    await post.add(max_attempts=3)
    said: list[str | None] = []
    for outcome, reason in ((Written.REFUSED, "first"), (Written.REFUSED, None), (Written.UNKNOWN, "third")):
        settled = await post.dispatch.settle(await post.lease(), outcome, reason)
        assert settled is not None
        said.append(settled.last_failure_reason)
        post.bench.move(POLICY.unknown)
    assert said == ["first", None, "third"]
    await post.add(B)
    await post.dispatch.settle(await post.lease(B), Written.REFUSED, "first")
    post.bench.move(SECOND)
    last = await post.dispatch.settle(await post.lease(B), Written.PERMANENT)
    assert last is not None
    assert (last.reason, last.last_failure_reason) == (Cause.NO_SUCH_TARGET, "first")


async def test_a_place_is_taken_once_however_often_it_is_written(post: Postings) -> None:
    await post.add(ack_mode=AckMode.ACKNOWLEDGED)
    first = await post.dispatch.settle(await post.lease(), Written.WRITTEN)
    await post.add()
    await post.dispatch.settle(await post.lease(), Written.WRITTEN)
    post.bench.move(POLICY.ack)
    assert (await post.dispatch.sweep(10)).overdue == 1
    again = await post.dispatch.settle(await post.lease(), Written.WRITTEN)
    assert first is not None
    assert again is not None
    assert (again.round, again.handoff_seq, again.delivered_at) == (1, 1, first.delivered_at)
    assert await post.bench.rows("select handoff_seq from mailboxes") == [(2,)]


async def test_reasons_are_cleaned_and_cut_and_never_refused(post: Postings) -> None:
    await post.add()
    settled = await post.dispatch.settle(await post.lease(), Written.REFUSED, "no\x00" + "é" * 5000)
    assert settled is not None
    assert settled.last_failure_reason is not None
    assert settled.last_failure_reason.startswith("no�é")
    assert len(settled.last_failure_reason.encode()) <= 2048
    await post.dispatch.defer(A, "busy\ud800")
    assert (await post.get(settled)).deferred_reason == "busy�"


# Targets.


async def test_a_deferral_is_written_when_its_reason_changes(post: Postings) -> None:
    # T27
    made = await post.add()
    await post.dispatch.defer(A, "a turn is on")
    since = (await post.get(made)).deferred_since
    assert since is not None
    post.bench.move(SECOND)
    await post.dispatch.defer(A, "a turn is on")
    shown = await post.get(made)
    assert (shown.deferred_reason, shown.deferred_since) == ("a turn is on", since)
    await post.dispatch.defer(A, "a dialog is open")
    shown = await post.get(made)
    assert shown.deferred_reason == "a dialog is open"
    assert shown.deferred_since is not None
    assert shown.deferred_since >= since + SECOND
    await post.dispatch.defer(A, None)
    shown = await post.get(made)
    assert (shown.deferred_reason, shown.deferred_since) == (None, None)


async def test_a_write_that_was_made_ends_the_deferral(post: Postings) -> None:
    await post.add()
    later = await post.add()
    await post.dispatch.defer(A, "busy")
    parcel = await post.lease()
    assert (parcel.target.busy_reason, parcel.delivery.deferred_reason) == ("busy", "busy")
    refused = await post.dispatch.settle(parcel, Written.REFUSED, "no")
    assert refused is not None
    assert refused.deferred_reason == "busy"
    await post.dispatch.settle(await post.lease(), Written.WRITTEN)
    assert (await post.get(later)).deferred_reason is None
    assert (await post.get(refused)).deferred_reason is None


async def test_a_paused_target_gives_nothing_until_its_time(post: Postings) -> None:
    await post.add()
    await post.dispatch.pause(A, 5 * SECOND)
    assert await post.dispatch.lease(A, ANY) is None
    post.bench.move(5 * SECOND)
    assert (await post.lease()).target.not_before is not None


async def test_one_turn_holds_all_but_the_urgent(post: Postings) -> None:
    # P6
    await post.add()
    waiting = await post.add()
    began = await post.lease()
    await post.dispatch.settle(began, Written.WRITTEN, turn=True)
    assert await post.dispatch.lease(A, ANY) is None
    urgent = await post.add(priority=Priority.URGENT)
    parcel = await post.lease()
    assert parcel.delivery.id == urgent.id
    assert parcel.target.turn_delivery == began.delivery.id
    await post.dispatch.settle(parcel, Written.WRITTEN, turn=True)
    (turn,) = await post.dispatch.turns(ANY, 10)
    assert (turn.delivery.id, turn.target.turn_delivery) == (urgent.id, urgent.id)
    assert await post.dispatch.turns(("host:x",), 10) == []
    assert not await post.dispatch.end_turn(A, began.delivery.id, answered=True), "that turn is not the one that is on"
    assert await post.dispatch.end_turn(A, urgent.id, answered=True)
    assert not await post.dispatch.end_turn(A, urgent.id, answered=True)
    answered = await post.get(urgent)
    same(answered, oracle.end_turn(turn.delivery, answered.updated_at, answered=True))
    assert (await post.lease()).delivery.id == waiting.id


async def test_only_a_write_that_was_made_begins_a_turn(post: Postings) -> None:
    await post.add()
    await post.dispatch.settle(await post.lease(), Written.UNKNOWN, "?", turn=True)
    assert await post.dispatch.turns(ANY, 10) == []


async def test_a_turn_begins_although_the_delivery_was_acknowledged_meanwhile(post: Postings) -> None:
    made = await post.add()
    parcel = await post.lease()
    acknowledged = await post.receipt(made)
    assert acknowledged.lease_id == parcel.delivery.lease_id
    settled = await post.dispatch.settle(parcel, Written.WRITTEN, turn=True)
    assert settled is not None
    same(settled, replace(acknowledged, lease_id=None, lease_expires_at=None, updated_at=settled.updated_at))
    assert [turn.delivery.id for turn in await post.dispatch.turns(ANY, 10)] == [made.id]


async def test_a_lost_turn_is_noted_and_one_of_two_hours_is_over(post: Postings) -> None:
    made = await post.add()
    await post.dispatch.settle(await post.lease(), Written.WRITTEN, turn=True)
    assert await post.dispatch.end_turn(A, made.id, answered=False, reason="nothing answers")
    lost = await post.get(made)
    assert (lost.state, lost.answered_at, lost.last_failure_reason) == (DeliveryState.INJECTED, None, "nothing answers")
    await post.add()
    await post.dispatch.settle(await post.lease(), Written.WRITTEN, turn=True)
    post.bench.move(POLICY.turn_most - SECOND)
    assert (await post.dispatch.sweep(10)).turns == 0
    post.bench.move(SECOND)
    assert (await post.dispatch.sweep(10)).turns == 1
    assert await post.dispatch.turns(ANY, 10) == []


async def test_seen_is_noted_once(post: Postings) -> None:
    made = await post.add()
    await post.dispatch.settle(await post.lease(), Written.WRITTEN)
    await post.dispatch.note_seen(made.id)
    seen = await post.get(made)
    assert seen.seen_at == seen.updated_at
    post.bench.move(SECOND)
    await post.dispatch.note_seen(made.id)
    same(await post.get(made), seen)


# Who is told.


async def test_those_who_listen_are_told_of_targets_messages_and_mailboxes(post: Postings) -> None:
    queues: list[str | None] = []
    targets: list[str | None] = []
    changes: list[tuple[frozenset[str], frozenset[str]]] = []
    wake = post.bench.office.wake
    wake.listen(queues.append)
    wake.listen_post(targets.append)
    wake.listen_changes(lambda ids, names: changes.append((ids, names)))
    made = await post.add()
    parcel = await post.lease()
    assert (set(targets) - {None}, changes) == (set(), [])
    await post.dispatch.settle(parcel, Written.WRITTEN)
    assert set(targets) - {None} == {A}
    assert changes == [(frozenset({made.message_id}), frozenset({"ses_a"}))]
    wake.work(["inbox"])
    assert set(queues) - {None} == {"inbox"}
    assert set(targets) - {None} == {A}
    await post.bench.office.receipts.ack(ADMIN, made.message_id)
    assert changes[-1] == (frozenset({made.message_id}), frozenset({"ses_a"}))
