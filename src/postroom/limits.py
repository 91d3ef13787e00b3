"""Limits: the numbers that bound what may be asked, and the checks that refuse the rest by field (DESIGN §4)."""

from __future__ import annotations

import re
from typing import Final

from postroom.errors import Invalid, TooLarge
from postroom.model import ClaimRequest, NewTodo, OutcomeItem, QueueSettings, TodoChange
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


# Each check raises Invalid (or TooLarge) naming the field and what was expected.


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
    if not value.strip(" \t\r\n"):
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
