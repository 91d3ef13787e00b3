"""A todo's life as pure arithmetic: every transition with its guard, and the numbers that bound it.

The services take their limits from here; the tests hold both engines against these functions.
Source: seed 000, DESIGN §4, RULINGS 1, 6, 7 (S1-S11, S22-S26).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from postroom.errors import Conflict, Invalid, TooLarge
from postroom.model import (
    Attempt,
    ClaimRequest,
    NewTodo,
    Outcome,
    OutcomeItem,
    QueueSettings,
    Reason,
    Todo,
    TodoChange,
    TodoState,
)
from postroom.text import check_text

SECOND: Final = 1000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

DEFAULT_LEASE: Final = 300 * SECOND
MIN_LEASE: Final = 1 * SECOND
MAX_LEASE: Final = 24 * HOUR
DEFAULT_BACKOFF: Final = 30 * SECOND
DEFAULT_BACKOFF_CAP: Final = 15 * MINUTE
MAX_BACKOFF: Final = 7 * DAY
MAX_JITTER: Final = 0.1
DEFAULT_MAX_ATTEMPTS: Final = 5
MAX_MAX_ATTEMPTS: Final = 100
MAX_PRIORITY: Final = 100
MAX_DELAY: Final = 365 * DAY
MAX_WAIT: Final = 50 * SECOND
MAX_CLAIM: Final = 100
MAX_CREATE: Final = 1000
MAX_OUTCOMES: Final = 200
MAX_QUEUES: Final = 100
MAX_IN_FLIGHT: Final = 100_000
DEFAULT_LIST: Final = 50
MAX_LIST: Final = 200
MAX_HISTORY: Final = 50
MAX_JSON_BYTES: Final = 1024 * 1024
MAX_TITLE: Final = 500
MAX_NOTE_BYTES: Final = 2048
KEEP_DONE: Final = 14 * DAY
KEEP_DEAD: Final = 90 * DAY
KEEP_EVENTS: Final = 30 * DAY
KEEP_REQUESTS: Final = 24 * HOUR
MAX_TIME: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: what RFC 3339 can show."""

_QUEUE: Final = re.compile(r"[a-z0-9][a-z0-9._/-]{0,127}")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}")
_KIND: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


# What may be asked: each check raises Invalid (or TooLarge) naming the field and what was expected.


def check_queue(value: str, field: str = "queue") -> str:
    """A queue name: lower-case letters, digits and `._/-`, 1 to 128 characters."""
    if not _QUEUE.fullmatch(value):
        raise Invalid(f"{field} {value[:64]!r} is no queue name; expected [a-z0-9][a-z0-9._/-]{{0,127}}", field=field)
    return value


def check_name(value: str, field: str) -> str:
    """A token's or worker's name: letters, digits and `._-`, 1 to 64 characters, no slash (RULINGS 17)."""
    if not _NAME.fullmatch(value):
        raise Invalid(f"{field} {value[:64]!r} is no name; expected [A-Za-z0-9._-]{{1,64}}", field=field)
    return value


def check_owner(value: str, field: str = "assignee") -> str:
    """A token's name, or name/worker."""
    for part in value.split("/", 1):
        check_name(part, field)
    return value


def check_key(value: str, field: str) -> str:
    """An idempotency, claim or request key: 1 to 256 characters without control characters."""
    if not _KEY.fullmatch(value):
        raise Invalid(f"{field} is expected to be 1 to 256 printable characters", field=field)
    return value


def check_range(value: int, low: int, high: int, field: str, unit: str = "") -> int:
    """A number within its bounds, both included."""
    if isinstance(value, bool) or not low <= value <= high:
        raise Invalid(f"{field} is {value}; expected {low} to {high}{unit}", field=field)
    return value


def check_seconds(value_ms: int, low_ms: int, high_ms: int, field: str) -> int:
    """A duration in ms within its bounds, told in seconds, as the doors take them."""
    if not low_ms <= value_ms <= high_ms:
        raise Invalid(
            f"{field} is {value_ms / 1000:g} s; expected {low_ms / 1000:g} to {high_ms / 1000:g} s", field=field
        )
    return value_ms


def check_lease(ttl_ms: int | None, field: str = "ttl_s") -> int | None:
    """A lease of 1 s to 24 h, or None for the queue's."""
    return None if ttl_ms is None else check_seconds(ttl_ms, MIN_LEASE, MAX_LEASE, field)


def check_title(value: str) -> str:
    """A title of 1 to 500 characters that a database can hold."""
    if not value.strip():
        raise Invalid("title is empty; expected 1 to 500 characters", field="title")
    if len(value) > MAX_TITLE:
        raise TooLarge(f"title has {len(value)} characters; the most is {MAX_TITLE}", field="title")
    return check_text(value, "title")


def check_new(new: NewTodo) -> None:
    """Pass what `create` may be asked for; the payload is checked where it becomes text."""
    check_queue(new.queue)
    check_title(new.title)
    if new.kind and not _KIND.fullmatch(new.kind):
        raise Invalid(f"kind {new.kind[:64]!r} is expected to match {_KIND.pattern}", field="kind")
    check_range(new.priority, -MAX_PRIORITY, MAX_PRIORITY, "priority")
    if new.assignee is not None:
        check_owner(new.assignee)
    if new.idempotency_key is not None:
        check_key(new.idempotency_key, "idempotency_key")
    if new.max_attempts is not None:
        check_range(new.max_attempts, 1, MAX_MAX_ATTEMPTS, "max_attempts")
    if new.delay_ms is not None:
        if new.available_at is not None:
            raise Invalid("give delay_s or available_at, not both", field="available_at")
        check_seconds(new.delay_ms, 0, MAX_DELAY, "delay_s")
    if new.available_at is not None:
        check_range(new.available_at, 0, MAX_TIME, "available_at", " ms")


def check_claim(request: ClaimRequest) -> None:
    """Pass what `claim_next` may be asked for."""
    check_lease(request.ttl_ms)
    check_range(request.limit, 1, MAX_CLAIM, "limit")
    if request.claim_key is not None:
        check_key(request.claim_key, "claim_key")
    if request.worker is not None:
        check_name(request.worker, "worker")
    if request.queues is not None:
        if not 1 <= len(request.queues) <= MAX_QUEUES:
            raise Invalid(f"queues names {len(request.queues)}; expected 1 to {MAX_QUEUES}", field="queues")
        for queue in request.queues:
            check_queue(queue, "queues")


def check_outcome(item: OutcomeItem) -> None:
    """Pass the numbers of an ending; its words are cleaned and cut, never refused."""
    if item.retry_in_ms is not None:
        check_seconds(item.retry_in_ms, 0, MAX_DELAY, "retry_in_s")
    if item.delay_ms is not None:
        check_seconds(item.delay_ms, 0, MAX_DELAY, "delay_s")


def check_change(change: TodoChange) -> None:
    """Pass what `update` may be asked for."""
    if change.title is not None:
        check_title(change.title)
    if change.priority is not None:
        check_range(change.priority, -MAX_PRIORITY, MAX_PRIORITY, "priority")
    if change.assignee is not None:
        check_owner(change.assignee)
    if change.available_at is not None:
        check_range(change.available_at, 0, MAX_TIME, "available_at", " ms")


def check_settings(settings: QueueSettings) -> None:
    """Pass a queue's settings."""
    check_queue(settings.name, "name")
    check_lease(settings.lease_ms, "lease_s")
    if settings.max_attempts is not None:
        check_range(settings.max_attempts, 1, MAX_MAX_ATTEMPTS, "max_attempts")
    if settings.backoff_ms is not None:
        check_seconds(settings.backoff_ms, 0, MAX_BACKOFF, "backoff_s")
    if settings.backoff_cap_ms is not None:
        check_seconds(settings.backoff_cap_ms, 0, MAX_BACKOFF, "backoff_cap_s")
    if settings.max_in_flight is not None:
        check_range(settings.max_in_flight, 1, MAX_IN_FLIGHT, "max_in_flight")
    for value, field in ((settings.keep_done_ms, "keep_done_s"), (settings.keep_dead_ms, "keep_dead_s")):
        if value is not None:
            check_seconds(value, MINUTE, 3650 * DAY, field)


# The arithmetic.


def backoff(
    attempt: int, base_ms: int = DEFAULT_BACKOFF, cap_ms: int = DEFAULT_BACKOFF_CAP, jitter: float = 0.0
) -> int:
    """How long a failed attempt waits, in ms: base doubling with each attempt up to the cap, and jitter (0..0.1) of it."""
    delay = min(cap_ms, base_ms << min(max(attempt, 1) - 1, 20))
    return delay + int(delay * jitter)


def spent(todo: Todo) -> bool:
    """Whether no attempt is left."""
    return todo.attempt >= todo.max_attempts


def claimable(todo: Todo, now: int, owner: str) -> bool:
    """Pending and due, parked and due, or claimed and lapsed; with attempts left, and not assigned to another (S5, S6)."""
    if spent(todo) or not assigned_to(todo, owner):
        return False
    match todo.state:
        case TodoState.PENDING:
            return todo.available_at is None or todo.available_at <= now
        case TodoState.FAILED:
            return todo.next_retry_at is not None and todo.next_retry_at <= now
        case TodoState.CLAIMED:
            return todo.lease_expires_at is not None and todo.lease_expires_at <= now
        case TodoState.DONE:
            return False


def assigned_to(todo: Todo, owner: str) -> bool:
    """Nobody's, or this owner's by its full name or its token's (RULINGS 17)."""
    return todo.assignee is None or todo.assignee in {owner, owner.split("/", 1)[0]}


def held_by(todo: Todo, owner: str, lease_id: str | None) -> bool:
    """Claimed, by this owner or a worker of its name, and under this lease when one is given."""
    return (
        todo.state == TodoState.CLAIMED
        and todo.owner is not None
        and (todo.owner == owner or todo.owner.startswith(owner + "/"))
        and (lease_id is None or lease_id == todo.lease_id)
    )


def _ended(todo: Todo, now: int, outcome: Outcome, note: str | None) -> tuple[Attempt, ...]:
    entry = Attempt(owner=todo.owner, claimed_at=todo.claimed_at, ended_at=now, outcome=outcome, note=note)
    return (entry, *todo.history)[:MAX_HISTORY]


def _guard(todo: Todo, owner: str, lease_id: str | None) -> None:
    if not held_by(todo, owner, lease_id):
        raise Conflict(f"{todo.id} is {todo.state}, not held by {owner}")


# The transitions: each takes the todo as it was and gives it as it is, or raises Conflict.


def claim(todo: Todo, now: int, owner: str, ttl_ms: int, lease_id: str, claim_key: str | None = None) -> Todo:
    """Claimable -> claimed by owner for ttl_ms, attempt + 1; a lapsed holder's attempt is entered (S4, S6, S10)."""
    if not claimable(todo, now, owner):
        raise Conflict(f"{todo.id} is {todo.state} and not claimable")
    history = todo.history if todo.state != TodoState.CLAIMED else _ended(todo, now, Outcome.LAPSED, None)
    return replace(
        todo,
        state=TodoState.CLAIMED,
        owner=owner,
        lease_id=lease_id,
        lease_expires_at=now + ttl_ms,
        claim_key=claim_key,
        attempt=todo.attempt + 1,
        available_at=None,
        next_retry_at=None,
        claimed_at=now,
        updated_at=now,
        history=history,
    )


def heartbeat(todo: Todo, now: int, owner: str, ttl_ms: int, lease_id: str | None) -> Todo:
    """Held -> the same, its lease never shortened (S7, S25)."""
    _guard(todo, owner, lease_id)
    return replace(todo, lease_expires_at=max(todo.lease_expires_at or 0, now + ttl_ms), updated_at=now)


def complete(todo: Todo, now: int, owner: str, lease_id: str | None, result_json: str | None) -> Todo:
    """Held -> done, with the result; the owner and lease stay as the receipt (S8)."""
    _guard(todo, owner, lease_id)
    return replace(
        todo,
        state=TodoState.DONE,
        result_json=result_json,
        lease_expires_at=None,
        claim_key=None,
        error=None,
        completed_at=now,
        updated_at=now,
    )


def fail(
    todo: Todo,
    now: int,
    owner: str,
    lease_id: str | None,
    error: str | None,
    delay_ms: int,
    *,
    retry: bool = True,
    result_json: str | None = None,
) -> Todo:
    """Held -> parked for delay_ms while attempts are left and a retry is wanted, else a dead letter (S9)."""
    _guard(todo, owner, lease_id)
    final = not retry or spent(todo)
    reason = None if not final else (Reason.EXHAUSTED if retry else Reason.REFUSED)
    return replace(
        todo,
        state=TodoState.FAILED,
        owner=None,
        lease_id=None,
        lease_expires_at=None,
        claim_key=None,
        claimed_at=None,
        next_retry_at=None if final else now + delay_ms,
        reason=reason,
        error=error,
        result_json=result_json,
        completed_at=now if final else None,
        updated_at=now,
        history=_ended(todo, now, Outcome.FAILED, error),
    )


def release(
    todo: Todo, now: int, owner: str, lease_id: str | None, note: str | None, delay_ms: int | None = None
) -> Todo:
    """Held -> pending at once (or after delay_ms), the attempt given back, for it was no failure (S24)."""
    _guard(todo, owner, lease_id)
    return replace(
        todo,
        state=TodoState.PENDING,
        owner=None,
        lease_id=None,
        lease_expires_at=None,
        claim_key=None,
        claimed_at=None,
        attempt=max(todo.attempt - 1, 0),
        available_at=None if not delay_ms else now + delay_ms,
        updated_at=now,
        history=_ended(todo, now, Outcome.RELEASED, note),
    )


def reap(todo: Todo, now: int) -> Todo:
    """Claimed and lapsed -> pending, or a dead letter when no attempt is left (S11)."""
    if todo.state != TodoState.CLAIMED or (todo.lease_expires_at or 0) > now:
        raise Conflict(f"{todo.id} is {todo.state} and not lapsed")
    final = spent(todo)
    return replace(
        todo,
        state=TodoState.FAILED if final else TodoState.PENDING,
        owner=None,
        lease_id=None,
        lease_expires_at=None,
        claim_key=None,
        claimed_at=None,
        reason=Reason.EXHAUSTED if final else None,
        error=f"the lease of {todo.owner} lapsed" if final else todo.error,
        completed_at=now if final else None,
        updated_at=now,
        history=_ended(todo, now, Outcome.LAPSED, None),
    )


def due(todo: Todo, now: int) -> Todo:
    """Parked and its time come -> pending (S10)."""
    if not todo.parked or (todo.next_retry_at or 0) > now:
        raise Conflict(f"{todo.id} is {todo.state} and not due")
    return replace(todo, state=TodoState.PENDING, next_retry_at=None, updated_at=now)


def retry(todo: Todo, now: int) -> Todo:
    """Failed, parked or for good -> pending with its attempts anew; the history stays (S26)."""
    if todo.state != TodoState.FAILED:
        raise Conflict(f"{todo.id} is {todo.state}; only a failed todo is retried")
    return replace(
        todo,
        state=TodoState.PENDING,
        attempt=0,
        next_retry_at=None,
        reason=None,
        error=None,
        result_json=None,
        completed_at=None,
        updated_at=now,
    )


def cancel(todo: Todo, now: int, note: str | None) -> Todo:
    """Live -> failed for good, with the reason `cancelled`; a holder's attempt is entered."""
    if not todo.live:
        raise Conflict(f"{todo.id} is {todo.state}; only a live todo is cancelled")
    return replace(
        todo,
        state=TodoState.FAILED,
        owner=None,
        lease_id=None,
        lease_expires_at=None,
        claim_key=None,
        claimed_at=None,
        available_at=None,
        next_retry_at=None,
        reason=Reason.CANCELLED,
        error=note,
        completed_at=now,
        updated_at=now,
        history=_ended(todo, now, Outcome.CANCELLED, note),
    )


def update(todo: Todo, now: int, change: TodoChange, payload_json: str | None) -> Todo:
    """Pending -> pending with other title, payload, priority, assignee or time."""
    if todo.state != TodoState.PENDING:
        raise Conflict(f"{todo.id} is {todo.state}; only a pending todo is updated")
    return replace(
        todo,
        title=todo.title if change.title is None else change.title,
        payload_json=payload_json if change.payload_given else todo.payload_json,
        payload_bytes=len((payload_json or "").encode()) if change.payload_given else todo.payload_bytes,
        priority=todo.priority if change.priority is None else change.priority,
        assignee=change.assignee if change.assignee_given else todo.assignee,
        available_at=change.available_at if change.available_at_given else todo.available_at,
        updated_at=now,
    )
