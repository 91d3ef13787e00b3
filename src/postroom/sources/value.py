"""Values in a foreign JSON body, reached without trust: what is missing or of another type is None."""

from __future__ import annotations

from typing import Any

from postroom.text import cut, printable

MAX_TEXT_BYTES = 2048


def at(value: Any, *path: str) -> Any:
    """What stands at a path of keys, or None."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def words(value: Any, *path: str) -> str | None:
    """The text at a path, on one line and at most 2 KiB; None when it is no text or empty."""
    found = at(value, *path)
    return (cut(printable(found[:MAX_TEXT_BYTES]), MAX_TEXT_BYTES) or None) if isinstance(found, str) else None


def whole(value: Any, *path: str) -> int | None:
    """The whole number at a path that a 64-bit column holds, or None."""
    found = at(value, *path)
    if isinstance(found, bool) or not isinstance(found, int) or abs(found) >= 1 << 63:
        return None
    return found


def items(value: Any, *path: str) -> list[Any]:
    """The list at a path, or an empty one."""
    found = at(value, *path)
    return found if isinstance(found, list) else []
