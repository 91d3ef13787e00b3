"""The wire to an opencode server: answers of every shape, connections that are kept or lost, and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from postroom.carriers import opencode_wire
from postroom.carriers.opencode_wire import Broken, NotReached, Take, TooLong, Wire
from tests.processes import until

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Script:
    """A server that plays one part a connection; the last part is played again for every further one."""

    def __init__(self, *parts: Play) -> None:
        self.parts = list(parts)
        self.heads: list[bytes] = []
        self.connections = 0
        self.ended = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        play = self.parts[min(self.connections, len(self.parts) - 1)]
        self.connections += 1
        self._open.add(writer)
        try:
            await play(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            self.ended += 1
            writer.close()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """The next request's head; its body is read and left."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        self.heads.append(head)
        return head

    def says(self, *answers: bytes, then_close: bool = False) -> Play:
        """A part: these answers to the first requests, and the last one to every further request, unless it closes."""

        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for number in range(10_000):
                await self.request(reader)
                writer.write(answers[min(number, len(answers) - 1)])
                if then_close and number + 1 >= len(answers):
                    return

        return play


@pytest.fixture
async def script() -> AsyncIterator[Script]:
    made = Script()
    made.parts = [made.says(OK)]
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def wire(script: Script) -> AsyncIterator[Wire]:
    made = Wire(f"http://127.0.0.1:{script.port}/base/", "opencode", "pässword")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (OK, (200, b"ok")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, (200, b"ok")),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", (200, b"ok")),
        (b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", (404, b"")),
    ],
)
async def test_answers_of_every_shape(script: Script, wire: Wire, answer: bytes, expected: tuple[int, bytes]) -> None:
    script.parts = [script.says(answer)]
    for _ in range(3):
        assert await wire.ask("GET", "/x?y=1", "x-mine: 1\r\n") == expected
    assert script.connections == (3 if b"close" in answer else 1)
    head = script.heads[0].decode("latin-1").lower()
    assert head.startswith("get /base/x?y=1 http/1.1\r\n")
    assert f"\r\nhost: 127.0.0.1:{script.port}\r\n" in head
    assert "\r\nauthorization: basic b3blbmnvzgu6cmokc3n3b3jk\r\n" in head
    assert "\r\nx-mine: 1\r\n" in head
    assert "content-length" not in head


async def test_an_answer_without_a_length_ends_with_its_connection(script: Script, wire: Wire) -> None:
    script.parts = [script.says(b"HTTP/1.1 200 OK\r\n\r\nall of it", then_close=True)]
    assert await wire.ask("GET", "/", "") == (200, b"all of it")


async def test_a_body_is_sent_whole_and_a_byte_at_a_time_is_an_answer(script: Script, wire: Wire) -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await script.request(reader)
        for byte in OK:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    script.parts = [slowly]
    assert await wire.ask("POST", "/", "content-type: application/json\r\n", b"x" * 300_000) == (200, b"ok")
    assert b"content-length: 300000\r\n" in script.heads[0]


async def test_what_a_kept_connection_lost_is_asked_again_only_where_it_changes_nothing(
    script: Script, wire: Wire
) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await script.request(reader)
        writer.write(OK)
        await script.request(reader)

    script.parts = [once, script.says(OK)]
    assert await wire.ask("GET", "/", "") == (200, b"ok")
    assert await wire.ask("GET", "/", "") == (200, b"ok")
    assert (script.connections, len(script.heads)) == (2, 3)

    script.parts = [once]
    script.connections = 0
    other = Wire(f"http://127.0.0.1:{script.port}", "opencode", None)
    assert await other.ask("POST", "/", "") == (200, b"ok")
    with pytest.raises(Broken):
        await other.ask("POST", "/", "")
    other.close()


async def test_a_connection_that_ended_meanwhile_is_not_used(script: Script, wire: Wire) -> None:
    script.parts = [script.says(OK, then_close=True)]
    for number in range(1, 4):
        assert await wire.ask("POST", "/", "") == (200, b"ok")
        await until(lambda number=number: script.ended == number, "it is closed")  # type: ignore[misc]
        await asyncio.sleep(0.01)
    assert script.connections == 3


async def test_connections_that_idled_for_long_are_closed(
    script: Script, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = await asyncio.gather(*(wire.ask("GET", "/", "") for _ in range(5)))
    assert answers == [(200, b"ok")] * 5
    assert script.connections == 5
    monkeypatch.setattr(opencode_wire, "_KEEP_SECONDS", -1.0)
    assert await wire.ask("GET", "/", "") == (200, b"ok")
    await until(lambda: script.ended == 5, "the idle ones are closed")
    assert script.connections == 6


@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok",
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
    ],
)
async def test_what_is_no_answer_breaks(script: Script, wire: Wire, nonsense: bytes) -> None:
    script.parts = [script.says(nonsense, then_close=True)]
    with pytest.raises(Broken):
        await wire.ask("GET", "/", "")


async def test_a_second_answer_to_one_request_is_never_taken_for_the_next(script: Script, wire: Wire) -> None:
    script.parts = [script.says(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong"), script.says(OK)]
    assert await wire.ask("GET", "/", "") == (200, b"ok")
    assert await wire.ask("GET", "/", "") == (200, b"ok")


async def test_an_answer_has_an_end(script: Script, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencode_wire, "MAX_ANSWER", 1)
    with pytest.raises(TooLong):
        await wire.ask("GET", "/", "")


async def test_nobody_there(script: Script, wire: Wire) -> None:
    await script.stop()
    with pytest.raises(NotReached):
        await wire.ask("GET", "/", "")
    for url in ("https://127.0.0.1:1", "nonsense", "http://"):
        with pytest.raises(NotReached):
            await Wire(url, "opencode", None).ask("GET", "/", "")


async def test_a_call_that_is_given_up_ends_its_connection(script: Script, wire: Wire) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await script.request(reader)
        await reader.read()

    script.parts = [never, script.says(OK)]
    call = asyncio.create_task(wire.ask("POST", "/", ""))
    await until(lambda: script.heads, "it was asked")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until(lambda: script.ended, "the connection is closed")
    assert await wire.ask("POST", "/", "") == (200, b"ok")


async def test_as_many_calls_as_there_are_places_and_no_more(
    script: Script, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await script.request(reader)
        await reader.read()

    script.parts = [never]
    monkeypatch.setattr(opencode_wire, "_CONNECTIONS", 2)
    monkeypatch.setattr(opencode_wire, "CONNECT_SECONDS", 0.2)
    small = Wire(f"http://127.0.0.1:{script.port}", "opencode", None)
    calls = [asyncio.create_task(small.ask("GET", "/", "")) for _ in range(2)]
    await until(lambda: len(script.heads) == 2, "both hang")
    with pytest.raises(NotReached, match="in use"):
        await small.ask("GET", "/", "")
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    script.parts = [script.says(OK)]
    assert await small.ask("GET", "/", "") == (200, b"ok")
    small.close()


async def test_a_stream_is_given_on_as_it_comes(script: Script, wire: Wire) -> None:
    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await script.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\none")
        await writer.drain()
        await until(lambda: came == [b"one"], "the first part is there")
        writer.write(b"two")

    script.parts = [stream]
    came: list[bytes] = []
    heads: list[tuple[int, str]] = []

    def head(status: int, kind: str) -> Take:
        heads.append((status, kind))
        return came.append

    await wire.listen("/e", "accept: text/event-stream\r\n", head, head_s=10, silence_s=10)
    assert (heads, came) == ([(200, "text/event-stream")], [b"one", b"two"])


async def test_a_stream_that_is_not_wanted_or_says_nothing_ends(script: Script, wire: Wire) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await script.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        await reader.read()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await script.request(reader)
        await reader.read()

    script.parts = [script.says(OK), silent, mute]
    await wire.listen("/e", "", lambda status, kind: None, head_s=10, silence_s=10)
    with pytest.raises(Broken, match="says nothing"):
        await wire.listen("/e", "", lambda status, kind: lambda data: None, head_s=10, silence_s=0.05)
    with pytest.raises(Broken, match="says nothing"):
        await wire.listen("/e", "", lambda status, kind: lambda data: None, head_s=0.05, silence_s=10)
    await until(lambda: script.ended == 3, "its connections are closed")
