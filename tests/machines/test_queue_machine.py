"""Every verb in every order agrees with the lifecycle, on both engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from postroom.store.postgres import PostgresEngine
from postroom.store.sqlite import SqliteEngine
from tests.machines.ground import Ground, PostgresGround, SqliteGround
from tests.machines.queue import QueueMachine


def _run(ground: Ground, part: int = 1) -> None:
    machine = type("Machine", (QueueMachine,), {"ground": ground})
    usual = settings()
    run_state_machine_as_test(machine, settings=settings(usual, max_examples=usual.max_examples // part))


def test_sqlite_agrees_with_the_oracle(tmp_path: Path, clock: Callable[[], int]) -> None:
    # S1 S2 S3 S4 S5 S6 S7 S8 S9 S10 S11 S12 S15 S22 S24 S25 S26
    ground = SqliteGround(SqliteEngine(tmp_path / "postroom.db", clock, synchronous="off"))
    try:
        _run(ground)
    finally:
        ground.close()


def test_postgres_agrees_with_the_oracle(postgres_url: str) -> None:
    # S1 S2 S3 S4 S5 S6 S7 S8 S9 S10 S11 S12 S15 S20 S22 S24 S25 S26
    ground = PostgresGround(PostgresEngine(postgres_url))
    try:
        _run(ground, part=2)  # a step takes four times as long here
    finally:
        ground.close()
