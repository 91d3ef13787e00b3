"""The plugin that gives opencode's sessions their own tools: one file of ours, in a project or for its user."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Final

from postroom.doors.cli.clients.opencode import config_folder
from postroom.errors import Conflict, Misconfigured, PostroomError

MARK: Final = "// Postroom's plugin for opencode."
"""The beginning of every plugin file that is ours."""

FILE: Final = "postroom.js"
PLACEHOLDER: Final = "const DATA = null "
MODE: Final = 0o644


class Plugin:
    """The plugin's file and the text that it is to have. Raises Conflict when somebody else's is in its place.

    folder: the data folder; it is written into the text when opencode would not find it by itself.
    """

    def __init__(self, project: Path | None, folder: Path, *, named: bool) -> None:
        parent = config_folder() if project is None else project / ".opencode"
        self.path = parent / "plugin" / FILE
        shipped = files("postroom") / "clients" / "opencode_plugin.js"
        self._shipped = str(shipped)
        text = shipped.read_text("utf-8")
        self.text = text.replace(PLACEHOLDER, f"const DATA = {json.dumps(str(folder))} ", 1) if named else text
        self._there = self._read()

    @classmethod
    def for_environment(cls, project: Path | None, folder: Path, data: Path | None) -> Plugin:
        """The plugin for a data folder that the command line, the environment or the platform names."""
        return cls(project, folder, named=data is not None or bool(os.environ.get("POSTROOM_DATA")))

    @property
    def there(self) -> bool:
        """Whether it is installed, in whichever version."""
        return self._there is not None

    @property
    def current(self) -> bool:
        """Whether the file is as it is to be."""
        return self._there == self.text

    @property
    def would(self) -> str:
        """What `install` would do, in a few words."""
        if self.current:
            return "is up to date"
        return f"would be {'renewed from' if self.there else 'a copy of'} {self._shipped}"

    def install(self) -> str:
        """None or an older one -> this one; gives what came of it, in a line. Raises Misconfigured."""
        from postroom.doors.cli.settings_file import write_private

        if self.current:
            return f"plugin: {self.path} is up to date"
        write_private(self.path, self.text.encode(), MODE)
        return f"plugin: {'renewed' if self.there else 'installed'} {self.path}"

    def undo(self) -> None:
        """Installed -> what was there before."""
        from postroom.doors.cli.settings_file import write_private

        with suppress(PostroomError, OSError):
            if self._there is None:
                self.path.unlink(missing_ok=True)
            elif not self.current:
                write_private(self.path, self._there.encode(), MODE)

    def remove(self) -> str:
        """Installed -> none; gives what came of it, in a line. Raises Misconfigured."""
        if not self.there:
            return f"plugin: there is none at {self.path}"
        try:
            self.path.unlink()
        except OSError as error:
            raise Misconfigured(f"{self.path} cannot be removed: {error.strerror}", field="plugin") from None
        return f"plugin: removed {self.path}"

    def _read(self) -> str | None:
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(f"{self.path} cannot be read: {error}", field="plugin") from None
        if not text.startswith(MARK):
            raise Conflict(
                f"{self.path} is not Postroom's, and is left as it is",
                field="plugin",
                hint="Move that file away, then run this again.",
            )
        return text
