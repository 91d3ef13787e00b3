"""Trace: the one story of an event, a todo or a message, from receipt to its end, in the order of time (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

from postroom.errors import NotFound
from postroom.event import Event, EventTodo
from postroom.ids import Prefix
from postroom.message import Posted
from postroom.model import Outcome, Principal, Todo, TodoState, Trace, TraceStep
from postroom.services.doorbell import KIND as RING
from postroom.services.events import EventService
from postroom.services.passage import admitted, passage
from postroom.services.post import PostService
from postroom.services.todos import TodoService
from postroom.store.engine import Engine, Reader
from postroom.store.events import EventTable
from postroom.store.posted import PostedTable

MOST_NOTICES: Final = 50
"""How many notices the story of one todo holds, the newest; and how many messages of others about it."""


class TraceService:
    """Tells stories for a principal, who sees what it may see elsewhere."""

    def __init__(
        self,
        engine: Engine,
        todos: TodoService,
        events: EventService,
        event_table: EventTable,
        post: PostService,
        posted: PostedTable,
    ) -> None:
        self._todos = todos
        self._events = events
        self._event_table = event_table
        self._post = post
        self._posted = posted
        self._reader = Reader(engine)

    async def trace(self, principal: Principal, id_: str) -> Trace:
        """The story of the event, todo or message with this id. Raises NotFound.

        A message may have any id of its sender's choice, that of an event or todo too; those come first.
        """
        steps: list[TraceStep] | None = None
        if id_.startswith(Prefix.EVENT):
            steps = await _if_there(self._event(principal, id_))
        elif id_.startswith(Prefix.TODO):
            steps = await _if_there(self._todo(principal, id_))
        if steps is None:
            steps = await _if_there(self._message(principal, id_))
        if steps is None:
            shown = f"there is nothing {id_[:64]!r} to trace; expected the id of an event, a todo or a message"
            raise NotFound(shown, field="id")
        return Trace(id_, tuple(sorted(steps, key=lambda step: step.at)))

    async def _event(self, principal: Principal, id_: str) -> list[TraceStep]:
        event, links = await self._events.get(principal, id_)
        steps = _of_event(event, links)
        for todo_id in dict.fromkeys(link.todo_id for link in links):
            # It may be kept shorter than its event, or have moved out of sight.
            steps += await _if_there(self._work(principal, todo_id)) or []
        return steps

    async def _todo(self, principal: Principal, id_: str) -> list[TraceStep]:
        work = await self._work(principal, id_)
        steps: list[TraceStep] = []
        for link in await self._event_table.links_of_todo(self._reader, id_):
            found = await self._event_table.get(self._reader, link.event_id)
            if found is not None:
                shown = found if principal.admin else replace(found, trace_json=None)
                steps += _of_event(shown, (link,))
        return steps + work

    async def _work(self, principal: Principal, id_: str) -> list[TraceStep]:
        """The todo itself, whom it was rung for, who was told that it waits or has ended, and what others wrote about it."""
        steps = _of_todo(await self._todos.get(principal, id_))
        for notice in await self._posted.notices(self._reader, id_, MOST_NOTICES):
            steps += _of_notice(notice)
        for posted in await self._posted.about(self._reader, id_, MOST_NOTICES):
            steps += _of_message(posted)
        return steps

    async def _message(self, principal: Principal, id_: str) -> list[TraceStep]:
        posted = await self._post.get(principal, id_)
        return [admitted(posted.message), *_passages(posted)]


async def _if_there(story: Awaitable[list[TraceStep]]) -> list[TraceStep] | None:
    try:
        return await story
    except NotFound:
        return None


def _of_notice(notice: Posted) -> list[TraceStep]:
    """A ring, or the word that work which was given away has ended: to whom, and how far it came."""
    what, word = ("rung", "ring") if notice.message.kind == RING else ("told", "notice")
    steps: list[TraceStep] = []
    for one in notice.deliveries:
        steps.append(TraceStep(notice.message.created_at, what, notice.message.id, f"{one.mailbox} by {one.carrier}"))
        steps += (replace(step, what=f"{word} {step.what}", id=notice.message.id) for step in passage(one))
    return steps


def _of_message(posted: Posted) -> list[TraceStep]:
    """A message about a todo: who wrote to whom, and how far it came."""
    steps = [admitted(posted.message), *_passages(posted)]
    return [replace(step, what=f"message {step.what}", id=posted.message.id) for step in steps]


def _passages(posted: Posted) -> list[TraceStep]:
    return [step for one in posted.deliveries for step in passage(one)]


def _of_event(event: Event, links: tuple[EventTodo, ...]) -> list[TraceStep]:
    steps = [
        TraceStep(event.received_at, "received", event.id, f"{event.source}: {event.title}"),
        TraceStep(event.received_at, "verified", event.id, event.verification),
    ]
    if event.suspected_replay:
        same = "the same bytes had come before under another id"
        steps.append(TraceStep(event.received_at, "suspected replay", event.id, same))
    steps += [TraceStep(event.received_at, "decided", event.id, line) for line in event.trace or ()]
    if event.reason:
        steps.append(TraceStep(event.received_at, str(event.state), event.id, event.reason))
    for link in links:
        how = "made" if link.created else "joined the live"
        steps.append(TraceStep(event.received_at, "routed", event.id, f"rule {link.rule} {how} {link.todo_id}"))
    if event.deliveries > 1:
        times = f"{event.deliveries} deliveries collapsed into this event"
        steps.append(TraceStep(event.last_delivery_at, "delivered again", event.id, times))
    return steps


def _of_todo(todo: Todo) -> list[TraceStep]:
    steps = [TraceStep(todo.created_at, "created", todo.id, f"{todo.queue}: {todo.title}")]
    for entry in todo.history:
        if entry.claimed_at is not None and entry.owner is not None:
            steps.append(TraceStep(entry.claimed_at, "claimed", todo.id, f"by {entry.owner}"))
        words = {
            Outcome.FAILED: "failed",
            Outcome.RELEASED: "released",
            Outcome.LAPSED: "lease lapsed",
            Outcome.CANCELLED: "cancelled",
            Outcome.DONE: "done",
        }[entry.outcome]
        detail = " ".join(part for part in (f"of {entry.owner}" if entry.owner else "", entry.note or "") if part)
        steps.append(TraceStep(entry.ended_at, words, todo.id, detail))
    if todo.state in {TodoState.CLAIMED, TodoState.DONE} and todo.claimed_at is not None:
        steps.append(TraceStep(todo.claimed_at, "claimed", todo.id, f"by {todo.owner}, attempt {todo.attempt}"))
    if todo.completed_at is not None and todo.state is TodoState.DONE:
        steps.append(TraceStep(todo.completed_at, "done", todo.id, f"by {todo.owner}, after {todo.attempt} attempts"))
    elif todo.dead and todo.completed_at is not None:
        steps.append(TraceStep(todo.completed_at, "dead letter", todo.id, f"{todo.reason}: {todo.error or ''}"))
    elif todo.parked and todo.next_retry_at is not None:
        steps.append(TraceStep(todo.next_retry_at, "tried again from", todo.id, "parked until then"))
    return steps
