"""Intake: signed deliveries through the real HTTP door, beside the same server that answers without storing."""

from __future__ import annotations

import statistics

from bench.places import Place
from bench.senders import SENDERS, SOURCE, Mail, Posted, post
from bench.served import served
from bench.table import Table, paired

ROUNDS = 5


async def run(place: Place, table: Table, scale: float) -> None:
    """Print the section of one engine."""
    count = max(int(3000 * scale), 300)
    mail = Mail()
    table.section(f"{place.engine}: signed deliveries of {mail.mean_bytes / 1000:.0f} KB from {SENDERS} senders (HTTP)")
    database = None if place.engine == "sqlite" else await place.fresh()
    with served(SOURCE, database) as daemon, served(SOURCE, program=("bench.unstored",)) as unstored:
        stored: list[Posted] = []

        async def one(port: int, kept: list[Posted]) -> float:
            kept.append(post(port, mail.take(count)))
            return kept[-1].rate

        for port in (daemon.port, unstored.port):
            post(port, mail.take(count // 3))
        ours, bare, ratio = await paired(lambda: one(daemon.port, stored), lambda: one(unstored.port, []), ROUNDS)
        floor = 1000 if place.engine == "sqlite" else 800
        table.not_less("deliveries a second", ours, floor, "/s")
        times = [time for posted in stored for time in posted.times_ms]
        table.plain("posted → answered, p50", f"{statistics.median(times):10.2f} ms")
        table.at_most("posted → answered, p99", statistics.quantiles(times, n=100)[98], 100, "ms")
        table.at_least("stored over not stored", ratio, 0.5, f"{ours:9,.0f}/s   none  {bare:9,.0f}/s")
