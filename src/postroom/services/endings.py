"""Endings: what the holder of a claim does with it, fenced by the lease id, one by one or many together (DESIGN §4)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from postroom import limits
from postroom.errors import PostroomError, Unavailable
from postroom.ids import Prefix, check_id
from postroom.limits import MAX_JITTER, MAX_JSON_BYTES, MAX_NOTE_BYTES
from postroom.model import Ended, Outcome, OutcomeItem, Principal, Todo, TodoState, Verb
from postroom.services import tellings
from postroom.services.refusals import told
from postroom.services.wake import Wake
from postroom.store.engine import Engine, Once, Reader, Tx
from postroom.store.todos import Ending, Standing, TodoTable
from postroom.text import clean, cut, result_json

_ENDED_BY = {Verb.COMPLETE: Outcome.DONE, Verb.FAIL: Outcome.FAILED, Verb.RELEASE: Outcome.RELEASED}


@dataclass(frozen=True, slots=True)
class EndResult:
    """What became of one ending of a batch: queue and new state, or the error."""

    id: str
    queue: str | None = None
    state: TodoState | None = None
    replayed: bool = False
    error: PostroomError | None = None


class EndingService:
    """Heartbeat, complete, fail and release for a principal; `jitter` draws from 0..1."""

    def __init__(self, engine: Engine, table: TodoTable, wake: Wake, jitter: random.Random) -> None:
        self._engine = engine
        self._table = table
        self._wake = wake
        self._jitter = jitter
        self._once = Once(engine)
        self._reader = Reader(engine)

    async def heartbeat(self, principal: Principal, id_: str, lease_id: str | None, ttl_ms: int | None) -> Todo:
        """Held -> its lease never shortened (S7)."""
        check_id(id_, Prefix.TODO, "todo")
        limits.check_lease(ttl_ms)
        lease_id = _lease(lease_id)
        todo = await self._table.heartbeat(self._once, id_, principal.name, lease_id, ttl_ms)
        if todo is None:
            raise await self._refusal(principal, id_, lease_id)
        return todo

    async def complete(self, principal: Principal, id_: str, lease_id: str | None, result: Any) -> Ended:
        """Held -> done; the lease id that did it gives the same todo again (S8, S22)."""
        check_id(id_, Prefix.TODO, "todo")
        stored = None if result is None else result_json(result, MAX_JSON_BYTES)
        lease_id = _lease(lease_id)
        todo = await self._table.complete(self._once, id_, principal.name, lease_id, stored)
        if todo is None:
            return await self._replay_or_refuse(principal, id_, lease_id, Verb.COMPLETE)
        self._wake.told(tellings.todo_ended, todo, principal, None)
        self._wake.work([todo.queue])
        return Ended(todo)

    async def end(self, principal: Principal, item: OutcomeItem) -> Ended:
        """Held -> done, parked, dead or pending by the item's verb; replays by lease id (S8, S9, S24)."""
        check_id(item.id, Prefix.TODO, "todo")
        ending = self.ending(item)

        async def operation(tx: Tx) -> Todo | None:
            return await self._table.end(tx, principal.name, ending)

        todo = await self._engine.transact(operation, one=True)
        if todo is None:
            return await self._replay_or_refuse(principal, item.id, ending.lease_id, item.verb)
        self._wake.told(tellings.todo_ended, todo, principal, ending.note)
        self._wake.work([todo.queue])
        return Ended(todo)

    async def end_many(
        self, principal: Principal, items: Sequence[OutcomeItem], also: Callable[[Tx], Awaitable[None]] | None = None
    ) -> list[EndResult]:
        """End up to 200 attempts in one transaction, each with its own result; `also` runs in it too (RULINGS 9, 11)."""
        limits.check_range(len(items), 0, limits.MAX_OUTCOMES, "items", " items")
        results: list[EndResult | None] = [None] * len(items)
        rounds: list[dict[str, int]] = []
        for n, item in enumerate(items):
            try:
                check_id(item.id, Prefix.TODO, "todo")
                limits.check_outcome(item)
            except PostroomError as error:
                results[n] = EndResult(item.id, error=error)
                continue
            # One flush holds at most one ending a todo; a second one for the same todo goes in the next.
            place = next((one for one in rounds if item.id not in one), None)
            if place is None:
                rounds.append(place := {})
            place[item.id] = n
        if also is not None and not rounds:
            rounds.append({})
        for one in rounds:
            await self._end_round(principal, items, one, results, also if one is rounds[-1] else None)
        self._wake.work({result.queue for result in results if result and result.queue and not result.replayed})
        return [result for result in results if result is not None]

    async def _end_round(
        self,
        principal: Principal,
        items: Sequence[OutcomeItem],
        places: dict[str, int],
        results: list[EndResult | None],
        also: Callable[[Tx], Awaitable[None]] | None,
    ) -> None:
        endings = [self.ending(items[n]) for n in places.values()]

        async def operation(tx: Tx) -> dict[str, tuple[str, TodoState]]:
            ended = await self._table.end_many(tx, principal.name, endings) if endings else {}
            if also is not None:
                await also(tx)
            return ended

        ended = await self._engine.transact(operation, one=also is None)
        if self._wake.heard:
            self._wake.told(tellings.todos_ended, principal, [(items[places[id_]], *ended[id_]) for id_ in ended])
        missed: list[int] = []
        for id_, n in places.items():
            if id_ in ended:
                results[n] = EndResult(id_, *ended[id_])
            else:
                missed.append(n)
        if not missed:
            return
        try:
            standings = await self._table.standings(
                self._reader, [(items[n].id, _lease(items[n].lease_id)) for n in missed]
            )
        except Unavailable as error:
            if also is None:
                raise
            # What was done besides stands, and its answer is for the caller: these alone are to be said again.
            for n in missed:
                results[n] = EndResult(items[n].id, error=error)
            return
        for n, standing in zip(missed, standings, strict=True):
            item = items[n]
            if self._repeats(principal, standing, item.verb) and standing.todo is not None:
                results[n] = EndResult(item.id, standing.todo.queue, standing.todo.state, replayed=True)
            else:
                results[n] = EndResult(item.id, error=told(principal, item.id, standing))

    def ending(self, item: OutcomeItem) -> Ending:
        """The item with its words cleaned and cut: ending a todo must not fail because of what the ending says."""
        limits.check_outcome(item)
        note = item.note if item.verb is Verb.RELEASE else item.error
        return Ending(
            id=item.id,
            lease_id=_lease(item.lease_id),
            verb=item.verb,
            result=None if item.result is None else result_json(item.result, MAX_JSON_BYTES),
            note=None if note is None else cut(str(note), MAX_NOTE_BYTES),
            retry=item.retry,
            delay=item.delay_ms if item.verb is Verb.RELEASE else item.retry_in_ms,
            jitter=self._jitter.random() * MAX_JITTER,
        )

    async def _replay_or_refuse(self, principal: Principal, id_: str, lease_id: str | None, verb: Verb) -> Ended:
        standing = (await self._table.standings(self._reader, [(id_, lease_id)]))[0]
        if self._repeats(principal, standing, verb) and standing.todo is not None:
            return Ended(standing.todo, replayed=True)
        raise told(principal, id_, standing)

    @staticmethod
    def _repeats(principal: Principal, standing: Standing, verb: Verb) -> bool:
        return (
            standing.ended is _ENDED_BY[verb]
            and standing.ended_by is not None
            and standing.ended_by.split("/", 1)[0] == principal.name
        )

    async def _refusal(self, principal: Principal, id_: str, lease_id: str | None) -> PostroomError:
        return told(principal, id_, (await self._table.standings(self._reader, [(id_, lease_id)]))[0])


def _lease(lease_id: str | None) -> str | None:
    # An empty or malformed lease id must never pass for none given, nor reach a database that cannot hold it.
    return None if lease_id is None else clean(lease_id[:128]) or "-"
