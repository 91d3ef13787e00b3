"""Couriers, recipients and sweeps at the same moment: one lease a target, one turn a target, and an acknowledgement wins."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any

import apsw
import psycopg
import pytest

from postroom.delivery import Policy
from postroom.errors import Conflict
from postroom.message import AckMode, DeliveryState, Parcel, Priority, Written
from tests.offices import ADMIN, Bench, gather
from tests.services.postings import ANY, A, Postings

POLICY = Policy()
COURIERS = 8
RACES = 1000
AT_ONCE = 40


@pytest.fixture
def post(bench: Bench) -> Postings:
    """Deliveries in the bench's store."""
    return Postings(bench)


def in_groups(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """The keys, some at a time."""
    for first in range(0, len(keys), AT_ONCE):
        yield keys[first : first + AT_ONCE]


async def all_well(calls: Sequence[Awaitable[Any]], *but: type[BaseException]) -> list[Any]:
    """Run calls at the same time; none may fail but in these ways."""
    answers = await gather(*calls)
    wrong = [answer for answer in answers if isinstance(answer, BaseException) and not isinstance(answer, but or ())]
    assert not wrong, wrong
    return answers


async def test_couriers_never_hold_one_target_together(post: Postings) -> None:
    # P6 T27
    targets = await post.fill(50)
    for _ in range(2):
        await post.fill(50)
    offices = [Bench(post.bench.store).office for _ in range(COURIERS)]
    held: dict[str, Parcel] = {}
    order: dict[str, list[int]] = {target: [] for target in targets}

    async def carry(number: int) -> int:
        dispatch, carried = offices[number].dispatch, 0
        mixed = random.Random(number)
        for _ in range(4):
            for target in mixed.sample(targets, len(targets)):
                parcel = await dispatch.lease(target, ANY)
                if parcel is None:
                    continue
                assert target not in held, f"{target} is held twice"
                held[target] = parcel
                order[target].append(parcel.delivery.seq)
                await asyncio.sleep(0)
                del held[target]
                assert await dispatch.settle(parcel, Written.WRITTEN) is not None
                carried += 1
        return carried

    carried = await all_well([carry(number) for number in range(COURIERS)])
    assert sum(carried) > 0
    for target in targets:
        while (parcel := await post.dispatch.lease(target, ANY)) is not None:
            order[target].append(parcel.delivery.seq)
            await post.dispatch.settle(parcel, Written.WRITTEN)
    assert all(seqs == sorted(seqs) and len(seqs) == 3 for seqs in order.values())
    assert await post.bench.rows("select count(*) from deliveries where state = 'injected' and attempt_count = 1") == [
        (150,)
    ]
    wrong = "select count(*) from deliveries d join deliveries e on e.mailbox = d.mailbox and e.seq > d.seq where "
    assert await post.bench.rows(wrong + "e.handoff_seq <= d.handoff_seq") == [(0,)]


async def test_eight_couriers_ask_for_one_delivery_and_one_gets_it(post: Postings) -> None:
    # T27
    offices = [Bench(post.bench.store).office for _ in range(COURIERS)]
    for target in await post.fill(30):
        await post.add(target)
        answers = await all_well([office.dispatch.lease(target, ANY) for office in offices])
        assert sum(answer is not None for answer in answers) == 1
    assert await post.bench.rows("select count(*), max(attempt_count) from deliveries where lease_id is not null") == [
        (30, 1)
    ]


async def test_couriers_take_a_lapsed_target_over_once(post: Postings) -> None:
    # T29
    offices = [Bench(post.bench.store).office for _ in range(COURIERS)]
    targets = await post.fill(20)
    await post.fill(20)
    for target in targets:
        await post.lease(target)
    post.bench.move(POLICY.lease)
    for target in targets:
        answers = await all_well(
            [*[office.dispatch.lease(target, ANY) for office in offices], offices[0].dispatch.sweep(3)]
        )
        taken = [answer for answer in answers if isinstance(answer, Parcel)]
        assert len(taken) <= 1
    await post.dispatch.sweep(100)
    assert await post.bench.rows("select count(*) from deliveries where doubtful and attempt_count = 1") == [(20,)]


async def test_a_turn_that_begins_holds_every_courier(post: Postings) -> None:
    # P6
    targets = await post.fill(10)
    for _ in range(3):
        await post.fill(10)
    offices = [Bench(post.bench.store).office for _ in range(COURIERS)]
    turns: dict[str, str] = {}

    async def carry(number: int) -> None:
        dispatch = offices[number].dispatch
        mixed = random.Random(number)
        for _ in range(40):
            target = mixed.choice(targets)
            parcel = await dispatch.lease(target, ANY)
            if parcel is not None:
                assert target not in turns, f"{target} was leased in its turn"
                turns[target] = parcel.delivery.id
                assert await dispatch.settle(parcel, Written.WRITTEN, turn=True) is not None
                await asyncio.sleep(0)
                id_ = turns.pop(target)
                assert await dispatch.end_turn(target, id_, answered=True)

    await all_well([carry(number) for number in range(COURIERS)])
    assert await post.dispatch.turns(ANY, 100) == []


async def test_an_acknowledgement_wins_over_every_settlement(post: Postings) -> None:
    # T36
    targets = await post.fill(RACES, ack_mode=AckMode.ACKNOWLEDGED, max_attempts=1)
    outcomes = [outcome for outcome in Written for _ in range(RACES // len(Written))]
    mixed = random.Random(7)
    acks = post.bench.office.receipts.ack
    for group in in_groups(targets):
        parcels = await all_well([post.dispatch.lease(target, ANY) for target in group])
        calls: list[Awaitable[Any]] = []
        for parcel in parcels:
            calls.append(post.dispatch.settle(parcel, outcomes.pop(), "because", turn=True))
            calls.append(acks(ADMIN, parcel.message.id))
        mixed.shuffle(calls)
        await all_well(calls)
    rows = await post.bench.rows(
        "select count(*) from deliveries where state = 'acknowledged' and lease_id is null and handoff_seq = 1 "
        "and reason is null and next_attempt_at is null and ack_deadline is null"
    )
    assert rows == [(RACES,)]
    assert await post.bench.rows("select count(*), max(handoff_seq) from mailboxes") == [(RACES, 1)]


async def test_an_acknowledgement_wins_over_deadlines_and_retries(post: Postings) -> None:
    # T36 T37
    targets = await post.fill(RACES // 2, ack_mode=AckMode.ACKNOWLEDGED, max_attempts=1)
    targets += await post.fill(RACES // 2, ack_mode=AckMode.ACKNOWLEDGED, max_attempts=3)
    dispatch, receipts = post.bench.office.dispatch, post.bench.office.receipts
    for group in in_groups(targets):
        for parcel in await all_well([dispatch.lease(target, ANY) for target in group]):
            assert await dispatch.settle(parcel, Written.WRITTEN) is not None
    post.bench.move(POLICY.ack)
    messages = [f"msg_{number:04}" for number in range(1, RACES + 1)]
    mixed = random.Random(8)
    for group in in_groups(messages):
        calls: list[Awaitable[Any]] = [receipts.ack(ADMIN, id_) for id_ in group]
        calls += [receipts.retry(ADMIN, id_) for id_ in group]
        calls += [dispatch.sweep(10) for _ in range(4)]
        mixed.shuffle(calls)
        await all_well(calls, Conflict)
    await dispatch.sweep(200)
    states = await post.bench.rows("select state, count(*) from deliveries group by state")
    assert states == [(DeliveryState.ACKNOWLEDGED, RACES)]
    assert await post.bench.rows("select count(*) from deliveries where handoff_seq is null or reason is not null") == [
        (0,)
    ]


async def test_everything_at_once_leaves_every_row_whole(post: Postings) -> None:
    # P6 T25 T27 T36 T37
    targets = await post.fill(6)
    for _ in range(9):
        await post.fill(6, ack_mode=AckMode.ACKNOWLEDGED, priority=Priority.LOW)
    offices = [Bench(post.bench.store).office for _ in range(COURIERS)]
    messages = [row[0] for row in await post.bench.rows("select id from messages order by seq")]

    async def work(number: int) -> None:
        office, mixed = offices[number], random.Random(number)
        for _ in range(40):
            target, message = mixed.choice(targets), mixed.choice(messages)
            match mixed.randrange(10):
                case 0 | 1 | 2 | 3:
                    parcel = await office.dispatch.lease(target, ANY)
                    if parcel is not None:
                        outcome = mixed.choice([*Written])
                        assert await office.dispatch.settle(parcel, outcome, "x", turn=mixed.random() < 0.3) is not None
                case 4:
                    await office.receipts.ack(ADMIN, message)
                case 5:
                    await all_well([office.receipts.cancel(ADMIN, message)], Conflict)
                case 6:
                    await all_well([office.receipts.retry(ADMIN, message)], Conflict)
                case 7:
                    await office.dispatch.defer(target, mixed.choice(["busy", "gone", None]))
                    await office.dispatch.pause(target, 0)
                case 8:
                    await office.dispatch.sweep(2)
                case _:
                    for turn in await office.dispatch.turns(ANY, 3):
                        await office.dispatch.end_turn(turn.target.key, turn.delivery.id, answered=True)

    await all_well([work(number) for number in range(COURIERS)])
    assert await post.bench.rows("select count(*) from deliveries where lease_id is not null") == [(0,)]
    assert await post.bench.rows("select count(*), max(handoff_seq) from deliveries where handoff_seq is not null") == (
        await post.bench.rows("select coalesce(sum(handoff_seq), 0), max(handoff_seq) from mailboxes")
    )


WRONG = (
    "lease_id = 'ls_2', lease_expires_at = null",
    "state = 'injected', handoff_seq = null",
    "state = 'failed'",
    "reason = 'exhausted'",
    "reason = 'tired', state = 'failed'",
    "state = 'acknowledged', handoff_seq = 1",
    "state = 'awaiting_ack', next_attempt_at = 1, handoff_seq = 1",
    "ack_deadline = 1",
    "state = 'injected', handoff_seq = 1, lease_id = 'ls_2', lease_expires_at = 1",
    "lease_id = 'ls_2', lease_expires_at = 1, next_attempt_at = 1",
    "state = 'lost'",
    "carrier = 'pigeon'",
    "attempt_count = -1",
    "rank = 3",
)


async def test_the_tables_refuse_what_no_life_allows(post: Postings) -> None:
    await post.add()
    for change in WRONG:
        with pytest.raises((apsw.ConstraintError, psycopg.errors.CheckViolation)):
            await post.bench.rows(f"update deliveries set {change}")
    await post.lease()
    await post.add()
    with pytest.raises((apsw.ConstraintError, psycopg.errors.UniqueViolation)):
        await post.bench.rows("update deliveries set lease_id = 'ls_2', lease_expires_at = 1 where lease_id is null")
    assert (await post.bench.rows("select count(*) from deliveries where target_key = ?", A)) == [(2,)]
