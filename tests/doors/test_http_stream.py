"""`GET /stream`: what happens while it happens, to those who may hear of it, for as long as they read and no longer."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from postroom.client import Client
from postroom.doors.http import stream
from postroom.doors.listeners import Listeners
from postroom.errors import Forbidden, Invalid, Unauthenticated
from postroom.happening import LAGGED, Happening, HappeningFilter
from postroom.happening_wire import ALIVE, BEGIN, EventReader, happening_of, happening_view, shown_event
from postroom.services import happenings
from postroom.services.tellings import Told
from tests.doors.http_rig import Rig, Wire, ask, post, refusal, until
from tests.offices import ADMIN


@asynccontextmanager
async def streaming(rig: Rig, who: str = "root", query: str = "", method: str = "GET") -> AsyncIterator[Wire]:
    """A stream that is open; at the end its client leaves, which must end it."""
    wire = Wire(rig.app, method, "/stream", headers(rig, who), query_string=query.encode())
    wire.body(b"")
    running = asyncio.create_task(wire.run())
    await until(lambda: len(wire.sent) > 1 or running.done())
    yield wire
    wire.leave()
    async with asyncio.timeout(10):
        await running
    assert rig.office.happenings.listening == 0


def headers(rig: Rig, who: str | None) -> dict[str, str]:
    return {"host": "127.0.0.1:7373", **({} if who is None else {"authorization": f"Bearer {rig.secrets[who]}"})}


def told(wire: Wire) -> list[Happening]:
    """What was sent so far."""
    return list(EventReader().feed(b"".join(message["body"] for message in wire.sent[1:])))


async def test_it_tells_what_happens(rig: Rig) -> None:
    async with streaming(rig) as wire:
        head = dict(wire.sent[0]["headers"])
        assert wire.status == 200
        assert head[b"content-type"] == b"text/event-stream"
        assert head[b"cache-control"] == b"no-store"
        assert head[b"x-accel-buffering"] == b"no"
        assert wire.sent[1]["body"] == BEGIN == b"retry: 2000\n\n"
        todo = await rig.create("review", "Read\u2028it\x1b[31m\nnow")
        await until(lambda: told(wire))
        name, data = wire.sent[2]["body"].decode().rstrip("\n").split("\n")
        assert name == "event: todo.created"
        assert json.loads(data.removeprefix("data: ")) == {
            "at": todo["created_at"],
            "what": "todo.created",
            "id": todo["id"],
            "queue": "review",
            "mailbox": None,
            "who": "root",
            "words": "Read�it�[31m now",
            "about": [],
        }


async def test_the_filter_is_in_the_query(rig: Rig) -> None:
    query = "queue=review&queue=lab/one&what=todo.created&what=message"
    async with streaming(rig, query=query) as wire, streaming_also(rig, "mailbox=bob") as bobs:
        for queue in ("review", "inbox", "lab/one"):
            await rig.claimed(queue=queue)
        await post(rig, "root", "/v1/messages", {"to": "bob", "payload": "hello"}, 202)
        await until(lambda: len(told(bobs)) == 2)
        assert [(one.what, one.queue) for one in told(wire)] == [
            ("todo.created", "review"),
            ("todo.created", "lab/one"),
        ]
        assert [one.what for one in told(bobs)] == ["message.admitted", "delivery.injected"]


@asynccontextmanager
async def streaming_also(rig: Rig, query: str) -> AsyncIterator[Wire]:
    """A second stream beside another one."""
    wire = Wire(rig.app, "GET", "/stream", headers(rig, "root"), query_string=query.encode())
    wire.body(b"")
    running = asyncio.create_task(wire.run())
    await until(lambda: len(wire.sent) > 1)
    yield wire
    wire.leave()
    await running


async def test_an_agent_hears_of_its_own(rig: Rig) -> None:
    async with streaming(rig, "eve") as wire:
        await rig.create("inbox")
        mine = await rig.create("lab/one")
        await until(lambda: told(wire))
        assert [one.id for one in told(wire)] == [mine["id"]]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("queue=No%20Queue", "queue"),
        ("mailbox=%20", "mailbox"),
        ("what=todos", "what"),
        ("what=lagged", "what"),
        ("id=", "id"),
        ("id=a&id=b", "id"),
        ("id=%00", "id"),
        ("queue=%00", "queue"),
        ("since=3", "since"),
        ("queue=%ff", "query"),
    ],
)
async def test_a_bad_filter_is_refused_by_field(rig: Rig, query: str, field: str) -> None:
    error = refusal(await ask(rig, "root", "GET", f"/stream?{query}"), 400, "invalid")
    assert error["field"] == field
    assert rig.office.happenings.listening == 0


async def test_whoever_may_not_ask_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal(await ask(rig, None, "GET", "/stream"), 401, "unauthenticated")
    refusal(await ask(rig, "root", "GET", "/stream", origin="http://evil.example"), 403, "forbidden")
    refusal(await ask(rig, "root", "GET", "/stream", host="evil.example"), 403, "forbidden")
    assert (await ask(rig, "root", "POST", "/stream", {})).status_code == 405
    monkeypatch.setattr(happenings, "MOST_EACH", 0)
    answer = await ask(rig, "ann", "GET", "/stream")
    refusal(answer, 429, "rate_limited")
    assert int(answer.headers["retry-after"]) > 0
    monkeypatch.setattr(happenings, "MOST_LISTENERS", 0)
    answer = await ask(rig, "root", "GET", "/stream")
    refusal(answer, 503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
    rig.reason = "starting"
    refusal(await ask(rig, "root", "GET", "/stream"), 503, "unavailable")


async def test_head_is_answered_at_once(rig: Rig) -> None:
    answer = await ask(rig, "root", "HEAD", "/stream")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "text/event-stream"
    assert rig.office.happenings.listening == 0


async def test_a_quiet_stream_lives_until_its_token_is_revoked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "QUIET_S", 0.01)
    async with streaming(rig, "ann") as wire:
        await until(lambda: [message["body"] for message in wire.sent[2:5]] == [ALIVE] * 3)
        await rig.office.tokens.revoke(ADMIN, "ann")
        await until(lambda: wire.sent[-1].get("more_body") is False)


async def test_the_daemons_end_ends_it_in_good_order(rig: Rig) -> None:
    async with streaming(rig) as wire:
        todo = await rig.create()
        rig.office.happenings.close()
        await until(lambda: wire.sent[-1].get("more_body") is False)
        assert [one.id for one in told(wire)] == [todo["id"]]
    refusal(await ask(rig, "root", "GET", "/stream"), 503, "unavailable")


# Over connections.


@asynccontextmanager
async def served(rig: Rig) -> AsyncIterator[tuple[Listeners, Path]]:
    """The rig on listeners of its own, and their socket."""
    folder = Path(tempfile.mkdtemp(prefix="pr-"))
    path = folder / "own" / "postroom.sock"
    listeners = Listeners(rig.app, rig.hooks, host="127.0.0.1", port=0, path=path, hooks_port=None)
    listeners.open()
    serving = asyncio.create_task(listeners.serve())
    try:
        yield listeners, path
    finally:
        rig.office.happenings.close()
        listeners.stop()
        await serving
        listeners.close()
        shutil.rmtree(folder)


async def test_one_who_reads_nothing_is_dropped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SEND_SECONDS", 0.05)
    async with served(rig) as (listeners, _):
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.setblocking(False)
            loop = asyncio.get_running_loop()
            host, port = listeners.base.removeprefix("http://").split(":")
            await loop.sock_connect(silent, (host, int(port)))
            asked = f"GET /stream HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {rig.secrets['root']}\r\n\r\n"
            await loop.sock_sendall(silent, asked.encode())
            await until(lambda: rig.office.happenings.listening == 1)
            noise = Happening(0, "queue.changed", "q", "q", words="x" * 4000)
            async with asyncio.timeout(30):
                while rig.office.happenings.listening:
                    rig.office.wake.told(lambda _now: [Told(noise, queues=("q",))] * 100)
                    await asyncio.sleep(0.005)
            # The connection is cut off, and does not linger until it reads what is left for it.
            await until(lambda: not listeners._servers[0][0].server_state.connections)


async def test_a_client_that_goes_is_noticed_on_port_and_socket(rig: Rig) -> None:
    async with served(rig) as (listeners, path):
        for transport, base in (
            (httpx2.AsyncHTTPTransport(), listeners.base),
            (httpx2.AsyncHTTPTransport(uds=str(path)), "http://postroom"),
        ):
            token = {"authorization": f"Bearer {rig.secrets['root']}"}
            async with (
                httpx2.AsyncClient(transport=transport, base_url=base, headers=token) as client,
                client.stream("GET", "/stream") as answer,
            ):
                assert answer.status_code == 200
                assert rig.office.happenings.listening == 1
            await until(lambda: rig.office.happenings.listening == 0)


# The program's client.


async def take(told: AsyncIterator[Happening], count: int) -> list[Happening]:
    async with asyncio.timeout(30):
        return [await anext(told) for _ in range(count)]


async def test_the_client_hears_and_comes_again_after_a_break(rig: Rig) -> None:
    async with served(rig) as (_, path):
        async with Client(socket=path, token=rig.secrets["root"], jitter=lambda: 0.0) as client:
            heard = client.stream(HappeningFilter(queues=("review",)))
            assert [one.what for one in await take(heard, 1)] == [LAGGED]
            await rig.create("inbox")
            todo = await rig.create("review", "Read it")
            (one,) = await take(heard, 1)
            assert (one.what, one.id, one.words) == ("todo.created", todo["id"], "Read it")
            for listener in list(rig.office.happenings._listeners):
                listener.close()
            assert [one.what for one in await take(heard, 1)] == [LAGGED]
            todo = await rig.create("review")
            assert [one.id for one in await take(heard, 1)] == [todo["id"]]
            await heard.aclose()
        await until(lambda: rig.office.happenings.listening == 0)


async def test_the_client_raises_what_is_refused(rig: Rig) -> None:
    async with served(rig) as (listeners, _):
        async with Client(listeners.base, "tk_unknown") as client:
            with pytest.raises(Unauthenticated):
                await anext(client.stream())
        async with Client(listeners.base, rig.secrets["root"]) as client:
            with pytest.raises(Invalid) as caught:
                await anext(client.stream(HappeningFilter(whats=("nothing",))))
            assert caught.value.field == "what"


async def test_the_client_waits_for_a_daemon_that_is_away() -> None:
    refused = {"error": {"code": "forbidden", "message": "no"}}
    other, last = httpx2.Response(200, content=b"<html>"), httpx2.Response(403, json=refused)
    answers: list[httpx2.Response | Exception] = [httpx2.ConnectError("refused"), other, last]

    def answer(request: httpx2.Request) -> httpx2.Response:
        one = answers.pop(0)
        if isinstance(one, Exception):
            raise one
        assert isinstance(one, httpx2.Response)
        return one

    async with Client("http://127.0.0.1:1", "tk_x", transport=httpx2.MockTransport(answer), jitter=lambda: -0.4) as one:
        with pytest.raises(Forbidden):
            await anext(one.stream())
    assert not answers


# The wire.


def test_a_happening_comes_back_as_it_was() -> None:
    one = Happening(1_769_860_800_123, "message.admitted", "m1", None, "bob", "ann", "chat to bob", ("td_1",))
    assert happening_of(happening_view(one)) == one
    bare = Happening(0, LAGGED, "")
    text = shown_event(one) + ALIVE + b": more\n\nevent: x\n\n" + shown_event(bare)
    for size in (1, 7, len(text)):
        reader = EventReader()
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert [told for piece in pieces for told in reader.feed(piece)] == [one, bare]


@pytest.mark.parametrize(
    "text", [b"data: {\n\n", b"data: []\n\n", b"data: {}\n\n", b'data: {"at":"x","what":"","id":""}\n\n', b"x" * 70_000]
)
def test_what_is_no_happening_is_told(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(EventReader().feed(text))
