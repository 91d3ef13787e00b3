"""The installation: the settings a daemon was started with, and the sources that it reads from them again on request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from postroom.config import Settings, place_of, with_sources_of_file
from postroom.doors.firing import Fired, fire
from postroom.errors import Invalid, Misconfigured, Unavailable
from postroom.ids import Ids
from postroom.sources.roster import Roster
from postroom.sources.settings import Sources, build_sources


class Installation:
    """Where this daemon's settings, data and addresses are; `base` and `hooks_base` are set once it listens."""

    def __init__(self, settings: Settings, roster: Roster, clock: Callable[[], int], ids: Ids) -> None:
        self._clock = clock
        self._ids = ids
        self.settings = settings
        self.roster = roster
        self.base: str | None = None
        self.hooks_base: str | None = None

    def places(self) -> dict[str, Any]:
        """The settings file, the data folder, and the addresses that hooks are served on."""
        file = self.settings.file
        return {
            "settings_file": None if file is None else str(file.absolute()),
            "data": str(self.settings.data),
            "addresses": [base for base in (self.hooks_base, self.base) if base is not None],
        }

    async def reload(self) -> None:
        """The settings file's sources -> in force, all or none. Raises Invalid naming file, line and key; the old stay."""
        try:
            settings, sources = await asyncio.to_thread(self._read)
        except Misconfigured as error:
            raise Invalid(error.message, field=error.field) from None
        self.settings = settings
        self.roster.swap(sources)

    def _read(self) -> tuple[Settings, Sources]:
        settings = with_sources_of_file(self.settings)
        return settings, read_sources(settings)

    async def fire(self, name: str, kind: str | None) -> Fired:
        """A sample, signed as its sender would sign it now, through this daemon's own port. Raises the family's errors."""
        sample = self.roster.sample(name, kind, self._clock(), self._ids)
        if self.base is None:
            raise Unavailable("this daemon does not listen yet")
        return await fire(self.base, name, sample)


def read_sources(settings: Settings) -> Sources:
    """The sources of the settings. Raises Misconfigured naming file, line and key."""
    folder = settings.file.parent if settings.file is not None else settings.data
    tables = settings.sources
    try:
        return build_sources(tables, os.environ, folder, exposed=settings.hooks_port is not None)
    except Misconfigured as error:
        key = (error.field or "source").rsplit(".", 1)[-1]
        place = place_of(settings, f"source[{_first_wrong(tables, settings)}].{key}")
        raise Misconfigured(f"{place}: {error.message}", field=error.field) from None


def _first_wrong(tables: Sequence[Mapping[str, Any]], settings: Settings) -> int:
    """Which of the sources' tables it is that cannot be read, beside those before it."""
    folder = settings.file.parent if settings.file is not None else settings.data
    for index in range(len(tables)):
        try:
            build_sources(tables[: index + 1], os.environ, folder, exposed=settings.hooks_port is not None)
        except Misconfigured:
            return index
    return 0
