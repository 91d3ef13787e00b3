"""Refusals: what names nothing, and guarded statements that touched nothing, told apart for who asked (S12)."""

from __future__ import annotations

from postroom.errors import Conflict, Forbidden, Invalid, NotFound, PostroomError
from postroom.model import Principal, TodoState
from postroom.postage import check_message_id
from postroom.store.todos import Standing
from postroom.wire import show_time

_STEERING = frozenset({"retry", "cancel", "update"})
_HINTS = {
    "retry": "Only a failed todo is retried; make a new one where this one is done.",
    "cancel": "Only a todo that is not over is cancelled; there is nothing left to do.",
    "update": "Only a pending todo is updated: retry a failed one first, or make a new one.",
}
_PAST = {"claim": "claimed", "retry": "retried", "cancel": "cancelled", "update": "updated"}


def missing(id_: str) -> NotFound:
    """There is no such todo for this principal."""
    return NotFound(f"there is no todo {id_}", field="id")


def named_message(id_: str) -> str:
    """The id itself when a message may have it; anything else names nothing. Raises NotFound."""
    try:
        return check_message_id(id_, "id")
    except Invalid:
        raise NotFound(f"there is no message {id_[:64]!r}", field="id") from None


def told(principal: Principal, id_: str, standing: Standing, verb: str | None = None) -> PostroomError:
    """The refusal of a guarded statement that touched nothing: no such todo for this principal, or where it stands."""
    todo = standing.todo
    if todo is None or not principal.may_use(todo.queue):
        return missing(id_)
    if verb in _STEERING and not principal.admin and not principal.made(todo):
        return Forbidden(f"only an admin or its creator, {todo.created_by}, may {verb} {id_}")
    where = {"state": str(todo.state), "owner": todo.owner, "lease_expires_at": show_time(todo.lease_expires_at)}
    if standing.ended is not None:
        return Conflict(f"this lease of {id_} has ended as {standing.ended}; the todo is {todo.state}", **where)
    held = f"held by {todo.owner}" if todo.state is TodoState.CLAIMED else "not held"
    if verb is not None:
        hint = {} if verb not in _HINTS else {"hint": _HINTS[verb]}
        return Conflict(f"{id_} is {todo.state}; it cannot be {_PAST[verb]} now", **where, **hint)
    return Conflict(f"{id_} is {todo.state} and {held}, not by you under this lease", **where)
