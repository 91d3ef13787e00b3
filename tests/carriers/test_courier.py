"""The courier over each engine: order, one at a time, what counts as an attempt, and what becomes of each outcome."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from postroom.carriers import courier as courier_module
from postroom.carriers import guarded, lane
from postroom.carriers import pauses as resting
from postroom.carriers.carrier import FREE, Progress, Turn, Writing
from postroom.endpoint import CarrierKind
from postroom.message import Cause, Delivery, Priority, Written
from tests.carriers.rig import ABSENT, BUSY, FAULT, GONE, MemoryCarrier, PostRig
from tests.processes import until

REFUSED = Writing(Written.REFUSED, "refused by order")
UNKNOWN = Writing(Written.UNKNOWN, "unknown by order")
KEY = "opencode:ses_a"


@pytest.fixture
def no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The courier looks around only at its start, so that hints alone can wake it."""
    monkeypatch.setattr(courier_module, "SWEEP_SECONDS", 600.0)
    monkeypatch.setattr(courier_module, "SWEEP_SECONDS_DEAF", 600.0)


@pytest.fixture
def quick_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The courier looks around all the time."""
    monkeypatch.setattr(courier_module, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(courier_module, "SWEEP_SECONDS_DEAF", 0.05)


@pytest.mark.usefixtures("no_sweep")
async def test_admission_alone_wakes_it(rig: PostRig) -> None:  # P12
    carrier = MemoryCarrier()
    rig.courier(carrier)
    for session in ("ses_a", "ses_b"):
        await rig.reach_state("injected", await rig.admit(session))
    assert {session: len(ids) for session, ids in carrier.written.items()} == {"ses_a": 1, "ses_b": 1}


@pytest.mark.usefixtures("quick_sweep")
async def test_what_no_hint_told_of_is_found(rig: PostRig) -> None:  # P12
    before = await rig.admit("ses_a", tell=False)
    carrier = MemoryCarrier()
    rig.courier(carrier)
    await rig.reach_state("injected", before)
    later = await rig.admit("ses_a", tell=False)
    await rig.reach_state("injected", later)


@pytest.mark.usefixtures("no_sweep")
async def test_lost_hints_make_it_look_around(rig: PostRig) -> None:
    carrier = MemoryCarrier()
    rig.courier(carrier)
    await rig.reach_state("injected", await rig.admit("ses_a"))
    missed = await rig.admit("ses_a", tell=False)
    rig.wake._tell(None)
    await rig.reach_state("injected", missed)


async def test_order_is_urgent_normal_low_then_admission(rig: PostRig) -> None:  # P1
    ranks = [Priority.LOW, Priority.NORMAL, Priority.URGENT, Priority.LOW, Priority.NORMAL, Priority.URGENT]
    ids = [await rig.admit("ses_a", priority=rank) for rank in ranks]
    carrier = MemoryCarrier()
    rig.courier(carrier)
    await rig.reach_state("injected", *ids)
    assert carrier.written["ses_a"] == [ids[place] for place in (2, 5, 1, 4, 0, 3)]
    assert carrier.overlap["ses_a"] == 1


async def test_one_write_at_a_time_for_a_target_and_targets_in_parallel(rig: PostRig) -> None:  # P1, P12, P20
    carrier = MemoryCarrier()
    rig.courier(carrier)
    sessions = [f"ses_{number}" for number in range(10)]
    ids = await asyncio.gather(*(rig.admit(session) for _ in range(4) for session in sessions))
    await rig.reach_state("injected", *ids)
    assert max(carrier.overlap.values()) == 1
    assert all(len(carrier.written[session]) == 4 for session in sessions)


async def test_five_hundred_targets_are_served_while_some_hang(
    rig: PostRig, monkeypatch: pytest.MonkeyPatch
) -> None:  # P12
    monkeypatch.setattr(courier_module, "CLOSE_SECONDS", 0.1)
    carrier = MemoryCarrier()
    carrier.hanging = {"ses_0", "ses_7", "ses_250", "ses_499"}
    ids = {f"ses_{number}": await rig.admit(f"ses_{number}", tell=False) for number in range(500)}
    # Fewer places than targets that hang: they give theirs back.
    rig.courier(carrier, at_work=2)
    await rig.reach_state("injected", *(id_ for session, id_ in ids.items() if session not in carrier.hanging))
    await until(lambda: all(carrier.overlap[session] for session in carrier.hanging), "all that hang were begun")
    assert not any(carrier.written[session] for session in carrier.hanging)
    await rig.close()


# Busy.


async def test_busy_is_no_attempt_and_is_shown_until_it_ends(rig: PostRig) -> None:
    carrier = MemoryCarrier()
    carrier.standing["ses_a"] = BUSY
    courier = rig.courier(carrier)
    id_ = await rig.admit("ses_a")

    async def deferred() -> bool:
        return (await rig.delivery(id_)).deferred_reason is not None

    await until(deferred, "it is deferred")
    waiting = await rig.delivery(id_)
    assert (waiting.deferred_reason, waiting.attempt_count, waiting.state) == ("busy by order", 0, "pending")
    assert waiting.deferred_since is not None
    carrier.standing["ses_a"] = FREE
    carrier.change("ses_a")
    await rig.reach_state("injected", id_)
    done = await rig.delivery(id_)
    assert (done.attempt_count, done.deferred_reason) == (1, None)
    assert courier.status()["outcomes"] == {"written": 1}
    assert await rig.rows("select busy_reason from targets") == [(None,)]


@pytest.mark.usefixtures("no_sweep")
async def test_a_busy_target_is_asked_again_without_an_event(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "BUSY", (0.01, 0.02))
    carrier = MemoryCarrier()
    carrier.looks["ses_a"] = [BUSY] * 4
    rig.courier(carrier)
    await rig.reach_state("injected", await rig.admit("ses_a"))


async def test_busy_under_the_lease_gives_it_back_and_the_attempt_stays_counted(rig: PostRig) -> None:
    carrier = MemoryCarrier()
    carrier.looks["ses_a"] = [FREE, BUSY]
    rig.courier(carrier)
    id_ = await rig.admit("ses_a")
    await rig.reach_state("injected", id_)
    assert (await rig.delivery(id_)).attempt_count == 2
    assert len(carrier.written["ses_a"]) == 1


@pytest.mark.usefixtures("quick_sweep")
async def test_an_endpoint_that_is_gone_waits_without_an_attempt(rig: PostRig) -> None:
    carrier = MemoryCarrier()
    carrier.standing["ses_a"] = GONE
    rig.courier(carrier)
    id_ = await rig.admit("ses_a")

    async def shown() -> bool:
        return (await rig.delivery(id_)).deferred_reason == lane.ENDPOINT_GONE

    await until(shown, "it is shown")
    assert (await rig.delivery(id_)).attempt_count == 0


# Failures.


async def test_a_refusal_waits_and_holds_nobody_else_back(rig: PostRig) -> None:  # P6, P14
    carrier = MemoryCarrier()
    carrier.writes["ses_a"] = [REFUSED]
    first, second = await rig.admit("ses_a"), await rig.admit("ses_a")
    await rig.tried(first, 4)
    rig.courier(carrier)
    await rig.reach_state("injected", second)
    failed = await rig.delivery(first)
    assert (failed.state, failed.attempt_count, failed.last_failure_reason) == ("pending", 5, "refused by order")
    rig.store.skew += 60_001
    rig.wake.post([KEY])
    await rig.reach_state("injected", first)
    assert carrier.written["ses_a"] == [second, first]


async def test_a_failure_ends_the_targets_run_for_a_tick(rig: PostRig) -> None:  # P13
    carrier = MemoryCarrier()
    carrier.writes["ses_a"] = [REFUSED]
    first, second = await rig.admit("ses_a"), await rig.admit("ses_a")
    await rig.tried(first, 4)
    began = time.monotonic()
    rig.courier(carrier)
    await rig.reach_state("injected", second)
    assert time.monotonic() - began >= resting.FAILED
    assert carrier.written["ses_a"] == [second]


async def test_the_tenth_refusal_is_final(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:  # P6, P14
    monkeypatch.setattr(resting, "FAILED", 0.0)
    settle, waits = rig.dispatch.settle, []

    async def settled(*given: Any, **more: Any) -> Delivery | None:
        """Settle, and let the time pass that the failure waits."""
        found = await settle(*given, **more)
        assert found is not None
        if found.next_attempt_at is not None:
            waits.append(found.next_attempt_at - found.updated_at)
            rig.store.skew += waits[-1]
        return found

    monkeypatch.setattr(rig.dispatch, "settle", settled)
    carrier = MemoryCarrier()
    carrier.writes["ses_a"] = [REFUSED] * 20
    rig.courier(carrier)
    id_ = await rig.admit("ses_a")
    await rig.reach_state("failed", id_)
    assert waits == [1000, 2000, 5000, 15_000, 60_000, 60_000, 60_000, 60_000, 60_000]
    found = await rig.delivery(id_)
    assert (found.attempt_count, found.reason, found.next_attempt_at) == (10, Cause.EXHAUSTED, None)


async def test_an_absent_target_fails_for_good_at_once(rig: PostRig) -> None:  # P6
    carrier = MemoryCarrier()
    carrier.standing["ses_a"] = ABSENT
    rig.courier(carrier)
    ids = [await rig.admit("ses_a") for _ in range(3)]
    await rig.reach_state("failed", *ids)
    for id_ in ids:
        found = await rig.delivery(id_)
        assert (found.reason, found.attempt_count) == (Cause.NO_SUCH_TARGET, 1)
        assert found.last_failure_reason == "no such session"
    assert not carrier.written


@pytest.mark.parametrize("under_the_lease", [True, False])
async def test_a_fault_counts_an_attempt_of_the_head_and_pauses_the_target(
    rig: PostRig, monkeypatch: pytest.MonkeyPatch, under_the_lease: bool
) -> None:  # P13
    pause, pauses = rig.dispatch.pause, []

    async def paused(key: str, ms: int) -> None:
        pauses.append((key, ms))
        await pause(key, ms)
        rig.store.skew += ms

    monkeypatch.setattr(rig.dispatch, "pause", paused)
    carrier = MemoryCarrier()
    carrier.looks["ses_a"] = [FREE, FAULT] if under_the_lease else [FAULT]
    head, after = await rig.admit("ses_a"), await rig.admit("ses_a")
    await rig.tried(head, 4)
    rig.courier(carrier)
    await rig.reach_state("injected", after)
    found = await rig.delivery(head)
    assert (found.state, found.attempt_count, found.last_failure_reason) == ("pending", 5, "broken by order")
    assert (await rig.delivery(after)).attempt_count == 1
    assert pauses == [(KEY, resting.MAX_FAULT_MS)]


async def test_a_permanent_refusal_is_not_tried_again(rig: PostRig) -> None:  # P6
    carrier = MemoryCarrier()
    carrier.writes["ses_a"] = [Writing(Written.PERMANENT, "it went")]
    rig.courier(carrier)
    first, second = await rig.admit("ses_a"), await rig.admit("ses_a")
    await rig.reach_state("failed", first)
    await rig.reach_state("injected", second)
    assert (await rig.delivery(first)).last_failure_reason == "it went"


# Unknown.


@pytest.mark.usefixtures("quick_sweep")
@pytest.mark.parametrize("stands", [True, False])
async def test_unknown_is_not_failed_and_is_looked_for_before_it_is_written_again(rig: PostRig, stands: bool) -> None:
    carrier = MemoryCarrier()
    carrier.writes["ses_a"] = [UNKNOWN]
    rig.courier(carrier)
    id_ = await rig.admit("ses_a")

    async def doubted() -> bool:
        paused = await rig.rows("select 1 from targets where not_before is not null")
        return bool(paused) and (await rig.delivery(id_)).doubtful

    await until(doubted, "it is in doubt")
    found = await rig.delivery(id_)
    assert (found.state, found.attempt_count, found.last_failure_reason) == ("pending", 1, "unknown by order")
    assert found.next_attempt_at is not None
    assert found.next_attempt_at - found.updated_at == 60_000
    if stands:
        carrier.standing_messages.add(id_)
    rig.store.skew += 60_001
    await rig.reach_state("injected", id_)
    assert carrier.asked_seen == [id_]
    assert carrier.written["ses_a"] == ([] if stands else [id_])
    assert not (await rig.delivery(id_)).doubtful


async def test_at_the_cap_unknown_is_unconfirmed(rig: PostRig) -> None:
    carrier = MemoryCarrier()
    carrier.writes["ses_a"] = [UNKNOWN]
    rig.courier(carrier)
    id_ = await rig.admit("ses_a", attempts=1)
    await rig.reach_state("failed", id_)
    assert (await rig.delivery(id_)).reason == Cause.UNCONFIRMED


@pytest.mark.parametrize("broken", ["raises", "hangs"])
async def test_a_carrier_that_breaks_its_contract_wedges_nobody(
    rig: PostRig, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    carrier = MemoryCarrier()
    if broken == "raises":
        carrier.writes["ses_a"] = [RuntimeError("a bug")]
    else:
        monkeypatch.setattr(guarded, "CALL_SECONDS", 2.0)
        carrier.hanging.add("ses_a")
    rig.courier(carrier)
    id_, other = await rig.admit("ses_a"), await rig.admit("ses_b")

    async def doubted() -> bool:
        return (await rig.delivery(id_)).doubtful

    await until(doubted, "it is in doubt")
    await rig.reach_state("injected", other)


async def test_a_slow_look_leaves_no_write_that_could_outlive_its_lease(
    rig: PostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "LOOK_SHARE", -1.0)
    carrier = MemoryCarrier()
    rig.courier(carrier)
    id_ = await rig.admit("ses_a")

    async def refused() -> bool:
        return (await rig.delivery(id_)).last_failure_reason == lane.TOO_SLOW

    await until(refused, "it is refused")
    assert not carrier.written
    monkeypatch.undo()
    await rig.reach_state("injected", id_)


# Acknowledgement, and turns.


async def test_waiting_for_an_acknowledgement_holds_nobody_back(rig: PostRig) -> None:
    carrier = MemoryCarrier()
    rig.courier(carrier)
    first, second = await rig.admit("ses_a", ack_mode="acknowledged"), await rig.admit("ses_a")
    await rig.reach_state("awaiting_ack", first)
    await rig.reach_state("injected", second)


@pytest.mark.usefixtures("no_sweep")
async def test_a_turn_holds_all_but_the_urgent_and_says_so(rig: PostRig) -> None:  # P1
    carrier = MemoryCarrier()
    carrier.begins_turns = True
    carrier.turns["ses_a"] = Progress(Turn.WORKING, seen=True)
    rig.courier(carrier)
    first = await rig.admit("ses_a")
    await rig.reach_state("injected", first)
    second = await rig.admit("ses_a")

    async def said() -> bool:
        return first in ((await rig.delivery(second)).deferred_reason or "")

    await until(said, "it is said what is waited for")
    urgent = await rig.admit("ses_a", priority=Priority.URGENT)
    await rig.reach_state("injected", urgent)
    assert (await rig.delivery(second)).attempt_count == 0
    carrier.turns["ses_a"] = Progress(Turn.ANSWERED, seen=True)
    carrier.change("ses_a")
    await rig.reach_state("injected", second)
    assert carrier.written["ses_a"] == [first, urgent, second]
    assert (await rig.delivery(urgent)).answered_at is not None


async def test_a_turn_is_looked_at_again_without_an_event(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "TURN", (0.02, 0.05))
    carrier = MemoryCarrier()
    carrier.begins_turns = True
    carrier.turns["ses_a"] = Progress(Turn.WORKING, seen=True)
    rig.courier(carrier)
    first, second = await rig.admit("ses_a"), await rig.admit("ses_a")

    async def seen() -> bool:
        return (await rig.delivery(first)).seen_at is not None

    await until(seen, "it was seen")
    assert (await rig.delivery(first)).answered_at is None
    carrier.turns["ses_a"] = Progress(Turn.LOST, reason="lost by order")
    await rig.reach_state("injected", second)
    lost = await rig.delivery(first)
    assert (lost.state, lost.answered_at, lost.last_failure_reason) == ("injected", None, "lost by order")


async def test_a_turn_that_cannot_be_looked_at_goes_on(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "TURN", (0.02,))
    carrier = MemoryCarrier()
    carrier.begins_turns = True
    carrier.turns["ses_a"] = Progress(Turn.UNKNOWN, reason="away")
    rig.courier(carrier)
    first = await rig.admit("ses_a")
    await rig.reach_state("injected", first)
    await rig.reach_state("injected", await rig.admit("ses_b"))
    assert await rig.turn_of(KEY) == f"dl_{first}"


# Who can carry.


@pytest.mark.usefixtures("quick_sweep")
async def test_without_a_carrier_messages_wait_and_say_so(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:  # P16
    monkeypatch.setattr(resting, "STRANDED", (0.02, 60.0))
    courier = rig.courier()
    id_ = await rig.admit("ses_a")

    async def said() -> bool:
        return (await rig.delivery(id_)).deferred_reason == lane.NO_CARRIER

    await until(said, "it is said")
    assert (await rig.delivery(id_)).attempt_count == 0
    assert "opencode" in courier.status()["without_carrier"]
    await rig.stop(courier)
    rig.courier(MemoryCarrier())
    await rig.reach_state("injected", id_)


async def test_out_of_reach_is_said_and_comes_to_its_end(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "STRANDED", (0.02, 60.0))
    carrier = MemoryCarrier(CarrierKind.TMUX, ("host:here",))
    courier = rig.courier(carrier)
    await until(lambda: courier.status()["running"], "it is at work")
    id_ = await rig.admit("pane", kind=CarrierKind.TMUX, reach="host:there")

    async def said() -> bool:
        return (await rig.delivery(id_)).deferred_reason == lane.OUT_OF_REACH

    await until(said, "it is said")
    assert (await rig.delivery(id_)).attempt_count == 0
    near = await rig.admit("pane", kind=CarrierKind.TMUX, reach="host:here")
    await rig.reach_state("injected", near)
    assert carrier.written["pane"] == [near]


async def test_inboxes_and_strange_keys_need_no_courier(rig: PostRig) -> None:
    courier = rig.courier(MemoryCarrier())
    rig.wake.post(["inbox:ann", "nonsense", "pigeon:1"])
    await rig.reach_state("injected", await rig.admit("ses_a"))
    await until(lambda: courier.status()["lanes"] == 0, "no lane is left")
