"""The start of a daemon whose database goes away in the middle of it: it tries again until it serves (RULINGS 20)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from postroom import daemon
from postroom.carriers.webhook_place import WebhookPlace
from postroom.config import Settings
from postroom.daemon import Daemon, compose
from tests.away import Away
from tests.conftest import Store
from tests.processes import until


def _settings(folder: Path) -> Settings:
    return Settings(
        data=folder,
        database="",
        host="127.0.0.1",
        port=0,
        socket=folder / "socket",
        hooks_port=None,
        open=False,
        queues={"inbox": {"paused": True}},
        webhooks=(WebhookPlace("bell", "http://127.0.0.1:9/hook", (b"0123456789abcdef01234567",), queues=("inbox",)),),
    )


async def _start(engine: Away, settings: Settings) -> int:
    """Start a daemon over it, and stop it once it serves: how many calls it took until then."""
    first = engine.at
    made = Daemon(settings, compose(engine), {})
    keeping = asyncio.create_task(made._keep())
    try:
        await until(lambda: made.ready() is None or keeping.done(), "it serves")
        taken = first - engine.at
        assert made._failure is None
        assert engine.opened == 1
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await engine.close()
    return taken


async def test_a_database_that_goes_away_while_a_daemon_prepares_ends_nothing(
    new_engine: Callable[[], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "OPEN_AGAIN", 0.01)
    settings = _settings(tmp_path)
    calls = await _start(Away(new_engine(), 1000, moment=True), settings)
    assert calls >= 2
    for at in range(1, calls + 1):
        await _start(Away(new_engine(), at, moment=True), settings)
