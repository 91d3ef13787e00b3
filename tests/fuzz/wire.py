"""Raw sockets: a request byte for byte as it is wanted, and every answer that comes back."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st

from tests.fuzz.shots import Line, Shot

ANSWER_S: Final = 20.0
_CLOSE: Final[Line] = (b"Connection", b"close")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer's status and body."""

    status: int
    body: bytes = b""


def written(shot: Shot) -> bytes:
    """The bytes of a request, which asks for the connection to be closed after its answer."""
    lines = [line for line in shot.lines if line[0].lower() not in {b"content-length", b"transfer-encoding"}]
    if shot.pieces:
        lines.append((b"Transfer-Encoding", b"chunked"))
        size = len(shot.body) // shot.pieces + 1
        parts = [shot.body[at : at + size] for at in range(0, len(shot.body), size)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    else:
        lines.append((b"Content-Length", b"%d" % len(shot.body)))
        body = shot.body
    head = b"".join(b"%b: %b\r\n" % line for line in [*lines, _CLOSE])
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (shot.method, shot.target, head, body)


@dataclass(frozen=True, slots=True)
class Wire:
    """Bytes for a connection, and whether the sender then says that no more will come."""

    sent: bytes
    hang_up: bool

    def __repr__(self) -> str:
        return f"Wire({self.sent[:3000]!r} of {len(self.sent)}, hang_up={self.hang_up})"


@st.composite
def broken(draw: st.DrawFn, whole: bytes) -> Wire:
    """A request with the wire's own faults."""
    return Wire(*draw(_broken(whole)))


@st.composite
def _broken(draw: st.DrawFn, whole: bytes) -> tuple[bytes, bool]:
    head, _, body = whole.partition(b"\r\n\r\n")
    match draw(st.integers(0, 7)):
        case 0:
            return whole[: draw(st.integers(0, len(whole)))], True
        case 1:
            lied = draw(
                st.sampled_from([b"0", b"1", b"-1", b"1e3", b"+5", b"0x10", b"5, 6", b"", b"9" * 30, b"99999999"])
            )
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
            return b"\r\n".join([*lines, b"Content-Length: " + lied]) + b"\r\n\r\n" + body, True
        case 2:
            length = b"\r\nContent-Length: %d" % len(body)
            return head + b"\r\nTransfer-Encoding: chunked" + length + b"\r\n\r\n" + body, True
        case 3:
            chunk = draw(
                st.sampled_from(
                    [b"zz\r\n", b"-1\r\n", b"ffffffffffffffff\r\nx", b"5\r\nab", b"0\r\n", b"\r\n", b"3;x=y\r\nabc\r\n"]
                )
            )
            return b"POST /hooks/github HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk, True
        case 4:
            place = draw(st.integers(0, max(len(head) - 1, 0)))
            return whole[:place] + draw(st.binary(max_size=4)) + whole[place:], True
        case 5:
            return whole.replace(b"Connection: close", b"Connection: keep-alive") + whole, False
        case 6:
            return draw(st.binary(max_size=200)), True
        case _:
            first = draw(st.sampled_from([b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"HTTP/9", b"", b"HTTP/1.1 x"]))
            return whole.replace(b"HTTP/1.1", first, 1), True


def exchange(port: int, sent: bytes, *, hang_up: bool = False) -> list[Answer]:
    """The answers on a connection of its own, read to its end."""
    got = b""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), ANSWER_S)) as connection:
        # What refuses early may close before all was sent: then what it said counts.
        with _though_closed():
            connection.sendall(sent)
            if hang_up:
                connection.shutdown(socket.SHUT_WR)
        with _though_closed():
            while part := connection.recv(65536):
                got += part
    return parsed(got)


@contextlib.contextmanager
def _though_closed() -> Iterator[None]:
    """Go on when the other side has closed the connection; fail when it does nothing at all."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError:
        return


def parsed(got: bytes) -> list[Answer]:
    """The answers in what came back; each of them has a Content-Length or is the last."""
    answers: list[Answer] = []
    while got.startswith(b"HTTP/1."):
        head, _, rest = got.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        size = int(lengths[0]) if lengths else len(rest)
        answers.append(Answer(status, rest[:size]))
        got = rest[size:]
    return answers
