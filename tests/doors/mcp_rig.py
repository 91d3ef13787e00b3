"""What the MCP tests stand on: a server over a desk in memory, and a call that gives the structured answer."""

from __future__ import annotations

import asyncio
import json
import socket
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import uvicorn
from mcp.client import Client
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import ResourceUpdatedNotification

from postroom.desk import Desk
from postroom.doors.mcp.server import build_server
from postroom.doors.mcp.spec import Caller, View
from postroom.model import Principal
from postroom.post import Post
from tests.doors.memory_desk import MemoryDesk, Shelf

ERAS = ("auto", "legacy")
"""How the SDK's client begins: by discovery, which is revision 2026-07-28, or by the older handshake."""


class NoPost:
    """A post that nobody is expected to touch."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the post was asked to {name}")


NO_POST = cast(Post, NoPost())


@asynccontextmanager
async def at_desk(
    desk: Desk,
    era: str = ERAS[0],
    *,
    name: str = "agent",
    post: Post = NO_POST,
    view: View | None = None,
    heard: list[str] | None = None,
) -> AsyncIterator[Client]:
    """The SDK's own client, in one of the eras, before a server over this desk, this post and this view of the name.

    heard: where the addresses are put of which the server sends notices on the connection itself.
    """
    holder = Principal(name)

    async def caller_of(_: object) -> Caller:
        return Caller(desk, post, holder.holds, view=view)

    async def hear(message: Any) -> None:
        if heard is not None and isinstance(message, ResourceUpdatedNotification):
            heard.append(str(message.params.uri))

    async with Client(build_server(caller_of), mode=era, message_handler=hear) as client:
        yield client


async def subscribe(client: Client, uri: str, *, end: bool = False) -> None:
    """Ask for notices of a resource as the revisions before 2026-07-28 do, or no longer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        await (client.session.unsubscribe_resource(uri) if end else client.session.subscribe_resource(uri))


async def good(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """A call that is expected to succeed; the text block says the same as the structured answer."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.structured_content
    return same(result)


async def refused(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """A call that is expected to be refused, as its error."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    error: dict[str, Any] = same(result)["error"]
    assert error["code"]
    assert error["message"]
    assert error["hint"]
    return error


def same(result: Any) -> dict[str, Any]:
    """The structured answer of a result, after a look at its text."""
    structured: dict[str, Any] = result.structured_content
    (block,) = result.content
    assert json.loads(block.text) == structured
    assert len(block.text.encode()) <= 24 * 1024
    return structured


async def filled(desk: MemoryDesk, count: int = 1, **more: Any) -> list[str]:
    """Ids of so many new todos."""
    return [(await desk.create("inbox", f"todo {n}", **more)).todo.id for n in range(count)]


def new_desk(name: str = "agent") -> MemoryDesk:
    """A desk over an empty shelf."""
    return MemoryDesk(Shelf(), name)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; ten seconds are a failure."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition never came true")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the tests' own runner."""
        yield


@asynccontextmanager
async def loopback(app: Any, port: int = 0) -> AsyncIterator[str]:
    """Serve an ASGI app on loopback, and give its base URL."""
    listener = socket.create_server(("127.0.0.1", port))
    server = _Server(
        uvicorn.Config(app, lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started or task.done())
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 10)
