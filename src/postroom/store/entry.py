"""One write on its way into a group commit, and how its failures are told."""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, dataclass
from typing import Any

from postroom.errors import PostroomError, Unavailable
from postroom.store.engine import Operation, T, Tx


@dataclass(slots=True)
class Entry:
    """One write that waits for its group: an operation, or else a statement by name."""

    operation: Operation[Any] | None
    name: str
    params: dict[str, object]
    _: KW_ONLY
    heavy: bool
    single: bool
    future: asyncio.Future[Any] | None = None
    error: BaseException | None = None
    answer: Any = None


def drive(operation: Operation[T], tx: Tx) -> T:
    """Run an operation to its end at once: its transaction never suspends it."""
    step = operation(tx).__await__()
    try:
        next(step)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise RuntimeError("an operation awaits nothing but its transaction")


def unavailable(error: BaseException) -> PostroomError:
    return error if isinstance(error, PostroomError) else Unavailable(f"the database cannot be written: {error}")
