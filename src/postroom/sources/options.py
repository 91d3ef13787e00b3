"""Options: the keys of one source's table in the settings, each taken once, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

from postroom.errors import Misconfigured
from postroom.sources.scheme import DEFAULT_TOLERANCE_S, MAX_TOLERANCE_S

T = TypeVar("T", int, None)


class Options:
    """A table being read; `refuse_rest` then names whatever key nobody took.

    place: where in the source the table stands, in words and as a path, when it is one within the source's own.
    """

    def __init__(self, source: str, table: Mapping[str, object], place: tuple[str, str] | None = None) -> None:
        self.source = source
        self._words, self._path = ("", "") if place is None else (f"{place[0]}: ", f"{place[1]}.")
        self._table = table
        self._known: set[str] = set()

    def wrong(self, key: str, expected: str) -> Misconfigured:
        """The error for a key of this table."""
        field = f"source.{self.source}.{self._path}{key}"
        return Misconfigured(f'source "{self.source}": {self._words}{key}: {expected}', field=field)

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        self._known.add(key)
        return key in self._table

    def text(self, key: str, default: str | None = None) -> str | None:
        """A text that is not empty, or the default."""
        if not self.has(key):
            return default
        value = self._table[key]
        if not isinstance(value, str) or not value:
            raise self.wrong(key, f"expected a text that is not empty, got {value!r:.80}")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str | None:
        """One of a few words, or the default."""
        value = self.text(key, default)
        if value is not None and value not in choices:
            raise self.wrong(key, f"expected one of {', '.join(choices)}, got {value!r:.80}")
        return value

    def header(self, key: str, default: str | None = None) -> str | None:
        """The name of a header, in lower case, or the default."""
        value = self.text(key, default)
        if value is None:
            return None
        if not all(char.isascii() and (char.isalnum() or char in "!#$%&'*+-.^_`|~") for char in value):
            raise self.wrong(key, f"expected the name of a header such as X-Signature, got {value!r:.80}")
        return value.lower()

    def number(self, key: str, low: int, high: int, default: T) -> int | T:
        """A whole number within bounds, or the default."""
        if not self.has(key):
            return default
        value = self._table[key]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, f"expected a whole number from {low} to {high}, got {value!r:.80}")
        return value

    def tolerance(self) -> int:
        """`tolerance_s`: how far a signed time may lie from now, on either side."""
        return self.number("tolerance_s", 1, MAX_TOLERANCE_S, DEFAULT_TOLERANCE_S)

    def flag(self, key: str) -> bool:
        """true or false; absent is false."""
        if not self.has(key):
            return False
        value = self._table[key]
        if not isinstance(value, bool):
            raise self.wrong(key, f"expected true or false, got {value!r:.80}")
        return value

    def texts(self, key: str, *, shown: bool = True) -> tuple[str, ...]:
        """A text or a list of texts; absent is none. `shown` false keeps the value out of the error."""
        if not self.has(key):
            return ()
        value = self._table[key]
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not listed or not all(isinstance(entry, str) for entry in listed):
            got = f", got {value!r:.80}" if shown else ""
            raise self.wrong(key, f"expected a list of texts{got}")
        return tuple(listed)

    def refuse_rest(self) -> None:
        """Pass when every key of the table was asked for; raises Misconfigured with the nearest known key."""
        for key in self._table:
            if key not in self._known:
                near = get_close_matches(key, self._known, 1)
                known = ", ".join(sorted(self._known))
                raise self.wrong(key, f"unknown key{f'; did you mean {near[0]}?' if near else f'; expected {known}'}")
