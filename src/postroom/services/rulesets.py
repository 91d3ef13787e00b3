"""Rule sets: the rules of a source that are edited while a daemon serves, before those of its settings and preset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

from postroom.errors import Conflict, Forbidden, Invalid, NotFound, TooLarge
from postroom.event import EventState, Incoming
from postroom.model import Principal
from postroom.services.rules import Decision, Match, Rule, decide
from postroom.store.engine import Engine, Reader, Tx
from postroom.store.rule_sets import RuleSetTable, StoredRules
from postroom.text import cut, dump_json, parse_json

CACHE_SECONDS: Final = 5.0
MAX_RULES: Final = 200
MAX_RULES_BYTES: Final = 256 * 1024


class Sorting(Protocol):
    """What a source says of how its deliveries are sorted: its queue, the rules of its settings, authors to ignore."""

    @property
    def name(self) -> str:
        """The source's name."""
        ...

    @property
    def queue(self) -> str | None:
        """Where todos go whose rule names no queue."""
        ...

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the settings, then the preset's."""
        ...

    @property
    def ignore_authors(self) -> tuple[str, ...]:
        """Whose doings make no work."""
        ...


class Sortings(Protocol):
    """The sources that are set up now, as the rules need them."""

    def get(self, name: str) -> Sorting | None:
        """The source of this name."""
        ...

    def read_rules(self, name: str, rules: Sequence[object]) -> tuple[Rule, ...]:
        """JSON -> rules of this source. Raises Invalid naming the place, as `rules[2].match.label`."""
        ...


@dataclass(frozen=True, slots=True)
class RuleSet:
    """One version of a source's own rules; version 0 is that it was given none.

    broken: why the stored rules cannot be read under today's settings, which holds what comes until they are mended.
    """

    source: str
    version: int = 0
    rules: tuple[Rule, ...] = ()
    created_by: str | None = None
    created_at: int | None = None
    broken: str | None = None


class RuleSetService:
    """The verbs over rule sets, for admins, and the look-up that every delivery makes; `monotonic` gives seconds."""

    def __init__(self, engine: Engine, table: RuleSetTable, sortings: Sortings, monotonic: Callable[[], float]) -> None:
        self._engine = engine
        self._table = table
        self._sortings = sortings
        self._monotonic = monotonic
        self._reader = Reader(engine)
        self._cache: dict[str, tuple[float, Sorting, RuleSet]] = {}
        self._saves = 0

    # For every delivery.

    async def in_force(self, source: Sorting) -> RuleSet:
        """The source's newest rules, remembered for 5 s at most."""
        now = self._monotonic()
        known = self._cache.get(source.name)
        if known is not None and known[0] > now and known[1] is source:
            return known[2]
        saves = self._saves
        found = self._read(source.name, await self._table.current(self._reader, source.name))
        if saves == self._saves:
            self._cache[source.name] = (now + CACHE_SECONDS, source, found)
        return found

    # For admins.

    def source(self, name: str) -> Sorting:
        """The source of this name. Raises NotFound."""
        found = self._sortings.get(name)
        if found is None:
            raise NotFound(f"there is no source {name[:64]!r}", field="source")
        return found

    def read(self, source: Sorting, rules: Sequence[object]) -> tuple[Rule, ...]:
        """JSON -> rules, each with a name. Raises Invalid naming the place."""
        return self._sortings.read_rules(source.name, _all_named(rules, source.rules))

    async def get(self, principal: Principal, name: str) -> tuple[RuleSet, tuple[Rule, ...]]:
        """The source's own rules, and those of its settings and preset, which come after them."""
        _admin(principal)
        source = self.source(name)
        return self._read(name, await self._table.current(self._reader, name)), source.rules

    async def put(self, principal: Principal, name: str, rules: Sequence[object], version: int) -> RuleSet:
        """Version -> the next one with these rules; Conflict when another edit came since `version` was read."""
        return await self._change(principal, name, version, lambda _: list(rules))

    async def add(
        self, principal: Principal, name: str, rule: object, at: int | None = None, version: int | None = None
    ) -> RuleSet:
        """One rule more, before the one at `at`, which counts from 0; at the end where that is not told."""

        def change(rules: list[object]) -> list[object]:
            place = len(rules) if at is None else _place(at, len(rules) + 1)
            return [*rules[:place], rule, *rules[place:]]

        return await self._change(principal, name, version, change)

    async def move(self, principal: Principal, name: str, rule: str, at: int, version: int | None = None) -> RuleSet:
        """The rule of this name to another place among the source's own, which counts from 0."""

        def change(rules: list[object]) -> list[object]:
            index = _named(rules, rule, name)
            moved = rules.pop(index)
            place = _place(at, len(rules) + 1)
            return [*rules[:place], moved, *rules[place:]]

        return await self._change(principal, name, version, change)

    async def remove(self, principal: Principal, name: str, rule: str, version: int | None = None) -> RuleSet:
        """The rule of this name out of the source's own."""

        def change(rules: list[object]) -> list[object]:
            rules.pop(_named(rules, rule, name))
            return rules

        return await self._change(principal, name, version, change)

    async def _change(
        self,
        principal: Principal,
        name: str,
        version: int | None,
        change: Callable[[list[object]], list[object]],
    ) -> RuleSet:
        _admin(principal)
        source = self.source(name)

        async def operation(tx: Tx) -> StoredRules:
            while True:
                stored = await self._table.current(tx, name)
                newest = 0 if stored is None else stored.version
                if version is not None and version != newest:
                    raise _moved_on(name, version, newest)
                told = [] if stored is None else parse_json(stored.rules, "rules")
                text = self._checked(source, change(told if isinstance(told, list) else []))
                made = await self._table.insert(tx, name, newest + 1, text, principal.name)
                if made is not None:
                    return made
                if version is not None:
                    raise _moved_on(name, version, newest + 1)

        stored = await self._engine.transact(operation)
        self._saves += 1
        self._cache.pop(name, None)
        return self._read(name, stored)

    def _checked(self, source: Sorting, told: list[object]) -> str:
        """The rules as the JSON text to store. Raises Invalid naming the place of the first wrong one."""
        if len(told) > MAX_RULES:
            raise Invalid(f"rules has {len(told)}; expected at most {MAX_RULES}", field="rules")
        rules = self.read(source, told)
        taken = {rule.name: "the settings" for rule in source.rules}
        for index, rule in enumerate(rules):
            if rule.name in taken:
                field = f"rules[{index}].name"
                raise Invalid(f"{field}: {rule.name} is the name of a rule of {taken[rule.name]}", field=field)
            taken[rule.name] = "this list"
        text = dump_json([rule_view(rule) for rule in rules])
        if len(text.encode()) > MAX_RULES_BYTES:
            raise TooLarge(f"rules is over {MAX_RULES_BYTES} bytes of JSON", field="rules")
        return text

    def _read(self, name: str, stored: StoredRules | None) -> RuleSet:
        if stored is None:
            return RuleSet(name)
        broken, rules = None, tuple[Rule, ...]()
        try:
            told = parse_json(stored.rules, "rules")
            rules = self._sortings.read_rules(name, told if isinstance(told, list) else [told])
        except Invalid as refused:
            broken = cut(refused.message, 400)
        return RuleSet(name, stored.version, rules, stored.created_by, stored.created_at, broken)


def judge(source: Sorting, own: RuleSet, delivery: Incoming, event_id: str | None) -> tuple[Decision, int | None]:
    """What a source's own rules, then those of its settings, make of a delivery; and the version of the own ones."""
    version = own.version or None
    if own.broken is not None and delivery.unparsed is None and delivery.ignored is None:
        reason = f"rules version {own.version} cannot be read: {own.broken}"
        return Decision(EventState.HELD, reason, (), (reason,)), version
    rules = (*own.rules, *source.rules)
    return decide(delivery, rules, source.queue, source.ignore_authors, event_id), version


def rule_view(rule: Rule) -> dict[str, Any]:
    """A rule as JSON, with the names of its settings; what is as by default is left out."""
    match = {spec.name: list(getattr(rule.match, spec.name)) for spec in fields(Match)}
    asked = {name: values[0] if len(values) == 1 else values for name, values in match.items() if values}
    view: dict[str, Any] = {"name": rule.name}
    if asked:
        view["match"] = asked
    plain = Rule(rule.name)
    for name in ("queue", "title", "kind", "priority", "assignee", "key", "max_attempts", "drop"):
        value = getattr(rule, name)
        if value != getattr(plain, name):
            view[name] = value
    if rule.delay_ms is not None:
        view["delay_s"] = rule.delay_ms // 1000
    if rule.continue_:
        view["continue"] = True
    return view


def _admin(principal: Principal) -> None:
    if not principal.admin:
        raise Forbidden("rules are for admins")


def _moved_on(name: str, version: int, newest: int) -> Conflict:
    return Conflict(f"the rules of {name} are at version {newest}, not {version}: read them again", version=newest)


def _place(at: int, most: int) -> int:
    if not 0 <= at < most:
        raise Invalid(f"at is {at}; expected 0 to {most - 1}", field="at")
    return at


def _named(rules: Sequence[object], rule: str, source: str) -> int:
    for index, told in enumerate(rules):
        if isinstance(told, Mapping) and told.get("name") == rule:
            return index
    raise NotFound(f"{source} has no rule {rule[:64]!r} of its own", field="name")


def _all_named(told: Sequence[object], others: Sequence[Rule]) -> list[object]:
    """The rules with a free name for each that has none: names tell rules apart in traces."""
    taken = {rule.name for rule in others} | {one.get("name") for one in told if isinstance(one, Mapping)}
    free = (name for number in range(1, len(told) + len(taken) + 2) if (name := f"rule-{number}") not in taken)
    return [{"name": next(free), **one} if isinstance(one, Mapping) and "name" not in one else one for one in told]
