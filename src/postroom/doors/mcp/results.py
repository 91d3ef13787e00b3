"""What a tool answers: views that fit the answer's size and say how to get the rest, and errors as results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from postroom import wire
from postroom.errors import Invalid, PostroomError
from postroom.model import Todo
from postroom.text import clean_json, cut, dump_json

MAX_RESULT_BYTES = 24 * 1024
"""The most a tool's answer takes as JSON, in each of its two forms: structured, and as text."""

MAX_EXACT = 2**53 - 1
"""The largest integer that every client reads exactly; a larger one is shown as text."""

FIELDS = ("payload", "result", "history", "error", "title", "idempotency_key")
"""The fields of a todo that may be cut, and are then read in parts."""

_LONG_DIGITS = re.compile(r"\d{16,}")
_FRAME_BYTES = 256
_SHORT_BYTES = 200
_STUB_BYTES = 48
_MORE = "…"
_ANY_OFFSET = 9_999_999
"""Stands for an offset while it is measured: none has more digits."""


def size_of(value: object) -> int:
    """The bytes of a value as compact JSON."""
    return len(dump_json(value).encode())


def bounded(answer: dict[str, Any], tool: str) -> tuple[dict[str, Any], str]:
    """The answer as it may be sent, and the same as text: the one place that holds the bound, for every tool.

    A tool fits its own answer and says how to get the rest; one that was too long all the same loses its longest texts
    and lists, named in `cut`: what the call did is told in any case.
    """
    text = dump_json(answer)
    if len(text) * 4 <= MAX_RESULT_BYTES or len(text.encode()) <= MAX_RESULT_BYTES:
        return answer, text
    named: list[str] = []
    shorter = {**answer, "cut": named, "whole": f"{tool} answered more than fits here: ask for less"}
    for share in (8, 32, 128, 512):
        named.clear()
        kept = {
            key: value if key in ("cut", "whole") else _shrunk(value, MAX_RESULT_BYTES // share, key, named)
            for key, value in shorter.items()
        }
        text = dump_json(kept)
        if len(text.encode()) <= MAX_RESULT_BYTES:
            return kept, text
        del named[20:]
    kept = {"cut": sorted(answer)[:20], "whole": shorter["whole"]}
    return kept, dump_json(kept)


def _shrunk(value: Any, room: int, path: str, named: list[str]) -> Any:
    match value:
        case str() if size_of(value) > room:
            named.append(path)
            return head_of(value, room)
        case list() if size_of(value) > room:
            named.append(path)
            kept: list[Any] = []
            for item in value:
                kept.append(_shrunk(item, room // 4, path, []))
                if size_of(kept) > room:
                    kept.pop()
                    break
            return kept
        case dict() if size_of(value) > room:
            return {key: _shrunk(inner, room, f"{path}.{key}", named) for key, inner in value.items()}
        case _:
            return value


def head_of(text: str, room: int) -> str:
    """The beginning of a text that takes at most `room` bytes as a JSON string, and a mark that more comes."""
    kept = text[:room]
    while kept:
        size = size_of(kept) + len(_MORE.encode())
        if size <= room:
            break
        kept = kept[: min(len(kept) - 1, len(kept) * room // size)]
    return kept + _MORE


def line(todo: Todo) -> dict[str, Any]:
    """A todo without payload, result and history; what is null is left out, a long error is cut."""
    view = {key: value for key, value in wire.todo_view(todo, whole=False).items() if value is not None}
    if "error" in view:
        view["error"] = cut(view["error"], _SHORT_BYTES)
    return view


def whole(todo: Todo, *, lease: bool, room: int = MAX_RESULT_BYTES - _FRAME_BYTES) -> dict[str, Any]:
    """A todo with payload, result and history, cut to `room` bytes.

    What was cut is marked; `rest` says by field from which offset on get_todo reads it, `whole` says so in words.
    """
    view = wire.todo_view(todo, lease=lease)
    for name, text in (("payload", todo.payload_json), ("result", todo.result_json)):
        if text is not None and _LONG_DIGITS.search(text):
            view[name] = _exact(view[name])
    if size_of(view) <= room:
        return view
    rest: dict[str, int] = {}
    view["rest"] = rest
    view["whole"] = f"get_todo with a field and offset of rest; or: postroom todo show {todo.id} --json"
    _cut_history(view, room // 4)
    for name, text, floor in (("result", todo.result_json, room // 4), ("payload", todo.payload_json, 0)):
        if text is not None and size_of(view) > room and size_of(view[name]) > max(floor, _STUB_BYTES):
            view[f"{name}_truncated"] = True
            rest[name] = _ANY_OFFSET
            view[name] = head_of(text, max(room - size_of({**view, name: ""}), floor))
            rest[name] = len(view[name]) - len(_MORE)
    _cut_words(view, room)
    return view


def claimed(todos: Sequence[Todo]) -> list[dict[str, Any]]:
    """The todos of one claim, each whole within its share of the answer, with its lease id; what one leaves, others take."""
    shown: dict[int, dict[str, Any]] = {}
    room = MAX_RESULT_BYTES - _FRAME_BYTES
    by_size = sorted(range(len(todos)), key=lambda n: _weight(todos[n]))
    for done, n in enumerate(by_size):
        shown[n] = whole(todos[n], lease=True, room=room // (len(todos) - done))
        room -= size_of(shown[n]) + 1
    return [shown[n] for n in range(len(todos))]


def _weight(todo: Todo) -> int:
    """About how large a todo is."""
    notes = sum(len(entry.note or "") for entry in todo.history)
    return len(todo.payload_json or "") + len(todo.result_json or "") + len(todo.error or "") + notes


def text_of(todo: Todo, field: str) -> str:
    """The text of one of FIELDS: JSON for payload, result and history, else what it says; empty where there is nothing."""
    match field:
        case "payload":
            return todo.payload_json or ""
        case "result":
            return todo.result_json or ""
        case "history":
            return dump_json([wire.attempt_view(entry) for entry in todo.history])
        case "error":
            return todo.error or ""
        case "title":
            return todo.title
        case _:
            return todo.idempotency_key or ""


def part(text: str, offset: int, **about: Any) -> dict[str, Any]:
    """The part of a text that begins at `offset` (characters) and fits an answer; next_offset is null at its end.

    Raises Invalid for an offset beyond the text.
    """
    if offset > len(text):
        raise Invalid(f"offset is {offset}; expected 0 to {len(text)}, the length of this text", field="offset")
    room = MAX_RESULT_BYTES - 2 * _FRAME_BYTES - size_of(about)
    piece = text[offset : offset + room]
    while (size := size_of(piece)) > room:
        piece = piece[: max(min(len(piece) - 1, len(piece) * room // size), 1)]
    end = offset + len(piece)
    return {
        **about,
        "offset": offset,
        "text": piece,
        "next_offset": None if end == len(text) else end,
        "length": len(text),
    }


def lines_that_fit(todos: Sequence[Todo], room: int = MAX_RESULT_BYTES - _FRAME_BYTES) -> list[dict[str, Any]]:
    """The first of these todos as lines, as many as an answer holds; one at least."""
    lines: list[dict[str, Any]] = []
    for todo in todos:
        shown = line(todo)
        room -= size_of(shown) + 1
        if room < 0 and lines:
            break
        lines.append(shown)
    return lines


def error_result(error: PostroomError, hint: str | None = None) -> dict[str, Any]:
    """An error as a tool shows it: code, message, field, details, and what to do about it.

    One too long keeps the beginning of its message, its field and its hint, and says that it was cut.
    """
    shown = {**error.as_dict(), "hint": hint or error.advice}
    told = {"error": clean_json(shown)}
    if size_of(told) > MAX_RESULT_BYTES:
        kept: dict[str, Any] = {
            "code": error.code,
            "message": cut(error.message, 1000),
            "hint": cut(str(shown["hint"]), 1000),
        }
        if error.field is not None:
            kept["field"] = cut(error.field, _SHORT_BYTES)
        told = {"error": {**kept, "cut": True}}
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
        view["rest"]["history"] = 0


def _cut_words(view: dict[str, Any], room: int) -> None:
    """The last resort for a todo whose very words are long: they are cut, and named."""
    for name in ("error", "idempotency_key", "title"):
        if size_of(view) <= room:
            return
        if view[name] is not None and size_of(view[name]) > _STUB_BYTES:
            view[name] = head_of(view[name], _STUB_BYTES)
            view["cut"] = [*view.get("cut", ()), name]
            view["rest"][name] = len(view[name]) - len(_MORE)
