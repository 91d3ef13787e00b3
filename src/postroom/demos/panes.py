"""The terminals of a demo: a tmux server of its own, whose panes hold stand-in agents and have a user at their keys."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from postroom.demos.stage import END_S, POLL_S, Failed, Stage

TMUX_S: Final = 10.0
INSTALL: Final = "install tmux to see it (Debian and Ubuntu: apt-get install tmux; macOS: brew install tmux)"
PROGRAM: Final = "stand-in"
BUSY: Final = re.compile(r"\* \S.*…$")
RULES: Final = r"""
title = "the stand-in"
processes = ["stand-in"]
always_takes_pastes = true
ready = ['^❯( |$)']
busy = ['^\* \S.*…$']
composer = ['^❯( |$)']
composer_end = ['^─{3,}']
quiet_ms = 100
enter_ms = 150
enter_ms_per_line = 5
enter_most_ms = 500
"""
"""How the stand-in is read, as its user would write it for any program that Postroom does not know."""


def tmux_missing() -> str | None:
    """What to say where there is no tmux; None where there is."""
    return None if shutil.which("tmux") else f"tmux is not installed; {INSTALL}"


@dataclass(frozen=True, slots=True)
class Pane:
    """A stand-in agent in its pane; pid: its process."""

    name: str
    id: str
    pid: int


class Panes:
    """The server's panes, each a stand-in; `close` ends server and stand-ins by pid.

    It is made before the daemon is started, which reads then how a stand-in is known.
    """

    def __init__(self, stage: Stage) -> None:
        assert stage.daemon is None
        self._stage = stage
        self._server = f"postroom-{secrets.token_hex(4)}"
        self._pid: int | None = None
        self._panes: list[Pane] = []
        program = "from postroom.demos.agent import main\n\nmain()\n"
        self._program = stage.write(PROGRAM, program)
        stage.write(f"agents/{PROGRAM}.toml", RULES)
        stage.at_end(self.close)

    @property
    def socket(self) -> Path:
        """The server's socket."""
        return self._stage.folder / f"tmux-{os.geteuid()}" / self._server

    def open(self, name: str, token: Path, *options: str) -> Pane:
        """A pane in a session of its own, where an agent of this name starts with these options."""
        words = [sys.executable, str(self._program), name, str(self._stage.folder), str(token), *options]
        with self._stage.curtain.held():
            told = self._tmux(
                *("new-session", "-d", "-x", "100", "-y", "40", "-s", name),
                *("-P", "-F", "#{pid} #{pane_id} #{pane_pid}", f"exec {shlex.join(words)}"),
            )
            server, id_, pid = told.split()
            self._pid = int(server)
            pane = Pane(name, id_, int(pid))
            self._panes.append(pane)
        self.shows(pane, r"^❯", f"{name} is at its prompt")
        return pane

    def attach(self, pane: Pane, token: Path, *options: str) -> str:
        """A pane -> attached under its agent's name: what `postroom attach` prints."""
        where = ("--pane", pane.id, "--tmux-socket", str(self.socket), "--no-repo")
        return self._stage.run(("attach", *where, "--name", pane.name, *options), token)

    def type(self, pane: Pane, words: str) -> None:
        """Its user types a line, and Enter."""
        self._tmux("send-keys", "-t", pane.id, "-l", "--", words)
        self._tmux("send-keys", "-t", pane.id, "Enter")

    def screen(self, pane: Pane) -> list[str]:
        """The rows that the pane shows, down to the last that is not empty."""
        return self._tmux("capture-pane", "-p", "-t", pane.id).rstrip("\n").split("\n")

    def times(self, pane: Pane, text: str) -> int:
        """How often this stands on the pane, however its lines were broken."""
        return _joined("".join(self.screen(pane))).count(_joined(text))

    def shows(self, pane: Pane, pattern: str, what: str) -> re.Match[str]:
        """Wait until a row of the pane holds the pattern. Raises Failed at the deadline, and when the stand-in ended."""

        def look() -> re.Match[str] | None:
            if not _runs(pane.pid):
                raise Failed(f"{pane.name} ended:\n{self._complaint(pane)}")
            return re.search(pattern, "\n".join(self.screen(pane)), re.MULTILINE)

        found = self._stage.wait(look, what)
        assert found is not None
        return found

    def rests(self, pane: Pane) -> None:
        """Wait until the agent does nothing and waits at an empty prompt."""

        def look() -> bool:
            rows = self.screen(pane)
            return any(row.rstrip() == "❯" for row in rows) and not any(BUSY.match(row) for row in rows)

        self._stage.wait(look, f"{pane.name} is back at its prompt")

    def _complaint(self, pane: Pane) -> str:
        with suppress(OSError):
            return self._stage.log(pane.name)
        return "it left no log"

    def kill(self, pane: Pane, who: str) -> None:
        """An agent -> gone at once, and its pane with it."""
        os.kill(pane.pid, signal.SIGKILL)
        _await(lambda: not _runs(pane.pid))
        self._stage.say(f"SIGKILL {pane.pid}: {who}")

    def close(self) -> None:
        """The server and what runs in it -> ended, those that it names now, and also one that was about to start."""
        try:
            told = self._tmux("list-panes", "-a", "-F", "#{pid} #{pane_pid}")
            ours = {int(word) for word in told.split()}
        except Failed:
            ours = {self._pid} if self._pid is not None and self.socket.exists() else set()
        for wish in (signal.SIGTERM, signal.SIGKILL):
            for pid in ours:
                with suppress(ProcessLookupError):
                    os.kill(pid, wish)
            if _await(lambda: not any(map(_runs, ours))):
                return

    def _tmux(self, *arguments: str) -> str:
        environ = self._stage.environment() | {"TMUX_TMPDIR": str(self._stage.folder), "TERM": "xterm-256color"}
        try:
            done = subprocess.run(
                ["tmux", "-u", "-f", "/dev/null", "-L", self._server, *arguments],
                env=environ,
                cwd=self._stage.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=TMUX_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failed(f"tmux {arguments[0]}: {error}") from None
        if done.returncode != 0:
            raise Failed(f"tmux {arguments[0]}: {done.stderr.strip()}")
        return done.stdout


def _joined(text: str) -> str:
    return "".join(text.split())


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with suppress(OSError, IndexError):
        # One that has ended and was not yet collected runs no more.
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] != "Z"
    return True


def _await(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + END_S
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True
