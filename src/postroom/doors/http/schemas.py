"""The schemas of answers, as JSON Schema: the shapes that `postroom.wire` gives, under the names of the document."""

from __future__ import annotations

from collections.abc import Mapping

from postroom.doors.http.route import Schema
from postroom.model import EventState, Outcome, Reason, Role, TodoState

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
ANY: Schema = {}
TIME: Schema = {"type": "string", "format": "date-time"}
SECONDS: Schema = {"type": "number", "minimum": 0}


def one_of(*words: str) -> Schema:
    """One of a few words."""
    return {"type": "string", "enum": list(words)}


def maybe(schema: Schema) -> Schema:
    """The schema's value, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": schema}


def record(fields: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**fields, **(optional or {})},
        "required": list(fields),
        "additionalProperties": False,
    }


def named(name: str) -> Schema:
    """A schema of the document, by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


_ATTEMPT = {
    "owner": maybe(TEXT),
    "claimed_at": maybe(TIME),
    "ended_at": TIME,
    "outcome": one_of(*Outcome),
    "note": maybe(TEXT),
}

_TODO = {
    "id": TEXT,
    "queue": TEXT,
    "title": TEXT,
    "kind": TEXT,
    "state": one_of(*TodoState),
    "priority": WHOLE,
    "assignee": maybe(TEXT),
    "owner": maybe(TEXT),
    "lease_expires_at": maybe(TIME),
    "attempt": WHOLE,
    "max_attempts": WHOLE,
    "available_at": maybe(TIME),
    "next_retry_at": maybe(TIME),
    "reason": maybe(one_of(*Reason)),
    "error": maybe(TEXT),
    "source": TEXT,
    "event_id": maybe(TEXT),
    "idempotency_key": maybe(TEXT),
    "created_by": TEXT,
    "created_at": TIME,
    "updated_at": TIME,
    "claimed_at": maybe(TIME),
    "completed_at": maybe(TIME),
    "payload_bytes": WHOLE,
}

_SETTINGS = {
    "name": TEXT,
    "paused": FLAG,
    "lease_s": maybe(SECONDS),
    "max_attempts": maybe(WHOLE),
    "backoff_s": maybe(SECONDS),
    "backoff_cap_s": maybe(SECONDS),
    "max_in_flight": maybe(WHOLE),
    "keep_done_s": maybe(SECONDS),
    "keep_dead_s": maybe(SECONDS),
}

_DEPTHS = {
    "pending": WHOLE,
    "claimed": WHOLE,
    "parked": WHOLE,
    "dead": WHOLE,
    "oldest_pending_age_s": maybe(SECONDS),
}

_EVENT = {
    "id": TEXT,
    "source": TEXT,
    "provider": TEXT,
    "kind": TEXT,
    "action": maybe(TEXT),
    "title": TEXT,
    "state": one_of(*EventState),
    "reason": maybe(TEXT),
    "verification": TEXT,
    "delivery_key": TEXT,
    "digest": TEXT,
    "deliveries": WHOLE,
    "received_at": TIME,
    "last_delivery_at": TIME,
    "body_bytes": WHOLE,
    "todos": many(named("EventTodo")),
}

COMPONENTS: Mapping[str, Schema] = {
    "Error": {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "code": {"type": "string", "description": "What programs go by."},
                    "message": {"type": "string", "description": "What was wrong, and what was expected."},
                    "field": {"type": "string", "description": "Where, as todos[3].priority."},
                },
                "required": ["code", "message"],
            }
        },
        "required": ["error"],
    },
    "Attempt": record(_ATTEMPT),
    "ListedTodo": record(_TODO),
    "Todo": record(
        {**_TODO, "payload": ANY, "result": ANY},
        {
            "history": {**many(named("Attempt")), "description": "The newest 50, where a todo is got or claimed."},
            "lease_id": maybe({"type": "string", "description": "Shown to its holder alone."}),
        },
    ),
    "QueueSettings": record(_SETTINGS),
    "Queue": record({**_SETTINGS, **_DEPTHS}),
    "EventTodo": record({"todo_id": TEXT, "queue": TEXT, "rule": TEXT, "created": FLAG}),
    "ListedEvent": record(_EVENT),
    "Event": record({**_EVENT, "headers": ANY, "body": ANY}),
    "Token": record(
        {
            "id": TEXT,
            "name": TEXT,
            "role": one_of(*Role),
            "queues": many(TEXT),
            "created_at": TIME,
            "revoked_at": maybe(TIME),
        }
    ),
    "TraceStep": record({"at": TIME, "what": TEXT, "id": TEXT, "detail": TEXT}),
}
