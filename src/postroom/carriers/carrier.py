"""The carrier contract: how one kind of target is looked at and written to (DESIGN §6, RULINGS 23-27).

A carrier is one file with one class. It knows its target's own words and nothing of leases: the courier asks it whether
a target is free, hands it a parcel under a lease, and settles what it answers. Every call has a deadline of its own,
shorter than a lease, and raises nothing but CancelledError: what goes wrong is an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from postroom.endpoint import CarrierKind, Endpoint
from postroom.message import Parcel, Written


class Standing(StrEnum):
    """How a target stands before a write: only a positive `busy` defers without an attempt (RULINGS 27, 29).

    gone: an endpoint whose place is no more (a closed pane, a shell in it); fault: it could not be looked at, or the
    look failed; absent: there is no such target, and there will be none.
    """

    FREE = "free"
    BUSY = "busy"
    GONE = "gone"
    FAULT = "fault"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a target found, and why, in a few plain words for `deferred_reason` or `last_failure_reason`."""

    standing: Standing
    reason: str = ""


FREE = Look(Standing.FREE)


@dataclass(frozen=True, slots=True)
class Writing:
    """What a write came to. turn: the target now works on an answer, and the next one waits for its end.

    pushed: of an unknown one, that it was made as far as anybody can tell, and nothing is wrong with the target.
    """

    outcome: Written
    reason: str | None = None
    turn: bool = False
    pushed: bool = False


class Turn(StrEnum):
    """What became of a turn that a write began (RULINGS 23).

    working: the target is busy with it, or may be; answered: its answer is complete, or ended in an error;
    lost: the target is not busy and nothing answers; unknown: it could not be looked at.
    """

    WORKING = "working"
    ANSWERED = "answered"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Progress:
    """A turn as the target's own record shows it: whether the message stands there, and whether it was answered."""

    turn: Turn
    seen: bool = False
    reason: str | None = None


class Carrier(Protocol):
    """One kind of target."""

    @property
    def kind(self) -> CarrierKind:
        """Which deliveries it carries."""
        ...

    @property
    def reaches(self) -> tuple[str, ...]:
        """The reaches of the deliveries it can carry from this process (RULINGS 31)."""
        ...

    def check_address(self, address: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, str]:
        """An endpoint's address as it is stored, its canonical target key, and its reach. Raises Invalid by field."""
        ...

    async def look(self, parcel: Parcel) -> Look:
        """Whether the target takes a message now; nothing is changed there."""
        ...

    async def write(self, parcel: Parcel) -> Writing:
        """Put the message on the target, once; under a lease, after a look that found it free."""
        ...

    async def seen(self, parcel: Parcel) -> bool | None:
        """Whether this round of the message stands on the target; None when that cannot be told."""
        ...

    async def progress(self, parcel: Parcel) -> Progress:
        """What became of the turn that this parcel's write began; only asked where a Writing had `turn`."""
        ...

    async def live(self, endpoint: Endpoint) -> bool | None:
        """Whether an endpoint's place is there and still the same; None when that cannot be told from here."""
        ...

    def on_change(self, call: Callable[[str], None]) -> None:
        """Call this with a target's key when it may have become free, or its turn may have ended; a hint."""
        ...

    def status(self) -> Mapping[str, Any]:
        """What an operator wants to know of it: what it is connected to, and what is wrong."""
        ...

    async def run(self) -> None:
        """Keep what it needs going (event streams, control clients) until cancelled; never raises for a peer's fault."""
        ...

    async def close(self) -> None:
        """Let go of everything it holds."""
        ...


@runtime_checkable
class Arrives(Protocol):
    """A carrier whose targets come to it by themselves, and leave it."""

    def on_arrival(self, call: Callable[[str], None]) -> None:
        """Call this with the key of a target that has come within reach; something may have waited for it."""
        ...
