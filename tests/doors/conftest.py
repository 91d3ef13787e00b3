"""What the tests of the doors ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from postroom.store.sqlite import SqliteEngine
from tests.doors.http_rig import Rig
from tests.doors.socket_rig import SocketRig


@pytest.fixture
async def engine(tmp_path: Path, clock: Callable[[], int]) -> AsyncIterator[SqliteEngine]:
    """An opened SQLite store of this test's own: a door says the same over either engine."""
    made = SqliteEngine(tmp_path / "postroom.db", clock)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def rig(engine: SqliteEngine) -> AsyncIterator[Rig]:
    """The HTTP door over an empty store, with its tokens."""
    made = await Rig(engine).fill()
    yield made
    await made.office.waiting.close()
    await made.office.watch.close()


@pytest.fixture
async def door(engine: SqliteEngine) -> AsyncIterator[SocketRig]:
    """The socket's door over an empty store."""
    made = await SocketRig(engine).open()
    yield made
    await made.close()
