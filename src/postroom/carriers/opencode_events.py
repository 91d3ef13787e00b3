"""The event stream of one opencode server: which sessions are at work, and what was answered, as it happens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from postroom.carriers.opencode_server import CONNECT_SECONDS, MAX_ANSWER, NO_ROUTE, ServerLink
from postroom.carriers.opencode_transcript import TAIL, Answered, answer_in

SILENCE_SECONDS = 45.0
"""A stream that says nothing for so long is broken; a server's heartbeat comes each 10 s."""
FIRST_PAUSE = 0.2
LAST_PAUSE = 10.0
BASIC_PAUSE = 60.0
"""Seconds until a server without the route is asked again: it may have been replaced by a newer one."""

_HEAD_SECONDS = 10.0

log = logging.getLogger("postroom.opencode")


@dataclass(slots=True)
class Pulse:
    """One session's work as the stream shows it; the two times are of the loop's clock, 0 for never."""

    busy: bool = False
    busy_at: float = 0.0
    idle_at: float = 0.0


class EventStream:
    """Reads a server's events for ever, and tells who asked of each session whose work may have ended.

    `live` is whether the stream is connected; while it is, `pulses` has each session that did something since, and
    `covered` the directories whose sessions were looked up since.
    """

    def __init__(self, link: ServerLink, changed: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._link = link
        self._changed = changed
        self._clock = clock
        self.live = False
        self.pulses: dict[str, Pulse] = {}
        self.covered: set[str] = set()
        self.awaited: dict[str, list[Answered]] = {}
        """What was answered to each message whose answer somebody awaits, by the tail of its id; the caller puts them in."""
        self.gone: Callable[[str], None] = lambda session: None
        """Called with each session that was deleted."""

    async def run(self) -> None:
        """Connect, read, and connect again with growing pauses, until cancelled."""
        pause = FIRST_PAUSE
        while True:
            began = self._clock()
            try:
                await self._read()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.debug("the event stream of %s ended: %r", self._link.server.shown, error)
            finally:
                self.live = False
                self.pulses.clear()
                self.covered.clear()
            if "event" in self._link.missing:
                pause = BASIC_PAUSE
            elif self._clock() - began > LAST_PAUSE:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    async def _read(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            import httpx2

            request = self._link.client().stream(
                "GET",
                "/global/event",
                headers={"accept": "text/event-stream"},
                timeout=httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS),
            )
            async with asyncio.timeout(_HEAD_SECONDS):
                answer = await stack.enter_async_context(request)
            page = "text/event-stream" not in answer.headers.get("content-type", "")
            if answer.status_code in NO_ROUTE or (answer.is_success and page):
                self._link.missing["event"] = self._clock()
                return
            if not answer.is_success:
                self._link.problem = f"{self._link.server.shown} refuses its events: {answer.status_code}"
                return
            self._link.missing.pop("event", None)
            async for event in httpx2.EventSource(answer, max_event_size=MAX_ANSWER):
                # The first event says that the server listens: what happens from here on is told.
                self.live = True
                with contextlib.suppress(ValueError, RecursionError):
                    self.take(event.json())

    def take(self, event: object) -> None:
        """Learn from one event; what is unknown or malformed is passed over."""
        payload = event.get("payload", event) if isinstance(event, Mapping) else None
        if not isinstance(payload, Mapping):
            return
        properties = payload.get("properties")
        if not isinstance(properties, Mapping):
            return
        session = properties.get("sessionID")
        match payload.get("type"):
            case "session.status" if isinstance(session, str):
                status = properties.get("status")
                kind = status.get("type") if isinstance(status, Mapping) else None
                if isinstance(kind, str):
                    self._beat(session, kind != "idle")
            case "session.idle" if isinstance(session, str):
                self._beat(session, False)
            case "message.updated":
                info = properties.get("info")
                if isinstance(info, Mapping):
                    self._answer(info)
            case "session.deleted":
                info = properties.get("info")
                gone = info.get("id") if isinstance(info, Mapping) else session
                if isinstance(gone, str):
                    self.pulses.pop(gone, None)
                    self.gone(gone)
                    self._changed(gone)
            case _:
                pass

    def _beat(self, session: str, busy: bool) -> None:
        pulse = self.pulses.setdefault(session, Pulse())
        was, pulse.busy = pulse.busy, busy
        if busy:
            pulse.busy_at = self._clock()
        else:
            pulse.idle_at = self._clock()
            if was or pulse.busy_at == 0:
                self._changed(session)

    def _answer(self, info: Mapping[str, Any]) -> None:
        answered = answer_in(info)
        # The session going idle, which follows, is what tells: until then nothing can be done about it.
        if answered is not None and (awaited := self.awaited.get(answered.parent[-TAIL:])) is not None:
            awaited.append(answered)

    def cover(self, directory: str, busy: Iterable[str], asked_at: float) -> None:
        """Take in who was at work in a directory when it was asked; events that came since are newer."""
        at_work = set(busy)
        for session in at_work:
            pulse = self.pulses.setdefault(session, Pulse())
            if max(pulse.busy_at, pulse.idle_at) < asked_at:
                pulse.busy, pulse.busy_at = True, asked_at
        if self.live:
            self.covered.add(directory)
