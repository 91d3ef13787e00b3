"""Workplaces: the directory that somebody sits in, and the branch that is checked out there.

Both are told where that is cheap, and left out where it is not: nobody who asks who works here waits for a place that
does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from postroom.endpoint import Endpoint

Directory = Callable[[Endpoint], Awaitable[str | None]]
"""The directory at an endpoint's place now; None when its carrier cannot tell."""

LOOK_S: Final = 2.0
"""How long all the places together may take to answer."""
READ_S: Final = 1.0
"""How long all the branches together may take to be read: a directory may be on a disk that is away."""
AT_ONCE: Final = 16
"""How many places are asked at a time."""
MOST_BYTES: Final = 4096

_BRANCH: Final = "ref: refs/heads/"
_ELSEWHERE: Final = "gitdir: "

log = logging.getLogger("postroom.registry")


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where somebody sits."""

    directory: str
    branch: str | None


class Workplaces:
    """Asks the carriers where endpoints sit, all at once, and reads the branches from the files of git."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._asking = asyncio.Semaphore(AT_ONCE)
        self._reading: asyncio.Future[dict[str, str | None]] | None = None
        self._late_at = 0.0

    async def of(self, endpoints: Sequence[Endpoint]) -> Mapping[str, Workplace]:
        """The workplaces that could be told in time, by the endpoint's id."""
        if not endpoints:
            return {}
        asked = {asyncio.ensure_future(self._ask(endpoint)): endpoint.id for endpoint in endpoints}
        try:
            done, _ = await asyncio.wait(asked, timeout=LOOK_S)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        found = {asked[task]: directory for task in done if (directory := task.result())}
        branches = await self._branches(frozenset(found.values()))
        return {id_: Workplace(directory, branches.get(directory)) for id_, directory in found.items()}

    async def _ask(self, endpoint: Endpoint) -> str | None:
        async with self._asking:
            try:
                return await self._directory(endpoint)
            except Exception:
                log.exception("looking for the directory of endpoint %s failed", endpoint.id)
                return None

    async def _branches(self, directories: frozenset[str]) -> Mapping[str, str | None]:
        if not directories:
            return {}
        loop = asyncio.get_running_loop()
        ends = loop.time() + READ_S
        # Others may begin a read whenever this one sleeps: what it waits for it holds itself.
        while (reading := self._reading) is not None and not reading.done():
            # A read that hangs keeps its thread; no further one is begun beside it.
            left = min(ends, self._late_at) - loop.time()
            if left <= 0:
                return {}
            await asyncio.wait([reading], timeout=left)
        self._late_at = ends
        reading = self._reading = loop.run_in_executor(None, _branches, directories)
        done, _ = await asyncio.wait([reading], timeout=max(ends - loop.time(), 0.0))
        return reading.result() if done else {}


def _branches(directories: Iterable[str]) -> dict[str, str | None]:
    return {directory: branch_of(directory) for directory in directories}


def branch_of(directory: str) -> str | None:
    """The branch that is checked out in this directory or the nearest one above it that git knows; None without one."""
    try:
        place = Path(directory)
        if not place.is_absolute():
            return None
        for folder in (place, *place.parents):
            git = folder / ".git"
            kind = os.stat(git).st_mode if git.exists() else 0
            if stat.S_ISDIR(kind):
                return _branch_in(git)
            if stat.S_ISREG(kind):
                # A further worktree, or a submodule, has its HEAD elsewhere.
                line = _first_line(git)
                return _branch_in(folder / line.removeprefix(_ELSEWHERE)) if line.startswith(_ELSEWHERE) else None
    except (OSError, ValueError):
        return None
    return None


def _branch_in(git: Path) -> str | None:
    line = _first_line(git / "HEAD")
    name = line.removeprefix(_BRANCH)
    return name if name != line and name.isprintable() else None


def _first_line(file: Path) -> str:
    # What is no plain file, a pipe above all, might never give an answer.
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        return opened.read(MOST_BYTES).decode("utf-8", "replace").partition("\n")[0].strip()
