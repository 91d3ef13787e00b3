"""Replays: what came is read and sorted anew by today's rules, and what is held is let go or thrown away."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from postroom.errors import Conflict, Forbidden, Invalid, NotFound, PostroomError
from postroom.event import Event, EventFilter, EventState, EventTodo, Incoming
from postroom.ids import Prefix, check_id
from postroom.model import Principal
from postroom.services import tellings
from postroom.services.events import check_filter
from postroom.services.pages import read_cursor, show_cursor
from postroom.services.requests import Answer, Requests
from postroom.services.rulesets import Sorting, Sortings
from postroom.services.sorting import Sorted, Sorter, Wanted
from postroom.services.wake import Wake
from postroom.store.engine import Engine, Reader, Tx
from postroom.store.events import EventTable
from postroom.text import check_text

MAX_REPLAYS: Final = 200

_PAST: Final = {"replay": "replayed", "release": "released"}


class Rereading(Sortings, Protocol):
    """The sources that are set up now, which can read again what they have read before."""

    def reread(self, event: Event, body: bytes) -> Incoming:
        """A stored event's own bytes -> the delivery that today's reading makes of them. Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """An event after its replay, the todos it led to, and whether an earlier request under the same key did it."""

    event: Event
    todos: tuple[EventTodo, ...]
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Replays:
    """What became of each event of a batch, in the order of the batch, and the cursor of what is left."""

    results: tuple[tuple[str, Replayed | PostroomError], ...]
    next_cursor: str | None = None


class ReplayService:
    """The verbs that sort stored events again, for admins; each event is one transaction, and keeps its first receipt.

    Nothing is verified again and nothing is too old. Todos collapse by their live keys, as when it came.
    """

    def __init__(
        self,
        engine: Engine,
        table: EventTable,
        sources: Rereading,
        sorter: Sorter,
        requests: Requests,
        wake: Wake,
    ) -> None:
        self._engine = engine
        self._table = table
        self._sources = sources
        self._sorter = sorter
        self._requests = requests
        self._wake = wake
        self._reader = Reader(engine)

    async def replay(self, principal: Principal, id_: str, request_id: str | None = None) -> Replayed:
        """Event -> the same event by today's rules, with the todos those ask for."""
        _admin(principal)
        return await self._again(principal, id_, request_id, "replay", held=False)

    async def release(self, principal: Principal, id_: str, request_id: str | None = None) -> Replayed:
        """Held -> whatever today's rules make of it; Conflict when it is not held."""
        _admin(principal)
        return await self._again(principal, id_, request_id, "release", held=True)

    async def discard(
        self, principal: Principal, id_: str, note: str | None = None, request_id: str | None = None
    ) -> Replayed:
        """Held -> ignored, for a reason that names who said so; Conflict when it is not held."""
        _admin(principal)
        check_id(id_, Prefix.EVENT, "event")
        words = f"discarded by {principal.name}"
        if note:
            words += f": {check_text(note, 'note')[:300]}"

        async def run(tx: Tx) -> Replayed:
            event = await self._table.discard(tx, id_, words, principal.name)
            if event is None:
                raise await self._not_held(tx, id_)
            return Replayed(event, tuple(await self._table.links(tx, [id_])))

        discarded = await self._once(principal, request_id, "discard", id_, note, run)
        if not discarded.repeated:
            self._tell("discarded", discarded, principal, ())
        return discarded

    async def replay_many(
        self,
        principal: Principal,
        *,
        ids: Sequence[str] | None = None,
        wanted: EventFilter | None = None,
        cursor: str | None = None,
        request_id: str | None = None,
    ) -> Replays:
        """Replay events by id, or up to 200 that pass a filter in the order of their receipt; each has its own result.

        The same request key again goes on with the same events, and those that were done are not done twice.
        """
        _admin(principal)
        if (ids is None) == (wanted is None):
            raise Invalid("expected ids or since, not both and not neither", field="ids")
        if ids is not None and not 1 <= len(ids) <= MAX_REPLAYS:
            raise Invalid(f"ids has {len(ids)}; expected 1 to {MAX_REPLAYS}", field="ids")
        if wanted is not None:
            check_filter(wanted)
        after = read_cursor(cursor)
        if request_id is None:
            chosen, next_cursor = await self._chosen(self._reader, ids, wanted, after)
        else:
            chosen, next_cursor = await self._chosen_once(principal, request_id, ids, wanted, after)
        results: list[tuple[str, Replayed | PostroomError]] = []
        for id_ in chosen:
            key = None if request_id is None else hashlib.sha256(f"{request_id}\n{id_}".encode()).hexdigest()
            try:
                results.append((id_, await self._again(principal, id_, key, "replay", held=False)))
            except PostroomError as error:
                results.append((id_, error))
        return Replays(tuple(results), next_cursor)

    async def _chosen(
        self, tx: Tx, ids: Sequence[str] | None, wanted: EventFilter | None, after: int | None
    ) -> tuple[list[str], str | None]:
        if ids is not None:
            return list(dict.fromkeys(ids)), None
        found = await self._table.seqs(tx, wanted or EventFilter(), after, MAX_REPLAYS + 1)
        chosen = found[:MAX_REPLAYS]
        return [id_ for _, id_ in chosen], show_cursor(chosen[-1][0]) if len(found) > MAX_REPLAYS else None

    async def _chosen_once(
        self,
        principal: Principal,
        request_id: str,
        ids: Sequence[str] | None,
        wanted: EventFilter | None,
        after: int | None,
    ) -> tuple[list[str], str | None]:
        asked = {"ids": None if ids is None else list(ids), "wanted": repr(wanted), "after": after}

        async def choose(tx: Tx) -> tuple[tuple[list[str], str | None], Answer]:
            chosen, next_cursor = await self._chosen(tx, ids, wanted, after)
            return (chosen, next_cursor), (next_cursor, *chosen)

        async def known(_: Tx, answer: Answer) -> tuple[list[str], str | None]:
            return [str(id_) for id_ in answer[1:]], None if answer[0] is None else str(answer[0])

        return await self._requests.once(principal, request_id, "event.replay_many", asked, choose, known)

    async def _again(
        self, principal: Principal, id_: str, request_id: str | None, verb: str, *, held: bool
    ) -> Replayed:
        check_id(id_, Prefix.EVENT, "event")
        event = await self._table.get(self._reader, id_)
        body = await self._table.raw(self._reader, id_)
        if event is None or body is None:
            raise NotFound(f"there is no event {id_}", field="id")
        source = self._sources.get(event.source)
        if source is None:
            raise Conflict(f"the source {event.source} of {id_} is not set up any more", source=event.source)
        done = await self._sorted(source, event, body)
        trace = (f"{_PAST[verb]} by {principal.name}", *done.decided.trace)

        async def run(tx: Tx) -> Replayed:
            decided = replace(done.decided, trace=trace)
            now = await self._table.redecide(
                tx, id_, done.delivery, decided, held=held, past=_PAST[verb], by=principal.name
            )
            if now is None:
                raise await self._not_held(tx, id_)
            return Replayed(now, await self._sorter.make(tx, id_, done))

        replayed = await self._once(principal, request_id, verb, id_, None, run)
        if not replayed.repeated:
            self._wake.work({link.queue for link in replayed.todos if link.created})
            self._tell(_PAST[verb], replayed, principal, done.wanted)
        return replayed

    def _tell(self, past: str, replayed: Replayed, principal: Principal, wanted: Sequence[Wanted]) -> None:
        self._wake.told(tellings.event_steered, past, replayed.event, replayed.todos, principal, wanted)

    async def _sorted(self, source: Sorting, event: Event, body: bytes) -> Sorted:
        # Read on a thread: a batch may hold many large bodies, and the other callers go on meanwhile.
        delivery = await asyncio.to_thread(self._sources.reread, event, body)
        return await self._sorter.sort(source, delivery, event.id)

    async def _once(
        self,
        principal: Principal,
        request_id: str | None,
        verb: str,
        id_: str,
        note: str | None,
        run: Callable[[Tx], Awaitable[Replayed]],
    ) -> Replayed:
        if request_id is None:
            return await self._engine.transact(run)

        async def noted(tx: Tx) -> tuple[Replayed, Answer]:
            return await run(tx), ()

        async def known(tx: Tx, _: Answer) -> Replayed:
            event = await self._table.get(tx, id_)
            if event is None:
                raise NotFound(f"there is no event {id_}", field="id")
            return Replayed(event, tuple(await self._table.links(tx, [id_])), True)

        body = {"id": id_, "note": note}
        return await self._requests.once(principal, request_id, f"event.{verb}", body, noted, known)

    async def _not_held(self, tx: Tx, id_: str) -> PostroomError:
        event = await self._table.get(tx, id_)
        if event is None:
            return NotFound(f"there is no event {id_}", field="id")
        return Conflict(f"{id_} is {event.state}, not {EventState.HELD}", state=str(event.state))


def _admin(principal: Principal) -> None:
    if not principal.admin:
        raise Forbidden("replays are for admins")
