"""Waking: from a signed delivery to the agent that is already open, in a pane, in an opencode session, on a channel."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.processes import until
from tests.terminals.rig import Terminals

from bench.line import DEADLINE, Line, line_to
from bench.places import Place
from bench.post_peer import peer, watching
from bench.senders import SOURCE, Mail
from bench.served import Served, served
from bench.table import Table

QUEUE = "inbox"
SESSION = "ses_waking"
ROUNDS = 60
WARM = 3

_HELLO: Mapping[str, Any] = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}

Arrival = Callable[[], Awaitable[int]]


async def _times(line: Line, mail: Mail, came: Arrival, rounds: int, pause: float) -> list[float]:
    """Milliseconds from the delivery's first byte to the ring's arrival, each when the one before is done with.

    pause: how long (seconds) an agent is idle before the next delivery.
    """
    times: list[float] = []
    for n in range(-WARM, rounds):
        await asyncio.sleep(pause + (n % 5) * 0.001)
        (request,) = mail.take(1)
        started = time.perf_counter_ns()
        arriving = asyncio.ensure_future(came())
        await line.raw(request)
        async with asyncio.timeout(DEADLINE):
            at = await arriving
        if n >= 0:
            times.append((at - started) / 1e6)
        claimed = (await line.ask("POST", "/v1/todos/claim", {"queues": [QUEUE]}))["todos"]
        for todo in claimed:
            await line.ask("POST", f"/v1/todos/{todo['id']}/complete", {"lease_id": todo["lease_id"]})
    return times


async def _pane(daemon: Served, mail: Mail, table: Table, rounds: int) -> None:
    terminals = Terminals()
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        with closing(told):
            place = terminals.folder / "told"
            told.bind(str(place))
            told.setblocking(False)
            pane = terminals.open([sys.executable, str(Path(__file__).with_name("pane_peer.py")), str(place)])
            terminals.shows(pane, ">")

            async def came() -> int:
                return int(await asyncio.get_running_loop().sock_recv(told, 64))

            async with line_to(daemon) as line:
                await _attach(line, "tmux", {"socket": terminals.socket, "pane": pane})
                # Whether a program takes pastes is heard when it says so, which this one does after each Enter.
                terminals.tmux("send-keys", "-t", pane, "Enter")
                # A pane counts as idle once nothing has moved on it for a while.
                times = await _times(line, mail, came, rounds, 1.0)
                await _leave(line)
    finally:
        terminals.close()
    _told(table, "→ text on an idle pane", times, 60)


async def _session(daemon: Served, mail: Mail, port: int, table: Table, rounds: int) -> None:
    async with watching(port) as watched, line_to(daemon) as line:

        async def came() -> int:
            return int((await watched.readline()).split()[1])

        await _attach(line, "opencode", {"session": SESSION})
        times = await _times(line, mail, came, rounds, 0.05)
        await _leave(line)
    _told(table, "→ prompt at opencode", times, 25)


async def _channel(daemon: Served, mail: Mail, table: Table, rounds: int) -> None:
    words = ("mcp", "--channel", "--name", "ann", "--no-repo", "--queue", QUEUE)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("POSTROOM_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "postroom", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environ | {"POSTROOM_DATA": str(daemon.folder)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers = process.stdout

    async def came() -> int:
        while True:
            read = await answers.readline()
            at = time.perf_counter_ns()
            if b"notifications/claude/channel" in read:
                return at
            if not read:
                raise RuntimeError("the channel's process ended")

    try:
        for said in (_HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}):
            process.stdin.write(json.dumps(said).encode() + b"\n")
        async with line_to(daemon) as line:

            async def waits() -> bool:
                return bool((await line.ask("GET", "/v1/status"))["post"]["carriers"]["channel"]["processes"])

            await until(waits, "the channel's process waits", DEADLINE)
            times = await _times(line, mail, came, rounds, 0.05)
    finally:
        process.terminate()
        await process.wait()
    _told(table, "→ channel notification", times, 15)


async def _attach(line: Line, carrier: str, address: Mapping[str, Any]) -> None:
    await line.ask("POST", "/v1/endpoints", {"carrier": carrier, "address": address, "name": "ann", "queues": [QUEUE]})


async def _leave(line: Line) -> None:
    for one in (await line.ask("GET", "/v1/endpoints"))["endpoints"]:
        await line.ask("DELETE", f"/v1/endpoints/{one['id']}")


def _told(table: Table, words: str, times: list[float], bound: float) -> None:
    table.at_most(f"signed delivery {words}, p50", statistics.median(times), bound, "ms")
    table.plain("the same, p95", f"{statistics.quantiles(times, n=20)[18]:10.2f} ms")


async def run(place: Place, table: Table, scale: float) -> None:
    """Print the section of one engine."""
    rounds = max(int(ROUNDS * scale), 10)
    table.section(f"{place.engine}: from a delivery's first byte to the agent that is open")
    database = None if place.engine == "sqlite" else await place.fresh()
    with peer() as port, served(f'{SOURCE}\n[[opencode]]\nurl = "http://127.0.0.1:{port}"\n', database) as daemon:
        mail = Mail()
        await _session(daemon, mail, port, table, rounds)
        await _channel(daemon, mail, table, rounds)
        await _pane(daemon, mail, table, rounds)
