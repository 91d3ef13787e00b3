"""The socket: admissions over protocol 0.1 with a new connection each, from a process of its own, on a real daemon."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

from bench.places import Place
from bench.served import Served, served
from bench.table import Table

SETTINGS = "[gita]\nrequired = false\n"
SENDERS = 32
ROUNDS = 5


def _ask(path: Path, request: dict[str, object]) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        if not connection.recv(65536).startswith(b'{"ok":true'):
            raise RuntimeError(f"the daemon refused {request}")


class _Sender(asyncio.Protocol):
    """One connection: a line, and the answer's first bytes."""

    def __init__(self, line: bytes) -> None:
        self.line = line
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self.line)

    def data_received(self, data: bytes) -> None:
        if not self.done.done():
            self.done.set_result(data.startswith(b'{"ok":true'))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(False)


async def _send(path: str, run: str, count: int) -> None:
    """Send so many messages as SENDERS do at once, and print the seconds and each one's ms."""
    loop = asyncio.get_running_loop()
    numbers = iter(range(count))
    times: list[float] = []

    async def send() -> None:
        for n in numbers:
            request = {
                "op": "send",
                "protocol": "0.1",
                "client_id": "bench",
                "idempotency_key": f"{run}-{n}",
                "correlation_id": f"trigger-{n}",
                "target_repo": "bench",
                "metadata": {"lease_id": f"{run}-{n}", "trigger_id": f"trigger-{n}"},
                "body": "Please look at the failing build, and say what you find. " * 4,
            }
            line = json.dumps(request).encode() + b"\n"
            began = time.perf_counter()
            transport, sender = await loop.create_unix_connection(lambda line=line: _Sender(line), path)  # type: ignore[misc]
            if not await sender.done:
                raise RuntimeError("a message was refused")
            times.append((time.perf_counter() - began) * 1000)
            transport.close()

    began = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(SENDERS)))
    print(json.dumps([time.perf_counter() - began, times]))


def _rate(daemon: Served, run: str, count: int) -> tuple[float, list[float]]:
    command = [sys.executable, "-m", "bench.protocol", str(daemon.folder / "postroom.sock"), run, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    took, times = json.loads(done.stdout)
    return count / took, times


async def run(place: Place, table: Table, scale: float) -> None:
    """Print the section of one engine."""
    count = max(int(4000 * scale), 400)
    table.section(f"{place.engine}: admissions over the Unix socket, a new connection each, {SENDERS} at a time")
    with served(SETTINGS, None if place.engine == "sqlite" else await place.fresh()) as daemon:
        path = daemon.folder / "postroom.sock"
        _ask(
            path,
            {"op": "register", "carrier": "opencode", "address": {"session": "ses_bench"}, "repositories": ["bench"]},
        )
        _rate(daemon, "warm", count // 4)
        rates, times = [], []
        for turn in range(ROUNDS):
            rate, took = _rate(daemon, str(turn), count)
            rates.append(rate)
            times += took
        table.not_less("messages a second", statistics.median(rates), 1500 if place.engine == "sqlite" else 1000, "/s")
        table.plain("sent → admitted, p50", f"{statistics.median(times):10.2f} ms")
        table.plain("sent → admitted, p99", f"{statistics.quantiles(times, n=100)[98]:10.2f} ms")


if __name__ == "__main__":
    import uvloop

    uvloop.run(_send(sys.argv[1], sys.argv[2], int(sys.argv[3])))
