"""Steering: retry, cancel and update by those who may, and what they leave behind."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from postroom.errors import Conflict, Forbidden, Invalid, NotFound, TooLarge
from postroom.ids import Prefix, RandomIds
from postroom.model import NewTodo, Outcome, Principal, Reason, Todo, TodoChange, TodoFilter, TodoState
from postroom.store.sqlite import SqliteEngine
from tests.offices import ADMIN, ANN, BOB, Bench, gather, titles


async def _dead(bench: Bench, **more: object) -> Todo:
    held = await bench.claimed(**more)  # type: ignore[arg-type]
    return await bench.fail(ANN, held, error="bad", result=[1], retry=False)


# Retry.


async def test_retry_gives_a_failed_todo_its_attempts_anew(bench: Bench) -> None:
    # S26
    dead = await _dead(bench)
    again = await bench.office.todos.retry(ADMIN, dead.id)
    assert (again.state, again.attempt, again.reason, again.error, again.result_json, again.completed_at) == (
        TodoState.PENDING,
        0,
        None,
        None,
        None,
        None,
    )
    (held,) = await bench.claim()
    assert (held.id, held.attempt, held.history[0].outcome) == (dead.id, 1, Outcome.FAILED)
    parked = await bench.fail(ANN, held)
    assert (await bench.office.todos.retry(ADMIN, parked.id)).next_retry_at is None
    assert titles(await bench.claim()) == ["work"]


async def test_only_a_failed_todo_is_retried(bench: Bench) -> None:
    # S12 # S26
    pending = await bench.create()
    for prepare in (bench.claim, lambda: bench.office.endings.complete(ANN, pending.id, None, None)):
        with pytest.raises(Conflict):
            await bench.office.todos.retry(ADMIN, pending.id)
        await prepare()
    with pytest.raises(Conflict) as caught:
        await bench.office.todos.retry(ADMIN, pending.id)
    assert caught.value.details["state"] == "done"
    assert caught.value.advice.startswith("Only a failed todo is retried")
    with pytest.raises(Conflict) as caught:
        await bench.office.todos.cancel(ADMIN, pending.id)
    assert caught.value.advice.startswith("Only a todo that is not over is cancelled")


async def test_a_cancelled_todo_may_be_retried(bench: Bench) -> None:
    todo = await bench.create()
    cancelled = await bench.office.todos.cancel(ADMIN, todo.id)
    assert not cancelled.dead
    assert (await bench.office.todos.retry(ADMIN, todo.id)).state is TodoState.PENDING


async def test_a_retry_whose_key_a_newer_todo_holds_names_it(bench: Bench) -> None:
    dead = await _dead(bench, idempotency_key="k")
    newer = await bench.create(idempotency_key="k")
    with pytest.raises(Conflict) as caught:
        await bench.office.todos.retry(ADMIN, dead.id)
    assert caught.value.details["todo_id"] == newer.id
    assert newer.id in caught.value.message
    held = await bench.office.claims.claim(ANN, newer.id, None, None, None)
    await bench.complete(ANN, held)
    assert (await bench.office.todos.retry(ADMIN, dead.id)).state is TodoState.PENDING


async def test_a_rival_is_not_told_to_those_who_may_not_retry(bench: Bench) -> None:
    dead = await _dead(bench, idempotency_key="k")
    await bench.create(idempotency_key="k")
    with pytest.raises(Forbidden):
        await bench.office.todos.retry(BOB, dead.id)
    with pytest.raises(NotFound):
        await bench.office.todos.retry(Principal("eve", queues=("other",)), dead.id)


async def test_retries_and_creations_of_one_key_at_once_leave_one_live_todo(bench: Bench) -> None:
    for number in range(6):
        dead = [await _dead(bench, idempotency_key=f"k{number}") for _ in range(2)]
        calls: list[Coroutine[Any, Any, object]]
        calls = [bench.office.todos.retry(ADMIN, todo.id) for _ in range(2) for todo in dead]
        calls += [
            bench.office.todos.create(ADMIN, NewTodo("inbox", "new", idempotency_key=f"k{number}")) for _ in range(2)
        ]
        answers = await gather(*calls)
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert all(isinstance(error, Conflict) for error in refused), refused
        live = await bench.rows("select id from todos where idempotency_key = ? and state = 'pending'", f"k{number}")
        assert len(live) == 1
        for error in refused:
            assert isinstance(error, Conflict)
            assert error.details.get("todo_id", live[0][0]) == live[0][0]
        await bench.office.todos.cancel(ADMIN, live[0][0])


# Cancel.


async def test_a_cancellation_stands_before_what_ended_in_its_very_millisecond(bench: Bench) -> None:
    engine = bench.office.engine
    if isinstance(engine, SqliteEngine):  # It takes the host's clock, which a test can stop.
        engine._clock = lambda: 2_000_000_000_000
    todo = await bench.create()
    (held,) = await bench.claim()
    await bench.fail(ANN, held)
    await bench.office.todos.cancel(ADMIN, todo.id)
    outcomes = [entry.outcome for entry in (await bench.get(todo)).history]
    assert outcomes == [Outcome.CANCELLED, Outcome.FAILED]


@pytest.mark.parametrize("stage", ["pending", "delayed", "claimed", "parked"])
async def test_cancel_ends_a_live_todo_and_history_says_so(bench: Bench, stage: str) -> None:
    todo = await bench.create(delay_ms=60_000 if stage == "delayed" else None)
    held = None
    if stage in {"claimed", "parked"}:
        (held,) = await bench.claim()
    if stage == "parked" and held is not None:
        await bench.fail(ANN, held)
    gone = await bench.office.todos.cancel(ADMIN, todo.id, "not\x00 needed")
    assert (gone.state, gone.reason, gone.error) == (TodoState.FAILED, Reason.CANCELLED, "not� needed")
    assert {gone.owner, gone.lease_id, gone.next_retry_at, gone.available_at, gone.claimed_at} == {None}
    entry = (await bench.get(todo)).history[0]
    assert (entry.outcome, entry.note) == (Outcome.CANCELLED, "not� needed")
    assert entry.owner == ("ann" if stage == "claimed" else None)
    if stage == "claimed" and held is not None:
        with pytest.raises(Conflict):
            await bench.complete(ANN, held)
    with pytest.raises(Conflict):
        await bench.office.todos.cancel(ADMIN, todo.id)
    assert await bench.claim() == []


async def test_a_todo_may_be_cancelled_and_retried_again_and_again(bench: Bench) -> None:
    todo = await bench.create()
    for _ in range(3):
        await bench.office.todos.cancel(ADMIN, todo.id)
        await bench.office.todos.retry(ADMIN, todo.id)
    assert len((await bench.get(todo)).history) == 3


# Update.


async def test_update_changes_what_is_given(bench: Bench) -> None:
    todo = await bench.create(payload={"a": 1}, assignee="bob", delay_ms=60_000)
    same = await bench.office.todos.update(ADMIN, todo.id, TodoChange())
    assert (same.title, same.payload, same.assignee, same.available_at) == (
        todo.title,
        todo.payload,
        todo.assignee,
        todo.available_at,
    )
    change = TodoChange(
        title="new",
        payload=None,
        payload_given=True,
        priority=7,
        assignee=None,
        assignee_given=True,
        available_at=None,
        available_at_given=True,
    )
    new = await bench.office.todos.update(ADMIN, todo.id, change)
    assert (new.title, new.payload_json, new.payload_bytes, new.priority, new.assignee, new.available_at) == (
        "new",
        None,
        0,
        7,
        None,
        None,
    )
    assert new.created_at == todo.created_at
    assert titles(await bench.claim()) == ["new"]


async def test_update_of_a_time_that_is_past_makes_it_ready(bench: Bench) -> None:
    todo = await bench.create()
    assert todo.available_at is None
    ahead = TodoChange(available_at=todo.created_at + 60_000, available_at_given=True)
    assert (await bench.office.todos.update(ADMIN, todo.id, ahead)).available_at == todo.created_at + 60_000
    past = TodoChange(available_at=todo.created_at - 1, available_at_given=True)
    assert (await bench.office.todos.update(ADMIN, todo.id, past)).available_at is None


async def test_only_a_pending_todo_is_updated(bench: Bench) -> None:
    held = await bench.claimed()
    for _ in range(2):
        with pytest.raises(Conflict):
            await bench.office.todos.update(ADMIN, held.id, TodoChange(priority=1))
        await bench.complete(ANN, held) if held.state is TodoState.CLAIMED else None


async def test_bad_changes_are_refused_by_field(bench: Bench) -> None:
    todo = await bench.create()
    for change, kind, field in (
        (TodoChange(title=""), Invalid, "title"),
        (TodoChange(priority=-101), Invalid, "priority"),
        (TodoChange(assignee="a b", assignee_given=True), Invalid, "assignee"),
        (TodoChange(payload="\x00", payload_given=True), Invalid, "payload"),
        (TodoChange(payload="x" * (1 << 20), payload_given=True), TooLarge, "payload"),
        (TodoChange(available_at=-1, available_at_given=True), Invalid, "available_at"),
    ):
        with pytest.raises(kind) as caught:
            await bench.office.todos.update(ADMIN, todo.id, change)
        assert caught.value.field == field
    assert await bench.get(todo) == todo


# Who may, and request keys.


async def test_admins_and_the_creator_steer_and_nobody_else(bench: Bench) -> None:
    # S12
    todo = await bench.create(by=ANN)
    missing = RandomIds().new(Prefix.TODO)
    steer = bench.office.todos
    for verb in (
        lambda who, id_: steer.update(who, id_, TodoChange(priority=1)),
        steer.cancel,
        steer.retry,
    ):
        with pytest.raises(Forbidden):
            await verb(BOB, todo.id)
        with pytest.raises(NotFound):
            await verb(Principal("eve", queues=("other",)), todo.id)
        with pytest.raises(NotFound):
            await verb(ADMIN, missing)
        assert (await verb(ANN, todo.id)).id == todo.id
        await bench.office.todos.get(ANN, todo.id)


async def test_a_creator_who_lost_the_queue_changes_nothing(bench: Bench) -> None:
    todo = await bench.create(by=ANN)
    exiled = Principal("ann", queues=("other",))
    with pytest.raises(NotFound):
        await bench.office.todos.cancel(exiled, todo.id)
    assert await bench.get(todo) == todo


async def test_a_request_key_replays_the_current_view(bench: Bench) -> None:
    todo = await bench.create()
    await bench.office.todos.update(ADMIN, todo.id, TodoChange(priority=1), "u")
    await bench.office.todos.update(ADMIN, todo.id, TodoChange(priority=2))
    assert (await bench.office.todos.update(ADMIN, todo.id, TodoChange(priority=1), "u")).priority == 2
    await bench.office.todos.cancel(ADMIN, todo.id, None, "c")
    await bench.office.todos.retry(ADMIN, todo.id, "r")
    assert (await bench.office.todos.cancel(ADMIN, todo.id, None, "c")).state is TodoState.PENDING
    assert (await bench.office.todos.retry(ADMIN, todo.id, "r")).state is TodoState.PENDING
    with pytest.raises(Conflict):
        await bench.office.todos.cancel(ADMIN, todo.id, "another reason", "c")


async def test_no_answer_but_the_claims_own_shows_a_lease(bench: Bench) -> None:
    todo = await bench.create()
    answers = await gather(bench.office.todos.update(ADMIN, todo.id, TodoChange(priority=1)))
    assert answers[0].lease_id is None
    await bench.claim()
    assert (await bench.office.todos.cancel(ADMIN, todo.id)).lease_id is None


# Lists.


async def test_lists_are_newest_first_without_payloads_and_paged(bench: Bench) -> None:
    await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", str(n), payload="é") for n in range(7)])
    first = await bench.office.todos.page(ADMIN, TodoFilter(limit=4))
    second = await bench.office.todos.page(ADMIN, TodoFilter(limit=4, cursor=first.next_cursor))
    assert titles(first.todos) + titles(second.todos) == ["6", "5", "4", "3", "2", "1", "0"]
    assert second.next_cursor is None
    assert {(todo.payload_json, todo.payload_bytes) for todo in first.todos} == {(None, 4)}
    for limit in (0, -1):
        with pytest.raises(Invalid):
            await bench.office.todos.page(ADMIN, TodoFilter(limit=limit))
    for cursor in ("", "c", "7", "c-1", "cg", "c" + "f" * 30, "c0", "c1_0", " c1"):
        with pytest.raises(Invalid):
            await bench.office.todos.page(ADMIN, TodoFilter(cursor=cursor))


async def test_lists_are_filtered_by_state_queue_and_assignee(bench: Bench) -> None:
    await bench.create(title="pending", assignee="bob")
    await bench.claimed(title="claimed", queue="other")
    await bench.complete(ANN, await bench.claimed(title="done"))
    await bench.fail(ANN, await bench.claimed(title="parked"))
    await bench.fail(ANN, await bench.claimed(title="dead"), retry=False)
    await bench.office.todos.cancel(ADMIN, (await bench.create(title="cancelled")).id)

    async def listed(who: Principal = ADMIN, **more: str) -> list[str]:
        return titles((await bench.office.todos.page(who, TodoFilter(**more))).todos)  # type: ignore[arg-type]

    for state in ("pending", "claimed", "done", "parked", "dead", "cancelled"):
        assert await listed(state=state) == [state]
    assert await listed(state="failed") == ["cancelled", "dead", "parked"]
    assert await listed(queue="other") == ["claimed"]
    assert await listed(assignee="bob") == ["pending"]
    assert await listed(Principal("eve", queues=("oth*",))) == ["claimed"]
    assert await listed(Principal("eve", queues=("none",))) == []
    with pytest.raises(NotFound):
        await listed(Principal("eve", queues=("oth*",)), queue="inbox")
    with pytest.raises(Invalid):
        await listed(state="broken")
