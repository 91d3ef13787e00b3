"""A check, and the run of many at once: each within its deadline, none able to stop another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from postroom.doors.cli.checks.found import Findings, Found, Line, fail, skip
from postroom.doors.cli.checks.scene import Scene, Skip
from postroom.errors import Forbidden, PostroomError, Unauthenticated
from postroom.text import printable

T = TypeVar("T")

CHECK_S: Final = 3.0
"""How long a check may take."""
MOST_WORDS: Final = 400


@dataclass(frozen=True, slots=True)
class Check:
    """A check by its name, `group.subject`, and how it looks."""

    name: str
    look: Callable[[Scene], Findings]


def run(checks: Sequence[Check], scene: Scene, seconds: float | None = None) -> list[Line]:
    """Every check's lines in the order of the checks; what has not ended by its deadline has failed, and is left behind."""
    seconds = CHECK_S if seconds is None else seconds
    late = fail(f"this check did not end within {seconds:g} s", "ask again; something that it asks hangs")
    found = side_by_side([partial(_look, check, scene) for check in checks], seconds)
    lines: list[Line] = []
    for check, findings in zip(checks, found, strict=True):
        lines += [_line(check, one) for one in findings or [late]]
    return lines


def side_by_side(calls: Sequence[Callable[[], T]], seconds: float) -> list[T | None]:
    """The answers of calls made at once; None for those that did not answer in time, or raised."""
    answers: list[T | None] = [None] * len(calls)

    def call(n: int) -> None:
        with suppress(Exception):
            answers[n] = calls[n]()

    # Threads that hang must not keep the process from ending, as those of a pool would.
    threads = [threading.Thread(target=call, args=(n,), daemon=True) for n in range(len(calls))]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(answers)


def _look(check: Check, scene: Scene) -> Sequence[Found]:
    try:
        found = check.look(scene)
    except Skip as nothing:
        found = skip(nothing.words, nothing.fix)
    except Forbidden:
        found = skip(
            "this token is an agent's; what is asked here takes an admin's", "set POSTROOM_TOKEN to an admin's"
        )
    except Unauthenticated:
        found = skip("the daemon does not know this token")
    except PostroomError as error:
        found = fail(error.message, error.advice)
    except Exception as error:
        found = fail(f"the check itself broke: {type(error).__name__}: {error}", "tell Postroom's makers of it")
    return [found] if isinstance(found, Found) else found


def _line(check: Check, found: Found) -> Line:
    name = check.name if found.about is None else f"{check.name}[{_plain(found.about)}]"
    return Line(name, found.state, _plain(found.words), None if found.fix is None else _plain(found.fix))


def _plain(words: str) -> str:
    """One line that a terminal only shows, of a bounded length."""
    shown = printable(words)
    return shown if len(shown) <= MOST_WORDS else f"{shown[: MOST_WORDS - 3]}..."
