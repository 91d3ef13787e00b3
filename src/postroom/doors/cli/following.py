"""Following a stream of the daemon's over one connection, for as long as somebody reads what is printed of it."""

from __future__ import annotations

import http.client
import select
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from postroom.doors.cli.connection import Daemon, Unreachable
from postroom.happening import Happening, HappeningFilter
from postroom.happening_wire import PATH, QUIET_S, EventReader, query_pairs

MOST_QUIET_S: Final = 3 * QUIET_S
LEAST_ANSWER_S: Final = 2.0
"""How long the beginning of an answer is waited for, however little time is left."""
MOST_BYTES: Final = 64 * 1024


if TYPE_CHECKING:
    import socket


class Over(Exception):
    """There is nothing more to do: the time is up, or nobody reads our output any more."""


def rest(seconds: float, until: float | None) -> None:
    """Wait so long. Raises Over when the time is up (`until`, monotonic) or nobody reads our output."""
    _wait(None, seconds, until)


class Followed:
    """The happenings of one connection: it ends when the daemon does. Raises as a question to the daemon does."""

    def __init__(self, daemon: Daemon, wanted: HappeningFilter, until: float | None) -> None:
        self._daemon = daemon
        self._wanted = wanted
        self._until = until
        self._held = ExitStack()

    def __enter__(self) -> Self:
        quiet_s = min(max(self._patience(), LEAST_ANSWER_S), MOST_QUIET_S)
        opened = self._daemon.opened(PATH, query_pairs(self._wanted), quiet_s)
        self._connection, self._response = self._held.enter_context(opened)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def __iter__(self) -> Iterator[Happening]:
        reader = EventReader()
        try:
            while piece := self._response.read1(MOST_BYTES):
                yield from reader.feed(piece)
                if not self._more() and not _wait(self._connection.sock, MOST_QUIET_S, self._until):
                    raise TimeoutError("nothing came for too long")
        except ValueError as error:
            raise Unreachable(
                f"what {self._daemon.address} tells is no stream: {error}", "Check POSTROOM_URL."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            if self._until is not None and time.monotonic() >= self._until:
                raise Over from None
            raise Unreachable(f"the stream of {self._daemon.address} broke: {error}", "Ask again.") from None

    def _patience(self) -> float:
        left = MOST_QUIET_S if self._until is None else self._until - time.monotonic()
        return min(max(left, 0.001), MOST_QUIET_S)

    def _more(self) -> bool:
        """Whether a piece was read already and waits inside the response."""
        sock = self._connection.sock
        if sock is None or self._response.fp is None:
            return True
        if hasattr(sock, "pending"):
            # What TLS holds is not seen from outside: the read that follows waits, and nobody watches the output.
            sock.settimeout(self._patience())
            return True
        sock.settimeout(0)
        try:
            # The line that ends a chunk stays until the next one is asked for.
            return self._response.fp.peek(1) not in {b"", b"\r\n"}
        finally:
            sock.settimeout(self._patience())


def _wait(sock: socket.socket | None, seconds: float, until: float | None) -> bool:
    """Wait until there is something to read on the socket, True; or so long, False. Raises Over."""
    left = seconds if until is None else min(seconds, until - time.monotonic())
    watched = select.poll()
    if sock is not None:
        watched.register(sock, select.POLLIN)
    output = _output()
    if output is not None:
        # Without events to wait for, only the end of a pipe's reader is told.
        watched.register(output, 0)
    found = watched.poll(max(left, 0.0) * 1000)
    if any(number == output for number, _ in found):
        raise Over
    if until is not None and time.monotonic() >= until:
        raise Over
    return bool(found)


def _output() -> int | None:
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return None
