"""A million finished rows: what the claims of a queue cost beside them, and beside none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw
import psycopg

from bench.floor import QUEUE, Floor, PostgresFloor, SqliteFloor
from bench.places import Place
from bench.table import Table, paired
from bench.throughput import Product
from postroom.daemon import connect

FINISHED = 1_000_000
PENDING = 100_000

_COLUMNS = """insert into todos (id, queue, source, title, state, owner, lease_id, claimed_at, completed_at, attempt,
  created_by, created_at, updated_at, payload, result)"""


def _rows(series: str, number: str, count: int, queues: Sequence[str], *, done: bool) -> str:
    """SQL that inserts `count` todos over the queues, done or pending."""
    names = (
        "case " + f"{number} % {len(queues)} " + " ".join(f"when {n} then '{name}'" for n, name in enumerate(queues))
    )
    tag = "d" if done else "p"
    finished = "'done', 'w', 'ls_' || {n}, 1000, 2000, 1" if done else "'pending', null, null, null, null, 0"
    return (
        f"{_COLUMNS} select 'td_{tag}' || {number}, {names} end, 'bench', 'A title of ordinary length', "
        f"{finished.replace('{n}', number)}, 'bench', 1000 + {number}, 2000, "
        f"""'{{"repository":"octo/repo","number":7}}', {"'1'" if done else "null"} {series.format(count=count)}"""
    )


async def _load(url: str, queues: Sequence[str], finished: int, pending: int) -> None:
    async with connect(url):
        pass
    if url.startswith("sqlite:"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        series = (
            "from (with recursive s(n) as (select 1 union all select n + 1 from s where n < {count}) select n from s)"
        )
        connection.execute("begin").fetchall()
        for count, done in ((finished, True), (pending, False)):
            if count:
                connection.execute(_rows(series, "n", count, queues, done=done)).fetchall()
        connection.execute("commit").fetchall()
        connection.execute("analyze").fetchall()
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        connection.close()
        return
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as server:
        series = "from generate_series(1, {count}) s(n)"
        for count, done in ((finished, True), (pending, False)):
            if count:
                await server.execute(_rows(series, "n", count, queues, done=done).replace("%", "%%").encode(), {})
        await server.execute("vacuum analyze")


def _floor(url: str) -> Floor:
    if url.startswith("sqlite:"):
        return SqliteFloor(Path(url.removeprefix("sqlite:///")))
    return PostgresFloor(url)


async def run(place: Place, table: Table, scale: float) -> None:
    """Print the section of one engine: batched claims beside and without the finished rows, and single ones."""
    finished, pending = int(FINISHED * scale), int(PENDING * scale)
    table.section(f"{place.engine}: {finished:,} finished and {pending:,} pending rows")
    for queues, words in (([QUEUE], "one queue"), ([f"q{n:02}" for n in range(64)], "64 queues")):
        small, big = await place.fresh(), await place.fresh()
        await _load(small, queues, 0, pending)
        await _load(big, queues, finished, pending)
        rounds = 5
        each = max(pending // 20 // rounds, 200)
        async with connect(small) as near, connect(big) as far:

            async def claims(desk: object, queues: list[str] = queues, each: int = each) -> float:
                return await _claims(desk, queues, each)

            one, without, ratio = await paired(lambda far=far: claims(far), lambda near=near: claims(near), rounds)
            said = f"{one:9,.0f}/s   without {without:9,.0f}/s"
            table.at_least(f"claims of 20, {words}", ratio, 0.9, said)
            if words != "one queue":
                continue
            count = max(int(500 * scale), 50)
            floor = _floor(big) if place.engine == "postgres" else None
            if floor is not None:
                one, raw, ratio = await paired(
                    lambda far=far, count=count: Product(far).drain_single(count),
                    lambda floor=floor, count=count: floor.drain_single(count),
                )
                table.at_least("claim + complete, one by one", ratio, 0.9, f"{one:9,.0f}/s   floor {raw:9,.0f}/s")
                await floor.close()


async def _claims(desk: object, queues: list[str], count: int) -> float:
    import time

    from postroom.desk import Desk

    assert isinstance(desk, object)
    chosen: Desk = desk  # type: ignore[assignment]
    done = 0
    started = time.perf_counter()
    while done < count:
        done += len(await chosen.claim_next(queues, limit=20))
    return done / (time.perf_counter() - started)
