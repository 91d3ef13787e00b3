"""The stories of messages, and those of todos with whom they were rung for and who was told of their end."""

from __future__ import annotations

import pytest

from postroom.delivery import NO_ACK
from postroom.errors import NotFound
from postroom.limits import SECOND
from postroom.message import AckMode, Written
from postroom.model import NewTodo, Principal, TraceStep
from postroom.services.trace import MOST_NOTICES
from tests.offices import ADMIN, Bench
from tests.services.bells import Bell
from tests.services.mailing import Mail, only

ANN, BOB, CID = (Principal(name) for name in ("ann", "bob", "cid"))
SESSION = "opencode:ses_1"


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


async def _story(bench: Bench, id_: str, by: Principal = ADMIN) -> list[TraceStep]:
    trace = await bench.office.trace.trace(by, id_)
    assert trace.id == id_
    assert [step.at for step in trace.steps] == sorted(step.at for step in trace.steps)
    return list(trace.steps)


def _words(steps: list[TraceStep]) -> list[str]:
    return [step.what for step in steps]


async def test_a_message_from_its_admission_to_its_answer(mail: Mail) -> None:
    sent = await mail.send("the secret text", by=ANN)
    mail.bench.move(SECOND)
    assert _words(await _story(mail.bench, sent.id)) == ["admitted"]
    parcel = await mail.office.dispatch.lease(SESSION, ["any"])
    assert parcel is not None
    assert [(one.what, one.detail) for one in await _story(mail.bench, sent.id)][1:] == [
        ("being written", "attempt 1 of 10, to ses_1 by opencode")
    ]
    assert await mail.office.dispatch.settle(parcel, Written.WRITTEN, turn=True)
    mail.bench.move(SECOND)
    await mail.office.dispatch.note_seen(parcel.delivery.id)
    mail.bench.move(SECOND)
    assert await mail.office.dispatch.end_turn(SESSION, parcel.delivery.id, answered=True)
    mail.bench.move(SECOND)
    await mail.office.receipts.ack(ADMIN, sent.id)
    steps = await _story(mail.bench, sent.id, ANN)
    assert [(step.what, step.id, step.detail) for step in steps] == [
        ("admitted", sent.id, "chat from ann to ses_1"),
        ("handed off", parcel.delivery.id, "to ses_1 by opencode"),
        ("seen", parcel.delivery.id, "by ses_1"),
        ("answered", parcel.delivery.id, "by ses_1"),
        ("acknowledged", parcel.delivery.id, "by ses_1"),
    ]
    assert len({step.at for step in steps}) == len(steps)


async def test_why_a_message_waits(mail: Mail) -> None:
    sent = await mail.send()
    mail.bench.move(SECOND)
    await mail.office.dispatch.defer(SESSION, "the session is at work")
    first, second = await _story(mail.bench, sent.id)
    assert (second.what, second.detail) == ("deferred", "to ses_1 by opencode: the session is at work")
    assert second.at > first.at
    later = await mail.send()
    admitted, deferred = await _story(mail.bench, later.id)
    assert admitted.at <= deferred.at, "it cannot have waited before it was there"
    await mail.office.dispatch.defer(SESSION, None)
    assert _words(await _story(mail.bench, sent.id)) == ["admitted"]


async def test_attempts_that_fail_until_there_are_no_more(mail: Mail) -> None:
    sent = await mail.send()
    parcel = await mail.office.dispatch.lease(SESSION, ["any"])
    assert parcel is not None
    await mail.office.dispatch.settle(parcel, Written.REFUSED, "the server is full")
    steps = await _story(mail.bench, sent.id)
    assert _words(steps) == ["admitted", "attempt failed", "tried again from"]
    assert steps[1].detail == "attempt 1 of 10, to ses_1 by opencode: the server is full"
    mail.bench.move(2 * SECOND)
    await mail.carry(SESSION, Written.PERMANENT)
    last = (await _story(mail.bench, sent.id))[-1]
    assert last.what == "failed"
    assert last.detail.startswith("to ses_1 by opencode: no_such_target, attempts: 2")
    await mail.office.receipts.retry(ADMIN, sent.id)
    again = await _story(mail.bench, sent.id)
    assert _words(again) == ["admitted", "failed", "retried"]
    assert again[1].detail == last.detail


async def test_an_acknowledgement_that_does_not_come(mail: Mail) -> None:
    sent = await mail.send(ack_mode=AckMode.ACKNOWLEDGED)
    await mail.carry(SESSION)
    steps = await _story(mail.bench, sent.id)
    assert _words(steps) == ["admitted", "handed off", "sent again from"]
    assert steps[2].at > steps[1].at
    mail.bench.move(31 * SECOND)
    await mail.office.dispatch.sweep(10)
    steps = await _story(mail.bench, sent.id)
    assert _words(steps) == ["admitted", "handed off", "unacknowledged"]
    assert NO_ACK in steps[2].detail
    await mail.bench.rows("update deliveries set attempt_count = max_attempts - 1")
    await mail.carry(SESSION)
    assert _words(await _story(mail.bench, sent.id)) == ["admitted", "handed off", "given up from"]


async def test_each_delivery_of_a_channel_is_told(mail: Mail) -> None:
    for name in ("bob", "cid"):
        await mail.office.registry.subscribe(ADMIN, "team", name)
    sent = await mail.send(by=ANN, channel="team", reply_to=(await mail.send()).id)
    steps = await _story(mail.bench, sent.id)
    assert steps[0].detail.startswith("chat from ann to channel team, in reply to msg_")
    assert sorted(step.detail for step in steps[1:]) == ["to bob by inbox", "to cid by inbox"]


async def test_a_message_is_traced_by_whom_it_concerns(mail: Mail) -> None:
    sent = await mail.send(by=ANN, to="bob")
    for who in (ANN, BOB):
        assert _words(await _story(mail.bench, sent.id, who)) == ["admitted", "handed off"]
    for id_ in (sent.id, "msg_never", "no message's \x00 id", "", "td_x", "ev_x"):
        with pytest.raises(NotFound):
            await mail.office.trace.trace(CID, id_)


@pytest.mark.parametrize("id_", ["td_mine", "ev_mine", "x.1", "td_01890000-0000-7000-8000-000000000001"])
async def test_a_message_may_have_any_id(mail: Mail, id_: str) -> None:
    await mail.send(by=ANN, to="bob", msg_id=id_)
    assert _words(await _story(mail.bench, id_, BOB)) == ["admitted", "handed off"]


async def test_a_todo_tells_what_was_written_about_it(mail: Mail) -> None:
    todo = await mail.office.todos.create(ADMIN, NewTodo("inbox", "fix it"))
    sent = await mail.send("the secret text", by=ANN, to="bob", correlation_id=todo.todo.id)
    await mail.send(by=ANN, to="bob", correlation_id="td_another")
    await mail.send(by=ANN, to="bob")
    await mail.office.receipts.ack(BOB, sent.id)
    story = await _story(mail.bench, todo.todo.id)
    assert [(one.what, one.id, one.detail) for one in story if one.id != todo.todo.id] == [
        ("message admitted", sent.id, f"chat from ann to bob, about {todo.todo.id}"),
        ("message handed off", sent.id, "to bob by inbox"),
        ("message acknowledged", sent.id, "by bob"),
    ]


async def test_much_that_is_written_about_a_todo_hides_nothing_else(bench: Bench) -> None:
    bell, mail = Bell(bench), Mail(bench)
    await bell.seat("ann")
    (todo,) = await bell.work("fix it")
    assert await bell.look() == 1
    sent = [await mail.send(by=ANN, to="bob", correlation_id=todo) for _ in range(MOST_NOTICES + 3)]
    story = await _story(bench, todo)
    assert "rung" in _words(story)
    assert [one.id for one in story if one.what == "message admitted"] == [one.id for one in sent[3:]]


async def test_a_todo_tells_whom_it_was_rung_for(bench: Bench) -> None:
    bell = Bell(bench)
    seat = await bell.seat("ann")
    (todo,) = await bell.work("fix it")
    assert await bell.look() == 1
    (ring,) = await bell.rings()
    assert [(one.what, one.id, one.detail) for one in await _story(bench, todo)] == [
        ("created", todo, "review: fix it"),
        ("rung", ring.id, "ann by tmux"),
    ]
    await bell.write(seat)
    bench.move(SECOND)
    await bench.claim(ANN, "review")
    steps = await _story(bench, todo, Principal("eve", queues=("review",)))
    assert _words(steps) == ["created", "rung", "ring handed off", "claimed"]
    # Nobody else's message passes for a ring, whatever kind it says it is of.
    bench.move(SECOND)
    await bell.mail.send(by=BOB, to="bob", kind="queue.ring", correlation_id=todo)
    assert _words(await _story(bench, todo)) == [*_words(steps), "message admitted", "message handed off"]


async def test_a_todo_tells_who_heard_of_its_end(bench: Bench) -> None:
    todo = await bench.create(by=ANN, assignee="bob")
    bench.move(SECOND)
    held = await bench.office.claims.claim(BOB, todo.id, None, None, None)
    bench.move(SECOND)
    await bench.complete(BOB, held)
    bench.move(SECOND)
    assert await bench.office.handover.once() == 1
    steps = await _story(bench, todo.id)
    assert _words(steps) == ["created", "claimed", "done", "told", "notice handed off"]
    assert steps[3].detail == "ann by inbox"


async def test_a_story_ends_with_what_is_kept(mail: Mail) -> None:
    sent = await mail.send()
    await mail.bench.rows("delete from deliveries")
    assert _words(await _story(mail.bench, sent.id)) == ["admitted"]
    assert only(sent).message_id == sent.id
