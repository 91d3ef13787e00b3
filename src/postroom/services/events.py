"""Events: what was received, to list, to read, byte for byte, and to trace (DESIGN §5)."""

from __future__ import annotations

from dataclasses import replace

from postroom.errors import Invalid, NotFound
from postroom.event import Event, EventFilter, EventState, EventTodo
from postroom.ids import Prefix, check_id
from postroom.limits import MAX_TIME
from postroom.model import Principal
from postroom.services.pages import page_limit, read_cursor, show_cursor
from postroom.store.engine import Engine, Reader
from postroom.store.events import EventTable
from postroom.text import check_text


class EventService:
    """The verbs over events. An agent sees the events that led to todos in its queues; an admin sees all."""

    def __init__(self, engine: Engine, table: EventTable) -> None:
        self._table = table
        self._reader = Reader(engine)

    async def get(self, principal: Principal, id_: str) -> tuple[Event, tuple[EventTodo, ...]]:
        """The event and the todos it led to; NotFound when there is none for this principal."""
        event = await self._table.get(self._reader, check_id(id_, Prefix.EVENT, "event"))
        links = await self._table.links(self._reader, [id_])
        if event is None or not _may_see(principal, links):
            raise NotFound(f"there is no event {id_}", field="id")
        if not principal.admin:
            # The trace tells of every rule and queue there is.
            event = replace(event, trace_json=None)
        return event, tuple(link for link in links if principal.may_use(link.queue))

    async def raw(self, principal: Principal, id_: str) -> bytes:
        """The body exactly as it came."""
        await self.get(principal, id_)
        body = await self._table.raw(self._reader, id_)
        if body is None:
            raise NotFound(f"there is no event {id_}", field="id")
        return body

    async def page(
        self,
        principal: Principal,
        *,
        source: str | None = None,
        kind: str | None = None,
        action: str | None = None,
        state: str | None = None,
        since: int | None = None,
        until: int | None = None,
        suspected_replay: bool | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> tuple[list[tuple[Event, tuple[EventTodo, ...]]], str | None]:
        """A page of events without bodies, newest first, each with its todos; since and until are ms UTC."""
        wanted = check_filter(EventFilter(source, kind, action, state, since, until, suspected_replay))
        size = page_limit(limit)
        events = await self._table.page(self._reader, wanted, read_cursor(cursor), size + 1)
        shown = events[:size]
        links: dict[str, list[EventTodo]] = {}
        for link in await self._table.links(self._reader, [event.id for event in shown]) if shown else []:
            links.setdefault(link.event_id, []).append(link)
        page = [
            (event, tuple(link for link in links.get(event.id, []) if principal.may_use(link.queue)))
            for event in shown
            if _may_see(principal, links.get(event.id, []))
        ]
        return page, show_cursor(shown[-1].seq) if len(events) > size else None


def check_filter(wanted: EventFilter) -> EventFilter:
    """The filter itself when a database can be asked it. Raises Invalid naming the field."""
    state = wanted.state
    if state is not None and state not in EventState.__members__.values():
        raise Invalid(f"state {state[:40]!r} is expected to be one of {', '.join(EventState)}", field="state")
    for value, field in ((wanted.source, "source"), (wanted.kind, "kind"), (wanted.action, "action")):
        if value is not None:
            check_text(value, field)
    for moment, field in ((wanted.since, "since"), (wanted.until, "until")):
        if moment is not None and not -MAX_TIME <= moment <= MAX_TIME:
            raise Invalid(f"{field} lies beyond every calendar here", field=field)
    return wanted


def _may_see(principal: Principal, links: list[EventTodo]) -> bool:
    return principal.admin or any(principal.may_use(link.queue) for link in links)
