"""`python -m bench.post_peer`: an opencode server that costs next to nothing, in a process of its own.

It has every session that is asked for, answers each prompt with a turn that takes no time, and tells at once whoever
watches (`GET /watch`) which message came when, by the clock that all processes of a machine share. A session whose name
begins with ses_hang takes prompts and never answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator
from typing import cast

READ_LIMIT = 1024 * 1024

_EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
_WATCH = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
_TAKEN = b"HTTP/1.1 204 No Content\r\n\r\n"
_CONNECTED = b'data: {"payload":{"type":"server.connected","properties":{}}}\n\n'


class Peer:
    """What the sessions hold, and who listens."""

    def __init__(self) -> None:
        self.listeners: set[asyncio.Transport] = set()
        self.watchers: set[asyncio.Transport] = set()
        self.records: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=4))

    def answer(self, method: bytes, path: str, body: bytes) -> bytes | None:
        """The whole answer to a request; None for one that is never answered."""
        parts = path.partition("?")[0].split("/")
        if method == b"POST":
            return self._prompt(parts[2], body)
        if parts[2:] == ["status"]:
            return _json("{}")
        if len(parts) == 3:
            return _json(f'{{"id":"{parts[2]}","directory":"/work"}}')
        return _json(f"[{','.join(self.records[parts[2]])}]")

    def _prompt(self, session: str, body: bytes) -> bytes | None:
        came = time.perf_counter_ns()
        # The text holds msg_id=\"…\", and quotes in JSON are escaped.
        id_ = body.partition(b'msg_id=\\"')[2].partition(b"\\")[0]
        line = b"%s %d\n" % (id_, came)
        for watcher in self.watchers:
            watcher.write(line)
        if session.startswith("ses_hang"):
            return None
        message = body.partition(b'"messageID"')[2].split(b'"', 2)[1].decode()
        answer = f"msg_{int(message[4:16], 16) + 1:012x}answer"
        user = f'{{"id":"{message}","sessionID":"{session}","role":"user","time":{{"created":1}}}}'
        said = (
            f'{{"id":"{answer}","sessionID":"{session}","role":"assistant","parentID":"{message}",'
            f'"time":{{"created":1,"completed":2}},"finish":"stop"}}'
        )
        records = self.records[session]
        records.append(f'{{"info":{user},"parts":[]}}')
        records.append(f'{{"info":{said},"parts":[]}}')
        told = b"".join(
            (
                _event("session.status", f'"sessionID":"{session}","status":{{"type":"busy"}}'),
                _event("message.updated", f'"sessionID":"{session}","info":{said}'),
                _event("session.status", f'"sessionID":"{session}","status":{{"type":"idle"}}'),
                _event("session.idle", f'"sessionID":"{session}"'),
            )
        )
        for listener in self.listeners:
            listener.write(told)
        return _TAKEN


def _event(kind: str, properties: str) -> bytes:
    return f'data: {{"directory":"/work","payload":{{"type":"{kind}","properties":{{{properties}}}}}}}\n\n'.encode()


def _json(text: str) -> bytes:
    body = text.encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


class Connection(asyncio.Protocol):
    """One connection: requests one after the other, or a stream."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._peer.listeners.discard(self._transport)
            self._peer.watchers.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            head, end, rest = self._data.partition(b"\r\n\r\n")
            if not end:
                return
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(rest) < length:
                return
            self._data = rest[length:]
            self._take(head, rest[:length])

    def _take(self, head: bytes, body: bytes) -> None:
        method, path, _ = head.split(b" ", 2)
        transport = self._transport
        assert transport is not None
        match path:
            case b"/global/event":
                transport.write(_EVENTS + _CONNECTED)
                self._peer.listeners.add(transport)
            case b"/watch":
                transport.write(_WATCH)
                self._peer.watchers.add(transport)
            case _:
                answer = self._peer.answer(method, path.decode(), body)
                if answer is not None:
                    transport.write(answer)


@contextlib.contextmanager
def peer() -> Iterator[int]:
    """A server of one's own, ended in the end: its port."""
    process = subprocess.Popen([sys.executable, "-m", "bench.post_peer"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


@contextlib.asynccontextmanager
async def watching(port: int) -> AsyncIterator[asyncio.StreamReader]:
    """A stream of lines: a message's id, and when it came (ns of the shared clock)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=READ_LIMIT)
    writer.write(b"GET /watch HTTP/1.1\r\nhost: peer\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    try:
        yield reader
    finally:
        writer.close()


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(made), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    made = Peer()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve())
