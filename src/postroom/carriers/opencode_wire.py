"""HTTP/1.1 to one loopback server over connections that are kept: a call costs a fraction of a general client's.

Every prompt is two calls or more, and a general client spent most of a delivery's processor time on them.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 3.0
MAX_ANSWER = 16 * 1024 * 1024

_CONNECTIONS = 200
_KEEP_SECONDS = 2.0
"""Shorter than any server keeps an idle connection: one that it is just closing loses a request."""

Take = Callable[[bytes], None]
Whole = tuple[int, bytes]
"""An answer's status and body."""


class NotReached(Exception):
    """There was no connection: nothing was sent."""


class Broken(Exception):
    """The connection ended, or what came over it was no answer, after the request was sent."""


class TooLong(Exception):
    """The answer is longer than MAX_ANSWER."""


class Connection(asyncio.Protocol):
    """One connection: one answer at a time, read whole or as a stream."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self.idle_since = 0.0
        self.heard_at = 0.0
        self.used = False
        """Whether it had an answer before."""
        self._begin()
        self.take: Take | None = None
        self.head: Callable[[], None] = lambda: None

    def _begin(self) -> None:
        self.status = 0
        self.content_type = ""
        self.body = bytearray()
        self._sized = False
        self._headed = False
        self._keep = False
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Whole] | None = None

    def send(self, request: bytes) -> asyncio.Future[Whole]:
        """The request is on its way; done when its whole answer is here. Fails with Broken or TooLong."""
        assert self.transport is not None
        self._begin()
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self.heard_at = loop.time()
        self.transport.write(request)
        return self._answer

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent over it."""
        return self._keep and not self.lost

    def close(self) -> None:
        """Open -> closed, whatever is under way."""
        self.lost = True
        if self.transport is not None:
            self.transport.abort()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()

    # As asyncio calls it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        if self._answer is None or self._answer.done():
            # Nothing was asked.
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            context = error.__context__
            self._fail(context if isinstance(context, TooLong) else Broken(f"no HTTP answer: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._answer is not None and not self._answer.done():
            # An answer without a length ends with its connection.
            if exc is None and self._headed and not self._sized:
                self._answer.set_result((self.status, bytes(self.body)))
            else:
                self._answer.set_exception(Broken(str(exc) if exc is not None else "it was closed"))

    # As the parser calls it.

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            # A second answer to one request: the next one must not be mistaken for it.
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"content-type":
            self.content_type = value.decode("latin-1")
        elif lowered in {b"content-length", b"transfer-encoding"}:
            self._sized = True

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headed = True
        self.head()

    def on_body(self, data: bytes) -> None:
        if self.take is not None:
            self.take(data)
            return
        self.body += data
        if len(self.body) > MAX_ANSWER:
            raise TooLong

    def on_message_complete(self) -> None:
        # What is said before the answer, as 100 Continue, is not the answer.
        if self.status >= 200 and self._answer is not None and not self._answer.done():
            self._keep = bool(self._parser.should_keep_alive())
            self._answer.set_result((self.status, bytes(self.body)))


class Wire:
    """The connections to one server, made when they are needed. Deadlines are the caller's, but for connecting."""

    def __init__(self, url: str, user: str, password: str | None) -> None:
        parts = urlsplit(url)
        self._plain = parts.scheme == "http" and bool(parts.hostname)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._base = parts.path.rstrip("/")
        host = parts.netloc.rpartition("@")[2]
        self._always = f"host: {host}\r\naccept-encoding: identity\r\n"
        if password is not None:
            proof = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
            self._always += f"authorization: Basic {proof}\r\n"
        self._idle: list[Connection] = []
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._open: set[Connection] = set()

    def _request(self, method: str, path: str, headers: str, body: bytes) -> bytes:
        length = f"content-length: {len(body)}\r\n" if method != "GET" else ""
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._always}{length}{headers}\r\n"
        return head.encode("latin-1") + body

    async def ask(self, method: str, path: str, headers: str, body: bytes = b"") -> Whole:
        """One request and its whole answer: status and body; headers are whole lines.

        Raises NotReached, Broken and TooLong. A GET that a kept connection lost is asked once more over a new one.
        """
        request = self._request(method, path, headers, body)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise NotReached(f"all of its {_CONNECTIONS} connections are in use") from None
        try:
            connection = self._kept() or await self._connect()
            if connection.used and method == "GET":
                try:
                    return await self._exchange(connection, request)
                except Broken:
                    connection = await self._connect()
            return await self._exchange(connection, request)
        finally:
            self._places.release()

    async def _exchange(self, connection: Connection, request: bytes) -> Whole:
        try:
            answer = await connection.send(request)
        except BaseException:
            self._drop(connection)
            raise
        if connection.reusable:
            connection.used = True
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            self._drop(connection)
        return answer

    def _kept(self) -> Connection | None:
        """The connection that was used last, when it is still good; all that idled for too long are closed."""
        oldest = asyncio.get_running_loop().time() - _KEEP_SECONDS
        while self._idle and (self._idle[0].lost or self._idle[0].idle_since < oldest):
            self._drop(self._idle.pop(0))
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost:
                return connection
            self._drop(connection)
        return None

    async def _connect(self) -> Connection:
        if not self._plain:
            raise NotReached("its address is expected to begin with http://")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(Connection, self._host, self._port)
        except TimeoutError:
            raise NotReached(f"no connection within {CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise NotReached(str(error) or type(error).__name__) from None
        self._open.add(connection)
        return connection

    def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()

    async def listen(
        self, path: str, headers: str, head: Callable[[int, str], Take | None], *, head_s: float, silence_s: float
    ) -> None:
        """A stream over a connection of its own, until it ends or says nothing for `silence_s`; head within `head_s`.

        head: called with status and content type; gives who takes what comes, or None to listen no further. Raises
        NotReached and Broken.
        """
        connection = await self._connect()
        loop = asyncio.get_running_loop()
        headed = loop.create_future()
        connection.take = lambda data: None

        def begun() -> None:
            if connection.status >= 200 and not headed.done():
                taker = head(connection.status, connection.content_type)
                connection.take = taker or connection.take
                headed.set_result(taker is not None)

        connection.head = begun
        try:
            ended = connection.send(self._request("GET", path, headers, b""))
            await asyncio.wait({ended, headed}, timeout=head_s, return_when=asyncio.FIRST_COMPLETED)
            if headed.done() and not headed.result():
                return
            while not ended.done():
                rest = connection.heard_at + (silence_s if headed.done() else 0.0) - loop.time()
                if rest <= 0:
                    raise Broken("it says nothing")
                await asyncio.wait({ended}, timeout=rest)
            ended.result()
        finally:
            headed.cancel()
            self._drop(connection)
            ended.cancel()

    def close(self) -> None:
        """Let go of every connection."""
        self._idle.clear()
        for connection in list(self._open):
            self._drop(connection)
