"""What a tool answers: views of todos that fit the answer's size and say where the rest is, and errors as results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from postroom import wire
from postroom.errors import PostroomError
from postroom.model import Todo
from postroom.text import clean_json, cut, dump_json

MAX_RESULT_BYTES = 24 * 1024
"""The most a tool's answer takes as JSON."""

MAX_EXACT = 2**53 - 1
"""The largest integer that every client reads exactly; a larger one is shown as text."""

_LONG_DIGITS = re.compile(r"\d{16,}")
_FRAME_BYTES = 256
_SHORT_BYTES = 200
_STUB_BYTES = 48


def size_of(value: object) -> int:
    """The bytes of a value as compact JSON."""
    return len(dump_json(value).encode())


def line(todo: Todo) -> dict[str, Any]:
    """A todo without payload, result and history; what is null is left out, a long error is cut."""
    view = {key: value for key, value in wire.todo_view(todo, whole=False).items() if value is not None}
    if "error" in view:
        view["error"] = cut(view["error"], _SHORT_BYTES)
    return view


def whole(todo: Todo, *, lease: bool, room: int = MAX_RESULT_BYTES - _FRAME_BYTES) -> dict[str, Any]:
    """A todo with payload, result and history, cut to `room` bytes; what was cut is marked, and `whole` says where it is."""
    view = wire.todo_view(todo, lease=lease)
    for name, text in (("payload", todo.payload_json), ("result", todo.result_json)):
        if text is not None and _LONG_DIGITS.search(text):
            view[name] = _exact(view[name])
    if size_of(view) <= room:
        return view
    view["whole"] = f"GET /v1/todos/{todo.id}, or: postroom todo show {todo.id} --json"
    _cut_history(view, room // 4)
    for name, text, floor in (("result", todo.result_json, room // 4), ("payload", todo.payload_json, 0)):
        if text is not None and size_of(view) > room and size_of(view[name]) > floor:
            view[f"{name}_truncated"] = True
            view[name] = _head(text, max(room - size_of({**view, name: ""}), floor))
    _cut_words(view, room)
    return view


def claimed(todos: Sequence[Todo]) -> list[dict[str, Any]]:
    """The todos of one claim, each whole within its share of the answer, with its lease id."""
    room = (MAX_RESULT_BYTES - _FRAME_BYTES) // max(len(todos), 1)
    return [whole(todo, lease=True, room=room) for todo in todos]


def lines_that_fit(todos: Sequence[Todo]) -> list[dict[str, Any]]:
    """The first of these todos as lines, as many as an answer holds; one at least."""
    lines: list[dict[str, Any]] = []
    room = MAX_RESULT_BYTES - _FRAME_BYTES
    for todo in todos:
        shown = line(todo)
        room -= size_of(shown) + 1
        if room < 0 and lines:
            break
        lines.append(shown)
    return lines


def error_result(error: PostroomError, hint: str | None = None) -> dict[str, Any]:
    """An error as a tool shows it: code, message, field, details, and what to do about it."""
    shown = {**error.as_dict(), "hint": hint or error.hint}
    told = {"error": clean_json(shown)}
    if size_of(told) > MAX_RESULT_BYTES:
        told = {"error": {"code": error.code, "message": cut(error.message, 1000), "hint": shown["hint"]}}
    return told


def _exact(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int():
            return value if abs(value) <= MAX_EXACT else str(value)
        case dict():
            return {key: _exact(inner) for key, inner in value.items()}
        case list():
            return [_exact(inner) for inner in value]
        case _:
            return value


def _head(text: str, room: int) -> str:
    """The beginning of a JSON text that takes at most `room` bytes as a JSON string."""
    limit = room
    while limit >= _STUB_BYTES:
        head = cut(text, limit)
        size = size_of(head)
        if size <= room:
            return head
        limit = min(limit - 1, limit * room // size)
    return "…"


def _cut_history(view: dict[str, Any], room: int) -> None:
    entries = view["history"]
    kept: list[dict[str, Any]] = []
    for entry in entries:
        note = entry["note"]
        kept.append({**entry, "note": None if note is None else cut(note, 4 * _SHORT_BYTES)})
        if size_of(kept) > room:
            kept.pop()
            break
    if kept != entries:
        view["history"] = kept
        view["history_truncated"] = True


def _cut_words(view: dict[str, Any], room: int) -> None:
    """The last resort for a todo whose very words are long: they are cut, and named."""
    for name in ("error", "idempotency_key", "title"):
        if size_of(view) <= room:
            return
        if view[name] is not None and size_of(view[name]) > _STUB_BYTES:
            view[name] = cut(view[name], _STUB_BYTES)
            view["cut"] = [*view.get("cut", ()), name]
