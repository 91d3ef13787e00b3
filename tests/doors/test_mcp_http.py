"""MCP over streamable HTTP: a real server on loopback, the SDK's client in both eras, and raw requests."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from postroom.doors.mcp.http import MAX_BODY_BYTES, McpDoor
from postroom.happening import LAGGED, Happening, HappeningFilter
from postroom.model import Principal, TodoState
from tests.doors.mcp_rig import ERAS, NO_POST, filled, good, loopback, refused, until
from tests.doors.memory_desk import MemoryDesk, Shelf

TOKENS = {"Bearer tk_ann": Principal("ann"), "Bearer tk_bob": Principal("bob")}
JSON_BOTH = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


class StillView:
    """A view in which nothing happens until it is told that something did."""

    def __init__(self) -> None:
        self.listening = 0
        self.happened = asyncio.Event()

    async def queues(self) -> list[dict[str, Any]]:
        return []

    async def queue(self, name: str) -> dict[str, Any]:
        return {"name": name, "pending": 0}

    @asynccontextmanager
    async def hear(self, wanted: HappeningFilter) -> AsyncIterator[AsyncIterator[Happening]]:
        async def items() -> AsyncIterator[Happening]:
            await self.happened.wait()
            yield Happening(0, LAGGED, "")
            await asyncio.Event().wait()

        self.listening += 1
        try:
            yield items()
        finally:
            self.listening -= 1


class House:
    """A daemon's HTTP door in small: it authenticates, then hands `/mcp` on."""

    def __init__(self, shelf: Shelf, hosts: tuple[str, ...] = ()) -> None:
        self.shelf = shelf
        self.view = StillView()
        self.revoked: set[str] = set()
        self.door = McpDoor(
            lambda principal: MemoryDesk(shelf, principal.name),
            lambda _: NO_POST,
            hosts,
            lambda _: self.view,
            look_s=0.05,
        )
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"] == "/mcp"
        token = dict(scope["headers"]).get(b"authorization", b"").decode()

        async def known() -> bool:
            return token not in self.revoked

        await self.door({**scope, "state": {"principal": TOKENS.get(token), "known": known}}, receive, send)

    def http(self, token: str = "tk_ann") -> httpx2.AsyncClient:
        """A client that shows this token."""
        return httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=30, trust_env=False)

    @asynccontextmanager
    async def agent(self, era: str, token: str = "tk_ann") -> AsyncIterator[Client]:
        """The SDK's client, as the owner of a token."""
        async with (
            self.http(token) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=era) as one,
        ):
            yield one

    async def post(self, message: object, **headers: str) -> httpx2.Response:
        """One raw POST."""
        async with self.http() as http:
            content = message if isinstance(message, bytes) else json.dumps(message).encode()
            return await http.post(self.url, content=content, headers={**JSON_BOTH, **headers})


@asynccontextmanager
async def serving(house: House) -> AsyncIterator[House]:
    async with loopback(house) as base:
        house.url = f"{base}/mcp"
        yield house
        await house.door.close()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with serving(House(Shelf())) as one:
        yield one


def modern(method: str, request_id: int = 1, **params: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A request of revision 2026-07-28 and the headers it wants."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    }
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": meta}}
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    if "name" in params:
        headers["mcp-name"] = params["name"]
    return message, headers


def older(method: str, request_id: int = 1, **params: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A request of revision 2025-11-25."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    return message, {"mcp-protocol-version": "2025-11-25"}


# S23
@pytest.mark.parametrize("era", ERAS)
async def test_an_agent_claims_and_completes(house: House, era: str) -> None:
    async with house.agent(era) as client:
        assert client.protocol_version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[era]
        assert client.instructions
        made = await good(client, "create_for", queue="inbox", title="t", payload={"a": 1})
        (todo,) = (await good(client, "claim_next", queues=["inbox"]))["todos"]
        assert todo["id"] == made["todo"]["id"]
        assert todo["owner"] == "ann"
        done = await good(client, "complete", id=todo["id"], lease_id=todo["lease_id"], result="fine")
        assert done["todo"]["state"] == "done"
        assert (await refused(client, "claim_next", wait_s="5"))["field"] == "wait_s"


@pytest.mark.parametrize("era", ERAS)
async def test_who_calls_is_told_by_the_token_of_each_request(house: House, era: str) -> None:
    async with house.agent(era) as ann, house.agent(era, "tk_bob") as bob:
        (one,) = await filled(MemoryDesk(house.shelf))
        (todo,) = (await good(ann, "claim_next"))["todos"]
        conflict = await refused(bob, "complete", id=one, lease_id=todo["lease_id"])
        assert conflict["code"] == "conflict"
        assert "lease_id" not in (await good(bob, "get_todo", id=one))["todo"]
        assert (await good(ann, "get_todo", id=one))["todo"]["lease_id"] == todo["lease_id"]


@pytest.mark.parametrize("form", [modern, older])
async def test_a_client_that_goes_away_strands_no_claim(house: House, form: Any) -> None:
    message, headers = form("tools/call", name="claim_next", arguments={"wait_s": 50})
    calling = asyncio.create_task(house.post(message, **headers))
    await until(lambda: house.shelf.waiting)
    calling.cancel()
    await until(lambda: not house.shelf.waiting)
    assert house.shelf.cancelled == 1
    (todo_id,) = await filled(MemoryDesk(house.shelf))
    assert house.shelf.todos[todo_id].state == TodoState.PENDING


@pytest.mark.parametrize("form", [modern, older])
async def test_a_stopping_door_ends_what_waits(house: House, form: Any) -> None:
    message, headers = form("tools/call", name="claim_next", arguments={"wait_s": 50})
    calling = asyncio.create_task(house.post(message, **headers))
    await until(lambda: house.shelf.waiting)
    await house.door.close()
    answer = await calling
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "unavailable"
    assert not house.shelf.waiting
    assert (await house.post(message, **headers)).status_code == 503
    await house.door.close()


@pytest.mark.parametrize("form", [modern, older])
async def test_every_request_stands_alone(house: House, form: Any) -> None:
    message, headers = form("tools/list")
    answer = await house.post(message, **headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in answer.headers
    assert len(answer.json()["result"]["tools"]) == 13
    assert (await house.post(message, **{**headers, "mcp-session-id": "long-gone"})).status_code == 200


async def listening(house: House) -> list[str]:
    """The lines of a listening stream of ann's, up to its end."""
    message, headers = modern("subscriptions/listen", notifications={"resourceSubscriptions": ["queue://q"]})
    async with (
        house.http() as http,
        http.stream("POST", house.url, content=json.dumps(message), headers={**JSON_BOTH, **headers}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [line async for line in answer.aiter_lines() if line.startswith("data:")]


@pytest.mark.parametrize("end", ["revoked", "closed", "gone"])
async def test_a_stream_ends_with_its_token_its_door_and_its_client(house: House, end: str) -> None:
    stream = asyncio.create_task(listening(house))
    await until(lambda: house.view.listening)
    house.view.happened.set()
    if end == "gone":
        stream.cancel()
        await asyncio.wait([stream])
    elif end == "closed":
        await house.door.close()
    else:
        house.revoked.add("Bearer tk_ann")
    if end != "gone":
        # It is ended as a whole answer is, so that nobody takes it for a broken one.
        lines = await asyncio.wait_for(stream, 10)
        assert "notifications/subscriptions/acknowledged" in lines[0]
    await until(lambda: not house.view.listening)


async def test_a_call_that_waits_is_refused_once_its_token_is_revoked(house: House) -> None:
    message, headers = modern("tools/call", name="claim_next", arguments={"wait_s": 50})
    calling = asyncio.create_task(house.post(message, **headers))
    await until(lambda: house.shelf.waiting)
    house.revoked.add("Bearer tk_ann")
    answer = await asyncio.wait_for(calling, 10)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unauthenticated"
    assert not house.shelf.waiting


async def test_older_clients_are_promised_no_notices_where_nothing_lasts(house: House) -> None:
    message, headers = older(
        "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "raw", "version": "1"}
    )
    result = (await house.post(message, **headers)).json()["result"]
    assert result["capabilities"]["resources"] == {"subscribe": False, "listChanged": False}
    message, headers = older("resources/subscribe", uri="queue://inbox")
    assert (await house.post(message, **headers)).json()["error"]["code"] == -32601
    message, headers = modern("server/discover")
    result = (await house.post(message, **headers)).json()["result"]
    assert result["capabilities"]["resources"] == {"subscribe": True, "listChanged": False}


@pytest.mark.parametrize("form", [modern, older])
async def test_requests_leave_nothing_behind(house: House, form: Any) -> None:
    message, headers = form("tools/list")
    await house.post(message, **headers)
    before = len(asyncio.all_tasks())
    await asyncio.gather(*(house.post(message, **headers) for _ in range(20)))
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_many_first_requests_at_once_open_one_server(house: House) -> None:
    message, headers = modern("tools/list")
    answers = await asyncio.gather(*(house.post(message, **headers) for _ in range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8


async def test_a_first_client_that_goes_away_does_not_spoil_the_opening(house: House) -> None:
    message, headers = modern("tools/list")
    first = asyncio.create_task(house.post(message, **headers))
    await asyncio.sleep(0)
    second = asyncio.create_task(house.post(message, **headers))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).status_code == 200


async def test_without_a_principal_nothing_answers(house: House) -> None:
    message, headers = modern("tools/list")
    answer = await house.post(message, **{**headers, "authorization": "Bearer tk_nobody"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "unauthenticated"


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "HEAD"])
async def test_other_methods_are_refused(house: House, method: str) -> None:
    async with house.http() as http:
        answer = await http.request(method, house.url, headers={"accept": "text/event-stream"})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


async def test_foreign_hosts_and_origins_are_refused(house: House) -> None:
    message, headers = modern("tools/list")
    assert (await house.post(message, **{**headers, "host": "evil.example"})).status_code == 421
    assert (await house.post(message, **{**headers, "origin": "https://evil.example"})).status_code == 403
    assert (await house.post(message, **{**headers, "host": "localhost"})).status_code == 200
    assert (await house.post(message, **{**headers, "origin": "http://localhost:3000"})).status_code == 200


async def test_further_hosts_can_be_allowed() -> None:
    message, headers = modern("tools/list")
    async with serving(House(Shelf(), ("post.example",))) as house:
        assert (await house.post(message, **{**headers, "host": "post.example:8443"})).status_code == 200
        assert (await house.post(message, **{**headers, "host": "other.example"})).status_code == 421


async def test_a_body_too_large_is_refused(house: House) -> None:
    answer = await house.post(b'{"x":"' + b"y" * MAX_BODY_BYTES + b'"}', **modern("tools/list")[1])
    assert answer.status_code == 413


@pytest.mark.parametrize("form", [modern, older])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"[" * 5000, b'{"jsonrpc":"2.0","id":1}', b"9" * 5000],
)
async def test_what_is_no_request_is_refused_and_not_a_fault(house: House, form: Any, body: bytes) -> None:
    answer = await house.post(body, **form("tools/list")[1])
    assert 400 <= answer.status_code < 500
    assert "error" in answer.json()


@pytest.mark.parametrize("form", [modern, older])
@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ('"delay_s": NaN', "delay_s"),
        ('"delay_s": 1e999', "delay_s"),
        ('"payload": {"a": NaN}', "payload.a"),
        ('"payload": [-Infinity]', "payload[0]"),
        ('"payload": ' + "9" * 1500, "payload"),
        ('"payload": ' + "[" * 70 + "]" * 70, "payload"),
    ],
)
async def test_numbers_no_store_can_hold_are_named(house: House, form: Any, argument: str, field: str) -> None:
    message, headers = form("tools/call", name="create_for", arguments={"queue": "q", "title": "t"})
    body = json.dumps(message).replace('"title": "t"', f'"title": "t", {argument}').encode()
    answer = await house.post(body, **headers)
    result = answer.json()["result"]
    assert result["isError"] is True
    assert result["structuredContent"]["error"]["code"] == "invalid"
    assert result["structuredContent"]["error"]["field"] == field
    assert house.shelf.todos == {}


async def test_lone_surrogates_are_refused_in_a_todo_and_cleaned_in_an_ending(house: House) -> None:
    message, headers = modern("tools/call", name="create_for", arguments={"queue": "q", "title": "\ud800"})
    error = (await house.post(message, **headers)).json()["result"]["structuredContent"]["error"]
    assert (error["code"], error["field"]) == ("invalid", "title")
    desk = MemoryDesk(house.shelf, "ann")
    (todo_id,) = await filled(desk)
    held = await desk.claim(todo_id)
    ending = {"id": todo_id, "lease_id": held.lease_id, "error": "\ud800boom", "result": ["\udfff"]}
    message, headers = modern("tools/call", name="fail", arguments=ending)
    assert (await house.post(message, **headers)).json()["result"]["isError"] is False
    assert house.shelf.todos[todo_id].error == "�boom"


# The SDK is brought in by the first request and not before.
def test_the_door_alone_imports_neither_the_sdk_nor_pydantic() -> None:
    code = "import sys, postroom.doors.mcp.http; print(sorted({'mcp', 'mcp_types', 'pydantic', 'anyio'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"
