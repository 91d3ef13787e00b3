"""Events over HTTP: what was received, to list, to read, and byte for byte."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from postroom.doors.http.answers import BYTES, Answer, json_answer
from postroom.doors.http.fields import Asked, Cursor, Limit, told
from postroom.doors.http.route import Call, Route
from postroom.doors.http.schemas import TEXT, many, maybe, named, record
from postroom.event import EventState
from postroom.wire import event_view, read_time

NOUN = "events"


Source = Annotated[str, told("Only this source.")]
Kind = Annotated[str, told("Only this kind.")]
Action = Annotated[str, told("Only this action.")]
State = Annotated[str, told("Only this state.", enum=list(EventState))]
Since = Annotated[str, told("Only what was received at this time or later, RFC 3339 with a zone.", format="date-time")]
Until = Annotated[str, told("Only what was received before this time, RFC 3339 with a zone.", format="date-time")]


class ListEvents(Asked):
    """Which events a list shows."""

    source: Source | None = None
    kind: Kind | None = None
    action: Action | None = None
    state: State | None = None
    since: Since | None = None
    until: Until | None = None
    suspected_replay: (
        Annotated[Literal["true", "false"], Field(description="Only those that are suspected, or are not.")] | None
    ) = None
    cursor: Cursor | None = None
    limit: Limit | None = None


async def list_events(call: Call, asked: ListEvents) -> Answer:
    """A page, newest first."""
    page, cursor = await call.api.events.page(
        call.principal,
        source=asked.source,
        kind=asked.kind,
        action=asked.action,
        state=asked.state,
        since=None if asked.since is None else read_time(asked.since, "since"),
        until=None if asked.until is None else read_time(asked.until, "until"),
        suspected_replay=None if asked.suspected_replay is None else asked.suspected_replay == "true",
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
