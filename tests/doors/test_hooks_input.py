"""The hooks' door and bad or odd bodies: gzip, bombs, lies about length, cuts, charsets; nothing is ever half stored."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from postroom.doors.http import body as bodies
from postroom.doors.http import inflate as inflating
from postroom.errors import TooLarge
from postroom.sources.source import MAX_BYTES
from tests.doors.http_rig import CI_TOKEN, Rig, ask, get, post, refusal, until
from tests.doors.test_hooks import events, signed

BODY = json.dumps({"action": "opened", "issue": {"number": 7, "title": "ünï 🐦"}}, ensure_ascii=False).encode()
GZIP = {"content-encoding": "gzip"}


async def raw(rig: Rig, told: dict[str, Any]) -> bytes:
    """The body that an event has kept."""
    return (await ask(rig, "root", "GET", f"/v1/events/{told['event_id']}/raw")).content


# Gzip.


@pytest.mark.parametrize("over", ["plain", "packed"])
async def test_gzip_is_taken_signed_before_or_after_it_was_packed(rig: Rig, over: str) -> None:
    packed = gzip.compress(BODY)
    told = await post(rig, None, "/hooks/github", packed, 202, **signed(BODY if over == "plain" else packed), **GZIP)
    assert len(told["todos"]) == 1
    assert await raw(rig, told) == BODY
    event = (await get(rig, "root", f"/v1/events/{told['event_id']}"))["event"]
    assert (event["state"], event["body_bytes"]) == ("routed", len(BODY))


async def test_however_it_travels_it_is_one_delivery(rig: Rig) -> None:
    first = await post(rig, None, "/hooks/github", BODY, 202, **signed(BODY))
    again = await post(rig, None, "/hooks/github", gzip.compress(BODY), 202, **signed(BODY), **GZIP)
    assert again == {**first, "duplicate": True}
    (event,) = await events(rig)
    other = await post(rig, None, "/hooks/github", gzip.compress(BODY), 202, **signed(BODY, delivery="d-2"), **GZIP)
    assert event["digest"] == (await get(rig, "root", f"/v1/events/{other['event_id']}"))["event"]["digest"]


async def test_gzip_of_several_members_is_one_body(rig: Rig) -> None:
    packed = gzip.compress(BODY[:20]) + gzip.compress(BODY[20:])
    told = await post(rig, None, "/hooks/github", packed, 202, **signed(BODY), **GZIP)
    assert await raw(rig, told) == BODY


async def test_a_bomb_is_refused_before_it_is_inflated(rig: Rig) -> None:
    bomb = gzip.compress(b"\0" * (64 * MAX_BYTES))
    assert len(bomb) < MAX_BYTES
    refusal(await ask(rig, None, "POST", "/hooks/github", bomb, **signed(bomb), **GZIP), 413, "too_large")
    many = gzip.compress(b" " * 1024 * 1024) * 100
    refusal(await ask(rig, None, "POST", "/hooks/github", many, **signed(many), **GZIP), 413, "too_large")
    assert await events(rig) == []
    just = json.dumps({"title": "x" * (MAX_BYTES - 50)}).encode()
    await post(rig, None, "/hooks/github", gzip.compress(just), 202, **signed(just), **GZIP)


def test_inflating_makes_no_more_than_it_may() -> None:
    packed = gzip.compress(b"x" * 1000)
    assert inflating.inflate(packed, 1000) == b"x" * 1000
    with pytest.raises(TooLarge):
        inflating.inflate(packed, 999)
    assert inflating.inflate(b"", 10) == b""
    for wrong in (b"plain", packed[:-1], packed[:5], packed + b"rest", zlib.compress(b"x")):
        assert inflating.inflate(wrong, 1000) is None


async def test_gzip_without_a_proof_is_refused_like_anything_else(rig: Rig) -> None:
    packed = gzip.compress(BODY)
    plain = await ask(rig, None, "POST", "/hooks/github", BODY, **signed(b"other"))
    for sent in (packed, packed[:-4], b"no gzip", b""):
        answer = await ask(rig, None, "POST", "/hooks/github", sent, **signed(b"other"), **GZIP)
        refusal(answer, 401, "unauthenticated")
        assert answer.content == plain.content
    assert await events(rig) == []


async def test_gzip_that_is_cut_off_but_proved_is_kept_as_it_came(rig: Rig) -> None:
    cut = gzip.compress(BODY)[:-6]
    told = await post(rig, None, "/hooks/github", cut, 202, **signed(cut), **GZIP)
    (event,) = await events(rig)
    assert event["state"] == "unparsed"
    assert await raw(rig, told) == cut


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "gzip, br", "compress"])
async def test_other_codings_are_refused(rig: Rig, coding: str) -> None:
    answer = await ask(rig, None, "POST", "/hooks/github", BODY, **signed(BODY), **{"content-encoding": coding})
    refusal(answer, 415, "invalid")
    assert answer.headers["accept-encoding"] == "gzip, identity"
    # The rest of the door takes no coding at all.
    refusal(await ask(rig, "root", "POST", "/v1/todos", BODY, **GZIP), 415, "invalid")


async def test_a_token_proves_gzip_too(rig: Rig) -> None:
    await post(rig, None, "/hooks/ci", gzip.compress(BODY), 202, authorization=f"Bearer {CI_TOKEN}", **GZIP)


# What a body may be.


async def test_an_empty_body_is_proved_and_kept(rig: Rig) -> None:
    told = await post(rig, None, "/hooks/github", b"", 202, **signed(b""))
    (event,) = await events(rig)
    assert (event["id"], event["state"], event["reason"]) == (told["event_id"], "unparsed", "the body is empty")
    refusal(await ask(rig, None, "POST", "/hooks/github", b"", **signed(b"x")), 401, "unauthenticated")


@pytest.mark.parametrize("charset", ["latin-1", "utf-16", "klingon", '"', "x" * 5000])
async def test_what_is_said_of_the_charset_is_not_believed(rig: Rig, charset: str) -> None:
    headers = {**signed(BODY), "content-type": f"application/json; charset={charset}"}
    told = await post(rig, None, "/hooks/github", BODY, 202, **headers)
    event = (await get(rig, "root", f"/v1/events/{told['event_id']}"))["event"]
    assert event["body"]["issue"]["title"] == "ünï 🐦"


@pytest.mark.parametrize(
    "body",
    [
        '{"a":"ü"}'.encode("utf-16"),
        '{"a":"ü"}'.encode("latin-1"),
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":1,"a":2}',
        b"[" * 100_000,
        b"null",
        b"[]",
        b'"text"',
        b"\x00",
        b"{" + b" " * 100_000,
    ],
    ids=range(11),
)
async def test_what_is_proved_but_cannot_be_read_is_kept_byte_for_byte(rig: Rig, body: bytes) -> None:
    told = await post(rig, None, "/hooks/github", body, 202, **signed(body))
    assert await raw(rig, told) == body
    (event,) = await events(rig)
    assert event["state"] == "unparsed"
    assert event["todos"] == told["todos"] == []


async def test_what_no_database_holds_is_kept_beside_a_cleaned_copy(rig: Rig) -> None:
    body = rb'{"action":"opened","issue":{"number":1,"title":"a\u0000b\ud800c"}}'
    told = await post(rig, None, "/hooks/github", body, 202, **signed(body))
    assert await raw(rig, told) == body
    event = (await get(rig, "root", f"/v1/events/{told['event_id']}"))["event"]
    assert event["body"]["issue"]["title"] == "a\ufffdb\ufffdc"


@pytest.mark.parametrize("name", ["x-github-delivery", "x-github-event", "x-hub-signature-256"])
async def test_two_headers_that_differ_are_refused(rig: Rig, name: str) -> None:
    headers = list(signed(BODY).items())
    twice = [*headers, (name, "other")]
    async with rig.client(None) as client:
        refusal(await client.post("/hooks/github", content=BODY, headers=twice), 401, "unauthenticated")
        same = [*headers, next(pair for pair in headers if pair[0] == name)]
        assert (await client.post("/hooks/github", content=BODY, headers=same)).status_code == 202


# Over real connections.


@pytest.fixture
async def port(rig: Rig) -> AsyncIterator[int]:
    """The hooks' door on a port of its own."""
    config = uvicorn.Config(rig.hooks, port=0, lifespan="off", log_level="critical", access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def exchange(port: int, *sent: bytes, close: bool = False) -> bytes:
    """What is answered to bytes on a connection of their own; with `close` it is cut off after them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in sent:
        writer.write(part)
        await writer.drain()
    if close:
        writer.close()
        await writer.wait_closed()
        return b""
    async with asyncio.timeout(20):
        answer = await reader.read(65536)
    writer.close()
    return answer


def head(length: int | str, body: bytes = BODY) -> bytes:
    """The head of a signed delivery that says this of its length."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in signed(body).items())
    return f"POST /hooks/github HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{lines}\r\n".encode()


async def test_a_slow_body_is_given_up_and_its_connection_closed(
    rig: Rig, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "READ_SECONDS", 0.05)
    answer = await exchange(port, head(len(BODY)), BODY[:5])
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer
    assert await events(rig) == []


async def test_a_body_that_trickles_is_given_up_all_the_same(
    rig: Rig, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "READ_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(10**6))

    async def trickle() -> None:
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    trickling = asyncio.create_task(trickle())
    async with asyncio.timeout(20):
        answer = await reader.readuntil(b"\r\n")
    trickling.cancel()
    await asyncio.gather(trickling, return_exceptions=True)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert await events(rig) == []


async def test_a_body_cut_off_in_the_middle_is_nothing(rig: Rig, port: int) -> None:
    await exchange(port, head(len(BODY)), BODY[:-1], close=True)
    assert (await exchange(port, head(len(BODY)), BODY)).startswith(b"HTTP/1.1 202 ")
    assert [event["deliveries"] for event in await events(rig)] == [1]


async def test_a_lie_about_the_length_is_never_half_stored(
    rig: Rig, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shorter than it is: what is read is not what was signed, and the rest is no request; the server tells either.
    answer = await exchange(port, head(len(BODY) - 1), BODY)
    assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 400 "))
    # Longer than it is: the rest never comes.
    monkeypatch.setattr(bodies, "READ_SECONDS", 0.05)
    assert (await exchange(port, head(len(BODY) + 1), BODY)).startswith(b"HTTP/1.1 408 ")
    for length in ("-1", "1e3", f"{len(BODY)}, {len(BODY) + 1}"):
        assert (await exchange(port, head(length), BODY)).startswith(b"HTTP/1.1 400 ")
    assert (await exchange(port, head(MAX_BYTES + 1))).startswith(b"HTTP/1.1 413 ")
    assert await events(rig) == []


async def test_a_body_in_chunks_needs_no_length(rig: Rig, port: int) -> None:
    start = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    parts = [
        f"{len(BODY[at : at + 10]):x}\r\n".encode() + BODY[at : at + 10] + b"\r\n" for at in range(0, len(BODY), 10)
    ]
    assert (await exchange(port, start, *parts, b"0\r\n\r\n")).startswith(b"HTTP/1.1 202 ")
    # Cut off before the last chunk it is nothing.
    await exchange(port, start, *parts, close=True)
    assert [event["deliveries"] for event in await events(rig)] == [1]
