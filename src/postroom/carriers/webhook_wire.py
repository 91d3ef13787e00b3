"""One HTTP/1.1 request to a receiver that may be anywhere: to an address that was looked at, and over in good time.

A name is resolved once and the connection goes to what was resolved and judged, so that no second answer of a name
server can lead elsewhere. Each request has a connection of its own; redirects are answers like any other.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import cast

import httptools

from postroom.carriers.webhook_address import closed_kind
from postroom.carriers.webhook_place import WebhookPlace

CONNECT_SECONDS = 5.0
"""For resolving, connecting and TLS together."""
BODY_SECONDS = 1.0
"""How long the rest of an answer is waited for once its head has come: it changes nothing."""
MAX_ANSWER = 64 * 1024
MOST_ADDRESSES = 4

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> the host's addresses, in the order to try them. Raises OSError."""


class NotSent(Exception):
    """Nothing of the request has left: no address, none that may be called, no connection, or no trust in it."""


class Unanswered(Exception):
    """The request was sent, wholly or in part, and no answer came: nobody knows what became of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver answered; retry_after as it stands there."""

    status: int
    retry_after: str | None = None


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host as this machine resolves it."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(_numbers(info[4]) for info in found))


def _numbers(address: Sequence[object]) -> str:
    """The numbers of a socket's address, with its zone where it has one."""
    numbers = str(address[0])
    zone = address[3] if len(address) > 3 else 0
    return f"{numbers}%{zone}" if zone and "%" not in numbers else numbers


class _Exchange(asyncio.Protocol):
    """One connection with one answer; of that only the head is kept."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.headed: asyncio.Future[Answer] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._read = 0
        self._retry_after: str | None = None

    def send(self, request: bytes) -> None:
        """The request is on its way."""
        assert self.transport is not None
        self.transport.write(request)

    def close(self) -> None:
        """Open -> closed; what is under way is dropped."""
        if self.transport is not None:
            if self.ended.done():
                self.transport.close()
            else:
                self.transport.abort()
        # Nobody may be left to hear of it.
        self.headed.cancel()
        self.ended.cancel()

    def _fail(self, words: str) -> None:
        if not self.headed.done():
            self.headed.set_exception(Unanswered(words))
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    # As asyncio calls it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        self._read += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("what came back is no HTTP answer")
        if self._read > MAX_ANSWER:
            self._fail(f"the answer's head is longer than {MAX_ANSWER} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection ended without an answer")

    # As the parser calls it.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        # What is said before the answer, as 103 Early Hints, is not the answer.
        if status >= 200 and not self.headed.done():
            self.headed.set_result(Answer(status, self._retry_after))

    def on_message_complete(self) -> None:
        if self.headed.done():
            self._end()


class WebhookWire:
    """Requests to webhooks. `trust` makes the TLS context, by default the one with the system's certificates."""

    def __init__(
        self, resolve: Resolve = resolve, trust: Callable[[], ssl.SSLContext] = ssl.create_default_context
    ) -> None:
        self._resolve = resolve
        self._trust = trust
        self._context: ssl.SSLContext | None = None

    async def post(self, place: WebhookPlace, headers: str, body: bytes, seconds: float) -> Answer:
        """One POST and the head of its answer, within `seconds`; headers are whole lines. Raises NotSent, Unanswered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        exchange = await self._connect(place, min(CONNECT_SECONDS, seconds))
        try:
            exchange.send(_request(place, headers, body))
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await exchange.headed
            except TimeoutError:
                raise Unanswered(f"no answer within {seconds:g} s") from None
            await asyncio.wait({exchange.ended}, timeout=min(BODY_SECONDS, max(deadline - loop.time(), 0.0)))
            return answer
        finally:
            exchange.close()

    async def _connect(self, place: WebhookPlace, seconds: float) -> _Exchange:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                addresses = (await self._addresses(place))[:MOST_ADDRESSES]
                context = await self._tls() if place.parts.scheme == "https" else None
        except TimeoutError:
            raise NotSent(f"the name {place.host} was not resolved within {seconds:g} s") from None
        problem = ""
        for number, address in enumerate(addresses):
            share = (deadline - loop.time()) / (len(addresses) - number)
            try:
                async with asyncio.timeout(share):
                    _, exchange = await loop.create_connection(
                        _Exchange,
                        address,
                        place.port,
                        ssl=context,
                        server_hostname=place.host if context is not None else None,
                    )
                return exchange
            except TimeoutError:
                problem = f"no connection within {seconds:g} s"
            except ssl.SSLCertVerificationError as error:
                problem = f"its certificate is not trusted: {error.verify_message}"
            except ssl.SSLError as error:
                problem = f"TLS failed: {error.reason or type(error).__name__}"
            except OSError as error:
                problem = f"no connection: {os.strerror(error.errno) if error.errno else type(error).__name__}"
        raise NotSent(problem)

    async def _addresses(self, place: WebhookPlace) -> Sequence[str]:
        """Where the host is, each address judged: one that may not be called spoils all."""
        try:
            addresses = await self._resolve(place.host, place.port)
        except (OSError, UnicodeError) as error:
            words = getattr(error, "strerror", None) or type(error).__name__
            raise NotSent(f"the name {place.host} is not resolved: {words}") from None
        if not addresses:
            raise NotSent(f"the name {place.host} has no address")
        if not place.allow_private:
            for address in addresses:
                kind = closed_kind(address)
                if kind is not None:
                    raise NotSent(
                        f"{place.host} is at {address}, which is {kind} and not called: allow_private in the webhook's "
                        "settings would allow it"
                    )
        return addresses

    async def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            # The system's certificates are read from its disk.
            self._context = await asyncio.to_thread(self._trust)
        return self._context


def _request(place: WebhookPlace, headers: str, body: bytes) -> bytes:
    parts = place.parts
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = (
        f"POST {target} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\naccept-encoding: identity\r\nconnection: close\r\n{headers}\r\n"
    )
    return head.encode("ascii") + body


def wait_of(answer: Answer, now: int) -> float | None:
    """For how many seconds the receiver asks to be left alone, as a number or a date; `now` is ms UTC. None: it does not."""
    given = (answer.retry_after or "").strip()
    if given.isascii() and given.isdigit():
        return float(given[:9])
    try:
        until = parsedate_to_datetime(given).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return until - now / 1000 if until * 1000 > now else None
