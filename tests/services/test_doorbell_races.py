"""Several daemons ring for one queue: each ring is rung once, whoever comes first and whoever dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from postroom.model import Principal
from tests.conftest import Store
from tests.offices import Bench, gather
from tests.processes import until
from tests.services.bells import STEPS, Bell

ANN, BOB = Principal("ann"), Principal("bob")
DAEMONS = 4


@pytest.fixture
async def bells(bench: Bench, new_engine: Callable[[], Store]) -> AsyncIterator[list[Bell]]:
    """The doorbells of several daemons; on SQLite, of several offices over the one engine that a file allows."""
    engines = [new_engine() for _ in range(DAEMONS - 1)] if bench.store.dialect == "postgres" else []
    for engine in engines:
        await engine.open()
    others = [Bench(engine) for engine in engines] or [Bench(bench.store) for _ in range(DAEMONS - 1)]
    yield [Bell(one) for one in (bench, *others)]
    for engine in engines:
        await engine.close()


async def all_look(bells: list[Bell], times: int = 3) -> list[int]:
    """Every daemon looks, all at the same time."""
    answers: list[Any] = await gather(*[bell.office.doorbell.once() for bell in bells for _ in range(times)])
    assert all(isinstance(answer, int) for answer in answers), answers
    return answers


def later(bells: list[Bell], ms: int) -> None:
    """Let this much time pass for every daemon."""
    for bell in bells if bells[0].bench.store is not bells[1].bench.store else bells[:1]:
        bell.bench.move(ms)


async def test_daemons_that_look_at_once_ring_once(bells: list[Bell]) -> None:
    seats = [await bells[0].seat(name) for name in ("ann", "bob", "cid")]
    await bells[0].work("1", "2")
    assert sum(await all_look(bells)) == 1
    assert await bells[0].rung() == [seats[0].id]
    await bells[0].write(seats[0])
    later(bells, STEPS[0] + 10)
    await bells[0].alive(*seats)
    assert sum(await all_look(bells)) == 1
    assert await bells[0].rung() == [seats[0].id, seats[1].id]


async def test_a_claim_rings_the_next_once_whoever_hears_of_it(bells: list[Bell]) -> None:
    seats = [await bells[0].seat(name) for name in ("ann", "bob", "cid")]
    await bells[0].work("1", "2", "3")
    await all_look(bells)
    assert await bells[1].bench.claim(ANN, "review")
    assert sum(await all_look(bells)) == 1
    assert await bells[0].rung() == [seats[0].id, seats[1].id]


async def test_a_claim_and_a_ring_at_once_leave_no_ring_out(bells: list[Bell]) -> None:
    ann = await bells[0].seat("ann")
    for n in range(20):
        await bells[n % DAEMONS].work()
        answers: list[Any] = await gather(
            bells[1].office.doorbell.once(), bells[2].bench.claim(ANN, "review"), bells[3].office.doorbell.once()
        )
        assert sum(isinstance(answer, int) and answer for answer in answers) <= 1, answers
        (held,) = answers[1] or await bells[2].bench.claim(ANN, "review")
        # Whoever claimed has a doorbell that heard of it; one that had not would find it by looking.
        await bells[n % DAEMONS].office.doorbell.once()
        assert await bells[0].bench.rows("select count(*) from rings where message_id is not null") == [(0,)]
        assert all(ring.state == "failed" and ring.reason == "cancelled" for ring in await bells[0].rings())
        await bells[0].bench.complete(ANN, held)
    assert set(await bells[0].rung()) <= {ann.id}


async def test_what_a_daemon_did_not_finish_is_rung_once_by_another(
    bells: list[Bell], monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = await bells[0].seat("ann")
    await bells[0].work()
    dying = bells[0].office.doorbell
    ring = dying._table.ring

    async def breaks(*args: Any, **more: Any) -> Any:
        await ring(*args, **more)
        raise RuntimeError("the daemon dies before its commit")

    monkeypatch.setattr(dying._table, "ring", breaks)
    with pytest.raises(RuntimeError):
        await dying.once()
    assert await bells[0].rung() == []
    assert await bells[0].bench.rows("select count(*) from rings") == [(0,)]
    assert sum(await all_look(bells[1:])) == 1
    assert await bells[0].rung() == [ann.id]


@pytest.mark.parametrize("new_engine", ["postgres"], indirect=True)
async def test_a_daemon_that_dies_with_the_queue_in_its_hand_lets_it_go(
    bells: list[Bell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's one writer cannot be left in the middle of an operation: the file's process is gone, or it is done."""
    ann = await bells[0].seat("ann")
    await bells[0].work()
    dying = bells[0].office.doorbell
    ring, there = dying._table.ring, asyncio.Event()

    async def hangs(*args: Any, **more: Any) -> Any:
        await ring(*args, **more)
        there.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(dying._table, "ring", hangs)
    dead = asyncio.create_task(dying.once())
    await there.wait()
    waits = asyncio.create_task(bells[1].office.doorbell.once())
    await until(lambda: _waits_for_a_lock(bells[1]), "the other daemon waits for the queue")
    assert not waits.done()
    dead.cancel()
    await asyncio.gather(dead, return_exceptions=True)
    assert await waits == 1
    assert await bells[1].rung() == [ann.id]


async def _waits_for_a_lock(bell: Bell) -> bool:
    return await bell.bench.rows("select count(*) from pg_locks where locktype = 'advisory' and not granted") != [(0,)]
