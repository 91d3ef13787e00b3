"""Codex: `config.toml` in its home, or in a project's `.codex`."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from postroom.doors.cli.clients.entry import NAME, Client, Via, Wanted
from postroom.doors.cli.clients.toml_text import NotToml, TableText

SERVERS: Final = "mcp_servers"
AT: Final = (SERVERS, NAME)
MARK: Final = "\ufeff"
"""What some editors begin a file with; Codex passes over it."""

_PLACE: Final = re.compile(r"(.*) \(at (line \d+, column \d+|end of document)\)", re.DOTALL)
_STDIO: Final = ("command", "args", "env", "env_vars", "cwd")
_HTTP: Final = (
    "url",
    "bearer_token_env_var",
    "http_headers",
    "env_http_headers",
    "http_headers_helper",
)


class Codex(Client):
    """Codex refuses a token in clear, and takes the name of a variable that holds it."""

    name = "codex"
    title = "Codex"
    executable = "codex"
    at = f"{SERVERS}.{NAME}"

    def places(self, project: Path | None) -> Sequence[Path]:
        if project is not None:
            return [project / ".codex" / "config.toml"]
        folder = os.environ.get("CODEX_HOME")
        return [(Path(folder).expanduser() if folder else Path.home() / ".codex") / "config.toml"]

    def folders(self, project: Path | None) -> Sequence[Path]:
        return () if project is None else [project / ".codex"]

    def entry(self, text: str) -> Mapping[str, Any] | None:
        servers = _read(text).get(SERVERS)
        if servers is None:
            return None
        entry = _table(text, servers, SERVERS).get(NAME)
        return None if entry is None else _table(text, entry, self.at)

    def describe(self, wanted: Wanted, text: str) -> dict[str, Any]:
        if wanted.via is Via.STDIO:
            return {"command": wanted.program, "args": self.arguments(wanted, text)}
        return {"url": wanted.endpoint, "bearer_token_env_var": wanted.variable}

    def put(self, text: str, entry: Mapping[str, Any]) -> str:
        there = self.entry(text)
        wanted = _read(text)
        gone = _HTTP if "command" in entry else _STDIO
        merged = {key: value for key, value in (there or {}).items() if key not in gone} | dict(entry)
        if there == merged:
            return text
        wanted.setdefault(SERVERS, {})[NAME] = merged
        mark, bare = _unmarked(text)
        if there is None:
            # A table at the end leaves every byte before it as it was; it is no longer possible after an inline table.
            added = mark + _appended(bare, merged)
            if _is(added, wanted):
                return added
        changed = {key: value for key, value in entry.items() if there is None or there.get(key) != value}
        return _verified(text, mark + TableText(bare, AT).put(changed, gone), wanted)

    def take(self, text: str) -> str:
        if self.entry(text) is None:
            return text
        wanted = _read(text)
        del wanted[SERVERS][NAME]
        mark, bare = _unmarked(text)
        cut = TableText(bare, AT).take()
        # What a file says of no server at all is the same as saying nothing.
        if not wanted[SERVERS]:
            del wanted[SERVERS]
            if not _is(cut, wanted):
                cut = TableText(cut, AT).without_header()
        return _verified(text, mark + cut, wanted)

    def command(self, entry: Mapping[str, Any]) -> object:
        if "command" not in entry:
            return None
        args = entry.get("args", [])
        return [entry["command"], *args] if isinstance(args, list) else [entry["command"]]

    def after(self, wanted: Wanted) -> list[str]:
        said = []
        if wanted.via is Via.HTTP:
            said.append(f"where Codex is started: {wanted.export}")
        if wanted.project is not None:
            said.append(
                "Codex reads a project's settings once the project is trusted: it asks when it is started there"
            )
        return [*said, "Codex reads this when it starts: start it anew, and see `codex mcp list`"]


def _read(text: str) -> dict[str, Any]:
    try:
        return _parsed(text)
    except tomllib.TOMLDecodeError as error:
        found = _PLACE.fullmatch(str(error))
        place, why = (found[2], found[1]) if found else ("somewhere", str(error))
        raise NotToml(f"{place}: expected TOML: {why}") from None
    except RecursionError:
        raise NotToml("somewhere: expected fewer levels") from None


def _table(text: str, value: object, key: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    last = key.rpartition(".")[2]
    line = next((number for number, one in enumerate(text.split("\n"), 1) if last in one), 1)
    raise NotToml(f"line {line}: expected {key} to be a table")


def _appended(text: str, entry: Mapping[str, Any]) -> str:
    import tomlkit

    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text else newline if text.endswith("\n") else newline * 2
    return text + gap + tomlkit.dumps({SERVERS: {NAME: dict(entry)}}).replace("\n", newline)


def _verified(text: str, edited: str, wanted: Mapping[str, Any]) -> str:
    """The edited text, when it says what is wanted and has every comment that is not the entry's. Raises NotToml."""
    before = TableText(_unmarked(text)[1], AT)
    if not _is(edited, wanted) or TableText(_unmarked(edited)[1], AT).comments() != before.comments():
        raise NotToml(
            f"line {before.line()}: expected {SERVERS}.{NAME} as a table that can be edited in place; edit it by hand"
        )
    return edited


def _unmarked(text: str) -> tuple[str, str]:
    return (MARK, text[1:]) if text.startswith(MARK) else ("", text)


def _parsed(text: str) -> dict[str, Any]:
    # A float as it is written: nan is equal to nothing, and 1.0 is to stay 1.0.
    return tomllib.loads(_unmarked(text)[1], parse_float=lambda word: ("float", word))


def _is(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return _parsed(text) == wanted
    except (tomllib.TOMLDecodeError, RecursionError):
        return False
