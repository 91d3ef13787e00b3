"""Processes that a test starts, and waiting for what they bring about: by condition and deadline, never by time alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

SECONDS = 30.0
PAUSE = 0.01


class Processes:
    """Starts processes and ends, by their own pid, those that are still running when the test is over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, pipes: bool = False
    ) -> subprocess.Popen[str]:
        """Start a command; its output goes to `output(process)`, or to pipes when the test talks with it."""
        number = len(self._started)
        with (self.folder / f"process-{number}.out").open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                env={**os.environ, **(env or {})},
                cwd=cwd or self.folder,
                text=True,
            )
        self._started.append(process)
        return process

    def python(
        self, *arguments: str, env: Mapping[str, str] | None = None, pipes: bool = False
    ) -> subprocess.Popen[str]:
        """Start this Python with arguments, as `python("-m", "postroom", …)`."""
        return self.start(sys.executable, *arguments, env=env, pipes=pipes)

    def output(self, process: subprocess.Popen[str]) -> str:
        """What the process has written so far."""
        number = self._started.index(process)
        return (self.folder / f"process-{number}.out").read_text("utf-8", "replace")

    def end(self, process: subprocess.Popen[str]) -> int:
        """Running -> ended: asked first, killed when it does not listen; gives its exit code."""
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.wait(10)

    def end_all(self) -> None:
        """End what is still running, the youngest first."""
        for process in reversed(self._started):
            self.end(process)


def wait_until(condition: Callable[[], T], what: str, seconds: float = SECONDS) -> T:
    """Look again and again until the condition gives something true; fails the test, saying what was awaited."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(PAUSE)


async def until(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """The same inside a running loop; the condition may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        await asyncio.sleep(PAUSE)
