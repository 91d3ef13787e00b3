"""Happenings: each transition is told once, after its commit, to whoever may hear of it; a slow reader is told it lagged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from postroom.desk import ClaimNext
from postroom.endpoint import CarrierKind, NewEndpoint
from postroom.errors import Invalid, PostroomError, RateLimited, Unavailable
from postroom.event import Incoming
from postroom.happening import KINDS, LAGGED, WHATS, Happening, HappeningFilter, fits
from postroom.message import AckMode, Written
from postroom.model import NewTodo, OutcomeItem, Principal, Todo, TodoChange, Verb
from postroom.services import rules as rules_module
from postroom.services.happenings import BUFFER, KEPT_FOR_ADMINS, MOST_EACH, MOST_LISTENERS, MOST_NAMED, Listener
from postroom.sources.settings import build_sources
from postroom.store.postgres import PostgresEngine
from tests.offices import ADMIN, ANN, BOB, Bench
from tests.processes import until
from tests.services.bells import Bell
from tests.services.mailing import Mail
from tests.sources.signing import NOW, SECRET, github_headers

EVE = Principal("eve", queues=("lab/*",))


class Ear:
    """One who listens; what it has heard is asked for at once, since everything is told before its call is answered."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def heard(self) -> list[Happening]:
        """What was told since the last time."""
        told = list(self.listener._waiting)
        self.listener._waiting.clear()
        assert {one.what for one in told} <= {LAGGED, *WHATS}
        return told

    def whats(self) -> list[str]:
        """The kinds of it."""
        return [one.what for one in self.heard()]


Listen = Callable[..., Awaitable[Ear]]


@pytest.fixture
async def listen(bench: Bench) -> AsyncIterator[Listen]:
    """Begins to listen, for as long as the test runs."""
    async with AsyncExitStack() as listening:

        async def begin(who: Principal = ADMIN, **wanted: Any) -> Ear:
            if isinstance(bench.store, PostgresEngine):
                # Hints that may have been missed before it listened at all are nobody's.
                await until(lambda: bench.store.listening, "the engine listens")
            subscribed = bench.office.happenings.subscribe(who, HappeningFilter(**wanted))
            return Ear(await listening.enter_async_context(subscribed))

        yield begin


# What is told of each transition.


async def test_a_todos_transitions_are_each_told_once(bench: Bench, listen: Listen) -> None:
    ear = await listen()
    todo = await bench.create("inbox", "work", by=ANN)
    (told,) = ear.heard()
    assert told == Happening(todo.created_at, "todo.created", todo.id, "inbox", None, "ann", "work")
    await bench.office.todos.update(ANN, todo.id, TodoChange(title="better"))
    (told,) = ear.heard()
    assert (told.what, told.who, told.words) == ("todo.updated", "ann", "better")
    (claimed,) = await bench.claim(BOB, worker="w")
    (told,) = ear.heard()
    assert (told.what, told.who, told.words) == ("todo.claimed", "bob/w", "better (attempt 1 of 5)")
    assert told.at == claimed.claimed_at
    await bench.office.endings.heartbeat(BOB, todo.id, claimed.lease_id, None)
    assert ear.heard() == []
    await bench.release(BOB, claimed, note="no time")
    (told,) = ear.heard()
    assert (told.what, told.who, told.words) == ("todo.released", "bob", "no time")
    (claimed,) = await bench.claim(BOB)
    await bench.fail(BOB, claimed, error="broke")
    await bench.fail(BOB, claimed, error="broke")  # a repeat, which changes nothing
    _, told = ear.heard()
    assert (told.what, told.who, told.words) == ("todo.failed", "bob", "broke")
    bench.move(31_000)
    await bench.office.sweep.once()
    (told,) = ear.heard()
    assert (told.what, told.id, told.queue) == ("todo.due", todo.id, "inbox")
    (claimed,) = await bench.claim(BOB)
    await bench.fail(BOB, claimed, error="no", retry=False)
    _, told = ear.heard()
    assert (told.what, told.words) == ("todo.failed", "dead letter, refused: no")
    await bench.office.todos.retry(ANN, todo.id, request_id="again")
    await bench.office.todos.retry(ANN, todo.id, request_id="again")
    (told,) = ear.heard()
    assert (told.what, told.who) == ("todo.retried", "ann")
    (claimed,) = await bench.claim(BOB)
    await bench.complete(BOB, claimed)
    await bench.complete(BOB, claimed)
    _, told = ear.heard()
    assert (told.what, told.who, told.words) == ("todo.done", "bob", "better")
    other = await bench.create(by=ANN)
    await bench.office.todos.cancel(ADMIN, other.id)
    _, told = ear.heard()
    assert (told.what, told.who) == ("todo.cancelled", "root")


async def test_what_changes_nothing_is_not_told(bench: Bench, listen: Listen) -> None:
    first = await bench.office.todos.create(ADMIN, NewTodo("inbox", "x", idempotency_key="k"), "once")
    ear = await listen()
    again = await bench.office.todos.create(ADMIN, NewTodo("inbox", "x", idempotency_key="k"), "once")
    assert again.todo.id == first.todo.id
    await bench.office.todos.create(ADMIN, NewTodo("inbox", "y", idempotency_key="k"))
    assert ear.heard() == []
    assert await bench.claim(ANN, claim_key="one")
    assert await bench.claim(ANN, claim_key="one")
    assert await bench.office.claims.claim(ANN, first.todo.id, None, "one", None)
    assert ear.whats() == ["todo.claimed"]
    with pytest.raises(PostroomError):
        await bench.office.claims.claim(BOB, first.todo.id, None, None, None)
    assert await bench.claim(BOB) == []
    assert ear.heard() == []


async def test_batches_tell_each_of_theirs(bench: Bench, listen: Listen) -> None:
    ear = await listen()
    await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", f"t{n}") for n in range(4)])
    assert [one.words for one in ear.heard()] == ["t0", "t1", "t2", "t3"]
    one, two, three, four = await bench.claim(limit=4)
    assert ear.whats() == ["todo.claimed"] * 4
    items = [
        OutcomeItem(one.id, Verb.COMPLETE, one.lease_id),
        OutcomeItem(two.id, Verb.FAIL, two.lease_id, error="broke"),
        OutcomeItem(three.id, Verb.RELEASE, three.lease_id, note="not mine"),
        OutcomeItem(four.id, Verb.COMPLETE, "ls_somebody-elses"),
    ]
    await bench.office.endings.end_many(ANN, items)
    told = {(one.what, one.id, one.who, one.words) for one in ear.heard()}
    assert told == {
        ("todo.done", one.id, "ann", ""),
        ("todo.failed", two.id, "ann", "broke"),
        ("todo.released", three.id, "ann", "not mine"),
    }
    desk = bench.office.desk(ANN)
    # An ending and the claim with it: the ending is told first.
    await desk.outcomes([OutcomeItem(four.id, Verb.COMPLETE, four.lease_id)], ClaimNext(["inbox"]))
    assert [(one.what, one.id) for one in ear.heard()] == [("todo.done", four.id), ("todo.claimed", three.id)]


async def test_leases_that_lapse_are_told_by_whoever_finds_them(bench: Bench, listen: Listen) -> None:
    ear = await listen()
    swept, taken = await bench.claimed(), await bench.claimed(queue="other")
    spent = await bench.claimed(queue="last", max_attempts=1)
    buried = await bench.claimed(queue="buried", max_attempts=1)
    ear.heard()
    bench.move(300_001)
    await bench.claim(BOB, "other")
    assert [(one.what, one.id, one.who) for one in ear.heard()] == [
        ("todo.lapsed", taken.id, "ann"),
        ("todo.claimed", taken.id, "bob"),
    ]
    assert await bench.claim(BOB, "buried") == []
    assert [(one.what, one.id, one.words) for one in ear.heard()] == [
        ("todo.lapsed", buried.id, "dead letter, exhausted")
    ]
    await bench.office.sweep.once()
    told = {(one.what, one.id, one.words) for one in ear.heard()}
    assert told == {("todo.lapsed", swept.id, ""), ("todo.lapsed", spent.id, "dead letter, exhausted")}
    await bench.claim(BOB)
    assert ear.whats() == ["todo.claimed"]


async def test_a_revoked_token_gives_back_what_it_held(bench: Bench, listen: Listen) -> None:
    await bench.office.tokens.create(ADMIN, "ann")
    todo = await bench.claimed(ANN)
    pane = await Mail(bench).pane(1, by=ANN, name="ann")
    ear = await listen()
    await bench.office.tokens.revoke(ADMIN, "ann")
    assert [(one.what, one.id, one.words) for one in ear.heard()] == [
        ("todo.released", todo.id, "the token was revoked"),
        ("endpoint.ended", pane.id, "tmux at tmux:s:1:2:%1"),
    ]
    await bench.office.queues.pause(ADMIN, "inbox", paused=True)
    assert [(one.what, one.id, one.queue, one.who) for one in ear.heard()] == [
        ("queue.changed", "inbox", "inbox", "root")
    ]


async def test_events_are_told_with_the_todos_they_made(
    bench: Bench, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"name": "gh", "provider": "github", "secrets": [SECRET], "queue": "inbox"}
    bench.office.roster.swap(build_sources([table], {}, Path()))
    source = bench.office.roster.get("gh")
    assert source is not None

    async def deliver(id_: str, title: str = "Broken") -> str:
        body = json.dumps({"action": "opened", "issue": {"number": 1, "title": title}, "n": id_}).encode()
        found = source.receive(github_headers(body, "issues", id_), body, NOW)
        assert isinstance(found, Incoming)
        return (await bench.office.intake.receive(found, source)).event.id

    ear, eve = await listen(), await listen(EVE)
    id_ = await deliver("d1")
    received, created = ear.heard()
    assert (received.what, received.id, received.queue, received.who) == ("event.received", id_, "inbox", "gh")
    assert (created.what, created.queue, created.who, created.about) == (
        "todo.created",
        "inbox",
        "source:gh",
        (id_,),
    )
    await deliver("d1")
    (told,) = ear.heard()
    assert (told.what, told.id, told.queue) == ("event.duplicate", id_, "inbox")
    assert told.words.endswith("delivery 2")
    await bench.office.replays.replay(ADMIN, id_)
    (told,) = ear.heard()
    assert (told.what, told.id, told.who) == ("event.replayed", id_, "root")

    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    agent = await listen(ANN)
    with monkeypatch.context() as patched:
        patched.setattr(rules_module, "_todo", broken)
        held = await deliver("d2")
    (told,) = ear.heard()
    assert (told.what, told.id, told.queue) == ("event.held", held, None)
    # What led to no todo is for admins alone, as in the list of events.
    assert agent.heard() == []
    await bench.office.replays.release(ADMIN, held)
    assert ear.whats() == ["event.released", "todo.created"]
    assert agent.whats() == ["event.released", "todo.created"]
    with monkeypatch.context() as patched:
        patched.setattr(rules_module, "_todo", broken)
        held = await deliver("d3")
    await bench.office.replays.discard(ADMIN, held)
    assert ear.whats() == ["event.held", "event.discarded"]
    assert eve.heard() == []


async def test_a_messages_way_is_told(bench: Bench, listen: Listen) -> None:
    mail, ear = Mail(bench), await listen()
    sent = await mail.send("secret words", by=ANN, to="ses_1", kind="question")
    (told,) = ear.heard()
    assert (told.what, told.id, told.mailbox, told.who) == ("message.admitted", sent.id, "ses_1", "ann")
    assert told.words == "question to ses_1"
    await mail.carry("opencode:ses_1", Written.BUSY)
    await mail.carry("opencode:ses_1", Written.REFUSED)
    bench.move(60_000)
    await mail.carry("opencode:ses_1", Written.UNKNOWN)
    bench.move(60_000)
    await mail.carry("opencode:ses_1")
    assert [(one.what, one.id, one.mailbox) for one in ear.heard()] == [
        ("delivery.deferred", sent.id, "ses_1"),
        ("delivery.attempt_failed", sent.id, "ses_1"),
        ("delivery.unknown", sent.id, "ses_1"),
        ("delivery.injected", sent.id, "ses_1"),
    ]
    await bench.office.receipts.ack(ADMIN, sent.id)
    await bench.office.receipts.ack(ADMIN, sent.id)
    (told,) = ear.heard()
    assert (told.what, told.mailbox, told.who) == ("message.acknowledged", "ses_1", "root")
    await mail.send("again", by=ANN, to="ses_1", msg_id="m1")
    await mail.send("again", by=ANN, to="ses_1", msg_id="m1")
    await bench.office.receipts.cancel(ANN, "m1")
    await bench.office.receipts.retry(ANN, "m1", request_id="once")
    await bench.office.receipts.retry(ANN, "m1", request_id="once")
    await mail.carry("opencode:ses_1", Written.PERMANENT)
    told_of = ear.heard()
    assert [one.what for one in told_of] == [
        "message.admitted",
        "message.cancelled",
        "message.retried",
        "delivery.failed",
    ]
    assert not any("secret" in one.words or "again" in one.words for one in told_of)


async def test_a_message_that_is_moved_is_told_of_once(bench: Bench, listen: Listen) -> None:
    mail, ear = Mail(bench), await listen(whats=("message",))
    gone = await mail.pane(1, repositories=("repo",))
    sent = await mail.wake()
    await bench.office.registry.detach(ADMIN, gone.id)
    there = await mail.pane(2, repositories=("repo",))
    assert (await mail.wake()).rebound
    assert not (await mail.wake()).rebound
    assert [(one.what, one.id, one.mailbox) for one in ear.heard()] == [
        ("message.admitted", sent.id, gone.id),
        ("message.rebound", sent.id, there.id),
    ]


async def test_an_inbox_shows_at_once_what_a_channel_brings(bench: Bench, listen: Listen) -> None:
    mail = Mail(bench)
    for name in ("ann", "bob"):
        await bench.office.registry.subscribe(ADMIN, "ops", name)
    ear, ann = await listen(), await listen(ANN)
    sent = await mail.send(channel="ops")
    assert [(one.what, one.mailbox) for one in ear.heard()] == [
        ("message.admitted", None),
        ("delivery.injected", "ann"),
        ("delivery.injected", "bob"),
    ]
    # A recipient hears of its own alone, under its own name.
    assert [(one.what, one.mailbox) for one in ann.heard()] == [
        ("message.admitted", "ann"),
        ("delivery.injected", "ann"),
    ]
    nobody = await mail.send(channel="empty")
    assert [(one.what, one.id) for one in ear.heard()] == [("message.admitted", nobody.id)]
    assert sent.id != nobody.id


async def test_what_befalls_a_delivery_by_itself_is_told(bench: Bench, listen: Listen) -> None:
    mail, ear, sender = Mail(bench), await listen(), await listen(ANN)
    overdue = await mail.send(by=ANN, ack_mode=AckMode.ACKNOWLEDGED)
    await mail.carry("opencode:ses_1")
    bench.move(31_000)
    await bench.office.dispatch.sweep(10)
    expected = ["message.admitted", "delivery.awaiting_ack", "delivery.overdue"]
    assert ear.whats() == sender.whats() == expected
    assert await bench.office.dispatch.lease("opencode:ses_1", ["any"]) is not None
    bench.move(600_000)
    await bench.office.dispatch.sweep(10)
    (told,) = ear.heard()
    assert (told.what, told.id, told.mailbox) == ("delivery.lapsed", overdue.id, "ses_1")
    expiring = await mail.send(by=ANN, to="ses_2", ttl_ms=5_000)
    bench.move(6_000)
    await bench.office.dispatch.sweep(10)
    _, told = ear.heard()
    assert (told.what, told.id, told.words) == ("delivery.failed", expiring.id, "expired")


async def test_a_target_that_waits_says_so_once(bench: Bench, listen: Listen) -> None:
    mail, ear = Mail(bench), await listen()
    sent = await mail.send(by=ANN)
    dispatch = bench.office.dispatch
    parcel = await dispatch.head("opencode:ses_1", ["any"])
    ear.heard()
    for reason in ("busy", "busy", None):
        await dispatch.defer("opencode:ses_1", reason, parcel)
    (told,) = ear.heard()
    assert (told.what, told.id, told.mailbox, told.words) == ("delivery.deferred", sent.id, "ses_1", "busy")
    await dispatch.defer("opencode:ses_1", "nobody is there")
    (told,) = ear.heard()
    assert (told.what, told.id) == ("delivery.deferred", "opencode:ses_1")


async def test_endpoints_come_and_go(bench: Bench, listen: Listen) -> None:
    registry, mail, ear = bench.office.registry, Mail(bench), await listen()
    first = await mail.pane(1, by=ANN, name="ann")
    second = await mail.pane(1, by=ANN, name="ann")
    assert [(one.what, one.id, one.mailbox, one.who) for one in ear.heard()] == [
        ("endpoint.attached", first.id, "ann", "ann"),
        ("endpoint.ended", first.id, "ann", "ann"),
        ("endpoint.attached", second.id, "ann", "ann"),
    ]
    await registry.detach(ANN, second.id)
    await registry.detach(ANN, second.id)
    assert ear.whats() == ["endpoint.ended"]
    await registry.subscribe(ANN, "ops", "ann")
    await registry.subscribe(ANN, "ops", "ann")
    await registry.unsubscribe(ANN, "ops", "ann")
    assert ear.whats() == ["endpoint.attached", "endpoint.ended"]


async def test_rings_and_notices_are_messages_like_others(bench: Bench, listen: Listen) -> None:
    bell = Bell(bench)
    pane = await bell.seat("ann")
    ear, of_todo = await listen(), None
    (todo,) = await bell.work()
    of_todo = await listen(id=todo)
    await bell.look()
    await bell.bench.claim(ANN, "review")
    await bell.look()
    assert ear.whats() == ["todo.created", "message.admitted", "todo.claimed", "message.cancelled"]
    assert [(one.what, one.mailbox) for one in of_todo.heard()] == [
        ("message.admitted", pane.mailbox),
        ("todo.claimed", None),
    ]


# Who hears what.


async def test_an_agent_hears_of_its_queues_and_of_its_messages_alone(bench: Bench, listen: Listen) -> None:
    mail, eve = Mail(bench), await listen(EVE)
    await bench.create("inbox")
    mine = await bench.create("lab/one")
    await mail.send(by=ANN, to="bob")
    await mail.pane(7, by=ANN, name="ann")
    assert [one.id for one in eve.heard()] == [mine.id]
    sent = await mail.send(by=EVE, to="bob")
    got = await mail.send(by=ANN, to="eve")
    told = eve.heard()
    assert [(one.what, one.id, one.mailbox) for one in told] == [
        ("message.admitted", sent.id, "bob"),
        ("delivery.injected", sent.id, "bob"),
        ("message.admitted", got.id, "eve"),
        ("delivery.injected", got.id, "eve"),
    ]
    # An admin that is kept to some queues hears of todos there alone, as everywhere.
    kept = await listen(replace(ADMIN, queues=("lab/*",)))
    await bench.create("inbox")
    await bench.create("lab/one")
    assert [one.queue for one in kept.heard()] == ["lab/one"]


async def test_a_filter_narrows(bench: Bench, listen: Listen) -> None:
    queues = await listen(queues=("a", "b"))
    kinds = await listen(whats=("todo.claimed", "message"))
    boxes = await listen(mailboxes=("bob",))
    todo: Todo = await bench.create("a")
    one = await listen(id=todo.id)
    await bench.create("c")
    await bench.claim(ANN, "a", "c", limit=2)
    await Mail(bench).send(to="bob")
    await Mail(bench).send(to="eve")
    assert [(one.what, one.queue) for one in queues.heard()] == [("todo.created", "a"), ("todo.claimed", "a")]
    assert kinds.whats() == ["todo.claimed", "todo.claimed", "message.admitted", "message.admitted"]
    assert boxes.whats() == ["message.admitted", "delivery.injected"]
    assert one.whats() == ["todo.claimed"]


def test_the_words_are_a_closed_list() -> None:
    assert all(what.partition(".")[0] in KINDS for what in WHATS)
    assert len(set(WHATS)) == len(WHATS)
    told = Happening(0, "todo.done", "td_1", "q", None)
    assert fits(HappeningFilter(), told)
    assert fits(HappeningFilter(queues=("q",), whats=("todo",), id="td_1"), told)
    assert not fits(HappeningFilter(whats=("tod",)), told)
    assert fits(HappeningFilter(queues=("p",)), replace(told, what=LAGGED))


async def test_a_bad_filter_names_its_field(bench: Bench) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"queues": ("No Queue",)}, "queue"),
        ({"mailboxes": ("",)}, "mailbox"),
        ({"whats": ("todos",)}, "what"),
        ({"whats": (LAGGED,)}, "what"),
        ({"id": "a\nb"}, "id"),
        ({"id": ""}, "id"),
        ({"queues": ("q",) * (MOST_NAMED + 1)}, "queue"),
    ]
    for wanted, field in bad:
        with pytest.raises(Invalid) as caught:
            bench.office.happenings.subscribe(ADMIN, HappeningFilter(**wanted))
        assert caught.value.field == field
    assert bench.office.happenings.listening == 0


# Those who listen.


async def test_one_who_does_not_read_is_told_once_that_it_lagged(bench: Bench, listen: Listen) -> None:
    listener = (await listen()).listener
    await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", f"t{n}") for n in range(BUFFER + 50)])
    told = await listener.some()
    assert [one.words for one in told[:-1]] == [f"t{n}" for n in range(BUFFER)]
    assert told[-1].what == LAGGED
    await bench.create(title="later")
    assert (await anext(listener)).words == "later"


async def test_the_number_of_listeners_is_bounded(bench: Bench) -> None:
    happenings = bench.office.happenings
    async with AsyncExitStack() as many:
        for _ in range(MOST_LISTENERS):
            await many.enter_async_context(happenings.subscribe(ADMIN))
        with pytest.raises(Unavailable):
            await many.enter_async_context(happenings.subscribe(ADMIN))
    assert happenings.listening == 0
    assert not bench.office.wake.heard


async def test_no_agent_and_no_number_of_them_takes_every_place(bench: Bench) -> None:
    happenings = bench.office.happenings
    async with AsyncExitStack() as many, AsyncExitStack() as left:

        async def listen(who: Principal, times: int) -> None:
            for _ in range(times):
                await many.enter_async_context(happenings.subscribe(who))

        await listen(ANN, MOST_EACH - 1)
        await left.enter_async_context(happenings.subscribe(ANN))
        with pytest.raises(RateLimited, match=f"ann listens {MOST_EACH} times already"):
            await listen(ANN, 1)
        await left.aclose()
        await listen(ANN, 1)
        for number in range((MOST_LISTENERS - KEPT_FOR_ADMINS) // MOST_EACH - 1):
            await listen(Principal(f"agent-{number}"), MOST_EACH)
        others = MOST_LISTENERS - KEPT_FOR_ADMINS - happenings.listening
        await listen(Principal("late"), others)
        with pytest.raises(Unavailable, match="kept for admins"):
            await listen(Principal("later"), 1)
        await listen(ADMIN, KEPT_FOR_ADMINS)
        with pytest.raises(Unavailable):
            await listen(ADMIN, 1)
    assert happenings.listening == 0


async def test_the_end_of_all_listening_gives_what_waits_first(bench: Bench, listen: Listen) -> None:
    listener = (await listen()).listener
    todo = await bench.create()
    bench.office.happenings.close()
    assert [one.id async for one in listener] == [todo.id]
    assert await listener.some() == []
    with pytest.raises(Unavailable):
        async with bench.office.happenings.subscribe(ADMIN):
            pass


async def test_who_waits_is_woken_and_may_give_up_without_a_loss(bench: Bench, listen: Listen) -> None:
    listener = (await listen()).listener
    waiting = asyncio.create_task(listener.some())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    waiting = asyncio.create_task(listener.some())
    await asyncio.sleep(0)
    todo = await bench.create()
    assert [one.id for one in await waiting] == [todo.id]


async def test_a_fault_in_telling_is_not_the_transitions(bench: Bench, listen: Listen) -> None:
    ear = await listen()

    def broken(_now: int) -> list[Any]:
        raise ZeroDivisionError

    bench.office.wake.told(broken)
    assert ear.whats() == [LAGGED]


async def test_another_daemon_is_heard_by_hints_alone(bench: Bench, listen: Listen) -> None:
    if not isinstance(bench.store, PostgresEngine):
        return  # An SQLite file has one process.
    ear = await listen()
    box = await listen(mailboxes=("bob",))
    await bench.create("mine")
    store = PostgresEngine(bench.store._url)
    await store.open()
    try:
        other = Bench(store)
        await other.create("theirs")
        await Mail(other).send(to="bob")
        heard: list[Happening] = []

        def told() -> bool:
            heard.extend(ear.heard())
            return any(one.what == "queue.changed" for one in heard)

        await until(told, "the hint arrives")
        # Its own hints come back to it as well, and are not told a second time.
        assert [(one.what, one.queue) for one in heard] == [("todo.created", "mine"), ("queue.changed", "theirs")]
        await until(lambda: any(one.mailbox == "bob" for one in box.heard()), "the inbox's change is found")
    finally:
        await store.close()


async def test_an_endpoints_own_creator_hears_what_becomes_of_its_deliveries(bench: Bench, listen: Listen) -> None:
    new = NewEndpoint(CarrierKind.TMUX, {"pane": "%9"}, "tmux:s:1:2:%9")
    endpoint = await bench.office.registry.attach(BOB, new)
    bob = await listen(BOB)
    mail = Mail(bench)
    await mail.send(by=ANN, to=endpoint.id)
    await mail.carry("tmux:s:1:2:%9")
    assert ("delivery.injected", endpoint.id) in [(one.what, one.mailbox) for one in bob.heard()]
