"""The door on real listeners: what only a connection shows, on the loopback port, the Unix socket and the hooks' port."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import stat
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from postroom.doors import listeners as module
from postroom.doors.listeners import Listeners
from postroom.errors import Misconfigured
from tests.doors.http_rig import CI_TOKEN, Rig, get, pieces, refusal, until


@dataclass
class Place:
    """Where a rig is served."""

    rig: Rig
    url: str
    path: Path
    hooks_url: str

    def client(self, who: str | None = None, *, socket: bool = False) -> httpx2.AsyncClient:
        """A client on the port or on the socket, with the token of `who` or none."""
        headers = {} if who is None else {"authorization": f"Bearer {self.rig.secrets[who]}"}
        transport = httpx2.AsyncHTTPTransport(uds=str(self.path)) if socket else httpx2.AsyncHTTPTransport()
        base = "http://postroom" if socket else self.url
        return httpx2.AsyncClient(transport=transport, base_url=base, headers=headers, timeout=30)


@pytest.fixture
async def place(rig: Rig) -> AsyncIterator[Place]:
    """The rig on listeners of its own."""
    # A Unix socket's path has to be short, and the test's own folder is not.
    folder = Path(tempfile.mkdtemp(prefix="pr-"))
    listeners = Listeners(
        rig.app, rig.hooks, host="127.0.0.1", port=0, path=folder / "own" / "postroom.sock", hooks_port=0
    )
    listeners.open()
    serving = asyncio.create_task(listeners.serve())
    said = listeners.said().split(", ")
    made = Place(rig, said[0], folder / "own" / "postroom.sock", said[2].rsplit(" ", 1)[1])
    try:
        yield made
    finally:
        await rig.office.waiting.close()
        listeners.stop()
        await serving
        listeners.close()
        shutil.rmtree(folder)


async def test_a_port_that_is_taken_is_told_with_whose_it_is(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        there = int(place.url.rpartition(":")[2])
        for port, words in ((there, "a Postroom answers there"), (other.getsockname()[1], "is no Postroom")):
            monkeypatch.setattr(module, "PROBE_SECONDS", 5.0 if port == there else 0.05)
            taken = Listeners(None, None, host="127.0.0.1", port=port, path=tmp_path / "s", hooks_port=None)
            with pytest.raises(Misconfigured, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*{words}") as caught:
                await asyncio.to_thread(taken.open)
            assert "--port N, 0 for any" in caught.value.advice


async def test_the_sockets_user_is_admin_and_the_ports_is_nobody(place: Place) -> None:
    async with place.client(socket=True) as client:
        assert (await client.get("/v1/tokens")).status_code == 200
    async with place.client("ann", socket=True) as client:
        refusal(await client.get("/v1/tokens"), 403, "forbidden")
    async with place.client() as client:
        refusal(await client.get("/v1/tokens"), 401, "unauthenticated")
    assert stat.S_IMODE(place.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.path.parent.stat().st_mode) == 0o700


async def test_the_hooks_port_has_hooks_and_health_alone(place: Place) -> None:
    async with httpx2.AsyncClient(base_url=place.hooks_url) as client:
        assert (await client.get("/health")).status_code == 200
        token = {"authorization": f"Bearer {CI_TOKEN}"}
        assert (await client.post("/hooks/ci", content=b"{}", headers=token)).status_code == 202
        root = {"authorization": f"Bearer {place.rig.secrets['root']}"}
        refusal(await client.get("/v1/todos", headers=root), 404, "not_found")


# S18
async def test_a_connection_that_breaks_ends_its_wait(place: Place) -> None:
    host, _, port = place.url.removeprefix("http://").partition(":")
    body = json.dumps({"queues": ["inbox"], "wait_s": 50}).encode()
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/todos/claim HTTP/1.1\r\nHost: localhost\r\n"
        + f"Authorization: Bearer {place.rig.secrets['ann']}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    await until(lambda: place.rig.office.waiting.waiting == 1)
    writer.close()
    await writer.wait_closed()
    await until(lambda: place.rig.office.waiting.waiting == 0)
    made = await place.rig.create()
    assert (await get(place.rig, "root", f"/v1/todos/{made['id']}"))["todo"]["attempt"] == 0


# S18
async def test_many_wait_on_one_connection_after_another_and_each_is_served(place: Place) -> None:
    async with place.client("ann") as client:
        waits = [
            asyncio.create_task(client.post("/v1/todos/claim", json={"queues": ["inbox"], "wait_s": 30}))
            for _ in range(20)
        ]
        await until(lambda: place.rig.office.waiting.waiting == 20)
        made = {(await place.rig.create(title=str(n)))["id"] for n in range(20)}
        answers = [answer.json()["todos"] for answer in await asyncio.gather(*waits)]
    assert sorted(todo["id"] for todos in answers for todo in todos) == sorted(made)
    assert all(len(todos) == 1 for todos in answers)


async def test_a_refused_upload_is_answered_and_the_connection_goes_on(place: Place) -> None:
    async with place.client("ann") as client:
        for _ in range(2):
            answer = await client.post("/v1/todos", content=pieces(*[b" " * 65536] * 80))
            refusal(answer, 413, "too_large")
        assert (await client.get("/v1/todos")).status_code == 200


async def test_text_travels_whole(place: Place) -> None:
    async with place.client("ann", socket=True) as client:
        made = await client.post("/v1/todos", json={"queue": "inbox", "title": "ünï 🐦", "payload": {"日": "本"}})
        assert made.status_code == 201
        todo = (await client.get(f"/v1/todos/{made.json()['todo']['id']}")).json()["todo"]
    assert (todo["title"], todo["payload"]) == ("ünï 🐦", {"日": "本"})
