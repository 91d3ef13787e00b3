"""Every verb of the post in every order agrees with the arithmetic of a delivery's life, on both engines."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machines.post import POLICY, PostMachine
from tests.machines.post_ground import PostgresPostGround, PostGround, SqlitePostGround


def _run(ground: PostGround, part: int = 1) -> None:
    machine = type("Machine", (PostMachine,), {"ground": ground})
    usual = settings()
    run_state_machine_as_test(machine, settings=settings(usual, max_examples=usual.max_examples // part))


def test_sqlite_agrees_with_the_oracle(tmp_path: Path) -> None:
    # P6 P14 T22 T23 T24 T25 T26 T27 T28 T29 T30 T31 T32 T33 T35 T36 T37
    ground = SqlitePostGround(tmp_path / "postroom.db", POLICY)
    try:
        _run(ground)
    finally:
        ground.close()


def test_postgres_agrees_with_the_oracle(postgres_url: str) -> None:
    # P6 P14 T22 T23 T24 T25 T26 T27 T28 T29 T30 T31 T32 T33 T35 T36 T37
    ground = PostgresPostGround(postgres_url, POLICY)
    try:
        _run(ground, part=2)  # a step takes four times as long here
    finally:
        ground.close()
