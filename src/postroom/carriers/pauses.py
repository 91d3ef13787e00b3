"""Pauses: how long a lane rests before it looks at its target again, in seconds; the last of several repeats."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.message import Delivery

BUSY = (1.0, 2.0, 5.0)
TURN = (0.5, 1.0, 2.0, 5.0)
"""When a turn is looked at again where no event of its carrier comes first."""
FAILED = 0.5
"""A failure ends a target's run for so long (P13)."""
GONE = 5.0
STRANDED = (5.0, 60.0)
"""How long others are waited for before a target is called out of reach, and then until it is looked at again."""
AWAY = (0.2, 0.5, 1.0, 2.0, 5.0)
MIN_FAULT_MS = 500
MAX_FAULT_MS = 5000


def step(pauses: Sequence[float], number: int) -> float:
    """The pause of the number-th time, counted from 1."""
    return pauses[min(max(number, 1), len(pauses)) - 1]


def fault_ms(settled: Delivery | None) -> int:
    """How long (ms) a target's fault pauses it: as long as its head waits, within bounds (RULINGS 27)."""
    if settled is None or settled.next_attempt_at is None:
        return MIN_FAULT_MS
    return min(max(settled.next_attempt_at - settled.updated_at, MIN_FAULT_MS), MAX_FAULT_MS)
