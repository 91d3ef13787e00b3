"""`postroom tail` over a real daemon: a todo's whole life as it happens, across a restart, and through a pipe."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Processes, wait_until
from tests.system.daemons import Daemon, command

pytestmark = pytest.mark.system


def listening(daemon: Daemon, count: int) -> None:
    """Wait until so many listen."""
    wait_until(lambda: daemon.ask("GET", "/v1/status").value["listeners"] == count, f"{count} listen")


def post(daemon: Daemon, path: str, body: Any) -> dict[str, Any]:
    """A POST that is taken: its answer."""
    answer = daemon.ask("POST", path, body)
    assert answer.status < 300, answer.body
    return dict(answer.value)


def test_a_todos_whole_life_is_told_as_it_happens(daemon: Daemon, processes: Processes) -> None:
    tail = processes.start(command(), "tail", "--queue", "review", "--json", env=daemon.environment)
    listening(daemon, 1)
    id_ = daemon.create("review", "Read it")
    daemon.create("other")
    ask = {"queues": ["review"], "worker": "w"}

    def claim() -> str:
        (todo,) = post(daemon, "/v1/todos/claim", ask)["todos"]
        return str(todo["lease_id"])

    post(daemon, f"/v1/todos/{id_}/release", {"lease_id": claim(), "note": "not mine"})
    post(daemon, f"/v1/todos/{id_}/fail", {"lease_id": claim(), "error": "broke\x1b[31m", "retry": False})
    post(daemon, f"/v1/todos/{id_}/retry", {})
    # The stream breaks, and goes on with the daemon that comes after it.
    assert daemon.terminate() == 0
    wait_until(lambda: "waiting for the daemon" in processes.output(tail), "the break is told")
    daemon.start()
    listening(daemon, 1)
    post(daemon, f"/v1/todos/{id_}/complete", {"lease_id": claim()})
    wait_until(lambda: "todo.done" in processes.output(tail), "its end is told")
    tail.send_signal(signal.SIGINT)
    assert tail.wait(10) == 0
    told = [json.loads(line) for line in processes.output(tail).splitlines() if line.startswith("{")]
    assert [one["what"] for one in told] == [
        "todo.created",
        "todo.claimed",
        "todo.released",
        "todo.claimed",
        "todo.failed",
        "todo.retried",
        "lagged",
        "todo.claimed",
        "todo.done",
    ]
    assert {one["id"] for one in told if one["what"] != "lagged"} == {id_}
    assert told[1]["who"] == "admin/w"
    assert told[4]["words"] == "dead letter, refused: broke�[31m"


def test_it_ends_when_nobody_reads_its_lines_any_more(daemon: Daemon, folder: Path) -> None:
    program = f"{command()} tail --data {folder}"
    piped = subprocess.Popen(["sh", "-c", f"{program} | head -1"], stdout=subprocess.PIPE, text=True)
    try:
        listening(daemon, 1)
        id_ = daemon.create("review", "Read it")
        # One line is enough for `head`; no second one has to come for `tail` to see that it has gone.
        said, _ = piped.communicate(timeout=30)
        assert "todo.created" in said
        assert id_ in said
        listening(daemon, 0)
    finally:
        piped.kill()
        piped.wait(10)
