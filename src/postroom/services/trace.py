"""Trace: the one story of an event, a todo or a message, from receipt to its end, in the order of time (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from postroom.errors import NotFound
from postroom.event import Event, EventTodo
from postroom.ids import Prefix
from postroom.message import Posted
from postroom.model import Attempt, Outcome, Principal, Todo, TodoState, Trace, TraceStep
from postroom.services.doorbell import KIND as RING
from postroom.services.events import EventService
from postroom.services.passage import admitted, passage
from postroom.services.post import PostService
from postroom.services.todos import TodoService
from postroom.store.engine import Engine, Reader
from postroom.store.events import EventTable
from postroom.store.posted import PostedTable
from postroom.store.steps import CANCELLED, RETRIED
from postroom.store.steps import noted as steps_noted
from postroom.text import many

MOST_NOTICES: Final = 50
"""How many notices the story of one todo holds, the newest; and how many messages of others about it."""

HISTORY: Final = 50
"""How many attempts that ended a todo shows, the newest."""

_WORDS: Final = {
    Outcome.FAILED: "failed",
    Outcome.RELEASED: "released",
    Outcome.LAPSED: "lease lapsed",
    Outcome.CANCELLED: "cancelled",
    Outcome.DONE: "done",
}


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
        """The story of the event, todo or message with this id, a delivery's being that of its message. Raises NotFound.

        A message may have any id of its sender's choice, that of an event or todo too; those come first.
        """
        steps: list[TraceStep] | None = None
        if id_.startswith(Prefix.EVENT):
            steps = await _if_there(self._event(principal, id_))
        elif id_.startswith(Prefix.TODO):
            steps = await _if_there(self._todo(principal, id_))
        if steps is None:
            steps = await _if_there(self._message(principal, id_))
        if steps is None and id_.startswith(Prefix.DELIVERY):
            carried = await self._posted.of_delivery(self._reader, id_)
            steps = None if carried is None else await _if_there(self._message(principal, carried))
        if steps is None:
            shown = (
                f"there is nothing {id_[:64]!r} to trace; expected the id of an event, a todo, a message or a delivery"
            )
            raise NotFound(shown, field="id")
        return Trace(id_, tuple(sorted(steps, key=lambda step: step.at)))

    async def _event(self, principal: Principal, id_: str) -> list[TraceStep]:
        event, links = await self._events.get(principal, id_)
        todos: dict[str, Todo] = {}
        for todo_id in dict.fromkeys(link.todo_id for link in links):
            # It may be kept shorter than its event, or have moved out of sight.
            with suppress(NotFound):
                todos[todo_id] = await self._todos.get(principal, todo_id)
        steps = _of_event(event, links, await self._noted(id_), todos)
        for todo in todos.values():
            steps += await self._work(todo)
        return steps

    async def _todo(self, principal: Principal, id_: str) -> list[TraceStep]:
        todo = await self._todos.get(principal, id_)
        work = await self._work(todo)
        steps: list[TraceStep] = []
        for link in await self._event_table.links_of_todo(self._reader, id_):
            found = await self._event_table.get(self._reader, link.event_id)
            if found is not None:
                shown = found if principal.admin else replace(found, trace_json=None)
                steps += _of_event(shown, (link,), await self._noted(found.id), {id_: todo})
        return steps + work

    async def _work(self, todo: Todo) -> list[TraceStep]:
        """The todo itself, whom it was rung for, who was told that it waits or has ended, and what others wrote about it."""
        notices = await self._posted.notices(self._reader, todo.id, MOST_NOTICES)
        about = await self._posted.about(self._reader, todo.id, MOST_NOTICES)
        noted = await steps_noted(self._reader, [todo.id, *(posted.message.id for posted in (*notices, *about))])
        steps = _of_todo(todo, noted[todo.id])
        for notice in notices:
            steps += _of_notice(notice, noted[notice.message.id])
        for posted in about:
            steps += _of_message(posted, noted[posted.message.id])
        return steps

    async def _message(self, principal: Principal, id_: str) -> list[TraceStep]:
        posted = await self._post.get(principal, id_)
        return [admitted(posted.message), *await self._noted(id_), *_passages(posted)]

    async def _noted(self, id_: str) -> list[TraceStep]:
        return (await steps_noted(self._reader, [id_]))[id_]


async def _if_there(story: Awaitable[list[TraceStep]]) -> list[TraceStep] | None:
    try:
        return await story
    except NotFound:
        return None


def _of_notice(notice: Posted, noted: Sequence[TraceStep]) -> list[TraceStep]:
    """A ring, or the word that work which was given away has ended: to whom, and how far it came."""
    what, word = ("rung", "ring") if notice.message.kind == RING else ("told", "notice")
    steps: list[TraceStep] = []
    for one in notice.deliveries:
        steps.append(TraceStep(notice.message.created_at, what, notice.message.id, f"{one.mailbox} by {one.carrier}"))
        steps += (replace(step, what=f"{word} {step.what}", id=notice.message.id) for step in passage(one))
    return [*(replace(step, what=f"{word} {step.what}") for step in noted), *steps]


def _of_message(posted: Posted, noted: Sequence[TraceStep]) -> list[TraceStep]:
    """A message about a todo: who wrote to whom, and how far it came."""
    steps = [admitted(posted.message), *noted, *_passages(posted)]
    return [replace(step, what=f"message {step.what}", id=posted.message.id) for step in steps]


def _passages(posted: Posted) -> list[TraceStep]:
    return [step for one in posted.deliveries for step in passage(one)]


def _of_event(
    event: Event, links: tuple[EventTodo, ...], noted: Sequence[TraceStep], todos: Mapping[str, Todo]
) -> list[TraceStep]:
    """What came, what was done to it since, and what today's decision is; that stands from when it was made."""
    steps = [
        TraceStep(event.received_at, "received", event.id, f"{event.source}: {event.title}"),
        TraceStep(event.received_at, "verified", event.id, event.verification),
    ]
    if event.suspected_replay:
        same = "the same bytes had come before under another id"
        steps.append(TraceStep(event.received_at, "suspected replay", event.id, same))
    steps += noted
    since = noted[-1].at if noted else event.received_at
    said = {f"{step.what} {step.detail.partition(';')[0]}" for step in noted}
    steps += [TraceStep(since, "decided", event.id, line) for line in event.trace or () if line not in said]
    if event.reason:
        steps.append(TraceStep(since, str(event.state), event.id, event.reason))
    for link in links:
        # A replay leads to todos too; none is older than what led to it.
        todo = todos.get(link.todo_id)
        at = event.received_at if todo is None else max(event.received_at, todo.created_at)
        how = "made" if link.created else "joined the live"
        steps.append(TraceStep(at, "routed", event.id, f"rule {link.rule} {how} {link.todo_id}"))
    if event.deliveries > 1:
        times = f"{event.deliveries} deliveries collapsed into this event"
        steps.append(TraceStep(event.last_delivery_at, "delivered again", event.id, times))
    return steps


def _of_todo(todo: Todo, noted: Sequence[TraceStep]) -> list[TraceStep]:
    """A todo's attempts and what was done to it, a retry after another: each begins to count its attempts anew."""
    steps = [TraceStep(todo.created_at, "created", todo.id, f"{todo.queue}: {todo.title}")]
    held = todo.state in {TodoState.CLAIMED, TodoState.DONE} and todo.claimed_at is not None
    left = list(reversed(todo.history))
    cut = len(left) >= HISTORY
    if cut:
        first = left[0]
        shown = f"only the newest {HISTORY} attempts that ended are"
        steps.append(TraceStep(first.claimed_at or first.ended_at, "not shown", todo.id, shown))
    runs = _runs(noted)
    for n, run in enumerate(runs):
        last = n == len(runs) - 1
        entries = [one for one in left if last or one.ended_at <= run[-1].at]
        left = left[len(entries) :]
        counted = todo.attempt - held if last else None if cut and n == 0 else sum(map(_counts, entries))
        cancelled = {step.at: step for step in run if step.what == CANCELLED}
        for entry, number in zip(entries, _numbers(entries, counted), strict=True):
            if entry.claimed_at is not None and entry.owner is not None:
                claimed = f"by {entry.owner}" + ("" if number is None else f", attempt {number}")
                steps.append(TraceStep(entry.claimed_at, "claimed", todo.id, claimed))
            if entry.outcome is not Outcome.CANCELLED or entry.ended_at not in cancelled:
                detail = ": ".join(
                    part for part in (f"of {entry.owner}" if entry.owner else "", entry.note or "") if part
                )
                steps.append(TraceStep(entry.ended_at, _WORDS[entry.outcome], todo.id, detail))
        steps += run
    if held and todo.claimed_at is not None:
        steps.append(TraceStep(todo.claimed_at, "claimed", todo.id, f"by {todo.owner}, attempt {todo.attempt}"))
    if todo.completed_at is not None and todo.state is TodoState.DONE:
        again = " since it was retried" if len(runs) > 1 else ""
        steps.append(
            TraceStep(
                todo.completed_at, "done", todo.id, f"by {todo.owner}, after {many(todo.attempt, 'attempt')}{again}"
            )
        )
    elif todo.dead and todo.completed_at is not None:
        why = f": {todo.error}" if todo.error else ""
        steps.append(TraceStep(todo.completed_at, "dead letter", todo.id, f"{todo.reason}{why}"))
    elif todo.parked and todo.next_retry_at is not None:
        steps.append(TraceStep(todo.next_retry_at, "tried again from", todo.id, "parked until then"))
    return steps


def _runs(noted: Sequence[TraceStep]) -> list[list[TraceStep]]:
    """What was done up to each retry, that included, and since the last one."""
    runs: list[list[TraceStep]] = [[]]
    for step in noted:
        runs[-1].append(step)
        if step.what == RETRIED:
            runs.append([])
    return runs


def _counts(entry: Attempt) -> bool:
    """Whether it used up an attempt: a release gives it back, and a cancellation may have met nobody's claim."""
    return entry.outcome is not Outcome.RELEASED and entry.claimed_at is not None


def _numbers(entries: Sequence[Attempt], counted: int | None) -> list[int | None]:
    """Which attempt each of these was, the oldest first, when `counted` had been made after the last; None if unknown."""
    numbers: list[int | None] = []
    for entry in reversed(entries):
        number = None if counted is None else counted + (entry.outcome is Outcome.RELEASED)
        numbers.append(number if number is not None and number > 0 else None)
        if counted is not None:
            counted -= _counts(entry)
    return numbers[::-1]
