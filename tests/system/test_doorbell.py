"""The doorbell and the hand-over in real daemons: a signed delivery wakes who listens, and who gave work is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.processes import Processes, wait_until
from tests.system.daemons import GITHUB, Daemon
from tests.system.test_sources import BODY

pytestmark = pytest.mark.system


def attach(daemon: Daemon, name: str, *queues: str) -> str:
    """An inbox of this name that listens to these queues: its endpoint's id."""
    body = {"carrier": "inbox", "address": {}, "name": name, "queues": list(queues)}
    answer = daemon.ask("POST", "/v1/endpoints", body)
    assert answer.status == 201, answer.body
    return str(answer.value["endpoint"]["id"])


def letters(daemon: Daemon, name: str, kind: str) -> list[Mapping[str, Any]]:
    """What an inbox shows of a kind."""
    answer = daemon.ask("GET", f"/v1/inbox?for={name}")
    assert answer.status == 200, answer.body
    return [letter for letter in answer.value["messages"] if letter["kind"] == kind]


def test_a_signed_delivery_wakes_who_listens(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon(GITHUB).start()
    attach(daemon, "ann", "inbox")
    assert daemon.deliver(BODY).status == 202
    wait_until(lambda: letters(daemon, "ann", "queue.ring"), "Ann is rung")
    (ring,) = letters(daemon, "ann", "queue.ring")
    assert ring["from"] == "postroom"
    assert ring["payload"].startswith("1 todo waits in queue inbox. Claim with claim_next")
    assert daemon.ask("GET", "/v1/status").value["doorbell"] == {"queues": 1, "rung": 1, "problem": None}
    story = daemon.ask("GET", f"/v1/trace/{ring['correlation_id']}").value["steps"]
    assert [step["what"] for step in story if step["what"] != "decided"] == [
        "received",
        "verified",
        "routed",
        "created",
        "rung",
        "ring handed off",
    ]
    assert daemon.ask("GET", "/v1/status").value["deliveries"]["endpoints"] == {"live": 1, "standing": 1}


def test_who_gave_work_away_is_told_when_it_is_done(daemon: Daemon) -> None:
    secret = daemon.ask("POST", "/v1/tokens", {"name": "bob"}).value["secret"]
    todo = daemon.create("inbox", "read this", assignee="bob")
    call = "/v1/todos/claim"
    bob = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    claimed = daemon.ask_port("POST", call, b'{"queues": ["inbox"]}', bob)
    assert claimed.status == 200, claimed.body
    (held,) = claimed.value["todos"]
    done = daemon.ask_port("POST", f"/v1/todos/{todo}/complete", f'{{"lease_id": "{held["lease_id"]}"}}'.encode(), bob)
    assert done.status == 200, done.body
    wait_until(lambda: letters(daemon, "admin", "status.update"), "its creator is told")
    (letter,) = letters(daemon, "admin", "status.update")
    assert letter["metadata"]["todo_id"] == todo
    assert letter["metadata"]["state"] == "done"


def test_two_daemons_of_one_database_ring_once_whoever_dies(
    new_daemon: Callable[..., Daemon], processes: Processes, postgres_url: str
) -> None:
    first = new_daemon(database=postgres_url).start()
    second = Daemon(processes, first.folder / "second", database=postgres_url).start()

    def rung(*names: str) -> int:
        return sum(len(letters(first, name, "queue.ring")) for name in names)

    attach(first, "ann", "review")
    attach(second, "bob", "review")
    for n in range(3):
        second.create("review", f"work {n}")
    wait_until(lambda: rung("ann", "bob"), "one of them is rung")
    second.kill()
    first.create("review", "one more")
    # Who comes is rung by a look that saw all of that.
    attach(first, "cid", "review")
    wait_until(lambda: rung("cid"), "who comes is rung")
    assert rung("ann", "bob", "cid") == 2
