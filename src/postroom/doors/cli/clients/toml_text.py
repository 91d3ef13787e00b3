"""One table of a TOML text edited in place: only its own lines change, whichever way it is written."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[str, ...]

_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_TOKEN: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?!")|\'\'\'.*?\'\'\'(?!\')|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}\n]', re.DOTALL
)
_PART: Final = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|[A-Za-z0-9_-]+')
_KEY: Final = re.compile(rf"[ \t\[]*((?:{_PART.pattern})(?:[ \t]*\.[ \t]*(?:{_PART.pattern}))*)")
_HEAD: Final = re.compile(rf"{_KEY.pattern}[ \t]*=[ \t]*")


class NotToml(ValueError):
    """The text is no TOML, or not what it is expected to be; the message begins with the place."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A table's header, or a key with its value: the lines from `first` to before `end`, and the whole way to it."""

    first: int
    end: int
    section: Path
    path: Path
    header: bool


class TableText:
    """A text that is valid TOML, and the lines in it of the table at this path."""

    def __init__(self, text: str, at: Path) -> None:
        self.text = text
        self._at = at
        self._lines = _LINE.findall(text)
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._statements = list(_statements(text, self._lines))

    def put(self, entry: Mapping[str, Any], gone: Collection[str]) -> str:
        """The text whose table has these values for these keys, none for those that are gone. Raises NotToml."""
        if (inline := self._inline()) is not None:
            return self._replaced(inline, _set_in(self._chunk(inline), self._way(inline), entry, gone))
        deep = len(self._at)
        leaves = [one for one in self._leaves() if len(one.section) <= deep]
        main = [one for one in self._statements if one.header and one.path == self._at]
        if not leaves and not main:
            raise self._by_hand()
        lines: list[str] = list(self._lines)
        left = dict(entry)
        for one in leaves:
            key = one.path[deep]
            if key not in gone and key not in entry:
                continue
            if key in left and len(one.path) == deep + 1:
                lines[one.first] = self._renewed(one, left.pop(key))
            else:
                lines[one.first] = ""
            lines[one.first + 1 : one.end] = [""] * (one.end - one.first - 1)
        for one, end in self._blocks():
            if len(one.path) > deep and (one.path[deep] in gone or one.path[deep] in entry):
                lines[one.first : end] = [""] * (end - one.first)
        last = leaves[-1] if leaves else main[-1]
        start = re.match(r"[ \t]*", self._lines[last.first])
        indent = start[0] if start is not None and leaves else ""
        within = "".join(f"{name}." for name in self._at[len(last.section) :]) if leaves else ""
        added = [f"{indent}{within}{key} = {_shown(value)}{self._newline}" for key, value in left.items()]
        if added and self._lines[last.end - 1][-1:] != "\n":  # the text's last line has no end
            lines[last.end - 1] += self._newline if lines[last.end - 1] else ""
        lines[last.end : last.end] = added
        return "".join(lines)

    def take(self) -> str:
        """The text without the table; comments after its last key are whoever's comes next. Raises NotToml."""
        inline = self._inline()
        if inline is not None and inline.path != self._at:
            return self._replaced(inline, _taken_from(self._chunk(inline), self._way(inline)))
        lines = list(self._lines)
        for first, end in reversed(self._own()):
            del lines[first:end]
            # The blank line that stood before it goes along, where another follows or nothing does.
            if first and not lines[first - 1].strip() and (first == len(lines) or not lines[first].strip()):
                del lines[first - 1]
        return "".join(lines)

    def without_header(self) -> str:
        """The text without the header of the table around it, whose comment stays."""
        lines = list(self._lines)
        for one in self._statements:
            if one.header and one.path == self._at[:-1]:
                lines[one.first] = _comment(lines[one.first]).lstrip()
        return "".join(lines)

    def comments(self) -> list[str]:
        """The comments that are not in the table's own lines, in order."""
        lines = list(self._lines)
        for first, end in self._own():
            lines[first:end] = ["\n"] * (end - first)
        return [found[0] for found in _TOKEN.finditer("".join(lines)) if found[0][0] == "#"]

    def line(self) -> int:
        """The number of the first line that is about the table, or what is around it; 1 for none."""
        about = (one.first for one in self._statements if one.path[:1] == self._at[:1])
        return next(about, 0) + 1

    def _by_hand(self) -> NotToml:
        name = ".".join(self._at)
        return NotToml(f"line {self.line()}: expected {name} to be a table with a header; write it in by hand")

    def _leaves(self) -> list[Statement]:
        deep = len(self._at)
        return [one for one in self._statements if not one.header and one.path[:deep] == self._at]

    def _inline(self) -> Statement | None:
        """The statement whose value the table is, or is in."""
        found = (one for one in self._statements if not one.header and one.path == self._at[: len(one.path)])
        return next(found, None)

    def _way(self, inline: Statement) -> Path:
        return inline.path[len(inline.section) :] + self._at[len(inline.path) :]

    def _chunk(self, one: Statement) -> str:
        return "".join(self._lines[one.first : one.end])

    def _replaced(self, one: Statement, text: str | None) -> str:
        if text is None:
            raise self._by_hand()
        return "".join([*self._lines[: one.first], text, *self._lines[one.end :]])

    def _renewed(self, one: Statement, value: object) -> str:
        chunk = self._chunk(one)
        head = _HEAD.match(chunk)
        assert head is not None
        return f"{head[0]}{_shown(value)}{_comment(chunk) or chunk[len(chunk.rstrip()) :]}"

    def _blocks(self) -> Iterator[tuple[Statement, int]]:
        """Each header of the table and of those in it, and where the last key under it ends."""
        for number, one in enumerate(self._statements):
            if not one.header or one.path[: len(self._at)] != self._at:
                continue
            end = one.end
            for later in self._statements[number + 1 :]:
                if later.header:
                    break
                end = later.end
            yield one, end

    def _own(self) -> list[tuple[int, int]]:
        deep = len(self._at)
        alone = [(one.first, one.end) for one in self._leaves() if one.section[:deep] != self._at]
        return sorted([*alone, *((one.first, end) for one, end in self._blocks())])


def _statements(text: str, lines: Sequence[str]) -> Iterator[Statement]:
    begins = [True] * (len(lines) + 1)
    depth = number = 0
    for found in _TOKEN.finditer(text):
        match found[0]:
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
            case "\n":
                number += 1
                begins[number] = depth == 0
            case token:
                for _ in range(token.count("\n")):
                    number += 1
                    begins[number] = False
    section: Path = ()
    number = 0
    while number < len(lines):
        first, number = number, number + 1
        while number < len(lines) and not begins[number]:
            number += 1
        key = _KEY.match(lines[first])
        if key is None:  # a blank line, or a comment
            continue
        path = tuple(map(_word, _PART.findall(key[1])))
        header = "[" in lines[first][: key.start(1)]
        if header:
            section = path
        yield Statement(first, number, section, path if header else section + path, header)


def _word(part: str) -> str:
    return str(tomllib.loads(f"key = {part}")["key"]) if part[0] in "\"'" else part


def _comment(chunk: str) -> str:
    """The comment after a statement, with the space before it and the line's end; "" for none."""
    depth = 0
    for found in _TOKEN.finditer(chunk):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if found[0][0] == "#" and depth == 0:
            return chunk[len(chunk[: found.start()].rstrip()) :]
    return ""


def _shown(value: object) -> str:
    import tomlkit

    return tomlkit.item(value).as_string()


def _set_in(chunk: str, way: Path, entry: Mapping[str, Any], gone: Collection[str]) -> str | None:
    import tomlkit

    try:
        document = tomlkit.parse(chunk)
        table: Any = document
        for key in way[:-1]:
            table = table[key]
        table = table.setdefault(way[-1], tomlkit.inline_table())
        for key in [key for key in table if key in gone]:
            del table[key]
        for key, value in entry.items():
            if table.get(key) != value:
                table[key] = value
        return tomlkit.dumps(document)
    except Exception:  # the library has more of them than its own, and none may get through
        return None


def _taken_from(chunk: str, way: Path) -> str | None:
    import tomlkit

    try:
        document = tomlkit.parse(chunk)
        table: Any = document
        for key in way[:-1]:
            table = table[key]
        del table[way[-1]]
        return tomlkit.dumps(document) if table else _comment(chunk).lstrip()
    except Exception:  # as above
        return None
