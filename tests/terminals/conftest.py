"""A tmux server and a carrier of each test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from postroom.carriers.tmux import TmuxCarrier
from tests.terminals.rig import Terminals


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    """A tmux server of this test's own."""
    server = Terminals()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
async def carrier(terminals: Terminals) -> AsyncIterator[TmuxCarrier]:
    """A terminal carrier whose private folder is this test's own."""
    made = TmuxCarrier(private=terminals.folder / "private", reach="host:test:0")
    try:
        yield made
    finally:
        await made.close()
