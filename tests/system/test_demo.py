"""The demo as people run it: it proves what it promises and leaves nothing behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.processes import Processes, wait_until
from tests.system.daemons import command

pytestmark = [pytest.mark.system, pytest.mark.slow]

PROOF = "20 deliveries → 1 event → 1 todo → 2 attempts → 1 completion"


def naming(folder: Path) -> list[str]:
    """The processes whose command line or environment names a folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                said = (process / "cmdline").read_bytes() + b"\0" + (process / "environ").read_bytes()
                if str(folder).encode() in said:
                    found.append(said.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


# S1, S10, S11, S22, S23
def test_the_demo_proves_it_and_leaves_nothing_behind(processes: Processes, folder: Path) -> None:
    demo = processes.start(command(), "demo", env={"TMPDIR": str(folder), "PYTHONUTF8": "1"})
    code = demo.wait(90)
    said = processes.output(demo)
    assert code == 0, said
    assert PROOF in said
    assert "proved: nothing was lost, nothing was done twice" in said
    assert "WRONG" not in said
    assert said.count("SIGKILL") == 2
    assert "20 answers 202, 19 of them say duplicate" in said
    # The trace tells both attempts.
    assert said.count("claimed") >= 2
    assert "lapsed" in said
    assert list(folder.iterdir()) == []
    wait_until(lambda: not naming(folder), "every process has ended")
