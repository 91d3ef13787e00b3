"""The transport of protocol 0.1: one line in, one line out, then the connection ends (seed 003; B26, T1, T4).

It shares the Unix socket with HTTP: a connection whose first byte is a capital letter speaks HTTP, as every method
does, and any other one lines. Whatever is wrong with a line, its sender gets to read why.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, cast

from postroom.doors.socket.operations import refusal
from postroom.doors.socket.peer import peer_uid
from postroom.errors import Forbidden, Invalid, PostroomError, TooLarge, Unavailable
from postroom.text import dump_json

MAX_LINE = 128 * 1024
"""8 KiB of body and 4 KiB of metadata may each be written at six times their length."""
LINE_SECONDS = 5.0
"""A line has to be whole by then, and a connection that says nothing ends."""
LINGER_SECONDS = 1.0
"""How long a refused peer may go on sending: a connection that is closed at once would take the refusal with it."""
MAX_DROPPED = 4 * 1024 * 1024
READ_SECONDS = 30.0
"""How long a peer may take to read its answer."""
MAX_CONNECTIONS = 256

Answer = Callable[[bytes], Awaitable[bytes]]
MakeHttp = Callable[[], asyncio.Protocol]

log = logging.getLogger("postroom.socket")


class Lines:
    """Answers lines for every connection of a socket; holds what is open, so that it can be ended together."""

    def __init__(self, answer: Answer, *, uid: int | None = None, most: int = MAX_CONNECTIONS) -> None:
        self.answer = answer
        self.uid = os.geteuid() if uid is None else uid
        self.most = most
        self.open: set[_Connection] = set()
        self.refused: set[_Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def protocol(self, make_http: MakeHttp) -> asyncio.Protocol:
        """The protocol of a new connection; `make_http` makes the one that speaks HTTP."""
        return _Connection(self, make_http)

    async def close(self, seconds: float) -> None:
        """Let what was asked be answered within so many seconds, then end every connection."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=seconds)
        for connection in [*self.open, *self.refused]:
            connection.drop()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class _Connection(asyncio.Protocol):
    """One connection: undecided, then HTTP's, or one line's."""

    def __init__(self, lines: Lines, make_http: MakeHttp) -> None:
        self._lines = lines
        self._make_http = make_http
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False
        self._said = False
        self._dropped = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("socket")
        uid = peer_uid(peer) if peer is not None else None
        if uid is not None and uid != self._lines.uid:
            self._refuse(Forbidden("only the user that runs the daemon may use its socket"))
        elif len(self._lines.open) >= self._lines.most:
            self._refuse(Unavailable(f"{self._lines.most} connections are open; ask again"))
        else:
            self._lines.open.add(self)
            self._wait(LINE_SECONDS, self._late)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._asked or self._said:
            self._dropped += len(data)
            if self._dropped > MAX_DROPPED:
                self.drop()
            return
        if not self._received and b"A" <= data[:1] <= b"Z":
            self._become_http(data)
            return
        before = len(self._received)
        self._received += data
        end = self._received.find(b"\n", before)
        if end > MAX_LINE or (end < 0 and len(self._received) > MAX_LINE):
            self._refuse(TooLarge(f"the line is over {MAX_LINE} bytes", field="request"))
        elif end >= 0:
            self._ask(bytes(self._received[:end]))

    def eof_received(self) -> bool | None:
        if self._said:
            return False
        if self._received and not self._asked:
            self._say(_told(Invalid("the line ended before its line end", field="request")))
            return True
        # What was asked is still answered to a peer that only closed its own side.
        return self._asked

    def _become_http(self, data: bytes) -> None:
        self._stop_timer()
        self._lines.open.discard(self)
        transport, self._transport = self._transport, None
        assert transport is not None
        http = self._make_http()
        transport.set_protocol(http)
        http.connection_made(transport)
        http.data_received(data)

    def _ask(self, line: bytes) -> None:
        self._asked = True
        self._received.clear()
        self._stop_timer()
        task = asyncio.get_running_loop().create_task(self._answer(line))
        self._lines.tasks.add(task)
        task.add_done_callback(self._lines.tasks.discard)

    async def _answer(self, line: bytes) -> None:
        try:
            answer = await self._lines.answer(line)
        except Exception:
            # Whoever waits for an answer holds one of the places there are.
            log.exception("a line was not answered")
            answer = _told(PostroomError("the operation failed; the daemon's log has the trace"))
        self._say(answer)

    def _late(self) -> None:
        if self._received:
            self._refuse(Invalid(f"the line did not end within {LINE_SECONDS:g} s", field="request"))
        else:
            self.drop()

    def _say(self, answer: bytes) -> None:
        """Answer, and close once the peer has read it."""
        if self._transport is not None and not self._transport.is_closing():
            self._said = True
            self._transport.write(answer)
            self._wait(READ_SECONDS, self.drop)
            self._transport.close()

    def _refuse(self, error: PostroomError) -> None:
        """Say why, and for a moment read on past what the peer is still sending."""
        self._lines.open.discard(self)
        self._received.clear()
        if len(self._lines.refused) >= self._lines.most:
            self._say(_told(error))
        elif self._transport is not None:
            self._said = True
            self._lines.refused.add(self)
            self._transport.write(_told(error))
            self._transport.write_eof()
            self._wait(LINGER_SECONDS, self.drop)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._lines.open.discard(self)
        self._lines.refused.discard(self)
        self._transport = None

    def drop(self) -> None:
        """End the connection, whatever it was about to say."""
        if self._transport is not None:
            self._transport.abort()


def _told(error: PostroomError) -> bytes:
    shown: dict[str, Any] = refusal(error)
    return dump_json(shown).encode() + b"\n"
