"""A small HTTP server on loopback whose every connection the test holds in its hand: it can hang, cut and restart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in; header names in lower case, the path still percent-encoded."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def parts(self) -> list[str]:
        """The path's parts, decoded one by one."""
        return [unquote(part) for part in self.path.strip("/").split("/")]

    def json(self) -> Any:
        """The body's value; None when it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass(slots=True)
class Answer:
    """What is answered: a value as JSON, or text chunks as they come (for event streams)."""

    status: int = 200
    value: Any = None
    stream: AsyncGenerator[str] | None = None
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


class Cut(Exception):
    """Raised by a handler: the connection ends without an answer."""


Handler = Callable[[Request], Awaitable[Answer]]


class WireServer:
    """Serves a handler on one loopback port, which stays the same when it is killed and started again."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Stopped -> listening."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._accept, sock=listener, backlog=1024)

    async def stop(self) -> None:
        """Listening -> gone at once, with every connection, as a killed process is."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._writers.add(writer)
        try:
            while (request := await _read(reader)) is not None:
                try:
                    answer = await self._handler(request)
                except Cut:
                    break
                if not await _send(writer, answer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            self._writers.discard(writer)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    head = await _head(reader)
    if head is None:
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return Request(method, parts.path, query, headers, body)


async def _head(reader: asyncio.StreamReader) -> bytes | None:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    """Whether the connection may be used again."""
    if answer.stream is not None:
        writer.write(_start(answer, {"content-type": answer.content_type, "connection": "close"}))
        await writer.drain()
        async with contextlib.aclosing(answer.stream) as stream:
            async for text in stream:
                writer.write(text.encode())
                await writer.drain()
        return False
    body = b"" if answer.status == 204 else _body(answer)
    writer.write(_start(answer, {"content-type": answer.content_type, "content-length": str(len(body))}) + body)
    await writer.drain()
    return True


def _body(answer: Answer) -> bytes:
    return answer.value.encode() if isinstance(answer.value, str) else json.dumps(answer.value).encode()


def _start(answer: Answer, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} x",
        *(f"{name}: {value}" for name, value in {**headers, **answer.headers}.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
