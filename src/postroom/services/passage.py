"""Passage: what a message went through on its way, delivery by delivery, as the steps of a trace."""

from __future__ import annotations

from typing import assert_never

from postroom.delivery import NO_ACK, spent
from postroom.endpoint import CarrierKind
from postroom.message import Delivery, DeliveryState, Message
from postroom.model import TraceStep


def admitted(message: Message) -> TraceStep:
    """Who sent a message to whom, and since when it is kept; nothing of what it says."""
    direct = message.addressed or message.target_repo or "nobody"
    to = direct if message.channel is None else f"channel {message.channel}"
    answers = f", in reply to {message.reply_to}" if message.reply_to is not None else ""
    about = f", about {message.correlation_id}" if message.correlation_id is not None else ""
    detail = f"{message.kind} from {message.sender} to {to}{answers}{about}"
    return TraceStep(message.created_at, "admitted", message.id, detail)


def passage(delivery: Delivery) -> list[TraceStep]:
    """What became of a delivery so far, and what is to come where its time is known."""
    where = f"to {delivery.mailbox} by {delivery.carrier}"
    steps: list[TraceStep] = []

    def step(at: int | None, what: str, detail: str = "") -> None:
        if at is not None:
            steps.append(TraceStep(at, what, delivery.id, detail))

    step(delivery.delivered_at, "handed off", where + _tries(delivery))
    step(delivery.seen_at, "seen", f"by {delivery.mailbox}")
    step(delivery.answered_at, "answered", f"by {delivery.mailbox}")
    match delivery.state:
        case DeliveryState.PENDING:
            steps += _waiting(delivery)
        case DeliveryState.AWAITING_ACK:
            what = "given up from" if spent(delivery) else "sent again from"
            step(delivery.ack_deadline, what, f"unless {delivery.mailbox} acknowledges it")
        case DeliveryState.INJECTED:
            pass
        case DeliveryState.ACKNOWLEDGED:
            step(delivery.acknowledged_at, "acknowledged", f"by {delivery.mailbox}")
        case DeliveryState.FAILED:
            step(delivery.updated_at, "failed", f"{where}: {delivery.reason}{_tries(delivery)}")
        case _:
            assert_never(delivery.state)
    return steps


def _waiting(delivery: Delivery) -> list[TraceStep]:
    """Why a delivery is not there yet: a write is under way, an attempt failed, or its target holds it up."""
    steps: list[TraceStep] = []
    tried = f"{delivery.attempt_count} of {delivery.max_attempts}, to {delivery.mailbox} by {delivery.carrier}"

    def step(at: int, what: str, detail: str) -> None:
        steps.append(TraceStep(at, what, delivery.id, detail))

    if delivery.lease_id is not None:
        step(delivery.updated_at, "being written", f"attempt {tried}")
    elif delivery.last_failure_reason is not None and delivery.attempt_count:
        what = "unacknowledged" if delivery.last_failure_reason == NO_ACK else "attempt failed"
        if delivery.carrier is CarrierKind.CHANNEL and delivery.handoff_seq is not None and delivery.doubtful:
            what = "pushed"
        step(delivery.updated_at, what, f"attempt {tried}: {delivery.last_failure_reason}")
    if delivery.deferred_reason is not None and delivery.deferred_since is not None:
        # The target may have been held up before this delivery came to it.
        since = max(delivery.deferred_since, delivery.created_at)
        step(since, "deferred", f"to {delivery.mailbox} by {delivery.carrier}: {delivery.deferred_reason}")
    # A ring that was pushed waits for its claim until its life ends, and is not pushed again.
    if delivery.next_attempt_at is not None and delivery.next_attempt_at != delivery.expires_at:
        step(delivery.next_attempt_at, "tried again from", f"to {delivery.mailbox} by {delivery.carrier}")
    return steps


def _tries(delivery: Delivery) -> str:
    """What is known of the attempts of a delivery that has ended, or waits for its acknowledgement."""
    if delivery.state is DeliveryState.PENDING:
        return ""
    tries = f", attempts: {delivery.attempt_count}" if delivery.attempt_count > 1 else ""
    return tries + (f", last failure: {delivery.last_failure_reason}" if delivery.last_failure_reason else "")
