"""A stand-in for a daemon: it records what verbs ask over real sockets, and answers what a test told it to."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from postroom.model import Attempt, Outcome, QueueSettings, QueueStatus, Role, Todo, TodoState, Token
from postroom.wire import queue_view, todo_view, token_view

NOON = 1_769_860_800_000
TODO = "td_01890000-0000-7000-8000-000000000001"
LEASE = "ls_01890000-0000-7000-8000-000000000002"
EVENT = "ev_01890000-0000-7000-8000-000000000003"
TOKEN = "tk_01890000-0000-7000-8000-000000000004"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(slots=True)
class FakeDaemon:
    """Answers by method and path; what has no answer is `not_found`. An answer of None breaks the connection."""

    url: str = ""
    answers: dict[tuple[str, str], tuple[int, Any] | None] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def answer(self, method: str, path: str, body: Any, status: int = 200) -> None:
        """Set what a request is answered with: a JSON value, or bytes as they are."""
        self.answers[method, path] = (status, body)

    def refuse(self, method: str, path: str, status: int, code: str, message: str, **details: Any) -> None:
        """Set an error of the family as the answer."""
        self.answer(method, path, {"error": {"code": code, "message": message, **details}}, status)

    @property
    def last(self) -> Asked:
        """The latest request."""
        return self.asked[-1]


class UnixServer(socketserver.ThreadingMixIn, HTTPServer):
    """An HTTP server on a Unix socket."""

    daemon_threads = True
    address_family = socketserver.UnixStreamServer.address_family

    def server_bind(self) -> None:
        """Bind without asking a name server for the socket's name."""
        socketserver.TCPServer.server_bind(self)


@contextmanager
def running(socket: Path | None = None) -> Iterator[FakeDaemon]:
    """A fake daemon on a free loopback port, or on a Unix socket."""
    fake = FakeDaemon()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def _handle(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            body = json.loads(raw) if raw else None
            headers = {key.lower(): value for key, value in self.headers.items()}
            fake.asked.append(Asked(self.command, parts.path, query, headers, body))
            missing = (404, {"error": {"code": "not_found", "message": f"no {parts.path}"}})
            answer = fake.answers.get((self.command, parts.path), missing)
            if answer is None:
                self.close_connection = True
                return
            status, content = answer
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    server: HTTPServer
    if socket is None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    else:
        server = UnixServer(str(socket), Handler)  # type: ignore[arg-type]
        fake.url = f"unix://{socket}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def todo(*, whole: bool = True, lease: bool = False, **changes: Any) -> dict[str, Any]:
    """A todo's view, as the wire has it."""
    plain = Todo(
        seq=1,
        id=TODO,
        queue="review",
        source="api",
        kind="",
        title="Read the change",
        event_id=None,
        idempotency_key=None,
        assignee=None,
        state=TodoState.PENDING,
        owner=None,
        lease_id=None,
        lease_expires_at=None,
        claim_key=None,
        attempt=0,
        max_attempts=5,
        priority=0,
        available_at=None,
        next_retry_at=None,
        reason=None,
        error=None,
        created_by="admin",
        created_at=NOON,
        updated_at=NOON,
        claimed_at=None,
        completed_at=None,
        payload_bytes=9,
        payload_json='{"pr": 7}',
        result_json=None,
    )
    return todo_view(replace(plain, **changes), whole=whole, lease=lease)


def claimed(**changes: Any) -> dict[str, Any]:
    """A claimed todo's view, as its holder sees it, with one earlier attempt."""
    earlier = Attempt("ann/1", NOON, NOON + 1000, Outcome.FAILED, "the tests broke")
    return todo(
        lease=True,
        state=TodoState.CLAIMED,
        owner="ann/2",
        lease_id=LEASE,
        lease_expires_at=NOON + 300_000,
        attempt=2,
        history=(earlier,),
        **changes,
    )


def queue(name: str = "review", **settings: Any) -> dict[str, Any]:
    """A queue's view."""
    return queue_view(QueueStatus(QueueSettings(name, **settings), 3, 2, 1, 0, 90_000))


def token() -> dict[str, Any]:
    """A token's view."""
    return token_view(Token(TOKEN, "ann", Role.AGENT, ("review", "ci/*"), NOON))
