"""The `postroom` command, run in the test's own process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from postroom.doors.cli.main import run

PLAIN = "from postroom.doors.cli.main import run; run()"


def leave(*words: str) -> int:
    """Run the command here and give its exit code."""
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def child(*words: str, url: str = "", program: str = PLAIN, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command, or a program around it, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "POSTROOM_URL": url, **environ},
        check=False,
    )
