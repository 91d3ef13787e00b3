"""What each tool may be given: one strict model a tool, and the JSON Schema that a client is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from postroom import limits
from postroom.errors import Invalid
from postroom.text import clean, cut

MAX_CLAIM = 10
"""The most todos of one claim through this door: more would not fit a tool's answer."""

DEFAULT_WAIT_S = 20.0
MAX_FIELD_BYTES = 100

_MAX_WAIT_S = limits.MAX_WAIT / 1000
_MIN_LEASE_S = limits.MIN_LEASE / 1000
_MAX_LEASE_S = limits.MAX_LEASE / 1000
_MAX_DELAY_S = limits.MAX_DELAY / 1000
_QUEUE_PATTERN = r"^[a-z0-9][a-z0-9._/-]{0,127}$"
_NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"


def _told(description: str, **schema: Any) -> Any:
    """A field's description with bounds that are only told here: the desk checks them, with its own words."""
    return Field(description=description, json_schema_extra=schema or None)


def _cleaned(value: object) -> object:
    return clean(value) if isinstance(value, str) else value


class Arguments(BaseModel):
    """Strict: no unknown argument, no text that stands for a number, no number that is not finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=Arguments)

TodoId = Annotated[str, _told("The todo's id: td_ and a UUID.", pattern="^td_[0-9a-f-]{36}$")]
LeaseId = Annotated[str, _told("The lease_id that your claim of this todo gave you.", minLength=1)]
Queue = Annotated[str, _told("The queue's name.", pattern=_QUEUE_PATTERN)]
Lease = Annotated[
    float,
    Field(description="How long the lease lasts, in seconds; default the queue's.", ge=_MIN_LEASE_S, le=_MAX_LEASE_S),
]
ClaimKey = Annotated[
    str,
    _told("A key of your own for this claim: the same call again gives the same claim.", minLength=1, maxLength=256),
]
Worker = Annotated[str, _told("Your own name under the token: the owner is then name/worker.", pattern=_NAME_PATTERN)]
Cleaned = Annotated[str, BeforeValidator(_cleaned)]


Offset = Annotated[
    int, Field(description="With field: from which character on; an offset of rest, or a next_offset.", ge=0)
]


class ListTodos(Arguments):
    """list_todos."""

    queue: Annotated[str, _told("Only this queue.", pattern=_QUEUE_PATTERN)] | None = None
    state: (
        Annotated[
            Literal["pending", "claimed", "done", "failed", "parked", "dead", "cancelled"],
            Field(description="Only this state; parked is failed with a retry to come, dead is failed for good."),
        ]
        | None
    ) = None
    assignee: Annotated[str, _told("Only todos assigned to this agent.")] | None = None
    cursor: Annotated[str, _told("The next_cursor of the page before.")] | None = None
    limit: Annotated[int, Field(description="The most todos of one page.", ge=1, le=limits.MAX_LIST)] = 20


class GetTodo(Arguments):
    """get_todo."""

    id: TodoId
    field: (
        Annotated[
            Literal["payload", "result", "history", "error", "title", "idempotency_key"],
            Field(description="Only the text of this field, in parts: for what the whole todo shows cut."),
        ]
        | None
    ) = None
    offset: Offset = 0


class ClaimNext(Arguments):
    """claim_next."""

    queues: (
        Annotated[
            list[Annotated[str, _told("A queue's name.", pattern=_QUEUE_PATTERN)]],
            _told("The queues to take from; default all you may use.", minItems=1, maxItems=limits.MAX_QUEUES),
        ]
        | None
    ) = None
    limit: Annotated[int, Field(description="The most todos to claim.", ge=1, le=MAX_CLAIM)] = 1
    wait_s: Annotated[
        float, Field(description="How long to wait for work when there is none, in seconds.", ge=0, le=_MAX_WAIT_S)
    ] = DEFAULT_WAIT_S
    ttl_s: Lease | None = None
    claim_key: ClaimKey | None = None
    worker: Worker | None = None


class Claim(Arguments):
    """claim."""

    id: TodoId
    ttl_s: Lease | None = None
    claim_key: ClaimKey | None = None
    worker: Worker | None = None


class Heartbeat(Arguments):
    """heartbeat."""

    id: TodoId
    lease_id: LeaseId
    ttl_s: (
        Annotated[
            float,
            Field(
                description="How long the lease lasts from now, in seconds; it is never shortened.",
                ge=_MIN_LEASE_S,
                le=_MAX_LEASE_S,
            ),
        ]
        | None
    ) = None


class Complete(Arguments):
    """complete."""

    id: TodoId
    lease_id: LeaseId
    result: Annotated[Any, _told("What came of it: any JSON value, kept with the todo.")] = None


class Fail(Arguments):
    """fail."""

    id: TodoId
    lease_id: LeaseId
    error: Annotated[Cleaned, _told("What went wrong, in words that help the next attempt.")] | None = None
    result: Annotated[Any, _told("What there is to show all the same: any JSON value.")] = None
    retry: Annotated[bool, Field(description="False when trying again cannot help: the todo fails for good.")] = True
    retry_in_s: (
        Annotated[
            float,
            Field(description="When to try again, in seconds; default the queue's backoff.", ge=0, le=_MAX_DELAY_S),
        ]
        | None
    ) = None


class Release(Arguments):
    """release."""

    id: TodoId
    lease_id: LeaseId
    note: Annotated[Cleaned, _told("Why you hand it back, for whoever claims it next.")] | None = None
    delay_s: (
        Annotated[
            float,
            Field(
                description="How long until it may be claimed again, in seconds; default at once.",
                ge=0,
                le=_MAX_DELAY_S,
            ),
        ]
        | None
    ) = None


class CreateFor(Arguments):
    """create_for."""

    queue: Queue
    title: Annotated[str, _told("What is to be done, in one line.", minLength=1, maxLength=limits.MAX_TITLE)]
    kind: Annotated[str, _told("What sort of work it is, such as review or deploy; a word of your own.")] = ""
    payload: Annotated[Any, _told("All that the work needs to know: any JSON value up to 1 MiB.")] = None
    priority: Annotated[
        int, Field(description="Higher is claimed first.", ge=-limits.MAX_PRIORITY, le=limits.MAX_PRIORITY)
    ] = 0
    assignee: Annotated[str, _told("The one agent that may claim it: its token's name, or name/worker.")] | None = None
    idempotency_key: (
        Annotated[
            str,
            _told(
                "While a todo with this key lives in the queue, that one is given instead of a new one.",
                minLength=1,
                maxLength=256,
            ),
        ]
        | None
    ) = None
    max_attempts: (
        Annotated[
            int,
            Field(description="How often it may be tried; default the queue's.", ge=1, le=limits.MAX_MAX_ATTEMPTS),
        ]
        | None
    ) = None
    delay_s: (
        Annotated[float, Field(description="How long until it may be claimed, in seconds.", ge=0, le=_MAX_DELAY_S)]
        | None
    ) = None
    available_at: (
        Annotated[str, _told("When it may be claimed, instead of delay_s: RFC 3339 with a zone.", format="date-time")]
        | None
    ) = None
    request_id: (
        Annotated[
            str,
            _told(
                "A key of your own for this request: the same call again gives the first answer, whatever became of it.",
                minLength=1,
                maxLength=256,
            ),
        ]
        | None
    ) = None


def schema_of(model: type[Arguments]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments, in its plainest form: an argument that may be left out is not nullable."""
    shown = model.model_json_schema()
    properties = {name: _plain(field) for name, field in shown.get("properties", {}).items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required := shown.get("required"):
        schema["required"] = required
    return schema


def _plain(field: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in field.items() if key not in {"title", "anyOf"}}
    for choice in field.get("anyOf", ()):
        if choice.get("type") != "null":
            plain |= choice
    if plain.get("default", ...) in (None, ""):
        del plain["default"]
    return plain


def read(model: type[Model], given: Mapping[str, Any]) -> Model:
    """The arguments as the tool's model. Raises Invalid for the first that is wrong, naming it and what was expected."""
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    field = cut(place, MAX_FIELD_BYTES)
    match first["type"]:
        case "extra_forbidden":
            known = ", ".join(told.alias or name for name, told in model.model_fields.items()) or "none"
            raise Invalid(f"there is no argument {field!r}; expected only: {known}", field=field)
        case "missing":
            raise Invalid(f"{field} is missing; it is required", field=field)
        case _:
            raise Invalid(f"{field}: {first['msg'][:1].lower()}{first['msg'][1:]}", field=field)
