"""Rates: what a bucket gives at which time, whose it is, and which messages cost anything."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import Conflict, NotFound, RateLimited
from postroom.limits import MINUTE
from postroom.message import NewMessage
from postroom.model import Principal
from postroom.office import compose
from postroom.services import rates
from postroom.services.rates import Bucket, Rates
from tests.conftest import Store
from tests.offices import ADMIN, ANN, BOB, Bench
from tests.services.mailing import Mail

PLUGIN = Principal("plugin", speaks_as=("ses_*",))


@given(
    st.integers(1, 100_000),
    st.lists(st.tuples(st.integers(-1000, 200_000), st.integers(1, 40), st.booleans()), max_size=40),
)
def test_a_bucket_gives_what_its_rate_allows_and_not_one_more(
    per_minute: int, turns: list[tuple[int, int, bool]]
) -> None:
    bucket, now, latest = Bucket(per_minute, 0), 0, 0
    left = Fraction(per_minute)  # What may still be sent, by exact arithmetic.
    for pause, tries, back in turns:
        now += pause
        if now > latest:
            left = min(Fraction(per_minute), left + Fraction((now - latest) * per_minute, MINUTE))
            latest = now
        for _ in range(tries):
            wait = bucket.take(now)
            if wait == 0:
                assert left >= 1
                left -= 1
                if back:
                    bucket.give_back()
                    left = min(Fraction(per_minute), left + 1)
            else:
                assert left < 1
                # There is one after exactly that time, and none a millisecond before.
                per_ms = Fraction(per_minute, MINUTE)
                assert left + wait * per_ms >= 1 > left + (wait - 1) * per_ms


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def spend(buckets: Rates, who: Principal, sender: str) -> int:
    """Send until it is refused: how many went."""
    for sent in range(10_000):
        with buckets.one(who, sender) as fare:
            if fare.refusal is not None:
                return sent
            fare.due = True
    raise AssertionError("nothing was ever refused")


def test_each_token_and_sender_has_a_bucket_of_its_own(clock: Clock) -> None:
    buckets = Rates(3, clock)
    assert [spend(buckets, *who) for who in ((ANN, "ann"), (PLUGIN, "ses_1"), (PLUGIN, "ses_2"), (ANN, "ann"))] == [
        3,
        3,
        3,
        0,
    ]
    clock.now += 20
    assert spend(buckets, ANN, "ann") == 1
    with buckets.one(PLUGIN, "ses_1") as fare:
        fare.due = True
    with buckets.one(PLUGIN, "ses_1") as fare:
        assert fare.refusal is not None
        assert fare.refusal.as_dict() == {
            "code": "rate_limited",
            "message": "ses_1 (token plugin) has sent as many messages as [post] rate_per_minute = 3 allows; "
            "send again in 20 s",
            "field": "from",
            "retry_after_s": 20,
        }


def test_admins_and_no_rate_count_nothing(clock: Clock) -> None:
    for buckets, who in ((Rates(1, clock), ADMIN), (Rates(0, clock), ANN)):
        for _ in range(3):
            with buckets.one(who, who.name) as fare:
                assert fare.refusal is None
                fare.due = True
        assert len(buckets) == 0


def test_a_fault_costs_nothing(clock: Clock) -> None:
    buckets = Rates(1, clock)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"), buckets.one(ANN, "ann") as fare:
            assert fare.refusal is None
            raise ValueError("broken")
    assert spend(buckets, ANN, "ann") == 1


def test_no_more_buckets_than_so_many(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_BUCKETS", 3)
    buckets = Rates(1, clock)
    for name in ("ses_1", "ses_2", "ses_3"):
        assert spend(buckets, PLUGIN, name) == 1
    assert spend(buckets, PLUGIN, "ses_1") == 0
    assert spend(buckets, PLUGIN, "ses_4") == 1
    # The one that was quiet for the longest was forgotten; who goes on sending never is.
    assert len(buckets) == 3
    assert spend(buckets, PLUGIN, "ses_1") == 0
    assert spend(buckets, PLUGIN, "ses_2") == 1


@pytest.fixture
def capped(store: Store) -> Mail:
    """A post in which an agent may send two messages a minute."""
    return Mail(Bench(store, compose(store, rate_per_minute=2)))


async def test_the_third_message_is_refused_and_repeats_are_not(capped: Mail) -> None:
    await capped.send("one", by=ANN, msg_id="m1")
    for _ in range(5):
        assert (await capped.send("one", by=ANN, msg_id="m1")).deduplicated
    keyed = {"client_id": "c", "idempotency_key": "k"}
    await capped.send("two", by=ANN, **keyed)
    for more in ({}, {"msg_id": "m3"}, {"client_id": "c", "idempotency_key": "k3"}):
        with pytest.raises(RateLimited) as caught:
            await capped.send("three", by=ANN, **more)
        assert 0 < int(str(caught.value.details["retry_after_s"])) <= 30
    assert await capped.count("messages") == 2
    assert await capped.count("admissions") == 2
    # A retry of what was admitted goes through even now, and other content under its key is told apart.
    assert (await capped.send("one", by=ANN, msg_id="m1")).deduplicated
    assert (await capped.send("two", by=ANN, **keyed)).deduplicated
    with pytest.raises(Conflict):
        await capped.send("another", by=ANN, msg_id="m1")
    await capped.send("three", by=BOB)
    for _ in range(3):
        await capped.send("more", by=ADMIN)


async def test_what_is_refused_for_another_reason_costs_nothing(capped: Mail) -> None:
    for _ in range(3):
        with pytest.raises(NotFound):
            await capped.send(by=ANN, to="ep_00000000-0000-7000-8000-000000000001")
    await capped.send("one", by=ANN)
    await capped.send("two", by=ANN)
    with pytest.raises(RateLimited):
        await capped.send("three", by=ANN)


async def test_a_request_that_was_made_is_answered_again(capped: Mail) -> None:
    new = NewMessage("hello", to="bob")
    first = await capped.office.post.send(ANN, new, "r1")
    for _ in range(3):
        again = await capped.office.post.send(ANN, new, "r1")
        assert (again.id, again.deduplicated) == (first.id, True)
    await capped.send("two", by=ANN)
    assert (await capped.office.post.send(ANN, new, "r1")).deduplicated
    with pytest.raises(RateLimited):
        await capped.office.post.send(ANN, new, "r2")
    assert await capped.count("requests") == 1


async def test_what_moves_to_another_endpoint_is_no_new_message(capped: Mail) -> None:
    old = await capped.pane(1, name="reader")
    sent = await capped.send("one", by=ANN, to="reader", msg_id="m1")
    assert sent.posted is not None
    await capped.send("two", by=ANN)
    await capped.office.registry.detach(ADMIN, old.id)
    new = await capped.pane(2, name="reader")
    moved = await capped.send("one", by=ANN, to="reader", msg_id="m1")
    assert moved.posted is not None
    assert (moved.rebound, moved.posted.deliveries[0].endpoint_id) == (True, new.id)
