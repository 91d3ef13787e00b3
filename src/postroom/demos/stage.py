"""The stage of a demo: a folder, a daemon and other processes, tokens, and waits that have one deadline together."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from postroom.address import find
from postroom.demos.curtain import Curtain
from postroom.doors.cli.connection import Daemon, Unreachable
from postroom.errors import PostroomError

T = TypeVar("T")
Process = subprocess.Popen[str]

POLL_S: Final = 0.02
END_S: Final = 5.0
VERB_S: Final = 30.0
SETTINGS: Final = "[gita]\nrequired = false\n"


class Failed(Exception):
    """The demo cannot go on; the text says why."""


class Stage:
    """One run in a folder of its own. What it starts is ended by its pid when it closes; `say` prints a line."""

    def __init__(self, folder: Path, say: Callable[[str], None], curtain: Curtain, deadline_s: float) -> None:
        self.folder = folder
        self.say = say
        self.curtain = curtain
        self.secret = secrets.token_hex(20)
        self.daemon: Process | None = None
        self._port = 0
        self._until = time.monotonic() + deadline_s
        self._processes: list[Process] = []
        self._ends: list[Callable[[], None]] = []

    def settle(self, settings: str) -> None:
        """The folder -> with its settings, the webhooks' secret, and a place for what the actors wait on."""
        self.write("webhook-secret", self.secret)
        self.write("postroom.toml", settings + SETTINGS)
        self.folder.joinpath("holds").mkdir()

    def write(self, name: str, text: str) -> Path:
        """A file of the folder that only this user reads."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def at_end(self, end: Callable[[], None]) -> None:
        """Call this when the stage closes, before its processes are ended; the last named first."""
        self._ends.append(end)

    # The daemon.

    def start_daemon(self) -> None:
        """Not running -> ready, on the port that it had before."""
        command = ("-m", "postroom", "serve", "--data", str(self.folder), "--port", str(self._port))
        # Its locks of panes stay in the folder, too.
        self.daemon = self.start("daemon", command, {"XDG_RUNTIME_DIR": str(self.folder)}, data=False)
        line = self.line([self.daemon])[1]
        if not line:
            raise Failed("the daemon did not start:\n" + self.log("daemon"))
        self._port = int(line.split("127.0.0.1:", 1)[1].split(",")[0])
        self.wait(self._ready, "the daemon is ready")
        self.say(f"daemon {self.daemon.pid} serves http://127.0.0.1:{self._port} on SQLite in {self.folder}")

    def _ready(self) -> bool:
        with contextlib.suppress(Unreachable, PostroomError):
            return bool(self.ask("GET", "/v1/status")["ready"])
        return False

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the daemon answers its admin. Raises Unreachable and the refusals of `postroom.errors`."""
        address = find(environ={"POSTROOM_DATA": str(self.folder)})
        return Daemon(address, start="postroom serve", token_origin="the demo's folder").ask(method, path, body)

    def token(self, name: str) -> Path:
        """A new token of this name, an agent's: the file that holds it."""
        return self.write(f"tokens/{name}", str(self.ask("POST", "/v1/tokens", {"name": name})["secret"]))

    def post(self, source: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """A delivery posted from outside to the source of this name: the answer's status and value."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        with contextlib.closing(connection):
            connection.request("POST", f"/hooks/{source}", body, dict(headers))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    # Processes.

    def environment(self, *, data: bool = True) -> dict[str, str]:
        """What the actors find in theirs: no settings but the demo's own, and with `data` the way to its daemon."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "TMUX"))}
        environ["PYTHONUTF8"] = "1"
        return {**environ, "POSTROOM_DATA": str(self.folder)} if data else environ

    def start(
        self, name: str, words: Sequence[str], env: Mapping[str, str] | None = None, *, data: bool = True
    ) -> Process:
        """This Python, started with these words; its complaints go to NAME.log."""
        with self.curtain.held(), (self.folder / f"{name}.log").open("a") as log:
            environ = {**self.environment(data=data), **(env or {})}
            process = subprocess.Popen(
                [sys.executable, *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )
            self._processes.append(process)
        return process

    def run(self, words: Sequence[str], token: Path | None = None) -> str:
        """What a verb of the command line prints, run as the admin or with a token. Raises Failed when it is refused."""
        env = self.environment() | ({} if token is None else {"POSTROOM_TOKEN": token.read_text("ascii").strip()})
        with self.curtain.held():
            done = subprocess.run(
                [sys.executable, "-m", "postroom", *words],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                timeout=VERB_S,
                check=False,
            )
        if done.returncode != 0:
            raise Failed(f"postroom {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.rstrip("\n")

    def kill(self, process: Process | None, who: str) -> None:
        """Running -> gone at once."""
        assert process is not None
        process.send_signal(signal.SIGKILL)
        process.wait(END_S)
        self.say(f"SIGKILL {process.pid}: {who}")

    def line(self, processes: Sequence[Process]) -> tuple[Process, str]:
        """The next line that one of them says, empty when it ended, and who says it. Raises Failed at the deadline."""
        pipes = {process.stdout: process for process in processes if process.stdout is not None}
        ready, _, _ = select.select(list(pipes), [], [], max(self._until - time.monotonic(), 0.0))
        for pipe in ready:
            return pipes[pipe], pipe.readline()
        raise Failed("nobody said anything in time")

    def log(self, name: str) -> str:
        """The end of what a process complained of."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")[-2000:]

    # Waits.

    def wait(self, look: Callable[[], T], what: str) -> T:
        """Look again and again until there is something. Raises Failed at the deadline."""
        while not (found := look()):
            if time.monotonic() > self._until:
                raise Failed(f"it did not come to this in time: {what}")
            time.sleep(POLL_S)
        return found

    def hold(self, what: str) -> None:
        """An actor that comes to this waits there from now on."""
        (self.folder / "holds" / what).touch()

    def release(self, what: str) -> None:
        """Whoever waits there goes on."""
        (self.folder / "holds" / what).unlink(missing_ok=True)

    def close(self) -> None:
        """Everything that was started -> ended, by pid."""
        for end in reversed(self._ends):
            end()
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_S)
            if process.stdout is not None:
                process.stdout.close()


@contextlib.contextmanager
def staged(say: Callable[[str], None], deadline_s: float, *, keep: bool) -> Iterator[Stage]:
    """A stage in a new folder; afterwards its processes are ended and the folder is removed, or kept and named."""
    with Curtain() as curtain:
        with curtain.held():
            folder = Path(tempfile.mkdtemp(prefix="postroom-demo-"))
            stage = Stage(folder, say, curtain, deadline_s)
        try:
            yield stage
        except Exception:
            # What a terminal's Ctrl-C ended besides this process is no failure of its own.
            if curtain.fell:
                raise KeyboardInterrupt from None
            raise
        finally:
            curtain.keep_up()
            stage.close()
            if keep:
                say(f"kept: {folder}")
            else:
                _remove(folder)


def _remove(folder: Path) -> None:
    """The folder -> gone, also while a process that ends writes its last."""
    until = time.monotonic() + END_S
    while folder.exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(POLL_S)
