"""The post through a real daemon: how soon a message is carried, how many at once, how fast they are admitted, idling."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence

from bench.line import DEADLINE, head, line_to
from bench.places import Place
from bench.post_peer import peer, watching
from bench.senders import post
from bench.served import Served, served
from bench.table import Table
from postroom.daemon import connect

SESSIONS = 50
AT_ONCE = 500
INBOX = 100_000
ENDPOINTS = 1000
ADMISSION_ROUNDS = 5

_TEXT = "Please look at the failing build, and say what you find. " * 4


def _request(daemon: Served, id_: str, to: str, path: str = "/v1/messages") -> bytes:
    """A send, ready for the wire."""
    body = json.dumps({"from": "ses_bench", "to": to, "payload": _TEXT, "msg_id": id_, "kind": "chat"}).encode()
    return head(daemon, "POST", path, len(body)) + body


async def _arrival(watched: asyncio.StreamReader) -> tuple[str, int]:
    async with asyncio.timeout(DEADLINE):
        line = await watched.readline()
    id_, came = line.split()
    return id_.decode(), int(came)


async def _soon(daemon: Served, port: int, table: Table, scale: float) -> None:
    """From the send to the prompt, one at a time on sessions that idle."""
    count = max(int(400 * scale), 50)
    times: list[float] = []
    async with watching(port) as watched, line_to(daemon) as line:
        before = 0.0
        for n in range(-2 * SESSIONS, count):
            if n == 0:
                before = daemon.cpu_seconds()
            id_ = f"soon-{n + 2 * SESSIONS}"
            request = _request(daemon, id_, f"ses_soon{n % SESSIONS}")
            # The turn before is over, and the sender's pause is no multiple of anything.
            await asyncio.sleep(0.012 + (n % 5) * 0.001)
            started = time.perf_counter_ns()
            asked = asyncio.create_task(line.raw(request))
            came_id, came = await _arrival(watched)
            await asked
            assert came_id == id_
            if n >= 0:
                times.append((came - started) / 1e6)
        spent = (daemon.cpu_seconds() - before) / count * 1000
    table.at_most("sent → prompt received, p50", statistics.median(times), 10, "ms")
    table.at_most("sent → prompt received, p99", statistics.quantiles(times, n=100)[98], 40, "ms")
    table.plain("processor time a message, sent to settled", f"{spent:10.2f} ms")


async def _at_once(daemon: Served, port: int, table: Table) -> None:
    """One message to each of many sessions at the same moment, while one session hangs."""
    async with watching(port) as watched, line_to(daemon) as line:
        await line.raw(_request(daemon, "hanging", "ses_hang"))
        assert (await _arrival(watched))[0] == "hanging"
        requests = [_request(daemon, f"many-{n}", f"ses_many{n}") for n in range(AT_ONCE)]
        before, started = daemon.cpu_seconds(), time.perf_counter_ns()
        sending = asyncio.create_task(asyncio.to_thread(post, daemon.port, requests, 32))
        came = dict([await _arrival(watched) for _ in range(AT_ONCE)])
        took = (max(came.values()) - started) / 1e9
        await sending
        assert len(came) == AT_ONCE
        table.at_most(f"{AT_ONCE} sessions served, one hanging", took, 2.5, "s")
        spent = (daemon.cpu_seconds() - before) / AT_ONCE * 1000
        table.plain("processor time a message", f"{spent:10.2f} ms")


async def _admission(place: Place, table: Table, scale: float) -> None:
    """Messages of 32 senders that are admitted and wait: no server is configured."""
    count = max(int(4000 * scale), 400)
    bound = 2000 if place.engine == "sqlite" else 1000
    with served(database=None if place.engine == "sqlite" else await place.fresh()) as daemon:
        for words, to in (("to sessions", "ses_{}"), ("to inboxes", "reader{}")):
            rates: list[float] = []
            times: list[float] = []
            spent = 0.0
            for turn in range(-1, ADMISSION_ROUNDS):
                requests = [_request(daemon, f"{to[:3]}{turn}-{n}", to.format(n % 200)) for n in range(count)]
                before = daemon.cpu_seconds()
                posted = await asyncio.to_thread(post, daemon.port, requests)
                if turn >= 0:
                    rates.append(posted.rate)
                    times += posted.times_ms
                    spent += daemon.cpu_seconds() - before
            table.not_less(f"admitted a second, {words}", statistics.median(rates), bound, "/s")
            each = spent / (count * ADMISSION_ROUNDS) * 1e6
            table.plain("of it: p99, processor time", f"{_p99(times):10.2f} ms, {each:.0f} µs a message")


def _p99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


async def _inbox(place: Place, table: Table, scale: float) -> None:
    """Pages of a long inbox: its beginning, its middle and its end."""
    count = max(int(INBOX * scale), 2000)
    url = await place.fresh()
    async with connect(url) as desk:
        mail = desk.post
        for start in range(0, count, 500):
            await asyncio.gather(*(mail.send(_TEXT, to="python", msg_id=f"in-{start + n}") for n in range(500)))
        times: list[float] = []
        for n in range(60):
            since = f"s.{count * (n % 3) // 3}"
            started = time.perf_counter()
            page = await mail.inbox(since=since, limit=50)
            times.append((time.perf_counter() - started) * 1000)
            assert len(page.letters) == 50
        table.at_most(f"an inbox of {count:,}: a page of 50, p99", _p99(times), 20, "ms")


async def _idle(place: Place, table: Table, scale: float) -> None:
    """What the daemon spends with many endpoints, and nothing to carry."""
    seconds = max(60 * scale, 10)
    shares: list[float] = []
    with peer() as port:
        for endpoints in (0, ENDPOINTS):
            database = None if place.engine == "sqlite" else await place.fresh()
            with served(_settings(port), database) as daemon:
                async with line_to(daemon) as line:
                    for n in range(endpoints):
                        kind = {"carrier": "opencode", "address": {"session": f"ses_idle{n}"}, "channels": ["all"]}
                        await line.ask("POST", "/v1/endpoints", {"name": f"idle{n}", **kind})
                await asyncio.sleep(2)
                before, started = daemon.cpu_seconds(), time.perf_counter()
                await asyncio.sleep(seconds)
                shares.append((daemon.cpu_seconds() - before) / (time.perf_counter() - started) * 100)
    table.at_most(f"idle with {ENDPOINTS:,} endpoints, share of a core", shares[1], 0.5, "%")
    table.plain("the same with none", f"{shares[0]:10.2f} %")


def _settings(port: int) -> str:
    return f'[[opencode]]\nurl = "http://127.0.0.1:{port}"\n'


async def run(place: Place, table: Table, scale: float) -> None:
    """Print the section of one engine."""
    table.section(f"{place.engine}: messages (HTTP), to a server of no cost")
    database = None if place.engine == "sqlite" else await place.fresh()
    with peer() as port, served(_settings(port), database) as daemon:
        await _soon(daemon, port, table, scale)
        await _at_once(daemon, port, table)
    await _admission(place, table, scale)
    await _inbox(place, table, scale)
    await _idle(place, table, scale)
