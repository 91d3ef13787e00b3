"""The daemon's memory: over very many deliveries, over one that comes again and again, and over large ones."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from bench.places import Place
from bench.senders import SOURCE, Mail, post, request
from bench.served import Served, served
from bench.table import Table

AT = (10_000, 50_000, 100_000, 200_000)
CHUNK = 2000
RUNS = 20
WARM = 2000
FLAT_MIB = 10.0
LARGE_BYTES = 5 * 1024 * 1024


def _filled(item: str, before: str = "[", after: str = "]") -> bytes:
    """As many items as a large body holds."""
    count = (LARGE_BYTES - len(before.encode()) - len(after.encode()) + 1) // (len(item.encode()) + 1)
    return (before + ",".join([item] * count) + after).encode()


def _push() -> bytes:
    """A push of very many commits, as GitHub sends it."""
    value = json.loads((Path(__file__).parents[1] / "tests/payloads/github/push.json").read_bytes())
    commit = json.dumps(value["head_commit"], separators=(",", ":"))
    before, after = json.dumps({**value, "commits": ["#"]}, separators=(",", ":")).split('"#"')
    return _filled(commit, before, after)


BODIES: dict[str, Callable[[], bytes]] = {
    "a push": _push,
    "tiny objects": lambda: _filled("{}"),
    "tiny lists in lists": lambda: _filled("[[],[]]"),
    "objects of one member": lambda: _filled('{"a":1}', '{"action":"opened","items":[', '],"late":true}'),
    "short strings": lambda: _filled('"ab"'),
    "numbers": lambda: _filled("1.5"),
    "short strings in wide text": lambda: _filled('"ab"', '{"t":"\U0001f4ee","items":[', "]}"),
    "one string": lambda: json.dumps({"text": "x" * (LARGE_BYTES - 100)}).encode(),
    "escapes of NUL": lambda: _filled('"a text\\u0000 of some length"'),
}


def _growth(daemon: Served, requests: list[bytes], expected: int) -> float:
    """How far these requests, one after the other, took the memory above where it stood (MiB)."""
    daemon.forget_peak()
    before = daemon.resident_mib()
    post(daemon.port, requests, senders=1, expected=expected)
    return daemon.peak_mib() - before


async def run(place: Place, table: Table, scale: float) -> None:
    """Print the section of one engine. Each kind of large body comes to a daemon that has seen ordinary ones alone."""
    table.section(f"{place.engine}: memory of the daemon")

    async def fresh() -> contextlib.AbstractContextManager[Served]:
        return served(SOURCE, None if place.engine == "sqlite" else await place.fresh())

    with await fresh() as daemon:
        post(daemon.port, Mail().take(WARM))
        unsigned = [request(_push(), f"refused-{n}", secret="another") for n in range(20)]
        table.at_most("20 of 5 MiB refused for their signature, peak", _growth(daemon, unsigned, 401), 10, "MiB")
    with await fresh() as daemon:
        post(daemon.port, Mail().take(WARM))
        too_large = request(_push() + b" " * LARGE_BYTES, "large")
        # Each on a connection of its own: the daemon closes those whose body it does not read.
        growth = max(_growth(daemon, [too_large], 413) for _ in range(20))
        table.at_most("20 of 10 MiB refused for their size, peak", growth, 10, "MiB")
    for name, make in BODIES.items():
        body = make()
        with await fresh() as daemon:
            post(daemon.port, Mail().take(WARM))
            grown = _growth(daemon, [request(body, f"large-{n}") for n in range(3)], 202)
        table.at_most(f"5 MiB accepted, {name}, peak", grown / (len(body) / 1024 / 1024), 12, "x its size")
    with await fresh() as daemon:
        _many(daemon, table, Mail(), scale)


def _many(daemon: Served, table: Table, mail: Mail, scale: float) -> None:
    marks = [max(int(mark * scale), 500) for mark in AT]
    seen: list[float] = []
    for mark in marks:
        while mail.made < mark:
            post(daemon.port, mail.take(min(CHUNK, mark - mail.made)))
        seen.append(daemon.resident_mib())
        table.plain(f"after {mark:,} deliveries", f"{seen[-1]:10.2f} MiB")
    table.at_most(f"growth from {marks[0]:,} to {marks[-1]:,}", seen[-1] - seen[0], FLAT_MIB, "MiB")
    again = mail.take(1) * max(int(1000 * scale), 100)
    runs: list[float] = []
    for _ in range(RUNS):
        post(daemon.port, again)
        runs.append(daemon.resident_mib())
    table.at_most(f"growth over {RUNS} runs of one delivery", runs[-1] - runs[0], FLAT_MIB, "MiB")
