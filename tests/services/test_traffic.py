"""How the post stands: what waits by carrier, what holds it up, what failed, and who is there."""

from __future__ import annotations

import pytest

from postroom.endpoint import CarrierKind
from postroom.limits import SECOND
from postroom.mail_wire import traffic_view
from postroom.message import AckMode, Written
from postroom.post import CarrierTraffic, Traffic
from postroom.services import traffic
from tests.offices import ADMIN, Bench
from tests.services.bells import Bell
from tests.services.mailing import Mail


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


async def _now(bench: Bench) -> Traffic:
    return await bench.office.traffic.now()


async def _of(bench: Bench, carrier: CarrierKind) -> CarrierTraffic:
    (found,) = (one for one in (await _now(bench)).carriers if one.carrier is carrier)
    return found


async def test_nothing_is_nothing(bench: Bench) -> None:
    assert await _now(bench) == Traffic((), (), 0, 0)
    assert traffic_view(await _now(bench)) == {
        "pending": 0,
        "awaiting_ack": 0,
        "failed": 0,
        "oldest_pending_age_s": None,
        "carriers": [],
        "deferred": [],
        "endpoints": {"live": 0, "standing": 0},
    }


async def test_what_waits_is_told_by_carrier_and_stage(mail: Mail) -> None:
    bench = mail.bench
    await mail.send()
    bench.move(1000 * SECOND)
    await mail.pane(1, name="ann")
    await mail.send()
    await mail.send(to="ses_2")
    await mail.send(to="ses_3")
    await mail.send(to="ann")
    await mail.send(to="bob")  # An inbox has it at once: nothing waits.
    await mail.carry("opencode:ses_2", Written.REFUSED)
    assert await mail.office.dispatch.lease("opencode:ses_3", ["any"]) is not None
    bench.move(5 * SECOND)
    sessions, pane = (await _now(bench)).carriers
    assert (sessions.carrier, sessions.pending, sessions.retrying, sessions.being_written) == ("opencode", 4, 1, 1)
    assert (pane.carrier, pane.pending, pane.retrying, pane.being_written) == ("tmux", 1, 0, 0)
    assert sessions.oldest_pending_age is not None
    assert pane.oldest_pending_age is not None
    assert sessions.oldest_pending_age >= 1005 * SECOND > pane.oldest_pending_age >= 5 * SECOND
    assert ((await _now(bench)).oldest_pending_age or 0) >= sessions.oldest_pending_age


async def test_the_age_is_that_of_whatever_waits_longest(mail: Mail) -> None:
    await mail.send(to="ses_2")
    await mail.carry("opencode:ses_2", Written.REFUSED)
    mail.bench.move(100 * SECOND)
    await mail.send()
    assert ((await _of(mail.bench, CarrierKind.OPENCODE)).oldest_pending_age or 0) >= 100 * SECOND


async def test_what_waits_for_an_acknowledgement_waits_in_an_inbox_too(mail: Mail) -> None:
    for to in ("ses_1", "bob"):
        await mail.send(to=to, ack_mode=AckMode.ACKNOWLEDGED, msg_id=f"to.{to}")
    await mail.carry("opencode:ses_1")
    assert [(one.carrier, one.pending, one.awaiting_ack) for one in (await _now(mail.bench)).carriers] == [
        ("opencode", 0, 1),
        ("inbox", 0, 1),
    ]
    for to in ("ses_1", "bob"):
        await mail.office.receipts.ack(ADMIN, f"to.{to}")
    assert (await _now(mail.bench)).carriers == ()


async def test_what_failed_is_told_but_neither_the_cancelled_nor_unheard_rings(bench: Bench) -> None:
    bell = Bell(bench)
    await bell.seat("ann")
    await bell.work("one")
    assert await bell.look() == 1
    sent = await bell.mail.send()
    await bell.mail.send(to="ses_2")
    await bell.mail.carry("opencode:ses_2", Written.PERMANENT)
    await bench.office.receipts.cancel(ADMIN, sent.id)
    bench.move(600 * SECOND)
    await bench.office.dispatch.sweep(10)
    (ring,) = await bell.rings()
    assert ring.reason == "expired"
    assert [(one.carrier, one.failed, one.pending) for one in (await _now(bench)).carriers] == [("opencode", 1, 0)]
    assert (await _now(bench)).failed == 1


async def test_the_targets_that_hold_deliveries_up_the_longest_first(
    mail: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = mail.bench
    for n in (3, 1, 2):
        await mail.send(to=f"ses_{n}")
        await mail.send(to=f"ses_{n}")
        await mail.office.dispatch.defer(f"opencode:ses_{n}", f"at work on {n}")
        bench.move(SECOND)
    await mail.carry("opencode:ses_1", Written.REFUSED)  # It waits for its time, and for the target's too.
    told = (await _now(bench)).deferred
    assert [(one.target_key, one.carrier, one.reason, one.waiting) for one in told] == [
        ("opencode:ses_3", "opencode", "at work on 3", 2),
        ("opencode:ses_1", "opencode", "at work on 1", 2),
        ("opencode:ses_2", "opencode", "at work on 2", 2),
    ]
    assert told[0].since < told[1].since < told[2].since
    assert [one.mailbox for one in told] == ["ses_3", "ses_1", "ses_2"]
    monkeypatch.setattr(traffic, "SHOWN", 1)
    monkeypatch.setattr(traffic, "COUNTED", 1)
    assert [(one.target_key, one.waiting) for one in (await _now(bench)).deferred] == [("opencode:ses_3", 1)]


async def test_a_reason_that_nothing_waits_for_any_more_is_not_told(mail: Mail) -> None:
    sent = await mail.send()
    await mail.office.dispatch.defer("opencode:ses_1", "at work")
    assert len((await _now(mail.bench)).deferred) == 1
    await mail.office.receipts.cancel(ADMIN, sent.id)
    assert (await _now(mail.bench)).deferred == ()


async def test_endpoints_that_live_and_those_that_are_silent(mail: Mail) -> None:
    first = await mail.pane(1)
    await mail.pane(2)
    gone = await mail.pane(3)
    await mail.office.registry.detach(ADMIN, gone.id)
    await mail.office.registry.subscribe(ADMIN, "team", "bob")
    mail.bench.move(46 * SECOND)
    await mail.office.registry.touch([first.id])
    now = await _now(mail.bench)
    assert (now.live_endpoints, now.standing_endpoints) == (2, 3)
