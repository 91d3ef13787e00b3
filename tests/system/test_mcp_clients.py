"""The official MCP client before the real daemon, in both eras, over stdio and HTTP: from a webhook to done."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.doors.mcp_rig import ERAS, good, refused
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
        async with Client(server, mode=era) as client:
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
