"""The opencode plugin in a real Node, called as a session's model would call it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("plugin_driver.mjs")


class Plugin:
    """An installed plugin; each call is a Node of its own, so that nothing is carried from one to the next."""

    def __init__(self, folder: Path, environment: Mapping[str, str], installed: Path | None = None) -> None:
        node = shutil.which("node")
        assert node is not None, "Node.js is missing; on Debian and Ubuntu: apt-get install nodejs"
        self._node = node
        # Node takes a file for a module by its name where no package.json says so; opencode takes both.
        self._file = folder / "plugin.mjs"
        source = files("postroom") / "clients" / "opencode_plugin.js" if installed is None else installed
        self._file.write_text(source.read_text("utf-8"), "utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "NODE_"))}
        self.environment = {**kept, "HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), **environment}

    def ask(self, *calls: Mapping[str, Any]) -> list[Any]:
        """The answers to these calls, in one Node."""
        done = subprocess.run(
            [self._node, str(DRIVER), str(self._file)],
            input="".join(json.dumps(call) + "\n" for call in calls),
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return [json.loads(line) for line in done.stdout.splitlines()]

    def call(self, tool: str, session: str = "ses_mine", **args: Any) -> Any:
        """The parsed text that a tool answers with; `from` of Python's own words ends in an underscore."""
        (answer,) = self.ask({"tool": tool, "session": session, "args": args})
        return json.loads(answer)
