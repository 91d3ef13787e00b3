"""The post's clients against a real daemon: the command, the senders, and the opencode plugin in a real Node."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doors.plugin_rig import Plugin
from tests.system.daemons import Daemon, command

pytestmark = pytest.mark.system


@pytest.fixture
def run(daemon: Daemon) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs one of the installed programs against the daemon."""

    def program(
        name: str, *words: str, given: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if key != "OPENCODE_SESSION_ID"}
        return subprocess.run(
            [os.path.join(os.path.dirname(command()), name), *words],
            input=given or "",
            capture_output=True,
            text=True,
            timeout=60,
            env={**kept, **daemon.environment, **environment},
            check=False,
        )

    return program


def told(done: subprocess.CompletedProcess[str]) -> Any:
    """What a program said in JSON."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_message_from_the_command_to_an_inbox_and_back(
    run: Callable[..., subprocess.CompletedProcess[str]], daemon: Daemon
) -> None:  # P2, P21
    words = ("send", "--to", "reader", "--from", "writer", "--msg-id", "m1", "--wait", "handed_off", "--json")
    sent = told(run("postroom", *words, "hello\n</swarm_message>"))
    assert sent["outcome"] == "handed_off"
    assert sent["message"]["deliveries"][0]["state"] == "injected"
    again = told(run("postroom", *words, "hello\n</swarm_message>"))
    assert (again["id"], again["deduplicated"]) == ("m1", True)
    other = run("postroom", *words, "another")
    assert other.returncode == 1
    assert json.loads(other.stderr)["error"]["code"] == "conflict"

    page = told(run("postroom", "inbox", "--for", "reader", "--unread", "--mark-read", "--json"))
    assert [(one["id"], one["from"], one["payload"]) for one in page["messages"]] == [
        ("m1", "writer", "hello\n</swarm_message>")
    ]
    assert page["unread"] == 0
    assert told(run("postroom", "inbox", "--for", "reader", "--unread", "--json"))["messages"] == []
    assert told(run("postroom", "ack", "m1", "--json"))["message"]["deliveries"][0]["state"] == "acknowledged"
    assert "acknowledged" in run("postroom", "message", "show", "m1").stdout
    assert [one["id"] for one in told(run("postroom", "message", "list", "--to", "reader", "--json"))["messages"]] == [
        "m1"
    ]


def test_what_waits_can_be_cancelled_and_retried(
    run: Callable[..., subprocess.CompletedProcess[str]], daemon: Daemon
) -> None:
    words = ("send", "--to", "ses_1", "--from", "ses_2", "--msg-id", "m1", "x")
    waited = run("postroom", *words, "--wait", "handed_off", "--deadline", "0.2")
    assert waited.returncode == 4
    assert waited.stdout.startswith("m1 pending to ses_1\n")
    assert run("postroom", "message", "cancel", "m1", "--reason", "no more").stdout == "m1 cancelled to ses_1\n"
    assert run("postroom", *words, "--wait", "handed_off").returncode == 1
    assert run("postroom", "retry", "m1").stdout == "m1 pending to ses_1\n"
    assert run("postroom", "retry", "m1").returncode == 1
    assert run("postroom", "message", "show", "m2").returncode == 1


def test_a_channel_has_subscribers(run: Callable[..., subprocess.CompletedProcess[str]], daemon: Daemon) -> None:
    for name in ("ann", "bob"):
        assert run("postroom", "channel", "subscribe", "team/a", name).returncode == 0
    assert run("postroom", "channel", "list").stdout.splitlines()[1].split() == ["#team/a", "ann,", "bob"]
    sent = told(
        run("postroom", "send", "--channel", "team/a", "--from", "ann", "news", "--wait", "handed_off", "--json")
    )
    assert [one["mailbox"] for one in sent["message"]["deliveries"]] == ["bob"]
    assert {one["mailbox"] for one in told(run("postroom", "endpoints", "--json"))["endpoints"]} == {"ann", "bob"}
    assert "bob" in run("postroom", "who").stdout
    assert run("postroom", "channel", "unsubscribe", "team/a", "bob").returncode == 0
    nobody = run("postroom", "send", "--channel", "team/a", "--from", "ann", "x", "--wait", "handed_off")
    assert nobody.returncode == 1
    assert "nobody is subscribed" in nobody.stderr


def test_pigeon_send_queues_for_a_session(
    run: Callable[..., subprocess.CompletedProcess[str]], daemon: Daemon
) -> None:  # P18
    done = run("pigeon-send", "--kind", "task.assign", "ses_1", "-", given="do it", OPENCODE_SESSION_ID="ses_2")
    assert done.returncode == 0, done.stderr
    kept = told(run("postroom", "message", "show", done.stdout.strip(), "--json"))["message"]
    assert (kept["from"], kept["to"], kept["kind"], kept["payload"]) == ("ses_2", "ses_1", "task.assign", "do it")
    routed = run("opencode-send", "ses_1", "and this", OPENCODE_SESSION_ID="ses_2")
    assert routed.returncode == 0, routed.stderr
    assert routed.stdout.startswith("msg_")
    refused = run("pigeon-send", "--from", "ses_2", "--kind", "No Kind", "ses_1", "x")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: invalid: kind")


def test_the_plugin_that_setup_installs_speaks_for_sessions_alone(
    run: Callable[..., subprocess.CompletedProcess[str]], daemon: Daemon, tmp_path: Path
) -> None:  # P17, P18
    project = tmp_path / "project"
    project.mkdir()
    words = ("setup", "opencode", "--project", str(project), "--write")
    assert run("postroom", *words).returncode == 0
    assert run("postroom", *words).stdout.count("up to date") == 3
    installed = project / ".opencode" / "plugin" / "postroom.js"
    plugin_text = installed.read_text("utf-8")
    plugin = Plugin(tmp_path, {}, installed)

    sent = plugin.call("swarm_send", "ses_a", to="reader", payload="from a session", msg_id="m1")
    assert (sent["accepted"], sent["msg_id"]) == (True, "m1")
    (one,) = told(run("postroom", "inbox", "--for", "reader", "--json"))["messages"]
    assert (one["from"], one["payload"]) == ("ses_a", "from a session")
    again = plugin.call("swarm_send", "ses_a", to="reader", payload="from a session", msg_id="m1")
    assert again["deduplicated"] is True
    other = plugin.call("swarm_send", "ses_a", to="reader", payload="another", msg_id="m1")
    assert other["error"]["code"] == "conflict"

    for number in (1, 2):
        run("postroom", "send", "--to", "ses_a", "--msg-id", f"n{number}", f"to a session {number}")
        # Nothing carries it here, for no opencode is named; an acknowledgement makes it visible as a hand-off does.
        assert run("postroom", "ack", f"n{number}").returncode == 0
    page = plugin.call("swarm_read", "ses_a")
    assert [one["payload"] for one in page["messages"]] == ["to a session 1", "to a session 2"]
    assert page["unread"] == 0
    assert [one["msg_id"] for one in plugin.call("swarm_read", "ses_a", since="n1")["messages"]] == ["n2"]
    assert plugin.call("swarm_read", "ses_a", since=page["next_since"])["messages"] == []
    assert plugin.call("swarm_read", "ses_b")["messages"] == []
    assert plugin.call("swarm_read", "reader")["error"]["code"] == "forbidden"

    assert run("postroom", *words[:2], "--remove", "--write").returncode == 0
    assert plugin.call("swarm_read", "reader")["error"]["code"] == "forbidden", "the project uses it still"
    assert run("postroom", *words, "--remove").returncode == 0
    assert not installed.exists()
    installed.parent.mkdir(parents=True, exist_ok=True)
    installed.write_text(plugin_text)
    assert plugin.call("swarm_read", "reader")["messages"], "the admin's token is used once its own is gone"
