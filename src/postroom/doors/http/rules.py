"""Rules over HTTP: a source's own, edited by version, and what they would make of a delivery; for admins."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.fields import (
    KIND_PATTERN,
    NAME_PATTERN,
    Asked,
    Assignee,
    MaxAttempts,
    Priority,
    Queue,
    Whole,
    told,
)
from postroom.doors.http.route import MANY, ONE, Call, Route, Who
from postroom.doors.http.schemas import named, record
from postroom.errors import Invalid
from postroom.limits import MAX_DELAY
from postroom.services.rules import Rule
from postroom.services.rulesets import MAX_RULES, RuleSet, rule_view
from postroom.services.trials import Trial
from postroom.text import dump_json
from postroom.wire import show_time

NOUN = "rules"

_ONE: dict[str, Any] = {"type": "string", "minLength": 1}
Patterns = Annotated[
    Any,
    told(
        "A value or glob, or a list of them.",
        anyOf=[_ONE, {"type": "array", "items": _ONE, "minItems": 1}, {"type": "null"}],
    ),
]
Words = Annotated[str, told("A text with `{words}` of the facts.", minLength=1)]


class RuleMatch(Asked):
    """What a rule asks of a delivery: every fact that is named must fit."""

    kind: Patterns = None
    action: Patterns = None
    label: Patterns = None
    author: Patterns = None
    repository: Patterns = None
    branch: Patterns = None
    outcome: Patterns = None
    target: Patterns = None
    changed: Patterns = None
    mention: Patterns = None


class NewRule(Asked):
    """A rule, with the names of a [[source.rule]] table in the settings."""

    name: Annotated[str, told("Tells it apart; made up where it is absent.", pattern=NAME_PATTERN)] | None = None
    match: RuleMatch | None = None
    queue: Queue | None = None
    title: Words | None = None
    kind: Annotated[str, told("What sort of work it is.", pattern=KIND_PATTERN, minLength=1)] | None = None
    priority: Priority | None = None
    assignee: Assignee | None = None
    key: Words | None = None
    delay_s: Annotated[Whole, told("Seconds until it may be claimed.", minimum=0, maximum=MAX_DELAY // 1000)] | None = (
        None
    )
    max_attempts: MaxAttempts | None = None
    drop: Annotated[bool, Field(description="A match ends the list and makes no todo.")] | None = None
    go_on: Annotated[bool | None, Field(alias="continue", description="A match does not end the list.")] = None

    def as_table(self) -> dict[str, Any]:
        """The rule as the settings would have it; null is absent."""
        return self.model_dump(by_alias=True, exclude_none=True)


Version = Annotated[Whole, told("The version that was read; another edit since then is a conflict.", minimum=0)]
At = Annotated[Whole, told("A place among the source's own rules, from 0.", minimum=0)]
Name = Annotated[str, told("The rule's name.")]


class PutRules(Asked):
    """The source's own rules, all of them."""

    rules: Annotated[list[NewRule], told("In the order in which they are asked.", maxItems=MAX_RULES)]
    version: Version


class AddRule(Asked):
    """A rule to be added."""

    rule: NewRule
    at: At | None = None
    version: Version | None = None


class MoveRule(Asked):
    """A rule to be moved."""

    name: Name
    at: At
    version: Version | None = None


class RemoveRule(Asked):
    """A rule to be removed."""

    name: Name
    version: Version | None = None


class TestRules(Asked):
    """What to try the rules with: a stored event, or a body as it would come."""

    event_id: Annotated[str, told("A stored event of this source.")] | None = None
    body: Annotated[Any, Field(description="The body: a JSON value, or the raw text as a string.")] = None
    headers: Annotated[dict[str, str], told("Headers that tell what the body is, beside it.")] | None = None
    kind: Annotated[str, told("Stands for the header that tells the kind; a sample's name will do.")] | None = None
    rules: Annotated[list[NewRule], told("Tried in place of the source's own rules.", maxItems=MAX_RULES)] | None = None


def rule_set_view(found: RuleSet, settings: tuple[Rule, ...]) -> dict[str, Any]:
    """A source's rules, its own and those that follow them."""
    return {
        "source": found.source,
        "version": found.version,
        "rules": [rule_view(rule) for rule in found.rules],
        "settings": [rule_view(rule) for rule in settings],
        "created_by": found.created_by,
        "created_at": show_time(found.created_at),
        "broken": found.broken,
    }


def _trial_view(trial: Trial) -> dict[str, Any]:
    delivery, decision = trial.delivery, trial.decision
    return {
        "kind": delivery.kind,
        "action": delivery.action,
        "title": delivery.title,
        "state": str(decision.state),
        "reason": decision.reason,
        "todos": [
            {
                "rule": one.rule,
                "queue": one.new.queue,
                "title": one.new.title,
                "kind": one.new.kind,
                "priority": one.new.priority,
                "assignee": one.new.assignee,
                "idempotency_key": one.new.idempotency_key,
                "max_attempts": one.new.max_attempts,
                "delay_s": None if one.new.delay_ms is None else one.new.delay_ms / 1000,
                "payload": one.new.payload,
            }
            for one in decision.todos
        ],
        "trace": list(decision.trace),
        "rules_version": trial.rules_version,
    }


async def get(call: Call, _: None) -> Answer:
    """The source's rules."""
    found, settings = await call.api.rulesets.get(call.principal, call.path["source"])
    return json_answer({"rules": rule_set_view(found, settings)})


def _saved(call: Call, found: RuleSet) -> Answer:
    return json_answer({"rules": rule_set_view(found, call.api.rulesets.source(found.source).rules)})


async def put(call: Call, asked: PutRules) -> Answer:
    """Version -> the next one with these rules."""
    rulesets = call.api.rulesets
    return _saved(
        call,
        await rulesets.put(
            call.principal, call.path["source"], [rule.as_table() for rule in asked.rules], asked.version
        ),
    )


async def add(call: Call, asked: AddRule) -> Answer:
    """One rule more."""
    rulesets, name = call.api.rulesets, call.path["source"]
    return _saved(call, await rulesets.add(call.principal, name, asked.rule.as_table(), asked.at, asked.version))


async def move(call: Call, asked: MoveRule) -> Answer:
    """A rule to another place."""
    rulesets, name = call.api.rulesets, call.path["source"]
    return _saved(call, await rulesets.move(call.principal, name, asked.name, asked.at, asked.version))


async def remove(call: Call, asked: RemoveRule) -> Answer:
    """A rule less."""
    rulesets, name = call.api.rulesets, call.path["source"]
    return _saved(call, await rulesets.remove(call.principal, name, asked.name, asked.version))


async def test(call: Call, asked: TestRules) -> Answer:
    """What would happen, and why; nothing is changed."""
    trials, name = call.api.trials, call.path["source"]
    rules = None if asked.rules is None else [rule.as_table() for rule in asked.rules]
    if asked.event_id is not None:
        for field in ("body", "headers", "kind"):
            if field in asked.model_fields_set and getattr(asked, field) is not None:
                raise Invalid(f"{field} is expected without event_id: the event has its own", field=field)
        trial = await trials.event(call.principal, name, asked.event_id, rules)
    elif "body" in asked.model_fields_set:
        body = asked.body if isinstance(asked.body, str) else dump_json(asked.body)
        trial = await trials.given(
            call.principal,
            name,
            body.encode("utf-8", "surrogatepass"),
            headers=tuple((asked.headers or {}).items()),
            kind=asked.kind,
            rules=rules,
        )
    else:
        raise Invalid("expected event_id, or body", field="event_id")
    return json_answer({"trial": _trial_view(trial)})


_ANSWER = {200: record({"rules": named("RuleSet")})}


def _route(verb: str, summary: str, handler: Any, body: type[Asked]) -> Route:
    path = f"/v1/sources/{{source}}/rules/{verb}"
    return Route("POST", path, NOUN, summary, handler, _ANSWER, who=Who.ADMIN, body=body, refusals=(404, 409), most=ONE)


ROUTES = (
    Route(
        "GET",
        "/v1/sources/{source}/rules",
        NOUN,
        "Get a source's rules: its own with their version, and those of its settings and preset, which follow.",
        get,
        _ANSWER,
        who=Who.ADMIN,
        refusals=(404,),
    ),
    Route(
        "PUT",
        "/v1/sources/{source}/rules",
        NOUN,
        "Set a source's own rules as a new version; a wrong one is refused by its place, as `rules[2].match.label`.",
        put,
        _ANSWER,
        who=Who.ADMIN,
        body=PutRules,
        refusals=(404, 409),
        most=ONE,
    ),
    _route("add", "Add a rule, at the end or before the one at a place.", add, AddRule),
    _route("move", "Move a rule to another place.", move, MoveRule),
    _route("remove", "Remove a rule.", remove, RemoveRule),
    Route(
        "POST",
        "/v1/sources/{source}/rules/test",
        NOUN,
        "Tell what would become of a stored event or of a body as it would come, and why; nothing is changed.",
        test,
        {200: record({"trial": named("Trial")})},
        who=Who.ADMIN,
        body=TestRules,
        refusals=(404,),
        most=MANY,
    ),
)
