"""The two pipes of a stdio server, and the count of what is still owed on them when the input ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

MAX_LINE_BYTES = 8 * 1024 * 1024
"""The longest message; a longer one is not read as JSON."""

CLAIM_PATIENCE_S = 0.5
"""How long a claim counts as about to be answered; an older one waits for work that nobody would take."""

_CHUNK_BYTES = 65536
_TURNS = 64


class Input:
    """The lines of a file descriptor, read by a thread that the end of the process does not wait for.

    A read of stdin cannot be cancelled; so nothing may depend on its returning, or SIGTERM would wait for the client.
    """

    def __init__(self, descriptor: int, at_end: Callable[[], Awaitable[None]], begun: bytes = b"") -> None:
        self._descriptor = descriptor
        self._at_end = at_end
        self._begun = begun

    async def __aiter__(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[bytes | None] = asyncio.Queue(16)
        reader = threading.Thread(target=self._read, args=(loop, lines), name="stdin", daemon=True)
        reader.start()
        while (line := await lines.get()) is not None:
            if line.strip():
                yield line.decode("utf-8", "replace")
        await self._at_end()

    def _read(self, loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[bytes | None]) -> None:
        def hand(line: bytes | None) -> None:
            asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

        # The loop may be gone by the time a read returns; then there is nobody left to read for.
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):
            for line in _lines(self._descriptor, self._begun):
                hand(line)
            hand(None)


def first_line(descriptor: int) -> bytes:
    """What has been read once the first line is whole: that line, and perhaps more; less only at the end of input."""
    held = bytearray()
    while b"\n" not in held and len(held) <= MAX_LINE_BYTES and (chunk := _chunk(descriptor)):
        held += chunk
    return bytes(held)


def _lines(descriptor: int, begun: bytes) -> Iterator[bytes]:
    held = bytearray()
    overlong = False
    chunk = begun or _chunk(descriptor)
    while chunk:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            # The beginning of an overlong message is no JSON and is answered as such.
            yield bytes(held[:100] if overlong else held + part)
            held.clear()
            overlong = False
        held += rest
        if len(held) > MAX_LINE_BYTES:
            del held[100:]
            overlong = True
        chunk = _chunk(descriptor)
    if held:
        yield bytes(held)


def _chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except OSError:
        return b""


def write_all(descriptor: int, data: bytes) -> None:
    """Write it all. A client that has closed its end is not written to, and its end is no error of ours."""
    left = memoryview(data)
    with contextlib.suppress(BrokenPipeError):
        while left:
            left = left[os.write(descriptor, left) :]


class Output:
    """Lines written to a file descriptor in a thread; a write to a client that no longer reads can be given up.

    `answered` hears of each answer that was written, and not of notices. The answer to the request `greeted` has
    been sent already, and is left out once.
    """

    def __init__(self, descriptor: int, answered: Callable[[], None], greeted: int | str | None = None) -> None:
        self._descriptor = descriptor
        self._answered = answered
        self._greeted = greeted
        self._turn = asyncio.Lock()

    async def write(self, line: str) -> None:
        """Write it all."""
        message = json.loads(line)
        if self._greeted is not None and message.get("id") == self._greeted:
            self._greeted = None
        else:
            await self.push(line)
        if "method" not in message:
            self._answered()

    async def push(self, line: str) -> None:
        """Write it all, as something that answers nothing."""
        from anyio import to_thread

        async with self._turn:
            await to_thread.run_sync(write_all, self._descriptor, line.encode(), abandon_on_cancel=True)

    async def flush(self) -> None:
        """Nothing is held back."""


class Traffic:
    """A middleware that counts the requests begun and the answers written, and knows which claims and streams wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owed = 0
        self._claims: dict[int, float] = {}
        self._change = asyncio.Event()

    async def __call__(self, ctx: ServerRequestContext[dict[str, object]], call_next: CallNext) -> HandlerResult:
        """Count a request, and enter a claim for as long as it takes."""
        if ctx.request_id is None:
            return await call_next(ctx)
        self._owed += 1
        if ctx.method == "subscriptions/listen":
            # It is answered by its end alone.
            self._claims[id(ctx)] = -math.inf
        elif ctx.method == "tools/call" and (ctx.params or {}).get("name") == "claim_next":
            self._claims[id(ctx)] = self._clock()
        try:
            return await call_next(ctx)
        finally:
            self._claims.pop(id(ctx), None)

    def answered(self) -> None:
        """Count an answer written."""
        self._owed -= 1
        self._change.set()

    async def settled(self, deadline_s: float) -> None:
        """Wait until all is answered but claims that wait for work; `deadline_s` at most.

        Who pipes requests in closes the pipe behind them, and wants the answers all the same.
        """
        # What was read last is still on its way through the SDK's streams, a few turns of the loop each.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        end = self._clock() + deadline_s
        while True:
            now = self._clock()
            ages = [now - since for since in self._claims.values()]
            waiting = sum(age >= CLAIM_PATIENCE_S for age in ages)
            if self._owed <= waiting or now >= end:
                return
            self._change.clear()
            ripe = min((CLAIM_PATIENCE_S - age for age in ages if age < CLAIM_PATIENCE_S), default=deadline_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(ripe, end - now)):
                    await self._change.wait()
