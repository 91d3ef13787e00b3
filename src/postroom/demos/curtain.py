"""What ends a demo from outside: SIGINT, SIGQUIT, SIGTERM and SIGHUP, each between two of its steps and never inside one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


class Curtain:
    """While it is entered these signals raise KeyboardInterrupt, late where something is being started or ended."""

    def __init__(self) -> None:
        self._held = 0
        self.fell = False
        self._before: dict[signal.Signals, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> Curtain:
        for number in SIGNALS:
            # What was ignored stays so: that is how nohup keeps a program going.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._fall)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _fall(self, _number: int, _frame: FrameType | None) -> None:
        self.fell = True
        if not self._held:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """A step that is done whole: what was asked of it meanwhile ends the demo after it."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self.fell and not self._held:
            raise KeyboardInterrupt

    def keep_up(self) -> None:
        """From now on nothing interrupts: what was started is being ended."""
        self._held += 1
