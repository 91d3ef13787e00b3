"""Codex: `config.toml` in its home, or in a project's `.codex`."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final

from postroom.doors.cli.clients.entry import NAME, Client, Via, Wanted

SERVERS: Final = "mcp_servers"
_HEADER: Final = re.compile(r"[ \t]*\[")
_OURS: Final = re.compile(
    rf"""[ \t]*\[[ \t]*["']?{SERVERS}["']?[ \t]*\.[ \t]*["']?{NAME}["']?[ \t]*[\].]""",
)
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
        if there is None:
            # A table at the end leaves every byte before it as it was; it is no longer possible after an inline table.
            added = _appended(text, merged)
            if _is(added, wanted):
                return added
        return _edited(text, wanted, lambda servers: _set(servers, merged))

    def take(self, text: str) -> str:
        if self.entry(text) is None:
            return text
        wanted = _read(text)
        del wanted[SERVERS][NAME]
        # What a file says of no server at all is the same as saying nothing.
        if not wanted[SERVERS]:
            del wanted[SERVERS]
        cut = _without_sections(text)
        return cut if _is(cut, wanted) else _edited(text, wanted, lambda servers: servers.pop(NAME))

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


class NotToml(ValueError):
    """The text is no TOML, or not what it is expected to be; the message begins with the place."""


def _read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
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


def _without_sections(text: str) -> str:
    """The text without the tables that the entry is; comments after their last key are whoever's comes next."""
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    number = 0
    while number < len(lines):
        if not _OURS.match(lines[number]):
            kept.append(lines[number])
            number += 1
            continue
        end = number + 1
        while end < len(lines) and not _HEADER.match(lines[end]):
            end += 1
        rest = end
        while rest > number + 1 and lines[rest - 1].strip()[:1] in {"", "#"}:
            rest -= 1
        if kept and not kept[-1].strip() and (rest == len(lines) or not lines[rest].strip()):
            kept.pop()
        number = rest
    return "".join(kept)


def _edited(text: str, wanted: Mapping[str, Any], edit: Callable[[MutableMapping[str, Any]], object]) -> str:
    """The text after an edit of the servers' table, comments and order kept. Raises NotToml when it says another thing."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        edit(document[SERVERS])
        if not document[SERVERS]:
            del document[SERVERS]
        edited = tomlkit.dumps(document)
    except (TOMLKitError, KeyError, TypeError, AttributeError) as error:
        raise NotToml(f"{SERVERS}: expected tables that can be edited in place, write it in by hand: {error}") from None
    if not _is(edited, wanted):
        raise NotToml(f"{SERVERS}: expected tables that can be edited in place, write it in by hand")
    return edited


def _set(servers: MutableMapping[str, Any], entry: Mapping[str, Any]) -> None:
    there = servers.setdefault(NAME, {})
    for key in [key for key in there if key not in entry]:
        del there[key]
    for key, value in entry.items():
        if there.get(key) != value:
            there[key] = value


def _is(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False
