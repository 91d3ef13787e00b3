"""How things stand, over HTTP: the daemon's health, its status, and the story of one event, todo or message."""

from __future__ import annotations

from postroom import __version__
from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.errors import error_answer
from postroom.doors.http.route import Call, Route, Who
from postroom.doors.http.schemas import TEXT, many, named, one_of, record
from postroom.errors import Unavailable
from postroom.wire import trace_view

NOUN = "standing"


def health_answer() -> Answer:
    """The process runs; it says nothing of the database."""
    return json_answer({"status": "ok", "version": __version__})


async def health(_call: Call, _: None) -> Answer:
    """The process runs."""
    return health_answer()


async def ready(call: Call, _: None) -> Answer:
    """Whether work can be taken and given now, else why not."""
    reason = call.api.ready() or call.api.away()
    return json_answer({"status": "ready"}) if reason is None else error_answer(Unavailable(reason))


async def status(call: Call, _: None) -> Answer:
    """How the installation stands for this principal."""
    return json_answer(await call.api.status(call.principal))


async def trace(call: Call, _: None) -> Answer:
    """The story of an event, a todo or a message, in the order of time."""
    return json_answer(trace_view(await call.api.trace.trace(call.principal, call.path["id"])))


ROUTES = (
    Route(
        "GET",
        "/health",
        NOUN,
        "Tell that the process runs.",
        health,
        {200: record({"status": one_of("ok"), "version": TEXT})},
        who=Who.PUBLIC,
    ),
    Route(
        "GET",
        "/ready",
        NOUN,
        "Tell whether the database can be used: 503 with the reason while it cannot.",
        ready,
        {200: record({"status": one_of("ready")})},
        who=Who.PUBLIC,
        refusals=(403, 503),
    ),
    Route(
        "GET",
        "/v1/status",
        NOUN,
        "Get how the installation stands: engine, queues, deliveries that wait and why, sweep, warnings.",
        status,
        {200: {"type": "object"}},
    ),
    Route(
        "GET",
        "/v1/trace/{id}",
        NOUN,
        "Get the one story of an event, a todo or a message, from receipt to its end; a delivery's id gets its message's.",
        trace,
        {200: record({"id": TEXT, "steps": many(named("TraceStep"))})},
    ),
)
