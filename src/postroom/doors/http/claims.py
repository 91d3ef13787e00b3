"""Claims over HTTP: work handed out under a lease, kept alive, and ended by its holder."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.types import Receive

from postroom.desk import ClaimNext as AlsoClaim
from postroom.desk import OutcomeResult
from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.errors import Gone
from postroom.doors.http.fields import (
    Asked,
    ClaimKey,
    Delay,
    Lease,
    LeaseId,
    Queues,
    Result,
    Whole,
    Words,
    Worker,
    seconds,
    told,
)
from postroom.doors.http.route import MANY, ONE, Call, Route
from postroom.doors.http.schemas import FLAG, TEXT, many, named, one_of, record
from postroom.doors.http.views import as_left, whole
from postroom.errors import Invalid
from postroom.limits import MAX_CLAIM, MAX_DELAY, MAX_OUTCOMES, MAX_WAIT
from postroom.model import ClaimRequest, Ended, OutcomeItem, Todo, TodoState, Verb
from postroom.wire import seconds_ms

NOUN = "claims"

Most = Annotated[Whole, told("How many todos at most; 1 by default.", minimum=1, maximum=MAX_CLAIM)]
Wait = Annotated[float, seconds("How long to wait for work when there is none", 0, MAX_WAIT)]
ErrorWords = Annotated[Words, told("What went wrong, for the next attempt; over 2 KiB it is cut.")]
NoteWords = Annotated[Words, told("What the next claimer should know; over 2 KiB it is cut.")]
RetryIn = Annotated[float, seconds("When to try again; the queue's backoff by default", 0, MAX_DELAY)]
Again = Annotated[bool, Field(description="False when trying again cannot help: it is then a dead letter.")]


class ClaimNext(Asked):
    """Which work is wanted."""

    queues: Queues | None = None
    ttl_s: Lease | None = None
    limit: Most | None = None
    wait_s: Wait | None = None
    claim_key: ClaimKey | None = None
    worker: Worker | None = None


class Claim(Asked):
    """How this todo is claimed."""

    ttl_s: Lease | None = None
    claim_key: ClaimKey | None = None
    worker: Worker | None = None


class Heartbeat(Asked):
    """A sign of life."""

    lease_id: LeaseId
    ttl_s: Lease | None = None


class Complete(Asked):
    """The work is done."""

    lease_id: LeaseId
    result: Result = None


class Fail(Asked):
    """The attempt failed."""

    lease_id: LeaseId
    error: ErrorWords | None = None
    result: Result = None
    retry: Again = True
    retry_in_s: RetryIn | None = None


class Release(Asked):
    """The work is given back, which is no failure."""

    lease_id: LeaseId
    note: NoteWords | None = None
    delay_s: Delay | None = None


class Outcome(Asked):
    """One ending of one attempt."""

    id: Annotated[str, told("The todo's id.")]
    verb: Literal["complete", "fail", "release"]
    lease_id: LeaseId
    result: Result = None
    error: ErrorWords | None = None
    retry: Again = True
    retry_in_s: RetryIn | None = None
    note: NoteWords | None = None
    delay_s: Delay | None = None


class ClaimBesides(Asked):
    """What is claimed besides, at once or not at all."""

    queues: Queues | None = None
    ttl_s: Lease | None = None
    limit: Most | None = None
    worker: Worker | None = None


class Outcomes(Asked):
    """Endings of several attempts together, and a claim besides."""

    items: Annotated[list[Outcome], told("The endings, in the order of their results.", maxItems=MAX_OUTCOMES)]
    claim: ClaimBesides | None = None


async def claim_next(call: Call, asked: ClaimNext) -> Answer:
    """Claimable -> claimed, waiting for work for as long as the client does."""
    request = ClaimRequest(
        queues=None if asked.queues is None else tuple(asked.queues),
        ttl_ms=seconds_ms(asked.ttl_s, "ttl_s"),
        limit=1 if asked.limit is None else asked.limit,
        claim_key=asked.claim_key,
        worker=asked.worker,
    )
    wait = seconds_ms(asked.wait_s, "wait_s") or 0
    if wait == 0:
        todos = await call.api.claims.claim_next(call.principal, request)
    else:
        todos = await _while_there(call, request, wait)
    return json_answer({"todos": [whole(todo, lease=True) for todo in todos]})


async def _while_there(call: Call, request: ClaimRequest, wait: int) -> tuple[Todo, ...]:
    """Wait for work, and no longer than the client is there: nothing is claimed for one that has gone (RULINGS 4)."""
    claiming = asyncio.ensure_future(call.api.waiting.claim_next(call.principal, request, wait))
    watching = asyncio.ensure_future(_gone(call.receive))
    try:
        await asyncio.wait({claiming, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone = watching.done()
        watching.cancel()
        if gone or not claiming.done():
            claiming.cancel()
        await asyncio.wait({claiming, watching})
    if not gone:
        return claiming.result()
    if not claiming.cancelled() and claiming.exception() is None and claiming.result():
        await call.api.giving.give_back(call.principal, request.claim_key, claiming.result())
    raise Gone


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def claim(call: Call, asked: Claim) -> Answer:
    """This todo, claimable -> claimed."""
    ttl = seconds_ms(asked.ttl_s, "ttl_s")
    todo = await call.api.claims.claim(call.principal, call.path["id"], ttl, asked.claim_key, asked.worker)
    return json_answer({"todo": whole(todo, lease=True)})


async def heartbeat(call: Call, asked: Heartbeat) -> Answer:
    """Held -> its lease never shortened."""
    ttl = seconds_ms(asked.ttl_s, "ttl_s")
    todo = await call.api.endings.heartbeat(call.principal, call.path["id"], asked.lease_id, ttl)
    return json_answer({"todo": as_left(todo, lease=True)})


async def complete(call: Call, asked: Complete) -> Answer:
    """Held -> done."""
    ended = await call.api.endings.complete(call.principal, call.path["id"], asked.lease_id, asked.result)
    return _ended(call, ended)


async def fail(call: Call, asked: Fail) -> Answer:
    """Held -> parked or dead."""
    item = OutcomeItem(
        call.path["id"],
        Verb.FAIL,
        asked.lease_id,
        result=asked.result,
        error=asked.error,
        retry=asked.retry,
        retry_in_ms=seconds_ms(asked.retry_in_s, "retry_in_s"),
    )
    return _ended(call, await call.api.endings.end(call.principal, item))


async def release(call: Call, asked: Release) -> Answer:
    """Held -> pending, the attempt given back."""
    delay = seconds_ms(asked.delay_s, "delay_s")
    item = OutcomeItem(call.path["id"], Verb.RELEASE, asked.lease_id, note=asked.note, delay_ms=delay)
    return _ended(call, await call.api.endings.end(call.principal, item))


def _ended(call: Call, ended: Ended) -> Answer:
    shown = as_left(ended.todo, lease=call.principal.holds(ended.todo))
    return json_answer({"todo": shown, "replayed": ended.replayed})


async def outcomes(call: Call, asked: Outcomes) -> Answer:
    """Every ending with its own result, and what was claimed besides."""
    items = [_item(n, item) for n, item in enumerate(asked.items)]
    besides = None
    if asked.claim is not None:
        limit = 1 if asked.claim.limit is None else asked.claim.limit
        besides = AlsoClaim(asked.claim.queues, asked.claim.ttl_s, limit, asked.claim.worker)
    results, todos = await call.api.desk_for(call.principal).outcomes(items, besides)
    return json_answer(
        {"results": [_result(one) for one in results], "todos": [whole(todo, lease=True) for todo in todos]}
    )


def _item(n: int, item: Outcome) -> OutcomeItem:
    try:
        return OutcomeItem(
            id=item.id,
            verb=Verb(item.verb),
            lease_id=item.lease_id,
            result=item.result,
            error=item.error,
            retry=item.retry,
            retry_in_ms=seconds_ms(item.retry_in_s, "retry_in_s"),
            note=item.note,
            delay_ms=seconds_ms(item.delay_s, "delay_s"),
        )
    except Invalid as error:
        error.field = f"items[{n}].{error.field}"
        raise


def _result(one: OutcomeResult) -> dict[str, Any]:
    if one.error is not None:
        return {"id": one.id, "error": one.error.as_dict()}
    return {"id": one.id, "state": None if one.state is None else str(one.state), "replayed": one.replayed}


_TODO = record({"todo": named("Todo")})
_ENDED = record({"todo": named("Todo"), "replayed": FLAG})
_RESULT = {
    "anyOf": [
        record({"id": TEXT, "state": one_of(*TodoState), "replayed": FLAG}),
        {
            "type": "object",
            "properties": {"id": TEXT, "error": {"$ref": "#/components/schemas/Error/properties/error"}},
            "required": ["id", "error"],
            "additionalProperties": False,
        },
    ]
}

ROUTES = (
    Route(
        "POST",
        "/v1/todos/claim",
        NOUN,
        "Claim the next todos, waiting for the first; an empty list when there was none.",
        claim_next,
        {200: record({"todos": many(named("Todo"))})},
        body=ClaimNext,
        refusals=(404,),
    ),
    Route(
        "POST",
        "/v1/todos/outcomes",
        NOUN,
        f"End up to {MAX_OUTCOMES} attempts together, each with its own result, and claim besides.",
        outcomes,
        {200: record({"results": many(_RESULT), "todos": many(named("Todo"))})},
        body=Outcomes,
        refusals=(404,),
        most=MANY,
    ),
    Route(
        "POST",
        "/v1/todos/{id}/claim",
        NOUN,
        "Claim this todo.",
        claim,
        {200: _TODO},
        body=Claim,
        refusals=(409,),
    ),
    Route(
        "POST",
        "/v1/todos/{id}/heartbeat",
        NOUN,
        "Keep a claim alive; a lease is never shortened.",
        heartbeat,
        {200: _TODO},
        body=Heartbeat,
        refusals=(409,),
    ),
    Route(
        "POST",
        "/v1/todos/{id}/complete",
        NOUN,
        "End a claim: done. The same lease_id again gives the same answer, replayed.",
        complete,
        {200: _ENDED},
        body=Complete,
        refusals=(409,),
        most=ONE,
    ),
    Route(
        "POST",
        "/v1/todos/{id}/fail",
        NOUN,
        "End a claim: failed, to be tried again after a backoff while attempts are left.",
        fail,
        {200: _ENDED},
        body=Fail,
        refusals=(409,),
        most=ONE,
    ),
    Route(
        "POST",
        "/v1/todos/{id}/release",
        NOUN,
        "End a claim: pending again, its attempt given back.",
        release,
        {200: _ENDED},
        body=Release,
        refusals=(409,),
    ),
)
