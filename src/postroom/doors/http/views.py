"""A todo as an answer shows it: whole where it is got or claimed, else as the verb left it."""

from __future__ import annotations

from typing import Any

from postroom.model import Todo
from postroom.wire import todo_view


def whole(todo: Todo, *, lease: bool) -> dict[str, Any]:
    """With payload, result and history; the lease id for its holder alone."""
    return todo_view(todo, lease=lease)


def as_left(todo: Todo, *, lease: bool = False) -> dict[str, Any]:
    """With payload and result. Verbs do not read the history, and an empty one would be untrue."""
    shown = todo_view(todo, lease=lease)
    del shown["history"]
    return shown
