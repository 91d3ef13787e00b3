"""GitHub's own payloads, all that it publishes: proved, read and decided; and the facts in some of them."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from typing import Any

import pytest

from postroom.event import EventState
from postroom.facts import Facts
from postroom.services.rules import MAX_DIGEST_BYTES, decide
from postroom.sources.mentions import mentions
from postroom.text import check_json, dump_json
from tests.payloads.fetch import Example, examples
from tests.sources.signing import PAYLOADS, accepted, github, github_headers

SNAPSHOT = PAYLOADS.parent / "github-preset.txt"


@pytest.fixture(scope="module")
def published() -> tuple[Example, ...]:
    return examples()


def facts(name: str, change: dict[str, Any] | None = None) -> tuple[Facts, str]:
    value = json.loads((PAYLOADS / f"{name}.json").read_bytes()) | (change or {})
    body = json.dumps(value).encode()
    got = accepted(github(), github_headers(body, name.split(".", 1)[0]), body)
    assert got.unparsed is None
    return got.facts, got.title


def test_every_published_payload_is_read_and_decided(published: tuple[Example, ...]) -> None:
    """The presets' todos over all payloads are the stored list; POSTROOM_SNAPSHOT=write in the environment renews it."""
    source = github(preset="github")
    lines: list[str] = []
    for example in published:
        name = f"{example.kind}[{example.number}]"
        got = accepted(source, github_headers(example.body, example.kind, name), example.body)
        assert got.unparsed is None, name
        assert (got.ignored is not None) == (example.kind == "ping"), name
        assert got.data == example.value, name
        assert got.kind == example.kind
        assert got.delivery_key == name
        check_json([got.title, got.action, got.facts.words(), list(got.headers)], name)
        plain = decide(got, (), "inbox", event_id="ev_1")
        assert plain.state == (EventState.IGNORED if example.kind == "ping" else EventState.ROUTED), name
        decision = decide(got, source.rules, source.queue, event_id="ev_1")
        assert decision.state in {EventState.ROUTED, EventState.IGNORED}, name
        for todo in (*plain.todos, *decision.todos):
            check_json(todo.new.payload, name)
            assert len(dump_json(todo.new.payload).encode()) <= MAX_DIGEST_BYTES
        lines += [
            f"{name} {got.action}: {todo.rule} -> {todo.new.kind} {todo.new.idempotency_key} {todo.new.title!r}"
            for todo in decision.todos
        ]
    told = "\n".join(lines) + "\n"
    if os.environ.get("POSTROOM_SNAPSHOT") == "write":
        SNAPSHOT.write_text(told)
    assert told == SNAPSHOT.read_text()


def test_the_copies_here_are_the_published_ones(published: tuple[Example, ...]) -> None:
    known = {dump_json(example.value) for example in published}
    copies = sorted(PAYLOADS.glob("*.json"))
    assert len(copies) >= 15
    for copy in copies:
        assert dump_json(json.loads(copy.read_bytes())) in known, copy.name
    assert "MIT License" in (PAYLOADS / "LICENSE").read_text()


def test_the_sample_that_is_shipped_makes_a_todo() -> None:
    samples = files("postroom") / "samples"
    body = (samples / "github.issues.opened.json").read_bytes()
    assert "MIT License" in (samples / "LICENSE").read_text()
    source = github(preset="github")
    decision = decide(accepted(source, github_headers(body), body), source.rules, source.queue)
    assert [todo.new.idempotency_key for todo in decision.todos] == ["github:Codertocat/Hello-World#1:opened"]


def test_facts_of_a_check() -> None:
    got, title = facts("check_run.completed")
    assert (got.author, got.outcome, got.branch, got.number) == ("github-actions", "failure", "changes", 2)
    assert got.ref == "ec26c3e57ca3a959ca5aad62de7213c562f8c821"
    assert got.url == "https://github.com/Codertocat/Hello-World/runs/128620228"
    assert title == "Codertocat/Hello-World: check_run failure on changes: Octocoders-linter"


def test_facts_of_a_pull_request() -> None:
    got, title = facts("pull_request.review_requested")
    assert (got.number, got.branch, got.target) == (2, "master", "octocat")
    assert title == "Codertocat/Hello-World#2: Update the README with new information."
    team = {"requested_team": {"slug": "reviewers"}, "organization": {"login": "acme"}}
    assert facts("pull_request.review_requested", team)[0].target == "acme/reviewers"


def test_facts_of_a_label() -> None:
    got, _ = facts("issues.labeled", {"label": {"name": "Documentation"}})
    assert got.label == "Documentation"
    assert facts("issues.opened", {"label": {"name": "Documentation"}})[0].label is None


def test_facts_of_a_push() -> None:
    got, title = facts("push", {"ref": "refs/heads/fix/one", "head_commit": {"message": "One\n\nlong story"}})
    assert (got.branch, got.title) == ("fix/one", "One")
    assert title == "Codertocat/Hello-World: push on fix/one: One"


def test_facts_of_a_comment() -> None:
    comment = {"id": 5, "body": "please @My-Bot look", "html_url": "https://example.test/c5"}
    got, _ = facts("issue_comment.created", {"comment": comment})
    assert (got.mentions, got.item, got.url) == (("my-bot",), "5", "https://example.test/c5")


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("", ()),
        ("@ann", ("ann",)),
        ("Hey @Ann, @bob-b! and @ann.", ("ann", "bob-b")),
        ("(@ann) *@bob*", ("ann", "bob")),
        ("cc @acme/reviewers.", ("acme/reviewers",)),
        ("mail ann@example.test or a/@b or x@@y", ()),
        ("`@ann` and @bob", ("bob",)),
        ("```\n@ann\n```\n@bob", ("bob",)),
        ("> @ann said\n\nwhat?", ()),
        ("@-ann @", ()),
        ("@ann- @" + "x" * 39, ("ann", "x" * 39)),
        (" ".join(f"@u{number}" for number in range(50)), tuple(f"u{number}" for number in range(20))),
    ],
)
def test_mentions(text: str, called: tuple[str, ...]) -> None:
    assert mentions(text) == called
