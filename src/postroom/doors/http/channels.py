"""Channels over HTTP: who gets what is sent to them."""

from __future__ import annotations

from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.fields import Nothing
from postroom.doors.http.route import Call, Route
from postroom.doors.http.schemas import many, named, record
from postroom.limits import check_name, check_queue
from postroom.mail_wire import channel_view

NOUN = "channels"


async def list_channels(call: Call, _: None) -> Answer:
    """Every channel that somebody is subscribed to."""
    return json_answer({"channels": [channel_view(one) for one in await call.api.registry.channels(call.principal)]})


async def subscribe(call: Call, _: Nothing) -> Answer:
    """Not subscribed -> subscribed."""
    channel, subscriber = _parts(call)
    return json_answer(
        {"channel": channel_view(await call.api.registry.subscribe(call.principal, channel, subscriber))}
    )


async def unsubscribe(call: Call, _: None) -> Answer:
    """Subscribed -> not subscribed."""
    channel, subscriber = _parts(call)
    left = await call.api.registry.unsubscribe(call.principal, channel, subscriber)
    return json_answer({"channel": channel_view(left)})


def _parts(call: Call) -> tuple[str, str]:
    return check_queue(call.path["name"], "name"), check_name(call.path["subscriber"], "subscriber")


_CHANNEL = record({"channel": named("Channel")})

ROUTES = (
    Route(
        "GET",
        "/v1/channels",
        NOUN,
        "List the channels that somebody is subscribed to.",
        list_channels,
        {200: record({"channels": many(named("Channel"))})},
    ),
    Route(
        "PUT",
        "/v1/channels/{name:path}/subscribers/{subscriber}",
        NOUN,
        "Subscribe a session, an endpoint or a name to a channel; twice is the same.",
        subscribe,
        {200: _CHANNEL},
        body=Nothing,
        refusals=(404, 409),
    ),
    Route(
        "DELETE",
        "/v1/channels/{name:path}/subscribers/{subscriber}",
        NOUN,
        "Unsubscribe; twice is the same.",
        unsubscribe,
        {200: _CHANNEL},
        refusals=(404, 409),
    ),
)
