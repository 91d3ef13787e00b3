"""The event stream of one opencode server: which sessions are at work, and what was answered, as it happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from postroom.carriers.opencode_server import NO_ROUTE, ServerLink
from postroom.carriers.opencode_transcript import TAIL, Answered, answer_in
from postroom.carriers.opencode_wire import MAX_ANSWER, Broken, Take

SILENCE_SECONDS = 45.0
"""A stream that says nothing for so long is broken; a server's heartbeat comes each 10 s."""
FIRST_PAUSE = 0.2
LAST_PAUSE = 10.0
BASIC_PAUSE = 60.0
"""Seconds until a server without the route is asked again: it may have been replaced by a newer one."""

_HEAD_SECONDS = 10.0
_OURS = re.compile(rb'"(?:session\.(?:status|idle|deleted)|message\.updated)"')
"""What an event holds that anything is learned from: while a model writes, most of them are passed over unread."""

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
        self._live_since = 0.0
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
        await self._link.listen("/global/event", self._head, head_s=_HEAD_SECONDS, silence_s=SILENCE_SECONDS)

    def _head(self, status: int, content_type: str) -> Take | None:
        """Who reads the stream; None when it is none."""
        ok = 200 <= status < 300
        if status in NO_ROUTE or (ok and "text/event-stream" not in content_type):
            self._link.missing["event"] = self._clock()
            return None
        if not ok:
            self._link.problem = f"{self._link.server.shown} refuses its events: {status}"
            return None
        self._link.missing.pop("event", None)
        return Events(self._event).feed

    def _event(self, data: bytes) -> None:
        if not self.live:
            # The first event says that the server listens: what happens from here on is told, and of what was before
            # nothing is known.
            self.pulses.clear()
            self.covered.clear()
            self.live, self._live_since = True, self._clock()
        if _OURS.search(data):
            with contextlib.suppress(ValueError, RecursionError):
                self.take(json.loads(data))

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
        """Take in who was at work in a directory when it was asked; events that came since are newer.

        What was asked before the events were listened to is passed over: nobody would tell of its end.
        """
        if not self.live or asked_at < self._live_since:
            return
        at_work = set(busy)
        for session in at_work:
            pulse = self.pulses.setdefault(session, Pulse())
            if max(pulse.busy_at, pulse.idle_at) < asked_at:
                pulse.busy, pulse.busy_at = True, asked_at
        self.covered.add(directory)


class Events:
    """A stream of events (text/event-stream) as bytes, taken apart: the data of each is given on."""

    def __init__(self, told: Callable[[bytes], None]) -> None:
        self._told = told
        self._parts: list[bytes] = []
        self._size = 0
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Take in what came; Broken for an event that never ends."""
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size > MAX_ANSWER:
            raise Broken("an event is too long")
        if b"\n" not in chunk:
            return
        *lines, rest = b"".join(self._parts).split(b"\n")
        self._parts = [rest]
        for line in lines:
            self._line(line.removesuffix(b"\r"))
        self._size = len(rest) + sum(map(len, self._data))

    def _line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            self._told(data)
