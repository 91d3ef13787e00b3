"""`postroom demo`: a real daemon, real agents over MCP, a real GitHub delivery, and SIGKILL in mid-work; then the proof."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import hmac
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
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from postroom.address import find
from postroom.doors.cli.connection import Daemon, Unreachable
from postroom.errors import PostroomError

DELIVERIES = 20
AGENTS = ("alice", "bob", "carol")
LEASE_S = 3
QUEUE = "triage"
DEADLINE_S = 45.0

SETTINGS = """\
[[source]]
name = "github"
provider = "github"
secrets_file = "webhook-secret"
queue = "{queue}"
preset = "github"

[queue.{queue}]
lease_s = {lease}
"""


class _Demo:
    """One run in a folder of its own; every process it starts is ended by its pid."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._until = time.monotonic() + DEADLINE_S
        self._secret = secrets.token_hex(20)
        self._processes: list[subprocess.Popen[str]] = []
        self._daemon: subprocess.Popen[str] | None = None
        self._port = 0

    def run(self) -> bool:
        """The whole story; whether every number came out."""
        (self._folder / "webhook-secret").write_text(self._secret)
        (self._folder / "postroom.toml").write_text(SETTINGS.format(queue=QUEUE, lease=LEASE_S))
        self._start_daemon()
        tokens = {name: self._ask("POST", "/v1/tokens", {"name": name})["secret"] for name in AGENTS}
        self._deliver()
        agents = {name: self._agent(name, token) for name, token in tokens.items()}
        holder, todo_id = self._claimed(agents)
        self._kill(agents.pop(holder), f"{holder}, who holds the todo")
        self._kill(self._daemon, "the daemon")
        self._start_daemon()
        self._say(f"waiting for the lease to lapse ({LEASE_S} s); the other agents keep asking")
        heir = self._completed(agents)
        return self._prove(todo_id, holder, heir)

    def _start_daemon(self) -> None:
        command = [sys.executable, "-m", "postroom", "serve", "--data", str(self._folder), "--port", str(self._port)]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("POSTROOM_")}
        log = (self._folder / "daemon.log").open("a")
        self._daemon = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        self._processes.append(self._daemon)
        line = self._line(self._daemon)
        if not line:
            raise RuntimeError("the daemon did not start:\n" + (self._folder / "daemon.log").read_text()[-2000:])
        self._port = int(line.split("127.0.0.1:", 1)[1].split(",")[0])
        self._wait(self._ready, "the daemon")
        self._say(f"daemon {self._daemon.pid} serves http://127.0.0.1:{self._port} on SQLite in {self._folder}")

    def _ready(self) -> bool:
        with contextlib.suppress(Unreachable, PostroomError):
            return bool(self._ask("GET", "/v1/status")["ready"])
        return False

    def _deliver(self) -> None:
        body = (files("postroom") / "samples" / "github.issues.opened.json").read_bytes()
        signature = "sha256=" + hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
            "X-Hub-Signature-256": signature,
        }

        def post(_: int) -> tuple[int, bool]:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
            with contextlib.closing(connection):
                connection.request("POST", "/hooks/github", body, headers)
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())["duplicate"]

        self._say(f"posting one signed GitHub delivery {DELIVERIES} times at once ({len(body)} bytes, issues.opened)")
        with concurrent.futures.ThreadPoolExecutor(DELIVERIES) as pool:
            answers = list(pool.map(post, range(DELIVERIES)))
        accepted = sum(status == 202 for status, _ in answers)
        self._say(f"  {accepted} answers 202, {sum(duplicate for _, duplicate in answers)} of them say duplicate")

    def _agent(self, name: str, token: str) -> subprocess.Popen[str]:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("POSTROOM_")}
        environ |= {"POSTROOM_DATA": str(self._folder), "POSTROOM_TOKEN": token}
        log = (self._folder / f"{name}.log").open("a")
        process = subprocess.Popen(
            [sys.executable, "-m", "postroom.demo_agent", name, QUEUE],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        self._processes.append(process)
        self._say(f"agent {name} ({process.pid}) asks for work through MCP")
        return process

    def _claimed(self, agents: dict[str, subprocess.Popen[str]]) -> tuple[str, str]:
        while True:
            name, words = self._heard(agents)
            if words[0] == "claimed":
                self._say(f"  {name} claimed {words[1]}, attempt {words[2]}, and works on it")
                return name, words[1]

    def _completed(self, agents: dict[str, subprocess.Popen[str]]) -> str:
        while True:
            name, words = self._heard(agents)
            if words[0] == "claimed":
                self._say(f"  {name} claimed {words[1]}, attempt {words[2]}; it reads that {words[3]}")
            elif words[0] == "completed":
                self._say(f"  {name} completed {words[1]}")
                return name

    def _heard(self, agents: dict[str, subprocess.Popen[str]]) -> tuple[str, list[str]]:
        """The next line an agent says, and who says it."""
        pipes = {process.stdout: name for name, process in agents.items() if process.stdout is not None}
        ready, _, _ = select.select(list(pipes), [], [], max(self._until - time.monotonic(), 0.0))
        for pipe in ready:
            line = pipe.readline()
            if not line:
                raise RuntimeError(f"agent {pipes[pipe]} ended:\n" + self._log(pipes[pipe]))
            return pipes[pipe], line.rstrip("\n").split("\t")
        raise RuntimeError("no agent said anything in time")

    def _kill(self, process: subprocess.Popen[str] | None, who: str) -> None:
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(10)
            self._say(f"SIGKILL {process.pid}: {who}")

    def _prove(self, todo_id: str, holder: str, heir: str) -> bool:
        events = self._ask("GET", "/v1/events")["events"]
        todos = self._ask("GET", "/v1/todos")["todos"]
        todo = self._ask("GET", f"/v1/todos/{todo_id}")["todo"]
        lapsed = [entry for entry in todo["history"] if entry["outcome"] == "lapsed"]
        checks = [
            (f"{events[0]['deliveries'] if events else 0} deliveries", bool(events) and events[0]["deliveries"] == 20),
            (f"{len(events)} event", len(events) == 1),
            (f"{len(todos)} todo", len(todos) == 1 and todos[0]["id"] == todo_id),
            (f"{todo['attempt']} attempts", todo["attempt"] == 2 and [one["owner"] for one in lapsed] == [holder]),
            ("1 completion", todo["state"] == "done" and todo["owner"] == heir),
        ]
        self._say("")
        self._say(" → ".join(words for words, _ in checks))
        self._say("")
        for step in self._ask("GET", f"/v1/trace/{todo_id}")["steps"]:
            self._say(f"  {step['at'][11:23]}  {step['what']:<16} {step['detail']}")
        self._say("")
        for words, good in checks:
            if not good:
                self._say(f"WRONG: {words}")
        return all(good for _, good in checks)

    # How it talks and waits.

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        address = find(environ={"POSTROOM_DATA": str(self._folder)})
        return Daemon(address, start="postroom serve", token_origin="the demo's folder").ask(method, path, body)

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], max(self._until - time.monotonic(), 0.0))
        return process.stdout.readline() if ready else ""

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        while not condition():
            if time.monotonic() > self._until:
                raise RuntimeError(f"{what} did not come up in time")
            time.sleep(0.02)

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()[-2000:]

    def close(self) -> None:
        """End what was started, by pid."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
            if process.stdout is not None:
                process.stdout.close()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="postroom-demo-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run_demo() -> int:
    """Run the demo and print it live: 0 when everything was proved, else 1."""
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:5.1f}s  {line}" if line else "", flush=True)

    with _folder() as folder:
        demo = _Demo(folder, say)
        try:
            proved = demo.run()
        except (RuntimeError, OSError, Unreachable, PostroomError) as error:
            say(f"the demo failed: {error}")
            proved = False
        finally:
            demo.close()
    say("proved: nothing was lost, nothing was done twice" if proved else "NOT proved")
    return 0 if proved else 1
