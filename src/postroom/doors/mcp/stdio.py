"""MCP over stdio: the process a client starts, which passes each call on to the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from postroom.desk import Desk
from postroom.doors.mcp.greeting import greet
from postroom.doors.mcp.pipes import Input, Output, Traffic, first_line, write_all
from postroom.errors import PostroomError, Unauthenticated
from postroom.post import Post

if TYPE_CHECKING:
    import anyio

    from postroom.doors.mcp.server import Context
    from postroom.doors.mcp.spec import Caller

GRACE_S = 2.0
"""How long answers may still be given after the input has ended."""

CLOSE_DEADLINE_S = 2.0

HINTS = {
    "unavailable": "Start the daemon with `postroom serve`, or point POSTROOM_URL at it; then repeat the same call.",
    "unauthenticated": "Set POSTROOM_TOKEN to a token that `postroom token create` made, then start this client anew.",
}


class DialledDesk(Desk, Protocol):
    """A desk that is reached over a connection, and the post over the same."""

    @property
    def post(self) -> Post:
        """The verbs of the post."""
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


Dial = Callable[[], DialledDesk]


def daemon(
    url: str | None = None,
    token: str | None = None,
    token_file: str | Path | None = None,
    socket: str | Path | None = None,
) -> Dial:
    """How to reach the daemon: what is not given is found as every program finds it; the file is read at each dial."""

    def dial() -> DialledDesk:
        from postroom.client import Client

        shown = token
        if shown is None and token_file is not None:
            try:
                shown = Path(token_file).read_text(encoding="ascii").strip()
            except (OSError, UnicodeError) as error:
                raise Unauthenticated(f"the token file {token_file} cannot be read: {error}") from None
        return Client(url, shown, socket=socket)

    return dial


class Line:
    """The line to the daemon, dialled at the first call, and anew once the daemon no longer knows the token."""

    def __init__(self, dial: Dial, worker: str | None) -> None:
        self._dial = dial
        self._worker = worker
        self._desk: DialledDesk | None = None

    async def caller(self, _: Context) -> Caller:
        """The one caller of this process; the daemon shows lease ids only to their holder, so what it shows is ours."""
        from postroom.doors.mcp.spec import Caller

        if self._desk is None:
            self._desk = self._dial()
        return Caller(self._desk, self._desk.post, lambda _: True, self._worker)

    async def refused(self, error: PostroomError) -> bool:
        """Hang up after a refusal of the token, and have it tried again: a daemon set up anew has written another."""
        if not isinstance(error, Unauthenticated):
            return False
        await self.hang_up()
        return True

    async def hang_up(self) -> None:
        """Close the connection, within a deadline."""
        desk, self._desk = self._desk, None
        if desk is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_DEADLINE_S):
                    await desk.aclose()


def run(
    *,
    agent: str | None = None,
    url: str | None = None,
    token: str | None = None,
    token_file: str | Path | None = None,
    socket: str | Path | None = None,
) -> int:
    """Serve stdin and stdout until the input ends or SIGTERM comes; gives the exit status.

    `agent` is the worker's name under the token where a call gives none. Logs go to stderr.
    """
    # Before there is a loop, a signal has nothing to undo.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, _leave)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    begun = first_line(0)
    if not begun:
        return 0
    greeted = greet(begun.partition(b"\n")[0]) if b"\n" in begun else None
    if greeted is not None:
        write_all(1, greeted[1])
    # The SDK's import makes a few hundred thousand lasting objects; collecting among them is a tenth of its time.
    gc.disable()
    try:
        for module in ("mcp.server.stdio", "postroom.doors.mcp.server"):
            importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()
    dial = daemon(url, token, token_file, socket)
    return asyncio.run(serve(dial, agent, begun, None if greeted is None else greeted[0]))


def _leave(*_: object) -> None:
    raise SystemExit(0)


async def serve(dial: Dial, worker: str | None = None, begun: bytes = b"", greeted: int | str | None = None) -> int:
    """Serve one client over this process's stdin and stdout; 0 once the input has ended or SIGTERM came.

    `begun` is what was read before, `greeted` the id of a request in it that has its answer.
    """
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(_serve(dial, worker, begun, greeted))
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        if not work.cancelled():
            raise
    finally:
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(name)
    return 0


async def _serve(dial: Dial, worker: str | None, begun: bytes, greeted: int | str | None) -> None:
    from mcp.server.stdio import stdio_server

    from postroom.doors.mcp.server import build_server

    line = Line(dial, worker)
    server = build_server(line.caller, HINTS, line.refused)
    traffic = Traffic()
    server.middleware.append(traffic)
    wire = os.dup(1)
    # From here on a stray print lands on stderr and not among the messages.
    os.dup2(2, 1)
    stdin = cast("anyio.AsyncFile[str]", Input(0, lambda: traffic.settled(GRACE_S), begun))
    stdout = cast("anyio.AsyncFile[str]", Output(wire, traffic.answered, greeted))
    try:
        async with stdio_server(stdin, stdout) as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        # The duplicate stays open: a write that was given up may still be under way in its thread.
        os.dup2(wire, 1)
        await line.hang_up()
