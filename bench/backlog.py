"""A million finished rows: what the claims of a queue cost beside them, and beside none."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import apsw
import psycopg

from bench.floor import QUEUE, Floor, PostgresFloor, SqliteFloor
from bench.places import Place
from bench.table import Table, paired
from postroom.daemon import connect
from postroom.desk import Desk

FINISHED = 1_000_000
PENDING = 100_000

_COLUMNS = """insert into todos (id, queue, source, title, state, owner, lease_id, claimed_at, completed_at, attempt,
  created_by, created_at, updated_at, payload, result)"""


def _rows(count: int, queues: Sequence[str], *, done: bool, sqlite: bool) -> str:
    """SQL that inserts `count` todos over the queues, done or pending, with ids in order."""
    names = " ".join(f"when {n} then '{name}'" for n, name in enumerate(queues))
    padded = "printf('%012d', n)" if sqlite else "lpad(cast(n as text), 12, '0')"
    series = (
        f"(with recursive s(n) as (select 1 union all select n + 1 from s where n < {count}) select n from s) s"
        if sqlite
        else f"generate_series(1, {count}) s(n)"
    )
    state = "'done', 'w', 'ls_', 1000, 2000, 1" if done else "'pending', null, null, null, null, 0"
    return (
        f"{_COLUMNS} select 'td_0000000{int(done)}-0000-7000-8000-' || {padded}, case n % {len(queues)} {names} end, "
        f"'bench', 'A title of ordinary length', {state}, 'bench', 1000 + n, 2000, "
        f"""'{{"repository":"octo/repo","number":7}}', {"'1'" if done else "null"} from {series}"""
    )


async def _load(url: str, queues: Sequence[str], finished: int, pending: int) -> None:
    async with connect(url):
        pass
    if url.startswith("sqlite:"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute("begin").fetchall()
        for count, done in ((finished, True), (pending, False)):
            if count:
                connection.execute(_rows(count, queues, done=done, sqlite=True)).fetchall()
        connection.execute("commit").fetchall()
        connection.execute("analyze").fetchall()
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        connection.close()
        return
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as server:
        for count, done in ((finished, True), (pending, False)):
            if count:
                await server.execute(_rows(count, queues, done=done, sqlite=False).encode())
        await server.execute("vacuum analyze")


def _path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def _floor(url: str) -> Floor:
    if url.startswith("sqlite:"):
        return SqliteFloor(_path(url))
    return PostgresFloor(url)


async def run(place: Place, table: Table, scale: float) -> None:
    """Print the section of one engine: batched claims beside and without the finished rows, and single ones."""
    finished, pending = int(FINISHED * scale), int(PENDING * scale)
    table.section(f"{place.engine}: {finished:,} finished and {pending:,} pending rows")
    for queues, words in (([QUEUE], "one queue"), ([f"q{n:02}" for n in range(64)], "64 queues")):
        small, big = await place.fresh(), await place.fresh()
        await _load(small, queues, 0, pending)
        await _load(big, queues, finished, pending)
        copy = big
        if place.engine == "sqlite":  # One process holds a file, so the floor works on its twin.
            copy = await place.fresh()
            shutil.copyfile(_path(big), _path(copy))
        rounds = 5
        each = max(pending // 20 // rounds, 200)
        async with connect(small) as near, connect(big) as far:
            one, without, ratio = await paired(
                partial(_claims, far, queues, each), partial(_claims, near, queues, each), rounds
            )
            said = f"{one:9,.0f}/s   without {without:9,.0f}/s"
            table.at_least(f"claims of 20, {words}", ratio, 0.9, said)
            if words != "one queue":
                continue
            count = max(int(500 * scale), 50)
            floor = _floor(copy)
            one, raw, ratio = await paired(partial(_claims, far, queues, count, 1), partial(floor.claim_rate, count, 1))
            table.at_least("claims of 1, one queue", ratio, 0.9, f"{one:9,.0f}/s   floor {raw:9,.0f}/s")
            await floor.close()


async def _claims(desk: Desk, queues: list[str], count: int, limit: int = 20) -> float:
    done = 0
    started = time.perf_counter()
    while done < count:
        done += len(await desk.claim_next(queues, limit=limit))
    return done / (time.perf_counter() - started)
