"""A pane's screen as text: what stands there, and what of it is only a faint suggestion."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from postroom.carriers.terminal_text import squeeze

_SEQUENCE: Final = re.compile(
    r"\x1b\[([0-9;:]*)m|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b.|[\x0e\x0f]"
)
_ABOVE: Final = 6


@dataclass(frozen=True)
class Screen:
    """The rows a pane shows. bright: the same with what is faint blanked out. cursor: column and row. width: in columns."""

    rows: tuple[str, ...]
    bright: tuple[str, ...]
    cursor: tuple[int, int]
    width: int

    @cached_property
    def before_cursor(self) -> str:
        """What stands left of the cursor in its row, blanks included."""
        column, row = self.cursor
        return _columns(self.rows[row], column) if row < len(self.rows) else ""

    @cached_property
    def after_cursor(self) -> str:
        """What stands at the cursor and right of it, faint text left out."""
        column, row = self.cursor
        if row >= len(self.bright):
            return ""
        return self.bright[row][len(_columns(self.rows[row], column).rstrip()) :].strip()

    def bottom(self, rows: int) -> tuple[str, ...]:
        """The last so many rows that are not empty."""
        return tuple(row for row in self.rows if row.strip())[-rows:]

    def ends_before_cursor(self, tail: str) -> bool:
        """Whether a squeezed text is what was put out last before the cursor."""
        column, row = self.cursor
        # At the beginning of a row the text goes on only where the row above is full; else a line has ended.
        if column == 0 and (row == 0 or sum(map(_cells, self.rows[row - 1])) < self.width):
            return False
        above = "".join(self.rows[max(row - _ABOVE, 0) : row])
        return squeeze(above + self.before_cursor).endswith(tail)


def read_screen(lines: Sequence[bytes], cursor: tuple[int, int], width: int) -> Screen:
    """What `capture-pane -e` printed, as a screen: colours gone, faint text told apart."""
    rows: list[str] = []
    bright: list[str] = []
    faint = False
    for line in lines:
        text = line.decode("utf-8", "replace")
        plain: list[str] = []
        clear: list[str] = []
        place = 0
        for found in _SEQUENCE.finditer(text):
            part = text[place : found.start()]
            plain.append(part)
            clear.append(" " * len(part) if faint else part)
            place = found.end()
            if found[1] is not None:
                faint = _faint(found[1], faint)
        part = text[place:]
        plain.append(part)
        clear.append(" " * len(part) if faint else part)
        rows.append("".join(plain))
        bright.append("".join(clear))
    return Screen(tuple(rows), tuple(bright), cursor, width)


def _faint(parameters: str, faint: bool) -> bool:
    """Whether text is faint after this sequence: dim, or in the grey that hints are set in."""
    numbers = parameters.split(";")
    place = 0
    while place < len(numbers):
        number = numbers[place]
        if number in {"38", "48", "58"}:
            place += 3 if numbers[place + 1 : place + 2] == ["5"] else 5
            continue
        if number in {"2", "90"}:
            faint = True
        elif number in {"", "0", "22", "39"}:
            faint = False
        place += 1
    return faint


def _columns(row: str, columns: int) -> str:
    """The beginning of a row that fills so many columns; blank ones are filled up."""
    width = 0
    for place, character in enumerate(row):
        if width >= columns:
            return row[:place]
        width += _cells(character)
    return row + " " * (columns - width)


def _cells(character: str) -> int:
    """How many columns a character takes."""
    if unicodedata.combining(character) or character in "\u200d\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
