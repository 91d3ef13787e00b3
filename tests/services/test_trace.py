"""The story of a todo, an event and a message after somebody has set it going again: nothing that happened is gone."""

from __future__ import annotations

import pytest

from postroom.errors import Conflict, NotFound
from postroom.limits import DAY, SECOND
from postroom.message import AckMode, Written
from postroom.model import Principal, Todo, TodoChange
from postroom.services.trace import HISTORY
from tests.offices import ADMIN, ANN, BOB, Bench
from tests.services.mailing import Mail

SESSION = "opencode:ses_1"
CID = Principal("cid")


async def told(bench: Bench, id_: str, by: Principal = ADMIN) -> list[tuple[str, str]]:
    """What happened and its words, in the order of time."""
    trace = await bench.office.trace.trace(by, id_)
    assert [step.at for step in trace.steps] == sorted(step.at for step in trace.steps)
    return [(step.what, step.detail) for step in trace.steps]


async def _again(bench: Bench, todo: Todo, who: Principal = ANN) -> Todo:
    bench.move(SECOND)
    held = await bench.office.claims.claim(who, todo.id, None, None, None)
    bench.move(SECOND)
    return held


async def test_a_dead_letter_that_is_retried_and_done_tells_all_of_it(bench: Bench) -> None:
    todo = await bench.create(max_attempts=2)
    await bench.fail(ANN, await _again(bench, todo), error="boom", retry_in_ms=0)
    await bench.release(BOB, await _again(bench, todo, BOB), note="needs a larger machine")
    await bench.fail(BOB, await _again(bench, todo, BOB), error="boom again")
    bench.move(SECOND)
    await bench.office.todos.retry(ADMIN, todo.id)
    await bench.complete(ANN, await _again(bench, todo))
    assert await told(bench, todo.id) == [
        ("created", "inbox: work"),
        ("claimed", "by ann, attempt 1"),
        ("failed", "of ann: boom"),
        ("claimed", "by bob, attempt 2"),
        ("released", "of bob: needs a larger machine"),
        ("claimed", "by bob, attempt 2"),
        ("failed", "of bob: boom again"),
        ("dead letter", "exhausted: boom again"),
        ("retried", "by root"),
        ("claimed", "by ann, attempt 1"),
        ("done", "by ann, after 1 attempt since it was retried"),
    ]


async def test_each_retry_is_told_with_its_attempts(bench: Bench) -> None:
    todo = await bench.create(max_attempts=3)
    for _ in range(2):
        await bench.fail(ANN, await _again(bench, todo), error="no", retry=False)
        bench.move(SECOND)
        await bench.office.todos.retry(ADMIN, todo.id)
    parked = await bench.fail(ANN, await _again(bench, todo), error="late")
    bench.move(SECOND)
    await bench.office.todos.retry(ADMIN, todo.id)
    await _again(bench, todo, BOB)
    steps = await told(bench, todo.id)
    assert [detail for what, detail in steps if what == "claimed"] == ["by ann, attempt 1"] * 3 + ["by bob, attempt 1"]
    assert [what for what, _ in steps].count("dead letter") == 2
    assert parked.next_retry_at is not None
    assert [detail.partition(" 2")[0] for what, detail in steps if what == "retried"] == [
        "by root",
        "by root",
        "by root; it was parked until",
    ]


async def test_work_is_done_after_so_many_attempts(bench: Bench) -> None:
    todo = await bench.create()
    await bench.fail(ANN, await _again(bench, todo), retry_in_ms=0)
    held = await _again(bench, todo)
    assert (await told(bench, todo.id))[-1] == ("claimed", "by ann, attempt 2")
    await bench.complete(ANN, held)
    assert (await told(bench, todo.id))[-1] == ("done", "by ann, after 2 attempts")
    once = await bench.claimed()
    await bench.complete(ANN, once)
    assert (await told(bench, once.id))[-1] == ("done", "by ann, after 1 attempt")


async def test_more_attempts_than_are_shown_are_counted_right_and_said_to_be_left_out(bench: Bench) -> None:
    todo = await bench.create(max_attempts=100)
    times = [(todo.created_at + 2 * n, todo.created_at + 2 * n + 1) for n in range(HISTORY + 1)]
    rows = ", ".join(f"('{todo.id}', 'ls_{claimed}', 'ann', {claimed}, {ended}, 'failed')" for claimed, ended in times)
    await bench.rows(f"insert into attempts (todo_id, lease_id, owner, claimed_at, ended_at, outcome) values {rows}")
    await bench.rows(f"update todos set attempt = {HISTORY + 1}")
    await _again(bench, todo, BOB)
    steps = await told(bench, todo.id)
    assert steps[1:3] == [
        ("not shown", f"only the newest {HISTORY} attempts that ended are"),
        ("claimed", "by ann, attempt 2"),
    ]
    assert steps[-1] == ("claimed", f"by bob, attempt {HISTORY + 2}")


async def test_who_changed_what_and_gave_it_to_whom(bench: Bench) -> None:
    update = bench.office.todos.update
    todo = await bench.create(title="old", by=ANN)
    for change in (
        TodoChange(assignee="bob", assignee_given=True),
        TodoChange(assignee="cid", assignee_given=True, priority=5),
        TodoChange(assignee=None, assignee_given=True),
        TodoChange(title="new", payload={"a": 1}, payload_given=True),
        TodoChange(title="new"),
    ):
        bench.move(SECOND)
        await update(ANN, todo.id, change)
    with pytest.raises(Conflict):
        await update(ADMIN, (await bench.claimed()).id, TodoChange(title="x"))
    told_of = {"assigned", "unassigned", "updated"}
    assert [step for step in await told(bench, todo.id) if step[0] in told_of] == [
        ("assigned", "to bob by ann"),
        ("assigned", "to cid by ann; it was bob's"),
        ("updated", "by ann: priority from 0 to 5"),
        ("unassigned", "by ann; it was cid's"),
        ("updated", 'by ann: title, before "old"; payload'),
    ]


async def test_who_cancelled_work_is_told_once_also_after_a_retry(bench: Bench) -> None:
    todo = await bench.create(by=ANN)
    await _again(bench, todo, BOB)
    await bench.office.todos.cancel(ANN, todo.id, "wrong place")
    expected = [
        ("created", "inbox: work"),
        ("claimed", "by bob, attempt 1"),
        ("cancelled", "by ann: wrong place"),
    ]
    assert await told(bench, todo.id) == expected
    bench.move(SECOND)
    await bench.office.todos.retry(ADMIN, todo.id)
    assert await told(bench, todo.id) == [*expected, ("retried", "by root")]
    bench.move(SECOND)
    await bench.office.todos.cancel(ADMIN, todo.id)
    assert (await told(bench, todo.id))[4:] == [("cancelled", "by root")]


async def test_a_repeated_request_is_told_once(bench: Bench) -> None:
    todo = await bench.claimed()
    await bench.fail(ANN, todo, retry=False)
    bench.move(SECOND)
    for _ in range(2):
        await bench.office.todos.retry(ADMIN, todo.id, "key")
    assert [what for what, _ in await told(bench, todo.id)].count("retried") == 1


async def test_a_message_that_is_cancelled_and_retried_tells_of_both(bench: Bench) -> None:
    mail = Mail(bench)
    sent = await mail.send(by=ANN)
    bench.move(SECOND)
    await mail.office.receipts.cancel(ADMIN, sent.id, "too early")
    bench.move(SECOND)
    await mail.office.receipts.retry(ANN, sent.id)
    bench.move(SECOND)
    await mail.carry(SESSION)
    steps = await told(bench, sent.id)
    assert steps[:1] == [("admitted", "chat from ann to ses_1")]
    assert sorted(steps[1:3]) == [
        ("cancelled", "by root: too early"),
        ("failed", "to ses_1 by opencode: cancelled"),
    ]
    assert steps[3] == ("retried", "to ses_1 by ann")
    assert [what for what, _ in steps[4:]] == ["handed off"]


async def test_a_failure_stays_in_the_story_when_the_message_is_retried_or_acknowledged_late(bench: Bench) -> None:
    mail = Mail(bench)
    sent = await mail.send(by=ANN, ack_mode=AckMode.ACKNOWLEDGED)
    await mail.carry(SESSION, Written.PERMANENT)
    failed = (await told(bench, sent.id))[-1]
    assert failed[0] == "failed"
    bench.move(SECOND)
    await mail.office.receipts.ack(ADMIN, sent.id)
    assert await told(bench, sent.id) == [
        ("admitted", "chat from ann to ses_1"),
        failed,
        ("acknowledged", "by ses_1"),
    ]


async def test_a_message_about_a_todo_keeps_its_steps_in_the_todo_s_story(bench: Bench) -> None:
    mail, todo = Mail(bench), await bench.create()
    sent = await mail.send(by=ANN, correlation_id=todo.id)
    bench.move(SECOND)
    await mail.office.receipts.cancel(ANN, sent.id)
    assert ("message cancelled", "by ann") in await told(bench, todo.id)


async def test_a_delivery_s_id_tells_its_message_s_story_to_whom_it_concerns(bench: Bench) -> None:
    mail = Mail(bench)
    sent = await mail.send(by=ANN, to="bob")
    ((delivery,),) = await bench.rows("select id from deliveries")
    for who in (ADMIN, ANN, BOB):
        assert await told(bench, delivery, who) == await told(bench, sent.id, who)
    for who, id_ in ((CID, delivery), (ADMIN, "dl_00000000-0000-7000-8000-000000000000")):
        with pytest.raises(NotFound, match="a delivery"):
            await told(bench, id_, who)


async def test_what_was_noted_goes_with_what_it_is_about(bench: Bench) -> None:
    mail = Mail(bench)
    todo, sent = await bench.create(), await mail.send(by=ANN)
    await bench.office.todos.cancel(ADMIN, todo.id)
    await mail.office.receipts.cancel(ANN, sent.id)
    kept = await bench.create()
    await bench.office.todos.update(ADMIN, kept.id, TodoChange(priority=1))
    bench.move(200 * DAY)
    await bench.office.sweep.retention()
    assert await bench.rows("select about from steps") == [(kept.id,)]
