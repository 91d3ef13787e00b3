"""Rules: what becomes of a verified delivery, decided from its facts alone, without a store and without a clock."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from postroom import facts as facts_of
from postroom import limits
from postroom.errors import Invalid
from postroom.event import EventState, Incoming
from postroom.model import NewTodo
from postroom.text import cut, dump_json, printable

MAX_DIGEST_BYTES: Final = 8192
MAX_KEY: Final = 256
DEFAULT_RULE: Final = "default"
WORDS: Final = facts_of.NAMES | {"source", "provider", "kind", "action", "delivery", "event_title"}

_PART = re.compile(r"\{\{|\}\}|\{([a-z_]+)\}|[{}]")
_BAD_KIND = re.compile(r"[^A-Za-z0-9._:/-]+")
_CASES = ("kind", "action", "label", "author", "repository", "branch", "outcome", "target", "changed", "mention")


@dataclass(frozen=True, slots=True)
class Match:
    """What a rule asks of a delivery: for each fact named, that one of the values or globs fits, in any case.

    label: on an event that adds or removes a label that one alone, else any that the thing bears. target, changed,
    mention: any of those told. An empty tuple asks nothing; `("*",)` asks that the fact be told.
    """

    kind: tuple[str, ...] = ()
    action: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    author: tuple[str, ...] = ()
    repository: tuple[str, ...] = ()
    branch: tuple[str, ...] = ()
    outcome: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    mention: tuple[str, ...] = ()

    def miss(self, delivery: Incoming) -> str | None:
        """The first fact that does not fit, told in words; None when all do."""
        for name in _CASES:
            wanted: tuple[str, ...] = getattr(self, name)
            if not wanted:
                continue
            told = _told(delivery, name)
            if not any(_fits(value, pattern) for value in told for pattern in wanted):
                shown = ", ".join(told) or "missing"
                return f"{name} is {cut(shown, 120)}, not {cut(' or '.join(wanted), 120)}"
        return None


def _told(delivery: Incoming, name: str) -> tuple[str, ...]:
    facts = delivery.facts
    match name:
        case "kind":
            return (delivery.kind,)
        case "action":
            return (delivery.action,) if delivery.action else ()
        case "label":
            return (facts.label,) if facts.label is not None else facts.labels
        case "mention":
            return facts.mentions
        case "changed":
            return facts.changed
        case "target" if facts.targets:
            return facts.targets
        case _:
            value = getattr(facts, name)
            return (value,) if value else ()


def _fits(value: str, pattern: str) -> bool:
    """Equal or covered by the glob; equality first, for `name[bot]` is a name and not a class of characters."""
    value, pattern = value.casefold(), pattern.casefold()
    return value == pattern or fnmatchcase(value, pattern)


def check_template(template: str, field: str) -> str:
    """The template itself when each `{word}` is known; `{{` and `}}` stand for braces. Raises Invalid."""
    for part in _PART.finditer(template):
        name = part.group(1)
        if name is None and part.group() in {"{", "}"}:
            raise Invalid(f"{field} has a single {part.group()} at position {part.start()}; double it", field=field)
        if name is not None and name not in WORDS:
            raise Invalid(f"{field} names {{{name}}}; expected one of {', '.join(sorted(WORDS))}", field=field)
    return template


def fill(template: str, words: Mapping[str, str]) -> tuple[str, list[str]]:
    """The template with its words put in once, and the names of those that were missing."""
    missing: list[str] = []

    def put(part: re.Match[str]) -> str:
        name = part.group(1)
        if name is None:
            return part.group()[0]
        if name not in words:
            missing.append(name)
        return words.get(name, "")

    return _PART.sub(put, template), missing


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: whom it matches and the todo it gives; a wrong one cannot be made (Invalid names the field).

    queue None: the source's. title, key: templates over the facts and source, provider, kind, action, delivery and
    event_title. A key with a missing word falls back to the delivery's own, so that unlike things never collapse.
    drop: a match ends the list without a todo. continue_: a match does not end it.
    """

    name: str
    match: Match = Match()
    queue: str | None = None
    title: str = "{event_title}"
    kind: str | None = None
    priority: int = 0
    assignee: str | None = None
    key: str = "{source}:{delivery}"
    delay_ms: int | None = None
    max_attempts: int | None = None
    drop: bool = False
    continue_: bool = False

    def __post_init__(self) -> None:
        """Check everything that does not depend on a delivery."""
        limits.check_name(self.name, "name")
        check_template(self.title, "title")
        check_template(self.key, "key")
        if self.drop and self.continue_:
            raise Invalid("a rule that drops ends the list; expected drop or continue, not both", field="continue")
        limits.check_new(
            NewTodo(
                queue=self.queue if self.queue is not None else "default",
                title="checked",
                kind=self.kind or "",
                priority=self.priority,
                assignee=self.assignee,
                delay_ms=self.delay_ms,
                max_attempts=self.max_attempts,
            )
        )


_DEFAULT: Final = (Rule(DEFAULT_RULE),)


@dataclass(frozen=True, slots=True)
class RuledTodo:
    """A todo to create, and the rule that asked for it."""

    new: NewTodo
    rule: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What a delivery leads to: the event's state, why when it is not routed, the todos, and how it came to that."""

    state: EventState
    reason: str | None
    todos: tuple[RuledTodo, ...]
    trace: tuple[str, ...]


def decide(
    delivery: Incoming,
    rules: Sequence[Rule],
    queue_default: str | None,
    ignore_authors: Sequence[str] = (),
    event_id: str | None = None,
) -> Decision:
    """A delivery -> its decision: the first rule that matches, and further ones after `continue_`; none is `ignored`.

    Without any rule each delivery is a todo in the default queue. A rule that breaks on the way gives `held` with no
    todos at all, for an operator to look at: it never counts as no match.
    """
    if delivery.unparsed is not None:
        return Decision(EventState.UNPARSED, delivery.unparsed, (), (f"not parsed: {delivery.unparsed}",))
    if delivery.ignored is not None:
        return Decision(EventState.IGNORED, delivery.ignored, (), (f"ignored: {delivery.ignored}",))
    author = delivery.facts.author
    if author is not None and any(_fits(author, ignored) for ignored in ignore_authors):
        reason = f"author {cut(author, 120)} is ignored"
        return Decision(EventState.IGNORED, reason, (), (reason,))
    if not rules:
        if queue_default is None:
            reason = "the source has no rules and no queue"
            return Decision(EventState.IGNORED, reason, (), (reason,))
        rules = _DEFAULT
    trace: list[str] = []
    todos: list[RuledTodo] = []
    for rule in rules:
        try:
            miss = rule.match.miss(delivery)
            if miss is not None:
                trace.append(f"{rule.name}: no match, {miss}")
                continue
            if rule.drop:
                trace.append(f"{rule.name}: matched, dropped")
                if not todos:
                    return Decision(EventState.IGNORED, f"dropped by rule {rule.name}", (), tuple(trace))
                break
            new = _todo(delivery, rule, queue_default, event_id)
        except Exception as broken:
            # Whatever broke, the event must be kept and seen rather than pass for one that nobody wanted.
            reason = cut(f"rule {rule.name} broke: {broken or type(broken).__name__}", 512)
            return Decision(EventState.HELD, reason, (), (*trace, reason))
        todos.append(RuledTodo(new, rule.name))
        trace.append(f"{rule.name}: matched, todo in {new.queue} under {new.idempotency_key}")
        if not rule.continue_:
            break
    if not todos:
        return Decision(EventState.IGNORED, "no rule matched", (), tuple(trace))
    return Decision(EventState.ROUTED, None, tuple(todos), tuple(trace))


def _todo(delivery: Incoming, rule: Rule, queue_default: str | None, event_id: str | None) -> NewTodo:
    queue = rule.queue or queue_default
    if queue is None:
        raise Invalid("neither the rule nor the source names a queue", field="queue")
    words = _words(delivery)
    title, _ = fill(rule.title, words)
    key, missing = fill(rule.key, words)
    if missing:
        key = f"{delivery.source}:{delivery.delivery_key}"
    kind = rule.kind or ".".join(part for part in (delivery.kind, delivery.action) if part)
    new = NewTodo(
        queue=queue,
        title=printable(title).strip()[: limits.MAX_TITLE] or delivery.kind,
        kind=_BAD_KIND.sub("-", kind).strip("._:/-")[:128],
        payload=digest(delivery, event_id),
        priority=rule.priority,
        assignee=rule.assignee,
        idempotency_key=_short(printable(key)),
        max_attempts=rule.max_attempts,
        delay_ms=rule.delay_ms,
        source=delivery.source,
        event_id=event_id,
    )
    limits.check_new(new)
    return new


def _short(key: str) -> str:
    """The key itself, or when it is over 256 characters its beginning and a hash of the whole."""
    if len(key) <= MAX_KEY:
        return key
    return f"{key[: MAX_KEY - 65]}~{hashlib.sha256(key.encode()).hexdigest()}"


def _words(delivery: Incoming) -> dict[str, str]:
    words = delivery.facts.words()
    words |= {"source": delivery.source, "provider": delivery.provider, "kind": delivery.kind}
    words |= {"delivery": delivery.delivery_key, "event_title": delivery.title}
    if delivery.action:
        words["action"] = delivery.action
    return words


def digest(delivery: Incoming, event_id: str | None = None) -> dict[str, Any]:
    """What a todo says of its event, at most 8 KiB as JSON; the body stays with the event, one read away (RULINGS 19)."""
    facts = delivery.facts
    told: dict[str, Any] = {
        "kind": delivery.kind,
        "action": delivery.action,
        "repository": facts.repository,
        "number": facts.number,
        "ref": facts.ref,
        "branch": facts.branch,
        "title": cut(facts.title or delivery.title, 1024),
        "url": facts.url,
        "author": facts.author,
        "labels": [cut(label, 100) for label in facts.labels[:20]],
        "label": facts.label,
        "outcome": facts.outcome,
        "target": facts.target,
        "body": f"kept with the event: GET /v1/events/{event_id or '{event_id}'}",
    }
    shown = {name: value for name, value in told.items() if value not in (None, [], "")}
    # The longest texts go first; what is left of the rest then fits by its own limits.
    for name in ("labels", "url", "ref", "branch", "target", "label", "repository", "author", "title", "outcome"):
        if len(dump_json(shown).encode()) <= MAX_DIGEST_BYTES:
            break
        shown.pop(name, None)
    return shown
