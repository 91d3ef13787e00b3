"""Steps: what was done to a todo, an event or a message that its row does not show any more, for its trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from postroom.model import Todo, TodoChange, TraceStep
from postroom.store.engine import Tx
from postroom.text import cut
from postroom.wire import show_time

MOST_STEPS: Final = 1000
"""How many are told of one story, the newest."""
MAX_TITLE_BYTES: Final = 200

RETRIED: Final = "retried"
CANCELLED: Final = "cancelled"


async def note(tx: Tx, about: str, what: str, detail: str, at: int | None = None) -> None:
    """Keep a step, in the transaction of what it tells of; `at` in ms UTC, now by default."""
    await tx.rows("step_add", about=about, at=at, what=what, detail=detail)


async def forget(tx: Tx, ids: Sequence[str]) -> None:
    """What was noted about these ids -> gone, with them."""
    if ids:
        await tx.rows("steps_forget", ids=list(ids))


async def noted(tx: Tx, ids: Sequence[str]) -> dict[str, list[TraceStep]]:
    """What was noted about each of these ids, the oldest first; an id of which nothing was noted has an empty list."""
    steps: dict[str, list[TraceStep]] = {id_: [] for id_ in ids}
    for about, at, what, detail in reversed(await tx.rows("steps_of", ids=list(steps), limit=MOST_STEPS)):
        steps[about].append(TraceStep(at, what, about, detail))
    return steps


async def note_retry(tx: Tx, was: Todo, by: str) -> None:
    """Keep how a failed todo stood before it was retried, and by whom it was."""
    if was.dead:
        await note(tx, was.id, "dead letter", f"{was.reason}: {was.error or ''}".rstrip(": "), was.completed_at)
    parked = "" if was.next_retry_at is None else f"; it was parked until {show_time(was.next_retry_at)}"
    await note(tx, was.id, RETRIED, f"by {by}{parked}")


async def note_update(tx: Tx, was: Todo, todo: Todo, change: TodoChange, by: str) -> None:
    """Keep what of a todo was changed, from what to what, and by whom; an assignment is a step of its own."""
    if was.assignee != todo.assignee:
        before = "" if was.assignee is None else f"; it was {was.assignee}'s"
        if todo.assignee is None:
            await note(tx, todo.id, "unassigned", f"by {by}{before}")
        else:
            await note(tx, todo.id, "assigned", f"to {todo.assignee} by {by}{before}")
    changed = []
    if was.title != todo.title:
        changed.append(f'title, before "{cut(was.title, MAX_TITLE_BYTES)}"')
    if was.priority != todo.priority:
        changed.append(f"priority from {was.priority} to {todo.priority}")
    if change.payload_given:
        changed.append("payload")
    if was.available_at != todo.available_at:
        when = "at once" if todo.available_at is None else f"from {show_time(todo.available_at)}"
        changed.append(f"to be claimed {when}")
    if changed:
        await note(tx, todo.id, "updated", f"by {by}: {'; '.join(changed)}")
