"""The words of the product as frozen values: todos, attempts, queues, principals, and what is asked of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any


class TodoState(StrEnum):
    """Where a todo stands; failed with next_retry_at is parked, failed without is final (S1)."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"


class Reason(StrEnum):
    """Why a todo failed for good (RULINGS 7)."""

    EXHAUSTED = "exhausted"
    REFUSED = "refused"
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    RELEASED = "released"
    LAPSED = "lapsed"
    CANCELLED = "cancelled"


class Verb(StrEnum):
    """The three endings an owner gives an attempt."""

    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"


class Role(StrEnum):
    """What a token may do."""

    ADMIN = "admin"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One ended attempt, or a cancellation, as the next claimer sees it. Times are ms UTC; the lease id is not shown."""

    owner: str | None
    claimed_at: int | None
    ended_at: int
    outcome: Outcome
    note: str | None


@dataclass(frozen=True, slots=True)
class Todo:
    """One work item. Fields are the row's columns in order; times are ms UTC, payload and result JSON text (S13).

    `history` is filled where the whole todo is given (get and claim), newest first.
    """

    seq: int
    id: str
    queue: str
    source: str
    kind: str
    title: str
    event_id: str | None
    idempotency_key: str | None
    assignee: str | None
    state: TodoState
    owner: str | None
    lease_id: str | None
    lease_expires_at: int | None
    claim_key: str | None
    attempt: int
    max_attempts: int
    priority: int
    available_at: int | None
    next_retry_at: int | None
    reason: str | None
    error: str | None
    created_by: str
    created_at: int
    updated_at: int
    claimed_at: int | None
    completed_at: int | None
    payload_bytes: int
    payload_json: str | None
    result_json: str | None
    history: tuple[Attempt, ...] = ()

    @property
    def payload(self) -> Any:
        """The payload's value, parsed anew at each call; None when there is none."""
        return None if self.payload_json is None else json.loads(self.payload_json)

    @property
    def result(self) -> Any:
        """The result's value, parsed anew at each call; None when there is none."""
        return None if self.result_json is None else json.loads(self.result_json)

    @property
    def parked(self) -> bool:
        """Failed, with a time at which it may be tried again."""
        return self.state == TodoState.FAILED and self.next_retry_at is not None

    @property
    def dead(self) -> bool:
        """A dead letter: failed for good, and not because somebody cancelled it."""
        return self.state == TodoState.FAILED and self.next_retry_at is None and self.reason != Reason.CANCELLED

    @property
    def live(self) -> bool:
        """Pending, claimed or parked: it holds its idempotency key (RULINGS 8)."""
        return self.state in {TodoState.PENDING, TodoState.CLAIMED} or self.parked


@dataclass(frozen=True, slots=True)
class NewTodo:
    """What `create` is asked for; `payload` is any JSON value, times are ms, absent settings are the queue's."""

    queue: str
    title: str
    kind: str = ""
    payload: Any = None
    priority: int = 0
    assignee: str | None = None
    idempotency_key: str | None = None
    max_attempts: int | None = None
    delay_ms: int | None = None
    available_at: int | None = None
    source: str = "api"
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """The answer to `create`: the todo, and whether this call made it (S2)."""

    todo: Todo
    created: bool
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What `claim_next` is asked for: queues (None: all the principal may use), lease in ms, 1..100 todos."""

    queues: tuple[str, ...] | None = None
    ttl_ms: int | None = None
    limit: int = 1
    claim_key: str | None = None
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class OutcomeItem:
    """One ending of one attempt, for the batch verb: which todo, which verb, under which lease."""

    id: str
    verb: Verb
    lease_id: str | None
    result: Any = None
    error: str | None = None
    retry: bool = True
    retry_in_ms: int | None = None
    note: str | None = None
    delay_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer to complete, fail and release: the todo, and whether this repeats what the lease id already did."""

    todo: Todo
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class TodoChange:
    """What `update` may change of a pending todo; UNSET leaves a field as it is."""

    title: str | None = None
    payload: Any = None
    payload_given: bool = False
    priority: int | None = None
    assignee: str | None = None
    assignee_given: bool = False
    available_at: int | None = None
    available_at_given: bool = False


@dataclass(frozen=True, slots=True)
class TodoFilter:
    """Which todos `list` shows, newest first. `state` may also be `parked`, `dead` or `cancelled`."""

    queue: str | None = None
    state: str | None = None
    assignee: str | None = None
    cursor: str | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class TodoPage:
    """One page of todos without payloads, and the cursor of the next one."""

    todos: tuple[Todo, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue's settings; None is the default. Durations in ms."""

    name: str
    paused: bool = False
    lease_ms: int | None = None
    max_attempts: int | None = None
    backoff_ms: int | None = None
    backoff_cap_ms: int | None = None
    max_in_flight: int | None = None
    keep_done_ms: int | None = None
    keep_dead_ms: int | None = None


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue with its depths by state, and how long its oldest pending todo has waited (ms)."""

    settings: QueueSettings
    pending: int
    claimed: int
    parked: int
    dead: int
    oldest_pending_age_ms: int | None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking: a name, a role, and the queues it may use (names or globs; `*` is all).

    speaks_as: the names it may send as and whose inboxes it may read, besides its own (RULINGS 36).
    """

    name: str
    role: Role = Role.AGENT
    queues: tuple[str, ...] = ("*",)
    token_id: str | None = None
    speaks_as: tuple[str, ...] = ()

    @property
    def admin(self) -> bool:
        """Whether the role is admin."""
        return self.role == Role.ADMIN

    def may_use(self, queue: str) -> bool:
        """Whether one of its queue globs covers this queue."""
        return self.uses_all or any(glob == queue or fnmatchcase(queue, glob) for glob in self.queues)

    @property
    def uses_all(self) -> bool:
        """Whether there is no queue that it may not use."""
        return "*" in self.queues

    def may_speak_as(self, name: str) -> bool:
        """Whether it may send under this name and read its inbox: its own, those its token lists, any for an admin."""
        return (
            self.admin or name == self.name or any(glob == name or fnmatchcase(name, glob) for glob in self.speaks_as)
        )

    def owner(self, worker: str | None) -> str:
        """The owner a claim carries: the name, or name/worker."""
        return self.name if worker is None else f"{self.name}/{worker}"

    def called(self, worker: str | None) -> str | None:
        """The name that a worker goes by besides the owner it claims as: its own, where the principal may speak as that."""
        return worker if worker is not None and worker != self.name and self.may_speak_as(worker) else None

    def made(self, todo: Todo) -> bool:
        """Whether this principal made the todo, or a worker of its name."""
        return todo.created_by.partition("/")[0] == self.name

    def holds(self, todo: Todo) -> bool:
        """Whether the todo is claimed, now or at its end, under this principal's name."""
        return todo.owner is not None and todo.owner.split("/", 1)[0] == self.name


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token's record; the secret itself is shown once, at its making, and never stored."""

    id: str
    name: str
    role: Role
    queues: tuple[str, ...]
    created_at: int
    revoked_at: int | None = None
    speaks_as: tuple[str, ...] = ()

    @property
    def principal(self) -> Principal:
        """Who comes in with it."""
        return Principal(self.name, self.role, self.queues, self.id, self.speaks_as)


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a trace: when (ms UTC), what happened, to which id, and the words that go with it."""

    at: int
    what: str
    id: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """The one story of an event, a todo or a message, in the order of time."""

    id: str
    steps: tuple[TraceStep, ...] = field(default=())
