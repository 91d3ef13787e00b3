"""The transport of protocol 0.1: bounded in size, time and number, whatever a peer does, and shared with HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from postroom.doors.socket import lines
from postroom.store.sqlite import SqliteEngine
from tests.doors.socket_rig import SocketRig, wake
from tests.processes import until

PING = b'{"op":"ping","protocol":"0.1"}\n'
MIB = 1024 * 1024


@pytest.fixture
async def connect(door: SocketRig) -> AsyncIterator[Callable[[], Any]]:
    """Opens connections that are closed after the test."""
    opened: list[asyncio.StreamWriter] = []

    async def open_one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(str(door.path))
        opened.append(writer)
        return reader, writer

    yield open_one
    for writer in opened:
        writer.close()


async def read(reader: asyncio.StreamReader) -> bytes:
    """Everything until the end."""
    async with asyncio.timeout(20):
        return await reader.read()


async def test_one_request_a_connection(door: SocketRig) -> None:  # T4
    answer = door.told(await door.raw(PING + PING))
    assert answer["ok"] is True
    await until(lambda: not door.lines.open, "nothing is left open")
    assert not door.lines.tasks


async def test_a_line_may_come_in_pieces(door: SocketRig, connect: Callable[[], Any]) -> None:
    reader, writer = await connect()
    for at in range(0, len(PING), 3):
        writer.write(PING[at : at + 3])
        await writer.drain()
        await asyncio.sleep(0)
    assert door.told(await read(reader))["ok"] is True


async def test_a_peer_that_closed_its_side_is_answered(door: SocketRig) -> None:
    await door.pane(1, "alpha")
    sent = json.dumps({"op": "send", **wake()}).encode() + b"\n"
    assert door.told(await door.raw(sent, eof=True))["ok"] is True
    assert await door.count() == 1


async def test_a_line_without_its_end_is_refused(door: SocketRig) -> None:
    error = door.error(door.told(await door.raw(PING[:-1], eof=True)), "invalid")
    assert error["message"] == "the line ended before its line end"
    await door.well()


async def test_a_peer_that_says_nothing_and_goes_is_forgotten(door: SocketRig) -> None:
    assert await door.raw(b"", eof=True) == b""
    await until(lambda: not door.lines.open, "nothing is left open")


async def test_a_slow_line_is_refused_and_a_silent_peer_dropped(
    door: SocketRig, connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LINE_SECONDS", 0.2)
    silent, _ = await connect()
    slow, writer = await connect()
    writer.write(b"{")
    assert await read(silent) == b""
    error = door.error(door.told(await read(slow)), "invalid")
    assert "did not end within" in error["message"]
    await door.well()


@pytest.mark.parametrize(
    "sent",
    [b"{" + b"x" * MIB, b"\x00" * MIB, b"\xff" * MIB, b"{" + b"x" * (128 * 1024) + b"\n", os.urandom(8) * 131072],
    ids=["object", "nul", "ff", "just over", "noise"],
)
async def test_a_mebibyte_of_garbage_is_refused_and_its_sender_reads_why(door: SocketRig, sent: bytes) -> None:
    if b"A" <= sent[:1] <= b"Z" or b"\n" in sent[: 128 * 1024]:
        sent = b"\x80" + sent.replace(b"\n", b"\x81")

    def blocking() -> bytes:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(20)
            peer.connect(str(door.path))
            # A plain client writes all of it before it reads.
            peer.sendall(sent)
            got = b""
            while part := peer.recv(65536):
                got += part
            return got

    error = door.error(door.told(await asyncio.to_thread(blocking)), "too_large")
    assert error["field"] == "request"
    await door.well()
    await until(lambda: not door.lines.refused, "nothing is left open")


async def test_a_peer_that_never_stops_sending_is_dropped(
    door: SocketRig, connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LINGER_SECONDS", 600.0)
    reader, writer = await connect()

    async def send_for_ever() -> None:
        while True:
            writer.write(b"{" * 65536)
            await writer.drain()

    with pytest.raises(ConnectionError):
        async with asyncio.timeout(20):
            await send_for_ever()
    assert not door.lines.refused
    reader.feed_eof()
    await door.well()


async def test_a_refused_peer_that_stays_is_dropped(
    door: SocketRig, connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LINGER_SECONDS", 0.05)
    _, writer = await connect()
    writer.write(b"{" * 200_000)
    await until(lambda: not door.lines.refused and not door.lines.open, "it is dropped")


async def test_a_peer_that_does_not_read_its_answer_is_dropped(
    door: SocketRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await door.pane(1, "alpha")
    for n in range(0, 200, 50):
        await asyncio.gather(*(door.send(idempotency_key=f"k{n + i}", body="x" * 8192) for i in range(50)))
    monkeypatch.setattr(lines, "READ_SECONDS", 0.2)
    answer, asked = door.lines.answer, asyncio.Event()

    async def noted(line: bytes) -> bytes:
        asked.set()
        return await answer(line)

    door.lines.answer = noted
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(door.path))
        peer.sendall(b'{"op":"history","limit":200}\n')
        await until(asked.is_set, "it is being answered")
        await until(lambda: not door.lines.tasks and not door.lines.open, "it is dropped")
        await door.well()


async def test_connections_are_bounded_in_number(engine: SqliteEngine) -> None:
    door = await SocketRig(engine, most=3).open()
    opened = []
    try:
        for _ in range(3):
            opened.append(await asyncio.open_unix_connection(str(door.path)))
        await until(lambda: len(door.lines.open) == 3, "three are open")
        error = door.error(door.told(await door.raw(PING)), "unavailable")
        assert "3 connections are open" in error["message"]
        # Those beyond the bound are themselves bounded: they are told, and closed at once.
        lingering = [await asyncio.open_unix_connection(str(door.path)) for _ in range(10)]
        assert len(door.lines.refused) <= 3
        for reader, writer in lingering:
            door.error(door.told(await read(reader)), "unavailable")
            writer.close()
        # One that is through makes room.
        opened[0][1].write(PING)
        assert door.told(await read(opened[0][0]))["ok"] is True
        await until(lambda: len(door.lines.open) == 2, "there is room")
        await door.well()
    finally:
        for _, writer in opened:
            writer.close()
        await door.close()


# T2
async def test_another_user_is_refused(engine: SqliteEngine) -> None:
    door = await SocketRig(engine, uid=os.geteuid() + 1).open()
    try:
        for sent in (PING, b"", b"GET /health HTTP/1.1\r\n\r\n", b"{" * MIB):
            error = door.error(door.told(await door.raw(sent, eof=sent == b"")), "forbidden")
            assert "user" in error["message"]
        assert not door.lines.tasks
    finally:
        await door.close()


async def test_http_and_lines_share_the_socket(door: SocketRig) -> None:
    for head in (b"GET / HTTP/1.1\r\n", b"POST", b"DELETE /", b"PATCH x"):
        assert await door.raw(head) == b"HTTP " + head
    for line in (PING, b" " + PING):
        assert door.told(await door.raw(line))["ok"] is True
    for line in (b"get / HTTP/1.1\r\n", b"\r\n", b"1\n", b"\x16\x03\x01\n"):
        door.error(door.told(await door.raw(line)), "invalid")
    # A connection that speaks HTTP is no longer counted here.
    reader, writer = await asyncio.open_unix_connection(str(door.path))
    writer.write(b"GET")
    assert await read(reader) == b"HTTP GET"
    writer.close()
    assert not door.lines.open


async def test_what_is_asked_is_answered_before_the_end(
    door: SocketRig, connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()
    answer = door.door.answer

    async def held(line: bytes) -> bytes:
        await go.wait()
        return await answer(line)

    door.lines.answer = held
    reader, writer = await connect()
    idle, _ = await connect()
    writer.write(PING)
    await until(lambda: door.lines.tasks, "it is being answered")
    closing = asyncio.create_task(door.lines.close(20))
    await asyncio.sleep(0)
    go.set()
    await closing
    assert door.told(await read(reader))["ok"] is True
    assert await read(idle) == b""
    assert not door.lines.open


async def test_a_line_that_nothing_was_made_of_is_answered_none_the_less(
    door: SocketRig, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(line: bytes) -> bytes:
        raise RuntimeError("secret words")

    answer, door.lines.answer = door.lines.answer, breaks
    error = door.error(door.told(await door.raw(PING)), "internal")
    assert "secret" not in error["message"]
    assert "secret words" in caplog.text
    await until(lambda: not door.lines.open, "nothing is left open")
    door.lines.answer = answer
    await door.well()


async def test_what_hangs_is_ended_at_the_end(door: SocketRig, connect: Callable[[], Any]) -> None:
    async def never(line: bytes) -> bytes:
        await asyncio.Event().wait()
        return line

    door.lines.answer = never
    reader, writer = await connect()
    writer.write(PING)
    await until(lambda: door.lines.tasks, "it is being answered")
    await door.lines.close(0.01)
    with pytest.raises(ConnectionError):
        # Without an answer the peer sees a broken connection, or an end where nothing was said.
        if await read(reader) == b"":
            raise ConnectionResetError
    assert not door.lines.tasks
