"""opencode: one of its JSON files, with comments, in a project or for its user; in either of the two shapes it has had."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from postroom.doors.cli.clients import jsonc
from postroom.doors.cli.clients.entry import NAME, Client, Via, Wanted
from postroom.errors import Misconfigured

VERSION_S: Final = 10.0
"""How long opencode may take to say its version."""

NEW: Final = '{\n  "$schema": "https://opencode.ai/config.json"\n}\n'
"""A file that says nothing yet."""

_STDIO: Final = ("command", "environment")
_HTTP: Final = ("url", "headers", "oauth")


class Shape(StrEnum):
    """Where the servers are: right under `mcp` (1.x), or under `mcp.servers` (2.x)."""

    V1 = "v1"
    V2 = "v2"

    @property
    def path(self) -> tuple[str, ...]:
        """The entry's place."""
        return ("mcp", NAME) if self is Shape.V1 else ("mcp", "servers", NAME)


class Opencode(Client):
    """opencode expands `{env:VARIABLE}` and `{file:PATH}` in what it reads."""

    name = "opencode"
    title = "opencode"
    executable = "opencode"
    at = "mcp.postroom"
    empty = Client.empty | {"".join(NEW.split())}

    def __init__(self) -> None:
        self._installed: Shape | None = None

    def places(self, project: Path | None) -> Sequence[Path]:
        if project is not None:
            return [project / "opencode.json", project / "opencode.jsonc"]
        folder = config_folder()
        return [folder / "opencode.json", folder / "config.json", folder / "opencode.jsonc"]

    def folders(self, project: Path | None) -> Sequence[Path]:
        if project is None:
            return [config_folder() / "plugin"]
        return [project / ".opencode" / "plugin", project / ".opencode"]

    def entry(self, text: str) -> Mapping[str, Any] | None:
        shape = shape_of(text)
        return None if shape is None else jsonc.object_at(text, shape.path)

    def describe(self, wanted: Wanted, text: str) -> dict[str, Any]:
        there = self.entry(text)
        shape = shape_of(text) or self._shape()
        entry: dict[str, Any]
        if wanted.via is Via.STDIO:
            entry = {"type": "local", "command": [wanted.program, *self.arguments(wanted, text)]}
        else:
            entry = {
                "type": "remote",
                "url": wanted.endpoint,
                # Left to itself it would ask the daemon for a login by browser.
                "oauth": False,
                "headers": {"Authorization": f"Bearer {_secret(wanted)}"},
            }
        if there is None and shape is Shape.V1:
            entry["enabled"] = True
        return entry

    def put(self, text: str, entry: Mapping[str, Any]) -> str:
        shape = shape_of(text) or (Shape.V1 if "enabled" in entry else self._shape())
        if jsonc.blank(text):
            text = NEW  # opencode would add its schema to a file without one
        return jsonc.merged(text, shape.path, entry, _HTTP if "command" in entry else _STDIO)

    def take(self, text: str) -> str:
        shape = shape_of(text)
        return text if shape is None else jsonc.drop(text, shape.path)

    def _shape(self) -> Shape:
        if self._installed is None:
            self._installed = installed_shape()
        return self._installed

    def command(self, entry: Mapping[str, Any]) -> object:
        return entry.get("command")

    def after(self, wanted: Wanted) -> list[str]:
        said = []
        if wanted.via is Via.HTTP and wanted.project is not None:
            said.append(f"where opencode is started: {wanted.export}")
        return [
            *said,
            "opencode reads its plugins and servers when it starts: start it anew, and see `opencode mcp list`",
        ]


def config_folder() -> Path:
    """opencode's own folder for its user; it keeps to the XDG folders on every platform."""
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "opencode"


def shape_of(text: str) -> Shape | None:
    """The shape that a text's servers have, None when it names none. Raises NotJson."""
    if jsonc.blank(text):
        return None
    servers = jsonc.find(text, ("mcp",))
    if servers is None:
        return None
    if not isinstance(servers, dict):
        jsonc.find(text, ("mcp", NAME))  # says what is wrong, and where
    if NAME in servers:
        return Shape.V1
    inner = servers.get("servers")
    if inner is not None and not (isinstance(inner, dict) and isinstance(inner.get("type"), str)):
        # A server that is called so says its type; else these are the servers.
        return Shape.V2
    return Shape.V1 if servers else None


def installed_shape() -> Shape:
    """The shape that the installed opencode takes; where none is, the one that both majors' files began with."""
    program = shutil.which("opencode")
    if program is None:
        return Shape.V1
    environ = {**os.environ, "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_S,
            stdin=subprocess.DEVNULL,
            env=environ,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Shape.V1
    found = re.search(r"(?<![\d.])(\d{1,4})\.\d+\.\d+", done.stdout)
    return Shape.V2 if found and int(found[1]) >= 2 else Shape.V1


def _secret(wanted: Wanted) -> str:
    if wanted.project is not None:
        return f"{{env:{wanted.variable}}}"
    path = str(wanted.token_file)
    if not path.isprintable() or any(sign in path for sign in '{}"\\'):
        raise Misconfigured(
            f"{path!r} holds signs that opencode cannot be told in a file's name; take --stdio", field="token"
        )
    return f"{{file:{path}}}"
