"""The opencode plugin: what its tools ask of a daemon, under whose name, and what a model reads when it goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doors import fake_daemon, fake_post
from tests.doors.fake_daemon import NOON, FakeDaemon
from tests.doors.fake_post import MESSAGE, SESSION, delivery, letter, sent
from tests.doors.plugin_rig import Plugin


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with fake_daemon.running() as fake:
        fake.answer("POST", "/v1/messages", sent(), 202)
        fake.answer("GET", "/v1/inbox", fake_post.inbox(letter(1), letter(2, reply_to="msg_1"), unread=2))
        fake.answer("POST", "/v1/inbox/read", fake_post.inbox(unread=0))
        yield fake


@pytest.fixture
def plugin(daemon: FakeDaemon, tmp_path: Path) -> Plugin:
    return Plugin(tmp_path, {"POSTROOM_URL": daemon.url, "POSTROOM_TOKEN": "tk_sessions"})


def test_what_a_model_is_offered(plugin: Plugin) -> None:  # P17
    (offered,) = plugin.ask({})
    assert set(offered) == {"swarm_read", "swarm_send"}
    assert offered["swarm_read"]["required"] == []
    assert set(offered["swarm_read"]["properties"]) == {"since"}
    assert offered["swarm_send"]["required"] == ["payload"]
    fields = offered["swarm_send"]["properties"]
    assert set(fields) == {"to", "channel", "payload", "kind", "priority", "reply_to", "msg_id"}
    assert fields["priority"]["enum"] == ["urgent", "normal", "low"]
    assert all(field["type"] == "string" and field["description"] for field in fields.values())


def test_send_speaks_as_the_calling_session(plugin: Plugin, daemon: FakeDaemon) -> None:  # P17
    answer = plugin.call("swarm_send", to=SESSION, payload="hello\n</swarm_message>\x1b")
    assert daemon.last.body == {"from": "ses_mine", "to": SESSION, "payload": "hello\n</swarm_message>\x1b"}
    assert daemon.last.headers["authorization"] == "Bearer tk_sessions"
    assert answer == {
        "accepted": True,
        "msg_id": MESSAGE,
        "deduplicated": False,
        "deliveries": [{"to": SESSION, "state": "pending"}],
    }
    whole = {"kind": "task.assign", "priority": "urgent", "reply_to": "msg_1", "msg_id": "mine", "payload": "x"}
    plugin.call("swarm_send", "ses_other", channel="team", to="", **whole)
    assert daemon.last.body == {"from": "ses_other", "channel": "team", **whole}


def test_read_gives_letters_in_order_and_marks_them(plugin: Plugin, daemon: FakeDaemon) -> None:  # P17
    answer = plugin.call("swarm_read")
    assert [(one.method, one.path) for one in daemon.asked] == [("GET", "/v1/inbox"), ("POST", "/v1/inbox/read")]
    assert daemon.asked[0].query == {"for": "ses_mine", "limit": "20"}
    assert daemon.last.body == {"for": "ses_mine", "since": "s.9"}
    assert answer["messages"][1] == {
        "msg_id": "msg_2",
        "from": "ses_writer",
        "to": SESSION,
        "kind": "chat",
        "priority": "normal",
        "reply_to": "msg_1",
        "handed_off_at": "2026-01-31T12:00:00.002Z",
        "read": False,
        "payload": "hello",
    }
    assert (answer["next_since"], answer["more"], answer["unread"]) == ("s.9", False, 0)

    daemon.answer("GET", "/v1/inbox", fake_post.inbox())
    assert plugin.call("swarm_read", since="s.9 &x") == {
        "messages": [],
        "next_since": "s.9",
        "more": False,
        "unread": 0,
    }
    assert daemon.last.query["since"] == "s.9 &x"


def test_a_page_is_no_longer_than_a_model_can_take(plugin: Plugin, daemon: FakeDaemon) -> None:
    long = [letter(number, payload="x" * 10_000) for number in range(1, 6)]
    daemon.answer("GET", "/v1/inbox", fake_post.inbox(*long, unread=5))
    answer = plugin.call("swarm_read")
    assert [one["msg_id"] for one in answer["messages"]] == ["msg_1", "msg_2"]
    assert (answer["next_since"], answer["more"]) == ("msg_2", True)
    assert daemon.last.body["since"] == "msg_2"
    daemon.answer("GET", "/v1/inbox", fake_post.inbox(letter(1, payload="y" * 60_000)))
    (one,) = plugin.call("swarm_read")["messages"]
    assert one["cut"] is True
    assert len(one["payload"]) == 24 * 1024


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"payload": "x"}, "to"),
        ({"to": "a", "channel": "b", "payload": "x"}, "to"),
        ({"to": "a"}, "payload"),
        ({"to": "a", "payload": ""}, "payload"),
        ({"to": "a", "payload": 7}, "payload"),
        ({"to": ["a"], "payload": "x"}, "to"),
        ({"to": "a", "payload": "x", "priority": "high"}, "priority"),
        ({"to": "a", "payload": "x", "from": "ses_forged"}, "from"),
        ({"to": "a", "payload": "é" * (32 * 1024 + 1)}, "payload"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_sent(
    plugin: Plugin, daemon: FakeDaemon, args: dict[str, Any], field: str
) -> None:  # P3, P4
    error = plugin.call("swarm_send", **args)["error"]
    assert error["field"] == field
    assert error["code"] == ("too_large" if len(str(args.get("payload", ""))) > 99 else "invalid")
    assert daemon.asked == []


def test_a_refusal_is_an_answer_with_a_hint(plugin: Plugin, daemon: FakeDaemon) -> None:
    for status, code in ((400, "invalid"), (401, "unauthenticated"), (403, "forbidden"), (409, "conflict")):
        daemon.refuse("POST", "/v1/messages", status, code, "it says why", field="msg_id")
        error = plugin.call("swarm_send", to="a", payload="x")["error"]
        assert (error["code"], error["message"], error["field"]) == (code, "it says why", "msg_id")
        assert error["hint"]
    daemon.answer("GET", "/v1/inbox", b"<html>", 502)
    assert plugin.call("swarm_read")["error"]["code"] == "unavailable"
    daemon.answers["POST", "/v1/messages"] = None
    error = plugin.call("swarm_send", to="a", payload="x")["error"]
    assert error["code"] == "unavailable"
    assert "It may have been sent all the same" in error["hint"]
    assert plugin.call("swarm_read", "")["error"]["message"] == "opencode named no session for this call"


def test_no_daemon_is_an_answer_that_says_how_to_start_one(tmp_path: Path) -> None:
    error = Plugin(tmp_path, {}).call("swarm_send", to="a", payload="x")["error"]
    assert error["message"].startswith(f"the daemon at unix://{tmp_path}/data/postroom/postroom.sock was not reached")
    assert "postroom serve" in error["hint"]
    for url in ("nonsense", "unix://relative", "ftp://127.0.0.1", "http://127.0.0.1:1/path"):
        error = Plugin(tmp_path, {"POSTROOM_URL": url}).call("swarm_read")["error"]
        assert error["message"] == f"{url} is no daemon's address"
    far = {"POSTROOM_URL": "http://192.0.2.1:7373", "POSTROOM_TOKEN": "tk_x"}
    assert "in the clear" in Plugin(tmp_path, far).call("swarm_read")["error"]["message"]


def test_the_call_ends_when_the_session_is_aborted(tmp_path: Path) -> None:
    import socket

    with socket.socket() as silent:  # listening, and never answering
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        plugin = Plugin(tmp_path, {"POSTROOM_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        call = {"tool": "swarm_read", "session": "ses_mine", "args": {}, "abort_ms": 50}
        (answer,) = plugin.ask(call)
    error = json.loads(answer)["error"]
    assert error["code"] == "unavailable"
    assert error["message"].endswith("the call was ended")


def test_it_finds_the_daemon_as_the_command_does(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "postroom"
    folder.mkdir(parents=True)
    (folder / "admin-token").write_text("tk_admin\n")
    with fake_daemon.running(folder / "postroom.sock") as fake:
        fake.answer("POST", "/v1/messages", sent(delivery("injected", delivered_at=NOON)), 202)
        for environment, token in (({}, "tk_admin"), ({"POSTROOM_TOKEN": "tk_given"}, "tk_given")):
            plugin = Plugin(tmp_path, {**environment, "POSTROOM_DATA": str(folder)} if environment else {})
            assert plugin.call("swarm_send", to="a", payload="x")["accepted"] is True
            assert fake.last.headers["authorization"] == f"Bearer {token}"
    with fake_daemon.running() as fake:
        fake.answer("POST", "/v1/messages", sent(), 202)
        kept = {"url": fake.url, "token": "tk_kept", "token_id": "tk_1"}
        (folder / "opencode.json").write_text(json.dumps(kept))
        assert Plugin(tmp_path, {}).call("swarm_send", to="a", payload="x")["accepted"] is True
        assert fake.last.headers["authorization"] == "Bearer tk_kept"
    (folder / "opencode.json").write_text("{")
    assert Plugin(tmp_path, {}).call("swarm_read")["error"]["code"] == "misconfigured"


def test_a_folder_below_the_home_is_found_by_its_short_name(tmp_path: Path) -> None:
    folder = tmp_path / "box"
    folder.mkdir()
    (folder / "admin-token").write_text("tk_admin\n")
    with fake_daemon.running(folder / "postroom.sock") as fake:
        fake.answer("POST", "/v1/messages", sent(), 202)
        plugin = Plugin(tmp_path, {"POSTROOM_DATA": "~/box", "HOME": str(tmp_path)})
        assert plugin.call("swarm_send", to="a", payload="x")["accepted"] is True
        assert fake.last.headers["authorization"] == "Bearer tk_admin"


def test_a_sessions_shell_knows_its_id(plugin: Plugin) -> None:  # P18
    calls = [{"hook": "shell.env", "input": {"cwd": "/", "sessionID": "ses_mine"}}, {"hook": "shell.env", "input": {}}]
    assert plugin.ask(*calls) == [{"env": {"OPENCODE_SESSION_ID": "ses_mine"}}, {"env": {}}]
