"""Rules and presets: what becomes of a delivery, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import Invalid
from postroom.event import EventState, Incoming
from postroom.facts import NAMES, Facts
from postroom.limits import check_new
from postroom.services.presets import github as github_rules
from postroom.services.rules import MAX_DIGEST_BYTES, Decision, Match, Rule, decide, digest, fill
from postroom.text import check_json, dump_json

FACTS = Facts(
    repository="acme/shop",
    number=12,
    title="It broke",
    url="https://example.test/12",
    author="ann",
    labels=("bug", "agent: fix"),
    branch="main",
    ref="abc123",
    item="77",
)


def delivery(kind: str = "issues", action: str | None = "opened", **more: Any) -> Incoming:
    facts = replace(FACTS, **{name: more.pop(name) for name in list(more) if name in NAMES})
    made = Incoming(
        source="gh",
        provider="github",
        delivery_key="d1",
        kind=kind,
        action=action,
        title="acme/shop#12: It broke",
        verification="none",
        body=b"{}",
        headers=(),
        body_json="{}",
        digest="00",
        facts=facts,
    )
    return replace(made, **more)


def keys(decision: Decision) -> list[tuple[str, str | None]]:
    return [(todo.rule, todo.new.idempotency_key) for todo in decision.todos]


# The list


def test_the_first_match_wins() -> None:
    rules = (Rule("a", Match(kind=("push",))), Rule("b", Match(kind=("issues",))), Rule("c"))
    got = decide(delivery(), rules, "inbox")
    assert got.state == EventState.ROUTED
    assert [todo.rule for todo in got.todos] == ["b"]
    assert got.trace == ("a: no match, kind is issues, not push", "b: matched, todo in inbox under gh:d1")


def test_continue_goes_on_and_drop_ends() -> None:
    on = Rule("a", continue_=True, queue="audit")
    got = decide(delivery(), (on, Rule("b"), Rule("c")), "inbox")
    assert [(todo.rule, todo.new.queue) for todo in got.todos] == [("a", "audit"), ("b", "inbox")]
    got = decide(delivery(), (on, Rule("b", drop=True), Rule("c")), "inbox")
    assert (got.state, [todo.rule for todo in got.todos]) == (EventState.ROUTED, ["a"])
    got = decide(delivery(), (Rule("b", Match(label=("bug",)), drop=True), Rule("c")), "inbox")
    assert (got.state, got.reason, got.todos) == (EventState.IGNORED, "dropped by rule b", ())


def test_no_match_is_ignored_with_its_trace() -> None:
    got = decide(delivery(), (Rule("a", Match(branch=("release/*",), kind=("issues",))),), "inbox")
    assert (got.state, got.reason, got.todos) == (EventState.IGNORED, "no rule matched", ())
    assert got.trace == ("a: no match, branch is main, not release/*",)


def test_without_rules_everything_is_a_todo_in_the_queue() -> None:
    got = decide(delivery(), (), "inbox", event_id="ev_1")
    (todo,) = got.todos
    assert (todo.rule, todo.new.queue, todo.new.title) == ("default", "inbox", "acme/shop#12: It broke")
    assert (todo.new.kind, todo.new.source, todo.new.event_id) == ("issues.opened", "gh", "ev_1")
    assert todo.new.idempotency_key == "gh:d1"
    got = decide(delivery(), (), None)
    assert (got.state, got.todos) == (EventState.IGNORED, ())


def test_what_is_unparsed_or_a_handshake_reaches_no_rule() -> None:
    got = decide(delivery(unparsed="the body is empty", ignored="ping"), (Rule("a"),), "inbox")
    assert (got.state, got.reason, got.todos) == (EventState.UNPARSED, "the body is empty", ())
    got = decide(delivery(ignored="ping"), (), "inbox")
    assert (got.state, got.reason, got.todos) == (EventState.IGNORED, "ping", ())


@pytest.mark.parametrize("ignored", ["ann", "ANN", "a*"])
def test_ones_own_acts_are_ignored(ignored: str) -> None:
    got = decide(delivery(), (), "inbox", ("other", ignored))
    assert (got.state, got.reason) == (EventState.IGNORED, "author ann is ignored")


def test_a_name_with_brackets_is_a_name() -> None:
    bot = delivery(author="renovate[bot]")
    assert decide(bot, (), "inbox", ("renovate[bot]",)).state == EventState.IGNORED
    assert decide(bot, (), "inbox", ("*[[]bot]",)).state == EventState.IGNORED
    assert decide(delivery(author="renovateb"), (), "inbox", ("other[bot]",)).state == EventState.ROUTED


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        (Match(), True),
        (Match(kind=("ISSUES",), action=("opened", "closed")), True),
        (Match(action=("clo*",)), False),
        (Match(label=("agent:*",)), True),
        (Match(label=("nope", "bug")), True),
        (Match(label=("nope",)), False),
        (Match(author=("*",)), True),
        (Match(outcome=("*",)), False),
        (Match(repository=("Acme/*",)), True),
        (Match(repository=("acme",)), False),
        (Match(branch=("main",), author=("bob",)), False),
        (Match(mention=("*",)), False),
    ],
)
def test_facts_match_by_value_list_and_glob(match: Match, fits: bool) -> None:
    assert bool(decide(delivery(), (Rule("a", match),), "inbox").todos) == fits


def test_an_event_about_one_label_is_matched_by_that_one() -> None:
    labelled = delivery(action="labeled", label="docs")
    assert not decide(labelled, (Rule("a", Match(label=("bug",))),), "inbox").todos
    assert decide(labelled, (Rule("a", Match(label=("docs",))),), "inbox").todos


# A rule that breaks


@pytest.mark.parametrize("broken", [Rule("b"), Rule("b", Match(kind=(3,)), queue="inbox")])  # type: ignore[arg-type]
def test_a_rule_that_breaks_holds_the_event(broken: Rule) -> None:
    got = decide(delivery(), (Rule("a", continue_=True, queue="audit"), broken), None)
    assert got.state == EventState.HELD
    assert got.reason is not None
    assert got.reason.startswith("rule b broke: ")
    assert got.todos == ()
    assert got.trace[0].startswith("a: matched")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "has space"}, "name"),
        ({"title": "{nope}"}, "title"),
        ({"title": "{title"}, "title"),
        ({"title": "title}"}, "title"),
        ({"title": "{title.__class__}"}, "title"),
        ({"title": "{title!r}"}, "title"),
        ({"key": "{0}"}, "key"),
        ({"queue": "No Queue"}, "queue"),
        ({"kind": "bad kind"}, "kind"),
        ({"priority": 101}, "priority"),
        ({"assignee": "a b"}, "assignee"),
        ({"delay_ms": -1}, "delay_s"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"drop": True, "continue_": True}, "continue"),
    ],
)
def test_a_wrong_rule_cannot_be_made(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        Rule(**{"name": "a", **fields})
    assert caught.value.field == field


# What a rule gives


def test_a_rule_gives_what_it_says() -> None:
    rule = Rule(
        "a",
        queue="fix",
        title="{{{repository}}} {action} by {author}: {labels}",
        kind="bug",
        priority=7,
        assignee="bot",
        key="{source}/{number}",
        delay_ms=60_000,
        max_attempts=2,
    )
    (todo,) = decide(delivery(), (rule,), "inbox").todos
    new = todo.new
    assert new.title == "{acme/shop} opened by ann: bug, agent: fix"
    assert (new.queue, new.kind, new.priority, new.assignee) == ("fix", "bug", 7, "bot")
    assert (new.idempotency_key, new.delay_ms, new.max_attempts) == ("gh/12", 60_000, 2)


def test_words_are_put_in_once() -> None:
    assert fill("{title} {{x}} {number}", {"title": "{number}{{"}) == ("{number}{{ {x} ", ["number"])


def test_a_key_that_misses_a_word_is_the_deliverys_own() -> None:
    rule = Rule("a", key="{provider}:{repository}#{number}")
    (todo,) = decide(delivery(number=None), (rule,), "inbox").todos
    assert todo.new.idempotency_key == "gh:d1"


def test_long_keys_stay_apart() -> None:
    rule = Rule("a", key="{title}")
    made = [keys(decide(delivery(title="x" * 500 + end), (rule,), "inbox"))[0][1] for end in "ab"]
    assert made[0] != made[1]
    assert all(key is not None and len(key) <= 256 for key in made)


def test_the_payload_is_a_digest_that_points_to_the_event() -> None:
    (todo,) = decide(delivery(), (), "inbox", event_id="ev_1").todos
    assert todo.new.payload == {
        "kind": "issues",
        "action": "opened",
        "repository": "acme/shop",
        "number": 12,
        "ref": "abc123",
        "branch": "main",
        "title": "It broke",
        "url": "https://example.test/12",
        "author": "ann",
        "labels": ["bug", "agent: fix"],
        "body": "kept with the event: GET /v1/events/ev_1",
    }


TEXT = st.text(max_size=40) | st.sampled_from(["\x01" * 2048, '"\\' * 1024, "é" * 1024, "{title}", "\u202e\x1b[2J"])


@given(
    st.builds(
        Facts,
        **{
            name: st.lists(TEXT, max_size=30).map(tuple)
            if name in {"labels", "mentions", "targets", "changed"}
            else st.none() | (st.integers(0, 1 << 62) if name == "number" else TEXT)
            for name in NAMES
        },
    ),
    TEXT,
    st.none() | TEXT,
)
def test_whatever_the_facts_the_todos_can_be_created(facts: Facts, kind: str, action: str | None) -> None:
    facts = Facts(**{name: _clean(getattr(facts, name)) for name in NAMES})
    got = decide(replace(delivery(_clean(kind), _clean(action)), facts=facts), (), "inbox")
    assert got.state == EventState.ROUTED
    for todo in got.todos:
        check_new(todo.new)
        check_json(todo.new.payload, "payload")
        assert len(dump_json(digest(replace(delivery(), facts=facts))).encode()) <= MAX_DIGEST_BYTES
        assert todo.new.payload["body"].startswith("kept with the event")


def _clean(value: Any) -> Any:
    """What sources promise of facts: text that a database takes."""
    if isinstance(value, tuple):
        return tuple(_clean(entry) for entry in value)
    return value.replace("\x00", "").encode("utf-8", "ignore").decode() if isinstance(value, str) else value


# The preset


def preset(made: Incoming, *logins: str) -> list[tuple[str, str | None]]:
    return keys(decide(made, github_rules(logins), "inbox"))


def test_an_issue_opened_with_labels_is_one_todo() -> None:
    opened = preset(delivery())
    labelled = preset(delivery(action="labeled", label="bug", delivery_key="d2"))
    assert opened == [("issue-opened", "github:acme/shop#12:opened")]
    assert labelled == [("issue-labelled", "github:acme/shop#12:opened")]
    assert preset(delivery(action="closed")) == []


def test_a_review_is_asked_of_somebody() -> None:
    asked = delivery("pull_request", "review_requested", target="acme/Reviewers")
    assert preset(asked) == [("review-requested", "github:acme/shop#12:review:acme/Reviewers")]
    assert preset(asked, "acme/reviewers")
    assert preset(asked, "my-bot") == []
    assert preset(delivery("pull_request", "opened", target="my-bot"), "my-bot") == []


@pytest.mark.parametrize("kind", ["check_run", "check_suite", "workflow_run"])
def test_a_commit_that_fails_is_one_todo_however_often_it_is_told(kind: str) -> None:
    failed = delivery(kind, "completed", outcome="failure", number=None)
    assert preset(failed) == [("checks-failed", "github:acme/shop@abc123:checks")]
    assert preset(delivery(kind, "completed", outcome="timed_out"))
    for outcome in ("success", "neutral", "cancelled", "skipped", None):
        assert preset(delivery(kind, "completed", outcome=outcome)) == []
    assert preset(delivery(kind, "requested", outcome="failure")) == []


def test_a_mention_calls_somebody() -> None:
    called = delivery("issue_comment", "created", mentions=("ann", "my-bot"))
    assert preset(called) == [("mention", "github:acme/shop:issue_comment:77:mention")]
    assert preset(called, "My-Bot")
    assert preset(called, "bob") == []
    assert preset(delivery("issue_comment", "created")) == []
    assert preset(delivery("issue_comment", "edited", mentions=("ann",))) == []
    assert json.loads(dump_json(decide(called, github_rules(), "inbox").todos[0].new.payload))["number"] == 12
