"""A worker with handlers of the test's, run as a program until SIGTERM.

Its argument is JSON: `socket` or `url` where the todos are; `gate`, the file that a handler waits for; `log`, where each
handler writes that it has begun. A todo titled `bad` is refused with an exception.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from postroom import Client, Worker, connect
from postroom.model import Todo


async def main(asked: dict[str, Any]) -> None:
    """Work until told to stop."""
    gate, log = Path(asked["gate"]), Path(asked["log"])

    def note(todo: Todo) -> None:
        with log.open("a") as file:
            file.write(f"{todo.id}\n")

    async def handle(todo: Todo) -> dict[str, Any]:
        note(todo)
        if todo.title == "bad":
            raise ValueError(f"no branch {todo.payload['branch']!r} there")
        while not gate.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return {"looked_at": todo.title}

    async with Client(socket=asked["socket"]) if "socket" in asked else connect(asked["url"], name="hand") as desk:
        worker = Worker(desk, ["inbox"], handle, concurrency=2, prefetch=4, name="w1", wait_s=5)
        await worker.run(signals=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
