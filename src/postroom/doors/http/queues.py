"""Queues over HTTP: their settings and depths."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from postroom import limits
from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.fields import Asked, MaxAttempts, Whole, seconds, told
from postroom.doors.http.route import Call, Route, Who
from postroom.doors.http.schemas import many, named, record
from postroom.limits import DAY, MAX_BACKOFF, MAX_IN_FLIGHT, MAX_LEASE, MIN_LEASE, MINUTE
from postroom.wire import queue_view, seconds_ms, settings_view

NOUN = "queues"
MAX_KEEP = 3650 * DAY


class SetQueue(Asked):
    """What changes in a queue; what is absent stays, and null is the default again."""

    paused: Annotated[bool, Field(description="Whether claims are stopped; nothing else is.")] | None = None
    lease_s: Annotated[float, seconds("How long a claim holds, 300 by default", MIN_LEASE, MAX_LEASE)] | None = None
    max_attempts: MaxAttempts | None = None
    backoff_s: Annotated[float, seconds("The wait after the first failure, 30 by default", 0, MAX_BACKOFF)] | None = (
        None
    )
    backoff_cap_s: Annotated[float, seconds("The longest such wait, 900 by default", 0, MAX_BACKOFF)] | None = None
    max_in_flight: (
        Annotated[Whole, told("How many may be claimed at once; unbounded if null.", minimum=1, maximum=MAX_IN_FLIGHT)]
        | None
    ) = None
    keep_done_s: Annotated[float, seconds("How long done todos stay, 14 days by default", MINUTE, MAX_KEEP)] | None = (
        None
    )
    keep_dead_s: (
        Annotated[float, seconds("How long dead letters stay, 90 days by default", MINUTE, MAX_KEEP)] | None
    ) = None

    def changes(self) -> dict[str, Any]:
        """The given settings as the service names them, in ms. Raises Invalid naming the field."""
        changed: dict[str, Any] = {}
        for name in self.model_fields_set:
            value = getattr(self, name)
            if name == "paused":
                changed[name] = bool(value)
            elif name.endswith("_s"):
                changed[name.removesuffix("_s") + "_ms"] = seconds_ms(value, name)
            else:
                changed[name] = value
        return changed


async def list_queues(call: Call, _: None) -> Answer:
    """Every queue of this principal."""
    statuses = await call.api.queues.status(call.principal)
    return json_answer({"queues": [queue_view(status) for status in statuses]})


async def show(call: Call, _: None) -> Answer:
    """One queue, used or not; it is not found for who may not use it."""
    (status,) = await call.api.queues.status(call.principal, limits.check_queue(call.path["name"], "name"))
    return json_answer({"queue": queue_view(status)})


async def put(call: Call, asked: SetQueue) -> Answer:
    """Settings -> settings, changed where the request says so."""
    name = limits.check_queue(call.path["name"], "name")
    settings = await call.api.queues.put(call.principal, name, asked.changes())
    return json_answer({"queue": settings_view(settings)})


ROUTES = (
    Route(
        "GET",
        "/v1/queues",
        NOUN,
        "List the queues with their settings, depths by state and oldest pending age.",
        list_queues,
        {200: record({"queues": many(named("Queue"))})},
    ),
    Route(
        "GET",
        "/v1/queues/{name:path}",
        NOUN,
        "Get a queue with its settings, depths by state and oldest pending age.",
        show,
        {200: record({"queue": named("Queue")})},
    ),
    Route(
        "PUT",
        "/v1/queues/{name:path}",
        NOUN,
        "Set a queue: what is given changes, null is the default again.",
        put,
        {200: record({"queue": named("QueueSettings")})},
        who=Who.ADMIN,
        body=SetQueue,
    ),
)
