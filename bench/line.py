"""One connection to a daemon that is kept, and the requests and answers on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from bench.served import Served

DEADLINE = 60.0


def head(daemon: Served, method: str, path: str, length: int = 0) -> bytes:
    """A request's head under the admin's token, ready for the wire."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {daemon.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


class Line:
    """One connection to the daemon that is kept."""

    def __init__(self, daemon: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._daemon = daemon
        self._reader = reader
        self._writer = writer

    async def raw(self, request: bytes) -> bytes:
        """The answer's body; raises RuntimeError when it was refused."""
        self._writer.write(request)
        async with asyncio.timeout(DEADLINE):
            answered = await self._reader.readuntil(b"\r\n\r\n")
            length = int(answered.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await self._reader.readexactly(length)
        if not answered.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"refused: {body[:400]!r}")
        return body

    async def ask(self, method: str, path: str, value: Mapping[str, Any] | None = None) -> Any:
        """The answer's value to a request under the admin's token."""
        body = b"" if value is None else json.dumps(value).encode()
        return json.loads(await self.raw(head(self._daemon, method, path, len(body)) + body))


@asynccontextmanager
async def line_to(daemon: Served) -> AsyncIterator[Line]:
    """A connection, closed in the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    try:
        yield Line(daemon, reader, writer)
    finally:
        writer.close()
