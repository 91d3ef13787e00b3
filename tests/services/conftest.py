"""What the tests of the services ask for: an office on each engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from postroom.services import waiting
from tests.conftest import Store
from tests.offices import Bench
from tests.postgres import Databases

DEADLINE = 90.0
"""Seconds after which a test is stuck; none takes a tenth of it."""


@pytest.fixture(scope="session")
def shared_url(databases: Databases) -> Iterator[str]:
    """A database that the tests of the services use one after the other: making one costs more than most of them."""
    url = databases.create()
    yield url
    databases.drop(url)


@pytest.fixture
def postgres_url(databases: Databases, shared_url: str) -> str:
    """The shared database, emptied."""
    databases.empty(shared_url)
    return shared_url


@pytest.fixture
async def bench(store: Store) -> AsyncIterator[Bench]:
    """An office over an empty store; the test runs once on each engine."""
    made = Bench(store)
    loop = asyncio.get_running_loop()

    def over() -> None:
        """A test that would wait for ever says where, and fails."""
        for task in asyncio.all_tasks(loop):
            task.print_stack()
            if getattr(task.get_coro(), "__name__", "").startswith("test_"):
                task.cancel()

    guard = loop.call_later(DEADLINE, over)
    yield made
    guard.cancel()
    await made.office.waiting.close()


@pytest.fixture
def no_looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters look again only after the test's end, so that a wake-up alone can serve them."""
    monkeypatch.setattr(waiting, "LOOK_AGAIN", 600.0)
    monkeypatch.setattr(waiting, "LOOK_AGAIN_DEAF", 600.0)
