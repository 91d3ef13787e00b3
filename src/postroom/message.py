"""The words of the post as frozen values: messages, their deliveries, and what is asked of them (DESIGN §6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from postroom.endpoint import CarrierKind, Endpoint


class DeliveryState(StrEnum):
    """Where a delivery stands (T22-T26)."""

    PENDING = "pending"
    AWAITING_ACK = "awaiting_ack"
    INJECTED = "injected"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"


class Cause(StrEnum):
    """Why a delivery failed for good (RULINGS 7)."""

    ACK_TIMEOUT = "ack_timeout"
    EXHAUSTED = "exhausted"
    UNCONFIRMED = "unconfirmed"
    NO_SUCH_TARGET = "no_such_target"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class AckMode(StrEnum):
    """Whether the write ends a delivery, or the recipient's acknowledgement."""

    INJECTED = "injected"
    ACKNOWLEDGED = "acknowledged"


class Priority(StrEnum):
    """How urgent a message is; `rank` is its place in a target's order, lowest first."""

    URGENT = "urgent"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 for urgent, 1 for normal, 2 for low."""
        return _RANKS[self]


_RANKS = {Priority.URGENT: 0, Priority.NORMAL: 1, Priority.LOW: 2}
PRIORITIES: tuple[Priority, ...] = tuple(Priority)
"""By rank."""


class Written(StrEnum):
    """How a write ended: on the target, refused for now or for ever, nobody knows, or given back since it was busy."""

    WRITTEN = "written"
    REFUSED = "refused"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Message:
    """Content, admitted once. Fields are the row's columns in order; times are ms UTC, metadata JSON text.

    sender: who it says it is from: a session, a token's name, or what a socket's client named. addressed: the `to` that
    the sender gave, None for a channel's. created_by: the principal that admitted it.
    """

    seq: int
    id: str
    client_id: str | None
    idempotency_key: str | None
    digest: str
    sender: str
    addressed: str | None
    channel: str | None
    kind: str
    priority: Priority
    reply_to: str | None
    payload: str
    ack_mode: AckMode
    metadata_json: str | None
    correlation_id: str | None
    sender_repo: str | None
    target_repo: str | None
    provenance: str | None
    created_by: str
    created_at: int
    expires_at: int | None

    @property
    def metadata(self) -> Any:
        """The metadata's value, parsed anew at each call; None when there is none."""
        return None if self.metadata_json is None else json.loads(self.metadata_json)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way to one target. Fields are the row's columns in order; times are ms UTC.

    mailbox: whose inbox shows it: a session id, a name, or an unnamed endpoint's id. reach: which daemon can carry it
    (RULINGS 31). doubtful: an earlier write of this round may have been made, so it is looked for first (RULINGS 25).
    handoff_seq: its place in its mailbox, taken once, when it first becomes visible there (RULINGS 32).
    delivered_at: the first write that was made. seen_at and answered_at: when the target's own record showed the
    message, and its answer. deferred_reason and deferred_since are the target's: why nothing is tried now.
    """

    seq: int
    id: str
    message_id: str
    target_key: str
    carrier: CarrierKind
    endpoint_id: str | None
    mailbox: str
    reach: str
    state: DeliveryState
    rank: int
    ack_mode: AckMode
    attempt_count: int
    max_attempts: int
    round: int
    lease_id: str | None
    lease_expires_at: int | None
    doubtful: bool
    next_attempt_at: int | None
    ack_deadline: int | None
    reason: str | None
    last_failure_reason: str | None
    handoff_seq: int | None
    delivered_at: int | None
    seen_at: int | None
    answered_at: int | None
    acknowledged_at: int | None
    expires_at: int | None
    created_at: int
    updated_at: int
    deferred_reason: str | None = None
    deferred_since: int | None = None

    @property
    def live(self) -> bool:
        """Not at an end: pending, or waiting for its acknowledgement."""
        return self.state in {DeliveryState.PENDING, DeliveryState.AWAITING_ACK}


@dataclass(frozen=True, slots=True)
class NewMessage:
    """What `send` is asked for; exactly one of `to` and `channel`. Durations in ms, metadata any JSON object.

    to: a session (`ses_…`), an endpoint's id, or a name. sender: None is the principal's own name. endpoint_id: the one
    endpoint that a `target_repo` is meant for. ack_mode and max_attempts: None is the endpoint's policy.
    """

    payload: str
    to: str | None = None
    channel: str | None = None
    sender: str | None = None
    kind: str = "chat"
    priority: Priority = Priority.NORMAL
    reply_to: str | None = None
    msg_id: str | None = None
    client_id: str | None = None
    idempotency_key: str | None = None
    ack_mode: AckMode | None = None
    ttl_ms: int | None = None
    metadata: Mapping[str, Any] | None = None
    correlation_id: str | None = None
    sender_repo: str | None = None
    target_repo: str | None = None
    endpoint_id: str | None = None
    provenance: str | None = None


@dataclass(frozen=True, slots=True)
class Posted:
    """A message with its deliveries, as every door shows it. chosen: the id of the one that a verb chose to act on."""

    message: Message
    deliveries: tuple[Delivery, ...]
    chosen: str | None = field(default=None, compare=False)

    @property
    def delivery(self) -> Delivery | None:
        """The one delivery of a direct message; None for a channel's."""
        return self.deliveries[0] if self.message.channel is None and self.deliveries else None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The answer to `send`: the message, and whether it had been admitted before.

    posted: None for a repeat of a message whose row is no longer kept. rebound: the repeat moved it to another endpoint.
    """

    id: str
    posted: Posted | None
    deduplicated: bool = False
    rebound: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back to a message: the message that was asked about, and the first that answers it, None while none does."""

    asked: Posted
    answer: Posted | None

    @property
    def in_vain(self) -> bool:
        """Whether nobody can answer: none of its deliveries arrived, may have arrived, or is on its way."""
        return self.answer is None and not any(
            one.live or one.doubtful or one.delivered_at is not None or one.state is DeliveryState.ACKNOWLEDGED
            for one in self.asked.deliveries
        )


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages a list or history shows, newest first.

    state: that of some delivery, with `endpoint_id` of the one that went there; or `cancelled`.
    """

    sender: str | None = None
    to: str | None = None
    channel: str | None = None
    state: str | None = None
    kind: str | None = None
    client_id: str | None = None
    target_repo: str | None = None
    endpoint_id: str | None = None
    reply_to: str | None = None
    cursor: str | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """One page of messages with their deliveries, and the cursor of the next one."""

    messages: tuple[Posted, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Letter:
    """One message as its recipient's inbox shows it: in hand-off order, read or not yet."""

    message: Message
    delivery: Delivery
    read: bool


@dataclass(frozen=True, slots=True)
class InboxPage:
    """One page of an inbox in hand-off order; `next_since` goes on from here, and outlives the messages it came from."""

    mailbox: str
    letters: tuple[Letter, ...]
    next_since: str
    unread: int


@dataclass(frozen=True, slots=True)
class Target:
    """What one target of deliveries is doing: its turn, its pause, and why nothing is tried now. Times are ms UTC."""

    key: str
    carrier: CarrierKind
    turn_delivery: str | None = None
    turn_since: int | None = None
    not_before: int | None = None
    busy_reason: str | None = None
    busy_since: int | None = None


@dataclass(frozen=True, slots=True)
class Parcel:
    """What a carrier carries: a delivery with its message, its target, and the endpoint where it has one."""

    delivery: Delivery
    message: Message
    target: Target
    endpoint: Endpoint | None
