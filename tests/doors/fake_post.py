"""Messages, deliveries, endpoints and occupants as the wire has them, for a fake daemon to answer with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from postroom.endpoint import ANY_REACH, CarrierKind, Endpoint
from postroom.mail_wire import endpoint_view, inbox_view, occupant_view, posted_view
from postroom.message import AckMode, Delivery, DeliveryState, InboxPage, Letter, Message, Posted, Priority
from postroom.post import Occupant
from tests.doors.fake_daemon import NOON

MESSAGE = "msg_mhx3k2a0_0a1b2c3d"
ENDPOINT = "ep_01890000-0000-7000-8000-000000000005"
SESSION = "ses_reader"

_MESSAGE = Message(
    seq=1,
    id=MESSAGE,
    client_id=None,
    idempotency_key=None,
    digest="",
    sender="ses_writer",
    addressed=SESSION,
    channel=None,
    kind="chat",
    priority=Priority.NORMAL,
    reply_to=None,
    payload="hello",
    ack_mode=AckMode.INJECTED,
    metadata_json=None,
    correlation_id=None,
    sender_repo=None,
    target_repo=None,
    provenance=None,
    created_by="ann",
    created_at=NOON,
    expires_at=None,
)

_DELIVERY = Delivery(
    seq=1,
    id="dl_01890000-0000-7000-8000-000000000006",
    message_id=MESSAGE,
    target_key=f"opencode:{SESSION}",
    carrier=CarrierKind.OPENCODE,
    endpoint_id=None,
    mailbox=SESSION,
    reach=ANY_REACH,
    state=DeliveryState.PENDING,
    rank=1,
    ack_mode=AckMode.INJECTED,
    attempt_count=0,
    max_attempts=10,
    round=1,
    lease_id=None,
    lease_expires_at=None,
    doubtful=False,
    next_attempt_at=None,
    ack_deadline=None,
    reason=None,
    last_failure_reason=None,
    handoff_seq=None,
    delivered_at=None,
    seen_at=None,
    answered_at=None,
    acknowledged_at=None,
    expires_at=None,
    created_at=NOON,
    updated_at=NOON,
)


def delivery(state: DeliveryState | str = DeliveryState.PENDING, **changes: Any) -> Delivery:
    """A delivery in a state."""
    return replace(_DELIVERY, state=DeliveryState(state), **changes)


def message(*deliveries: Delivery, **changes: Any) -> dict[str, Any]:
    """A message's view with its deliveries."""
    return posted_view(Posted(replace(_MESSAGE, **changes), deliveries))


def sent(*deliveries: Delivery, deduplicated: bool = False, **changes: Any) -> dict[str, Any]:
    """The answer to a send; one pending delivery where none is named."""
    shown = message(*(deliveries or (delivery(),)), **changes)
    return {"id": shown["id"], "message": shown, "deduplicated": deduplicated}


def letter(number: int, *, read: bool = False, **changes: Any) -> Letter:
    """The message of this number as an inbox shows it."""
    handed = delivery("injected", delivered_at=NOON + number, handoff_seq=number)
    return Letter(replace(_MESSAGE, id=f"msg_{number}", **changes), handed, read)


def inbox(*letters: Letter, unread: int = 0, place: str = "s.9", mailbox: str = SESSION) -> dict[str, Any]:
    """A page of an inbox."""
    return inbox_view(InboxPage(mailbox, letters, place, unread))


def endpoint(live: bool | None = True, **changes: Any) -> dict[str, Any]:
    """An endpoint's view."""
    plain = Endpoint(
        seq=1,
        id=ENDPOINT,
        name="reader",
        carrier=CarrierKind.TMUX,
        address_json='{"pane": "%1"}',
        target_key="tmux:s:1:2:%1",
        reach=ANY_REACH,
        ack_mode="injected",
        max_attempts=5,
        spill=False,
        rings=True,
        pid=7,
        created_by="ann",
        created_at=NOON,
        seen_at=NOON,
        ended_at=None,
        channels=("team",),
    )
    return endpoint_view(replace(plain, **changes), live)


def occupant(**changes: Any) -> dict[str, Any]:
    """An occupant's view."""
    plain = Occupant(
        name="reader",
        carrier="tmux",
        endpoint_id=ENDPOINT,
        live=True,
        repositories=("a/b",),
        queues=("review",),
        channels=("team",),
        directory="/src",
        branch="main",
        todo_id="td_1",
        todo_title="Read it\x1b",
        last_seen=NOON,
    )
    return occupant_view(replace(plain, **changes))
