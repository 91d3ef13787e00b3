"""The tally: what became of each source's deliveries since this daemon began, so that a pattern in refusals shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from postroom.sources.scheme import Rejected
from postroom.wire import show_time

CLOCK: Final = "clock"
"""Its signed time lies too far from now."""
PROOF: Final = "proof"
"""No secret makes the proof that it carries, or it carries none that can be read."""
AFAR: Final = "afar"
"""It came from outside, to a source for this machine alone."""
TOO_LARGE: Final = "too_large"
WORDS: Final = 200


def cause(rejected: Rejected) -> str:
    """The cause that a refusal is counted under."""
    return CLOCK if rejected.untimely else PROOF


@dataclass(slots=True)
class Count:
    """One source's deliveries: how many were taken in, known already, and refused by cause. Times are ms UTC."""

    accepted: int = 0
    duplicates: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    last_at: int | None = None
    last_refused_at: int | None = None
    last_refusal: str | None = None
    last_cause: str | None = None


class Tally:
    """The counts of every source that something came to; memory alone, and as many as there are sources."""

    def __init__(self) -> None:
        self._counts: dict[str, Count] = {}

    def taken(self, source: str, duplicate: bool, now_ms: int) -> None:
        """A delivery was stored, or known already."""
        count = self._of(source)
        count.last_at = now_ms
        if duplicate:
            count.duplicates += 1
        else:
            count.accepted += 1

    def refused(self, source: str, why: str, words: str, now_ms: int) -> None:
        """A delivery was refused; `why` is one of the causes, `words` tell this one's."""
        count = self._of(source)
        count.refused[why] = count.refused.get(why, 0) + 1
        count.last_refused_at, count.last_refusal, count.last_cause = now_ms, words[:WORDS], why

    def _of(self, source: str) -> Count:
        return self._counts.setdefault(source, Count())

    def shown(self) -> dict[str, Any]:
        """Each source's counts, as the status has them."""
        return {
            name: {
                "accepted": count.accepted,
                "duplicates": count.duplicates,
                "refused": dict(sorted(count.refused.items())),
                "last_at": show_time(count.last_at),
                "last_refused_at": show_time(count.last_refused_at),
                "last_refusal": count.last_refusal,
                "last_cause": count.last_cause,
            }
            for name, count in sorted(self._counts.items())
        }
