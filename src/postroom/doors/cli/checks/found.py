"""What a check finds, and how it is shown: fine, to be seen to, broken, or not looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a check came out. warn: it works, and may not for long or for all; skip: it could not be looked at."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Found:
    """What a check found, in words, and what to do about it; `about` tells apart the findings of one check."""

    state: State
    words: str
    fix: str | None = None
    about: str | None = None


Findings = Found | Sequence[Found]


@dataclass(frozen=True, slots=True)
class Line:
    """One finding as it is shown."""

    check: str
    state: State
    found: str
    fix: str | None

    def as_dict(self) -> dict[str, str | None]:
        """The finding for programs."""
        return {"check": self.check, "state": str(self.state), "found": self.found, "fix": self.fix}


def ok(words: str, *, about: str | None = None) -> Found:
    """It is as it should be."""
    return Found(State.OK, words, None, about)


def warn(words: str, fix: str | None, *, about: str | None = None) -> Found:
    """It works, and something should be seen to."""
    return Found(State.WARN, words, fix, about)


def fail(words: str, fix: str | None, *, about: str | None = None) -> Found:
    """It does not work."""
    return Found(State.FAIL, words, fix, about)


def skip(words: str, fix: str | None = None, *, about: str | None = None) -> Found:
    """It was not looked at."""
    return Found(State.SKIP, words, fix, about)
