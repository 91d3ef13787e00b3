"""The doorbell's loop: what wakes it, what it costs, and what it outlives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroom.errors import Unavailable
from postroom.model import ClaimRequest, OutcomeItem, Principal, Verb
from postroom.services import doorbell
from tests.offices import ADMIN, Bench
from tests.processes import until
from tests.services.bells import Bell
from tests.services.test_intake import delivery, source_of

ANN, BOB = Principal("ann"), Principal("bob")


@pytest.fixture
def bell(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bell:
    """A bell that looks again only after the test's end, so that hints alone can wake it."""
    monkeypatch.setattr(doorbell, "LOOK_AGAIN", 600.0)
    monkeypatch.setattr(doorbell, "LOOK_AGAIN_DEAF", 600.0)
    monkeypatch.setattr(doorbell, "TRY_AGAIN", 0.01)
    return Bell(bench)


@pytest.fixture
async def running(bell: Bell) -> AsyncIterator[Bell]:
    """The same, with its loop running."""
    task = asyncio.create_task(bell.office.doorbell.run())
    await until(lambda: bell.office.doorbell._open, "the doorbell runs")
    yield bell
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def looks_of(bell: Bell, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues that are looked at from now on."""
    table = bell.office.doorbell._table
    looked: list[str] = []
    work = table.work

    async def counted(tx: Any, queue: str) -> Any:
        looked.append(queue)
        return await work(tx, queue)

    monkeypatch.setattr(table, "work", counted)
    return looked


async def test_a_delivery_from_a_sender_rings_within_one_turn(bell: Bell) -> None:
    ann = await bell.seat("ann", "inbox")
    await bell.office.doorbell.once()
    received = await bell.office.intake.receive(delivery("d1"), source_of(bell.bench))
    assert await bell.office.doorbell.turn() == 1
    (ring,) = await bell.rings()
    assert (ring.endpoint_id, ring.state) == (ann.id, "pending")
    metadata = (await bell.office.post.get(ADMIN, ring.id)).message.metadata
    assert metadata["todo_id"] == received.todos[0].todo_id
    assert await bell.office.dispatch.ready_targets(["any"], 10) == [ann.target_key]


async def test_the_courier_is_told_of_a_ring_and_hears_of_it_by_its_target(running: Bell) -> None:
    heard: list[str | None] = []
    running.office.wake.listen_post(heard.append)
    ann = await running.seat("ann")
    await running.work()
    await until(lambda: ann.target_key in heard, "the courier is told")


async def test_work_claims_endings_and_new_endpoints_are_heard_of(running: Bell) -> None:
    ann = await running.seat("ann")
    await running.work("1", "2", "3")
    await until(running.rung, "the first is rung")
    assert await running.rung() == [ann.id]
    bob = await running.seat("bob")

    async def rung(count: int) -> bool:
        return len(await running.rung()) == count

    await until(lambda: rung(2), "who came is rung")
    await running.write(ann)
    (held,) = await running.bench.claim(ANN, "review")
    await running.write(bob)
    (other,) = await running.bench.claim(BOB, "review")
    await until(lambda: _none_out(running), "both have answered")
    await running.bench.complete(ANN, held)
    await until(lambda: rung(3), "who is done is rung for what is left")
    assert await running.rung() == [ann.id, bob.id, ann.id]
    await running.bench.complete(BOB, other)


async def _none_out(bell: Bell) -> bool:
    return await bell.bench.rows("select count(*) from rings where message_id is not null") == [(0,)]


async def test_a_todo_of_another_daemon_rings_when_hints_were_lost(running: Bell) -> None:
    await running.seat("ann")
    # What stands from before is waited for by nobody here; a new connection for hints says that some may be lost.
    await until(lambda: not running.office.doorbell._news, "the arrival was looked at")
    await Bench(running.bench.store).create("review")
    running.office.wake._tell(None)
    await until(running.rung, "it is rung")


async def test_every_queue_is_looked_at_again_after_a_while(bell: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    await Bench(bell.bench.store).create("review")
    await Bell(Bench(bell.bench.store)).seat("ann")
    for name in ("LOOK_AGAIN", "LOOK_AGAIN_DEAF"):
        monkeypatch.setattr(doorbell, name, 0.05)
    task = asyncio.create_task(bell.office.doorbell.run())
    await until(bell.rung, "it is rung without any hint")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_queue_that_nobody_listens_to_costs_no_look(bell: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    await bell.seat("ann", "other")
    await bell.office.doorbell.once()
    looked = looks_of(bell, monkeypatch)
    await bell.work("1", "2", "3")
    await bell.bench.claim(ANN, "review")
    await bell.office.doorbell.turn()
    assert looked == []


async def test_before_it_is_opened_nothing_is_kept(bell: Bell) -> None:
    await bell.seat("ann")
    await bell.work()
    assert bell.office.doorbell._news == {}


async def test_a_burst_is_one_look_a_queue(bell: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    await bell.seat("ann")
    await bell.office.doorbell.once()
    await bell.work()
    assert await bell.office.doorbell.turn() == 1
    looked = looks_of(bell, monkeypatch)
    for _ in range(10_000):
        bell.office.wake.work(["review"])
    assert await bell.office.doorbell.turn() == 0
    assert looked == ["review"]


async def test_what_is_heard_while_the_database_is_away_is_rung_for_when_it_is_back(
    running: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = await running.seat("ann")
    table = running.office.doorbell._table
    work = table.work
    away = True

    async def gone(tx: Any, queue: str) -> Any:
        if away:
            raise Unavailable("the database is away")
        return await work(tx, queue)

    monkeypatch.setattr(table, "work", gone)
    await running.work()
    await until(lambda: running.office.doorbell.away, "it says that the database is away")
    assert running.office.doorbell.status()["problem"] == "the database is away"
    away = False
    await until(running.rung, "it is rung")
    assert await running.rung() == [ann.id]
    await until(lambda: running.office.doorbell.away is None, "it is well again")


async def test_a_queues_fault_is_outlived_and_keeps_no_other_queue_back(
    running: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = await running.seat("ann", "broken"), await running.seat("bob", "well")
    table = running.office.doorbell._table
    rings = table.rings
    broken = True

    async def fault(tx: Any, queue: str) -> Any:
        if broken and queue == "broken":
            raise RuntimeError("unforeseen")
        return await rings(tx, queue)

    monkeypatch.setattr(table, "rings", fault)
    await running.work(queue="broken")
    await running.work(queue="well")
    await until(running.rung, "the other queue rings")
    assert await running.rung() == [bob.id]
    broken = False

    async def both() -> bool:
        return await running.rung() == [bob.id, ann.id]

    await until(both, "and then the one that was at fault")


async def test_every_way_of_claiming_is_told(bench: Bench) -> None:
    heard: list[tuple[frozenset[str], str]] = []
    bench.office.wake.listen_claims(lambda queues, owner, _: heard.append((queues, owner)))
    claims, request = bench.office.claims, ClaimRequest(("inbox",))
    told = (frozenset({"inbox"}), "ann")

    async def one() -> Any:
        todo = await bench.create()
        return await claims.claim(ANN, todo.id, None, None, None)

    async def following(verb: Verb) -> Any:
        (held,) = await bench.claim(ANN)
        heard.clear()
        return await claims.end_and_claim(ANN, [OutcomeItem(held.id, verb, held.lease_id)], request)

    for _ in range(8):
        await bench.create()
    for ask in (
        one,
        lambda: bench.claim(ANN),
        lambda: bench.claim(ANN, claim_key="k"),
        lambda: bench.office.waiting.claim_next(ANN, request, 1000),
        lambda: following(Verb.COMPLETE),
        lambda: following(Verb.FAIL),
    ):
        heard.clear()
        await ask()
        assert heard == [told]
    heard.clear()
    assert await bench.claim(ANN, "nothing") == []
    assert await bench.claim(BOB, "inbox", worker="w")
    assert heard == [(frozenset({"inbox"}), "bob/w")]
