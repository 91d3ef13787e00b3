"""Connection: one peer that speaks HTTP, whose requests' heads are bounded in size and time, and which is one of so many.

uvicorn times only what is silent after an answer. A head that never ends, and a peer that never says anything, would
each hold a descriptor for ever, and the process has only so many of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroom.doors.http.answers import Answer
from postroom.doors.http.errors import TooSlow, error_answer
from postroom.errors import TooLarge, Unavailable

HEAD_SECONDS = 10.0
"""A head has to be whole this long after its connection was made, or after its first byte on one that goes on."""
MAX_HEAD = 64 * 1024
"""How much is read of a head that is not whole, after what came with its first byte."""


class _At(Enum):
    """What of a request comes next on a connection."""

    BETWEEN = auto()
    HEAD = auto()
    BODY = auto()


class Connection(HttpToolsProtocol):
    """uvicorn's protocol; `most` is how many may be open at its place, None any number."""

    def __init__(self, *, most: int | None = None, **made: Any) -> None:
        super().__init__(**made)
        self._most = most
        self._at = _At.BETWEEN
        self._head_bytes: int | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._most is not None and len(self.connections) > self._most:
            self._refuse(error_answer(Unavailable(f"{self._most} connections are open; ask again")))
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.transport.is_closing():
            self._stop_waiting()
        elif self._at is _At.HEAD:
            # The first piece may be the end of a large body for the most part.
            self._head_bytes = 0 if self._head_bytes is None else self._head_bytes + len(data)
            if self._head_bytes > MAX_HEAD:
                error = TooLarge(f"the request's head is over {MAX_HEAD} bytes", field="head")
                self._refuse(replace(error_answer(error), status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
            elif self._head_timer is None:
                self._await_head()
        elif self._answered() and self.timeout_keep_alive_task is None:
            # What came is no request: the rest of one that was answered early, or an empty line.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        self._at = _At.HEAD
        self._head_bytes = None
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._at = _At.BODY
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._at = _At.BETWEEN
        super().on_message_complete()

    def _answered(self) -> bool:
        """Whether requests were made here, and none of them waits for its answer."""
        return self.cycle is not None and self.cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            # The one before it is answered first, however long that takes.
            self._await_head()
        elif self._at is _At.HEAD:
            error = TooSlow(f"the request's head was not whole within {HEAD_SECONDS:g} s", field="head")
            self._refuse(error_answer(error))
        else:
            self.transport.close()

    def _refuse(self, answer: Answer) -> None:
        """Say why, in one piece, and close."""
        self._stop_waiting()
        headers = {
            b"content-type": answer.media,
            b"content-length": str(len(answer.body)).encode(),
            **dict(answer.headers),
            b"connection": b"close",
        }
        status = HTTPStatus(answer.status)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
        lines += [name + b": " + value for name, value in headers.items()]
        self.transport.write(b"\r\n".join([*lines, b"", answer.body]))
        self.transport.close()
