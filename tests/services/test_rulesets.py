"""Rule sets: edited by version, checked when they are saved, and in force for the next delivery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroom.errors import Conflict, Forbidden, Invalid, NotFound, TooLarge
from postroom.event import EventState, Incoming
from postroom.services.rulesets import CACHE_SECONDS, RuleSet, RuleSetService, rule_view
from postroom.sources.settings import build_sources
from postroom.store.rule_sets import RuleSetTable
from tests.offices import ADMIN, ANN, Bench, gather
from tests.sources.signing import github

SOURCE: dict[str, Any] = {"name": "gh", "provider": "github", "secrets": ["a-secret-of-sixteen"], "queue": "inbox"}
BUGS = {"name": "bugs", "match": {"kind": "issues", "label": ["bug", "crash*"]}, "queue": "bugs", "priority": 5}
REST = {"name": "rest", "drop": True}


@pytest.fixture
def rules(bench: Bench) -> RuleSetService:
    """The service, with one source set up."""
    bench.office.roster.swap(build_sources([SOURCE], {}, Path()))
    return bench.office.rulesets


def names(found: RuleSet) -> list[str]:
    return [rule.name for rule in found.rules]


async def test_rules_are_saved_by_version_and_read_back(rules: RuleSetService) -> None:
    first, settings = await rules.get(ADMIN, "gh")
    assert (first.version, first.rules, settings) == (0, (), ())
    saved = await rules.put(ADMIN, "gh", [BUGS, REST], 0)
    assert (saved.version, names(saved), saved.created_by) == (1, ["bugs", "rest"], "root")
    assert saved.created_at is not None
    assert [rule_view(rule) for rule in saved.rules] == [BUGS, REST]
    assert (await rules.get(ADMIN, "gh"))[0] == saved
    assert names(await rules.put(ADMIN, "gh", [], 1)) == []


async def test_rules_are_added_moved_and_removed(rules: RuleSetService) -> None:
    await rules.add(ADMIN, "gh", REST)
    assert names(await rules.add(ADMIN, "gh", BUGS, at=0)) == ["bugs", "rest"]
    assert names(await rules.add(ADMIN, "gh", {"match": {"kind": "push"}})) == ["bugs", "rest", "rule-1"]
    assert names(await rules.add(ADMIN, "gh", {}, at=1)) == ["bugs", "rule-2", "rest", "rule-1"]
    assert names(await rules.move(ADMIN, "gh", "rule-1", 0)) == ["rule-1", "bugs", "rule-2", "rest"]
    assert names(await rules.move(ADMIN, "gh", "rule-1", 3)) == ["bugs", "rule-2", "rest", "rule-1"]
    last = await rules.remove(ADMIN, "gh", "rule-2")
    assert (names(last), last.version) == (["bugs", "rest", "rule-1"], 7)
    for call in (rules.remove(ADMIN, "gh", "nope"), rules.move(ADMIN, "gh", "nope", 0)):
        with pytest.raises(NotFound):
            await call
    for at in (-1, 3):
        with pytest.raises(Invalid) as refused:
            await rules.move(ADMIN, "gh", "bugs", at)
        assert refused.value.field == "at"


async def test_an_edit_of_an_older_version_is_a_conflict(rules: RuleSetService) -> None:
    await rules.put(ADMIN, "gh", [BUGS], 0)
    for call in (
        rules.put(ADMIN, "gh", [REST], 0),
        rules.put(ADMIN, "gh", [REST], 2),
        rules.add(ADMIN, "gh", REST, version=0),
        rules.remove(ADMIN, "gh", "bugs", version=7),
    ):
        with pytest.raises(Conflict) as refused:
            await call
        assert refused.value.details["version"] == 1
    assert names((await rules.get(ADMIN, "gh"))[0]) == ["bugs"]


async def test_edits_at_once_lose_nothing(rules: RuleSetService) -> None:
    answers = await gather(*(rules.put(ADMIN, "gh", [{"name": f"r{n}"}], 0) for n in range(8)))
    won = [answer for answer in answers if isinstance(answer, RuleSet)]
    assert len(won) == 1
    assert all(isinstance(answer, RuleSet | Conflict) for answer in answers)
    added = await gather(*(rules.add(ADMIN, "gh", {"name": f"more{n}"}) for n in range(8)))
    assert sorted(answer.version for answer in added) == list(range(2, 10))
    assert len((await rules.get(ADMIN, "gh"))[0].rules) == 9


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"match": {"label": 5}}, "rules[1].match.label"),
        ({"match": {"label": [""]}}, "rules[1].match.label"),
        ({"match": {"colour": "red"}}, "rules[1].match.colour"),
        ({"match": "issues"}, "rules[1].match"),
        ({"queue": "No Queue"}, "rules[1].queue"),
        ({"title": "{nobody}"}, "rules[1].title"),
        ({"key": "{source"}, "rules[1].key"),
        ({"priority": 101}, "rules[1].priority"),
        ({"delay_s": -1}, "rules[1].delay_s"),
        ({"drop": True, "queue": "q"}, "rules[1].drop"),
        ({"drop": True, "continue": True}, "rules[1].continue"),
        ({"when": "x"}, "rules[1].when"),
        ({"name": "bugs"}, "rules[1].name"),
        ("drop", "rules"),
    ],
)
async def test_a_wrong_rule_is_refused_by_its_place(rules: RuleSetService, wrong: Any, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        await rules.put(ADMIN, "gh", [BUGS, wrong], 0)
    assert refused.value.field == field
    assert (await rules.get(ADMIN, "gh"))[0].version == 0


async def test_too_many_or_too_large_rules_are_refused(rules: RuleSetService) -> None:
    with pytest.raises(Invalid):
        await rules.put(ADMIN, "gh", [{}] * 201, 0)
    with pytest.raises(TooLarge):
        await rules.put(ADMIN, "gh", [{"match": {"label": ["x" * 2000] * 100}}] * 2, 0)


async def test_rules_are_for_admins_and_for_sources_there_are(rules: RuleSetService) -> None:
    for call in (rules.get(ANN, "gh"), rules.put(ANN, "gh", [], 0), rules.add(ANN, "gh", {})):
        with pytest.raises(Forbidden):
            await call
    for call in (rules.get(ADMIN, "other"), rules.put(ADMIN, "other", [], 0)):
        with pytest.raises(NotFound):
            await call


async def test_a_name_of_the_settings_cannot_be_taken(bench: Bench) -> None:
    table = {**SOURCE, "preset": "github", "rule": [{"name": "mine"}]}
    bench.office.roster.swap(build_sources([table], {}, Path()))
    for name in ("mine", "issue-opened"):
        with pytest.raises(Invalid) as refused:
            await bench.office.rulesets.add(ADMIN, "gh", {"name": name})
        assert refused.value.field == "rules[0].name"
    _, settings = await bench.office.rulesets.get(ADMIN, "gh")
    assert [rule.name for rule in settings[:2]] == ["mine", "issue-opened"]


def delivery(key: str, **more: Any) -> Incoming:
    return Incoming("gh", "github", key, "push", None, "a push", "hmac:x", b"{}", [], "{}", f"digest of {key}", **more)


async def test_own_rules_are_asked_before_those_of_the_settings(bench: Bench) -> None:
    bench.office.roster.swap(build_sources([{**SOURCE, "rule": [{"name": "mine"}]}], {}, Path()))
    source = bench.office.roster.get("gh")
    assert source is not None
    before = await bench.office.intake.receive(delivery("1"), source)
    assert ([link.rule for link in before.todos], before.event.rules_version) == (["mine"], None)
    await bench.office.rulesets.put(ADMIN, "gh", [{"name": "first", "match": {"kind": "push"}, "continue": True}], 0)
    after = await bench.office.intake.receive(delivery("2"), source)
    assert ({link.rule for link in after.todos}, after.event.rules_version) == ({"first", "mine"}, 1)
    event, _ = await bench.office.events.get(ADMIN, after.event.id)
    assert [line.split(":")[0] for line in event.trace] == ["first", "mine"]


async def test_another_daemons_edit_is_in_force_within_five_seconds(bench: Bench) -> None:
    now = 0.0
    bench.office.roster.swap(build_sources([SOURCE], {}, Path()))
    source = bench.office.roster.get("gh")
    assert source is not None
    other = RuleSetService(bench.store, RuleSetTable(), bench.office.roster, lambda: now)
    assert (await other.in_force(source)).version == 0
    await bench.office.rulesets.put(ADMIN, "gh", [BUGS], 0)
    assert (await bench.office.rulesets.in_force(source)).version == 1
    assert (await other.in_force(source)).version == 0
    now += CACHE_SECONDS + 0.1
    assert (await other.in_force(source)).version == 1


async def test_rules_that_the_settings_broke_hold_what_comes(bench: Bench) -> None:
    bench.office.roster.swap(build_sources([SOURCE], {}, Path()))
    await bench.office.rulesets.put(ADMIN, "gh", [{"match": {"kind": "push"}}], 0)
    without = {key: value for key, value in SOURCE.items() if key != "queue"}
    bench.office.roster.swap(build_sources([without], {}, Path()))
    source = bench.office.roster.get("gh")
    assert source is not None
    received = await bench.office.intake.receive(delivery("1"), source)
    assert (received.event.state, received.todos) == (EventState.HELD, ())
    assert "rules version 1 cannot be read" in str(received.event.reason)
    assert (await bench.office.rulesets.get(ADMIN, "gh"))[0].broken is not None
    ping = await bench.office.intake.receive(delivery("2", ignored="ping"), source)
    assert ping.event.state is EventState.IGNORED
    # A new set mends it.
    await bench.office.rulesets.put(ADMIN, "gh", [{"queue": "inbox"}], 1)
    assert (await bench.office.intake.receive(delivery("3"), source)).event.state is EventState.ROUTED


def test_a_preset_is_shown_as_the_settings_would_have_it(bench: Bench) -> None:
    source = github(preset="github")
    table = {**SOURCE, "rule": [rule_view(rule) for rule in source.rules]}
    again = build_sources([table], {}, Path()).by_name["gh"]
    assert again.rules == source.rules
