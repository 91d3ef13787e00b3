"""The words of what is told while it happens, as frozen values: happenings, and which of them somebody wants to hear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LAGGED: Final = "lagged"
"""What stands for everything that was not told: whoever reads it looks again at what it wants to know."""

WHATS: Final[tuple[str, ...]] = (
    "todo.created",
    "todo.updated",
    "todo.due",
    "todo.claimed",
    "todo.done",
    "todo.failed",
    "todo.released",
    "todo.lapsed",
    "todo.retried",
    "todo.cancelled",
    "event.received",
    "event.duplicate",
    "event.held",
    "event.replayed",
    "event.released",
    "event.discarded",
    "message.admitted",
    "message.rebound",
    "message.acknowledged",
    "message.retried",
    "message.cancelled",
    "delivery.injected",
    "delivery.awaiting_ack",
    "delivery.unknown",
    "delivery.attempt_failed",
    "delivery.failed",
    "delivery.deferred",
    "delivery.lapsed",
    "delivery.overdue",
    "endpoint.attached",
    "endpoint.ended",
    "queue.changed",
    "mailbox.changed",
)
"""Every `what` there is but `lagged`: the noun, a dot, and what became of it.

`queue.changed` and `mailbox.changed` are all that is known of what another daemon on the same database did.
"""
KINDS: Final[tuple[str, ...]] = tuple(dict.fromkeys(what.partition(".")[0] for what in WHATS))
"""The nouns of them."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One transition, told after its commit. `at` is ms UTC; `words` is one line, of data that nobody vouches for.

    id: the todo, event, message (of a delivery too), endpoint or queue. about: further ids it belongs to, as a todo to
    its event and a ring to its todo. who: who did it, where somebody did.
    """

    at: int
    what: str
    id: str
    queue: str | None = None
    mailbox: str | None = None
    who: str | None = None
    words: str = ""
    about: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HappeningFilter:
    """Which happenings are wanted; nothing given is all. Several of one kind widen it, several kinds narrow it.

    whats: a noun (`todo`) or a whole `what` (`todo.done`). id: of the happening, or among what it is about.
    """

    queues: tuple[str, ...] = ()
    mailboxes: tuple[str, ...] = ()
    whats: tuple[str, ...] = ()
    id: str | None = None


def fits(wanted: HappeningFilter, happening: Happening) -> bool:
    """Whether the filter wants it; `lagged` is wanted always."""
    if happening.what == LAGGED:
        return True
    return (
        (not wanted.queues or happening.queue in wanted.queues)
        and (not wanted.mailboxes or happening.mailbox in wanted.mailboxes)
        and (not wanted.whats or happening.what in wanted.whats or happening.what.partition(".")[0] in wanted.whats)
        and (wanted.id is None or wanted.id == happening.id or wanted.id in happening.about)
    )
