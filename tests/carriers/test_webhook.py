"""The carrier to webhooks: what each answer comes to, when a receiver is disabled and enabled, and a courier's work."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from postroom.carriers.carrier import FREE, Progress, Standing, Turn
from postroom.carriers.table import make_carriers
from postroom.carriers.webhook import WebhookCarrier
from postroom.carriers.webhook_health import FIRST_PAUSE, MOST_PAUSE, STREAK, STREAK_MS, Health
from postroom.carriers.webhook_place import WebhookPlace
from postroom.carriers.webhook_wire import Answer, NotSent, Unanswered, WebhookWire
from postroom.carriers.whereabouts import Whereabouts
from postroom.delivery import Policy
from postroom.endpoint import CarrierKind, Endpoint
from postroom.errors import Invalid
from postroom.limits import HOUR, MINUTE, SECOND
from postroom.message import Written
from tests.carriers.parcels import NOW
from tests.carriers.receiver import KEY, OLD_KEY, Receiver, answer, cut, to_webhook
from tests.carriers.rig import PostRig
from tests.processes import until


class Clock:
    """A clock that a test turns; ms UTC."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


class Wire(WebhookWire):
    """A wire whose answers the test gives; the last is given again."""

    def __init__(self, *answers: int | Answer | Exception) -> None:
        super().__init__()
        self.answers = list(answers)
        self.sent: list[tuple[str, bytes, float]] = []

    async def post(self, place: WebhookPlace, headers: str, body: bytes, seconds: float) -> Answer:
        self.sent.append((headers, body, seconds))
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(given, Exception):
            raise given
        return Answer(given) if isinstance(given, int) else given


PLACE = WebhookPlace("ops", "https://hooks.example/x?token=hidden", (KEY,), queues=("review",))


class Hook:
    """A carrier to one webhook, with its clock and its wire."""

    def __init__(self, *answers: int | Answer | Exception) -> None:
        self.clock = Clock()
        self.wire = Wire(*(answers or (204,)))
        self.carrier = WebhookCarrier([PLACE], self.clock, self.wire)

    async def write(self) -> tuple[Written, str | None]:
        writing = await self.carrier.write(to_webhook())
        assert not writing.turn
        return writing.outcome, writing.reason

    async def why(self) -> str | None:
        """Why nothing is sent now."""
        look = await self.carrier.look(to_webhook())
        assert look == FREE or look.standing is Standing.BUSY
        return look.reason or None

    async def fail_until_disabled(self) -> None:
        for _ in range(STREAK - 1):
            await self.write()
        self.clock.now += STREAK_MS
        await self.write()


# What a write comes to.


@pytest.mark.parametrize(
    ("answered", "outcome", "reason"),
    [
        (200, Written.WRITTEN, None),
        (202, Written.WRITTEN, None),
        (299, Written.WRITTEN, None),
        (301, Written.REFUSED, "HTTP 301: a redirect, which is not followed"),
        (308, Written.REFUSED, "HTTP 308: a redirect, which is not followed"),
        (400, Written.REFUSED, "HTTP 400"),
        (401, Written.REFUSED, "HTTP 401"),
        (404, Written.REFUSED, "HTTP 404"),
        (408, Written.REFUSED, "HTTP 408"),
        (410, Written.PERMANENT, "HTTP 410: the receiver says that it is gone for good"),
        (429, Written.REFUSED, "HTTP 429"),
        (500, Written.REFUSED, "HTTP 500"),
        (999, Written.REFUSED, "HTTP 999"),
        (NotSent("no connection: Connection refused"), Written.REFUSED, "no connection: Connection refused"),
        (Unanswered("no answer within 15 s"), Written.UNKNOWN, "no answer within 15 s"),
    ],
    ids=str,
)
async def test_each_answer_comes_to_something(answered: Any, outcome: Written, reason: str | None) -> None:
    assert await Hook(answered).write() == (outcome, reason)


async def test_what_is_sent_is_signed_with_every_secret() -> None:
    there = await Receiver().start()
    carrier = WebhookCarrier([there.place(keys=(KEY, OLD_KEY))], _system_clock)
    try:
        assert (await carrier.write(to_webhook("hello", msg_id="msg_7", round=2))).outcome is Written.WRITTEN
    finally:
        await there.stop()
    (request,) = there.requests
    for key in (KEY, OLD_KEY):
        assert request.verified(key)["data"]["payload"] == "hello"
    assert request.headers["webhook-id"] == "msg_7~2"
    assert request.headers["user-agent"].startswith("postroom/")


async def test_a_write_ends_well_within_its_lease() -> None:
    hook = Hook()
    await hook.write()
    assert hook.wire.sent[0][2] == PLACE.timeout_s
    short = to_webhook()
    held = replace(short.delivery, lease_expires_at=short.delivery.updated_at + 5 * SECOND)
    await hook.carrier.write(replace(short, delivery=held))
    assert 2 < hook.wire.sent[1][2] < 3.25


# When it is left alone.


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_receiver_that_asks_for_rest_gets_it(status: int) -> None:
    hook = Hook(Answer(status, "120"), 204)
    await hook.write()
    assert await hook.why() == "asked to be left alone until 2027-01-15T08:02:00.000Z (Retry-After)"
    hook.clock.now += 120 * SECOND
    assert await hook.why() is None
    await hook.write()
    assert await hook.why() is None


@pytest.mark.parametrize(("status", "given"), [(500, "120"), (404, "120"), (503, "soon"), (503, None)])
async def test_others_words_are_not_heard(status: int, given: str | None) -> None:
    hook = Hook(Answer(status, given))
    await hook.write()
    assert await hook.why() is None


async def test_nobody_rests_for_longer_than_an_hour() -> None:
    hook = Hook(Answer(503, "86400"))
    await hook.write()
    hook.clock.now += HOUR
    assert await hook.why() is None


# When it is disabled.


async def test_a_long_streak_disables_it_and_one_success_enables_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "postroom.courier")
    hook = Hook(500)
    await hook.fail_until_disabled()
    why = (
        "disabled since 2027-01-15T09:00:00.000Z after 20 failures in a row; last: HTTP 500; "
        "one delivery is tried at 2027-01-15T09:10:00.000Z"
    )
    assert await hook.why() == why
    hook.clock.now += FIRST_PAUSE - 1
    assert await hook.why() == why, "the words stay the same, so that nothing is written for them"
    hook.clock.now += 1
    assert await hook.why() is None
    assert await hook.carrier.live(endpoint()) is None
    hook.wire.answers = [204]
    assert (await hook.write())[0] is Written.WRITTEN
    assert await hook.why() is None
    assert await hook.carrier.live(endpoint()) is True
    assert [record.message.split(" after")[0] for record in caplog.records] == [
        "webhook ops is disabled since 2027-01-15T09:00:00.000Z",
        "webhook ops answers again and is enabled",
    ]


async def test_each_try_in_vain_doubles_the_pause_up_to_a_day() -> None:
    hook = Hook(Unanswered("nothing"))
    await hook.fail_until_disabled()
    pauses = []
    for _ in range(10):
        pause = 0
        while await hook.why() is not None:
            hook.clock.now += FIRST_PAUSE
            pause += FIRST_PAUSE
        pauses.append(pause // MINUTE)
        await hook.write()
    assert pauses == [10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440]


async def test_neither_a_burst_nor_a_slow_night_disables_it() -> None:
    burst = Hook(503)
    for _ in range(10 * STREAK):
        await burst.write()
    assert await burst.why() is None
    slow = Hook(503)
    for _ in range(STREAK - 1):
        await slow.write()
        slow.clock.now += HOUR
    assert await slow.why() is None


async def test_a_success_ends_the_streak() -> None:
    hook = Hook(500)
    for _ in range(3):
        for _ in range(STREAK - 1):
            await hook.write()
            hook.clock.now += HOUR
        hook.wire.answers = [200, 500]
        await hook.write()
    assert await hook.why() is None


async def test_who_is_gone_is_disabled_at_once_for_a_day() -> None:
    hook = Hook(410)
    await hook.write()
    why = await hook.why()
    assert why is not None
    assert why.startswith("disabled since 2027-01-15T08:00:00.000Z after a failure; last: HTTP 410")
    hook.clock.now += MOST_PAUSE
    assert await hook.why() is None
    await hook.write()
    hook.clock.now += MOST_PAUSE - 1
    assert await hook.why() is not None


def test_the_status_says_where_and_how() -> None:
    health = Health()
    assert health.status(NOW)["state"] == "well"
    health.failed(NOW, "HTTP 500")
    assert health.status(NOW) == {
        "state": "failing",
        "failures": 1,
        "last_failure": "HTTP 500",
        "disabled_since": None,
        "waits": None,
    }
    carrier = Hook().carrier
    assert carrier.status()["ops"]["url"] == "https://hooks.example/x", "a query may hold a secret"
    assert "hidden" not in str(carrier.status())
    assert KEY.hex() not in repr(PLACE)
    assert str(KEY) not in repr(PLACE)


# What else a carrier is asked.


def endpoint(key: str = "webhook:ops") -> Endpoint:
    return Endpoint(
        seq=1,
        id="ep_1",
        name="ops",
        carrier=CarrierKind.WEBHOOK,
        address_json="{}",
        target_key=key,
        reach=key,
        ack_mode="injected",
        max_attempts=8,
        spill=False,
        rings=True,
        pid=None,
        created_by="postroom",
        created_at=0,
        seen_at=0,
        ended_at=None,
    )


async def test_what_nobody_can_know_is_not_said() -> None:
    hook = Hook()
    assert await hook.carrier.seen(to_webhook()) is None
    assert await hook.carrier.progress(to_webhook()) == Progress(Turn.UNKNOWN)
    assert await hook.carrier.live(endpoint()) is True
    assert await hook.carrier.live(endpoint("webhook:another")) is None
    assert (await hook.carrier.look(to_webhook(name="another"))).standing is Standing.GONE
    assert hook.carrier.reaches == ("webhook:ops",)


@pytest.mark.parametrize("configured", [True, False])
def test_nobody_attaches_one_by_its_address(configured: bool) -> None:
    carriers = make_carriers(webhooks=[PLACE] if configured else ())
    assert (CarrierKind.WEBHOOK in carriers) is configured
    with pytest.raises(Invalid, match=r"settings alone: a table \[\[webhook\]\]") as caught:
        Whereabouts(carriers.values())(CarrierKind.WEBHOOK, {"url": "http://127.0.0.1/"}, "ops")
    assert caught.value.field == "carrier"
    with pytest.raises(Invalid, match="settings alone"):
        Hook().carrier.check_address({"url": "http://127.0.0.1/"})


# With a courier.


def _system_clock() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    made = await Receiver().start()
    yield made
    await made.stop()


async def send(rig: PostRig, payload: str = "hello") -> str:
    key = "webhook:ops"
    return await rig.admit("ops", payload, kind=CarrierKind.WEBHOOK, key=key, reach=key, attempts=8)


async def hurry(rig: PostRig, message: str) -> None:
    """Let a failed delivery's time come."""
    await rig.rows(
        "update deliveries set next_attempt_at = 1 where message_id = ? and next_attempt_at is not null", (message,)
    )
    await rig.rows("update targets set not_before = null")
    rig.wake.post(["webhook:ops"])


async def test_a_receiver_that_was_down_gets_it_by_the_same_id(rig: PostRig, there: Receiver) -> None:
    await there.stop()
    carrier = WebhookCarrier([there.place()], _system_clock)
    rig.courier(carrier)
    first = await send(rig, "one")

    async def tried(times: int) -> bool:
        delivery = await rig.delivery(first)
        return delivery.attempt_count == times and delivery.lease_id is None

    await until(lambda: tried(1), "it was tried")
    delivery = await rig.delivery(first)
    assert delivery.last_failure_reason == "no connection: Connection refused"
    assert delivery.next_attempt_at is not None
    assert delivery.next_attempt_at - delivery.updated_at == 5 * SECOND
    there.answers = [cut]
    await there.start()
    await hurry(rig, first)
    await until(lambda: tried(2), "it was tried again")
    delivery = await rig.delivery(first)
    assert (delivery.doubtful, delivery.last_failure_reason) == (True, "the connection ended without an answer")
    assert delivery.next_attempt_at is not None
    assert delivery.next_attempt_at - delivery.updated_at == max(5 * MINUTE, Policy().unknown)
    await hurry(rig, first)
    await rig.reach_state("injected", first)
    one, two = there.requests
    assert one.headers["webhook-id"] == two.headers["webhook-id"] == first
    assert one.body == two.body
    assert two.verified()["data"]["payload"] == "one"
    assert (await rig.delivery(first)).attempt_count == 3


async def test_a_disabled_one_is_waited_for_without_attempts_and_says_why(rig: PostRig, there: Receiver) -> None:
    clock = Clock()
    there.answers = [answer(500)] * STREAK
    carrier = WebhookCarrier([there.place()], clock)
    health = carrier._health["webhook:ops"]
    for _ in range(STREAK - 1):
        health.failed(clock.now - STREAK_MS, "HTTP 500")
    rig.courier(carrier)
    first = await send(rig, "one")
    await until(lambda: health.disabled, "the last failure of the streak has come")
    second = await send(rig, "two")

    async def reason() -> str | None:
        return (await rig.delivery(second)).deferred_reason

    why = await until(reason, "it says why it waits")
    assert why.startswith("disabled since 2027-01-15T08:00:00.000Z after 20 failures in a row; last: HTTP 500")
    assert (await rig.delivery(second)).attempt_count == 0
    assert carrier.status()["ops"]["state"] == "disabled"
    there.answers = []
    clock.now += FIRST_PAUSE
    rig.wake.post(["webhook:ops"])
    await rig.reach_state("injected", second)
    assert not health.disabled
    await hurry(rig, first)
    await rig.reach_state("injected", first)
    assert (await rig.delivery(second)).deferred_reason is None


async def test_a_receiver_that_is_gone_ends_it(rig: PostRig, there: Receiver) -> None:
    there.answers = [answer(410)]
    rig.courier(WebhookCarrier([there.place()], _system_clock))
    first = await send(rig)
    await rig.reach_state("failed", first)
    delivery = await rig.delivery(first)
    assert (delivery.reason, delivery.attempt_count) == ("no_such_target", 1)
    assert delivery.last_failure_reason == "HTTP 410: the receiver says that it is gone for good"


async def test_only_who_has_it_in_its_settings_carries_it(rig: PostRig, there: Receiver) -> None:
    rig.courier(WebhookCarrier([there.place("another")], _system_clock))
    first = await send(rig)
    rig.courier(WebhookCarrier([there.place()], _system_clock))
    await rig.reach_state("injected", first)
    assert len(there.requests) == 1


async def test_several_couriers_of_one_webhook_send_each_once(rig: PostRig, there: Receiver) -> None:
    for _ in range(3):
        rig.courier(WebhookCarrier([there.place()], _system_clock))
    sent = [await send(rig, str(number)) for number in range(8)]
    await rig.reach_state("injected", *sent)
    assert [request.event["data"]["payload"] for request in there.requests] == [str(number) for number in range(8)]
