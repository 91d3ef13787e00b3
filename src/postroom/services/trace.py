"""Trace: the one story of an event or a todo, from receipt to its end, in the order of time (DESIGN §7)."""

from __future__ import annotations

from dataclasses import replace

from postroom.errors import NotFound
from postroom.event import Event, EventTodo
from postroom.ids import Prefix
from postroom.model import Outcome, Principal, Todo, TodoState, Trace, TraceStep
from postroom.services.events import EventService
from postroom.services.todos import TodoService
from postroom.store.engine import Engine, Reader
from postroom.store.events import EventTable


class TraceService:
    """Tells stories for a principal, who sees what it may see elsewhere."""

    def __init__(self, engine: Engine, todos: TodoService, events: EventService, event_table: EventTable) -> None:
        self._todos = todos
        self._events = events
        self._event_table = event_table
        self._reader = Reader(engine)

    async def trace(self, principal: Principal, id_: str) -> Trace:
        """The story of the event or todo with this id. Raises NotFound."""
        steps: list[TraceStep] = []
        if id_.startswith(Prefix.EVENT):
            event, links = await self._events.get(principal, id_)
            steps += _of_event(event, links)
            for todo_id in dict.fromkeys(link.todo_id for link in links):
                try:
                    steps += _of_todo(await self._todos.get(principal, todo_id))
                except NotFound:
                    continue  # Kept shorter than its event, or moved out of sight.
        elif id_.startswith(Prefix.TODO):
            todo = await self._todos.get(principal, id_)
            for link in await self._event_table.links_of_todo(self._reader, id_):
                found = await self._event_table.get(self._reader, link.event_id)
                if found is not None:
                    shown = found if principal.admin else replace(found, trace_json=None)
                    steps += _of_event(shown, (link,))
            steps += _of_todo(todo)
        else:
            raise NotFound(f"there is nothing {id_[:64]!r} to trace; expected an event's or a todo's id", field="id")
        return Trace(id_, tuple(sorted(steps, key=lambda step: step.at)))


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
