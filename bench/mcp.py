"""MCP over HTTP: calls of tools by agents that keep their connections, on a real daemon beside its own work."""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.places import Place
from bench.served import Served, served
from bench.table import Table

AGENTS = 16
PACE = 260.0
ROUNDS = 5
REVISION = "2026-07-28"
_META = "io.modelcontextprotocol/"


@dataclass
class Agent:
    """One agent on one connection: it creates, claims and completes; `times_ms` holds what each call took."""

    served: Served
    number: int
    times_ms: list[float] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=30)

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """One call of a tool, and its structured answer. Raises RuntimeError for a refusal."""
        self.calls += 1
        meta = {
            _META + "protocolVersion": REVISION,
            _META + "clientCapabilities": {},
            _META + "clientInfo": {"name": "bench", "version": "1"},
        }
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": self.calls, "method": "tools/call", "params": params})
        headers = {
            "authorization": f"Bearer {self.served.token}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": REVISION,
            "mcp-method": "tools/call",
            "mcp-name": tool,
        }
        began = time.perf_counter()
        self._connection.request("POST", "/mcp", body, headers)
        answer = self._connection.getresponse()
        raw = answer.read()
        self.times_ms.append((time.perf_counter() - began) * 1000)
        result = json.loads(raw).get("result", {})
        if answer.status != 200 or result.get("isError"):
            raise RuntimeError(f"{tool} was answered {answer.status}: {raw[:300]!r}")
        structured: dict[str, Any] = result["structuredContent"]
        return structured

    def work(self, turns: int, pause_s: float) -> None:
        """So many todos made, taken and done by this agent, a queue of its own; each call begins `pause_s` after the last."""
        queue = f"bench-{self.number}"
        due = time.perf_counter()
        for turn in range(turns):
            for step in ("make", "take", "end"):
                due = max(due + pause_s, time.perf_counter() - pause_s)
                time.sleep(max(due - time.perf_counter(), 0))
                if step == "make":
                    payload = {"pr": turn, "diff": "x" * 400}
                    self.call("create_for", {"queue": queue, "title": f"look at {turn}", "payload": payload})
                elif step == "take":
                    (todo,) = self.call("claim_next", {"queues": [queue], "wait_s": 0, "claim_key": f"k{turn}"})[
                        "todos"
                    ]
                else:
                    self.call("complete", {"id": todo["id"], "lease_id": todo["lease_id"], "result": {"fine": True}})

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Paced:
    """What a run came to: calls a second, the ms of each, and the daemon's own processor time a call (ms)."""

    rate: float
    times_ms: tuple[float, ...]
    cpu_ms: float

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of the times."""
        return statistics.quantiles(self.times_ms, n=100)[98]


def agents_at_work(served_: Served, turns: int, rate: float | None) -> Paced:
    """AGENTS at once, each with so many todos; together they make `rate` calls a second, or as many as go."""
    pause = 0.0 if rate is None else AGENTS / rate
    agents = [Agent(served_, n) for n in range(AGENTS)]
    threads = [threading.Thread(target=agent.work, args=(turns, pause)) for agent in agents]
    cpu, began = served_.cpu_seconds(), time.perf_counter()
    for n, thread in enumerate(threads):
        thread.start()
        # Who works at a pace of its own does not begin at one moment with all others.
        time.sleep(pause / len(threads) if n + 1 < len(threads) else 0)
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    times = tuple(ms for agent in agents for ms in agent.times_ms)
    for agent in agents:
        agent.close()
    if len(times) != 3 * turns * AGENTS:
        raise RuntimeError("an agent broke off")
    return Paced(len(times) / took, times, (served_.cpu_seconds() - cpu) * 1000 / len(times))


async def run(place: Place, table: Table, scale: float) -> None:
    """Measure the rate that is asked for and its times, and what there is beyond it."""
    table.section(f"MCP over HTTP, {AGENTS} agents, revision {REVISION} ({place.engine})")
    turns = max(int(40 * scale), 5)
    with served(database=await place.fresh()) as there:
        await asyncio.to_thread(agents_at_work, there, 5, None)
        paced = [await asyncio.to_thread(agents_at_work, there, turns, PACE) for _ in range(ROUNDS)]
        most = [await asyncio.to_thread(agents_at_work, there, turns, None) for _ in range(ROUNDS)]
    table.plain("calls made", f"{PACE:.0f} a second: create_for, claim_next, complete in turn")
    table.not_less("calls answered", statistics.median(one.rate for one in paced), 250, "/s")
    times = sorted(ms for one in paced for ms in one.times_ms)
    table.plain("half of them within", f"{statistics.median(times):10.2f} ms")
    p99 = statistics.median(one.p99_ms for one in paced)
    if place.engine == "sqlite":
        table.at_most("99 of 100 within", p99, 60.0, "ms")
    else:
        table.plain("99 of 100 within", f"{p99:10.2f} ms")
    table.plain("the daemon's own processor time a call", f"{statistics.median(one.cpu_ms for one in paced):10.2f} ms")
    table.plain("as many as go", f"{statistics.median(one.rate for one in most):10,.0f} /s")
    table.plain("99 of 100 of those within", f"{statistics.median(one.p99_ms for one in most):10.2f} ms")
