"""The benchmark's raw floors run the product's statements as they are today."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.floor import Floor, PostgresFloor, SqliteFloor

from postroom.store.postgres import PostgresEngine
from postroom.store.sqlite import SqliteEngine


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_the_floor_runs_what_the_product_runs(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    floor: Floor
    if engine == "sqlite":
        made = SqliteEngine(tmp_path / "postroom.db", lambda: 0)
        await made.open()
        await made.close()
        floor = SqliteFloor(tmp_path / "postroom.db")
    else:
        url = request.getfixturevalue("postgres_url")
        opened = PostgresEngine(url)
        await opened.open()
        await opened.close()
        floor = PostgresFloor(url)
    try:
        assert await floor.create_single(2) > 0
        assert await floor.create_batch(4, 2) > 0
        assert await floor.drain_single(2) > 0
        assert await floor.claim_rate(1, 1) > 0
        assert await floor.drain_batched(3, 2) > 0
    finally:
        await floor.close()
