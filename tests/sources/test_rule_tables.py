"""Rules in the settings: what they become, in which order, and how a wrong one is named."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from postroom.errors import Misconfigured
from postroom.services.rules import Match, Rule, decide
from postroom.sources.rule_tables import MAX_RULES
from tests.sources.signing import SECRET, accepted, github, github_headers, one, sent

SETTINGS = """
[[source]]
name = "gh"
provider = "github"
secrets = ["It's a Secret to Everybody"]
queue = "inbox"
preset = "github"
logins = ["shop-bot"]
ignore_authors = ["shop-bot", "*[[]bot]"]

[[source.rule]]
name = "dependabot"
match = { author = "dependabot*", kind = ["pull_request", "issues"] }
drop = true

[[source.rule]]
name = "urgent"
queue = "urgent"
title = "Now: {title}"
kind = "bug"
priority = 50
assignee = "alice"
key = "{repository}#{number}:urgent"
delay_s = 60
max_attempts = 2
continue = true
[source.rule.match]
kind = "issues"
label = ["bug", "crash*"]

[[source.rule]]
match.changed = "labels"
"""


def tables() -> list[dict[str, Any]]:
    return list(tomllib.loads(SETTINGS)["source"])


def wrong(rule: object, **more: Any) -> Misconfigured:
    with pytest.raises(Misconfigured) as caught:
        github(rule=rule, **more)
    return caught.value


def test_rules_are_read_in_their_order_and_come_before_the_presets() -> None:
    source = github(**tables()[0])
    assert source.rules[0] == Rule(
        "dependabot", Match(author=("dependabot*",), kind=("pull_request", "issues")), drop=True
    )
    assert source.rules[1] == Rule(
        "urgent",
        Match(kind=("issues",), label=("bug", "crash*")),
        queue="urgent",
        title="Now: {title}",
        kind="bug",
        priority=50,
        assignee="alice",
        key="{repository}#{number}:urgent",
        delay_ms=60_000,
        max_attempts=2,
        continue_=True,
    )
    assert source.rules[2] == Rule("rule-3", Match(changed=("labels",)))
    assert source.rules[3].name == "issue-opened"
    assert source.ignore_authors == ("shop-bot", "*[[]bot]")
    pairs, body = sent("github", "issues.opened")
    made = decide(accepted(source, pairs, body), source.rules, source.queue, source.ignore_authors).todos
    assert [(todo.rule, todo.new.queue) for todo in made] == [("urgent", "urgent"), ("issue-opened", "inbox")]


def test_without_a_preset_only_the_own_rules_count() -> None:
    source = github(rule=[{"match": {"kind": "push"}}])
    assert decide(accepted(source, github_headers(b"{}"), b"{}"), source.rules, "inbox").todos == ()


@pytest.mark.parametrize(
    ("rule", "key", "says"),
    [
        ({"name": "has space"}, "name", "no name"),
        ({"name": 3}, "name", "text"),
        ({"match": "issues"}, "match", "table"),
        ({"match": {"kinds": "issues"}}, "match.kinds", "did you mean kind?"),
        ({"match": {"kind": []}}, "match.kind", "list of texts"),
        ({"match": {"kind": [""]}}, "match.kind", "not empty"),
        ({"match": {"kind": 3}}, "match.kind", "list of texts"),
        ({"queue": "No Queue"}, "queue", "queue name"),
        ({"title": "{nope}"}, "title", "nope"),
        ({"title": "{title"}, "title", "position 0"),
        ({"key": "{0}"}, "key", "single"),
        ({"kind": "bad kind"}, "kind", "match"),
        ({"priority": 101}, "priority", "-100 to 100"),
        ({"priority": True}, "priority", "whole number"),
        ({"assignee": "a b"}, "assignee", "no name"),
        ({"delay_s": -1}, "delay_s", "from 0"),
        ({"delay_s": 1.5}, "delay_s", "whole number"),
        ({"max_attempts": 0}, "max_attempts", "from 1"),
        ({"drop": "yes"}, "drop", "true or false"),
        ({"drop": True, "queue": "q"}, "drop", "nothing but"),
        ({"drop": True, "continue": True}, "continue", "not both"),
        ({"tittle": "x"}, "tittle", "did you mean title?"),
    ],
)
def test_a_wrong_rule_is_named_by_position_and_key(rule: dict[str, Any], key: str, says: str) -> None:
    error = wrong([{"name": "fine"}, rule])
    assert error.field == f"source.gh.rule[1].{key}"
    assert says in error.message
    assert 'source "gh": rule 2' in error.message
    if rule.get("name") is None:
        assert '"second"' in wrong([{}, {"name": "second", **rule}]).message


def test_a_rule_needs_a_queue_from_somewhere_and_a_name_of_its_own() -> None:
    assert wrong([{"name": "a"}, {"name": "a"}]).field == "source.gh.rule[1].name"
    assert wrong([{"name": "mention"}], preset="github").field == "source.gh.rule[0].name"
    assert wrong({"name": "a"}).field == "source.gh.rule"
    assert wrong([{}] * (MAX_RULES + 1)).field == "source.gh.rule"
    with pytest.raises(Misconfigured, match=r"rule 1: queue: expected a queue"):
        one({"name": "gh", "provider": "github", "secrets": [SECRET], "rule": [{}]})
