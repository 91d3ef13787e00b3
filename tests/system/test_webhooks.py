"""Webhooks out of a real daemon: work that waits, dead letters and messages reach a receiver that has no session."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.processes import wait_until
from tests.system.daemons import Daemon

pytestmark = pytest.mark.system

KEY = bytes(range(100, 132))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Receiver(ThreadingHTTPServer):
    """A receiver that has its port at once and listens when it is told to; it keeps what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.server_bind()
        self._listens = False
        self.got: list[tuple[Mapping[str, str], bytes]] = []

    def listen(self) -> None:
        """Bound -> taking requests."""
        self.server_activate()
        self._listens = True
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def end(self) -> None:
        """Bound or taking requests -> gone."""
        if self._listens:
            self.shutdown()
        self.server_close()

    def events(self, kind: str) -> list[Any]:
        """The events of a type, each once its signature was found good by the library of Standard Webhooks."""
        found = [(headers, Webhook(SECRET).verify(body, dict(headers))) for headers, body in list(self.got)]
        assert all(headers["webhook-id"] == event["data"]["id"] for headers, event in found)
        return [event for _, event in found if event["type"] == kind]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.end()


def settings(receiver: Receiver, secret: str = SECRET) -> str:
    return f"""\
[[webhook]]
name = "ops"
url = "http://127.0.0.1:{receiver.server_port}/hook"
allow_private = true
secrets = ["{secret}"]
queues = ["review"]
channels = ["dead-letters"]
"""


def delivery(daemon: Daemon, message: str) -> Mapping[str, Any]:
    """The one delivery of a message."""
    found: list[Mapping[str, Any]] = daemon.ask("GET", f"/v1/messages/{message}").value["message"]["deliveries"]
    return found[0]


def endpoints(daemon: Daemon) -> list[Mapping[str, Any]]:
    """The endpoints that have not ended."""
    found: list[Mapping[str, Any]] = daemon.ask("GET", "/v1/endpoints").value["endpoints"]
    return found


def test_a_receiver_hears_of_work_dead_letters_and_messages(
    new_daemon: Callable[..., Daemon], receiver: Receiver
) -> None:
    daemon = new_daemon(settings(receiver)).start()
    sent = daemon.ask("POST", "/v1/messages", {"to": "ops", "payload": "the deploy is done"})
    assert sent.status == 202, sent.body
    message = str(sent.value["message"]["id"])

    def failed() -> Mapping[str, Any] | None:
        found = delivery(daemon, message)
        return found if found["last_failure_reason"] else None

    refusal = wait_until(failed, "nobody listens yet")
    receiver.listen()
    assert refusal is not None
    assert (refusal["carrier"], refusal["last_failure_reason"]) == ("webhook", "no connection: Connection refused")
    waiting = daemon.create("review")
    dead = daemon.create("build", "release 1.2")
    held = daemon.ask("POST", f"/v1/todos/{dead}/claim", {}).value["todo"]
    ended = daemon.ask(
        "POST", f"/v1/todos/{dead}/fail", {"lease_id": held["lease_id"], "error": "no disk", "retry": False}
    )
    assert ended.status == 200, ended.body

    (ring,) = wait_until(lambda: receiver.events("todo.available"), "the waiting work is told of")
    assert (ring["data"]["queue"], ring["data"]["todo_id"], ring["data"]["count"]) == ("review", waiting, 1)
    (death,) = wait_until(lambda: receiver.events("todo.dead"), "the dead letter is told of")
    assert death["data"] | {"id": "", "text": ""} == {
        "id": "",
        "todo_id": dead,
        "queue": "build",
        "title": "release 1.2",
        "reason": "refused",
        "attempts": 1,
        "max_attempts": 5,
        "error": "no disk",
        "text": "",
    }
    (told,) = wait_until(lambda: receiver.events("message"), "the message comes at its second attempt")
    assert (told["data"]["id"], told["data"]["from"], told["data"]["payload"]) == (
        message,
        "admin",
        "the deploy is done",
    )
    wait_until(lambda: delivery(daemon, message)["state"] == "injected", "that is written down")
    assert delivery(daemon, message)["attempts"] == 2
    story = daemon.ask("GET", f"/v1/trace/{dead}").value["steps"]
    assert "ops by webhook" in [step["detail"] for step in story if step["what"] == "told"]

    status = daemon.ask("GET", "/v1/status")
    shown = status.value["post"]["carriers"]["webhook"]["ops"]
    assert (shown["state"], shown["url"]) == ("well", f"http://127.0.0.1:{receiver.server_port}/hook")
    asked = {"carrier": "webhook", "address": {"url": "http://127.0.0.1:1/"}, "name": "mine"}
    refused = daemon.ask("POST", "/v1/endpoints", asked)
    assert (refused.status, refused.code) == (400, "invalid")
    assert "[[webhook]]" in refused.value["error"]["message"]

    # The secret stays in the settings.
    (endpoint,) = endpoints(daemon)
    assert (endpoint["name"], endpoint["created_by"], endpoint["live"]) == ("ops", "postroom", True)
    kept = b"".join(file.read_bytes() for file in daemon.folder.glob("postroom.db*"))
    for place in (kept, status.body, daemon.ask("GET", "/v1/endpoints").body, daemon.output.encode()):
        assert KEY not in place
        assert base64.b64encode(KEY) not in place

    # What the settings no longer name is no longer there.
    (daemon.folder / "postroom.toml").write_text("")
    assert daemon.terminate() == 0
    daemon.start()
    assert endpoints(daemon) == []


def test_a_wrong_setting_stops_the_start_and_is_named(new_daemon: Callable[..., Daemon], receiver: Receiver) -> None:
    daemon = new_daemon(settings(receiver, secret="hunter2"))
    daemon.launch()
    assert daemon.ended() != 0
    assert "postroom.toml:5: webhook[0].secrets: expected whsec_" in daemon.output.replace("\n", " ")
    assert "hunter2" not in daemon.output
