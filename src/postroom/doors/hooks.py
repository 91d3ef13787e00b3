"""Webhooks over HTTP: `POST /hooks/{source}`, verified over the raw bytes, stored, and only then answered (DESIGN §5)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from postroom.doors.http.answers import Answer, json_answer, send_answer
from postroom.doors.http.auth import loopback, over_socket, values
from postroom.doors.http.body import read_body
from postroom.doors.http.errors import Gone, WrongMethod, error_answer, fault_answer
from postroom.doors.http.inflate import gzipped, inflate
from postroom.doors.http.standing import health_answer
from postroom.doors.tally import AFAR, TOO_LARGE, Tally, cause
from postroom.errors import NotFound, PostroomError, TooLarge, Unauthenticated, Unavailable
from postroom.event import Incoming, Received
from postroom.services.rulesets import Sorting
from postroom.sources.roster import Roster
from postroom.sources.scheme import Rejected
from postroom.sources.source import Source
from postroom.text import printable
from postroom.wire import link_view

ON_THE_LOOP = 256 * 1024
"""Bodies above this are read in a thread, one at a time, so that the others go on and memory stays bounded."""

_PREFIX = "/hooks/"
_PASSED_ON = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"via")

log = logging.getLogger("postroom.hooks")


class Intake(Protocol):
    """Where a verified delivery goes."""

    async def receive(self, delivery: Incoming, source: Sorting) -> Received:
        """Nothing -> an event and its todos, in one transaction; a known delivery is a duplicate."""
        ...


def wall_clock() -> int:
    """The host's clock in ms UTC: what signed times are held against."""
    return time.time_ns() // 1_000_000


class HooksDoor:
    """The app for `/hooks/` and, where it listens alone, for `/health`.

    roster: the sources as they are set up now. ready: None when deliveries can be stored, else why not yet; clock: ms
    UTC.
    """

    def __init__(
        self,
        roster: Roster,
        intake: Intake,
        ready: Callable[[], str | None],
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        self._roster = roster
        self._intake = intake
        self._ready = ready
        self._clock = clock
        self._one_large = asyncio.Semaphore(1)
        self.tally = Tally()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the hooks door serves http, not {scope['type']}")
        try:
            answer = await self._answer(scope, receive)
        except Gone:
            # Cut off in the middle: nothing was stored, and the sender knows that it got no answer.
            return
        except PostroomError as error:
            answer = error_answer(error)
        except Exception:
            log.exception("a delivery to %s failed", printable(scope["path"][:100]))
            answer = fault_answer()
        await send_answer(send, answer, head=scope["method"] == "HEAD")

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        path, method = scope["path"], scope["method"]
        if path == "/health":
            if method not in {"GET", "HEAD"}:
                raise WrongMethod(method, ("GET", "HEAD"))
            return health_answer()
        source = self._roster.get(path.removeprefix(_PREFIX)) if path.startswith(_PREFIX) else None
        if source is None:
            raise NotFound(f"there is no source at {path[:100]!r}", field="path")
        if method != "POST":
            raise WrongMethod(method, ("POST",))
        reason = self._ready()
        if reason is not None:
            raise Unavailable("deliveries cannot be stored now")
        if source.local and (far := _from_afar(scope)) is not None:
            raise self._refused(
                source, AFAR, f"{far}, and this source is for this machine alone; public = true opens it"
            )
        try:
            body = await read_body(scope["headers"], receive, source.max_bytes, gzip=True)
            delivery = await self._proved(source, scope, body)
        except TooLarge as error:
            self.tally.refused(source.name, TOO_LARGE, error.message, self._clock())
            raise
        received = await self._intake.receive(delivery, source)
        self.tally.taken(source.name, received.duplicate, self._clock())
        self._roster.note(delivery, self._clock())
        if delivery.answer is not None:
            return Answer(delivery.answer.encode(), 200, b"text/plain; charset=utf-8")
        return json_answer(_told(received), 202)

    async def _proved(self, source: Source, scope: Scope, body: bytes) -> Incoming:
        """The delivery, once its bytes are proved. Raises Unauthenticated, the same for every reason."""
        headers, query, now = scope["headers"], scope["query_string"], self._clock()
        if gzipped(headers):
            async with self._one_large:
                found = await asyncio.to_thread(_receive_gzip, source, headers, body, now, query)
        elif len(body) <= ON_THE_LOOP:
            found = source.receive(headers, body, now, query)
        else:
            async with self._one_large:
                found = await asyncio.to_thread(source.receive, headers, body, now, query)
        if isinstance(found, Rejected):
            raise self._refused(source, cause(found), found.reason)
        return found

    def _refused(self, source: Source, why: str, reason: str) -> Unauthenticated:
        """The one answer for every reason, which only the log and the operator are told."""
        log.warning("a delivery to %s is refused: %s", source.name, printable(reason))
        self.tally.refused(source.name, why, printable(reason), self._clock())
        return Unauthenticated("the delivery could not be verified")


def _from_afar(scope: Scope) -> str | None:
    """How a request shows that it was not made by a program on this machine: a tunnel, a proxy or a browser's page."""
    if over_socket(scope):
        return None
    hosts = values(scope, b"host")
    if len(hosts) != 1 or not loopback(hosts[0]):
        return f"it came by the host {', '.join(hosts)[:100]!r}"
    if values(scope, b"origin"):
        return "a page in a browser sent it"
    passed = [name.decode() for name in _PASSED_ON if values(scope, name)]
    return f"its {passed[0]} header says that it was passed on" if passed else None


def _receive_gzip(
    source: Source, headers: list[tuple[bytes, bytes]], body: bytes, now_ms: int, query: bytes
) -> Incoming | Rejected:
    """A delivery that is sent as gzip, signed before or after it was compressed; it is kept inflated. Raises TooLarge."""
    plain = inflate(body, source.max_bytes)
    if plain is None:
        # No gzip at all, or cut off: as with any other body that cannot be read, the proof decides.
        return source.receive(headers, body, now_ms, query)
    found = source.receive(headers, plain, now_ms, query)
    if not isinstance(found, Rejected):
        return found
    packed = source.receive(headers, plain, now_ms, query, signed=body)
    return found if isinstance(packed, Rejected) else packed


def _told(received: Received) -> dict[str, Any]:
    return {
        "event_id": received.event.id,
        "duplicate": received.duplicate,
        "todos": [link_view(link) for link in received.todos],
    }
