"""Postage: the numbers that bound a message and an endpoint, and the checks that refuse the rest by field (DESIGN §6)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from postroom.delivery import MAX_TERMINAL_ATTEMPTS, SESSION_ATTEMPTS
from postroom.endpoint import CarrierKind, NewEndpoint
from postroom.errors import Invalid, TooLarge
from postroom.limits import DAY, SECOND, check_key, check_name, check_queue, check_range, check_seconds
from postroom.message import AckMode, NewMessage, Priority
from postroom.text import check_text

MAX_PAYLOAD_BYTES: Final = 64 * 1024
MAX_METADATA_BYTES: Final = 4 * 1024
MAX_TTL: Final = 14 * DAY
MAX_REPOSITORIES: Final = 100
KEEP_MESSAGES: Final = 14 * DAY
KEEP_ADMISSIONS: Final = 400 * DAY
KEEP_ENDPOINTS: Final = 30 * DAY
DEFAULT_KIND: Final = "chat"
LATEST: Final = "latest"
"""As `since` of an inbox: the newest of what is unread, as many as the page may hold."""
RING_KIND: Final = "queue.ring"
"""The kind of a message that is a ring."""

_MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_KIND: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_PARTY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


# Each check raises Invalid (or TooLarge) naming the field and what was expected.


def check_message_id(value: str, field: str = "msg_id") -> str:
    """A message's id: 1 to 128 letters, digits and `._:-`."""
    if not _MESSAGE_ID.fullmatch(value):
        raise Invalid(f"{field} {value[:64]!r} is no message id; expected [A-Za-z0-9._:-]{{1,128}}", field=field)
    return value


def check_kind(value: str, field: str = "kind") -> str:
    """A message's kind (P4)."""
    if not _KIND.fullmatch(value):
        raise Invalid(f"{field} {value[:64]!r} is expected to match {_KIND.pattern}", field=field)
    return value


def check_priority(value: str, field: str = "priority") -> Priority:
    """One of the three priorities (P4)."""
    if value not in Priority.__members__.values():
        raise Invalid(f"{field} {value[:64]!r} is expected to be one of {', '.join(Priority)}", field=field)
    return Priority(value)


def check_ack_mode(value: str, field: str = "ack_mode") -> AckMode:
    """`injected` or `acknowledged`."""
    if value not in AckMode.__members__.values():
        raise Invalid(f"{field} {value[:64]!r} is expected to be one of {', '.join(AckMode)}", field=field)
    return AckMode(value)


def check_party(value: str, field: str) -> str:
    """Who sends or gets a message: a session, an endpoint, or a name."""
    if not _PARTY.fullmatch(value):
        raise Invalid(
            f"{field} {value[:64]!r} is nobody's name; expected a letter or digit, then up to 127 of [A-Za-z0-9._:/@-]",
            field=field,
        )
    return value


def check_line(value: str, field: str, most: int = 256) -> str:
    """One line of 1 to `most` characters, without control characters."""
    if not 1 <= len(value) <= most or _CONTROL.search(value):
        raise Invalid(f"{field} is expected to be one line of 1 to {most} printable characters", field=field)
    return value


def check_payload(value: str, field: str = "payload", most_bytes: int = MAX_PAYLOAD_BYTES) -> str:
    """A message's text: not empty, of at most so many bytes in UTF-8, and what a database can hold."""
    if not value:
        raise Invalid(f"{field} is empty; expected text", field=field)
    check_text(value, field)
    size = len(value.encode())
    if size > most_bytes:
        raise TooLarge(f"{field} has {size} bytes; the most is {most_bytes}", field=field)
    return value


def check_message(new: NewMessage) -> None:
    """Pass what `send` may be asked for; the metadata is checked where it becomes text (P3, P4)."""
    if (new.to is None) == (new.channel is None) and new.target_repo is None:
        raise Invalid("exactly one of to and channel is expected", field="to")
    check_payload(new.payload)
    check_kind(new.kind)
    if new.to is not None:
        check_party(new.to, "to")
    if new.channel is not None:
        check_queue(new.channel, "channel")
    if new.sender is not None:
        check_party(new.sender, "from")
    for id_, field in ((new.msg_id, "msg_id"), (new.reply_to, "reply_to")):
        if id_ is not None:
            check_message_id(id_, field)
    if (new.idempotency_key is None) != (new.client_id is None):
        missing = "client_id" if new.client_id is None else "idempotency_key"
        raise Invalid(f"{missing} is missing: client_id and idempotency_key come together", field=missing)
    if new.client_id is not None:
        check_line(new.client_id, "client_id", 128)
    if new.idempotency_key is not None:
        check_key(new.idempotency_key, "idempotency_key")
    if new.ttl_ms is not None:
        check_seconds(new.ttl_ms, SECOND, MAX_TTL, "ttl_s")
    for line, field in (
        (new.correlation_id, "correlation_id"),
        (new.sender_repo, "sender_repo"),
        (new.target_repo, "target_repo"),
        (new.provenance, "provenance"),
    ):
        if line is not None:
            check_line(line, field)


def most_attempts(carrier: CarrierKind) -> int:
    """The most attempts an endpoint of this carrier may ask for (T31)."""
    return SESSION_ATTEMPTS if carrier in {CarrierKind.OPENCODE, CarrierKind.WEBHOOK} else MAX_TERMINAL_ATTEMPTS


def check_endpoint(new: NewEndpoint) -> None:
    """Pass what `attach` may be asked for; the address is its carrier's to check."""
    if new.name is not None:
        check_name(new.name, "name")
    check_ack_mode(new.ack_mode)
    if new.max_attempts is not None:
        check_range(new.max_attempts, 1, most_attempts(new.carrier), "delivery_max_attempts")
    for queue in _bounded(new.queues, "queues"):
        check_queue(queue, "queues")
    for channel in _bounded(new.channels, "channels"):
        check_queue(channel, "channels")
    for repository in _bounded(new.repositories, "repositories"):
        check_line(repository, "repositories")
    if new.pid is not None:
        check_range(new.pid, 1, 2**31 - 1, "pid")


def _bounded(names: Sequence[str], field: str) -> Sequence[str]:
    if len(names) > MAX_REPOSITORIES:
        raise Invalid(f"{field} names {len(names)}; expected at most {MAX_REPOSITORIES}", field=field)
    return names
