"""The official MCP client before the real daemon, in both eras, over stdio and HTTP: from a webhook to done."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import ResourceUpdatedNotification, TextResourceContents

from tests.doors.mcp_rig import ERAS, good, refused, subscribe
from tests.processes import until
from tests.sources.signing import PAYLOADS
from tests.system.daemons import GITHUB, Daemon
from tests.system.proxy import proxy_to

pytestmark = pytest.mark.system

TOKEN_OF = "ann"
VERSIONS = {"auto": "2026-07-28", "legacy": "2025-11-25"}


class House:
    """A daemon with a webhook's source, and an agent's token."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.token: str = daemon.ask("POST", "/v1/tokens", {"name": TOKEN_OF}).value["secret"]
        self.heard: list[str] = []

    async def _hear(self, message: object) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            self.heard.append(message.params.uri)

    def standing(self, name: str) -> int:
        """A number of the daemon's status."""
        return int(self.daemon.ask("GET", "/v1/status").value[name])

    async def comes_to(self, name: str, number: int) -> None:
        """Wait until a number of the daemon's status is this."""

        async def there() -> bool:
            return await asyncio.to_thread(self.standing, name) == number

        await until(there, f"{name} is {number}")

    @asynccontextmanager
    async def told(self, client: Client, era: str, *uris: str) -> AsyncIterator[list[str]]:
        """While inside, the addresses of which notices came."""
        if era == "legacy":
            for uri in uris:
                await subscribe(client, uri)
            yield self.heard
            return
        came: list[str] = []
        async with client.listen(resource_subscriptions=uris) as subscription:

            async def follow() -> None:
                async for event in subscription:
                    assert isinstance(event, ResourceUpdated)
                    came.append(event.uri)

            task = asyncio.create_task(follow())
            yield came
            task.cancel()

    def deliver(self, id_: str = "d1") -> str:
        """A signed delivery's todo."""
        taken = self.daemon.deliver((PAYLOADS / "issues.opened.json").read_bytes(), "issues", id_)
        assert taken.status == 202
        (todo,) = taken.value["todos"]
        return str(todo["todo_id"])

    @asynccontextmanager
    async def stdio(self, era: str, *more: str) -> AsyncIterator[Client]:
        """A client that starts `postroom mcp`."""
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "postroom", "mcp", *more],
            env={**self.daemon.environment, "POSTROOM_TOKEN": self.token},
        )
        async with Client(server, mode=era, message_handler=self._hear) as client:
            yield client

    @asynccontextmanager
    async def http(self, era: str, url: str | None = None) -> AsyncIterator[Client]:
        """A client at the daemon's own door, or at another that leads there."""
        headers = {"authorization": f"Bearer {self.token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False) as http,
            Client(streamable_http_client(f"{url or self.daemon.url}/mcp", http_client=http), mode=era) as client,
        ):
            yield client


@pytest.fixture
def house(new_daemon: Callable[..., Daemon]) -> House:
    """A running one."""
    return House(new_daemon(GITHUB).start())


# S23
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_an_agent_completes_what_came_in_by_webhook(house: House, era: str, way: str) -> None:
    id_ = await asyncio.to_thread(house.deliver)
    async with house.stdio(era) if way == "stdio" else house.http(era) as client:
        assert client.protocol_version == VERSIONS[era]
        assert {tool.name for tool in (await client.list_tools()).tools} >= {"claim_next", "complete"}
        (todo,) = (await good(client, "claim_next", queues=["inbox"]))["todos"]
        assert todo["id"] == id_
        assert todo["owner"] == TOKEN_OF
        assert todo["payload"]["repository"] == "Codertocat/Hello-World"
        beat = await good(client, "heartbeat", id=id_, lease_id=todo["lease_id"], ttl_s=600)
        assert beat["todo"]["state"] == "claimed"
        done = await good(client, "complete", id=id_, lease_id=todo["lease_id"], result={"summary": "looked at"})
        assert (done["todo"]["state"], done["replayed"]) == ("done", False)
        again = await good(client, "complete", id=id_, lease_id=todo["lease_id"], result={"summary": "twice"})
        assert again["replayed"] is True
        assert (await refused(client, "release", id=id_, lease_id=todo["lease_id"]))["code"] == "conflict"
    kept = await asyncio.to_thread(house.daemon.get, id_)
    assert kept["result"] == {"summary": "looked at"}
    assert kept["source"] == "github"


# S17
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_daemon_killed_between_two_calls_is_not_noticed(house: House, era: str, way: str) -> None:
    id_ = await asyncio.to_thread(house.deliver)
    async with house.stdio(era) if way == "stdio" else house.http(era) as client:
        (todo,) = (await good(client, "claim_next", queues=["inbox"]))["todos"]
        await asyncio.to_thread(house.daemon.kill)
        await asyncio.to_thread(house.daemon.start)
        done = await good(client, "complete", id=id_, lease_id=todo["lease_id"])
        assert done["todo"]["state"] == "done"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_daemon_that_stops_answers_who_waits(house: House, era: str, way: str) -> None:
    async with house.stdio(era) if way == "stdio" else house.http(era) as client:
        # The client holds an answer against the tools' schemas, which it would else ask for when nobody is there.
        await client.list_tools()
        call = asyncio.create_task(good(client, "claim_next", queues=["inbox"], wait_s=45))

        async def waits() -> bool:
            return await asyncio.to_thread(house.daemon.waiting) == 1

        await until(waits, "the claim waits")
        assert await asyncio.to_thread(house.daemon.terminate) == 0
        assert (await call)["todos"] == []
    assert "Traceback" not in house.daemon.output


async def test_a_daemon_that_is_away_is_told_and_then_found_again(house: House) -> None:
    id_ = await asyncio.to_thread(house.deliver)
    async with house.stdio(ERAS[0]) as client:
        assert (await good(client, "get_todo", id=id_))["todo"]["state"] == "pending"
        await asyncio.to_thread(house.daemon.kill)
        error = await refused(client, "claim_next", queues=["inbox"])
        assert error["code"] == "unavailable"
        assert "postroom serve" in error["hint"]
        await asyncio.to_thread(house.daemon.start)
        (todo,) = (await good(client, "claim_next", queues=["inbox"]))["todos"]
        assert todo["id"] == id_


# S17
@pytest.mark.parametrize("era", ERAS)
async def test_an_answer_lost_on_its_way_to_stdio_is_asked_for_again(house: House, era: str) -> None:
    id_ = await asyncio.to_thread(house.deliver)
    spare = await asyncio.to_thread(house.daemon.create)
    async with proxy_to(house.daemon.port) as proxy, house.stdio(era, "--url", proxy.url) as client:
        await good(client, "list_todos")
        proxy.cut = True
        (todo,) = (await good(client, "claim_next", queues=["inbox"]))["todos"]
        assert proxy.cuts == 1
        assert (todo["id"], todo["attempt"]) == (id_, 1)
        proxy.cut = True
        done = await good(client, "complete", id=id_, lease_id=todo["lease_id"])
        assert proxy.cuts == 2
        assert (done["todo"]["state"], done["replayed"]) == ("done", True)
    assert (await asyncio.to_thread(house.daemon.get, spare))["state"] == "pending"


# S17
@pytest.mark.parametrize("era", ERAS)
async def test_a_claim_whose_answer_was_lost_is_had_by_its_key(house: House, era: str) -> None:
    id_ = await asyncio.to_thread(house.deliver)
    spare = await asyncio.to_thread(house.daemon.create)
    async with proxy_to(house.daemon.port) as proxy:
        with pytest.raises((ExceptionGroup, httpx2.HTTPError, MCPError)):
            async with asyncio.timeout(20), house.http(era, proxy.url) as client:
                await client.list_tools()
                proxy.cut = True
                await client.call_tool("claim_next", {"queues": ["inbox"], "claim_key": "k1"})
        assert proxy.cuts == 1
        held = await asyncio.to_thread(house.daemon.get, id_)
        assert (held["state"], held["attempt"]) == ("claimed", 1)
        async with house.http(era, proxy.url) as client:
            (todo,) = (await good(client, "claim_next", queues=["inbox"], claim_key="k1"))["todos"]
            assert (todo["id"], todo["attempt"]) == (id_, 1)
            again = (await good(client, "claim_next", queues=["inbox"], claim_key="k1"))["todos"]
            assert [one["lease_id"] for one in again] == [todo["lease_id"]]
            done = await good(client, "complete", id=id_, lease_id=todo["lease_id"])
            assert done["todo"]["state"] == "done"
    assert (await asyncio.to_thread(house.daemon.get, spare))["state"] == "pending"


async def _said(client: Client, uri: str) -> dict[str, Any]:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    value: dict[str, Any] = json.loads(content.text)
    return value


@pytest.mark.parametrize(("era", "way"), [("auto", "stdio"), ("legacy", "stdio"), ("auto", "http")])
async def test_a_client_is_told_of_new_work_and_letters_and_reads_them(house: House, era: str, way: str) -> None:
    async with house.stdio(era) if way == "stdio" else house.http(era) as client:
        assert client.server_capabilities.resources is not None
        assert client.server_capabilities.resources.subscribe is True
        async with house.told(client, era, "queue://inbox", "inbox://ann") as came:
            id_ = await asyncio.to_thread(house.daemon.create)
            await until(lambda: "queue://inbox" in came, "the notice of the queue comes")
            assert [todo["id"] for todo in (await _said(client, "queue://inbox"))["claimable"]] == [id_]
            letter = {"to": "ann", "payload": "look at it", "from": "operator"}
            assert (await asyncio.to_thread(house.daemon.ask, "POST", "/v1/messages", letter)).status == 202
            await until(lambda: "inbox://ann" in came, "the notice of the inbox comes")
            assert [one["payload"] for one in (await _said(client, "inbox://ann"))["messages"]] == ["look at it"]
            if way == "stdio":
                # The daemon goes and comes back: what was missed is a notice for everything, and it goes on.
                await asyncio.to_thread(house.daemon.kill)
                came.clear()
                await asyncio.to_thread(house.daemon.start)
                await until(lambda: {"queue://inbox", "inbox://ann"} <= set(came), "all is to be looked at again")
                came.clear()
                await asyncio.to_thread(house.daemon.create)
                await until(lambda: "queue://inbox" in came, "the notice of the queue comes again")
            else:
                # A daemon that stops ends the stream in good order, and does not wait for its clients.
                assert await asyncio.to_thread(house.daemon.terminate) == 0
    if way == "stdio":
        await house.comes_to("listeners", 0)
    assert "Traceback" not in house.daemon.output


def _request(house: House, method: str, **params: Any) -> bytes:
    """A request of revision 2026-07-28, as bytes for the wire."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}})
    name = f"mcp-name: {params['name']}\r\n" if "name" in params else ""
    return (
        f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {house.token}\r\n"
        f"content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
        f"mcp-protocol-version: 2026-07-28\r\nmcp-method: {method}\r\n{name}content-length: {len(body)}\r\n\r\n{body}"
    ).encode()


# S17
async def test_a_client_of_http_that_vanishes_leaves_nothing_behind(house: House) -> None:
    def connect(request: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", house.daemon.port), timeout=30)
        connection.sendall(request)
        return connection

    arguments = {"queues": ["inbox"], "wait_s": 45, "claim_key": "gone"}
    waits = await asyncio.to_thread(connect, _request(house, "tools/call", name="claim_next", arguments=arguments))
    follows = {"notifications": {"resourceSubscriptions": ["queue://inbox", "inbox://ann"]}}
    streams = await asyncio.to_thread(connect, _request(house, "subscriptions/listen", **follows))
    await house.comes_to("waiting_claims", 1)
    await house.comes_to("listeners", 2)
    waits.close()
    streams.close()
    await house.comes_to("waiting_claims", 0)
    await house.comes_to("listeners", 0)
    await house.comes_to("waiting_readers", 0)
    id_ = await asyncio.to_thread(house.daemon.create)
    assert (await asyncio.to_thread(house.daemon.get, id_))["attempt"] == 0
    # Gone while it claims: the claim was made or not, and its key gives it back if it was.
    claims = await asyncio.to_thread(connect, _request(house, "tools/call", name="claim_next", arguments=arguments))
    claims.close()
    async with house.http(ERAS[0]) as client:
        (todo,) = (await good(client, "claim_next", **arguments))["todos"]
        assert (todo["id"], todo["attempt"]) == (id_, 1)
        await good(client, "complete", id=id_, lease_id=todo["lease_id"])
    assert "Traceback" not in house.daemon.output


# S17
@pytest.mark.parametrize("end", ["killed", "closed"])
async def test_a_client_of_stdio_that_vanishes_leaves_nothing_behind(house: House, end: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "postroom", "mcp"),
        env={**os.environ, **house.daemon.environment, "POSTROOM_TOKEN": house.token},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    claim = {"name": "claim_next", "arguments": {"queues": ["inbox"], "wait_s": 45, "claim_key": "gone"}}
    try:
        for message in (
            {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": "queue://inbox"}},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": claim},
        ):
            process.stdin.write(json.dumps(message).encode() + b"\n")
        await process.stdin.drain()
        await house.comes_to("waiting_claims", 1)
        await house.comes_to("listeners", 1)
        if end == "killed":
            process.kill()
        else:
            process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 30) == (-9 if end == "killed" else 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    await house.comes_to("waiting_claims", 0)
    await house.comes_to("listeners", 0)
    id_ = await asyncio.to_thread(house.daemon.create)
    assert (await asyncio.to_thread(house.daemon.get, id_))["state"] == "pending"
