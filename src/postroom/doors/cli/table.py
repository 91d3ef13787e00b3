"""Printing: tables and fields for people, JSON for programs.

Whatever a stranger may have written, titles and payloads above all, goes through `printable` and is never markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TextIO
from unicodedata import combining, east_asian_width

from postroom.text import printable

GAP: Final = "  "
STYLES: Final[Mapping[str, str]] = {
    "pending": "cyan",
    "claimed": "yellow",
    "done": "green",
    "parked": "magenta",
    "dead": "bold red",
    "cancelled": "dim",
    "paused": "yellow",
    "held": "bold red",
    "unparsed": "red",
    "routed": "green",
    "ignored": "dim",
    "injected": "green",
    "awaiting_ack": "yellow",
    "acknowledged": "green",
    "failed": "bold red",
    "live": "green",
    "silent": "yellow",
    "ended": "dim",
}


def tell(answer: Mapping[str, Any], as_json: bool, show: Callable[[Mapping[str, Any]], None]) -> None:
    """Print an answer: as the wire's JSON, or as `show` shows it to people."""
    if as_json:
        print_json(answer)
    else:
        show(answer)


def print_json(value: object, file: TextIO | None = None) -> None:
    """One line of JSON in ASCII, so that no character reaches a terminal unescaped."""
    print(json.dumps(value, ensure_ascii=True), file=file or sys.stdout)


def note(text: str) -> None:
    """One line on stderr: remarks that are no part of what was asked for."""
    print(printable(text), file=sys.stderr)


def line(*words: object) -> None:
    """One line on stdout of the words that say something."""
    print(" ".join(cell(word) for word in words if word is not None and word != ""))


def cell(value: object) -> str:
    """A value in one line: `-` for none, yes and no, lists with commas, JSON for structures."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return printable(value)
        case list() | tuple() if all(isinstance(item, str) for item in value):
            return printable(", ".join(value)) or "-"
        case dict() | list() | tuple():
            return printable(json.dumps(value, ensure_ascii=False))
        case _:
            return str(value)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under their heads: drawn on a terminal, aligned text with whole values when piped."""
    cells = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _drawn(heads, cells)
        return
    upper = [head.upper() for head in heads]
    widths = [max(width(row[column]) for row in (upper, *cells)) for column in range(len(heads))]
    for row in (upper, *cells):
        print(GAP.join(text + " " * (wide - width(text)) for text, wide in zip(row, widths, strict=True)).rstrip())


def fields(pairs: Sequence[tuple[str, object]]) -> None:
    """Names and values, one a line; pairs without a value are left out."""
    shown = [(name, cell(value)) for name, value in pairs if value is not None]
    wide = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name:<{wide}}{GAP}{value}")


def block(name: str, value: object) -> None:
    """A JSON value under its name, indented over several lines; nothing for null."""
    if value is None:
        return
    print(f"{name}:")
    for text in json.dumps(value, ensure_ascii=False, indent=2).split("\n"):
        print(f"  {printable(text)}")


def printed(text: str) -> None:
    """A text of several lines, each of them indented and without what a terminal would act on."""
    for one in text.split("\n"):
        print(f"  {printable(one)}".rstrip())


def width(text: str) -> int:
    """How many columns a terminal gives the text."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def short_time(value: object) -> object:
    """A time of the wire without its milliseconds."""
    return value[:19] + "Z" if isinstance(value, str) and len(value) == 24 else value


def span(value: object) -> object:
    """A number of seconds in the largest unit that fits: 42s, 7m, 3h, 2d."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if value >= size:
            count = value / size
            return f"{count:.0f}{unit}" if count.is_integer() or count >= 10 else f"{count:.1f}{unit}"
    return f"{round(value, 1):g}s" if value >= 1 or value == 0 else f"{value:.1f}s"


def _drawn(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        # An id that is cut cannot be copied, and whole ids are all the verbs take.
        drawn.add_column(head.upper(), no_wrap=head == "id", overflow="fold")
    for row in cells:
        drawn.add_row(
            *(
                Text(text, style=STYLES.get(text, "") if head == "state" else "")
                for head, text in zip(heads, row, strict=True)
            )
        )
    Console().print(drawn)
