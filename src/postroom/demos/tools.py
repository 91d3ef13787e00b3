"""What a demo's agent has of Postroom: the tools of a real MCP server, which it starts and speaks to over stdio."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any


class Tools:
    """The tools, while the connection stands."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any] | None:
        """A tool's structured answer, or None when it was refused, which is told on stderr."""
        answer = await self._client.call_tool(tool, arguments)
        if answer.is_error:
            print(answer.structured_content, file=sys.stderr, flush=True)
            return None
        structured: dict[str, Any] = answer.structured_content
        return structured


@asynccontextmanager
async def connected(environ: Mapping[str, str]) -> AsyncIterator[Tools]:
    """`postroom mcp` started in this environment -> connected; it ends with the agent."""
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = StdioServerParameters(command=sys.executable, args=["-m", "postroom", "mcp"], env=dict(environ))
    async with Client(stdio_client(server, errlog=sys.stderr)) as client:
        # The first call is what makes the server reach for the daemon.
        await client.list_tools()
        yield Tools(client)


def speaking(token: str) -> dict[str, str]:
    """This process's environment with a token to show to the daemon."""
    return {**os.environ, "POSTROOM_TOKEN": token}
