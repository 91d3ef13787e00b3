"""What the tests of the carriers ask for: fake servers, and a daemon's post on each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from tests.carriers.rig import PostRig
from tests.conftest import Store
from tests.opencode.fake import FakeOpencode
from tests.postgres import Databases


@pytest.fixture(scope="session")
def shared_url(databases: Databases) -> Iterator[str]:
    """A database that these tests use one after the other: making one costs more than most of them."""
    url = databases.create()
    yield url
    databases.drop(url)


@pytest.fixture
def postgres_url(databases: Databases, shared_url: str) -> str:
    """The shared database, emptied."""
    databases.empty(shared_url)
    return shared_url


@pytest.fixture
async def rig(store: Store) -> AsyncIterator[PostRig]:
    """One daemon's post over an empty store; its couriers end with the test."""
    made = PostRig(store)
    yield made
    await made.close()


@pytest.fixture
async def new_fake() -> AsyncIterator[Callable[..., Awaitable[FakeOpencode]]]:
    """Makes fake opencode servers that end with the test."""
    made: list[FakeOpencode] = []

    async def make(password: str | None = None, *, basic: bool = False) -> FakeOpencode:
        fake = FakeOpencode(password, basic=basic)
        made.append(fake)
        return await fake.start()

    yield make
    for fake in made:
        await fake.kill()


@pytest.fixture
async def fake(new_fake: Callable[..., Awaitable[FakeOpencode]]) -> FakeOpencode:
    """A fake opencode server."""
    return await new_fake()
