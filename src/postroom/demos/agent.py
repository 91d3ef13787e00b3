"""A stand-in agent in a terminal: it is asked by its user, reads what Postroom puts on its prompt, works, and answers.

It does what real agents do with Postroom: a message is acknowledged by the very command that it shows; a ring is a hint
upon which it claims, through MCP, from the queue that it was started for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shlex
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from postroom.demos.holds import passed
from postroom.demos.terminal import Terminal
from postroom.demos.tools import Tools, connected, speaking

VERB_S: Final = 30.0
RING: Final = "queue.ring"
_MESSAGE: Final = re.compile(
    r"\[postroom (?P<id>\S+?)(?:, again \d+)?: (?P<kind>\S+) from (?P<sender>\S+?)(?: about (?P<about>\S+))?; [^\]]*"
    r"acknowledge: postroom ack (?P<ack>msg_[a-z0-9]+_[0-9a-f]{8})\]\n(?P<body>.*)",
    re.DOTALL,
)
_ASK: Final = re.compile(r"ask (?P<name>\S+): (?P<question>.+)")


class StandIn:
    """One agent. Its user's lines and Postroom's messages are taken one after the other."""

    def __init__(self, asked: argparse.Namespace, terminal: Terminal) -> None:
        self._name: str = asked.name
        self._folder: Path = asked.folder
        self._environ = speaking(asked.token.read_text("ascii").strip())
        self._queue: str | None = asked.queue
        self._answer: str = asked.answer
        self._terminal = terminal
        self._tools: Tools | None = None

    async def run(self) -> None:
        """Live until the terminal closes."""
        async with AsyncExitStack() as stack:
            if self._queue is not None:
                self._tools = await stack.enter_async_context(connected(self._environ))
            self._terminal.begin()
            ended = asyncio.create_task(self._terminal.ended.wait())
            while not ended.done():
                line = asyncio.create_task(self._terminal.submitted.get())
                await asyncio.wait({line, ended}, return_when=asyncio.FIRST_COMPLETED)
                if line.done():
                    await self._take(line.result())
                else:
                    line.cancel()

    async def _take(self, text: str) -> None:
        message = _MESSAGE.fullmatch(text)
        asked = _ASK.fullmatch(text)
        if message is not None and message["kind"] == RING:
            await self._work_off()
        elif message is not None:
            await self._read(message)
        elif asked is not None:
            await self._verb("send", "--to", asked["name"], asked["question"])
        else:
            await self._busy("Working", "works")
            self._terminal.say("  done")

    async def _read(self, message: re.Match[str]) -> None:
        """Acknowledge it as it says, and answer what is a question."""
        await self._busy("Reading", "reads")
        await self._verb("ack", message["ack"])
        if message["about"] is None and message["body"].rstrip().endswith("?"):
            await self._verb("send", "--to", message["sender"], "--reply-to", message["id"], self._answer)

    async def _work_off(self) -> None:
        """Claim, work and complete until nothing is left."""
        if self._queue is None or self._tools is None:
            return
        while True:
            found = await self._call("claim_next", queues=[self._queue], wait_s=0)
            todos = [] if found is None else found["todos"]
            for todo in todos:
                self._terminal.say(f"  claimed {todo['id']}, attempt {todo['attempt']}: {todo['title']}")
                await self._busy("Working on it", "works")
                result = {"summary": f"looked at by {self._name}"}
                if await self._call("complete", id=todo["id"], lease_id=todo["lease_id"], result=result):
                    self._terminal.say(f"  completed {todo['id']}")
            if not todos:
                return

    async def _call(self, tool: str, **arguments: Any) -> dict[str, Any] | None:
        assert self._tools is not None
        self._terminal.say(f"  {tool}({', '.join(f'{name}={value!r}' for name, value in _shown(arguments))})")
        self._terminal.doing(f"Calling {tool}")
        answer = await self._tools.call(tool, **arguments)
        self._terminal.doing(None)
        return answer

    async def _verb(self, *words: str) -> None:
        """Run a verb of the command line, and show what it prints."""
        self._terminal.say(f"  $ postroom {shlex.join(words)}")
        self._terminal.doing(f"Running postroom {words[0]}")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "postroom", *words),
            env=self._environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), VERB_S)
        except TimeoutError:
            process.kill()
            said = b"it took too long"
        self._terminal.doing(None)
        for line in said.decode("utf-8", "replace").splitlines():
            self._terminal.say(f"    {line}")

    async def _busy(self, words: str, hold: str) -> None:
        self._terminal.doing(words)
        await passed(self._folder, f"{self._name}.{hold}")
        self._terminal.doing(None)


def _shown(arguments: dict[str, Any]) -> list[tuple[str, Any]]:
    """What of a call is shown: a lease is its holder's alone."""
    return [(name, "…" if name == "lease_id" else value) for name, value in arguments.items()]


async def _live(asked: argparse.Namespace) -> None:
    with Terminal(f"{asked.name}, a stand-in for an agent") as terminal:
        await StandIn(asked, terminal).run()


def main() -> None:
    """Become the agent that the command line names: `NAME FOLDER TOKEN-FILE [--queue QUEUE] [--answer TEXT]`."""
    parser = argparse.ArgumentParser(prog="stand-in")
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("token", type=Path)
    parser.add_argument("--queue", help="the queue that a ring is claimed from")
    parser.add_argument("--answer", default="Yes.", help="what a question is answered with")
    asked = parser.parse_args()
    # The terminal is for its screen; complaints have a place of their own.
    log = os.open(asked.folder / f"{asked.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    asyncio.run(_live(asked))
