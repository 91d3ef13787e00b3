"""Channels between real processes: daemons that die and come back, agents that are killed, two daemons of one database."""

from __future__ import annotations

import json
import queue
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.processes import Processes, wait_until
from tests.system.daemons import Daemon

pytestmark = pytest.mark.system

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "claude", "version": "2"}},
}
LINE_S = 30.0


class Agent:
    """`postroom mcp --channel` behind a client that speaks the handshake in raw lines."""

    def __init__(self, processes: Processes, daemon: Daemon, name: str = "claude", *words: str) -> None:
        self.daemon = daemon
        self.name = name
        arguments = ("-m", "postroom", "mcp", "--channel", "--name", name, "--url", f"unix://{daemon.socket}", *words)
        self.process = processes.python(*arguments, env=daemon.environment, pipes=True)
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.say(HELLO)
        assert self.hear()["result"]["capabilities"]["experimental"] == {"claude/channel": {}}
        self.say({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def say(self, message: Mapping[str, Any]) -> None:
        """Write a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next line."""
        return self._lines.get(timeout=LINE_S)

    def pushed(self) -> Mapping[str, str]:
        """The attributes of the next line, which must be a push."""
        line = self.hear()
        assert line["method"] == "notifications/claude/channel", line
        attributes: Mapping[str, str] = line["params"]["meta"]
        return attributes

    def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        """A call's structured answer."""
        self.say({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
        answer: dict[str, Any] = self.hear()["result"]["structuredContent"]
        return answer

    def there(self, daemon: Daemon | None = None) -> Agent:
        """Attached, and waiting at its daemon."""

        def waits() -> bool:
            status = (daemon or self.daemon).ask("GET", "/v1/status").value
            return bool(status["post"]["carriers"]["channel"]["processes"])

        wait_until(waits, f"{self.name} waits")
        return self


def send(daemon: Daemon, payload: str, to: str = "claude") -> str:
    """A message's id."""
    answer = daemon.ask("POST", "/v1/messages", {"to": to, "payload": payload})
    assert answer.status == 202, answer.body
    return str(answer.value["id"])


def delivery(daemon: Daemon, id_: str) -> Mapping[str, Any]:
    """The one delivery of a message."""
    (one,) = daemon.ask("GET", f"/v1/messages/{id_}").value["message"]["deliveries"]
    found: Mapping[str, Any] = one
    return found


def test_nothing_is_lost_whoever_is_killed(daemon: Daemon, processes: Processes) -> None:
    first = Agent(processes, daemon).there()
    old = daemon.ask("GET", "/v1/endpoints?name=claude").value["endpoints"][0]
    # It stops as a process does that is about to be killed, with a message on its way to it.
    first.process.send_signal(signal.SIGSTOP)
    lost = send(daemon, "in the middle")
    wait_until(lambda: delivery(daemon, lost)["lease_expires_at"], "it is being handed over")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(10)
    wait_until(lambda: delivery(daemon, lost)["may_have_been_written"], "nobody knows whether it was pushed")
    second = Agent(processes, daemon).there()
    endpoints = daemon.ask("GET", "/v1/endpoints?name=claude").value["endpoints"]
    assert len(endpoints) == 1, "what was left of the killed one has ended"
    assert endpoints[0]["id"] != old["id"]
    assert [letter["payload"] for letter in second.tool("swarm_read")["messages"]] == ["in the middle"]
    assert delivery(daemon, lost)["state"] == "injected"
    # Its daemon dies, and comes back.
    daemon.kill()
    assert second.tool("who")["error"]["code"] == "unavailable"
    daemon.start()
    second.there()
    sent = send(daemon, "welcome back")
    assert second.pushed()["message_id"] == sent
    assert second.tool("ack_message", id=sent)["message"]["deliveries"][0]["state"] == "acknowledged"
    # Stopped in good order it does not keep its daemon waiting, and a daemon that stops does not end it.
    assert daemon.terminate() == 0
    second.process.terminate()
    assert second.process.wait(20) == 0


def test_a_message_that_another_daemon_admits_comes_through_the_one_that_has_the_process(
    new_daemon: Callable[..., Daemon], processes: Processes, postgres_url: str
) -> None:
    here = new_daemon(database=postgres_url).start()
    there = Daemon(processes, here.folder / "second", database=postgres_url).start()
    agent = Agent(processes, here, "claude", "--queue", "review").there()
    sent = send(there, "hello")
    assert agent.pushed()["message_id"] == sent
    todo = there.create("review", "look at it")
    ring = agent.pushed()
    assert (ring["kind"], ring["queue"], ring["todo_id"]) == ("queue.ring", "review", todo)
    assert agent.tool("ack_message", id=sent)["message"]["deliveries"][0]["state"] == "acknowledged"
    wait_until(lambda: delivery(there, sent)["state"] == "acknowledged", "the other daemon knows")
    (claimed,) = agent.tool("claim_next", queues=["review"], wait_s=0)["todos"]
    assert claimed["owner"] == "admin/claude"
    wait_until(lambda: delivery(here, ring["message_id"])["reason"] == "cancelled", "the claim takes the ring back")
