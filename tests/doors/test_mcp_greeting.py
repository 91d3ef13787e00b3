"""The first answer on stdio, given before the SDK is there, is word for word the SDK's own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from postroom.doors.mcp.greeting import greet
from postroom.doors.mcp.server import build_server
from postroom.doors.mcp.spec import Caller

META = "io.modelcontextprotocol/"
ABLE = {
    "roots": {"listChanged": True},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "experimental": {"x/y": {"z": 1}},
    "extensions": {"a/b": {}},
}


def initialize(version: str = "2025-11-25", able: object = None, client: object = None, **more: Any) -> dict[str, Any]:
    """The handshake's first request."""
    params = {
        "protocolVersion": version,
        "capabilities": {} if able is None else able,
        "clientInfo": client or {"name": "raw", "version": "1"},
        **more,
    }
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


def discover(able: object = None, version: str = "2026-07-28", client: object = None) -> dict[str, Any]:
    """The first request of revision 2026-07-28."""
    envelope = {META + "protocolVersion": version, META + "clientCapabilities": {} if able is None else able}
    if client is not None:
        envelope[META + "clientInfo"] = client
    return {"jsonrpc": "2.0", "id": "first", "method": "server/discover", "params": {"_meta": envelope}}


async def own_answer(message: dict[str, Any]) -> dict[str, Any]:
    """What the SDK's server answers to this as a connection's first message."""

    async def nobody(_: object) -> Caller:
        raise AssertionError("no tool is called")

    server = build_server(nobody)
    async with create_client_server_memory_streams() as ((read, write), (server_read, server_write)):
        running = asyncio.create_task(server.run(server_read, server_write, server.create_initialization_options()))
        await write.send(SessionMessage(types.jsonrpc_message_adapter.validate_python(message)))
        answer = await asyncio.wait_for(read.receive(), 10)
        assert isinstance(answer, SessionMessage)
        await write.aclose()
        await running
    told: dict[str, Any] = json.loads(answer.message.model_dump_json(by_alias=True, exclude_unset=True))
    return told


@pytest.mark.parametrize(
    "message",
    [
        initialize(),
        initialize("2025-06-18"),
        initialize(able=ABLE),
        initialize(able={name: {} for name in ABLE}),
        initialize(client={"name": "n", "version": "v", "title": "t", "websiteUrl": "https://x.example"}),
        discover(),
        discover(able=ABLE),
        discover(client={"name": "n", "version": "v"}),
    ],
)
async def test_the_greeting_is_the_answer_of_the_sdk(message: dict[str, Any]) -> None:
    greeted = greet(json.dumps(message).encode())
    assert greeted is not None
    assert greeted[0] == message["id"]
    assert greeted[1].endswith(b"\n")
    assert json.loads(greeted[1]) == await own_answer(message)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"[" * 10_000,
        b"null",
        *(
            json.dumps(message).encode()
            for message in (
                initialize("2024-11-05"),
                initialize("2099-01-01"),
                initialize(able={"roots": []}),
                initialize(able={"sampling": {"tools": 1}}),
                initialize(able={"tasks": {}}),
                initialize(client={"name": "n"}),
                initialize(client={"name": "n", "version": 1}),
                initialize(client={"name": "n", "version": "1", "icons": []}),
                initialize(more={}),
                {**initialize(), "id": None},
                {**initialize(), "id": True},
                {**initialize(), "jsonrpc": "1.0"},
                {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}},
                {"jsonrpc": "2.0", "method": "notifications/initialized"},
                discover(version="2030-01-01"),
                discover(able="all"),
                discover(client={"name": "n"}),
                {**discover(), "params": {}},
            )
        ),
    ],
)
def test_all_else_is_left_to_the_sdk(line: bytes) -> None:
    assert greet(line) is None


def test_greeting_needs_neither_the_sdk_nor_pydantic() -> None:
    code = "import sys, postroom.doors.mcp.stdio; print(sorted({'mcp', 'mcp_types', 'pydantic', 'anyio'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"
