"""A receiver of webhooks on loopback that answers as it is told, and what it was sent."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from standardwebhooks import Webhook

from postroom.carriers.webhook_place import WebhookPlace
from postroom.endpoint import CarrierKind
from postroom.message import Parcel
from tests.carriers.parcels import parcel

KEY = bytes(range(32))
OLD_KEY = bytes(range(1, 33))
Play = Callable[[asyncio.StreamWriter], Awaitable[None]]


def secret(key: bytes = KEY) -> str:
    """A key as it stands in settings."""
    return "whsec_" + base64.b64encode(key).decode()


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in; header names in lower case."""

    line: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def event(self) -> Any:
        """The body's value."""
        return json.loads(self.body)

    def verified(self, key: bytes = KEY) -> Any:
        """The event, once the library of Standard Webhooks has found the signature good."""
        return Webhook(secret(key)).verify(self.body, dict(self.headers))


def answer(status: int = 204, headers: str = "", body: bytes = b"") -> bytes:
    """An answer's bytes; headers are whole lines."""
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


class Receiver:
    """Answers each request with the next of `answers` (bytes, or what to do with the connection), then with 204."""

    def __init__(self, *answers: bytes | Play, tls: ssl.SSLContext | None = None) -> None:
        self.answers: list[bytes | Play] = list(answers)
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> Receiver:
        """Not listening -> listening, at the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Listening -> not; what is open is cut."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
            line, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append(Request(line, headers, body))
            play = self.answers.pop(0) if self.answers else answer()
            if isinstance(play, bytes):
                writer.write(play)
                await writer.drain()
            else:
                await play(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    def place(self, name: str = "ops", path: str = "/hook", **more: Any) -> WebhookPlace:
        """The settings of a webhook at this receiver."""
        scheme, host = ("http", "127.0.0.1") if self._tls is None else ("https", "hooks.example")
        more = {"keys": (KEY,), "allow_private": True, "timeout_s": 10.0, **more}
        return WebhookPlace(name, f"{scheme}://{host}:{self.port}{path}", **more)


async def hang(writer: asyncio.StreamWriter) -> None:
    """Say nothing until the other side goes."""
    await writer.wait_closed()


async def cut(writer: asyncio.StreamWriter) -> None:
    """End the connection without a word."""
    writer.transport.abort()


def to_webhook(payload: str = "hello", *, name: str = "ops", round: int = 0, **more: Any) -> Parcel:
    """A leased delivery to a webhook; `more` are fields of its message."""
    made = parcel("ops", payload, round=round, **{"sender": "ann", "addressed": name, **more})
    key = f"webhook:{name}"
    return replace(
        made,
        delivery=replace(made.delivery, carrier=CarrierKind.WEBHOOK, target_key=key, reach=key, mailbox=name),
        target=replace(made.target, key=key, carrier=CarrierKind.WEBHOOK),
    )


class Names:
    """A resolver whose answers the test gives, one a question; the last is given again."""

    def __init__(self, *answers: Sequence[str] | Exception) -> None:
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        given = next(self._answers)
        if isinstance(given, Exception):
            raise given
        return given
