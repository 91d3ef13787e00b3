"""Replies: the first answer to a message, found, waited for, and given up when nobody can give one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from postroom.errors import Forbidden, Invalid, NotFound
from postroom.message import AckMode, Message, Posted
from postroom.model import Principal
from postroom.office import compose
from postroom.services import watch
from postroom.services.allowed import Allowance
from tests.conftest import Store
from tests.offices import ADMIN, ANN, BOB, Bench
from tests.processes import until
from tests.services.mailing import Mail

CID = Principal("cid")
PLUGIN = Principal("plugin", speaks_as=("ses_*",))
LONG = 50_000


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


@pytest.fixture
def no_looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits looks again only after the test's end, so that a wake-up alone can serve them."""
    monkeypatch.setattr(watch, "LOOK_AGAIN", 600.0)


def payload(posted: Posted | None) -> str | None:
    """What an answer says."""
    return None if posted is None else posted.message.payload


async def test_the_first_answer_of_somebody_else_counts(mail: Mail) -> None:
    first = mail.office.replies.first
    asked = await mail.send("where?", by=ANN, to="bob")
    nothing = await first(ANN, asked.id)
    assert (nothing.answer, nothing.in_vain, nothing.asked) == (None, False, asked.posted)
    await mail.send("anybody?", by=ANN, to="bob", reply_to=asked.id)
    other = await mail.send("what?", by=ANN, to="bob")
    await mail.send("to another", by=BOB, to="ann", reply_to=other.id)
    assert (await first(ANN, asked.id)).answer is None
    # Whoever answers, and wherever that goes: it names the message.
    here = await mail.send("here", by=CID, to="ses_9", reply_to=asked.id)
    await mail.send("no, here", by=BOB, to="ann", reply_to=asked.id)
    assert (await first(ANN, asked.id)).answer == here.posted
    assert (await first(ADMIN, asked.id)).answer == here.posted


async def test_an_answer_is_no_way_around_the_allow_list(bench: Bench) -> None:
    entries = [
        Allowance(("ann", "cid"), ("*",)),
        Allowance(("bob",), ("bob", "#team", "d[a-c]n")),
        Allowance(("dan",), ("a[a-z]n",)),
    ]
    mail = Mail(Bench(bench.store, compose(bench.store, allow=entries)))
    first = mail.office.replies.first

    async def asked_by_ann() -> str:
        return (await mail.send("where?", by=ANN, to="bob")).id

    one = await asked_by_ann()
    with pytest.raises(Forbidden):
        await mail.send("to her", by=BOB, to="ann", reply_to=one)
    hidden = await mail.send("to himself", by=BOB, to="bob", reply_to=one)
    await mail.send("and to a third", by=BOB, to="dan", reply_to=one)
    assert (await first(ANN, one)).answer is None
    assert (await first(ADMIN, one)).answer == hidden.posted, "an admin may read it"
    with pytest.raises(NotFound):
        await mail.office.post.get(ANN, hidden.id)
    # Who may write to her answers her wherever it is sent, and past what does not count.
    await mail.send("here", by=Principal("dan"), to="aan", reply_to=one)
    assert payload((await first(ANN, one)).answer) == "here"
    # What came to her by a way that the list leaves open is an answer, whoever it is from.
    two = await asked_by_ann()
    await mail.office.registry.subscribe(ANN, "team", "ann")
    await mail.send("to all", by=BOB, channel="team", reply_to=two)
    assert payload((await first(ANN, two)).answer) == "to all"
    three = await asked_by_ann()
    await mail.send("by order", by=ADMIN, sender="bob", to="ann", reply_to=three)
    assert payload((await first(ANN, three)).answer) == "by order"


async def test_only_its_sender_and_admins_may_ask(mail: Mail) -> None:
    first = mail.office.replies.first
    asked = await mail.send(by=ANN, to="bob")
    with pytest.raises(Forbidden):
        await first(BOB, asked.id)
    with pytest.raises(NotFound):
        await first(CID, asked.id)
    with pytest.raises(NotFound):
        await first(ADMIN, "msg_none", LONG)
    for_session = await mail.send(by=PLUGIN, to="bob", sender="ses_1")
    assert (await first(PLUGIN, for_session.id)).asked == for_session.posted
    assert (await first(Principal("ses_1"), for_session.id)).asked == for_session.posted
    for wait in (-1, 50_001):
        with pytest.raises(Invalid) as caught:
            await first(ANN, asked.id, wait)
        assert caught.value.field == "wait_s"


async def test_an_answer_wakes_who_waits_and_stays_in_the_inbox(mail: Mail, no_looking_again: None) -> None:
    asked = await mail.send(by=ANN, to="bob")
    waiting = asyncio.create_task(mail.office.replies.first(ANN, asked.id, LONG))
    await until(lambda: _true(mail.office.watch.waiting == 1), "somebody waits")
    await mail.send("something else", by=BOB, to="ann")
    assert not waiting.done()
    await mail.send("yes", by=BOB, to="ann", reply_to=asked.id)
    assert payload((await waiting).answer) == "yes"
    assert mail.office.watch.waiting == 0
    page = await mail.office.inbox.page(ANN, None, None, None)
    assert [letter.message.payload for letter in page.letters] == ["something else", "yes"]
    assert page.unread == 2


async def test_an_answer_between_the_look_and_the_sleep_is_not_missed(
    mail: Mail, no_looking_again: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await mail.send(by=ANN, to="bob")
    table = mail.office.replies._table
    look = table.first_reply
    looks = 0

    async def slow_look(tx: Any, message: Message, *more: Any) -> Posted | None:
        nonlocal looks
        looks += 1
        found = await look(tx, message, *more)
        if looks == 1:
            await mail.send("quick", by=BOB, to="ann", reply_to=asked.id)
        return found

    monkeypatch.setattr(table, "first_reply", slow_look)
    assert payload((await mail.office.replies.first(ANN, asked.id, LONG)).answer) == "quick"
    assert looks == 2


async def test_an_answer_by_another_daemon_is_found_by_looking(
    mail: Mail, new_engine: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_AGAIN", 0.01)
    engine = new_engine() if mail.bench.store.dialect == "postgres" else None
    if engine is not None:
        await engine.open()
    there = Mail(Bench(engine or mail.bench.store))
    asked = await mail.send(by=ANN, to="bob")
    waiting = asyncio.create_task(mail.office.replies.first(ANN, asked.id, LONG))
    await until(lambda: _true(mail.office.watch.waiting == 1), "somebody waits")
    await there.send("from afar", by=BOB, to="ann", reply_to=asked.id)
    assert payload((await waiting).answer) == "from afar"
    if engine is not None:
        await engine.close()


async def test_time_is_up_without_an_answer_and_may_be_asked_again(mail: Mail) -> None:
    asked = await mail.send(by=ANN, to="bob")
    reply = await mail.office.replies.first(ANN, asked.id, 20)
    assert (reply.answer, reply.in_vain) == (None, False)
    await mail.send("late", by=BOB, to="ann", reply_to=asked.id)
    assert payload((await mail.office.replies.first(ANN, asked.id, LONG)).answer) == "late"


async def test_who_waits_is_let_go_when_nobody_can_answer(mail: Mail, no_looking_again: None) -> None:
    nobody = await mail.send(by=ANN, channel="empty")
    assert (await mail.office.replies.first(ANN, nobody.id, LONG)).in_vain
    asked = await mail.send(by=ANN)
    waiting = asyncio.create_task(mail.office.replies.first(ANN, asked.id, LONG))
    await until(lambda: _true(mail.office.watch.waiting == 1), "somebody waits")
    await mail.office.receipts.cancel(ANN, asked.id, "never mind")
    reply = await waiting
    assert (reply.answer, reply.in_vain) == (None, True)
    # What was written once may have been read, whatever became of it later.
    read = await mail.send(by=ANN, to="bob", ack_mode=AckMode.ACKNOWLEDGED)
    await mail.office.receipts.cancel(ANN, read.id, None)
    assert not (await mail.office.replies.first(ANN, read.id)).in_vain


async def test_the_end_of_all_waiting_lets_go(mail: Mail) -> None:
    asked = await mail.send(by=ANN, to="bob")
    waiting = asyncio.create_task(mail.office.replies.first(ANN, asked.id, LONG))
    await until(lambda: _true(mail.office.watch.waiting == 1), "somebody waits")
    await mail.office.watch.close()
    assert (await waiting).answer is None


async def _true(value: bool) -> bool:
    return value
