"""The JSON of `/v1`: how values look on the wire, and how a client reads them back. Times are RFC 3339 with ms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from postroom.errors import Invalid
from postroom.event import Event, EventTodo
from postroom.model import Attempt, Outcome, QueueSettings, QueueStatus, Todo, TodoState, Token, Trace

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def show_time(ms: int | None) -> str | None:
    """A time in ms UTC as RFC 3339 with milliseconds."""
    if ms is None:
        return None
    moment = _EPOCH + timedelta(milliseconds=ms)
    return f"{moment.isoformat(timespec='milliseconds')[:-6]}Z"


def read_time(value: str, field: str) -> int:
    """RFC 3339 text with a zone as ms UTC. Raises Invalid naming the field."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = datetime.min
    if moment.tzinfo is None:
        raise Invalid(f"{field} {value[:40]!r} is no time; expected RFC 3339 as 2026-01-31T12:00:00.000Z", field=field)
    return datetime_ms(moment, field)


def datetime_ms(moment: datetime, field: str) -> int:
    """An aware datetime as ms UTC. Raises Invalid for a naive one."""
    if moment.tzinfo is None:
        raise Invalid(f"{field} has no time zone; expected an aware datetime", field=field)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def seconds_ms(value: float | None, field: str) -> int | None:
    """A duration in seconds as whole ms. Raises Invalid for what is no finite number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e12 < value < 1e12:
        raise Invalid(f"{field} is {value!r}; expected a number of seconds", field=field)
    return round(value * 1000)


def _seconds(ms: int | None) -> float | int | None:
    if ms is None:
        return None
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def attempt_view(entry: Attempt) -> dict[str, Any]:
    """One ended attempt; lease ids are never shown here."""
    return {
        "owner": entry.owner,
        "claimed_at": show_time(entry.claimed_at),
        "ended_at": show_time(entry.ended_at),
        "outcome": str(entry.outcome),
        "note": entry.note,
    }


def todo_view(todo: Todo, *, whole: bool = True, lease: bool = False) -> dict[str, Any]:
    """A todo; `whole` with payload, result and history, `lease` with its lease id, for the holder alone (RULINGS 3)."""
    view: dict[str, Any] = {
        "id": todo.id,
        "queue": todo.queue,
        "title": todo.title,
        "kind": todo.kind,
        "state": str(todo.state),
        "priority": todo.priority,
        "assignee": todo.assignee,
        "owner": todo.owner,
        "lease_expires_at": show_time(todo.lease_expires_at),
        "attempt": todo.attempt,
        "max_attempts": todo.max_attempts,
        "available_at": show_time(todo.available_at),
        "next_retry_at": show_time(todo.next_retry_at),
        "reason": todo.reason,
        "error": todo.error,
        "source": todo.source,
        "event_id": todo.event_id,
        "idempotency_key": todo.idempotency_key,
        "created_by": todo.created_by,
        "created_at": show_time(todo.created_at),
        "updated_at": show_time(todo.updated_at),
        "claimed_at": show_time(todo.claimed_at),
        "completed_at": show_time(todo.completed_at),
        "payload_bytes": todo.payload_bytes,
    }
    if lease:
        view["lease_id"] = todo.lease_id
    if whole:
        view["payload"] = todo.payload
        view["result"] = todo.result
        view["history"] = [attempt_view(entry) for entry in todo.history]
    return view


def _ms(view: Mapping[str, Any], key: str) -> int | None:
    value = view.get(key)
    return None if value is None else read_time(str(value), key)


def _text(view: Mapping[str, Any], key: str) -> str | None:
    value = view.get(key)
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def todo_of(view: Mapping[str, Any]) -> Todo:
    """The todo of a view; its place in the store's own order (`seq`) is not on the wire and is 0."""
    return Todo(
        seq=0,
        id=view["id"],
        queue=view["queue"],
        source=view["source"],
        kind=view["kind"],
        title=view["title"],
        event_id=view["event_id"],
        idempotency_key=view["idempotency_key"],
        assignee=view["assignee"],
        state=TodoState(view["state"]),
        owner=view["owner"],
        lease_id=view.get("lease_id"),
        lease_expires_at=_ms(view, "lease_expires_at"),
        claim_key=None,
        attempt=view["attempt"],
        max_attempts=view["max_attempts"],
        priority=view["priority"],
        available_at=_ms(view, "available_at"),
        next_retry_at=_ms(view, "next_retry_at"),
        reason=view["reason"],
        error=view["error"],
        created_by=view["created_by"],
        created_at=_ms(view, "created_at") or 0,
        updated_at=_ms(view, "updated_at") or 0,
        claimed_at=_ms(view, "claimed_at"),
        completed_at=_ms(view, "completed_at"),
        payload_bytes=view["payload_bytes"],
        payload_json=_text(view, "payload"),
        result_json=_text(view, "result"),
        history=tuple(
            Attempt(
                entry["owner"],
                _ms(entry, "claimed_at"),
                _ms(entry, "ended_at") or 0,
                Outcome(entry["outcome"]),
                entry["note"],
            )
            for entry in view.get("history", ())
        ),
    )


def settings_view(settings: QueueSettings) -> dict[str, Any]:
    """A queue's settings; null is the default."""
    return {
        "name": settings.name,
        "paused": settings.paused,
        "lease_s": _seconds(settings.lease_ms),
        "max_attempts": settings.max_attempts,
        "backoff_s": _seconds(settings.backoff_ms),
        "backoff_cap_s": _seconds(settings.backoff_cap_ms),
        "max_in_flight": settings.max_in_flight,
        "keep_done_s": _seconds(settings.keep_done_ms),
        "keep_dead_s": _seconds(settings.keep_dead_ms),
    }


def queue_view(status: QueueStatus) -> dict[str, Any]:
    """A queue with its settings, its depths by state, and the age of its oldest pending todo in seconds."""
    return {
        **settings_view(status.settings),
        "pending": status.pending,
        "claimed": status.claimed,
        "parked": status.parked,
        "dead": status.dead,
        "oldest_pending_age_s": _seconds(status.oldest_pending_age_ms),
    }


def link_view(link: EventTodo) -> dict[str, Any]:
    """A todo that an event led to."""
    return {"todo_id": link.todo_id, "queue": link.queue, "rule": link.rule, "created": link.created}


def event_view(event: Event, *, whole: bool = True, todos: tuple[EventTodo, ...] | None = None) -> dict[str, Any]:
    """An event; `whole` with its rules' decision, its redacted headers and the cleaned copy of its body."""
    view: dict[str, Any] = {
        "id": event.id,
        "source": event.source,
        "provider": event.provider,
        "kind": event.kind,
        "action": event.action,
        "title": event.title,
        "state": str(event.state),
        "reason": event.reason,
        "verification": event.verification,
        "delivery_key": event.delivery_key,
        "digest": event.digest,
        "deliveries": event.deliveries,
        "received_at": show_time(event.received_at),
        "last_delivery_at": show_time(event.last_delivery_at),
        "body_bytes": event.body_bytes,
        "suspected_replay": event.suspected_replay,
        "rules_version": event.rules_version,
    }
    if whole:
        view["trace"] = event.trace
        view["headers"] = event.headers
        view["body"] = event.body
    if todos is not None:
        view["todos"] = [link_view(link) for link in todos]
    return view


def token_view(token: Token) -> dict[str, Any]:
    """A token's record, without its secret."""
    return {
        "id": token.id,
        "name": token.name,
        "role": str(token.role),
        "queues": list(token.queues),
        "speaks_as": list(token.speaks_as),
        "created_at": show_time(token.created_at),
        "revoked_at": show_time(token.revoked_at),
    }


def trace_view(trace: Trace) -> dict[str, Any]:
    """A trace: its steps in the order of time."""
    return {
        "id": trace.id,
        "steps": [
            {"at": show_time(step.at), "what": step.what, "id": step.id, "detail": step.detail} for step in trace.steps
        ],
    }
