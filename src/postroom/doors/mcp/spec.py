"""A tool: one verb, with what it takes, what it answers, and the hints a client goes by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from postroom.desk import Desk
from postroom.doors.mcp import arguments as args
from postroom.model import Todo
from postroom.post import Post


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: desk and post as this caller has them, and whether a todo's lease id is the caller's to see."""

    desk: Desk
    post: Post
    holds: Callable[[Todo], bool]
    worker: str | None = None


Handler = Callable[[Caller, Any], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Spec:
    """One tool: its words, its arguments, the schema of its answer, its hints, and the verb it calls."""

    name: str
    title: str
    description: str
    takes: type[args.Arguments]
    answers: Mapping[str, Any]
    handle: Handler
    read_only: bool = False
    idempotent: bool = False
    changes: str = "the queue"

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        return args.schema_of(self.takes)

    async def call(self, caller: Caller, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check the arguments, call the verb, and give the structured answer. Raises errors of the family."""
        return await self.handle(caller, args.read(self.takes, given))


def text(description: str, **more: Any) -> dict[str, Any]:
    """The schema of a text."""
    return {"type": "string", "description": description, **more}


TIME: Mapping[str, Any] = {"type": ["string", "null"], "format": "date-time"}
_ERROR: dict[str, Any] = {
    "type": "object",
    "description": "Only when the call was refused (isError): why, and what to do.",
    "properties": {
        "code": text("Stable: invalid, not_found, conflict, too_large, forbidden, unauthenticated, rate_limited, ..."),
        "message": text("What was wrong and what was expected."),
        "field": text("The argument it is about."),
        "hint": text("What to do about it."),
    },
    "required": ["code", "message", "hint"],
}


def answers(required: list[str], **properties: Any) -> dict[str, Any]:
    """The schema of an answer: these properties, or an error instead."""
    return {
        "type": "object",
        "properties": {**properties, "error": _ERROR},
        "anyOf": [{"required": required}, {"required": ["error"]}],
    }
