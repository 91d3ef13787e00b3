"""A daemon as a process: started, asked over its port or its socket, killed, and started again at the same place."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postroom.client import Client
from tests.processes import Processes, wait_until
from tests.sources.signing import SECRET, github_headers

ASK_S = 30.0
START_S = 60.0
GITHUB = f"""\
[[source]]
name = "github"
provider = "github"
secrets = ["{SECRET}"]
queue = "inbox"
preset = "github"
"""
_PLACE = re.compile(r"postroom serves http://127\.0\.0\.1:(\d+), unix://(\S+?)(?:, hooks alone on http://\S+:(\d+))?\n")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        """The body's JSON value."""
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of the error it tells, or None."""
        shown = self.value.get("error")
        return None if shown is None else str(shown["code"])


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path | str, timeout: float = ASK_S) -> None:
        super().__init__("postroom", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the path instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any, headers: Mapping[str, str]
) -> Answer:
    """One request and its answer; a body that is no bytes goes as JSON."""
    raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    kind = {} if raw is None else {"Content-Type": "application/json"}
    connection.request(method, path, raw, {**kind, **headers})
    answer = connection.getresponse()
    return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


class Daemon:
    """A daemon on a folder of its own. Its port is any at first, and kept when it is started again."""

    def __init__(
        self,
        processes: Processes,
        folder: Path,
        settings: str = "",
        *,
        database: str | None = None,
        options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.socket = folder / "postroom.sock"
        self.port = 0
        self.hooks_port: int | None = None
        self.process: subprocess.Popen[str] | None = None
        self._processes = processes
        self._options = options if database is None else (*options, "--database", database)
        self._env = env
        if settings:
            (folder / "postroom.toml").write_text(settings)

    # Its life.

    def launch(self) -> subprocess.Popen[str]:
        """Not running -> started, perhaps to end at once."""
        assert self.process is None or self.process.poll() is not None, "the daemon runs"
        arguments = ("-m", "postroom", "serve", "--data", str(self.folder), "--port", str(self.port), *self._options)
        self.process = self._processes.python(*arguments, env=self._env)
        return self.process

    def start(self, *, ready: bool = True) -> Daemon:
        """Not running -> listening, and with `ready` using its database."""
        process = self.launch()

        def listens() -> re.Match[str] | None:
            assert process.poll() is None, f"the daemon ended:\n{self.output}"
            return _PLACE.search(self.output)

        place = wait_until(listens, "the daemon listens", START_S)
        assert place is not None
        self.port = int(place.group(1))
        self.hooks_port = None if place.group(3) is None else int(place.group(3))
        if ready:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until it uses its database."""
        wait_until(self.ready, "the daemon is ready", START_S)

    def ready(self) -> bool:
        """Whether it says that it is."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask("GET", "/ready").status == 200
        return False

    def kill(self) -> None:
        """Running -> gone at once."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def ended(self, seconds: float = 60.0) -> int:
        """Its exit code, once it has ended by itself."""
        assert self.process is not None
        return self.process.wait(seconds)

    def terminate(self) -> int:
        """Running -> asked to stop and ended: the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.ended()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    @property
    def output(self) -> str:
        """What it has said so far, on stdout and stderr."""
        assert self.process is not None
        return self._processes.output(self.process)

    # How it is reached.

    @property
    def url(self) -> str:
        """Its address on loopback."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The admin's token."""
        return (self.folder / "admin-token").read_text("ascii").strip()

    @property
    def environment(self) -> dict[str, str]:
        """What a program is given to find it and be admin."""
        return {"POSTROOM_DATA": str(self.folder)}

    def client(self, **more: Any) -> Client:
        """The program's client, over the socket."""
        return Client(socket=self.socket, **more)

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask over the socket, where no token is needed."""
        with contextlib.closing(SocketConnection(self.socket)) as connection:
            return exchange(connection, method, path, body, headers or {})

    def ask_port(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        token: str | None = None,
        port: int | None = None,
    ) -> Answer:
        """Ask over the port, or another one, with a token when one is given."""
        sent = {**(headers or {})} if token is None else {"Authorization": f"Bearer {token}", **(headers or {})}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=ASK_S)) as one:
            return exchange(one, method, path, body, sent)

    def deliver(self, body: bytes, kind: str = "issues", id_: str = "d1", **more: Any) -> Answer:
        """Post a delivery as GitHub does, signed, to the source `github`."""
        return self.ask_port("POST", "/hooks/github", body, signed(body, kind, id_), **more)

    def create(self, queue: str = "inbox", title: str = "work", **more: Any) -> str:
        """A new todo's id."""
        answer = self.ask("POST", "/v1/todos", {"queue": queue, "title": title, **more})
        assert answer.status == 201, answer.body
        return str(answer.value["todo"]["id"])

    def get(self, id_: str) -> dict[str, Any]:
        """A whole todo."""
        answer = self.ask("GET", f"/v1/todos/{id_}")
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.value["todo"]
        return found

    def waiting(self) -> int:
        """How many claims wait in it now."""
        return int(self.ask("GET", "/v1/status").value["waiting_claims"])


def signed(body: bytes, kind: str = "issues", id_: str = "d1") -> dict[str, str]:
    """The headers of GitHub's delivery."""
    return {name.decode(): value.decode("latin-1") for name, value in github_headers(body, kind, id_)}


def command() -> str:
    """The installed program beside this interpreter."""
    return os.path.join(os.path.dirname(sys.executable), "postroom")
