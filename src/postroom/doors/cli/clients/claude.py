"""Claude Code: `.mcp.json` in a project, `.claude.json` for its user."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from postroom.doors.cli.clients import jsonc
from postroom.doors.cli.clients.entry import NAME, UNKNOWN, Client, Via, Wanted

PATH: Final = ("mcpServers", NAME)
_STDIO: Final = ("command", "args", "env")
_HTTP: Final = ("url", "headers", "headersHelper", "oauth")


class Claude(Client):
    """Claude Code takes plain JSON, and expands `${VARIABLE}` in it."""

    name = "claude"
    title = "Claude Code"
    executable = "claude"
    at = ".".join(PATH)

    def places(self, project: Path | None) -> Sequence[Path]:
        if project is not None:
            return [project / ".mcp.json"]
        folder = os.environ.get("CLAUDE_CONFIG_DIR")
        return [(Path(folder).expanduser() if folder else Path.home()) / ".claude.json"]

    def entry(self, text: str) -> Mapping[str, Any] | None:
        return jsonc.object_at(text, PATH, comments=False)

    def describe(self, wanted: Wanted, text: str) -> dict[str, Any]:
        if wanted.via is Via.STDIO:
            return {"type": "stdio", "command": wanted.program, "args": self.arguments(wanted, text)}
        shown = (wanted.token or UNKNOWN) if self.holds_secret(wanted) else f"${{{wanted.variable}}}"
        return {"type": "http", "url": wanted.endpoint, "headers": {"Authorization": f"Bearer {shown}"}}

    def holds_secret(self, wanted: Wanted) -> bool:
        # What is in a project may be committed; the file in the home is Claude's own and its user's alone.
        return wanted.via is Via.HTTP and wanted.project is None

    def put(self, text: str, entry: Mapping[str, Any]) -> str:
        return jsonc.merged(text, PATH, entry, _HTTP if "command" in entry else _STDIO, comments=False)

    def take(self, text: str) -> str:
        return jsonc.drop(text, PATH, comments=False)

    def command(self, entry: Mapping[str, Any]) -> object:
        if "command" not in entry:
            return None
        args = entry.get("args", [])
        return [entry["command"], *args] if isinstance(args, list) else [entry["command"]]

    def after(self, wanted: Wanted) -> list[str]:
        said = []
        if wanted.via is Via.HTTP and wanted.project is not None:
            said.append(f"where Claude Code is started: {wanted.export}")
        if wanted.project is not None:
            said.append("Claude Code asks at its next start in that project whether the server may be used: say yes")
        if wanted.channel:
            said.append(f"for the channel: claude --dangerously-load-development-channels server:{NAME}")
        return [*said, "Claude Code reads this when it starts: start it anew, and see `claude mcp list`"]
