"""Text that a database can hold: strict JSON on the way in, cleaned and cut text for what must never be refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NoReturn

from postroom.errors import Invalid, TooLarge

MAX_DEPTH = 64
MAX_INTEGER_DIGITS = 400
_PART_BYTES = 64 * 1024

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# Backslashes in pairs are no escape of what follows; two surrogates that belong together are one good character.
_ESCAPED = re.compile(
    r"(?<!\\)((?:\\\\)*+)"
    r"(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2}))"
)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_DOUBTFUL = re.compile("[\ud800-\udfff]|[0-9]{400}")
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean(value: str) -> str:
    """The text with NUL and lone surrogates replaced by U+FFFD, so that any database takes it."""
    if value.isascii() and "\x00" not in value:
        return value
    return _UNSTORABLE.sub("�", value)


def many(number: int, noun: str) -> str:
    """So many of a thing whose plural ends in s: 1 attempt, 2 attempts."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cut(value: str, limit_bytes: int) -> str:
    """The cleaned text, cut at a character to at most `limit_bytes` of UTF-8 and marked when it was."""
    if len(value) <= limit_bytes and value.isascii() and "\x00" not in value:
        return value
    raw = clean(value).encode()
    if len(raw) <= limit_bytes:
        return raw.decode()
    return raw[: max(limit_bytes - 3, 0)].decode("utf-8", "ignore") + ("…" if limit_bytes >= 3 else "")


def printable(value: str) -> str:
    """The text without control and direction characters, safe to show in a terminal."""
    if value.isprintable():
        return value
    return _CONTROL.sub("�", clean(value).replace("\n", " ").replace("\t", " "))


def clean_escapes(json_text: str) -> str:
    """A JSON text whose escapes of NUL and of lone surrogates are those of U+FFFD: its value is clean."""
    return _ESCAPED.sub(lambda found: found.group() if found.group(2) else found.group(1) + "\\ufffd", json_text)


def check_text(value: str, field: str) -> str:
    """The text itself when a database can hold it. Raises Invalid naming the field."""
    found = _UNSTORABLE.search(value)
    if found:
        what = "a NUL character" if found.group() == "\x00" else "a lone surrogate"
        raise Invalid(f"{field} holds {what} at position {found.start()}; expected plain Unicode text", field=field)
    return value


def too_deep(raw: bytes) -> bool:
    """Whether a JSON text nests deeper than 64, found on the bytes so that no parser has to recurse."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for brackets in _brackets(raw):
        for byte in brackets:
            if byte in b"[{":
                depth += 1
                if depth > MAX_DEPTH:
                    return True
            else:
                depth -= 1
    return False


def _brackets(raw: bytes) -> Iterator[bytes]:
    """The brackets of a JSON text that stand outside its strings, part by part."""
    at = in_string = 0
    while at < len(raw):
        end = at + _PART_BYTES
        if raw[end - 1 : end] == b"\\":
            # What is escaped goes with its backslash.
            end = len(raw) - len(raw[end:].lstrip(b"\\")) + 1
        part = raw[at:end]
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        # In what is left every quotation mark begins or ends a string.
        pieces = part.split(b'"')
        yield b"".join(pieces[in_string::2]).translate(None, _NO_BRACKETS)
        in_string = (in_string + len(pieces) - 1) % 2
        at = end


def parse_json(raw: bytes | str, field: str = "body") -> object:
    """The value of a strict JSON text: UTF-8, no duplicate keys, no NaN, depth 64 at most. Raises Invalid."""
    try:
        data = raw.encode() if isinstance(raw, str) else raw
        if too_deep(data):
            raise Invalid(f"{field} nests deeper than {MAX_DEPTH} levels", field=field)
        text = data.decode("utf-8")
    except UnicodeError:
        raise Invalid(f"{field} is not UTF-8 text", field=field) from None
    try:
        return _decoder(field).decode(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{field} is not valid JSON: {error}", field=field) from None


@lru_cache(maxsize=64)
def _decoder(field: str) -> json.JSONDecoder:
    """The strict decoder of a field, which names it in what it refuses."""

    def no_constant(name: str) -> NoReturn:
        raise Invalid(f"{field} holds {name}; expected finite numbers", field=field)

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(items)
        if len(made) != len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    raise Invalid(f"{field} has the key {key[:64]!r} twice", field=clean(key[:64]))
                seen.add(key)
        return made

    def integer(digits: str) -> int:
        if len(digits) > MAX_INTEGER_DIGITS:
            raise Invalid(f"{field} holds an integer of {len(digits)} digits", field=field)
        return int(digits)

    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise Invalid(f"{field} holds {digits[:32]}, which is no finite number", field=field)
        return value

    return json.JSONDecoder(parse_constant=no_constant, object_pairs_hook=pairs, parse_int=integer, parse_float=number)


def check_json(value: object, field: str) -> None:
    """Pass when a value can be stored as JSON anywhere: finite, clean, string keys, depth 64 at most. Raises Invalid."""
    stack: list[tuple[object, str, int]] = [(value, field, 0)]
    while stack:
        item, path, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise Invalid(f"{field} nests deeper than {MAX_DEPTH} levels", field=field)
        match item:
            case None | bool():
                continue
            case int():
                if item.bit_length() > MAX_INTEGER_DIGITS * 3:
                    raise Invalid(f"{path} is too large an integer", field=path)
            case str():
                check_text(item, path)
            case float():
                if not math.isfinite(item):
                    raise Invalid(f"{path} is {item}; expected a finite number", field=path)
            case dict():
                for key, inner in item.items():
                    if not isinstance(key, str):
                        raise Invalid(f"{path} has the key {key!r}; expected text", field=path)
                    check_text(key, path)
                    stack.append((inner, f"{path}.{key[:64]}", depth + 1))
            case list() | tuple():
                stack.extend((inner, f"{path}[{index}]", depth + 1) for index, inner in enumerate(item))
            case _:
                raise Invalid(f"{path} is a {type(item).__name__}; expected a JSON value", field=path)


def dump_json(value: object) -> str:
    """The compact JSON text of a checked value."""
    return _ENCODE(value)


def _text_keys(value: object) -> bool:
    """Whether every key is text: the encoder would make text of other keys without a word."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            for key, inner in item.items():
                if type(key) is not str:
                    return False
                if isinstance(inner, dict | list | tuple):
                    stack.append(inner)
        elif isinstance(item, list | tuple):
            stack += [inner for inner in item if isinstance(inner, dict | list | tuple)]
    return True


def _plain_text(value: object) -> str | None:
    """The JSON text of a value that is plainly in order, or None when it must be looked at part by part.

    The encoder's one pass and a few searches cost a tenth of a walk, and nearly every value is in order.
    """
    try:
        text = _ENCODE(value)
    except (ValueError, TypeError, RecursionError):
        return None
    if (
        not _text_keys(value)
        or "\\u0000" in text
        or _DOUBTFUL.search(text)
        or text.count("[") + text.count("{") > MAX_DEPTH
    ):
        return None
    return text


def store_json(value: object, field: str, limit_bytes: int) -> str:
    """The JSON text to store of a value that is checked and within the size. Raises Invalid, TooLarge."""
    text = _plain_text(value)
    if text is None:
        check_json(value, field)
        text = dump_json(value)
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit_bytes:
        raise TooLarge(f"{field} is {size} bytes of JSON; the most is {limit_bytes}", field=field)
    return text


def clean_json(value: object) -> object:
    """A copy of a parsed JSON value that any database takes: bad characters replaced, numbers finite, depth cut at 64."""

    def walk(item: object, depth: int) -> object:
        if depth > MAX_DEPTH:
            return "…"
        match item:
            case str():
                return clean(item)
            case float() if not math.isfinite(item):
                return str(item)
            case dict():
                return {clean(str(key)): walk(inner, depth + 1) for key, inner in item.items()}
            case list() | tuple():
                return [walk(inner, depth + 1) for inner in item]
            case int() if item.bit_length() > MAX_INTEGER_DIGITS * 3:
                return f"an integer of {item.bit_length()} bits"
            case None | bool() | int() | float():
                return item
            case _:
                return clean(str(item))

    return walk(value, 0)


def result_json(value: object, limit_bytes: int) -> str:
    """The JSON text of a result: cleaned and, when too large, replaced by its cut text; never refused.

    Ending a todo must not fail because of what the ending says.
    """
    text = _plain_text(value)
    if text is None:
        text = dump_json(clean_json(value))
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit_bytes:
        return dump_json({"truncated": True, "bytes": size, "text": cut(text, limit_bytes // 8)})
    return text
