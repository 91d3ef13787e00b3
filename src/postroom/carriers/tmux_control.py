"""A tmux control client: commands pipelined over one connection, each with its own answers, and what panes put out.

It never starts a server, never changes a window's size, and reads whatever tmux writes at once: a control client that
does not read can end the whole server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from postroom.errors import NotFound, Unavailable

DEADLINE_S: Final = 5.0
_LINGER_S: Final = 0.2
_END_S: Final = 0.5
_BEGIN: Final = re.compile(rb"%begin (\d+ \d+ (\d+))")
_NO_SERVER: Final = re.compile(
    r"no server running|error connecting|no sessions|lost server|server exited", re.IGNORECASE
)
_NO_SESSION: Final = re.compile(r"can't find (session|pane|window)", re.IGNORECASE)


class ServerGone(NotFound):
    """There is no tmux server at the socket, or not the session or pane that was asked for."""


class ServerFault(Unavailable):
    """tmux did not answer, or its answer makes no sense; whether the command was carried out is not known."""


@dataclass(frozen=True, slots=True)
class Block:
    """The answer to one command: its lines, without line ends, and whether it is an error."""

    lines: tuple[bytes, ...]
    failed: bool

    @property
    def text(self) -> str:
        """All of it as text."""
        return b"\n".join(self.lines).decode("utf-8", "replace")


@dataclass(slots=True)
class _Request:
    """A request under way; it is complete with the answer that is nothing but its mark."""

    mark: bytes
    answered: asyncio.Future[list[Block]]
    blocks: list[Block] = field(default_factory=list)


def quote(text: str) -> str:
    """The text as one argument in tmux's own command language. Must hold no newline."""
    return "'" + text.replace("'", "'\\''") + "'"


def environment() -> Mapping[str, str]:
    """The environment for tmux: not as if from inside a pane, which tmux would refuse."""
    return {name: value for name, value in os.environ.items() if name not in {"TMUX", "TMUX_PANE"}}


def command(binary: str, socket: str, *arguments: str) -> list[str]:
    """A tmux command line for this socket that never starts a server and has its text in UTF-8."""
    return [binary, "-u", "-N", "-S", socket, *arguments]


def leash() -> tuple[str, ...]:
    """What a control client is started with so that it ends with this process, however this process ends.

    One left behind, with nobody to read what it is told, keeps its tmux server from ever ending. Empty where the system
    has no such means.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    line = (setpriv, "--pdeathsig", "KILL")
    try:
        done = subprocess.run([*line, "true"], capture_output=True, timeout=DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return line if done.returncode == 0 else ()


def fault(text: str) -> ServerGone | ServerFault:
    """What tmux's own words for a failure mean."""
    said = text.strip()[:200] or "tmux gave no answer"
    if _NO_SERVER.search(said) or _NO_SESSION.search(said):
        return ServerGone(said)
    return ServerFault(said)


class _Process(asyncio.SubprocessProtocol):
    """A tmux client's process. Its transport is closed, not waited for: a tmux that hangs keeps its pipes open."""

    def __init__(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_data = on_data
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.exited = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._on_data(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._on_end()

    def process_exited(self) -> None:
        self.exited.set()
        # What it said last may still stand in the pipe.
        self._loop.call_later(_LINGER_S, self._on_end)


async def _exit(process: _Process) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            await process.exited.wait()


async def _start(
    line: Sequence[str], talks: bool, on_data: Callable[[bytes], None], on_end: Callable[[], None]
) -> tuple[asyncio.SubprocessTransport, _Process]:
    try:
        return await asyncio.get_running_loop().subprocess_exec(
            lambda: _Process(on_data, on_end),
            *line,
            stdin=asyncio.subprocess.PIPE if talks else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment(),
        )
    except OSError as error:
        raise ServerFault(f"tmux cannot be started: {error.strerror}") from None


async def run(binary: str, socket: str, *arguments: str) -> str:
    """One tmux command in a process of its own -> what it printed. Raises ServerGone and ServerFault; 5 s at most."""
    said = bytearray()
    over = asyncio.Event()
    transport, process = await _start(command(binary, socket, *arguments), False, said.extend, over.set)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await over.wait()
            await process.exited.wait()
    except TimeoutError:
        raise ServerFault(f"tmux did not answer in {DEADLINE_S:g} s") from None
    finally:
        transport.close()
    text = said.decode("utf-8", "replace")
    if transport.get_returncode() != 0:
        raise fault(text)
    return text


class ControlClient:
    """One control client, attached to one session: it hears what that session's panes put out.

    on_output: called with a pane's id and its output, tmux's escapes still in it. on_notice: with every other
    notification, split at blanks. on_end: once, when the connection is over.
    """

    def __init__(
        self,
        session: str,
        on_output: Callable[[bytes, bytes], None],
        on_notice: Callable[[Sequence[bytes]], None],
        on_end: Callable[[ControlClient], None],
    ) -> None:
        self.session = session
        self._on_output = on_output
        self._on_notice = on_notice
        self._on_end = on_end
        self._transport: asyncio.SubprocessTransport | None = None
        self._process: _Process | None = None
        self._input: asyncio.WriteTransport | None = None
        self._rest = b""
        self._requests: deque[_Request] = deque()
        self._numbers = 0
        self._within: bytes | None = None
        self._ours = False
        self._lines: list[bytes] = []
        self._last = ""
        self._attached = False
        self._attachment = asyncio.Event()
        self.closed = False

    async def connect(self, binary: str, socket: str, tied: Sequence[str] = ()) -> None:
        """Not connected -> attached to the session, without a say in its size; `tied` as `leash` gives it.

        Raises ServerGone and ServerFault.
        """
        attach = ("-C", "attach-session", "-E", "-f", "ignore-size", "-t", self.session)
        transport, self._process = await _start(
            [*tied, *command(binary, socket, *attach)], True, self._feed, self._over
        )
        self._transport = transport
        self._input = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        # tmux may read what it is told before it carries out the attachment, and answers that even where it refuses this.
        answered = self.tell()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._attachment.wait()
                if self._attached:
                    await answered
        except TimeoutError:
            self.close()
            raise ServerFault(f"tmux did not attach in {DEADLINE_S:g} s") from None
        if not self._attached:
            self.close()
            raise fault(self._last)

    async def ask(self, *commands: str) -> list[Block]:
        """The answers to these commands, in their order: one block each, and one for each command that one of them runs.

        Requests are pipelined. Raises ServerGone when the server ends, ServerFault when the connection does or no answer
        comes in 5 s; it is closed then.
        """
        answered = self.tell(*commands)
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await answered
        except TimeoutError:
            self.close()
            raise ServerFault(f"tmux did not answer in {DEADLINE_S:g} s") from None

    def tell(self, *commands: str) -> asyncio.Future[list[Block]]:
        """Commands -> sent; the answers come in the future, which may be dropped."""
        if self.closed or self._input is None:
            raise ServerFault("the connection to tmux has ended")
        self._numbers += 1
        mark = f"postroom-{self._numbers}"
        request = _Request(mark.encode(), asyncio.get_running_loop().create_future())
        self._requests.append(request)
        lines = [*commands, f"display-message -p {mark}"]
        self._input.write("".join(f"{line}\n" for line in lines).encode())
        return request.answered

    def close(self) -> None:
        """Connected -> closed: tmux sees the end of the client's input, and its process is ended."""
        self._over()

    async def end(self) -> None:
        """What was told is still carried out -> closed, and its process has ended; waits a second for that at most."""
        process = self._process
        if not self.closed and process is not None and self._input is not None:
            self._input.close()
            await _exit(process)
        self.close()
        if process is not None:
            await _exit(process)

    def _feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        if self._within is not None:
            if line.startswith(b"%e") and line in {b"%end " + self._within, b"%error " + self._within}:
                self._answer(Block(tuple(self._lines), line.startswith(b"%error")))
            else:
                self._lines.append(line)
        elif line.startswith(b"%output "):
            _, pane, data = line.split(b" ", 2)
            self._on_output(pane, data)
        elif begun := _BEGIN.fullmatch(line):
            self._within = begun[1]
            self._ours = begun[2] == b"1"
            self._lines = []
        elif line.startswith(b"%"):
            if not line.startswith(b"%exit"):
                self._on_notice(line.split(b" "))
        elif line:
            self._last = line.decode("utf-8", "replace")

    def _answer(self, block: Block) -> None:
        self._within = None
        if block.failed:
            self._last = block.text
        if not self._ours and not self._attachment.is_set():
            # The first answer to what this client did not write is that to the attachment itself.
            self._attached = not block.failed
            self._attachment.set()
        if not self._ours or not self._requests:
            return
        request = self._requests[0]
        if block.lines != (request.mark,):
            request.blocks.append(block)
            return
        self._requests.popleft()
        if not request.answered.done():
            request.answered.set_result(request.blocks)

    def _over(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._rest:
            self._take(self._rest)
        self._attachment.set()
        if self._transport is not None:
            self._transport.close()
        gone = fault(self._last or "the connection to tmux has ended")
        while self._requests:
            request = self._requests.popleft()
            if not request.answered.done():
                request.answered.set_exception(gone)
                request.answered.exception()
        self._on_end(self)
