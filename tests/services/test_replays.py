"""Intake and replays: what a repeated body is taken for, what is held, and what sorting again changes and what not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import Conflict, Forbidden, Invalid, NotFound, PostroomError
from postroom.event import Event, EventFilter, EventState, Incoming, Received
from postroom.services import rules as rules_module
from postroom.services.replays import MAX_REPLAYS, Replayed
from postroom.sources.scheme import Rejected
from postroom.sources.settings import build_sources
from postroom.sources.source import Source
from tests.offices import ADMIN, ANN, Bench, gather
from tests.sources.signing import NOW, SECRET, STANDARD_SECRET, github_headers

TABLES: list[dict[str, Any]] = [
    {"name": "gh", "provider": "github", "secrets": [SECRET], "queue": "inbox"},
    {"name": "std", "provider": "standard", "secrets": [STANDARD_SECRET], "queue": "inbox"},
]
NOTHING = "ev_00000000-0000-7000-8000-000000000009"


@pytest.fixture(autouse=True)
def set_up(bench: Bench) -> None:
    bench.office.roster.swap(build_sources(TABLES, {}, Path()))


def source(bench: Bench, name: str = "gh") -> Source:
    found = bench.office.roster.get(name)
    assert found is not None
    return found


def issue(number: int = 1, **more: Any) -> bytes:
    told = {"action": "opened", "issue": {"number": number, "title": f"Broken {number}", "labels": []}}
    return json.dumps({**told, "repository": {"full_name": "acme/shop"}, **more}).encode()


async def deliver(bench: Bench, body: bytes, id_: str, kind: str = "issues") -> Received:
    """A delivery of GitHub's, verified and taken in."""
    found = source(bench).receive(github_headers(body, kind, id_), body, NOW)
    assert isinstance(found, Incoming)
    return await bench.office.intake.receive(found, source(bench))


async def stored(bench: Bench, id_: str) -> Event:
    return (await bench.office.events.get(ADMIN, id_))[0]


async def break_rules(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule breaks from now on."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(rules_module, "_todo", broken)


# What is taken for a replay.


async def test_the_same_bytes_under_another_unsigned_id_are_kept_and_flagged(bench: Bench) -> None:
    first, same = await deliver(bench, issue(), "d1"), await deliver(bench, issue(), "d1")
    other, forged = await deliver(bench, issue(2), "d2"), await deliver(bench, issue(), "d3")
    assert same.duplicate
    assert [one.event.suspected_replay for one in (first, same, other, forged)] == [False, False, False, True]
    assert forged.event.id != first.event.id
    assert len(forged.todos) == 1
    page, _ = await bench.office.events.page(ADMIN, suspected_replay=True)
    assert [event.id for event, _ in page] == [forged.event.id]
    assert len((await bench.office.events.page(ADMIN, suspected_replay=False))[0]) == 2
    steps = (await bench.office.trace.trace(ADMIN, forged.event.id)).steps
    assert "suspected replay" in [step.what for step in steps]


async def test_a_signed_id_tells_equal_bodies_apart(bench: Bench) -> None:
    std, body = source(bench, "std"), b'{"type":"ping.made"}'
    for id_ in ("m1", "m2"):
        signing = std.sender.scheme.sign(std.secrets[0], body, NOW, id_)
        found = std.receive([(k.encode(), v.encode()) for k, v in signing.headers], body, NOW)
        assert not isinstance(found, Rejected)
        received = await bench.office.intake.receive(found, std)
        assert (received.duplicate, received.event.suspected_replay) == (False, False)


# What is held.


async def test_what_breaks_is_held_and_let_go_by_todays_rules(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        await break_rules(bench, patch)
        held = (await deliver(bench, issue(), "d1")).event
        again = await bench.office.replays.release(ADMIN, held.id)
        assert again.event.state is EventState.HELD
    assert (held.state, held.reason) == (EventState.HELD, "rule default broke: by zero")
    page, _ = await bench.office.events.page(ADMIN, state="held")
    assert [event.id for event, _ in page] == [held.id]
    freed = await bench.office.replays.release(ADMIN, held.id)
    assert (freed.event.state, freed.event.reason, len(freed.todos)) == (EventState.ROUTED, None, 1)
    event = await stored(bench, held.id)
    assert event.trace[0] == "released by root"
    assert event.received_at == held.received_at
    assert (await bench.get(freed.todos[0].todo_id)).event_id == held.id
    with pytest.raises(Conflict) as refused:
        await bench.office.replays.release(ADMIN, held.id)
    assert refused.value.details["state"] == "routed"


async def test_what_is_held_can_be_thrown_away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await break_rules(bench, monkeypatch)
    held = (await deliver(bench, issue(), "d1")).event
    gone = await bench.office.replays.discard(ADMIN, held.id, "a test", "r1")
    assert gone.event.state is EventState.IGNORED
    assert gone.event.reason == "discarded by root: a test; it was held: rule default broke: by zero"
    assert (await bench.office.replays.discard(ADMIN, held.id, "a test", "r1")).repeated
    with pytest.raises(Conflict):
        await bench.office.replays.discard(ADMIN, held.id)
    with pytest.raises(NotFound):
        await bench.office.replays.discard(ADMIN, NOTHING)


# Replays.


async def test_a_replay_sorts_by_todays_rules_and_keeps_the_first_receipt(bench: Bench) -> None:
    first = await deliver(bench, issue(), "d1")
    bench.move(3_600_000)
    await bench.office.rulesets.put(ADMIN, "gh", [{"name": "bugs", "match": {"kind": "issues"}, "queue": "bugs"}], 0)
    done = await bench.office.replays.replay(ADMIN, first.event.id)
    assert [(link.queue, link.rule, link.created) for link in done.todos] == [("bugs", "bugs", True)]
    assert (done.event.received_at, done.event.rules_version) == (first.event.received_at, 1)
    assert done.event.deliveries == 1
    _, links = await bench.office.events.get(ADMIN, first.event.id)
    assert {link.queue for link in links} == {"inbox", "bugs"}
    assert (await stored(bench, first.event.id)).trace[0] == "replayed by root"


async def test_replayed_todos_collapse_by_their_live_keys(bench: Bench) -> None:
    first = await deliver(bench, issue(), "d1")
    (link,) = first.todos
    for _ in range(3):
        (again,) = (await bench.office.replays.replay(ADMIN, first.event.id)).todos
        assert (again.todo_id, again.created) == (link.todo_id, False)
    todo = await bench.office.claims.claim(ANN, link.todo_id, None, None, None)
    await bench.complete(ANN, todo)
    (fresh,) = (await bench.office.replays.replay(ADMIN, first.event.id)).todos
    assert (fresh.created, fresh.todo_id != link.todo_id) == (True, True)
    story = await bench.office.trace.trace(ADMIN, fresh.todo_id)
    assert story.steps[0].at == first.event.received_at


async def test_a_replay_of_what_was_unreadable_says_so_again(bench: Bench) -> None:
    received = await deliver(bench, b"\xff", "d1")
    done = await bench.office.replays.replay(ADMIN, received.event.id)
    assert (done.event.state, done.todos) == (EventState.UNPARSED, ())
    assert (await stored(bench, received.event.id)).body is None


async def test_a_request_key_replays_once(bench: Bench) -> None:
    first = await deliver(bench, issue(), "d1")
    todo = await bench.office.claims.claim(ANN, first.todos[0].todo_id, None, None, None)
    await bench.complete(ANN, todo)
    answers = await gather(*(bench.office.replays.replay(ADMIN, first.event.id, "r1") for _ in range(5)))
    assert sorted(answer.repeated for answer in answers) == [False, True, True, True, True]
    rows = await bench.rows("select count(*) from todos")
    assert rows == [(2,)]
    with pytest.raises(Conflict):
        await bench.office.replays.release(ADMIN, first.event.id, "r1")


async def test_replays_of_one_event_at_once_make_one_todo(bench: Bench) -> None:
    first = await deliver(bench, issue(), "d1")
    await bench.office.rulesets.put(ADMIN, "gh", [{"queue": "bugs"}], 0)
    answers = await gather(*(bench.office.replays.replay(ADMIN, first.event.id) for _ in range(10)))
    assert sum(link.created for answer in answers for link in answer.todos) == 1


async def test_replaying_is_for_admins_and_for_events_there_are(bench: Bench) -> None:
    first = await deliver(bench, issue(), "d1")
    replays = bench.office.replays
    for call in (replays.replay, replays.release, replays.discard):
        with pytest.raises(Forbidden):
            await call(ANN, first.event.id)
        with pytest.raises(NotFound):
            await call(ADMIN, NOTHING)
        with pytest.raises(NotFound):
            await call(ADMIN, "nothing")
    bench.office.roster.swap(build_sources(TABLES[1:], {}, Path()))
    with pytest.raises(Conflict) as refused:
        await replays.replay(ADMIN, first.event.id)
    assert refused.value.details["source"] == "gh"


def ids_of(results: Sequence[tuple[str, Replayed | PostroomError]]) -> list[str]:
    return [id_ for id_, one in results if isinstance(one, Replayed)]


async def test_many_are_replayed_in_the_order_of_their_receipt(bench: Bench) -> None:
    early = (await deliver(bench, issue(0), "d0")).event
    bench.move(60_000)
    later = [(await deliver(bench, issue(n), f"d{n}")).event for n in (1, 2, 3)]
    push = (await deliver(bench, b'{"ref":"refs/heads/main"}', "d9", "push")).event
    since = later[0].received_at
    done = await bench.office.replays.replay_many(ADMIN, wanted=EventFilter(since=since))
    assert ids_of(done.results) == [*(event.id for event in later), push.id]
    assert done.next_cursor is None
    done = await bench.office.replays.replay_many(ADMIN, wanted=EventFilter(source="gh", kind="push", since=0))
    assert ids_of(done.results) == [push.id]
    done = await bench.office.replays.replay_many(ADMIN, wanted=EventFilter(since=0, until=since))
    assert ids_of(done.results) == [early.id]
    done = await bench.office.replays.replay_many(ADMIN, ids=[push.id, NOTHING, early.id, push.id])
    assert [id_ for id_, _ in done.results] == [push.id, NOTHING, early.id]
    assert isinstance(done.results[1][1], NotFound)


async def test_a_batch_goes_on_where_it_ended_and_repeats_harmlessly(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.services.replays.MAX_REPLAYS", 2)
    events = [(await deliver(bench, issue(n), f"d{n}")).event.id for n in range(5)]
    wanted, seen, cursor = EventFilter(since=0), [], None
    for page in range(3):
        done = await bench.office.replays.replay_many(ADMIN, wanted=wanted, cursor=cursor, request_id=f"r{page}")
        seen += ids_of(done.results)
        cursor = done.next_cursor
    assert (seen, cursor) == (events, None)
    # Events that came since then are not among those of the same request.
    await deliver(bench, issue(9), "d9")
    again = await bench.office.replays.replay_many(ADMIN, wanted=wanted, request_id="r0")
    assert ids_of(again.results) == events[:2]
    assert all(isinstance(one, Replayed) and one.repeated for _, one in again.results)
    with pytest.raises(Conflict):
        await bench.office.replays.replay_many(ADMIN, ids=events[:1], request_id="r0")


async def test_a_batch_needs_one_way_to_choose(bench: Bench) -> None:
    replays = bench.office.replays
    wrong: list[tuple[list[str] | None, EventFilter | None]] = [
        (None, None),
        ([], None),
        ([NOTHING] * (MAX_REPLAYS + 1), None),
        ([NOTHING], EventFilter()),
    ]
    for ids, wanted in wrong:
        with pytest.raises(Invalid) as refused:
            await replays.replay_many(ADMIN, ids=ids, wanted=wanted)
        assert refused.value.field == "ids"
    with pytest.raises(Invalid):
        await replays.replay_many(ADMIN, wanted=EventFilter(state="gone"))


# Lists.


async def test_events_are_listed_by_what_they_are(bench: Bench) -> None:
    await deliver(bench, issue(1), "d1")
    bench.move(60_000)
    second = (await deliver(bench, b'{"ref":"refs/heads/main"}', "d2", "push")).event

    async def listed(**wanted: Any) -> list[str]:
        page, _ = await bench.office.events.page(ADMIN, **wanted)
        return [event.kind for event, _ in page]

    assert await listed() == ["push", "issues"]
    assert await listed(kind="push") == ["push"]
    assert await listed(action="opened") == ["issues"]
    assert await listed(since=second.received_at) == ["push"]
    assert await listed(until=second.received_at) == ["issues"]
    assert await listed(source="std") == []
    assert await listed(state="routed", source="gh") == ["push", "issues"]
    with pytest.raises(Invalid) as refused:
        await listed(since=10**18)
    assert refused.value.field == "since"


async def test_what_an_event_was_before_it_was_let_go_stays_in_its_story(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        await break_rules(bench, broken)
        held = (await deliver(bench, issue(), "d1")).event
        thrown = (await deliver(bench, issue(2), "d2")).event
    assert held.reason is not None
    bench.move(60_000)
    released = await bench.office.replays.release(ADMIN, held.id)
    bench.move(60_000)
    await bench.office.replays.replay(ADMIN, held.id)
    await bench.office.replays.discard(ADMIN, thrown.id, "noise")
    story = (await bench.office.trace.trace(ADMIN, held.id)).steps
    assert story[0].at == held.received_at
    assert ("released", f"by root; it was held: {held.reason}") in [(step.what, step.detail) for step in story]
    assert ("replayed", "by root; it was routed") in [(step.what, step.detail) for step in story]
    at = {step.what: step.at for step in story}
    assert held.received_at < at["released"] < at["replayed"] == at["decided"]
    made = next(step for step in story if step.what == "routed" and "made" in step.detail)
    todo = await bench.get(released.todos[0].todo_id)
    assert made.at == todo.created_at > held.received_at, "it was not routed when it came"
    last = (await bench.office.trace.trace(ADMIN, thrown.id)).steps
    assert [step.what for step in last if step.at > thrown.received_at] == ["discarded", "decided", "ignored"]


async def test_an_agent_is_not_told_how_rules_decide(bench: Bench) -> None:
    received = await deliver(bench, issue(), "d1")
    event, _ = await bench.office.events.get(ANN, received.event.id)
    assert event.trace is None
    assert "decided" not in [
        step.what for step in (await bench.office.trace.trace(ANN, received.todos[0].todo_id)).steps
    ]
    assert "decided" in [step.what for step in (await bench.office.trace.trace(ADMIN, received.event.id)).steps]


# Trials.


async def test_a_trial_says_what_would_happen_and_changes_nothing(bench: Bench) -> None:
    received = await deliver(bench, issue(), "d1")
    await bench.office.rulesets.put(ADMIN, "gh", [{"name": "bugs", "match": {"label": "bug"}, "queue": "bugs"}], 0)
    before = await bench.rows("select count(*) from todos"), await stored(bench, received.event.id)
    trials = bench.office.trials
    trial = await trials.event(ADMIN, "gh", received.event.id)
    assert (trial.decision.state, trial.rules_version) == (EventState.IGNORED, 1)
    assert trial.decision.trace == ("bugs: no match, label is missing, not bug",)
    tried = await trials.event(ADMIN, "gh", received.event.id, [{"queue": "all"}])
    assert [one.new.queue for one in tried.decision.todos] == ["all"]
    body = issue(3, action="labeled", label={"name": "bug"})
    given = await trials.given(ADMIN, "gh", body, kind="issues")
    assert [(one.new.queue, one.rule) for one in given.decision.todos] == [("bugs", "bugs")]
    assert (await trials.given(ADMIN, "gh", body, kind="issues.opened")).delivery.kind == "issues"
    named = await trials.given(ADMIN, "gh", body, headers=[("X-GitHub-Event", "push")], kind="issues")
    assert named.delivery.kind == "push"
    assert (await trials.given(ADMIN, "gh", b"\xff")).decision.state is EventState.UNPARSED
    assert before == (await bench.rows("select count(*) from todos"), await stored(bench, received.event.id))


async def test_a_trial_refuses_what_it_cannot_try(bench: Bench) -> None:
    received = await deliver(bench, issue(), "d1")
    trials = bench.office.trials
    with pytest.raises(Forbidden):
        await trials.event(ANN, "gh", received.event.id)
    with pytest.raises(Invalid) as other:
        await trials.event(ADMIN, "std", received.event.id)
    assert other.value.field == "event_id"
    with pytest.raises(NotFound):
        await trials.event(ADMIN, "gh", NOTHING)
    with pytest.raises(NotFound):
        await trials.given(ADMIN, "nope", b"{}")
    with pytest.raises(Invalid) as wrong:
        await trials.event(ADMIN, "gh", received.event.id, [{"match": {"label": 1}}])
    assert wrong.value.field == "rules[0].match.label"
    with pytest.raises(Invalid):
        await trials.given(ADMIN, "gh", b"{}", headers=[("x", "\u20ac")])
