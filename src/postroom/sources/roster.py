"""The roster: which sources are set up now, swapped whole when the settings are read again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from postroom.errors import Invalid, Misconfigured, NotFound
from postroom.event import Event, Incoming
from postroom.ids import Ids, Prefix
from postroom.services.rules import Rule
from postroom.sources.headers import Headers
from postroom.sources.options import Options
from postroom.sources.rule_tables import rules_of
from postroom.sources.sample_bodies import BODIES
from postroom.sources.sample_moment import Moment
from postroom.sources.samples import Sample, sample
from postroom.sources.scheme import Verified
from postroom.sources.settings import Sources
from postroom.sources.source import Source

NO_SOURCES = Sources({})


@dataclass(frozen=True, slots=True)
class Match:
    """Which secret, by its label, proved a source's latest delivery, and when (ms UTC)."""

    label: str
    at: int


class Roster:
    """The one holder of the sources: who asks gets the whole old list or the whole new one."""

    def __init__(self, sources: Sources = NO_SOURCES) -> None:
        self._sources = sources
        self._matched: dict[str, Match] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is unwise about the sources though it works."""
        return self._sources.warnings

    def __iter__(self) -> Iterator[Source]:
        return iter([source for _, source in sorted(self._sources.by_name.items())])

    def get(self, name: str) -> Source | None:
        """The source of this name."""
        return self._sources.by_name.get(name)

    def swap(self, sources: Sources) -> None:
        """The old sources -> these; what was known of the old ones' secrets is forgotten with them."""
        self._sources, self._matched = sources, {}

    def note(self, delivery: Incoming, now_ms: int) -> None:
        """Remember which secret proved a delivery."""
        _, _, label = delivery.verification.partition(":")
        if label:
            self._matched[delivery.source] = Match(label, now_ms)

    def matched(self, name: str) -> Match | None:
        """Which secret proved the latest delivery since these sources were set up."""
        return self._matched.get(name)

    def read_rules(self, name: str, rules: Sequence[object]) -> tuple[Rule, ...]:
        """JSON -> rules, as the settings have them under `rule`. Raises Invalid naming the place, `rules[2].match.label`."""
        source = self._source(name)
        if not all(isinstance(rule, dict) for rule in rules):
            raise Invalid("rules: expected a list of objects", field="rules")
        table = {"rule": list(rules)}
        try:
            return rules_of(Options(name, table), table, source.provider, source.queue)
        except Misconfigured as wrong:
            place = (wrong.field or "").removeprefix(f"source.{name}.")
            field = "rules" + place.removeprefix("rule") if place.startswith("rule") else "rules"
            message = wrong.message.removeprefix(f'source "{name}": ')
            raise Invalid(message, field=field) from None

    def reread(self, event: Event, body: bytes) -> Incoming:
        """A stored event's own bytes -> the delivery that today's reading makes of them. Raises NotFound.

        Nothing is proved again: how it was proved when it came, and under which key, stays.
        """
        lines = [
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in event.headers
        ]
        how, _, label = event.verification.partition(":")
        read = self._source(event.source).read(Headers(lines), body, Verified(label, how, ""))
        return replace(
            read,
            provider=event.provider,
            delivery_key=event.delivery_key,
            verification=event.verification,
            headers=tuple((name, value) for name, value in event.headers),
            digest=event.digest,
        )

    def imagine(self, name: str, headers: Sequence[tuple[str, str]], body: bytes, kind: str | None) -> Incoming:
        """Headers, body and perhaps the kind -> the delivery that they would be, unproved. Raises NotFound, Invalid.

        kind: stands for the provider's own header, and may be a sample's, such as `issues.opened`.
        """
        source = self._source(name)
        told = dict(_kind_headers(source.provider, kind))
        given = {key.lower() for key, _ in headers}
        lines = [*headers, *((key, value) for key, value in told.items() if key not in given)]
        try:
            raw = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in lines]
        except UnicodeEncodeError:
            raise Invalid("headers holds a character that no header has", field="headers") from None
        return source.read(Headers(raw), body, Verified("trial", "trial", "trial"))

    def sample(self, name: str, kind: str | None, now_ms: int, ids: Ids) -> Sample:
        """A delivery as this source's sender would make it now, under its first secret. Raises NotFound, Invalid."""
        source = self._source(name)
        secret = source.secrets[0] if source.secrets else None
        id_ = ids.new(Prefix.EVENT).removeprefix(Prefix.EVENT)
        return sample(source.provider, kind, now_ms, secret, id_, source.sender)

    def _source(self, name: str) -> Source:
        found = self.get(name)
        if found is None:
            raise NotFound(f"there is no source {name[:64]!r}", field="source")
        return found


def _kind_headers(provider: str, kind: str | None) -> list[tuple[str, str]]:
    """The headers that tell a kind: those of the sample of that name, else the provider's own with the kind itself."""
    if kind is None:
        return []
    made = BODIES[provider](Moment(0, ""))
    if kind in made:
        return list(made[kind][0].items())
    first = next(iter(made.values()))[0]
    return [(name, kind) for name in first]
