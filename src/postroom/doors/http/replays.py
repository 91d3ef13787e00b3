"""Replays over HTTP: events sorted again by today's rules, and what is held let go or thrown away; for admins."""

from __future__ import annotations

from typing import Annotated, Any

from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.events import NOUN, Action, Kind, Since, Source, State, Until
from postroom.doors.http.fields import Asked, Cursor, Nothing, told
from postroom.doors.http.route import Call, Route, Who
from postroom.doors.http.schemas import FLAG, TEXT, many, maybe, named, record
from postroom.errors import Invalid, PostroomError
from postroom.event import EventFilter
from postroom.services.replays import MAX_REPLAYS, Replayed
from postroom.wire import event_view, read_time

_REPLAYED = {
    "event": named("ListedEvent"),
    "repeated": {**FLAG, "description": "An earlier request under the same key did it."},
}


class ReplayEvents(Asked):
    """Which events to replay: these, or those since a time, the oldest first and up to 200 at once."""

    ids: (
        Annotated[
            list[Annotated[str, told("An event's id.")]],
            told("These events, in this order.", minItems=1, maxItems=MAX_REPLAYS),
        ]
        | None
    ) = None
    since: Since | None = None
    until: Until | None = None
    source: Source | None = None
    kind: Kind | None = None
    action: Action | None = None
    state: State | None = None
    cursor: Cursor | None = None

    def wanted(self) -> EventFilter | None:
        """The filter, where no ids are given. Raises Invalid naming the field."""
        if self.ids is not None:
            for name in ("since", "until", "source", "kind", "action", "state", "cursor"):
                if getattr(self, name) is not None:
                    raise Invalid(f"{name} is expected without ids: the two choose differently", field=name)
            return None
        if self.since is None:
            raise Invalid("expected ids, or since", field="ids")
        until = None if self.until is None else read_time(self.until, "until")
        return EventFilter(self.source, self.kind, self.action, self.state, read_time(self.since, "since"), until)


class DiscardEvent(Asked):
    """Why a held event is thrown away."""

    note: Annotated[str, told("Told with the event's reason; over 300 characters it is cut.")] | None = None


def _view(done: Replayed) -> dict[str, Any]:
    return {"event": event_view(done.event, whole=False, todos=done.todos), "repeated": done.repeated}


async def replay(call: Call, _: Nothing) -> Answer:
    """Event -> the same event by today's rules."""
    return json_answer(_view(await call.api.replays.replay(call.principal, call.path["id"], call.request_id)))


async def release(call: Call, _: Nothing) -> Answer:
    """Held -> whatever today's rules make of it."""
    return json_answer(_view(await call.api.replays.release(call.principal, call.path["id"], call.request_id)))


async def discard(call: Call, asked: DiscardEvent) -> Answer:
    """Held -> ignored."""
    done = await call.api.replays.discard(call.principal, call.path["id"], asked.note, call.request_id)
    return json_answer(_view(done))


async def replay_many(call: Call, asked: ReplayEvents) -> Answer:
    """Events -> the same events by today's rules, each with its own result."""
    wanted = asked.wanted()
    done = await call.api.replays.replay_many(
        call.principal, ids=asked.ids, wanted=wanted, cursor=asked.cursor, request_id=call.request_id
    )
    results = [
        {"event_id": id_, "error": one.as_dict()} if isinstance(one, PostroomError) else {"event_id": id_, **_view(one)}
        for id_, one in done.results
    ]
    return json_answer({"results": results, "next_cursor": done.next_cursor})


ROUTES = (
    Route(
        "POST",
        "/v1/events/{id}/replay",
        NOUN,
        "Sort an event again by today's rules; it keeps its first receipt, and todos collapse by their live keys.",
        replay,
        {200: record(_REPLAYED)},
        who=Who.ADMIN,
        body=Nothing,
        refusals=(409,),
        keyed=True,
    ),
    Route(
        "POST",
        "/v1/events/replay",
        NOUN,
        "Replay events by id, or those received since a time; each is a transaction and has a result of its own.",
        replay_many,
        {
            200: record(
                {
                    "results": many(
                        record({"event_id": TEXT}, {**_REPLAYED, "error": {"type": "object"}}),
                    ),
                    "next_cursor": maybe(TEXT),
                }
            )
        },
        who=Who.ADMIN,
        body=ReplayEvents,
        refusals=(409,),
        keyed=True,
    ),
    Route(
        "POST",
        "/v1/events/{id}/release",
        NOUN,
        "Let a held event go: it is replayed by today's rules.",
        release,
        {200: record(_REPLAYED)},
        who=Who.ADMIN,
        body=Nothing,
        refusals=(409,),
        keyed=True,
    ),
    Route(
        "POST",
        "/v1/events/{id}/discard",
        NOUN,
        "Throw a held event away: it is ignored, for a reason that names who said so.",
        discard,
        {200: record(_REPLAYED)},
        who=Who.ADMIN,
        body=DiscardEvent,
        refusals=(409,),
        keyed=True,
    ),
)
