"""A delivery's life as pure arithmetic: every transition with its guard.

The services ask these functions; the tests hold both engines against them.
Sources: seeds 002 and 003, DESIGN §6, RULINGS 22-33 (P6, P14, T22-T37).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from postroom.endpoint import CarrierKind, Endpoint
from postroom.errors import Conflict
from postroom.limits import HOUR, MINUTE, SECOND
from postroom.message import AckMode, Cause, Delivery, DeliveryState, Written

LAPSED = "the courier's lease ended before its write was settled"
NO_ACK = "no acknowledgement came in time"


@dataclass(frozen=True, slots=True)
class Policy:
    """How long things take, in ms. A lease is longer than any carrier's own deadline for a write."""

    lease: int = 30 * SECOND
    ack: int = 30 * SECOND
    unknown: int = 60 * SECOND
    turn_lost: int = 5 * SECOND
    turn_most: int = 120 * MINUTE
    live: int = 45 * SECOND


SESSION_DELAYS = (1 * SECOND, 2 * SECOND, 5 * SECOND, 15 * SECOND, 60 * SECOND)
TERMINAL_DELAYS = (5 * SECOND, 15 * SECOND, 60 * SECOND, 300 * SECOND)
WEBHOOK_DELAYS = (5 * SECOND, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR)
"""Nobody sits before a receiver that is down: it may take a night until somebody starts it again."""
SESSION_ATTEMPTS = 10
TERMINAL_ATTEMPTS = 5
WEBHOOK_ATTEMPTS = 8
MAX_TERMINAL_ATTEMPTS = 9


def delays_of(carrier: CarrierKind) -> tuple[int, ...]:
    """What the first, second and further failed attempts wait, in ms; the last repeats (P14, T30)."""
    match carrier:
        case CarrierKind.OPENCODE:
            return SESSION_DELAYS
        case CarrierKind.WEBHOOK:
            return WEBHOOK_DELAYS
        case CarrierKind.TMUX | CarrierKind.CHANNEL | CarrierKind.INBOX:
            return TERMINAL_DELAYS
        case _:
            assert_never(carrier)


def attempts_of(carrier: CarrierKind) -> int:
    """How many attempts a delivery has where its endpoint says nothing."""
    match carrier:
        case CarrierKind.OPENCODE:
            return SESSION_ATTEMPTS
        case CarrierKind.WEBHOOK:
            return WEBHOOK_ATTEMPTS
        case CarrierKind.TMUX | CarrierKind.CHANNEL | CarrierKind.INBOX:
            return TERMINAL_ATTEMPTS
        case _:
            assert_never(carrier)


def delay(carrier: CarrierKind, attempt: int) -> int:
    """How long the attempt's failure waits, in ms; attempts count from 1."""
    delays = delays_of(carrier)
    return delays[min(max(attempt, 1), len(delays)) - 1]


def spent(delivery: Delivery) -> bool:
    """Whether a failure now is the last one."""
    return delivery.attempt_count >= delivery.max_attempts


def leased(delivery: Delivery) -> bool:
    """Whether a courier has it, or had it and was not settled yet."""
    return delivery.lease_id is not None


def ready(delivery: Delivery, now: int) -> bool:
    """Pending, with nobody, its time come and its life not over."""
    return (
        delivery.state == DeliveryState.PENDING
        and not leased(delivery)
        and (delivery.next_attempt_at is None or delivery.next_attempt_at <= now)
        and (delivery.expires_at is None or delivery.expires_at > now)
    )


# The transitions: each takes the delivery as it was and gives it as it is, or raises Conflict. `place` is the next
# number of its mailbox; it is used up only where the delivery becomes visible there.


def lease(delivery: Delivery, now: int, lease_id: str, policy: Policy) -> Delivery:
    """Ready -> leased by one courier, attempt + 1 (T27)."""
    if not ready(delivery, now):
        raise Conflict(f"{delivery.id} is {delivery.state} and not ready")
    return replace(
        delivery,
        lease_id=lease_id,
        lease_expires_at=now + policy.lease,
        attempt_count=delivery.attempt_count + 1,
        next_attempt_at=None,
        updated_at=now,
    )


def settle(
    delivery: Delivery,
    now: int,
    lease_id: str,
    outcome: Written,
    reason: str | None,
    place: int,
    policy: Policy,
    *,
    once: bool = False,
) -> Delivery:
    """Leased -> what its write came to; an acknowledged one only loses its lease (RULINGS 26, 30; T28, T32, T33).

    Busy gives it back with the attempt counted; at the cap refused is `exhausted` and unknown `unconfirmed`. A channel's
    unknown write is visible in its mailbox, so that it can be read there; one that was read before was made. `once`: on a
    channel it is not pushed again, and waits for its reader until its life ends (RULINGS 34).
    """
    if delivery.lease_id != lease_id:
        raise Conflict(f"{delivery.id} is no longer held under {lease_id}")
    free = replace(delivery, lease_id=None, lease_expires_at=None, updated_at=now)
    if delivery.state == DeliveryState.ACKNOWLEDGED:
        return free
    pushed = delivery.carrier == CarrierKind.CHANNEL
    match outcome:
        case Written.WRITTEN:
            return _written(free, now, place, policy)
        case Written.REFUSED:
            if spent(delivery):
                return _failed(free, now, Cause.EXHAUSTED, reason)
            wait = delay(delivery.carrier, delivery.attempt_count)
            return replace(free, next_attempt_at=now + wait, last_failure_reason=reason)
        case Written.PERMANENT:
            return _failed(free, now, Cause.NO_SUCH_TARGET, reason)
        case Written.UNKNOWN if pushed and delivery.seen_at is not None:
            return _written(free, now, place, policy)
        case Written.UNKNOWN if pushed:
            visible = replace(free, handoff_seq=delivery.handoff_seq or place)
            if once and delivery.expires_at is not None:
                return replace(visible, next_attempt_at=delivery.expires_at, doubtful=True, last_failure_reason=reason)
            return _doubted(visible, now, reason, policy)
        case Written.UNKNOWN:
            return _doubted(free, now, reason, policy)
        case Written.BUSY:
            return free
        case _:
            assert_never(outcome)


def lapse(delivery: Delivery, now: int, policy: Policy) -> Delivery:
    """Leased and its lease over -> a failed attempt whose write may have been made (T29, T48)."""
    if delivery.lease_expires_at is None or delivery.lease_expires_at > now:
        raise Conflict(f"{delivery.id} has no lease that is over")
    free = replace(delivery, lease_id=None, lease_expires_at=None, updated_at=now)
    if delivery.state == DeliveryState.ACKNOWLEDGED:
        return free
    return _doubted(free, now, LAPSED, policy)


def _written(free: Delivery, now: int, place: int, policy: Policy) -> Delivery:
    waits = free.ack_mode == AckMode.ACKNOWLEDGED
    return replace(
        free,
        state=DeliveryState.AWAITING_ACK if waits else DeliveryState.INJECTED,
        reason=None,
        next_attempt_at=None,
        ack_deadline=now + policy.ack if waits else None,
        doubtful=False,
        delivered_at=free.delivered_at or now,
        handoff_seq=free.handoff_seq or place,
    )


def read(delivery: Delivery, now: int, policy: Policy) -> Delivery:
    """Pushed on a channel, in doubt or failed as unconfirmed, and its mailbox read past it -> a write that was made.

    What a courier holds, and what failed otherwise, is noted as seen and stays as it is, with the time it came to that.
    """
    if delivery.carrier != CarrierKind.CHANNEL or delivery.handoff_seq is None:
        return delivery
    match delivery.state:
        case DeliveryState.PENDING | DeliveryState.FAILED:
            if leased(delivery) or delivery.reason not in {None, Cause.UNCONFIRMED}:
                return replace(see(delivery, now), updated_at=delivery.updated_at)
            return _written(replace(see(delivery, now), updated_at=now), now, delivery.handoff_seq, policy)
        case DeliveryState.AWAITING_ACK | DeliveryState.INJECTED | DeliveryState.ACKNOWLEDGED:
            return delivery
        case _:
            assert_never(delivery.state)


def _doubted(free: Delivery, now: int, reason: str | None, policy: Policy) -> Delivery:
    if spent(free):
        return replace(_failed(free, now, Cause.UNCONFIRMED, reason), doubtful=True)
    wait = max(delay(free.carrier, free.attempt_count), policy.unknown)
    return replace(free, next_attempt_at=now + wait, doubtful=True, last_failure_reason=reason)


def _failed(free: Delivery, now: int, cause: Cause, reason: str | None) -> Delivery:
    return replace(
        free,
        state=DeliveryState.FAILED,
        reason=cause,
        last_failure_reason=reason if reason is not None else free.last_failure_reason,
        next_attempt_at=None,
        ack_deadline=None,
        updated_at=now,
    )


def overdue(delivery: Delivery, now: int) -> Delivery:
    """Waiting for its acknowledgement and the deadline past -> pending in a new round, or `ack_timeout` (T33, T35)."""
    if delivery.state != DeliveryState.AWAITING_ACK or (delivery.ack_deadline or now + 1) > now:
        raise Conflict(f"{delivery.id} is {delivery.state} and not overdue")
    if spent(delivery):
        return _failed(delivery, now, Cause.ACK_TIMEOUT, NO_ACK)
    return replace(
        delivery,
        state=DeliveryState.PENDING,
        round=delivery.round + 1,
        ack_deadline=None,
        doubtful=False,
        last_failure_reason=NO_ACK,
        updated_at=now,
    )


def ack(delivery: Delivery, now: int, place: int) -> Delivery:
    """Any state -> acknowledged; a courier's lease is left to it (RULINGS 30; T25, T36)."""
    if delivery.state == DeliveryState.ACKNOWLEDGED:
        return delivery
    return replace(
        delivery,
        state=DeliveryState.ACKNOWLEDGED,
        acknowledged_at=now,
        next_attempt_at=None,
        ack_deadline=None,
        reason=None,
        handoff_seq=delivery.handoff_seq or place,
        updated_at=now,
    )


def retry(delivery: Delivery, now: int) -> Delivery:
    """Failed, unless it expired -> pending with its attempts anew (T37).

    One that was written, and whose last write is not in doubt, is to be written again: in a new round.
    """
    if delivery.state != DeliveryState.FAILED or delivery.reason == Cause.EXPIRED:
        raise Conflict(f"{delivery.id} is {delivery.reason or delivery.state}; only a failed one is retried")
    again = delivery.delivered_at is not None and not delivery.doubtful
    return replace(
        delivery,
        state=DeliveryState.PENDING,
        attempt_count=0,
        round=delivery.round + 1 if again else delivery.round,
        reason=None,
        next_attempt_at=None,
        updated_at=now,
    )


def cancel(delivery: Delivery, now: int, why: str | None = None) -> Delivery:
    """Pending or waiting for its acknowledgement, and with no courier -> failed, `cancelled` (RULINGS 30)."""
    if leased(delivery):
        raise Conflict(f"{delivery.id} is being written", state="being_written")
    if not delivery.live:
        raise Conflict(f"{delivery.id} is {delivery.state}; only one under way is cancelled")
    return _failed(delivery, now, Cause.CANCELLED, why)


def expire(delivery: Delivery, now: int) -> Delivery:
    """Pending, with no courier, and its life over -> failed, `expired`."""
    if delivery.state != DeliveryState.PENDING or leased(delivery) or (delivery.expires_at or now + 1) > now:
        raise Conflict(f"{delivery.id} is {delivery.state} and not expired")
    return _failed(delivery, now, Cause.EXPIRED, None)


def rebind(delivery: Delivery, now: int, endpoint: Endpoint, place: int) -> Delivery:
    """Not yet injected or acknowledged, with no courier -> the same for another endpoint (RULINGS 29; T46, T47).

    One that waited for an acknowledgement is pending again in a new round: who could give it has gone. An inbox has at
    once what had not failed.
    """
    if leased(delivery):
        raise Conflict(f"{delivery.id} is being written", state="being_written")
    if delivery.state in {DeliveryState.INJECTED, DeliveryState.ACKNOWLEDGED}:
        raise Conflict(f"{delivery.id} is {delivery.state} and stays where it is")
    moved = replace(
        delivery,
        state=DeliveryState.FAILED if delivery.state == DeliveryState.FAILED else DeliveryState.PENDING,
        round=delivery.round + 1 if delivery.state == DeliveryState.AWAITING_ACK else delivery.round,
        ack_deadline=None,
        endpoint_id=endpoint.id,
        target_key=endpoint.target_key,
        carrier=endpoint.carrier,
        mailbox=endpoint.mailbox,
        reach=endpoint.reach,
        handoff_seq=delivery.handoff_seq if endpoint.mailbox == delivery.mailbox else None,
        doubtful=False,
        next_attempt_at=None,
        updated_at=now,
    )
    if endpoint.carrier != CarrierKind.INBOX or moved.state == DeliveryState.FAILED:
        return moved
    waits = delivery.ack_mode == AckMode.ACKNOWLEDGED
    return replace(
        moved,
        state=DeliveryState.AWAITING_ACK if waits else DeliveryState.INJECTED,
        delivered_at=delivery.delivered_at or now,
        handoff_seq=moved.handoff_seq or place,
    )


def see(delivery: Delivery, now: int) -> Delivery:
    """The target's own record shows it, for the first time (RULINGS 24)."""
    return delivery if delivery.seen_at is not None else replace(delivery, seen_at=now, updated_at=now)


def end_turn(delivery: Delivery, now: int, *, answered: bool, reason: str | None = None) -> Delivery:
    """The turn that its write began is over: answered, and therefore seen, or noted as lost (RULINGS 23, 24)."""
    return replace(
        delivery,
        answered_at=(delivery.answered_at or now) if answered else delivery.answered_at,
        seen_at=(delivery.seen_at or now) if answered else delivery.seen_at,
        last_failure_reason=reason if reason is not None else delivery.last_failure_reason,
        updated_at=now,
    )


def is_live(endpoint: Endpoint, now: int, policy: Policy) -> bool:
    """Not ended, and seen lately where a carrier looks at it or it gives signs itself (RULINGS 35); `now` is ms UTC."""
    if endpoint.ended_at is not None:
        return False
    watched = endpoint.carrier in {CarrierKind.TMUX, CarrierKind.CHANNEL}
    return not watched or endpoint.seen_at > now - policy.live
