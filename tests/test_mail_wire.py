"""The JSON of the post: what is shown can be read back, but for what is the store's own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postroom import mail_wire as wire
from postroom.endpoint import ANY_REACH, CarrierKind, Endpoint
from postroom.message import (
    AckMode,
    Admitted,
    Cause,
    Delivery,
    DeliveryState,
    InboxPage,
    Letter,
    Message,
    MessagePage,
    Posted,
    Priority,
)
from postroom.post import Channel, Occupant

TEXT = st.text(max_size=8)
MAYBE = st.none() | TEXT
TIME = st.integers(1, 4_000_000_000_000)
MAYBE_TIME = st.none() | TIME
NAMES = st.lists(TEXT, max_size=3).map(tuple)

MESSAGES = st.builds(
    Message,
    seq=st.just(0),
    id=TEXT,
    client_id=MAYBE,
    idempotency_key=MAYBE,
    digest=st.just(""),
    sender=TEXT,
    addressed=MAYBE,
    channel=MAYBE,
    kind=TEXT,
    priority=st.sampled_from(Priority),
    reply_to=MAYBE,
    payload=TEXT,
    ack_mode=st.sampled_from(AckMode),
    metadata_json=st.none()
    | st.dictionaries(TEXT, st.integers() | MAYBE, max_size=2).map(
        lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    ),
    correlation_id=MAYBE,
    sender_repo=MAYBE,
    target_repo=MAYBE,
    provenance=MAYBE,
    created_by=TEXT,
    created_at=TIME,
    expires_at=MAYBE_TIME,
)
DELIVERIES = st.builds(
    Delivery,
    seq=st.just(0),
    id=TEXT,
    message_id=st.just(""),
    target_key=TEXT,
    carrier=st.sampled_from(CarrierKind),
    endpoint_id=MAYBE,
    mailbox=TEXT,
    reach=st.just(ANY_REACH),
    state=st.sampled_from(DeliveryState),
    rank=st.just(0),
    ack_mode=st.sampled_from(AckMode),
    attempt_count=st.integers(0, 9),
    max_attempts=st.integers(1, 10),
    round=st.integers(0, 9),
    lease_id=st.none(),
    lease_expires_at=MAYBE_TIME,
    doubtful=st.booleans(),
    next_attempt_at=MAYBE_TIME,
    ack_deadline=MAYBE_TIME,
    reason=st.none() | st.sampled_from(Cause),
    last_failure_reason=MAYBE,
    handoff_seq=st.none(),
    delivered_at=MAYBE_TIME,
    seen_at=MAYBE_TIME,
    answered_at=MAYBE_TIME,
    acknowledged_at=MAYBE_TIME,
    expires_at=MAYBE_TIME,
    created_at=TIME,
    updated_at=TIME,
    deferred_reason=MAYBE,
    deferred_since=MAYBE_TIME,
)


def _of(message: Message, deliveries: list[Delivery]) -> Posted:
    return Posted(message, tuple(replace(one, message_id=message.id, rank=message.priority.rank) for one in deliveries))


POSTED = st.builds(_of, MESSAGES, st.lists(DELIVERIES, max_size=3))
LETTERS = st.builds(
    lambda posted, read: Letter(posted.message, posted.deliveries[0], read),
    st.builds(_of, MESSAGES, st.lists(DELIVERIES, min_size=1, max_size=1)),
    st.booleans(),
)
ENDPOINTS = st.builds(
    Endpoint,
    seq=st.just(0),
    id=TEXT,
    name=MAYBE,
    carrier=st.sampled_from(CarrierKind),
    address_json=st.just('{"pane":"%1"}'),
    target_key=TEXT,
    reach=TEXT,
    ack_mode=st.sampled_from(["injected", "acknowledged"]),
    max_attempts=st.integers(1, 10),
    spill=st.booleans(),
    rings=st.booleans(),
    pid=st.none() | st.integers(1, 99),
    created_by=TEXT,
    created_at=TIME,
    seen_at=TIME,
    ended_at=MAYBE_TIME,
    repositories=NAMES,
    queues=NAMES,
    channels=NAMES,
)


_MESSAGE = Message(
    0,
    "m",
    None,
    None,
    "",
    "a",
    "b",
    None,
    "chat",
    Priority.NORMAL,
    None,
    "x",
    AckMode.INJECTED,
    None,
    None,
    None,
    None,
    None,
    "a",
    1,
    None,
)
_PLAIN = Delivery(
    0,
    "dl",
    "m",
    "inbox:b",
    CarrierKind.INBOX,
    None,
    "b",
    ANY_REACH,
    DeliveryState.INJECTED,
    1,
    AckMode.INJECTED,
    0,
    5,
    0,
    None,
    None,
    False,
    None,
    None,
    None,
    None,
    None,
    1,
    None,
    None,
    None,
    None,
    1,
    2,
)


def _sent(view: Any) -> Any:
    """A view as the other side gets it."""
    return json.loads(json.dumps(view))


@given(POSTED, st.booleans(), st.booleans())
def test_messages_are_read_back(posted: Posted, deduplicated: bool, rebound: bool) -> None:
    assert wire.posted_of(_sent(wire.posted_view(posted))) == posted
    page = MessagePage((posted, posted), "c1")
    assert wire.page_of(_sent(wire.page_view(page))) == page
    for kept in (posted, None):
        admitted = Admitted(posted.message.id, kept, deduplicated, rebound)
        assert wire.admitted_of(_sent(wire.admitted_view(admitted))) == admitted


@given(st.lists(LETTERS, max_size=2), st.integers(0, 1000))
def test_an_inbox_is_read_back(letters: list[Letter], unread: int) -> None:
    page = InboxPage("bob", tuple(letters), "s.7", unread)
    assert wire.inbox_of(_sent(wire.inbox_view(page))) == page


@given(ENDPOINTS, st.none() | st.booleans())
def test_endpoints_are_read_back(endpoint: Endpoint, live: bool | None) -> None:
    view = _sent(wire.endpoint_view(endpoint, live))
    assert wire.endpoint_of(view) == endpoint
    assert view["live"] is (live if endpoint.ended_at is None else False)


@given(st.builds(Channel, TEXT, st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)))
def test_channels_are_read_back(channel: Channel) -> None:
    assert wire.channel_of(_sent(wire.channel_view(channel))) == channel


@given(
    st.builds(Occupant, TEXT, MAYBE, MAYBE, st.booleans(), NAMES, NAMES, NAMES, MAYBE, MAYBE, MAYBE, MAYBE, MAYBE_TIME)
)
def test_occupants_are_read_back(occupant: Occupant) -> None:
    assert wire.occupant_of(_sent(wire.occupant_view(occupant))) == occupant


@given(DELIVERIES)
def test_a_delivery_shows_what_is_promised_and_never_its_lease(delivery: Delivery) -> None:
    # T40
    view = wire.delivery_view(replace(delivery, lease_id="ls_secret"))
    assert "ls_secret" not in json.dumps(view)
    assert {
        *("id", "target", "carrier", "endpoint_id", "mailbox", "state", "attempts", "max_attempts", "next_attempt_at"),
        *("lease_expires_at", "ack_deadline", "reason", "last_failure_reason", "deferred_reason", "deferred_since"),
        *("delivered_at", "seen_at", "answered_at", "acknowledged_at", "may_have_been_written"),
    } <= set(view)


def test_a_time_is_rfc_3339_and_a_handoff_the_first_that_made_it_visible() -> None:
    view = {
        **wire.delivery_view(_PLAIN),
        "state": "acknowledged",
        "delivered_at": None,
        "acknowledged_at": "1970-01-01T00:00:01.000Z",
    }
    message = replace(_MESSAGE, priority=Priority.LOW)
    delivery = wire.delivery_of(view, message)
    assert (delivery.rank, delivery.acknowledged_at) == (2, 1_000)
    assert wire.handed_off_at(delivery) == 1_000
    assert wire.handed_off_at(replace(delivery, delivered_at=500)) == 500
    assert wire.delivery_view(delivery)["acknowledged_at"] == "1970-01-01T00:00:01.000Z"
