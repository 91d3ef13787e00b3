"""Rules from the settings: the `[[source.rule]]` tables of a source, then those of its preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from postroom.errors import Invalid, TooLarge
from postroom.limits import MAX_DELAY, MAX_MAX_ATTEMPTS, MAX_PRIORITY
from postroom.services.presets import PRESETS
from postroom.services.rules import Match, Rule
from postroom.sources.options import Options

MAX_RULES: Final = 200
MATCHES: Final = tuple(spec.name for spec in fields(Match))


def rules_of(options: Options, table: Mapping[str, object], provider: str, queue: str | None) -> tuple[Rule, ...]:
    """The rules of a source's table in their order, its own before the preset's. Raises Misconfigured.

    A wrong one is named by its position from 1, its name when it has one, and the key.
    """
    own = _own(options, table, queue)
    preset = _preset(options, provider, queue)
    taken = {rule.name for rule in preset}
    for position, rule in enumerate(own, 1):
        if rule.name in taken:
            place = _place(position, rule.name)
            raise Options(options.source, {}, place).wrong("name", "there is another rule of this name")
        taken.add(rule.name)
    return (*own, *preset)


def _preset(options: Options, provider: str, queue: str | None) -> tuple[Rule, ...]:
    logins = options.texts("logins")
    name = options.choice("preset", tuple(PRESETS))
    if name is None:
        if logins:
            raise options.wrong("logins", "expected a preset beside it: nothing else reads it")
        return ()
    preset = PRESETS[name]
    if provider not in preset.providers:
        raise options.wrong("preset", f"{name} is for {', '.join(preset.providers)}, and this source is {provider}")
    if queue is None:
        raise options.wrong("queue", f"expected a queue for the todos of preset {name}")
    return preset.rules(logins)


def _own(options: Options, table: Mapping[str, object], queue: str | None) -> tuple[Rule, ...]:
    if not options.has("rule"):
        return ()
    tables = table["rule"]
    if not isinstance(tables, list) or not all(isinstance(entry, Mapping) for entry in tables):
        raise options.wrong("rule", "expected [[source.rule]] tables")
    if len(tables) > MAX_RULES:
        raise options.wrong("rule", f"expected at most {MAX_RULES} rules, got {len(tables)}")
    return tuple(_rule(options.source, position, entry, queue) for position, entry in enumerate(tables, 1))


def _place(position: int, name: object) -> tuple[str, str]:
    """Where a rule stands, in words and as a path."""
    called = f' "{name:.64}"' if isinstance(name, str) and name else ""
    return f"rule {position}{called}", f"rule[{position - 1}]"


def _rule(source: str, position: int, table: Mapping[str, object], queue: str | None) -> Rule:
    place = _place(position, table.get("name"))
    options = Options(source, table, place)
    name = options.text("name") or f"rule-{position}"
    match = _match(source, place, options, table)
    drop = options.flag("drop")
    own_queue = options.text("queue")
    delay = options.number("delay_s", 0, MAX_DELAY // 1000, None)
    given = {
        "queue": own_queue,
        "kind": options.text("kind"),
        "assignee": options.text("assignee"),
        "max_attempts": options.number("max_attempts", 1, MAX_MAX_ATTEMPTS, None),
        "delay_ms": None if delay is None else delay * 1000,
        "title": options.text("title"),
        "key": options.text("key"),
        "priority": options.number("priority", -MAX_PRIORITY, MAX_PRIORITY, None),
    }
    goes_on = options.flag("continue")
    options.refuse_rest()
    if drop and any(value is not None for value in given.values()):
        raise options.wrong("drop", "expected nothing but name and match beside it: what is dropped makes no todo")
    if not drop and own_queue is None and queue is None:
        raise options.wrong("queue", "expected a queue here or in the source")
    try:
        told = {key: value for key, value in given.items() if value is not None}
        return Rule(name=name, match=match, drop=drop, continue_=goes_on, **told)  # type: ignore[arg-type]
    except (Invalid, TooLarge) as refused:
        raise options.wrong(refused.field or "name", refused.message) from None


def _match(source: str, place: tuple[str, str], options: Options, table: Mapping[str, object]) -> Match:
    """What the rule asks: each fact by one value or glob, or a list of them."""
    if not options.has("match"):
        return Match()
    wanted = table["match"]
    if not isinstance(wanted, Mapping):
        raise options.wrong("match", f'expected a table such as {{ kind = "issues" }} of {", ".join(MATCHES)}')
    within = Options(source, wanted, (f"{place[0]}: match", f"{place[1]}.match"))
    asked = {name: within.texts(name) for name in MATCHES}
    within.refuse_rest()
    for name, values in asked.items():
        if "" in values:
            raise within.wrong(name, 'expected texts that are not empty; "*" asks that the fact be told')
    return Match(**asked)
