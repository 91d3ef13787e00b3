"""What the tests of the services ask for: an office on each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Store
from tests.offices import Bench


@pytest.fixture
async def bench(store: Store) -> AsyncIterator[Bench]:
    """An office over an empty store; the test runs once on each engine."""
    made = Bench(store)
    yield made
    await made.office.waiting.close()
