"""Named SQL statements: one text for both engines, with few marks that each engine's dialect fills in.

A `.sql` file holds statements under headers `-- name: NAME [DIALECT] [slow]` and texts to include under
`-- fragment: NAME [DIALECT]`. Marks: `{now}`, `{lock}`, `{least}`, `{greatest}`, `{among:PARAM}` (a list parameter),
`{FRAGMENT}` and `{FRAGMENT:ARG}` (its `$1`). A line that begins with `[PARAM]` stands only when that parameter is given.
`slow` statements are kept off the event loop by an engine that runs statements in its own process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files


class Dialect(StrEnum):
    """The two engines' kinds of SQL."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


_HEADER = re.compile(r"-- (name|fragment): (\w+)(?: \[(\w+)\])?( slow)?\s*$")
_MARK = re.compile(r"\{(\w+)(?::([^}]*))?\}")
_PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")
_OPTIONAL = re.compile(r"^\s*\[(\w+)\] ?(.*)$")
_LISTS = re.compile(r"json_each\(:(\w+)\)|json_to_recordset\(cast\(:(\w+) as json\)\)")
_STEP_END = re.compile(r";\s*$", re.MULTILINE)

_BUILT_IN = {
    Dialect.SQLITE: {
        "now": ":now",
        "lock": "",
        "least": "min",
        "greatest": "max",
        "among": "in (select value from json_each(:$1))",
    },
    Dialect.POSTGRES: {
        "now": "(cast(extract(epoch from statement_timestamp()) * 1000 as bigint) + cast(:skew as bigint))",
        "lock": "for update skip locked",
        "least": "least",
        "greatest": "greatest",
        "among": "= any(cast(:$1 as text[]))",
    },
}


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement of one dialect, its marks filled; `steps` run in order and the last one's rows count."""

    name: str
    steps: tuple[str, ...]
    slow: bool
    lists: tuple[str, ...] = ()
    """The parameters that are given as JSON text: lists, and rows to be unfolded by the database."""
    params: tuple[str, ...] = ()
    """The parameters in the order of their numbers, where the driver wants numbers ($1)."""


class Statements:
    """All statements of one dialect, by name."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._sources: dict[str, tuple[str, bool]] = {}
        fragments = dict(_BUILT_IN[dialect])
        for kind, name, only, slow, body in _blocks():
            if only is not None and only != dialect:
                continue
            if kind == "fragment":
                fragments[name] = body.strip()
            elif name in self._sources:
                raise ValueError(f"statement {name} is there twice for {dialect}")
            else:
                self._sources[name] = (body, slow)
        self._fragments = fragments
        self._rendered: dict[tuple[str, frozenset[str]], Statement] = {}
        self._optional = {name: frozenset(_optional_names(body)) for name, (body, _) in self._sources.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._sources))

    def optional(self, name: str) -> frozenset[str]:
        """The parameters that switch lines of this statement on."""
        return self._optional[name]

    def get(self, name: str, given: frozenset[str] = frozenset()) -> Statement:
        """The statement with the lines of the given optional parameters."""
        key = (name, given)
        found = self._rendered.get(key)
        if found is None:
            found = self._rendered[key] = self._render(name, given)
        return found

    def _render(self, name: str, given: frozenset[str]) -> Statement:
        body, slow = self._sources[name]
        lines: list[str] = []
        for line in body.splitlines():
            optional = _OPTIONAL.match(line)
            if optional is None:
                lines.append(line)
            elif optional.group(1) in given:
                lines.append(optional.group(2))
        text = "\n".join(lines).strip()
        while _MARK.search(text):
            text = _MARK.sub(lambda mark: self._fill(name, mark), text)
        steps = tuple(part.strip() for part in _STEP_END.split(text) if part.strip())
        lists = tuple(sorted({first or second for first, second in _LISTS.findall(text)}))
        if self.dialect is Dialect.POSTGRES:
            return self._numbered(name, steps, slow, lists)
        return Statement(name, steps, slow, lists)

    def _numbered(self, name: str, steps: tuple[str, ...], slow: bool, lists: tuple[str, ...]) -> Statement:
        if len(steps) != 1:
            raise ValueError(f"statement {name} has {len(steps)} steps; on PostgreSQL one is atomic by itself")
        params = tuple(dict.fromkeys(_PARAM.findall(steps[0])))
        text = _PARAM.sub(lambda mark: f"${params.index(mark.group(1)) + 1}", steps[0])
        return Statement(name, (text,), slow, lists, params)

    def _fill(self, name: str, mark: re.Match[str]) -> str:
        fragment = self._fragments.get(mark.group(1))
        if fragment is None:
            raise ValueError(f"statement {name} has an unknown mark {mark.group()}")
        return fragment.replace("$1", mark.group(2) or "")


def _optional_names(body: str) -> Iterator[str]:
    for line in body.splitlines():
        found = _OPTIONAL.match(line)
        if found:
            yield found.group(1)


@lru_cache(maxsize=1)
def _blocks() -> tuple[tuple[str, str, str | None, bool, str], ...]:
    blocks: list[tuple[str, str, str | None, bool, str]] = []
    folder = files("postroom.store") / "sql"
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        if not file.name.endswith(".sql"):
            continue
        head: re.Match[str] | None = None
        lines: list[str] = []
        for line in file.read_text("utf-8").splitlines():
            found = _HEADER.match(line)
            if found is None:
                if not line.lstrip().startswith("--"):
                    lines.append(line)
                continue
            if head is not None:
                blocks.append((head.group(1), head.group(2), head.group(3), bool(head.group(4)), "\n".join(lines)))
            head, lines = found, []
        if head is not None:
            blocks.append((head.group(1), head.group(2), head.group(3), bool(head.group(4)), "\n".join(lines)))
    return tuple(blocks)
