"""The schemas of answers, as JSON Schema: the shapes that `postroom.wire` gives, under the names of the document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from postroom.doors.http.route import Schema
from postroom.event import EventState
from postroom.model import Outcome, Reason, Role, TodoState
from postroom.services.rules import Match

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
    "suspected_replay": {**FLAG, "description": "The same bytes had come before under another id that nobody signed."},
    "rules_version": maybe(WHOLE),
    "todos": many(named("EventTodo")),
}

_PATTERNS = {"anyOf": [TEXT, many(TEXT)]}

_RULE = {
    "match": record({}, {spec.name: _PATTERNS for spec in fields(Match)}),
    "queue": TEXT,
    "title": TEXT,
    "kind": TEXT,
    "priority": WHOLE,
    "assignee": TEXT,
    "key": TEXT,
    "delay_s": WHOLE,
    "max_attempts": WHOLE,
    "drop": FLAG,
    "continue": FLAG,
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
    "Event": record({**_EVENT, "trace": maybe(many(TEXT)), "headers": ANY, "body": ANY}),
    "Rule": record({"name": TEXT}, _RULE),
    "RuleSet": record(
        {
            "source": TEXT,
            "version": {**WHOLE, "description": "0 while the source was given no rules of its own."},
            "rules": {**many(named("Rule")), "description": "The source's own, in order; they are asked first."},
            "settings": {**many(named("Rule")), "description": "Those of the settings and the preset, which follow."},
            "created_by": maybe(TEXT),
            "created_at": maybe(TIME),
            "broken": {**maybe(TEXT), "description": "Why its own rules cannot be read now: what comes is held."},
        }
    ),
    "TrialTodo": record(
        {
            "rule": TEXT,
            "queue": TEXT,
            "title": TEXT,
            "kind": TEXT,
            "priority": WHOLE,
            "assignee": maybe(TEXT),
            "idempotency_key": maybe(TEXT),
            "max_attempts": maybe(WHOLE),
            "delay_s": maybe(SECONDS),
            "payload": ANY,
        }
    ),
    "Trial": record(
        {
            "kind": TEXT,
            "action": maybe(TEXT),
            "title": TEXT,
            "state": one_of(*EventState),
            "reason": maybe(TEXT),
            "todos": many(named("TrialTodo")),
            "trace": {**many(TEXT), "description": "What each rule that was asked said."},
            "rules_version": maybe(WHOLE),
        }
    ),
    "Source": record(
        {
            "name": TEXT,
            "provider": TEXT,
            "queue": maybe(TEXT),
            "path": {**TEXT, "description": "Where its deliveries go, below one of the addresses."},
            "rules": {**WHOLE, "description": "How many rules its settings and its preset have."},
            "ignore_authors": many(TEXT),
            "insecure": FLAG,
            "local": {**FLAG, "description": "Whether only programs on this machine may deliver."},
            "max_bytes": {**WHOLE, "description": "What a delivery may weigh."},
            "secrets": {**many(TEXT), "description": "Where each secret stands, never what it is."},
            "matched": {
                **maybe(record({"secret": TEXT, "at": TIME})),
                "description": "Which secret proved the latest delivery since the sources were read.",
            },
            "samples": {**many(TEXT), "description": "The kinds that can be fired."},
        }
    ),
    "Token": record(
        {
            "id": TEXT,
            "name": TEXT,
            "role": one_of(*Role),
            "queues": many(TEXT),
            "speaks_as": many(TEXT),
            "created_at": TIME,
            "revoked_at": maybe(TIME),
        }
    ),
    "TraceStep": record({"at": TIME, "what": TEXT, "id": TEXT, "detail": TEXT}),
}
