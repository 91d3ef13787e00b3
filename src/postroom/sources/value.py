"""Values in a foreign JSON body, reached without trust: what is missing or of another type is None."""

from __future__ import annotations

import re
from typing import Any

from postroom.text import cut, printable

MAX_TEXT_BYTES = 2048

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


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


def first_line(value: Any, *path: str) -> str | None:
    """The first line of the text at a path."""
    found = at(value, *path)
    return words(found.strip().split("\n", 1)[0]) if isinstance(found, str) else None


def pointed(value: Any, tokens: tuple[str, ...]) -> str | None:
    """The text or whole number that a JSON pointer's tokens lead to, as text; None when they lead to nothing such."""
    for token in tokens:
        if isinstance(value, dict):
            value = value.get(token)
        elif isinstance(value, list) and _INDEX.fullmatch(token) and int(token) < len(value):
            value = value[int(token)]
        else:
            return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value or None if isinstance(value, str) else None


def items(value: Any, *path: str) -> list[Any]:
    """The list at a path, or an empty one."""
    found = at(value, *path)
    return found if isinstance(found, list) else []
