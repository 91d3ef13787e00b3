"""What a demo ends with: its numbers, each as it came out and whether it had to, and the story as the ledger tells it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from postroom.demos.panes import Pane, Panes
from postroom.demos.stage import Stage


class Proof:
    """Numbers in the order of the story."""

    def __init__(self) -> None:
        self._checks: list[tuple[str, bool]] = []

    def add(self, words: str, good: bool) -> None:
        """A number as it came out, and whether it is right."""
        self._checks.append((words, good))

    def tell(self, say: Callable[[str], None]) -> bool:
        """Print them on one line, and those that are wrong again; whether all are right."""
        say("")
        say(" → ".join(words for words, _ in self._checks))
        for words, good in self._checks:
            if not good:
                say(f"WRONG: {words}")
        say("")
        return all(good for _, good in self._checks)


def times(number: int) -> str:
    """How often, in words."""
    return {0: "not at all", 1: "once"}.get(number, f"{number} times")


def tell_pane(stage: Stage, panes: Panes, pane: Pane) -> None:
    """Print what a pane shows."""
    stage.say("")
    stage.say(f"{pane.name}'s pane:")
    stage.say("\n".join(f"  │ {row}".rstrip() for row in panes.screen(pane)))
    stage.say("")


def tell_trace(stage: Stage, steps: Sequence[dict[str, Any]]) -> None:
    """Print the steps of a trace."""
    for step in steps:
        stage.say(f"  {step['at'][11:23]}  {step['what']:<16} {step['detail']}".rstrip())
    stage.say("")


def rings_of(steps: Sequence[dict[str, Any]]) -> int:
    """How many rings of a trace were written."""
    return sum(step["what"] == "ring handed off" for step in steps)


def ring_of(stage: Stage, panes: Panes, pane: Pane) -> str:
    """Wait for a ring on the pane: its text."""
    panes.shows(pane, r"queue\.ring from postroom", f"{pane.name}'s pane is rung")
    found = panes.shows(pane, r"\d+ todos? waits? in queue \S+\.", "the ring says what waits")
    return re.sub(r"\s+", " ", found[0])
