"""A todo's life as pure arithmetic: every transition with its guard.

The services ask these functions; the tests hold both engines against them.
Source: seed 000, DESIGN §4, RULINGS 1, 6, 7 (S1-S11, S22-S26).
"""

from __future__ import annotations

from dataclasses import replace

from postroom.errors import Conflict
from postroom.limits import DEFAULT_BACKOFF, DEFAULT_BACKOFF_CAP, MAX_HISTORY
from postroom.model import Attempt, Outcome, Reason, Todo, TodoChange, TodoState


def backoff(
    attempt: int, base_ms: int = DEFAULT_BACKOFF, cap_ms: int = DEFAULT_BACKOFF_CAP, jitter: float = 0.0
) -> int:
    """How long a failed attempt waits, in ms: base doubling with each attempt up to the cap, and jitter (0..0.1) of it."""
    delay = min(cap_ms, base_ms << min(max(attempt, 1) - 1, 20))
    return delay + int(delay * jitter)


def spent(todo: Todo) -> bool:
    """Whether no attempt is left."""
    return todo.attempt >= todo.max_attempts


def claimable(todo: Todo, now: int, owner: str, called: str | None = None) -> bool:
    """Pending and due, parked and due, or claimed and lapsed; with attempts left, and not assigned to another (S5, S6)."""
    if spent(todo) or not assigned_to(todo, owner, called):
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


def assigned_to(todo: Todo, owner: str, called: str | None = None) -> bool:
    """Nobody's, or this owner's: by its full name, its token's (RULINGS 17), or what else it is `called`."""
    return todo.assignee is None or todo.assignee in {owner, owner.split("/", 1)[0], called}


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


def claim(
    todo: Todo,
    now: int,
    owner: str,
    ttl_ms: int,
    lease_id: str,
    claim_key: str | None = None,
    called: str | None = None,
) -> Todo:
    """Claimable -> claimed by owner for ttl_ms, attempt + 1; a lapsed holder's attempt is entered (S4, S6, S10)."""
    if not claimable(todo, now, owner, called):
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
