"""Where sessions live: which server, and in which directory; kept for five minutes (P15, P22)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from postroom.carriers.opencode_server import ServerLink, Unreached, session_path

KEEP_SECONDS = 300.0
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Place:
    """A session's server and directory."""

    link: ServerLink
    directory: str


@dataclass(frozen=True, slots=True)
class Absent:
    """No server knows the session, and each was asked."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """It cannot be told where the session lives, and why."""

    reason: str


Found = Place | Absent | Hidden


class Places:
    """The registry of sessions; `clock` gives seconds that only grow."""

    def __init__(self, links: Sequence[ServerLink], clock: Callable[[], float]) -> None:
        self._links = links
        self._clock = clock
        self._known: dict[str, tuple[Place, float]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def drop(self, session: str) -> None:
        """Known -> to be looked up again."""
        self._known.pop(session, None)

    async def find(self, session: str, seconds: float) -> Found:
        """The session's place, from what is known or from whichever server has it; within `seconds`."""
        kept = self._known.get(session)
        if kept is not None:
            if kept[1] > self._clock():
                return kept[0]
            self.drop(session)
        found = await self._look_up(session, seconds)
        if isinstance(found, Place):
            if len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            self._known[session] = (found, self._clock() + KEEP_SECONDS)
        return found

    async def _look_up(self, session: str, seconds: float) -> Found:
        if len(self._links) == 1:
            return await self._ask(self._links[0], session, seconds)
        asked = [asyncio.ensure_future(self._ask(link, session, seconds)) for link in self._links]
        problems: list[str] = []
        try:
            # Whoever has it ends the search: a server that hangs is not waited for.
            for answer in asyncio.as_completed(asked):
                found = await answer
                match found:
                    case Place():
                        return found
                    case Hidden():
                        problems.append(found.reason)
                    case Absent():
                        pass
            return Hidden("; ".join(problems)) if problems else Absent()
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _ask(self, link: ServerLink, session: str, seconds: float) -> Found:
        try:
            reply = await link.ask("GET", session_path(session), seconds=seconds)
        except Unreached as error:
            return Hidden(error.reason)
        if reply.status == 404:
            return Absent()
        value = reply.value()
        directory = value.get("directory") if isinstance(value, Mapping) else None
        if not reply.ok:
            return Hidden(f"{link.server.shown} does not show the session: {reply.words()}")
        if not isinstance(directory, str) or not directory:
            return Hidden(f"{link.server.shown} does not say in which directory the session is")
        return Place(link, directory)
