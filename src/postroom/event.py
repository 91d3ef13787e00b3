"""The words of intake as frozen values: what a source made of a delivery, and the event that it became."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from postroom.facts import NO_FACTS, Facts

AS_IT_CAME: Final = ""
"""Stands for a cleaned body that is no other than the one that came: such a body is kept once."""


class EventState(StrEnum):
    """What became of an event: routed to todos, ignored or dropped by its rules, unparsable, or held by a broken rule."""

    ROUTED = "routed"
    IGNORED = "ignored"
    UNPARSED = "unparsed"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Event:
    """One verified delivery. Fields are the row's columns in order; `deliveries` counts how often it arrived.

    suspected_replay: the same bytes had come before under another id, and nothing signed tells the two apart.
    rules_version: which version of the source's own rules decided; None where it had none.
    """

    seq: int
    id: str
    source: str
    provider: str
    delivery_key: str
    kind: str
    action: str | None
    title: str
    state: EventState
    reason: str | None
    verification: str
    digest: str
    deliveries: int
    received_at: int
    last_delivery_at: int
    body_bytes: int
    headers_json: str | None
    body_json: str | None
    suspected_replay: bool = False
    trace_json: str | None = None
    rules_version: int | None = None

    @property
    def headers(self) -> Any:
        """The redacted headers as pairs, parsed."""
        return None if self.headers_json is None else json.loads(self.headers_json)

    @property
    def trace(self) -> Any:
        """How its rules decided, line by line; None where that is not shown."""
        return None if self.trace_json is None else json.loads(self.trace_json)

    @property
    def body(self) -> Any:
        """The cleaned copy of the body, parsed; None when it was unparsable."""
        return None if self.body_json is None else json.loads(self.body_json)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are wanted; times are ms UTC, `since` included and `until` not."""

    source: str | None = None
    kind: str | None = None
    action: str | None = None
    state: str | None = None
    since: int | None = None
    until: int | None = None
    suspected_replay: bool | None = None


@dataclass(frozen=True, slots=True)
class EventTodo:
    """A todo that a rule made of an event, or found already live under its key (`created` false)."""

    event_id: str
    todo_id: str
    queue: str
    rule: str
    created: bool


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a source made of one verified delivery, before it is stored: the door's gift to intake.

    body_json: the body's value, cleaned, as JSON text; AS_IT_CAME where the body is that text itself, None where it is
    unparsed. answer: the text that the sender wants to read in a 200, where it wants one. signed_key: the key is part of
    what was signed, so that nobody but the sender can give the same body another one.
    """

    source: str
    provider: str
    delivery_key: str
    kind: str
    action: str | None
    title: str
    verification: str
    body: bytes
    headers: Sequence[tuple[str, str]]
    body_json: str | None
    digest: str
    unparsed: str | None = None
    ignored: str | None = None
    facts: Facts = NO_FACTS
    answer: str | None = None
    signed_key: bool = False

    @property
    def data(self) -> Any:
        """The body's value, parsed anew; None where it is unparsed."""
        if self.body_json is None:
            return None
        return json.loads(self.body if self.body_json == AS_IT_CAME else self.body_json)


@dataclass(frozen=True, slots=True)
class Received:
    """The answer to a delivery: the event, whether it was known already, and the todos of its rules."""

    event: Event
    duplicate: bool
    todos: tuple[EventTodo, ...]
