"""Where a daemon's settings and data are, for what edits them: the daemon says it, else the flags and the environment."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from postroom.address import data_folder

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon
    from postroom.doors.cli.settings_file import SettingsFile

CONFIG: Final = "postroom.config"


class Place:
    """Where the settings and the data are: the daemon says it, or when none serves the flags and the environment do."""

    def __init__(self, config: str | None, data: Path | None) -> None:
        from postroom.doors.cli.connection import Daemon, Unreachable

        settings = import_module(CONFIG)
        self.data: Path = data_folder(data, os.environ)
        self.addresses: list[str] = []
        self._daemon: Daemon | None = Daemon.find(data, os.environ)
        try:
            told = self._daemon.ask("GET", "/v1/sources")
        except Unreachable:
            self._daemon = None
            self._path: Path = settings.settings_path(config, self.data, os.environ)
            return
        self.data = Path(told["data"])
        self.addresses = told["addresses"]
        named = config or told["settings_file"]
        self._path = Path(named).expanduser().absolute() if named else self.data / "postroom.toml"

    def settings_file(self) -> SettingsFile:
        """The settings file as it is. Raises Misconfigured when it is no TOML."""
        from postroom.doors.cli.settings_file import SettingsFile

        return SettingsFile(self._path)

    def reload(self, name: str, *, gone: bool = False) -> str:
        """Have the daemon read its sources again: what came of that, in a word. Raises what it refuses.

        It is to know the source of this name then, or with `gone` to know it no longer.
        """
        from postroom.doors.cli.connection import Unreachable

        if self._daemon is None:
            return "not running"
        try:
            told = self._daemon.ask("POST", "/v1/reload", {})
        except Unreachable:
            return "not running"
        if any(one["name"] == name for one in told["sources"]) is not gone:
            return "reloaded"
        return str(told["settings_file"] or "no file")
