"""A database that goes away after a claim: what was claimed is handed over, for nobody else could end it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from postroom.errors import Unavailable
from postroom.model import ClaimRequest, OutcomeItem, TodoState, Verb
from postroom.store.postgres import PostgresEngine
from tests.away import Away
from tests.offices import ANN, BOB, Bench, titles
from tests.services.room import served, wait


@pytest.fixture
def once(bench: Bench) -> Bench:
    """The same office over an engine that answers one change."""
    return Bench(Away(bench.store, 2, reads=False))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [None, "c1"], ids=["plain", "keyed"])
async def test_fewer_than_asked_for_are_handed_over(bench: Bench, once: Bench, key: str | None) -> None:
    await bench.create(title="kept")
    assert titles(await once.claim(limit=2, claim_key=key)) == ["kept"]


async def test_an_empty_answer_is_not_made_of_a_database_that_went_away(once: Bench) -> None:
    with pytest.raises(Unavailable):
        await once.claim()


async def test_what_a_waiter_was_given_is_handed_over(bench: Bench, once: Bench) -> None:
    once.store.at = 10  # type: ignore[union-attr]
    task = await wait(once, ANN, limit=2)
    once.store.at = 2  # type: ignore[union-attr]
    await bench.create(title="kept")
    once.office.wake.work(["inbox"])
    assert await served(task) == ["kept"]
    await once.office.waiting.close()


async def test_what_was_claimed_beside_an_ending_is_handed_over(bench: Bench, once: Bench) -> None:
    held = await bench.claimed(ANN)
    await bench.create(title="kept")
    item = OutcomeItem(held.id, Verb.COMPLETE, held.lease_id)
    results, todos = await once.office.claims.end_and_claim(ANN, [item], ClaimRequest(("inbox",), limit=2))
    assert results[0].state is TodoState.DONE
    assert titles(todos) == ["kept"]


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[Bench]:
    """An office on PostgreSQL, where others lock rows and a claim may go with an ending in one statement."""
    bench = Bench(PostgresEngine(postgres_url))
    await bench.store.open()
    yield bench
    await bench.store.close()


async def test_what_a_first_look_took_beside_locked_rows_is_handed_over(postgres: Bench, postgres_url: str) -> None:
    await postgres.create(title="locked", priority=1)
    await postgres.create(title="kept")
    once = Bench(Away(postgres.store, 2, reads=False))  # type: ignore[arg-type]
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        await other.execute("select id from todos where title = 'locked' for update")
        assert titles(await once.claim(limit=2)) == ["kept"]


async def test_what_was_claimed_beside_an_ending_that_cannot_be_told_is_handed_over(postgres: Bench) -> None:
    held = await postgres.claimed(BOB)
    await postgres.create(title="kept")
    once = Bench(Away(postgres.store, 2, reads=False))  # type: ignore[arg-type]
    item = OutcomeItem(held.id, Verb.COMPLETE, held.lease_id)
    results, todos = await once.office.claims.end_and_claim(ANN, [item], ClaimRequest(("inbox",)))
    assert isinstance(results[0].error, Unavailable)
    assert titles(todos) == ["kept"]
