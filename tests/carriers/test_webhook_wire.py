"""The wire to webhooks: answers of every shape, connections that fail, names that lie, and certificates."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from postroom.carriers import webhook_wire
from postroom.carriers.webhook_place import WebhookPlace
from postroom.carriers.webhook_wire import Answer, NotSent, Unanswered, WebhookWire, resolve, wait_of
from tests.carriers.receiver import KEY, Names, Play, Receiver, answer, cut, hang

Make = Callable[..., Awaitable[Receiver]]


@pytest.fixture
async def receiver() -> AsyncIterator[Make]:
    """Makes receivers that end with the test."""
    made: list[Receiver] = []

    async def make(*answers: bytes | Play, tls: ssl.SSLContext | None = None) -> Receiver:
        made.append(Receiver(*answers, tls=tls))
        return await made[-1].start()

    yield make
    for one in made:
        await one.stop()


async def post(receiver: Receiver, wire: WebhookWire | None = None, seconds: float = 10.0, **more: Any) -> Answer:
    return await (wire or WebhookWire()).post(receiver.place(**more), "webhook-id: m\r\n", b"{}", seconds)


async def test_a_request_is_what_was_asked_for(receiver: Make) -> None:
    there = await receiver()
    assert await post(there, path="/a/b?token=x&y") == Answer(204)
    (request,) = there.requests
    assert request.line == "POST /a/b?token=x&y HTTP/1.1"
    assert dict(request.headers) == {
        "host": f"127.0.0.1:{there.port}",
        "content-type": "application/json",
        "content-length": "2",
        "accept-encoding": "identity",
        "connection": "close",
        "webhook-id": "m",
    }
    assert request.body == b"{}"
    assert (await post(there, path="")).status == 204
    assert there.requests[1].line == "POST / HTTP/1.1"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (answer(200, body=b"thanks"), Answer(200)),
        (answer(503, "retry-after: 30\r\n"), Answer(503, "30")),
        (b"HTTP/1.1 200 OK\r\n\r\nno length", Answer(200)),
        (b"HTTP/1.0 201 OK\r\n\r\n", Answer(201)),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ncut off", Answer(200)),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz not a chunk", Answer(200)),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + answer(202), Answer(202)),
        (b"HTTP/1.1 200 OK\r\nupgrade: h2\r\nconnection: upgrade\r\ncontent-length: 0\r\n\r\n", Answer(200)),
        (answer(200) + answer(500), Answer(200)),
        (answer(200, body=b"x" * 300_000), Answer(200)),
        (answer(302, "location: /elsewhere\r\n"), Answer(302)),
    ],
    ids=[
        "body",
        "retry-after",
        "no length",
        "old",
        "short",
        "bad chunk",
        "hints",
        "upgrade",
        "two",
        "long",
        "redirect",
    ],
)
async def test_the_head_is_the_answer_whatever_follows(receiver: Make, raw: bytes, expected: Answer) -> None:
    there = await receiver(raw)
    assert await post(there) == expected
    assert len(there.requests) == 1, "no redirect is followed, and nothing is sent twice"


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (cut, "the connection ended without an answer"),
        (b"", "the connection ended without an answer"),
        (b"HTTP/1.1 200", "the connection ended without an answer"),
        (b"SSH-2.0-OpenSSH_9\r\n", "no HTTP answer"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"x-filler: " + b"y" * 100_000, "longer than 65536 bytes"),
    ],
    ids=["cut", "closed", "half", "other", "switching", "endless head"],
)
async def test_what_was_sent_and_not_answered_is_told_apart(receiver: Make, play: bytes | Play, words: str) -> None:
    there = await receiver(play)
    with pytest.raises(Unanswered, match=words):
        await post(there)
    assert len(there.requests) == 1


async def test_who_says_nothing_is_waited_for_until_the_deadline(receiver: Make) -> None:
    there = await receiver(hang)
    with pytest.raises(Unanswered, match=r"no answer within 1\.5 s"):
        await post(there, seconds=1.5)


async def test_an_answer_counts_though_its_body_never_ends(receiver: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_wire, "BODY_SECONDS", 0.05)

    async def drips(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
        await hang(writer)

    assert await post(await receiver(drips)) == Answer(200)


async def test_nobody_listens_there(receiver: Make) -> None:
    there = await receiver()
    await there.stop()
    with pytest.raises(NotSent, match="no connection: Connection refused"):
        await post(there)


async def test_a_connection_that_is_never_taken_has_its_deadline() -> None:
    with contextlib.closing(socket.socket()) as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        place = WebhookPlace("ops", f"https://127.0.0.1:{full.getsockname()[1]}/", (KEY,), allow_private=True)
        with pytest.raises(NotSent, match=r"no connection within 1 s"):
            await WebhookWire().post(place, "", b"{}", 1)


# Names and addresses.


def named(port: int, **more: Any) -> WebhookPlace:
    return WebhookPlace("ops", f"http://hooks.example:{port}/x", (KEY,), **more)


async def test_a_name_is_resolved_once_and_what_was_judged_is_called(receiver: Make) -> None:
    there = await receiver()
    names = Names(["127.0.0.1"], ["192.0.2.1"])
    assert (await WebhookWire(names).post(named(there.port, allow_private=True), "", b"{}", 5)).status == 204
    assert names.asked == [("hooks.example", there.port)]
    assert there.requests[0].headers["host"] == f"hooks.example:{there.port}"


async def test_a_name_that_changes_its_mind_gets_no_further(receiver: Make) -> None:
    there = await receiver()
    names = Names(["127.0.0.1"], ["93.184.216.34"])
    with pytest.raises(NotSent, match=r"hooks.example is at 127.0.0.1, which is loopback and not called"):
        await WebhookWire(names).post(named(there.port), "", b"{}", 5)
    assert len(names.asked) == 1
    assert there.connections == 0


@pytest.mark.parametrize("addresses", [["93.184.216.34", "127.0.0.1"], ["::1"], ["10.0.0.1"], ["::ffff:127.0.0.1"]])
async def test_one_address_that_may_not_be_called_spoils_all(receiver: Make, addresses: list[str]) -> None:
    there = await receiver()
    with pytest.raises(NotSent, match="allow_private in the webhook's settings would allow it"):
        await WebhookWire(Names(addresses)).post(named(there.port), "", b"{}", 5)
    assert there.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "127.1", "0"])
async def test_however_loopback_is_written_it_is_not_called(receiver: Make, host: str) -> None:
    there = await receiver()
    place = WebhookPlace("ops", f"https://{host}:{there.port}/", (KEY,))
    with pytest.raises(NotSent):
        await WebhookWire().post(place, "", b"{}", 5)
    assert there.connections == 0


async def test_the_next_address_is_tried_when_one_does_not_answer(receiver: Make) -> None:
    there = await receiver()
    names = Names(["127.0.0.2", "127.0.0.1"])
    assert (await WebhookWire(names).post(named(there.port, allow_private=True), "", b"{}", 5)).status == 204


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "is not resolved: Name or service not known"),
        (UnicodeError("label too long"), "is not resolved: UnicodeError"),
        ([], "has no address"),
        (["not an address"], "which is unreadable"),
    ],
    ids=["unknown", "no name", "nothing", "nonsense"],
)
async def test_a_name_that_leads_nowhere(given: Any, words: str) -> None:
    with pytest.raises(NotSent, match=words):
        await WebhookWire(Names(given)).post(named(1), "", b"{}", 5)


async def test_a_resolver_that_hangs_has_its_deadline() -> None:
    async def hangs(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(NotSent, match=r"the name hooks.example was not resolved within 0\.05 s"):
        await WebhookWire(hangs).post(named(1), "", b"{}", 0.05)


async def test_this_machine_resolves_numbers_and_its_own_name() -> None:
    assert list(await resolve("127.0.0.1", 80)) == ["127.0.0.1"]
    assert {"127.0.0.1", "::1"} & set(await resolve("localhost", 80))


# Certificates.


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's context with a certificate for hooks.example, and one that trusts it."""
    folder: Path = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hooks.example")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("hooks.example")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return server, ssl.create_default_context(cafile=str(folder / "cert.pem"))


async def test_tls_goes_to_the_address_and_is_proved_by_the_name(
    receiver: Make, certificates: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server, trusting = certificates
    there = await receiver(tls=server)
    wire = WebhookWire(Names(["127.0.0.1"]), lambda: trusting)
    for _ in range(2):
        assert await post(there, wire) == Answer(204)
    assert there.requests[0].headers["host"] == f"hooks.example:{there.port}"


async def test_an_untrusted_certificate_gets_nothing(
    receiver: Make, certificates: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    there = await receiver(tls=certificates[0])
    with pytest.raises(NotSent, match=r"its certificate is not trusted: self.signed"):
        await post(there, WebhookWire(Names(["127.0.0.1"])))
    assert there.requests == []


async def test_nor_does_a_certificate_of_another_name(
    receiver: Make, certificates: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    there = await receiver(tls=certificates[0])
    place = WebhookPlace("ops", f"https://other.example:{there.port}/", (KEY,), allow_private=True)
    with pytest.raises(NotSent, match="its certificate is not trusted: Hostname mismatch"):
        await WebhookWire(Names(["127.0.0.1"]), lambda: certificates[1]).post(place, "", b"{}", 5)
    assert there.requests == []


async def test_who_speaks_no_tls_is_no_connection() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    place = WebhookPlace("ops", f"https://127.0.0.1:{port}/", (KEY,), allow_private=True)
    with pytest.raises(NotSent, match=r"TLS failed|no connection"):
        await WebhookWire().post(place, "", b"{}", 5)
    server.close()


# What a receiver says of its own rest.

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        ("", None),
        ("30", 30),
        (" 5 ", 5),
        ("0", 0),
        ("99999999999999999999", 999_999_999),
        ("-1", None),
        ("soon", None),
        ("１２", None),
        ("Fri, 15 Jan 2027 08:02:00 GMT", 120),
        ("Fri, 15 Jan 2027 07:00:00 GMT", None),
        ("Fri, 99 Jan 2027 07:00:00 GMT", None),
    ],
)
def test_how_long_it_asks_to_be_left_alone(given: str | None, seconds: float | None) -> None:
    assert wait_of(Answer(503, given), NOW) == seconds
