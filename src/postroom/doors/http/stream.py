"""What happens, over HTTP, while it happens: server-sent events for as long as the client reads them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from starlette.types import Receive, Send

from postroom.doors.http.answers import ALWAYS
from postroom.doors.http.fields import QUEUE_PATTERN, Asked, told
from postroom.doors.http.mail_fields import PARTY_PATTERN
from postroom.doors.http.polling import gone
from postroom.doors.http.route import Call, Route
from postroom.doors.http.schemas import TEXT, TIME, many, maybe, record
from postroom.happening import KINDS, WHATS, HappeningFilter
from postroom.happening_wire import ALIVE, BEGIN, MEDIA, PATH, QUIET_S, shown_event
from postroom.services.happenings import MOST_NAMED, Listener

NOUN: Final = "stream"
SEND_SECONDS: Final = 30.0
"""A client that takes nothing for so long is dropped: what waits for it in between is bounded."""

_HEADERS: Final = ((b"content-type", MEDIA.encode()), (b"x-accel-buffering", b"no"), *ALWAYS)

HAPPENING: Final = record(
    {
        "at": TIME,
        "what": {**TEXT, "description": f"`lagged`, or one of {', '.join(WHATS)}."},
        "id": TEXT,
        "queue": maybe(TEXT),
        "mailbox": maybe(TEXT),
        "who": maybe(TEXT),
        "words": {**TEXT, "description": "One line, of data that nobody vouches for."},
        "about": {**many(TEXT), "description": "Further ids that it belongs to."},
    }
)


_WHATS: Final = ", ".join(f"`{what}`" for what in WHATS)

Queues = Annotated[
    list[Annotated[str, told("A queue's name.", pattern=QUEUE_PATTERN)]],
    told("Only of this queue; may be given several times.", maxItems=MOST_NAMED),
]
Mailboxes = Annotated[
    list[Annotated[str, told("A mailbox.", pattern=PARTY_PATTERN)]],
    told("Only of this mailbox; may be given several times.", maxItems=MOST_NAMED),
]
Whats = Annotated[
    list[Annotated[str, told("What happened.", enum=[*KINDS, *WHATS])]],
    told(f"Only of this noun, or only this; may be given several times: {_WHATS}.", maxItems=MOST_NAMED),
]
About = Annotated[str, told("Only of this event, todo, message or endpoint, and what belongs to it.", maxLength=128)]


class StreamQuery(Asked):
    """Which happenings to send."""

    repeated: ClassVar[frozenset[str]] = frozenset({"queue", "mailbox", "what"})

    queue: Queues | None = None
    mailbox: Mailboxes | None = None
    what: Whats | None = None
    id: About | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on until its client, its token or the daemon is gone."""

    listening: AbstractAsyncContextManager[Listener]

    async def run(
        self, receive: Receive, send: Send, known: Callable[[], Awaitable[bool]], *, head: bool = False
    ) -> None:
        """Send what happens. `known` tells whether who asked still may. Raises Unavailable before anything is sent."""
        async with self.listening as listener:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            if not head:
                await self._go_on(listener, receive, send, known)
            await _within(send, b"", more=False)

    async def _go_on(
        self, listener: Listener, receive: Receive, send: Send, known: Callable[[], Awaitable[bool]]
    ) -> None:
        clock = asyncio.get_running_loop().time
        leaving = asyncio.ensure_future(gone(receive))
        coming = asyncio.ensure_future(listener.some())
        look_at = clock() + QUIET_S
        taken = await _within(send, BEGIN)
        try:
            while taken:
                rest = max(look_at - clock(), 0.0)
                both: set[asyncio.Future[Any]] = {coming, leaving}
                await asyncio.wait(both, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    return
                if coming.done():
                    happenings = coming.result()
                    if not happenings:
                        return
                    coming = asyncio.ensure_future(listener.some())
                    taken = await _within(send, b"".join(map(shown_event, happenings)))
                if clock() >= look_at:
                    if not await known():
                        return
                    look_at = clock() + QUIET_S
                    taken = taken and await _within(send, ALIVE)
        finally:
            coming.cancel()
            leaving.cancel()
            await asyncio.gather(coming, leaving, return_exceptions=True)


async def _within(send: Send, body: bytes, *, more: bool = True) -> bool:
    """Send a piece; False when the client takes nothing, whose connection is then cut off."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": body, "more_body": more})
    except TimeoutError:
        _cut_off(send)
        return False
    return True


def _cut_off(send: Send) -> None:
    """End the connection at once: closing it in order would wait for the client to take what is left."""
    with contextlib.suppress(AttributeError):
        send.__self__.transport.abort()  # type: ignore[attr-defined]


async def stream(call: Call, asked: StreamQuery) -> Stream:
    """What happens from now on, of what the token may see."""
    wanted = HappeningFilter(tuple(asked.queue or ()), tuple(asked.mailbox or ()), tuple(asked.what or ()), asked.id)
    return Stream(call.api.happenings.subscribe(call.principal, wanted))


ROUTES = (
    Route(
        "GET",
        PATH,
        NOUN,
        "Hear of what happens while it happens, as server-sent events: `event: WHAT` and `data: JSON`, a comment every "
        f"{QUIET_S:.0f} s. A hint, without resume: `lagged` stands for what was not told.",
        stream,
        {200: HAPPENING},
        query=StreamQuery,
        refusals=(429,),
        streams=True,
    ),
)
