"""The acceptor: many connections in one turn of the loop, none while the system refuses, none after its end."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.doors import acceptor
from postroom.doors.acceptor import Acceptor

PEERS = 20


class Greeter(asyncio.Protocol):
    """Says one word to whoever connects."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"hello")
        transport.close()


class Listener(socket.socket):
    """A listening socket that counts what is taken, and can refuse."""

    taken = 0
    refusal: OSError | None = None

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusal is not None:
            raise self.refusal
        pair = super().accept()
        self.taken += 1
        return pair


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    with Listener(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.bind(str(tmp_path / "s"))
        one.listen(PEERS)
        one.setblocking(False)
        yield one


@pytest.fixture
def peers(listener: Listener) -> Iterator[list[socket.socket]]:
    """They are connected, and wait to be taken."""
    made = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(PEERS)]
    for one in made:
        one.settimeout(10)
        one.connect(listener.getsockname())
    yield made
    for one in made:
        one.close()


async def said(peer: socket.socket) -> bytes:
    return await asyncio.to_thread(peer.recv, 16)


async def test_who_waits_at_the_same_time_is_taken_in_the_same_turn(
    listener: Listener, peers: list[socket.socket]
) -> None:
    accepting = Acceptor(listener, Greeter)
    counts = {0}
    while listener.taken < PEERS:
        await asyncio.sleep(0)
        counts.add(listener.taken)
    assert counts == {0, PEERS}
    assert [await said(one) for one in peers] == [b"hello"] * PEERS
    accepting.close()
    await accepting.wait_closed()


async def test_a_turn_takes_no_more_than_its_share(
    listener: Listener, peers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "MOST", 7)
    accepting = Acceptor(listener, Greeter)
    counts = {0}
    while listener.taken < PEERS:
        await asyncio.sleep(0)
        counts.add(listener.taken)
    assert counts == {0, 7, 14, 20}
    accepting.close()


async def test_a_system_without_room_is_asked_again_later_and_nobody_is_lost(
    listener: Listener, peers: list[socket.socket], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "PAUSE", 0.01)
    listener.refusal = OSError(errno.EMFILE, "too many open files")
    with caplog.at_level(logging.WARNING, "postroom"):
        accepting = Acceptor(listener, Greeter)
        for _ in range(3):
            await asyncio.sleep(0)
    assert "too many open files" in caplog.text
    listener.refusal = None
    assert [await said(one) for one in peers] == [b"hello"] * PEERS
    accepting.close()


async def test_who_went_before_being_taken_costs_nobody_else_anything(
    listener: Listener, peers: list[socket.socket]
) -> None:
    for one in peers[:-1]:
        one.close()
    accepting = Acceptor(listener, Greeter)
    assert await said(peers[-1]) == b"hello"
    accepting.close()


@pytest.mark.parametrize("resting", [False, True])
async def test_after_its_end_none_is_taken(
    listener: Listener, peers: list[socket.socket], resting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "PAUSE", 0.001)
    accepting = Acceptor(listener, Greeter)
    if resting:
        listener.refusal = OSError(errno.ENFILE, "file table overflow")
        for _ in range(3):
            await asyncio.sleep(0)
    accepting.close()
    listener.refusal = None
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert listener.taken == 0
    await accepting.wait_closed()
