"""The printed table: a figure, its floor, the ratio, and the bound it should keep."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Measure = Callable[[], Awaitable[float]]


@dataclass
class Table:
    """Rows of measurements; `missed` counts those that did not keep their bound."""

    missed: int = 0
    rows: int = 0
    title: str = field(default="")

    def section(self, title: str) -> None:
        """Begin a section."""
        print(f"\n{title}\n{'-' * len(title)}", flush=True)

    def at_least(self, name: str, value: float, bound: float, words: str = "") -> None:
        """A ratio that should be at least its bound."""
        self._row(name, value >= bound, f"{words:<44} ratio {value:5.2f}   (≥ {bound:g})")

    def not_less(self, name: str, value: float, bound: float, unit: str) -> None:
        """A figure that should be at least its bound."""
        self._row(name, value >= bound, f"{value:10,.0f} {unit}   (≥ {bound:,g} {unit})")

    def at_most(self, name: str, value: float, bound: float, unit: str) -> None:
        """A figure that should be at most its bound."""
        self._row(name, value <= bound, f"{value:10.2f} {unit}   (≤ {bound:g} {unit})")

    def plain(self, name: str, words: str) -> None:
        """A figure without a bound."""
        print(f"       {name:<46} {words}", flush=True)

    def _row(self, name: str, good: bool, words: str) -> None:
        self.rows += 1
        self.missed += not good
        print(f"  {'ok ' if good else 'OUT'}  {name:<46} {words}", flush=True)


async def paired(first: Measure, second: Measure, rounds: int = 5) -> tuple[float, float, float]:
    """Two measures in turn: the medians of each, and of the ratio first/second pair by pair."""
    ones: list[float] = []
    twos: list[float] = []
    for turn in range(rounds):
        if turn % 2:
            twos.append(await second())
            ones.append(await first())
        else:
            ones.append(await first())
            twos.append(await second())
    ratios = [one / two for one, two in zip(ones, twos, strict=True)]
    return statistics.median(ones), statistics.median(twos), statistics.median(ratios)
