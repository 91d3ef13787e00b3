"""Parcels made by hand: a delivery on its way to one session, with its message."""

from __future__ import annotations

import itertools
from typing import Any

from postroom.endpoint import ANY_REACH, CarrierKind
from postroom.message import AckMode, Delivery, DeliveryState, Message, Parcel, Priority, Target

NOW = 1_800_000_000_000
_numbers = itertools.count(1)


def parcel(session: str, payload: str = "hello", *, round: int = 0, msg_id: str | None = None, **more: Any) -> Parcel:
    """A leased delivery to a session; `more` are fields of its message."""
    number = next(_numbers)
    message = Message(
        **{
            "seq": number,
            "id": msg_id or f"msg_test{number}",
            "client_id": None,
            "idempotency_key": None,
            "digest": "",
            "sender": "ses_sender",
            "addressed": session,
            "channel": None,
            "kind": "chat",
            "priority": Priority.NORMAL,
            "reply_to": None,
            "payload": payload,
            "ack_mode": AckMode.INJECTED,
            "metadata_json": None,
            "correlation_id": None,
            "sender_repo": None,
            "target_repo": None,
            "provenance": None,
            "created_by": "root",
            "created_at": NOW,
            "expires_at": None,
            **more,
        }
    )
    key = f"opencode:{session}"
    delivery = Delivery(
        seq=number,
        id=f"dl_{number}",
        message_id=message.id,
        target_key=key,
        carrier=CarrierKind.OPENCODE,
        endpoint_id=None,
        mailbox=session,
        reach=ANY_REACH,
        state=DeliveryState.PENDING,
        rank=message.priority.rank,
        ack_mode=message.ack_mode,
        attempt_count=1,
        max_attempts=10,
        round=round,
        lease_id="ls_1",
        lease_expires_at=NOW + 30_000,
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
        created_at=NOW,
        updated_at=NOW,
    )
    return Parcel(delivery, message, Target(key, CarrierKind.OPENCODE), None)
