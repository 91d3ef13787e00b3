"""All that GitHub publishes of its payloads, posted signed to a real daemon: taken in, kept to the byte, decided as known."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable

import pytest

from tests.payloads.fetch import COUNT, examples
from tests.sources.signing import PAYLOADS
from tests.system.daemons import GITHUB, Daemon, SocketConnection, exchange, signed

pytestmark = pytest.mark.system

SNAPSHOT = PAYLOADS.parent / "github-preset.txt"


def test_every_published_payload_is_stored_and_decided(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon(GITHUB).start()
    published = examples()
    lines: list[str] = []
    events: list[str] = []
    with (
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)) as sender,
        contextlib.closing(SocketConnection(daemon.socket)) as reader,
    ):
        for example in published:
            name = f"{example.kind}[{example.number}]"
            headers = signed(example.body, example.kind, name)
            taken = exchange(sender, "POST", "/hooks/github", example.body, headers)
            assert taken.status == 202, (name, taken.body)
            assert taken.value["duplicate"] is False, name
            events.append(taken.value["event_id"])
            kept = exchange(reader, "GET", f"/v1/events/{events[-1]}/raw", None, {})
            assert kept.status == 200
            assert kept.body == example.body, name
            event = exchange(reader, "GET", f"/v1/events/{events[-1]}", None, {}).value["event"]
            assert event["kind"] == example.kind
            assert event["body"] == example.value, name
            assert event["state"] in {"routed", "ignored"}, name
            assert event["todos"] == taken.value["todos"]
            for link in event["todos"]:
                todo = exchange(reader, "GET", f"/v1/todos/{link['todo_id']}", None, {}).value["todo"]
                key = todo["idempotency_key"]
                assert todo["queue"] == link["queue"] == "inbox"
                lines.append(f"{name} {event['action']}: {link['rule']} -> {todo['kind']} {key} {todo['title']!r}")
    assert len(set(events)) == COUNT
    assert "\n".join(lines) + "\n" == SNAPSHOT.read_text()
    assert "Traceback" not in daemon.output
