"""Trials: what today's rules would make of a delivery, and why, without changing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from postroom.errors import Forbidden, Invalid, NotFound, TooLarge
from postroom.event import Incoming
from postroom.ids import Prefix, check_id
from postroom.limits import check_new
from postroom.model import Principal
from postroom.services.replays import Rereading
from postroom.services.rules import Decision
from postroom.services.rulesets import RuleSet, RuleSetService, judge
from postroom.store.engine import Engine, Reader
from postroom.store.events import EventTable

MAX_TRIAL_BYTES = 5 * 1024 * 1024


class Imagining(Rereading, Protocol):
    """The sources that are set up now, which can read what never came."""

    def imagine(self, name: str, headers: Sequence[tuple[str, str]], body: bytes, kind: str | None) -> Incoming:
        """Headers, body and perhaps the kind -> the delivery that they would be, unproved. Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """What would happen: the delivery as it was read, the decision, and the version of the rules that made it."""

    delivery: Incoming
    decision: Decision
    rules_version: int | None


class TrialService:
    """Tries rules, for admins."""

    def __init__(self, engine: Engine, table: EventTable, sources: Imagining, rulesets: RuleSetService) -> None:
        self._table = table
        self._sources = sources
        self._rulesets = rulesets
        self._reader = Reader(engine)

    async def event(self, principal: Principal, name: str, id_: str, rules: Sequence[object] | None = None) -> Trial:
        """What would become of a stored event of this source; `rules` are tried in place of the source's own."""
        _admin(principal)
        self._rulesets.source(name)
        event = await self._table.get(self._reader, check_id(id_, Prefix.EVENT, "event"))
        body = await self._table.raw(self._reader, id_)
        if event is None or body is None:
            raise NotFound(f"there is no event {id_}", field="event_id")
        if event.source != name:
            raise Invalid(f"{id_} came from {event.source}, not from {name}", field="event_id")
        delivery = await asyncio.to_thread(self._sources.reread, event, body)
        return await self._tried(name, delivery, id_, rules)

    async def given(
        self,
        principal: Principal,
        name: str,
        body: bytes,
        *,
        headers: Sequence[tuple[str, str]] = (),
        kind: str | None = None,
        rules: Sequence[object] | None = None,
    ) -> Trial:
        """What would become of a delivery with this body; `kind` stands for the header that tells it."""
        _admin(principal)
        self._rulesets.source(name)
        if len(body) > MAX_TRIAL_BYTES:
            raise TooLarge(f"body is over {MAX_TRIAL_BYTES} bytes", field="body")
        delivery = await asyncio.to_thread(self._sources.imagine, name, headers, body, kind)
        return await self._tried(name, delivery, None, rules)

    async def _tried(
        self, name: str, delivery: Incoming, event_id: str | None, rules: Sequence[object] | None
    ) -> Trial:
        source = self._rulesets.source(name)
        if rules is None:
            own = await self._rulesets.in_force(source)
        else:
            own = RuleSet(name, rules=self._rulesets.read(source, rules))
        decision, version = judge(source, own, delivery, event_id)
        for ruled in decision.todos:
            check_new(ruled.new)
        return Trial(delivery, decision, version)


def _admin(principal: Principal) -> None:
    if not principal.admin:
        raise Forbidden("trying rules is for admins")
