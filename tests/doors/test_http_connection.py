"""Connections that speak HTTP: half a request holds none for ever, and at no place may they take every descriptor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sized
from pathlib import Path
from typing import Any

import pytest

from postroom.doors import listeners
from postroom.doors.http import connection
from postroom.doors.listeners import Listeners
from postroom.doors.socket.lines import Lines
from tests.processes import until

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost:"
WAIT = GET.replace(b"/ ", b"/wait ")
SOON = 0.2
PLACES = ("port", "socket", "hooks")

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class App:
    """Answers `ok`: at once, for /wait when it may, for /body with what it was sent; at /early before that has come."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.waiting = 0

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        said = b"ok"
        if scope["path"] == "/wait":
            self.waiting += 1
            await self.may.wait()
        elif scope["path"] == "/body":
            self.waiting += 1
            said, more = b"", True
            while more:
                part = await receive()
                said, more = said + part["body"], part["more_body"]
        head = [(b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": said})


class Served:
    """An app on listeners of its own; `peer` opens a connection at one of its places."""

    def __init__(self) -> None:
        self.app = App()
        # A Unix socket's path has to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="pr-"))
        self.path = self.folder / "own" / "s"
        self.lines = Lines(self._answer)
        self.listeners = Listeners(
            self.app, self.app, host="127.0.0.1", port=0, path=self.path, hooks_port=0, lines=self.lines
        )
        self.writers: list[asyncio.StreamWriter] = []

    @staticmethod
    async def _answer(line: bytes) -> bytes:
        return line + b"\n"

    async def peer(self, place: str, *said: bytes) -> Peer:
        if place == "socket":
            reader, writer = await asyncio.open_unix_connection(str(self.path))
        else:
            base = self.listeners.base if place == "port" else self.listeners.hooks_base
            reader, writer = await asyncio.open_connection("127.0.0.1", int(str(base).rpartition(":")[2]))
        self.writers.append(writer)
        for part in said:
            writer.write(part)
            await writer.drain()
        return reader, writer


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    served = Served()
    served.listeners.open()
    running = asyncio.create_task(served.listeners.serve())
    try:
        yield served
    finally:
        served.app.may.set()
        for writer in served.writers:
            writer.close()
        served.listeners.stop()
        await running
        served.listeners.close()
        shutil.rmtree(served.folder)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as made:
        yield made


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Everything until the other side is done."""
    async with asyncio.timeout(20):
        return await reader.read()


async def answered(reader: asyncio.StreamReader) -> None:
    """One answer that says `ok`."""
    async with asyncio.timeout(20):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(2) == b"ok"


async def asked(served: Served, count: int) -> None:
    """So many requests have reached the app."""
    await until(lambda: served.app.waiting == count, f"{count} requests are being answered")


async def room(connections: Sized, most: int) -> None:
    """There are fewer connections than there may be."""
    await until(lambda: len(connections) < most, "there is room for a further one")


def refused(raw: bytes, status: int, code: str, words: str) -> None:
    """It is one refusal, in the shape of every other."""
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), raw
    assert b"connection: close" in head
    assert b"content-length: %d" % len(body) in head
    error = json.loads(body)["error"]
    assert error["code"] == code
    assert words in error["message"]


async def test_half_a_request_is_told_that_it_is_too_slow_and_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on = [await served.peer(place, GET) for place in PLACES]
    for reader, _ in went_on:
        await answered(reader)
    monkeypatch.setattr(connection, "HEAD_SECONDS", SOON)
    for _, writer in went_on:
        writer.write(HALF)
    halves = [await served.peer(place, HALF) for place in PLACES]
    # A peer that says nothing is told nothing; on the socket it was never HTTP's.
    silent = [await served.peer(place, said) for place in ("port", "hooks") for said in (b"", b"\r\n")]
    for reader, _ in went_on:
        refused(await rest(reader), 408, "invalid", "was not whole within 0.2 s")
    for reader, _ in halves:
        # One whose half came late had said nothing yet.
        if told := await rest(reader):
            refused(told, 408, "invalid", "was not whole within 0.2 s")
    for reader, _ in silent:
        assert await rest(reader) == b""


async def test_what_waits_for_its_answer_is_left_alone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"
    waiting = [await served.peer(place, WAIT) for place in PLACES]
    piped = [await served.peer(place, WAIT) for place in PLACES]
    slow = [await served.peer(place, body) for place in PLACES]
    idle = [await served.peer(place, GET) for place in PLACES]
    for reader, _ in idle:
        await answered(reader)
    await asked(served, 9)
    monkeypatch.setattr(connection, "HEAD_SECONDS", SOON)
    for _, writer in piped:
        writer.write(HALF)
    for _ in range(2):
        # The time is over when this one is closed.
        await rest((await served.peer("port", HALF))[0])
    for _, writer in slow:
        writer.write(b"ok")
    for _, writer in idle:
        writer.write(GET)
    served.app.may.set()
    for reader, _ in (*waiting, *piped, *slow, *idle):
        await answered(reader)
    # The half one behind the other is closed once that is through.
    for reader, _ in piped:
        refused(await rest(reader), 408, "invalid", "was not whole within 0.2 s")


@pytest.mark.parametrize("place", PLACES)
async def test_a_head_without_end_is_refused(served: Served, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_HEAD", 10_000)
    for begun in (b"GET /", b"GET / HTTP/1.1\r\nA: "):
        reader, writer = await served.peer(place, begun)
        with contextlib.suppress(ConnectionError):
            # More than the first piece may hold of it.
            for _ in range(100):
                writer.write(b"a" * 10_000)
                await writer.drain()
        told = b""
        with contextlib.suppress(ConnectionError):
            # What is still sent to a closed connection may take the answer with it.
            told = await rest(reader)
        if told:
            refused(told, 431, "too_large", "over 10000 bytes")
    large = b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: %s\r\n" % (n, b"x" * 90) for n in range(90)) + b"\r\n"
    reader, _ = await served.peer(place, large[:5], large[5:])
    await answered(reader)


async def test_a_connection_that_goes_on_without_a_request_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "KEEP_SECONDS", SOON)
    async with serving() as served:
        early = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
        for said, more in ((GET, b"\r\n"), (early, b"some of it")):
            reader, writer = await served.peer("port", said)
            await answered(reader)
            writer.write(more)
            with contextlib.suppress(ConnectionError):
                assert await rest(reader) == b""


async def test_connections_are_bounded_in_number_at_each_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (12, 4096))
    async with serving() as served:
        opened = [server.server_state.connections for server, _ in served.listeners._servers]
        for place, most, open_ in zip(PLACES, (6, 3, 3), opened, strict=True):
            held = [await served.peer(place, WAIT) for _ in range(most)]
            await asked(served, most)
            for said in (GET, HALF):
                beyond, _ = await served.peer(place, said)
                refused(await rest(beyond), 503, "unavailable", f"{most} connections are open")
            # Whoever speaks in lines has a place none the less.
            line, _ = await served.peer("socket", b"{}\n")
            assert await rest(line) == b"{}\n"
            held[0][1].close()
            served.app.may.set()
            for reader, _ in held[1:]:
                await answered(reader)

            await room(open_, most)
            await answered((await served.peer(place, GET))[0])
            served.app.may.clear()
            served.app.waiting = 0
