"""The demos as people run them: each proves what it promises, and leaves nothing behind however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from postroom.demos.curtain import Curtain
from tests.processes import Processes, wait_until
from tests.system.daemons import command

pytestmark = [pytest.mark.system, pytest.mark.slow]

SURVIVAL = "20 deliveries → 1 event → 1 todo → 1 ring → 2 attempts → 1 completion"
WITHOUT_PANE = "20 deliveries → 1 event → 1 todo → 2 attempts → 1 completion"
DUO = "2 messages → 2 attempts → each once on its pane → 2 acknowledgements"
CI = "1 delivery → 1 event → 1 todo → 1 ring, once on the pane → 1 claim → 1 completion"


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


class Demos:
    """Demos whose folders are made in a folder of this test's."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """A demo under way."""
        return self._processes.start(
            command(), "demo", *words, env={"TMPDIR": str(self._folder), "PYTHONUTF8": "1", **env}
        )

    def ends(self, demo: subprocess.Popen[str], code: int) -> str:
        """What it said, once it ended with this code and left neither a process nor a file behind."""
        ended = demo.wait(90)
        said = self._processes.output(demo)
        assert ended == code, said
        # tmux's socket and its server's processes would be among them.
        assert list(self._folder.iterdir()) == []
        wait_until(lambda: not naming(self._folder), "every process has ended")
        assert all(line.isprintable() for line in said.splitlines()), said
        return said

    def says(self, demo: subprocess.Popen[str], words: str) -> None:
        """Wait until it has said this."""
        wait_until(lambda: words in self._processes.output(demo), words)

    def proves(self, *words: str) -> str:
        """What a demo said that proved everything."""
        said = self.ends(self.start(*words), 0)
        assert "WRONG" not in said
        return said


@pytest.fixture
def demos(processes: Processes, folder: Path) -> Demos:
    return Demos(processes, folder)


def told(said: str) -> list[str]:
    """The lines without their times."""
    return [line.partition("s  ")[2].strip() for line in said.splitlines()]


# S1, S10, S11, S22, S23
def test_a_delivery_survives_two_kills(demos: Demos) -> None:
    said = demos.proves()
    assert SURVIVAL in told(said)
    assert told(said)[-1] == "proved: nothing was lost, nothing was done twice"
    assert said.count("SIGKILL") == 2
    assert "20 answers 202, 19 of them say duplicate" in said
    assert "carol's pane is rung: 1 todo waits in queue triage." in told(said)
    # The trace tells the ring that was written, and both attempts.
    steps = [line[14:].partition("  ")[0] for line in told(said) if line[2:3] == ":" and line[8:9] == "."]
    assert "rung" in steps
    story = ["ring handed off", "claimed", "lease lapsed", "claimed", "done"]
    assert [step for step in steps if step in story] == story


# T34, T42
def test_two_agents_in_panes_ask_and_answer(demos: Demos) -> None:
    said = demos.proves("duo")
    assert DUO in told(said)
    receipts = [line.split(": ", 1) for line in told(said) if line.startswith("receipt of ")]
    question, answer = dict.fromkeys(id_ for id_, _ in receipts)
    deferred = "pending, deferred: the stand-in is working"
    # Before and after the daemon was killed it waits for the same.
    assert [state for id_, state in receipts if id_ == question] == [deferred, deferred, "awaiting_ack", "acknowledged"]
    assert [state for id_, state in receipts if id_ == answer] == ["acknowledged"]
    assert "bob's pane shows it not at all" in told(said)
    assert said.count("SIGKILL") == 1
    assert "error" not in said


def test_a_failed_check_wakes_who_is_open(demos: Demos) -> None:
    said = demos.proves("ci")
    assert CI in told(said)
    words = [line.split()[1] for line in told(said) if line.startswith("20") and line[10:11] == "T"]
    story = ["received", "verified", "decided", "routed", "created", "rung", "ring", "claimed", "done"]
    assert list(dict.fromkeys(words)) == story


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_each_of_these_ends_a_demo(how: signal.Signals) -> None:
    before = signal.getsignal(how)
    with Curtain(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(how)
    assert signal.getsignal(how) == before


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_demo_that_is_stopped_leaves_nothing_behind(demos: Demos, how: signal.Signals) -> None:
    demo = demos.start("duo")
    demos.says(demo, "sits in tmux pane %1")
    demo.send_signal(how)
    said = demos.ends(demo, 130)
    assert told(said)[-1] == "stopped; what was started has been ended"


def test_a_demo_that_fails_leaves_nothing_behind(demos: Demos, folder: Path) -> None:
    demo = demos.start("duo")
    demos.says(demo, "agent ann")
    # Its daemon is taken away, and nobody starts another one.
    (made,) = folder.iterdir()
    daemon = next(
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(made) in _command(entry) and "serve" in _command(entry)
    )
    os.kill(daemon, signal.SIGKILL)
    said = demos.ends(demo, 1)
    assert told(said)[-1] == "NOT proved"
    assert "the demo failed: " in said


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text("utf-8", "replace")
    except OSError:
        return ""


def test_without_tmux_the_pane_is_left_out_and_the_rest_is_shown(demos: Demos) -> None:
    said = demos.ends(demos.start(PATH=""), 0)
    assert WITHOUT_PANE in told(said)
    missing = "tmux is not installed; install tmux to see it (Debian and Ubuntu: apt-get install tmux"
    assert f"left out: the agent that sits in a pane and is rung there; {missing}" in said
    assert f"not shown: the agent in a pane; {missing}" in said


@pytest.mark.parametrize("story", ["duo", "ci"])
def test_without_tmux_it_says_what_is_missing(demos: Demos, story: str) -> None:
    said = demos.ends(demos.start(story, PATH=""), 1)
    assert "tmux is not installed; install tmux to see it (Debian and Ubuntu: apt-get install tmux" in said
