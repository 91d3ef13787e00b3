"""How one webhook does: a long streak of failures disables it, and one try after a growing pause enables it again.

It is this process's own memory: a daemon that is started anew tries again at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from postroom.limits import HOUR, MINUTE
from postroom.wire import show_time

STREAK: Final = 20
STREAK_MS: Final = 1 * HOUR
"""So many failures in a row, over so long, disable it: neither a burst in a short outage nor a night of one message."""
FIRST_PAUSE: Final = 10 * MINUTE
MOST_PAUSE: Final = 24 * HOUR
MOST_WAIT: Final = 1 * HOUR
"""For how long a receiver's own word is heard at the most that it is to be left alone."""


class Health:
    """The failures in a row of one webhook, and until when nothing is sent to it. Times are ms UTC."""

    def __init__(self) -> None:
        self._recover()

    def _recover(self) -> None:
        self.failures = 0
        self.last: str | None = None
        self.disabled_since: int | None = None
        self._failing_since = 0
        self._pause = 0
        self._try_at = 0
        self._wait_until = 0
        self._why: str | None = None

    @property
    def disabled(self) -> bool:
        """Whether nothing is sent but one delivery after each pause."""
        return self.disabled_since is not None

    def closed(self, now: int) -> str | None:
        """Why nothing may be sent now, the same words until that changes; None when something may be."""
        if self.disabled and now < self._try_at:
            return self._why
        if now < self._wait_until:
            return f"asked to be left alone until {show_time(self._wait_until)} (Retry-After)"
        return None

    def succeeded(self) -> bool:
        """Failing or disabled -> well; True when it had been disabled."""
        was = self.disabled
        self._recover()
        return was

    def failed(self, now: int, reason: str, *, gone: bool = False) -> bool:
        """One more failure; True when that has disabled it. `gone`: the receiver said that it will never take anything."""
        self.failures += 1
        self.last = reason
        if self.failures == 1:
            self._failing_since = now
        if self.disabled:
            self._pause = MOST_PAUSE if gone else min(2 * self._pause, MOST_PAUSE)
            self._shut(now)
            return False
        if not gone and (self.failures < STREAK or now - self._failing_since < STREAK_MS):
            return False
        self.disabled_since = now
        self._pause = MOST_PAUSE if gone else FIRST_PAUSE
        self._shut(now)
        return True

    def _shut(self, now: int) -> None:
        self._try_at = now + self._pause
        many = "a failure" if self.failures == 1 else f"{self.failures} failures in a row"
        self._why = (
            f"disabled since {show_time(self.disabled_since)} after {many}; last: {self.last}; "
            f"one delivery is tried at {show_time(self._try_at)}"
        )

    def asked_to_wait(self, now: int, seconds: float) -> None:
        """The receiver said for how long it is to be left alone."""
        self._wait_until = now + round(min(seconds * 1000, MOST_WAIT))

    def status(self, now: int) -> Mapping[str, Any]:
        """What an operator wants to know of it."""
        return {
            "state": "disabled" if self.disabled else "failing" if self.failures else "well",
            "failures": self.failures,
            "last_failure": self.last,
            "disabled_since": show_time(self.disabled_since),
            "waits": self.closed(now),
        }
