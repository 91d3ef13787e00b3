"""An agent of the demo: asks for work through MCP, works slowly on a first attempt, and completes a second one."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

WORK_SECONDS = 30.0
"""Longer than the demo lets a first holder live."""
PAUSE_SECONDS = 0.3


async def run(name: str, queue: str) -> None:
    """Claim from the queue until one todo is completed, saying each step on a line of its own."""
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = StdioServerParameters(command=sys.executable, args=["-m", "postroom", "mcp"], env=_environ())
    async with Client(stdio_client(server)) as client:
        while True:
            claimed = await _call(client, "claim_next", queues=[queue], wait_s=10)
            if claimed is None:
                await asyncio.sleep(PAUSE_SECONDS)  # the daemon is away; what it accepted is not
                continue
            for todo in claimed["todos"]:
                tried = ", ".join(f"{entry['owner']}'s lease lapsed" for entry in todo["history"])
                _say("claimed", todo["id"], str(todo["attempt"]), tried)
                await asyncio.sleep(WORK_SECONDS if todo["attempt"] == 1 else PAUSE_SECONDS)
                result = {"summary": f"looked at by {name}"}
                done = await _call(client, "complete", id=todo["id"], lease_id=todo["lease_id"], result=result)
                if done is not None:
                    _say("completed", todo["id"])
                    return


async def _call(client: Any, tool: str, **arguments: Any) -> dict[str, Any] | None:
    """A tool's structured answer, or None when it was refused."""
    answer = await client.call_tool(tool, arguments)
    if answer.is_error:
        print(answer.structured_content, file=sys.stderr, flush=True)
        return None
    structured: dict[str, Any] = answer.structured_content
    return structured


def _environ() -> dict[str, str]:
    import os

    return {key: value for key, value in os.environ.items() if key.startswith("POSTROOM_") or key in {"PATH", "HOME"}}


def _say(*words: str) -> None:
    print("\t".join(words), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2]))
