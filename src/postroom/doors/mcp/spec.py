"""A tool: one verb, with what it takes, what it answers, and the hints a client goes by."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from postroom.desk import Desk
from postroom.doors.mcp import arguments as args
from postroom.happening import Happening, HappeningFilter
from postroom.model import Todo
from postroom.post import Post


class View(Protocol):
    """What resources show besides the todos and letters: queues, and what happens in them, for one principal."""

    async def queues(self) -> list[dict[str, Any]]:
        """Every queue it may use, as `/v1` shows it, by name."""
        ...

    async def queue(self, name: str) -> dict[str, Any]:
        """One queue, used or not. Raises NotFound for one it may not use."""
        ...

    def hear(self, wanted: HappeningFilter) -> AbstractAsyncContextManager[AsyncIterable[Happening]]:
        """What happens from its entering on; `lagged` stands for what was not told."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: desk, post and view as this caller has them, and whether a todo's lease id is the caller's to see."""

    desk: Desk
    post: Post
    holds: Callable[[Todo], bool]
    worker: str | None = None
    view: View | None = None


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


PART: dict[str, Any] = {
    "title": "Part",
    "type": "object",
    "description": "A part of a long text, where one was asked for.",
    "properties": {
        "id": text("What it belongs to."),
        "field": text("Which of its fields."),
        "offset": {"type": "integer", "description": "How many characters come before it."},
        "text": text("The part: of payload, result and history the JSON text, data alone."),
        "next_offset": {
            "type": ["integer", "null"],
            "description": "Give it as offset for what follows; null at the end.",
        },
        "length": {"type": "integer", "description": "How many characters there are in all."},
    },
    "required": ["id", "field", "offset", "text", "next_offset", "length"],
}


def answers(required: list[str], instead: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """The schema of an answer: these properties, those of `instead`, or an error."""
    either = [required] if instead is None else [required, instead]
    return {
        "type": "object",
        "properties": {**properties, "error": _ERROR},
        "anyOf": [*({"required": names} for names in either), {"required": ["error"]}],
    }
