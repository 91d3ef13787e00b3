"""Parcels over HTTP: a process that pushes messages to an agent waits for them, and says what came of each (RULINGS 31)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from postroom.carriers.channel import ChannelCarrier, Outcome
from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.fields import Asked, Words, told
from postroom.doors.http.mail_fields import Wait
from postroom.doors.http.polling import while_there
from postroom.doors.http.route import Call, Route
from postroom.doors.http.schemas import TEXT, maybe, named, one_of, record
from postroom.errors import Unavailable
from postroom.limits import MAX_WAIT, check_seconds
from postroom.wire import seconds_ms

NOUN = "endpoints"
DEFAULT_WAIT_S = 15.0


class WaitForParcel(Asked):
    """How long a process waits."""

    wait_s: Wait | None = None


class AnswerParcel(Asked):
    """What came of a message."""

    outcome: Annotated[
        str, told("pushed: shown to the agent, who may not have read it; refused: not for now.", enum=list(Outcome))
    ]
    reason: Annotated[Words, Field(description="Why it was refused, in a line.")] | None = None


async def wait(call: Call, asked: WaitForParcel) -> Answer:
    """There -> handed the next message, or nothing when none came in time; a sign of life besides."""
    carrier = _carrier(call)
    waits = seconds_ms(DEFAULT_WAIT_S if asked.wait_s is None else asked.wait_s, "wait_s") or 0
    check_seconds(waits, 0, MAX_WAIT, "wait_s")
    endpoint = await call.api.registry.process_of(call.principal, call.path["id"])
    if carrier.beats(endpoint.id):
        await call.api.registry.touch([endpoint.id])
    note = await while_there(call.receive, carrier.wait(endpoint.id, call.principal.name, waits / 1000))
    parcel = (
        None if note is None else {"delivery_id": note.delivery_id, "content": note.content, "meta": dict(note.meta)}
    )
    return json_answer({"parcel": parcel})


async def answer(call: Call, asked: AnswerParcel) -> Answer:
    """Handed over -> answered."""
    id_, delivery_id = call.path["id"], call.path["delivery_id"]
    outcome = _carrier(call).answer(id_, call.principal.name, delivery_id, asked.outcome, asked.reason)
    return json_answer({"delivery_id": delivery_id, "outcome": outcome.value})


def _carrier(call: Call) -> ChannelCarrier:
    if call.api.channel is None:
        raise Unavailable("no channel is carried here")
    return call.api.channel


ROUTES = (
    Route(
        "GET",
        "/v1/endpoints/{id}/parcels",
        NOUN,
        "Wait for the next message of a channel's endpoint, as the process that attached it; a sign of life as well.",
        wait,
        {200: record({"parcel": maybe(named("Parcel"))})},
        query=WaitForParcel,
        refusals=(409,),
    ),
    Route(
        "POST",
        "/v1/endpoints/{id}/parcels/{delivery_id}",
        NOUN,
        "Say what came of a message that was handed over.",
        answer,
        {200: record({"delivery_id": TEXT, "outcome": one_of(*Outcome)})},
        body=AnswerParcel,
        refusals=(409,),
    ),
)
