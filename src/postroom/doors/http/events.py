"""Events over HTTP: what was received, to list, to read, and byte for byte."""

from __future__ import annotations

from typing import Annotated

from postroom.doors.http.answers import BYTES, Answer, json_answer
from postroom.doors.http.fields import Asked, Cursor, Limit, told
from postroom.doors.http.route import Call, Route
from postroom.doors.http.schemas import TEXT, many, maybe, named, record
from postroom.model import EventState
from postroom.wire import event_view

NOUN = "events"


class ListEvents(Asked):
    """Which events a list shows."""

    source: Annotated[str, told("Only this source.")] | None = None
    kind: Annotated[str, told("Only this kind.")] | None = None
    state: Annotated[str, told("Only this state.", enum=list(EventState))] | None = None
    cursor: Cursor | None = None
    limit: Limit | None = None


async def list_events(call: Call, asked: ListEvents) -> Answer:
    """A page, newest first."""
    page, cursor = await call.api.events.page(
        call.principal,
        source=asked.source,
        kind=asked.kind,
        state=asked.state,
        cursor=asked.cursor,
        limit=asked.limit,
    )
    shown = [event_view(event, whole=False, todos=links) for event, links in page]
    return json_answer({"events": shown, "next_cursor": cursor})


async def get(call: Call, _: None) -> Answer:
    """The whole event, and the todos it led to."""
    event, links = await call.api.events.get(call.principal, call.path["id"])
    return json_answer({"event": event_view(event, todos=links)})


async def raw(call: Call, _: None) -> Answer:
    """The body exactly as it came; never as what it calls itself, for it is a stranger's."""
    return Answer(await call.api.events.raw(call.principal, call.path["id"]), media=BYTES)


ROUTES = (
    Route(
        "GET",
        "/v1/events",
        NOUN,
        "List events, newest first, without headers and bodies.",
        list_events,
        {200: record({"events": many(named("ListedEvent")), "next_cursor": maybe(TEXT)})},
        query=ListEvents,
    ),
    Route(
        "GET",
        "/v1/events/{id}",
        NOUN,
        "Get an event with its redacted headers, its cleaned body and its todos.",
        get,
        {200: record({"event": named("Event")})},
    ),
    Route("GET", "/v1/events/{id}/raw", NOUN, "Get an event's body byte for byte.", raw, {200: None}),
)
