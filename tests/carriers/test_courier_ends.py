"""A courier that is stopped, killed, doubled, or cut off from its database: nothing is lost, and nothing written twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from postroom.carriers import courier as courier_module
from postroom.carriers import lane
from postroom.carriers import pauses as resting
from postroom.carriers.carrier import FREE, Progress, Turn
from postroom.errors import Unavailable
from postroom.message import Delivery
from postroom.store.sqlite import SqliteEngine
from tests.carriers.rig import MemoryCarrier, PostRig
from tests.conftest import Store
from tests.opencode.fake import FakeOpencode
from tests.processes import until

KEY = "opencode:ses_a"


class Stuck:
    """Holds every settlement back until it is let go."""

    def __init__(self, rig: PostRig) -> None:
        self._settle = rig.dispatch.settle
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        rig.dispatch.settle = self  # type: ignore[method-assign]

    async def __call__(self, *given: Any, **more: Any) -> Delivery | None:
        self.asked.set()
        await self.go.wait()
        return await self._settle(*given, **more)


# Killed.


@pytest.mark.parametrize("quick", [True, False])
async def test_killed_between_write_and_settle_it_is_found_written(
    rig: PostRig, fake: FakeOpencode, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # P1, P21
    monkeypatch.setattr(courier_module, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(courier_module, "SWEEP_SECONDS_DEAF", 0.05)
    session = fake.session("a")
    if not quick:
        fake.hold()
    stuck = Stuck(rig)
    rig.opencode(fake)
    first, second = await rig.admit("ses_a", "one"), await rig.admit("ses_a", "two")
    async with asyncio.timeout(30):
        await stuck.asked.wait()
    await rig.crash(rig.couriers[0])
    assert len(session.texts) == 1
    assert (await rig.delivery(first)).lease_id is not None
    rig.dispatch.settle = stuck._settle  # type: ignore[method-assign]
    rig.store.skew += 30_001
    assert (await rig.dispatch.sweep(100)).lapsed == 1
    rig.store.skew += 60_001
    rig.opencode(fake)
    await rig.reach_state("injected", first)
    fake.release()
    await rig.reach_state("injected", second)
    await until(lambda: len(fake.turns) == 2, "both are answered")
    assert len(session.texts) == 2
    assert [len(message.parts) for message in session.messages if message.role == "user"] == [1, 1]
    assert (await rig.delivery(first)).attempt_count == 2


async def test_killed_during_a_turn_the_next_one_watches_it(rig: PostRig, fake: FakeOpencode) -> None:  # P1
    session = fake.session("a")
    fake.hold()
    rig.opencode(fake)
    first, second = await rig.admit("ses_a", "one"), await rig.admit("ses_a", "two")
    await rig.reach_state("injected", first)
    await rig.crash(rig.couriers[0])
    rig.opencode(fake)
    assert await rig.turn_of(KEY) == f"dl_{first}"
    fake.release()
    await rig.reach_state("injected", second)
    assert session.overlaps == 0
    assert (await rig.delivery(first)).answered_at is not None


# Stopped.


async def test_stopped_it_settles_what_it_writes(rig: PostRig) -> None:
    carrier = MemoryCarrier()
    courier = rig.courier(carrier)
    stuck = Stuck(rig)
    id_ = await rig.admit("ses_a")
    await stuck.asked.wait()
    stopping = asyncio.create_task(rig.stop(courier))
    await until(lambda: courier._closing, "it stops")
    stuck.go.set()
    await stopping
    assert await rig.in_state("injected", id_)
    assert carrier.closed
    assert courier.status()["lanes"] == 0


async def test_stopped_it_hands_back_what_does_not_end_in_time(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "CLOSE_SECONDS", 0.1)
    carrier = MemoryCarrier()
    carrier.hanging.add("ses_a")
    courier = rig.courier(carrier)
    written = await rig.admit("ses_a")
    await until(lambda: carrier.at_once["ses_a"], "it writes")
    await rig.stop(courier)
    found = await rig.delivery(written)
    # It may have been written: the next one looks first.
    assert (found.lease_id, found.state, found.doubtful) == (None, "pending", True)
    assert found.last_failure_reason == lane.CUT_SHORT


async def test_stopped_before_the_write_it_gives_the_lease_back(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "CLOSE_SECONDS", 0.1)
    carrier = MemoryCarrier()
    looks = 0

    async def look(parcel: object) -> object:
        nonlocal looks
        looks += 1
        if looks == 2:
            await asyncio.Event().wait()
        return FREE

    monkeypatch.setattr(carrier, "look", look)
    courier = rig.courier(carrier)
    id_ = await rig.admit("ses_a")
    await until(lambda: looks == 2, "it looks under the lease")
    await rig.stop(courier)
    found = await rig.delivery(id_)
    assert (found.lease_id, found.state, found.doubtful, found.next_attempt_at) == (None, "pending", False, None)
    rig.courier(MemoryCarrier())
    await rig.reach_state("injected", id_)


async def test_stopped_while_it_rests_it_ends_at_once(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "CLOSE_SECONDS", 600.0)
    carrier = MemoryCarrier()
    carrier.begins_turns = True
    carrier.turns["ses_a"] = Progress(Turn.WORKING)
    courier = rig.courier(carrier)
    await rig.reach_state("injected", await rig.admit("ses_a"))
    async with asyncio.timeout(30):
        await rig.stop(courier)


# The database is away.


class Away:
    """Makes a verb of dispatch unavailable for some calls."""

    def __init__(self, rig: PostRig, verb: str, times: int) -> None:
        self._verb = getattr(rig.dispatch, verb)
        self.left = times
        setattr(rig.dispatch, verb, self)

    async def __call__(self, *given: Any, **more: Any) -> Any:
        if self.left:
            self.left -= 1
            raise Unavailable("away by order")
        return await self._verb(*given, **more)


@pytest.mark.parametrize(
    "verb", ["head", "lease", "settle", "ready_targets", "turns", "end_turn", "next_due", "note_seen"]
)
async def test_a_database_that_is_away_is_tried_again(rig: PostRig, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "AWAY", (0.01, 0.02))
    monkeypatch.setattr(resting, "TURN", (0.01,))
    monkeypatch.setattr(courier_module, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(courier_module, "SWEEP_SECONDS_DEAF", 0.02)
    away = Away(rig, verb, 4)
    carrier = MemoryCarrier()
    carrier.begins_turns = True
    carrier.turns["ses_a"] = Progress(Turn.WORKING, seen=True)
    rig.courier(carrier)
    first, second = await rig.admit("ses_a"), await rig.admit("ses_a")
    await rig.reach_state("injected", first)
    if verb == "note_seen":
        await until(lambda: not away.left, "it was away")
    carrier.turns["ses_a"] = Progress(Turn.ANSWERED, seen=True)
    await rig.reach_state("injected", second)
    await until(lambda: not away.left, "it was away")
    assert carrier.written["ses_a"] == [first, second]


async def test_an_error_that_nobody_foresaw_ends_nothing(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "AWAY", (0.01,))
    head = rig.dispatch.head
    calls = 0

    async def broken(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise RuntimeError("a bug")
        return await head(*given)

    monkeypatch.setattr(rig.dispatch, "head", broken)
    rig.courier(MemoryCarrier())
    await rig.reach_state("injected", await rig.admit("ses_a"))


# Two couriers.


@pytest.fixture
async def another(new_engine: Callable[[], Store], store: Store) -> AsyncIterator[PostRig]:
    """Another daemon's post over the same PostgreSQL; on SQLite, which one process has alone, a second one beside it."""
    if isinstance(store, SqliteEngine):
        made = PostRig(store)
        yield made
        await made.close()
        return
    engine = new_engine()
    await engine.open()
    made = PostRig(engine)
    yield made
    await made.close()
    await engine.close()


@pytest.mark.parametrize("basic", [True, False])
async def test_two_couriers_never_have_two_in_flight_for_a_target(
    rig: PostRig, another: PostRig, new_fake: Any, basic: bool
) -> None:  # P1, P20
    fake: FakeOpencode = await new_fake(basic=basic)
    sessions = [fake.session(f"{number}") for number in range(8)]
    ids: dict[str, list[str]] = {session.id: [] for session in sessions}
    rig.opencode(fake)
    another.opencode(fake)
    for _ in range(6):
        for session in sessions:
            ids[session.id].append(await rig.admit(session.id))
            another.wake.post([f"opencode:{session.id}"])
    await rig.reach_state("injected", *(id_ for each in ids.values() for id_ in each))
    assert max(fake.peak_calls.values()) == 1
    for session in sessions:
        assert [text.split('msg_id="')[1].split('"')[0] for text in session.texts] == ids[session.id]
        if not basic:
            assert session.overlaps == 0
