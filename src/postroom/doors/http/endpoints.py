"""Endpoints over HTTP: the places that take messages are attached, kept alive and detached; and who sits at them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.fields import QUEUE_PATTERN, Asked, Nothing, Queue, told
from postroom.doors.http.mail_fields import (
    LINE_PATTERN,
    Acknowledging,
    Attempts,
    Carrier,
    Channel,
    Channels,
    EndpointName,
    Flag,
    Pid,
    Repositories,
    party,
)
from postroom.doors.http.route import Call, Route
from postroom.doors.http.schemas import TEXT, many, named, record
from postroom.endpoint import Endpoint, EndpointFilter
from postroom.mail_wire import endpoint_view, occupant_view
from postroom.postage import MAX_REPOSITORIES
from postroom.services import attaching

NOUN = "endpoints"
NOTHING_CARRIES = (
    "nothing here carries to it: no [[opencode]] is in the settings; what is sent to it waits, and no work rings it"
)


class AttachEndpoint(Asked):
    """A place to be attached."""

    carrier: Carrier
    address: Annotated[
        dict[str, Any], Field(description="Where it is, as its carrier says it: `{}` for an inbox, `{session}`, …")
    ]
    name: EndpointName | None = None
    repositories: Repositories | None = None
    queues: (
        Annotated[
            list[Annotated[str, told("A queue's name.", pattern=QUEUE_PATTERN)]],
            told("The queues whose work rings it.", minItems=0, maxItems=MAX_REPOSITORIES),
        ]
        | None
    ) = None
    channels: Channels | None = None
    ack_mode: Acknowledging | None = None
    delivery_max_attempts: Attempts | None = None
    spill: Annotated[
        bool, Field(description="Whether long bodies go into a private file, and a line points there.")
    ] = False
    rings: Annotated[bool, Field(description="Whether its queues' work rings it.")] = True
    pid: Pid | None = None


class ListEndpoints(Asked):
    """Which endpoints are wanted."""

    target_repo: Annotated[str, told("Only those that work on this repository.", pattern=LINE_PATTERN)] | None = None
    queue: Annotated[Queue, told("Only those that this queue rings.")] | None = None
    channel: Annotated[Channel, told("Only those that get this channel.")] | None = None
    name: Annotated[str, party("Only those of this name.")] | None = None
    live: Annotated[Flag, Field(description="Only live ones, or only the silent; both by default.")] | None = None
    ended: Annotated[Flag, Field(description="Those that have ended as well.")] | None = None


async def list_endpoints(call: Call, asked: ListEndpoints) -> Answer:
    """The endpoints that fit."""
    wanted = EndpointFilter(
        asked.target_repo, asked.queue, asked.channel, asked.name, asked.live, asked.ended is not None and asked.ended
    )
    found = await call.api.registry.find(call.principal, wanted)
    living = await call.api.registry.living(found)
    return json_answer({"endpoints": [endpoint_view(one, one.id in living) for one in found]})


async def attach(call: Call, asked: AttachEndpoint) -> Answer:
    """Nothing -> attached; what stood at the same place ends."""
    endpoint = await attaching.attach(
        call.api.registry,
        call.api.place,
        call.principal,
        asked.carrier,
        asked.address,
        name=asked.name,
        repositories=asked.repositories,
        queues=asked.queues,
        channels=asked.channels,
        ack_mode=asked.ack_mode,
        max_attempts=asked.delivery_max_attempts,
        spill=asked.spill,
        rings=asked.rings,
        pid=asked.pid,
    )
    note = None if call.api.carries(endpoint) else NOTHING_CARRIES
    return await _shown(call, endpoint, 201, note)


async def get(call: Call, _: None) -> Answer:
    """One endpoint."""
    return await _shown(call, await call.api.registry.get(call.principal, call.path["id"]))


async def heartbeat(call: Call, _: Nothing) -> Answer:
    """Live or silent -> seen now."""
    return await _shown(call, await call.api.registry.heartbeat(call.principal, call.path["id"]))


async def detach(call: Call, _: None) -> Answer:
    """Attached -> ended for ever."""
    return await _shown(call, await call.api.registry.detach(call.principal, call.path["id"]))


async def who(call: Call, _: None) -> Answer:
    """Who works here."""
    return json_answer({"who": [occupant_view(one) for one in await call.api.registry.who(call.principal)]})


async def _shown(call: Call, endpoint: Endpoint, status: int = 200, note: str | None = None) -> Answer:
    living = await call.api.registry.living([endpoint])
    said = {} if note is None else {"note": note}
    return json_answer({"endpoint": endpoint_view(endpoint, endpoint.id in living), **said}, status)


_ENDPOINT = record({"endpoint": named("Endpoint")})

ROUTES = (
    Route(
        "GET",
        "/v1/endpoints",
        NOUN,
        "List the endpoints, oldest first.",
        list_endpoints,
        {200: record({"endpoints": many(named("Endpoint"))})},
        query=ListEndpoints,
    ),
    Route(
        "POST",
        "/v1/endpoints",
        NOUN,
        "Attach a place that takes messages; one that stood there already ends.",
        attach,
        {201: record({"endpoint": named("Endpoint")}, {"note": TEXT})},
        body=AttachEndpoint,
        refusals=(404, 409),
    ),
    Route("GET", "/v1/endpoints/{id}", NOUN, "Get an endpoint.", get, {200: _ENDPOINT}),
    Route(
        "DELETE",
        "/v1/endpoints/{id}",
        NOUN,
        "Detach an endpoint for ever; what waits for it waits on. For whoever attached it or speaks as it, and admins.",
        detach,
        {200: _ENDPOINT},
    ),
    Route(
        "POST",
        "/v1/endpoints/{id}/heartbeat",
        NOUN,
        "Say that an endpoint is still there.",
        heartbeat,
        {200: _ENDPOINT},
        body=Nothing,
        refusals=(409,),
    ),
    Route(
        "GET",
        "/v1/who",
        NOUN,
        "Tell who works here, whoever was last heard of first.",
        who,
        {200: record({"who": many(named("Occupant"))})},
    ),
)
