"""Waiting for what may come: as long as was asked, though the daemon goes away and comes back meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from postroom.doors.cli.reply import PAUSE_S
from postroom.doors.cli.table import note
from postroom.errors import Unavailable

SLACK_S: Final = 0.05
"""How much before its time an answer may come without being early."""


def wait_for(
    ask: Callable[[float], dict[str, Any]], found: Callable[[dict[str, Any]], object], within_s: float
) -> dict[str, Any]:
    """The first answer in which something is found, or the one that came when the time was over.

    `ask` is given how many seconds the daemon may take. One that stops answers with nothing before its time, or not at
    all: it is asked again, for the rest. Raises what went wrong last when it is away at the end, and at once when the
    first question reached nobody.
    """
    from postroom.doors.cli.connection import Unreachable

    ends = time.monotonic() + within_s
    asked_s, reached, told = within_s, False, False
    while True:
        began = time.monotonic()
        try:
            answer = ask(asked_s)
            if found(answer) or time.monotonic() - began >= asked_s - SLACK_S:
                return answer
        except (Unreachable, Unavailable) as error:
            lost = isinstance(error, Unreachable) and error.sent
            if not (reached or lost) or time.monotonic() >= ends:
                raise
            if not told:
                note(f"{error.message}; waiting for the daemon")
            told = True
        reached = True
        time.sleep(max(min(PAUSE_S, ends - time.monotonic()), 0.0))
        asked_s = max(round(ends - time.monotonic(), 3), 0.0)
