"""Postroom: a durable post room for coding agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from postroom.client import Client
    from postroom.coordination import CoordinationEngineAdapter, WakeHistory, WakeReceipt, WakeRequest
    from postroom.daemon import connect
    from postroom.desk import Desk
    from postroom.errors import (
        Ambiguous,
        Conflict,
        Forbidden,
        Incompatible,
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
    "Ambiguous",
    "Client",
    "Conflict",
    "CoordinationEngineAdapter",
    "Desk",
    "Forbidden",
    "Incompatible",
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
    "WakeHistory",
    "WakeReceipt",
    "WakeRequest",
    "Worker",
    "connect",
]

_HOMES = {
    "Client": "client",
    "CoordinationEngineAdapter": "coordination",
    "Desk": "desk",
    "NewTodo": "model",
    "Todo": "model",
    "TodoState": "model",
    "WakeHistory": "coordination",
    "WakeReceipt": "coordination",
    "WakeRequest": "coordination",
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
