"""Skimming: a large JSON text of very many small values, read in a memory that does not grow with their number.

A parsed value may take over twenty times the memory of its text: `{},` is three bytes, an empty dict beside its place
in a list seventy-two. What a sender tells of an event stands near the top and at the beginning of lists, so that much
is read; the rest is held against the grammar and passed over.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Final

from postroom.errors import Invalid
from postroom.text import MAX_DEPTH, MAX_INTEGER_DIGITS

FROM_BYTES: Final = 256 * 1024
"""Smaller bodies are parsed whole, whatever they hold."""
MAX_ITEMS: Final = 1000
"""How many values of one list are read."""
_LEVELS: Final = 4
_BYTES_A_VALUE: Final = 16
_BYTES_A_QUOTE: Final = 6
_BYTES_A_READ_VALUE: Final = 32

_WS = r"[ \t\n\r]*+"
_STR = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
# Numbers that are finite by their length alone; others are looked at one by one.
_NUM = r"-?(?:0|[1-9][0-9]{0,199}+)(?![0-9])(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]{1,2}+(?![0-9]))?+"
_BLANK = re.compile(_WS)
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*+))(\.[0-9]++)?+([eE][+-]?[0-9]++)?+")
_WORDS: Final = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}


@lru_cache(maxsize=1)
def _runs() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Runs of list items and of object members, each with its comma, that nest no deeper than a few levels."""
    simple = f"(?:{_STR}|{_NUM}|true|false|null)"
    for _ in range(_LEVELS):
        items = rf"\[{_WS}(?:{simple}{_WS}(?:,{_WS}(?!\])|(?=\])))*+\]"
        members = rf"\{{{_WS}(?:{_STR}{_WS}:{_WS}{simple}{_WS}(?:,{_WS}(?!\}})|(?=\}})))*+\}}"
        simple = rf"(?:{_STR}|{_NUM}|true|false|null|{items}|{members})"
    run = f"{simple}{_WS},{_WS}"
    return re.compile(f"(?:{run})*+"), re.compile(f"(?:{_STR}{_WS}:{_WS}{run})*+")


def is_dense(raw: bytes) -> bool:
    """Whether a large JSON text holds so many values that all of them would take many times its size."""
    if len(raw) < FROM_BYTES:
        return False
    values = raw.count(b",") + raw.count(b"{") + raw.count(b"[")
    return values * _BYTES_A_VALUE > len(raw) or raw.count(b'"') * _BYTES_A_QUOTE > len(raw)


def skim_json(raw: bytes, field: str = "body") -> object:
    """The value of a strict JSON text without the later items of its long lists, depth 64 at most. Raises Invalid.

    Where even so very many values are left, those that come last are left out too. What is left out is sound JSON, but
    for keys that stand twice in one object.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeError:
        raise Invalid(f"{field} is not UTF-8 text", field=field) from None
    skimmer = _Skimmer(text, field)
    value, at = skimmer.value(skimmer.blank(0), 0)
    at = skimmer.blank(at)
    if at != len(text):
        raise skimmer.wrong(at)
    return value


class _Skimmer:
    """Walks a text; each step takes a position and gives the one after what it took."""

    def __init__(self, text: str, field: str) -> None:
        self._text = text
        self._field = field
        self._left = len(text) // _BYTES_A_READ_VALUE
        self._keys: dict[str, str] = {}

    def wrong(self, at: int) -> Invalid:
        return Invalid(f"{self._field} is not valid JSON: unexpected text at char {at}", field=self._field)

    def blank(self, at: int) -> int:
        """Over blanks."""
        found = _BLANK.match(self._text, at)
        return at if found is None else found.end()

    def value(self, at: int, depth: int) -> tuple[object, int]:
        """A value that is read."""
        self._left -= 1
        match self._text[at : at + 1]:
            case "{":
                return self._object(at + 1, self._deeper(depth))
            case "[":
                return self._list(at + 1, self._deeper(depth))
            case '"':
                return self._string(at)
            case _:
                return self._plain(at)

    def _deeper(self, depth: int) -> int:
        if depth == MAX_DEPTH:
            raise Invalid(f"{self._field} nests deeper than {MAX_DEPTH} levels", field=self._field)
        return depth + 1

    def _string(self, at: int) -> tuple[str, int]:
        try:
            found: tuple[str, int] = scanstring(self._text, at + 1, True)
        except ValueError as error:
            raise Invalid(f"{self._field} is not valid JSON: {error}", field=self._field) from None
        return found

    def _plain(self, at: int) -> tuple[object, int]:
        """A number or a literal."""
        found = _NUMBER.match(self._text, at)
        if found is None:
            word, value = _WORDS.get(self._text[at : at + 1], ("\0", None))
            if not self._text.startswith(word, at):
                raise self.wrong(at)
            return value, at + len(word)
        whole, fraction, exponent = found.groups()
        if fraction is None and exponent is None:
            if len(whole) > MAX_INTEGER_DIGITS:
                raise Invalid(f"{self._field} holds an integer of {len(whole)} digits", field=self._field)
            return int(whole), found.end()
        number = float(found.group())
        if not math.isfinite(number):
            shown = found.group()[:32]
            raise Invalid(f"{self._field} holds {shown}, which is no finite number", field=self._field)
        return number, found.end()

    def _list(self, at: int, depth: int) -> tuple[list[object], int]:
        items: list[object] = []
        at = self.blank(at)
        if self._text.startswith("]", at):
            return items, at + 1
        while True:
            if len(items) == MAX_ITEMS or self._left <= 0:
                return items, self._pass_list(at, depth)
            item, at = self.value(at, depth)
            items.append(item)
            at, more = self._next(at, "]")
            if not more:
                return items, at

    def _object(self, at: int, depth: int) -> tuple[dict[str, object], int]:
        members: dict[str, object] = {}
        at = self.blank(at)
        if self._text.startswith("}", at):
            return members, at + 1
        while True:
            if self._left <= 0:
                return members, self._pass_object(at, depth)
            key, at = self._key(at)
            key = self._keys.setdefault(key, key)
            if key in members:
                raise Invalid(f"{self._field} has the key {key[:64]!r} twice", field=self._field)
            members[key], at = self.value(at, depth)
            at, more = self._next(at, "}")
            if not more:
                return members, at

    def _key(self, at: int) -> tuple[str, int]:
        if not self._text.startswith('"', at):
            raise self.wrong(at)
        key, at = self._string(at)
        at = self.blank(at)
        if not self._text.startswith(":", at):
            raise self.wrong(at)
        return key, self.blank(at + 1)

    def _next(self, at: int, closing: str) -> tuple[int, bool]:
        """Past a comma and True, or past the closing bracket and False."""
        at = self.blank(at)
        if self._text.startswith(",", at):
            return self.blank(at + 1), True
        if self._text.startswith(closing, at):
            return at + 1, False
        raise self.wrong(at)

    # What is passed over. Runs of simple values are one step; only what nests deeper is gone into.

    def _pass_value(self, at: int, depth: int) -> int:
        match self._text[at : at + 1]:
            case "{":
                deeper, inner = self._deeper(depth), self.blank(at + 1)
                return inner + 1 if self._text.startswith("}", inner) else self._pass_object(inner, deeper)
            case "[":
                deeper, inner = self._deeper(depth), self.blank(at + 1)
                return inner + 1 if self._text.startswith("]", inner) else self._pass_list(inner, deeper)
            case '"':
                return self._string(at)[1]
            case _:
                return self._plain(at)[1]

    def _pass_list(self, at: int, depth: int) -> int:
        """From before an item to after the list's end."""
        more = True
        while more:
            at = self._pass_run(_runs()[0], at, depth)
            at, more = self._next(self._pass_value(at, depth), "]")
        return at

    def _pass_object(self, at: int, depth: int) -> int:
        """From before a member to after the object's end."""
        more = True
        while more:
            _, at = self._key(self._pass_run(_runs()[1], at, depth))
            at, more = self._next(self._pass_value(at, depth), "}")
        return at

    def _pass_run(self, simple: re.Pattern[str], at: int, depth: int) -> int:
        if depth + _LEVELS > MAX_DEPTH:
            return at
        found = simple.match(self._text, at)
        return at if found is None else found.end()
