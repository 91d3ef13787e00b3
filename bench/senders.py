"""Senders of webhooks that cost little beside the daemon they share the machine with: requests signed beforehand,
as ready bytes, over sockets that one loop looks after."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SECRET = "a secret of the bench"
SOURCE = f"""\
[[source]]
name = "github"
provider = "github"
secrets = ["{SECRET}"]
queue = "inbox"
"""
SENDERS = 32
ANSWER_SECONDS = 60.0

_PAYLOADS = Path(__file__).parents[1] / "tests/payloads/github"
_SEND_BUFFER = 256 * 1024


def request(body: bytes, id_: str, kind: str = "issues", secret: str = SECRET) -> bytes:
    """A delivery as GitHub posts it, ready for the wire."""
    made = hmac.digest(secret.encode(), body, hashlib.sha256).hex()
    head = (
        f"POST /hooks/github HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nUser-Agent: GitHub-Hookshot/0123456\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nX-GitHub-Delivery: {id_}\r\n"
        f"X-GitHub-Event: {kind}\r\nX-GitHub-Hook-ID: 292430182\r\nX-GitHub-Hook-Installation-Target-ID: 79929171\r\n"
        f"X-GitHub-Hook-Installation-Target-Type: repository\r\nX-Hub-Signature-256: sha256={made}\r\n\r\n"
    )
    return head.encode() + body


class Mail:
    """GitHub's published bodies in turn, 7 to 25 KB as it sends them, each made another one and signed anew."""

    def __init__(self) -> None:
        values = [(path.name, json.loads(path.read_bytes())) for path in sorted(_PAYLOADS.glob("*.json"))]
        self._bodies = [
            (name.split(".")[0], json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()[:-1])
            for name, value in values
            if not name.startswith("ping.")
        ]
        self.made = 0

    @property
    def mean_bytes(self) -> float:
        """How large a body is."""
        return sum(len(body) for _, body in self._bodies) / len(self._bodies)

    def take(self, count: int) -> list[bytes]:
        """So many further requests, no two with one id or one body."""
        made = []
        for _ in range(count):
            kind, body = self._bodies[self.made % len(self._bodies)]
            self.made += 1
            made.append(request(body + b',"delivery_number":%d}' % self.made, f"bench-{self.made:012d}", kind))
        return made


@dataclass(frozen=True, slots=True)
class Posted:
    """What posting came to: deliveries a second, and each one's time from the first byte sent to the answer (ms)."""

    rate: float
    times_ms: tuple[float, ...]


def post(port: int, requests: Sequence[bytes], senders: int = SENDERS, expected: int = 202) -> Posted:
    """Post every request over so many connections, each waiting for its answer before it sends the next one.

    Raises RuntimeError for an answer of another status, or none in a minute.
    """
    wanted = b"HTTP/1.1 %d " % expected
    times: list[float] = []
    clock = time.perf_counter
    with _connections(port, min(senders, len(requests))) as places, select.epoll() as watched:
        waiting = iter(requests)
        since: dict[int, float] = {}
        started = clock()
        for number, place in places.items():
            watched.register(number, select.EPOLLIN)
            since[number] = clock()
            place.sendall(next(waiting))
        while since:
            ready = watched.poll(ANSWER_SECONDS)
            if not ready:
                raise RuntimeError(f"{len(since)} deliveries had no answer in {ANSWER_SECONDS:.0f} s")
            for number, _ in ready:
                place = places[number]
                _read_answer(place, wanted)
                now = clock()
                times.append((now - since.pop(number)) * 1000)
                following = next(waiting, None)
                if following is not None:
                    since[number] = now
                    place.sendall(following)
        took = clock() - started
    return Posted(len(times) / took, tuple(times))


@contextlib.contextmanager
def _connections(port: int, count: int) -> Iterator[dict[int, socket.socket]]:
    with contextlib.ExitStack() as stack:
        places: dict[int, socket.socket] = {}
        for _ in range(count):
            place = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS))
            place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A whole request fits, so that writing one never waits for its reader.
            place.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            places[place.fileno()] = place
        yield places


def _read_answer(place: socket.socket, wanted: bytes) -> None:
    """Read one whole answer."""
    data = place.recv(65536)
    while True:
        head, end, rest = data.partition(b"\r\n\r\n")
        if end:
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(rest) >= length:
                break
        more = place.recv(65536)
        if not more:
            raise RuntimeError(f"the connection was closed after {data[:200]!r}")
        data += more
    if not data.startswith(wanted):
        raise RuntimeError(f"the answer was {data[:400]!r}")
