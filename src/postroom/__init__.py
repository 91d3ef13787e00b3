"""Postroom: a durable post room for coding agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from postroom.client import Client
    from postroom.daemon import connect
    from postroom.desk import Desk
    from postroom.errors import (
        Conflict,
        Forbidden,
        Invalid,
        Misconfigured,
        NotFound,
        PostroomError,
        RateLimited,
        TooLarge,
        Unauthenticated,
        Unavailable,
    )
    from postroom.model import NewTodo, Todo, TodoState
    from postroom.worker import Worker

__all__ = [
    "Client",
    "Conflict",
    "Desk",
    "Forbidden",
    "Invalid",
    "Misconfigured",
    "NewTodo",
    "NotFound",
    "PostroomError",
    "RateLimited",
    "Todo",
    "TodoState",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Worker",
    "connect",
]

_HOMES = {
    "Client": "client",
    "Desk": "desk",
    "NewTodo": "model",
    "Todo": "model",
    "TodoState": "model",
    "Worker": "worker",
    "connect": "daemon",
}


def __getattr__(name: str) -> Any:
    """Give a public name from its home, imported at first use: a CLI verb must not pay for a server."""
    if name not in __all__:
        raise AttributeError(f"module 'postroom' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"postroom.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
