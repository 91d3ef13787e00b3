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
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from postroom.desk import Desk
from postroom.doors.mcp.channel_words import CAPABILITY
from postroom.doors.mcp.greeting import greet, refuse
from postroom.doors.mcp.pipes import Input, Output, Traffic, first_line, write_all
from postroom.errors import PostroomError, Unauthenticated, Unavailable
from postroom.limits import check_name
from postroom.post import Post

if TYPE_CHECKING:
    import anyio

    from postroom.doors.mcp.channel import ChannelLine
    from postroom.doors.mcp.server import Context
    from postroom.doors.mcp.spec import Caller
    from postroom.happening import Happening, HappeningFilter

GRACE_S = 2.0
"""How long answers may still be given after the input has ended."""

CLOSE_DEADLINE_S = 2.0
HEAR_DEADLINE_S = 10.0
REDIAL_S = 0.5
MOST_REDIAL_S = 30.0

_CHANNEL = ("postroom.doors.mcp.channel", "postroom.doors.mcp.channel_seat")

HINTS = {
    "unavailable": "Start the daemon with `postroom serve`, or point POSTROOM_URL at it; then repeat the same call.",
    "unauthenticated": "Set POSTROOM_TOKEN to a token that `postroom token create` made, then start this client anew.",
}


class DialledDesk(Desk, Protocol):
    """A desk that is reached over a connection, and the post, the queues and what happens over the same."""

    @property
    def post(self) -> Post:
        """The verbs of the post."""
        ...

    async def queues(self) -> dict[str, Any]:
        """The queues with settings and depths."""
        ...

    async def queue(self, name: str) -> dict[str, Any]:
        """One queue."""
        ...

    def stream(self, wanted: HappeningFilter) -> AsyncIterator[Happening]:
        """What happens, for ever; `lagged` comes first, and after each break."""
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
                shown = Path(token_file).expanduser().read_text(encoding="ascii").strip()
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

    def desk(self) -> DialledDesk:
        """The desk at the other end."""
        if self._desk is None:
            self._desk = self._dial()
        return self._desk

    async def caller(self, _: Context) -> Caller:
        """The one caller of this process; the daemon shows lease ids only to their holder, so what it shows is ours."""
        from postroom.doors.mcp.spec import Caller

        desk = self.desk()
        return Caller(desk, desk.post, lambda _: True, self._worker, self)

    # The view, for resources.

    async def queues(self) -> list[dict[str, Any]]:
        """Every queue the token may use, by name."""
        return list((await self.desk().queues())["queues"])

    async def queue(self, name: str) -> dict[str, Any]:
        """One queue, used or not. Raises NotFound for one the token may not use."""
        return await self.desk().queue(name)

    @contextlib.asynccontextmanager
    async def hear(self, wanted: HappeningFilter) -> AsyncIterator[AsyncIterable[Happening]]:
        """What happens from its entering on, whichever token the daemon knows by then."""
        items = self._items(wanted)
        try:
            try:
                async with asyncio.timeout(HEAR_DEADLINE_S):
                    # What comes first says that the daemon tells from now on.
                    await anext(items)
            except TimeoutError:
                raise Unavailable("the daemon does not tell what happens") from None
            yield items
        finally:
            await items.aclose()

    async def _items(self, wanted: HappeningFilter) -> AsyncGenerator[Happening]:
        pause = REDIAL_S
        while True:
            desk: DialledDesk | None = None
            try:
                desk = self.desk()
                async for happening in desk.stream(wanted):
                    pause = REDIAL_S
                    yield happening
                raise Unavailable("the daemon tells nothing any more")
            except Unauthenticated:
                # A daemon set up anew has written another token, or will.
                if desk is self._desk:
                    await self.hang_up()
            except Unavailable:
                # Unless it was hung up meanwhile, for that same reason.
                if desk is self._desk:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, MOST_REDIAL_S)

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
    channel: Mapping[str, Any] | None = None,
) -> int:
    """Serve stdin and stdout until the input ends or SIGTERM comes; gives the exit status.

    `agent` is the worker's name under the token where a call gives none, POSTROOM_AGENT by default. Logs go to stderr.
    `channel`: what a channel_seat.Seat is made of; what comes for that seat is then pushed to the client. Raises Invalid
    for what is no name.
    """
    worker = agent_of(agent, os.environ)
    # Before there is a loop, a signal has nothing to undo.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, _leave)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    begun = first_line(0)
    while channel is not None and (refusal := refuse(begun.partition(b"\n")[0])) is not None:
        write_all(1, refusal)
        begun = begun.partition(b"\n")[2]
        if b"\n" not in begun:
            begun += first_line(0)
    if not begun:
        return 0
    greeted = greet(begun.partition(b"\n")[0], channel=channel is not None) if b"\n" in begun else None
    if greeted is not None:
        write_all(1, greeted[1])
    # The SDK's import makes a few hundred thousand lasting objects; collecting among them is a tenth of its time.
    gc.disable()
    try:
        for module in ("mcp.server.stdio", "postroom.doors.mcp.server", *(_CHANNEL if channel is not None else ())):
            importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()
    dial = daemon(url, token, token_file, socket)
    return asyncio.run(serve(dial, worker, begun, None if greeted is None else greeted[0], channel))


def agent_of(agent: str | None, environ: Mapping[str, str]) -> str | None:
    """The worker's name: what was given, else POSTROOM_AGENT, else none. Raises Invalid naming which it is."""
    if agent is not None:
        return check_name(agent, "--agent")
    named = environ.get("POSTROOM_AGENT") or None
    return None if named is None else check_name(named, "POSTROOM_AGENT")


def _seated(dial: Dial, worker: str | None, channel: Mapping[str, Any]) -> ChannelLine:
    from postroom.doors.mcp.channel import ChannelLine
    from postroom.doors.mcp.channel_seat import Seat

    return ChannelLine(dial, worker, Seat(**channel))


def _leave(*_: object) -> None:
    raise SystemExit(0)


async def serve(
    dial: Dial,
    worker: str | None = None,
    begun: bytes = b"",
    greeted: int | str | None = None,
    channel: Mapping[str, Any] | None = None,
) -> int:
    """Serve one client over this process's stdin and stdout; 0 once the input has ended or SIGTERM came.

    `begun` is what was read before, `greeted` the id of a request in it that has its answer.
    """
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(_serve(dial, worker, begun, greeted, channel))
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


async def _serve(
    dial: Dial, worker: str | None, begun: bytes, greeted: int | str | None, channel: Mapping[str, Any] | None
) -> None:
    from mcp.server.stdio import stdio_server

    from postroom.doors.mcp.server import build_server

    seated = None if channel is None else _seated(dial, worker, channel)
    line = Line(dial, worker) if seated is None else seated
    server = build_server(line.caller, HINTS, line.refused, channel=seated is not None)
    traffic = Traffic()
    server.middleware.append(traffic)
    wire = os.dup(1)
    # From here on a stray print lands on stderr and not among the messages.
    os.dup2(2, 1)
    output = Output(wire, traffic.answered, greeted)
    lines: AsyncIterable[str] = Input(0, lambda: traffic.settled(GRACE_S), begun)
    able_to = {} if seated is None else dict(CAPABILITY)
    try:
        async with contextlib.AsyncExitStack() as beside:
            if seated is not None:
                lines = await beside.enter_async_context(seated.pushing(lines, output.push))
            stdin, stdout = cast("anyio.AsyncFile[str]", lines), cast("anyio.AsyncFile[str]", output)
            read, write = await beside.enter_async_context(stdio_server(stdin, stdout))
            await server.run(read, write, server.create_initialization_options(experimental_capabilities=able_to))
    finally:
        # The duplicate stays open: a write that was given up may still be under way in its thread.
        os.dup2(wire, 1)
        await line.hang_up()
