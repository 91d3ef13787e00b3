"""What the processes cost: the daemon's start, memory and idle time, a thousand long-polls, and the command's start."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.served import Served, served
from bench.table import Table

POLLS = 1000


def _took(command: list[str], environ: dict[str, str], runs: int) -> float:
    """The median wall time of a command in ms, after one run that is not counted."""
    times = []
    for turn in range(runs + 1):
        started = time.perf_counter()
        subprocess.run(command, env=environ, check=True, capture_output=True, timeout=30)
        if turn:
            times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


async def _poll(daemon: Served, release: asyncio.Event, ready: asyncio.Semaphore) -> None:
    body = json.dumps({"queues": ["nothing-here"], "wait_s": 45}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    head = (
        f"POST /v1/todos/claim HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {daemon.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    ready.release()
    await release.wait()
    writer.close()
    assert not reader.at_eof()


async def _long_polls(daemon: Served, count: int) -> float:
    """The daemon's memory in MiB with so many long-polls open."""
    release, ready = asyncio.Event(), asyncio.Semaphore(0)
    polls = [asyncio.create_task(_poll(daemon, release, ready)) for _ in range(count)]
    for _ in range(count):
        await ready.acquire()
    waiting = 0
    while waiting < count:
        waiting = (await asyncio.to_thread(_status, daemon))["waiting_claims"]
        await asyncio.sleep(0.05)
    resident = daemon.resident_mib()
    release.set()
    await asyncio.gather(*polls)
    return resident


def _status(daemon: Served) -> dict[str, int]:
    answer: dict[str, int] = json.loads(_ask(daemon, "GET", "/v1/status"))
    return answer


def _ask(daemon: Served, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    sent = {
        "Authorization": f"Bearer {daemon.token}",
        **{key.replace("_", "-"): value for key, value in headers.items()},
    }
    connection.request(method, path, body, sent)
    answer = connection.getresponse().read()
    connection.close()
    return answer


def _first_mcp(daemon: Served) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        },
    }
    kinds = "application/json, text/event-stream"
    _ask(daemon, "POST", "/mcp", json.dumps(hello).encode(), Content_Type="application/json", Accept=kinds)


async def run(table: Table, scale: float) -> None:
    """Print the section."""
    table.section("processes (SQLite)")
    runs = max(int(9 * scale), 3)
    command = str(Path(sys.executable).with_name("postroom"))
    with served() as daemon:
        table.at_most("daemon, start to ready", daemon.ready_s * 1000, 1500, "ms")
        await asyncio.sleep(2)
        table.at_most("daemon, idle, before the first MCP request", daemon.resident_mib(), 90, "MiB")
        before, started = daemon.cpu_seconds(), time.perf_counter()
        await asyncio.sleep(max(10 * scale, 3))
        share = (daemon.cpu_seconds() - before) / (time.perf_counter() - started) * 100
        table.at_most("daemon, idle, share of a core", share, 1, "%")
        environ = {**os.environ, "POSTROOM_DATA": str(daemon.folder)}
        table.at_most("postroom --help", _took([command, "--help"], environ, runs), 250, "ms")
        add = [command, "todo", "add", "bench", "a title"]
        table.at_most("postroom todo add", _took(add, environ, runs), 250, "ms")
        table.at_most(f"daemon with {POLLS:,} long-polls", await _long_polls(daemon, POLLS), 150, "MiB")
    with served() as daemon:
        _first_mcp(daemon)
        await asyncio.sleep(1)
        table.at_most("daemon, after the first MCP request", daemon.resident_mib(), 130, "MiB")
