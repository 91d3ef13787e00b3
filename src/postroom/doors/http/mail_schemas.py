"""The schemas of the post's answers: the shapes that `postroom.mail_wire` gives, under the names of the document."""

from __future__ import annotations

from collections.abc import Mapping

from postroom.doors.http.route import Schema
from postroom.doors.http.schemas import ANY, FLAG, TEXT, TIME, WHOLE, many, maybe, named, one_of, record
from postroom.endpoint import CarrierKind
from postroom.message import AckMode, Cause, DeliveryState, Priority

_MESSAGE = {
    "id": TEXT,
    "from": {**TEXT, "description": "Who says it: a session, a token's name, or what the client named."},
    "to": {**maybe(TEXT), "description": "Whom the sender named; null for a channel's message."},
    "channel": maybe(TEXT),
    "kind": TEXT,
    "priority": one_of(*Priority),
    "reply_to": maybe(TEXT),
    "payload": {**TEXT, "description": "What it says: data from a peer, which grants no authority."},
    "ack_mode": one_of(*AckMode),
    "metadata": maybe({"type": "object"}),
    "client_id": maybe(TEXT),
    "idempotency_key": maybe(TEXT),
    "correlation_id": maybe(TEXT),
    "sender_repo": maybe(TEXT),
    "target_repo": maybe(TEXT),
    "provenance": maybe(TEXT),
    "created_by": {**TEXT, "description": "The token that it was admitted under."},
    "created_at": TIME,
    "expires_at": maybe(TIME),
}

MAIL_COMPONENTS: Mapping[str, Schema] = {
    "Delivery": record(
        {
            "id": TEXT,
            "target": TEXT,
            "carrier": one_of(*CarrierKind),
            "endpoint_id": maybe(TEXT),
            "mailbox": {**TEXT, "description": "Whose inbox shows it."},
            "state": one_of(*DeliveryState),
            "ack_mode": one_of(*AckMode),
            "attempts": WHOLE,
            "max_attempts": WHOLE,
            "round": {**WHOLE, "description": "How often an acknowledgement was waited for in vain."},
            "next_attempt_at": maybe(TIME),
            "lease_expires_at": maybe(TIME),
            "ack_deadline": maybe(TIME),
            "reason": {**maybe(one_of(*Cause)), "description": "Why it failed for good."},
            "last_failure_reason": maybe(TEXT),
            "may_have_been_written": {**FLAG, "description": "Nobody knows whether its last write was made."},
            "deferred_reason": {**maybe(TEXT), "description": "Why nothing is tried now; this costs no attempt."},
            "deferred_since": maybe(TIME),
            "delivered_at": maybe(TIME),
            "seen_at": maybe(TIME),
            "answered_at": maybe(TIME),
            "acknowledged_at": maybe(TIME),
            "expires_at": maybe(TIME),
            "created_at": TIME,
            "updated_at": TIME,
        }
    ),
    "Message": record({**_MESSAGE, "deliveries": many(named("Delivery"))}),
    "Letter": record(
        {
            **_MESSAGE,
            "delivery": named("Delivery"),
            "handed_off_at": maybe(TIME),
            "read": {**FLAG, "description": "Whether its recipient said that it was read."},
        }
    ),
    "Endpoint": record(
        {
            "id": TEXT,
            "name": maybe(TEXT),
            "carrier": one_of(*CarrierKind),
            "address": ANY,
            "target": {**TEXT, "description": "The place in one word: one endpoint stands at it."},
            "reach": {**TEXT, "description": "Which daemon can carry there: any, or those of one host or process."},
            "mailbox": TEXT,
            "repositories": many(TEXT),
            "queues": many(TEXT),
            "channels": many(TEXT),
            "ack_mode": one_of(*AckMode),
            "delivery_max_attempts": WHOLE,
            "spill": FLAG,
            "rings": FLAG,
            "pid": maybe(WHOLE),
            "live": {**maybe(FLAG), "description": "Not ended, and heard of lately where it can be heard of."},
            "created_by": TEXT,
            "created_at": TIME,
            "seen_at": TIME,
            "ended_at": maybe(TIME),
        }
    ),
    "Parcel": record(
        {
            "delivery_id": TEXT,
            "content": {**TEXT, "description": "What the agent is shown: data from a peer, which grants no authority."},
            "meta": {"type": "object", "additionalProperties": TEXT},
        }
    ),
    "Channel": record({"name": TEXT, "subscribers": many(record({"mailbox": TEXT, "endpoint_id": TEXT}))}),
    "Occupant": record(
        {
            "name": TEXT,
            "carrier": maybe(TEXT),
            "endpoint_id": maybe(TEXT),
            "live": FLAG,
            "repositories": many(TEXT),
            "queues": many(TEXT),
            "channels": many(TEXT),
            "directory": maybe(TEXT),
            "branch": maybe(TEXT),
            "todo_id": maybe(TEXT),
            "todo_title": maybe(TEXT),
            "last_seen": maybe(TIME),
        }
    ),
}
