"""An agent that asks: it waits for work through MCP, does one todo, and says each of its steps on a line of its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from postroom.demos.holds import passed
from postroom.demos.tools import connected, speaking

WORK_SECONDS = 30.0
"""Longer than the demo lets a first holder live."""
PAUSE_SECONDS = 0.3


async def run(name: str, folder: Path, token: Path, queue: str) -> None:
    """Claim from the queue until one todo is completed; slow at a first attempt, quick at a second one."""
    async with connected(speaking(token.read_text("ascii").strip())) as tools:
        await passed(folder, f"{name}.asks")
        while True:
            claimed = await tools.call("claim_next", queues=[queue], wait_s=10)
            if claimed is None:
                await asyncio.sleep(PAUSE_SECONDS)  # the daemon is away; what it accepted is not
                continue
            for todo in claimed["todos"]:
                tried = ", ".join(f"{entry['owner']}'s lease lapsed" for entry in todo["history"])
                _say("claimed", todo["id"], str(todo["attempt"]), tried)
                await asyncio.sleep(WORK_SECONDS if todo["attempt"] == 1 else PAUSE_SECONDS)
                result = {"summary": f"looked at by {name}"}
                done = await tools.call("complete", id=todo["id"], lease_id=todo["lease_id"], result=result)
                if done is not None:
                    _say("completed", todo["id"])
                    return


def _say(*words: str) -> None:
    print("\t".join(words), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]))
