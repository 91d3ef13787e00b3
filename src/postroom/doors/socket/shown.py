"""How protocol 0.1 shows messages and endpoints (DESIGN §9); times are RFC 3339 with milliseconds."""

from __future__ import annotations

from itertools import chain
from typing import Any

from postroom.endpoint import Endpoint
from postroom.message import Delivery, Posted
from postroom.wire import show_time


def message_shown(posted: Posted, *, endpoint_id: str | None = None, state: str | None = None) -> dict[str, Any]:
    """A message with its delivery's state; one to nobody is pending, with nothing else to tell (T21, T40).

    Of several deliveries it is the one that was acted on, else the first to that endpoint and in that state.
    reason: why a failed one failed for good. last_failure_reason: that, or why the last attempt failed.
    """
    message, delivery = posted.message, _meant(posted, endpoint_id, state)
    shown: dict[str, Any] = {
        "message_id": message.id,
        "client_id": message.client_id,
        "idempotency_key": message.idempotency_key,
        "correlation_id": message.correlation_id,
        "sender_repo": message.sender_repo,
        "target_repo": message.target_repo,
        "endpoint_id": delivery.endpoint_id if delivery else None,
        "provenance": message.provenance,
        "metadata": message.metadata,
        "body": message.payload,
        "state": str(delivery.state) if delivery else "pending",
        "attempt_count": delivery.attempt_count if delivery else 0,
        "max_attempts": delivery.max_attempts if delivery else None,
        "next_attempt_at": show_time(delivery.next_attempt_at) if delivery else None,
        "lease_expires_at": show_time(delivery.lease_expires_at) if delivery else None,
        "ack_deadline": show_time(delivery.ack_deadline) if delivery else None,
        "reason": delivery.reason if delivery else None,
        "last_failure_reason": (delivery.reason or delivery.last_failure_reason) if delivery else None,
        "last_failure": delivery.last_failure_reason if delivery else None,
        "deferred_reason": delivery.deferred_reason if delivery else None,
        "created_at": show_time(message.created_at),
        "updated_at": show_time(delivery.updated_at if delivery else message.created_at),
        "delivered_at": show_time(delivery.delivered_at) if delivery else None,
        "acknowledged_at": show_time(delivery.acknowledged_at) if delivery else None,
    }
    return shown


def _meant(posted: Posted, endpoint_id: str | None, state: str | None) -> Delivery | None:
    """The delivery that is shown; the first where none is as it was asked for, as when it has gone on since."""
    there = [one for one in posted.deliveries if endpoint_id in {None, one.endpoint_id}] or posted.deliveries
    chosen = (one for one in posted.deliveries if one.id == posted.chosen)
    so = (one for one in there if state in {None, one.state})
    return next(chain(chosen, so, there), None)


def endpoint_shown(endpoint: Endpoint, *, live: bool) -> dict[str, Any]:
    """An endpoint instance: what it is attached to, its policy, and whether it lives (T9)."""
    return {
        "endpoint_id": endpoint.id,
        "name": endpoint.name,
        "carrier": str(endpoint.carrier),
        "address": dict(endpoint.address),
        "repositories": list(endpoint.repositories),
        "queues": list(endpoint.queues),
        "channels": list(endpoint.channels),
        "live": live,
        "delivery_ack_mode": endpoint.ack_mode,
        "delivery_max_attempts": endpoint.max_attempts,
        "created_at": show_time(endpoint.created_at),
        "seen_at": show_time(endpoint.seen_at),
        "ended_at": show_time(endpoint.ended_at),
    }
