"""Ending attempts: by their holder alone, repeated harmlessly, and never refused for what the ending says."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest

from postroom.errors import Conflict, Invalid, NotFound
from postroom.ids import Prefix, RandomIds
from postroom.model import ClaimRequest, NewTodo, Outcome, OutcomeItem, Principal, Reason, TodoState, Verb
from tests.offices import ADMIN, ANN, BOB, Bench, gather

ODD: list[Any] = [
    "a\x00b",
    {"\x00": "\ud800", "b": ["\udfff", {"c": "\x00"}]},
    float("nan"),
    {"a": [float("inf"), -float("inf")]},
    10**5000,
    {1: 2, None: 3, (4,): 5},
    object(),
    b"bytes",
    {"set": {1}},
    "x" * (3 << 20),
    [["deep"]],
]


def _deep() -> Any:
    value: Any = "bottom"
    for _ in range(5000):
        value = [value]
    return value


# Heartbeat.


async def test_a_heartbeat_prolongs_and_never_shortens(bench: Bench) -> None:
    # S7 # S25
    held = await bench.claimed()
    assert held.claimed_at is not None
    same = await bench.office.endings.heartbeat(ANN, held.id, held.lease_id, 1_000)
    assert same.lease_expires_at == held.lease_expires_at
    longer = await bench.office.endings.heartbeat(ANN, held.id, held.lease_id, 600_000)
    assert longer.lease_expires_at == longer.updated_at + 600_000
    assert (longer.attempt, longer.lease_id) == (1, held.lease_id)
    await bench.office.queues.put(ADMIN, "inbox", {"lease_ms": 1_200_000})
    default = await bench.office.endings.heartbeat(ANN, held.id, held.lease_id, None)
    assert default.lease_expires_at == default.updated_at + 1_200_000


async def test_only_the_holder_beats(bench: Bench) -> None:
    # S7 # S12
    held = await bench.claimed()
    for who, lease in (
        (BOB, held.lease_id),
        (ANN, "ls_other"),
        (ANN, ""),
        (BOB, None),
        (Principal("an"), held.lease_id),
    ):
        with pytest.raises(Conflict) as caught:
            await bench.office.endings.heartbeat(who, held.id, lease, None)
        assert caught.value.details["owner"] == "ann"
    with pytest.raises(NotFound):
        await bench.office.endings.heartbeat(ANN, RandomIds().new(Prefix.TODO), held.lease_id, None)
    await bench.office.endings.heartbeat(ANN, held.id, None, None)
    for ttl in (0, 999, 86_400_001):
        with pytest.raises(Invalid):
            await bench.office.endings.heartbeat(ANN, held.id, held.lease_id, ttl)


# Complete, fail, release.


async def test_complete_ends_with_the_result(bench: Bench) -> None:
    # S8
    held = await bench.claimed()
    done = await bench.complete(ANN, held, {"ok": [1, None]})
    assert (done.state, done.result, done.owner, done.attempt) == (TodoState.DONE, {"ok": [1, None]}, "ann", 1)
    assert done.completed_at == done.updated_at
    assert done.lease_expires_at is None
    assert done == await bench.get(done)
    assert done.lease_id == held.lease_id


async def test_fail_parks_with_doubling_backoff_then_is_a_dead_letter(bench: Bench) -> None:
    # S9 # S10
    await bench.create(max_attempts=8)
    waits = []
    for attempt in range(1, 8):
        (held,) = await bench.claim()
        assert held.attempt == attempt
        parked = await bench.fail(ANN, held, error=f"no {attempt}")
        assert parked.next_retry_at is not None
        assert (parked.state, parked.owner, parked.lease_id, parked.completed_at) == (
            TodoState.FAILED,
            None,
            None,
            None,
        )
        waits.append(parked.next_retry_at - parked.updated_at)
        bench.move(waits[-1] - 500)
        assert await bench.claim() == []
        bench.move(500)
    assert waits == [30_000, 60_000, 120_000, 240_000, 480_000, 900_000, 900_000]
    (held,) = await bench.claim()
    dead = await bench.fail(ANN, held, error="no more", result={"tried": 8})
    assert (dead.state, dead.reason, dead.error, dead.next_retry_at) == (
        TodoState.FAILED,
        Reason.EXHAUSTED,
        "no more",
        None,
    )
    assert dead.result == {"tried": 8}
    assert dead.completed_at == dead.updated_at
    history = (await bench.get(dead)).history
    assert [entry.note for entry in history] == ["no more", *[f"no {n}" for n in range(7, 0, -1)]]


async def test_a_queues_backoff_and_the_callers_own(bench: Bench) -> None:
    # S9
    await bench.office.queues.put(ADMIN, "inbox", {"backoff_ms": 1_000, "backoff_cap_ms": 1_500, "max_attempts": 9})
    await bench.create()
    waits = []
    for delay in (None, None, 77_000, 0):
        (held,) = await bench.claim()
        parked = await bench.fail(ANN, held, retry_in_ms=delay)
        assert parked.next_retry_at is not None
        waits.append(parked.next_retry_at - parked.updated_at)
        bench.move(waits[-1])
    assert waits == [1_000, 1_500, 77_000, 0]


async def test_fail_without_retry_is_a_dead_letter_at_once(bench: Bench) -> None:
    # S9
    held = await bench.claimed()
    dead = await bench.fail(ANN, held, error="never", retry=False, retry_in_ms=1_000)
    assert (dead.state, dead.reason, dead.next_retry_at, dead.attempt) == (TodoState.FAILED, Reason.REFUSED, None, 1)
    assert dead.dead


async def test_release_gives_the_attempt_back(bench: Bench) -> None:
    # S24
    held = await bench.claimed()
    free = await bench.release(ANN, held, note="shutting down")
    assert (free.state, free.attempt, free.owner, free.available_at) == (TodoState.PENDING, 0, None, None)
    (again,) = await bench.claim(BOB)
    assert (again.attempt, again.history[0].note, again.history[0].outcome) == (1, "shutting down", Outcome.RELEASED)
    later = await bench.release(BOB, again, delay_ms=5_000)
    assert later.available_at == later.updated_at + 5_000
    assert await bench.claim(BOB) == []


async def test_only_the_holder_ends(bench: Bench) -> None:
    # S8 # S12
    held = await bench.claimed()
    for who, lease in ((BOB, held.lease_id), (ANN, "ls_other"), (ANN, ""), (BOB, None), (ADMIN, held.lease_id)):
        for verb in Verb:
            with pytest.raises(Conflict) as caught:
                await bench.office.endings.end(who, OutcomeItem(held.id, verb, lease))
            assert caught.value.details["state"] == "claimed"
            assert caught.value.details["lease_expires_at"] is not None
    assert (await bench.get(held)).state is TodoState.CLAIMED


async def test_a_name_holds_what_its_workers_claimed_and_no_other_does(bench: Bench) -> None:
    await bench.create()
    (held,) = await bench.claim(ANN, worker="w.1_")
    with pytest.raises(Conflict):
        await bench.complete(Principal("an"), held)
    await bench.complete(ANN, held)


async def test_a_late_holder_may_still_finish_until_somebody_took_it(bench: Bench) -> None:
    # S22
    held = await bench.claimed()
    bench.move(400_000)
    assert (await bench.complete(ANN, held)).state is TodoState.DONE
    late = await bench.claimed()
    bench.move(400_000)
    (taken,) = await bench.claim(ANN)  # by the same name
    assert taken.id == late.id
    for verb in Verb:
        with pytest.raises(Conflict):
            await bench.office.endings.end(ANN, OutcomeItem(late.id, verb, late.lease_id))
    with pytest.raises(Conflict):
        await bench.office.endings.heartbeat(ANN, late.id, late.lease_id, None)
    with pytest.raises(Conflict):
        await bench.complete(ANN, late)
    assert (await bench.complete(ANN, taken)).state is TodoState.DONE


async def test_a_reaped_holder_is_refused(bench: Bench) -> None:
    # S11 # S22
    held = await bench.claimed()
    bench.move(300_001)
    await bench.office.sweep.once()
    with pytest.raises(Conflict) as caught:
        await bench.complete(ANN, held)
    assert caught.value.details["state"] == "pending"


# Replays.


@pytest.mark.parametrize("verb", list(Verb))
async def test_the_same_lease_and_verb_again_gives_the_same_todo(bench: Bench, verb: Verb) -> None:
    held = await bench.claimed()
    item = OutcomeItem(held.id, verb, held.lease_id, result=1, error="e", note="n")
    first = await bench.office.endings.end(ANN, item)
    again = await bench.office.endings.end(ANN, item)
    assert (first.replayed, again.replayed) == (False, True)
    assert again.todo.id == held.id
    assert len((await bench.get(held)).history) == (0 if verb is Verb.COMPLETE else 1)
    for other in set(Verb) - {verb}:
        with pytest.raises(Conflict):
            await bench.office.endings.end(ANN, OutcomeItem(held.id, other, held.lease_id))
    for who, lease in ((BOB, held.lease_id), (ANN, None), (ANN, "ls_other")):
        with pytest.raises(Conflict):
            await bench.office.endings.end(who, OutcomeItem(held.id, verb, lease))


async def test_a_replay_holds_after_others_went_on(bench: Bench) -> None:
    held = await bench.claimed()
    await bench.fail(ANN, held, retry_in_ms=0)
    (other,) = await bench.claim(BOB)
    again = await bench.office.endings.end(ANN, OutcomeItem(held.id, Verb.FAIL, held.lease_id))
    assert (again.replayed, again.todo.owner) == (True, "bob")
    await bench.complete(BOB, other)
    done = await bench.office.endings.complete(BOB, held.id, other.lease_id, "again")
    assert (done.replayed, done.todo.result) == (True, None)


async def test_one_of_many_equal_requests_ends_it(bench: Bench) -> None:
    held = await bench.claimed()
    item = OutcomeItem(held.id, Verb.FAIL, held.lease_id, error="e")
    answers = await gather(*[bench.office.endings.end(ANN, item) for _ in range(10)])
    assert sum(not answer.replayed for answer in answers) == 1
    assert (await bench.get(held)).attempt == 1


# Words.


@pytest.mark.parametrize("value", [*ODD, _deep()], ids=lambda value: type(value).__name__)
async def test_no_result_is_refused(bench: Bench, value: Any) -> None:
    held = await bench.claimed()
    done = await bench.complete(ANN, held, value)
    assert done.state is TodoState.DONE
    assert done.result_json is not None
    assert len(done.result_json.encode()) <= 1 << 20
    shown = json.loads(done.result_json)
    assert "\x00" not in json.dumps(shown, ensure_ascii=False)
    assert done == await bench.get(done)


@pytest.mark.parametrize("words", ["a\x00b\ud800c", "x" * 100_000, "é" * 3_000, "", "\n\t\x1b[31m"])
async def test_no_note_or_error_is_refused_and_all_are_cut(bench: Bench, words: str) -> None:
    for verb in (Verb.FAIL, Verb.RELEASE):
        held = await bench.claimed()
        item = OutcomeItem(held.id, verb, held.lease_id, error=words, note=words, result=words)
        await bench.office.endings.end(ANN, item)
        entry = (await bench.get(held)).history[0]
        assert entry.note is not None
        assert len(entry.note.encode()) <= 2048
        assert entry.note.startswith(words.replace("\x00", "�").replace("\ud800", "�")[:500])
        await bench.office.todos.cancel(ADMIN, held.id, words)


async def test_bad_numbers_of_an_ending_are_refused(bench: Bench) -> None:
    held = await bench.claimed()
    for item, field in (
        (OutcomeItem(held.id, Verb.FAIL, held.lease_id, retry_in_ms=-1), "retry_in_s"),
        (OutcomeItem(held.id, Verb.RELEASE, held.lease_id, delay_ms=366 * 86_400_000), "delay_s"),
    ):
        with pytest.raises(Invalid) as caught:
            await bench.office.endings.end(ANN, item)
        assert caught.value.field == field
    assert (await bench.get(held)).state is TodoState.CLAIMED


# Many together.


async def test_a_batch_of_endings_answers_each(bench: Bench) -> None:
    for number in range(6):
        await bench.create(title=str(number))
    held = await bench.claim(limit=6)
    foreign = await bench.claimed(BOB, queue="other")
    missing = RandomIds().new(Prefix.TODO)
    items = [
        OutcomeItem(held[3].id, Verb.COMPLETE, held[3].lease_id, result={"n": 3}),
        OutcomeItem(held[0].id, Verb.FAIL, held[0].lease_id, error="no\x00"),
        OutcomeItem(foreign.id, Verb.COMPLETE, foreign.lease_id),
        OutcomeItem(missing, Verb.COMPLETE, "ls_x"),
        OutcomeItem("nonsense", Verb.COMPLETE, "ls_x"),
        OutcomeItem(held[1].id, Verb.RELEASE, held[1].lease_id, note="n", delay_ms=9_000),
        OutcomeItem(held[2].id, Verb.FAIL, held[2].lease_id, retry=False),
        OutcomeItem(held[4].id, Verb.FAIL, held[4].lease_id, retry_in_ms=-5),
        OutcomeItem(held[3].id, Verb.COMPLETE, held[3].lease_id),
        OutcomeItem(held[3].id, Verb.FAIL, held[3].lease_id),
        OutcomeItem(held[5].id, Verb.COMPLETE, None),
    ]
    results = await bench.office.endings.end_many(ANN, items)
    assert [result.id for result in results] == [item.id for item in items]
    shown = [
        type(result.error).__name__ if result.error else (str(result.state), result.replayed) for result in results
    ]
    assert shown == [
        ("done", False),
        ("failed", False),
        "Conflict",
        "NotFound",
        "NotFound",
        ("pending", False),
        ("failed", False),
        "Invalid",
        ("done", True),
        "Conflict",
        ("done", False),
    ]
    assert (await bench.get(held[3])).result == {"n": 3}
    assert (await bench.get(held[0])).error == "no�"
    assert (await bench.get(held[4])).state is TodoState.CLAIMED
    assert (await bench.get(foreign)).state is TodoState.CLAIMED


async def test_two_flushes_in_opposite_order_do_not_deadlock(bench: Bench) -> None:
    await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", str(n)) for n in range(100)])
    held = await bench.claim(limit=100)
    items = [OutcomeItem(todo.id, Verb.COMPLETE, todo.lease_id) for todo in held]
    answers = await gather(*[bench.office.endings.end_many(ANN, order) for order in (items, items[::-1]) * 3])
    for answer in answers:
        assert all(result.state is TodoState.DONE for result in answer)
    assert sum(not result.replayed for answer in answers for result in answer) == 100


async def test_more_than_two_hundred_are_refused(bench: Bench) -> None:
    items = [OutcomeItem("x", Verb.COMPLETE, None)] * 201
    with pytest.raises(Invalid):
        await bench.office.endings.end_many(ANN, items)


@pytest.mark.parametrize("lease_id", ["", "\x00", "ls_\ud800", "x" * 100_000, "'; drop table todos; --", "\\u0000"])
async def test_a_lease_id_of_no_shape_is_no_lease(bench: Bench, lease_id: str) -> None:
    # S8
    held = await bench.claimed()
    calls: list[Coroutine[Any, Any, object]]
    calls = [bench.office.endings.end(ANN, OutcomeItem(held.id, verb, lease_id)) for verb in Verb]
    calls += [bench.office.endings.complete(ANN, held.id, lease_id, None)]
    calls += [bench.office.endings.heartbeat(ANN, held.id, lease_id, None)]
    for answer in await gather(*calls):
        assert isinstance(answer, Conflict)
    items = [OutcomeItem(held.id, verb, lease_id) for verb in Verb]
    assert all(isinstance(one.error, Conflict) for one in await bench.office.endings.end_many(ANN, items))
    results, _ = await bench.office.claims.end_and_claim(ANN, items[:1], ClaimRequest(("inbox",)))
    assert isinstance(results[0].error, Conflict)
    assert (await bench.get(held)).state is TodoState.CLAIMED
