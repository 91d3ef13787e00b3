"""`postroom todo`: what each verb asks of the daemon, and what it prints."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.model import TodoState
from tests.doors import fake_daemon
from tests.doors.command import leave
from tests.doors.fake_daemon import LEASE, NOON, TODO, FakeDaemon, claimed, todo

Output = pytest.CaptureFixture[str]
ONE = f"/v1/todos/{TODO}"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDaemon]:
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_ann")
    with fake_daemon.running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        yield fake


def test_add_sends_what_was_given_and_no_more(daemon: FakeDaemon, capsys: Output) -> None:  # S2
    daemon.answer("POST", "/v1/todos", {"todo": todo(), "created": True}, 201)
    assert leave("todo", "add", "review", "Read the change") == 0
    assert daemon.last.body == {"queue": "review", "title": "Read the change"}
    assert daemon.last.headers["content-type"] == "application/json"
    assert "idempotency-key" not in daemon.last.headers
    assert capsys.readouterr().out == f"{TODO} pending in review\n"

    daemon.answer("POST", "/v1/todos", {"todo": todo(), "created": False})
    words = ["--payload", '{"pr": 7}', "--kind", "pr", "--priority", "-5", "--assignee", "ann", "--key", "k"]
    words += ["--max-attempts", "3", "--delay", "1.5m", "--request-id", "r-1"]
    assert leave("todo", "add", "review", "Read the change", *words) == 0
    assert daemon.last.body == {
        "queue": "review",
        "title": "Read the change",
        "payload": {"pr": 7},
        "kind": "pr",
        "priority": -5,
        "assignee": "ann",
        "idempotency_key": "k",
        "max_attempts": 3,
        "delay_s": 90,
    }
    assert daemon.last.headers["idempotency-key"] == "r-1"
    assert capsys.readouterr().out == f"{TODO} pending in review (was there already)\n"


def test_payload_from_a_file_and_from_stdin(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answer("POST", "/v1/todos", {"todo": todo(), "created": True}, 201)
    file = tmp_path / "payload.json"
    file.write_text('{"naïve": [1, null]}')
    assert leave("todo", "add", "q", "t", "--payload", f"@{file}") == 0
    assert daemon.last.body["payload"] == {"naïve": [1, None]}

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b" null\n")))
    assert leave("todo", "add", "q", "t", "--payload", "-") == 0
    assert daemon.last.body == {"queue": "q", "title": "t", "payload": None}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "q", "t", "--payload", "{'a': 1}"), "payload is not valid JSON"),
        (("add", "q", "t", "--payload", '{"a": NaN}'), "payload holds NaN"),
        (("add", "q", "t", "--payload", '{"a": 1, "a": 2}'), "has the key 'a' twice"),
        (("add", "q", "t", "--payload", "[" * 65 + "]" * 65), "nests deeper"),
        (("add", "q", "t", "--payload", "@/nowhere/at/all"), "cannot be read"),
        (("add", "q", "t", "--priority", "high"), "'high' is no whole number"),
        (("add", "q", "t", "--delay", "soon"), "'soon' is no duration"),
        (("add", "q", "t", "--request-id", "a\nb"), "is no key"),
        (("add", "q"), "Missing argument 'TITLE'"),
        (("add", "q", "t", "--colour", "red"), "No such option"),
        (("list", "--state", "asleep"), "'asleep' is none of pending, claimed"),
        (("fail", TODO, "--no-retry", "--retry-in", "5m"), "not both"),
        (("update", TODO), "name what is to change"),
        (("update", TODO, "--assignee", "ann", "--unassign"), "not both"),
        (("update", TODO, "--at", "2026-01-31T12:00:00Z", "--now"), "not both"),
        (("show", ""), "an empty id names nothing"),
        (("forget", TODO), "No such command 'forget'"),
    ],
)
def test_wrong_usage_is_exit_2_and_asks_nothing(
    daemon: FakeDaemon, capsys: Output, words: tuple[str, ...], said: str
) -> None:
    assert leave("todo", *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert daemon.asked == []


def test_list_asks_with_its_filters_and_tells_the_states(daemon: FakeDaemon, capsys: Output) -> None:
    todos = [
        todo(whole=False, owner="ann/1", attempt=1, state=TodoState.CLAIMED),
        todo(whole=False, assignee="bob"),
        todo(whole=False, state=TodoState.FAILED, next_retry_at=NOON),
        todo(whole=False, state=TodoState.FAILED, reason="exhausted"),
        todo(whole=False, state=TodoState.FAILED, reason="cancelled", title="wide 漢字"),
    ]
    daemon.answer("GET", "/v1/todos", {"todos": todos, "next_cursor": "c2"})
    words = ("--queue", "review", "--state", "dead", "--assignee", "bob", "--cursor", "c1", "--limit", "5")
    assert leave("todo", "list", *words) == 0
    asked = {"queue": "review", "state": "dead", "assignee": "bob", "cursor": "c1", "limit": "5"}
    assert daemon.last.query == asked
    taken = capsys.readouterr()
    rows = [line.split() for line in taken.out.splitlines()]
    assert rows[0] == ["ID", "QUEUE", "STATE", "PRI", "TRY", "OWNER", "CREATED", "TITLE"]
    assert [row[2] for row in rows[1:]] == ["claimed", "pending", "parked", "dead", "cancelled"]
    assert rows[1][5] == "ann/1"
    assert rows[2][5:7] == ["for", "bob"]
    assert taken.err == "more: --cursor c2\n"

    assert leave("todo", "list", "--json") == 0
    assert daemon.last.query == {}
    assert json.loads(capsys.readouterr().out) == {"todos": todos, "next_cursor": "c2"}


def test_show_tells_the_whole_and_prints_nothing_a_terminal_obeys(daemon: FakeDaemon, capsys: Output) -> None:
    evil = "\x1b]0;owned\x07 \u202etxt [bold]\nid td_forged"
    view = claimed(title=evil, payload_json=json.dumps({evil: evil, "ctl": "\x9b31m"}), error=evil)
    daemon.answer("GET", ONE, {"todo": view})
    assert leave("todo", "show", TODO) == 0
    shown = capsys.readouterr().out
    assert not any(sign in shown for sign in "\x1b\x07\x9b\u202e")
    assert "\nid td_forged" not in shown
    assert "[bold]" in shown
    assert f"lease             {LEASE}\n" in shown
    assert "attempt           2 of 5\n" in shown
    assert "the tests broke" in shown

    assert leave("todo", "show", TODO, "--json") == 0
    line = capsys.readouterr().out
    assert line.isascii()
    assert json.loads(line) == {"todo": view}


def test_next_claims_and_waits_as_long_as_it_was_told(daemon: FakeDaemon, capsys: Output) -> None:  # S5
    daemon.answer("POST", "/v1/todos/claim", {"todos": [claimed(), claimed()]})
    words = ("--wait", "20s", "--limit", "2", "--ttl", "10m", "--worker", "w1", "--claim-key", "k")
    assert leave("todo", "next", "review", "ci/fast", *words) == 0
    assert daemon.last.body == {
        "queues": ["review", "ci/fast"],
        "wait_s": 20,
        "limit": 2,
        "ttl_s": 600,
        "worker": "w1",
        "claim_key": "k",
    }
    assert capsys.readouterr().out.count(LEASE) == 2

    daemon.answer("POST", "/v1/todos/claim", {"todos": []})
    assert leave("todo", "next") == 0
    assert daemon.last.body == {}
    taken = capsys.readouterr()
    assert (taken.out, taken.err) == ("", "nothing to claim\n")


def test_claim_hands_out_the_lease(daemon: FakeDaemon, capsys: Output) -> None:  # S4, S6
    daemon.answer("POST", f"{ONE}/claim", {"todo": claimed()})
    assert leave("todo", "claim", TODO, "--ttl", "60", "--worker", "w1", "--claim-key", "k") == 0
    assert daemon.last.body == {"ttl_s": 60, "worker": "w1", "claim_key": "k"}
    assert LEASE in capsys.readouterr().out


ENDINGS: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
    (("complete",), "complete", {}),
    (("complete", "--result", '"fine"'), "complete", {"result": "fine"}),
    (("fail", "--error", "no", "--result", "[1]"), "fail", {"error": "no", "result": [1]}),
    (("fail", "--no-retry"), "fail", {"retry": False}),
    (("fail", "--retry-in", "1h"), "fail", {"retry_in_s": 3600}),
    (("release", "--note", "not mine", "--delay", "2m"), "release", {"note": "not mine", "delay_s": 120}),
    (("heartbeat", "--ttl", "5m"), "heartbeat", {"ttl_s": 300}),
]


@pytest.mark.parametrize(("words", "verb", "body"), ENDINGS)
def test_endings_take_the_lease_given_or_the_one_held(
    daemon: FakeDaemon, words: tuple[str, ...], verb: str, body: dict[str, Any]
) -> None:  # S7, S8, S9, S24
    daemon.answer("GET", ONE, {"todo": claimed()})
    daemon.answer("POST", f"{ONE}/{verb}", {"todo": todo(), "replayed": False})
    assert leave("todo", words[0], TODO, *words[1:]) == 0
    assert [(asked.method, asked.path) for asked in daemon.asked] == [("GET", ONE), ("POST", f"{ONE}/{verb}")]
    assert daemon.last.body == {**body, "lease_id": LEASE}

    assert leave("todo", words[0], TODO, "--lease", "ls_other", *words[1:]) == 0
    assert len(daemon.asked) == 3
    assert daemon.last.body == {**body, "lease_id": "ls_other"}


def test_a_lease_held_by_another_is_not_asked_for(daemon: FakeDaemon, capsys: Output) -> None:  # S12
    daemon.answer("GET", ONE, {"todo": todo(state=TodoState.CLAIMED, owner="bob", lease_expires_at=NOON)})
    assert leave("todo", "complete", TODO) == 1
    assert [asked.method for asked in daemon.asked] == ["GET"]
    shown = capsys.readouterr().err
    assert f"error: conflict: {TODO} is claimed and not held by you\n" in shown
    assert "stands: state claimed, owner bob, lease_expires_at 2026-01-31T12:00:00.000Z\n" in shown

    assert leave("todo", "complete", "td_unknown") == 1
    assert "error: not_found" in capsys.readouterr().err


def test_a_replay_is_told(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", f"{ONE}/complete", {"todo": todo(state=TodoState.DONE), "replayed": True})
    assert leave("todo", "complete", TODO, "--lease", LEASE) == 0
    assert capsys.readouterr().out == f"{TODO} done (replayed)\n"


def test_retry_cancel_and_update(daemon: FakeDaemon, capsys: Output) -> None:  # S26
    daemon.answer("POST", f"{ONE}/retry", {"todo": todo()})
    assert leave("todo", "retry", TODO, "--request-id", "r") == 0
    assert daemon.last.headers["idempotency-key"] == "r"
    assert capsys.readouterr().out == f"{TODO} pending\n"

    daemon.answer("POST", f"{ONE}/cancel", {"todo": todo(state=TodoState.FAILED, reason="cancelled")})
    assert leave("todo", "cancel", TODO, "--reason", "a duplicate") == 0
    assert daemon.last.body == {"reason": "a duplicate"}
    assert capsys.readouterr().out == f"{TODO} cancelled\n"

    daemon.answer("PATCH", ONE, {"todo": todo()})
    words = ("--title", "New", "--payload", "null", "--priority", "9", "--assignee", "bob", "--at", "2026-02-01T00:00Z")
    assert leave("todo", "update", TODO, *words) == 0
    assert daemon.last.body == {
        "title": "New",
        "payload": None,
        "priority": 9,
        "assignee": "bob",
        "available_at": "2026-02-01T00:00Z",
    }
    assert leave("todo", "update", TODO, "--unassign", "--now") == 0
    assert daemon.last.body == {"assignee": None, "available_at": None}


def test_an_id_stays_one_segment_of_the_path(daemon: FakeDaemon) -> None:
    assert leave("todo", "show", "../queues?x=1#y") == 1
    assert daemon.last.path == "/v1/todos/..%2Fqueues%3Fx%3D1%23y"
    assert daemon.last.query == {}


def test_a_terminal_gets_a_table_without_markup_and_with_whole_ids(daemon: FakeDaemon) -> None:
    title = "[red]not markup[/red] \x1b[2Jand long " + "word " * 40
    daemon.answer("GET", "/v1/todos", {"todos": [todo(whole=False, title=title)], "next_cursor": None})
    terminal, end = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "postroom", "todo", "list"],
            stdin=subprocess.DEVNULL,
            stdout=end,
            stderr=end,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(end)
        shown = b""
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # how a terminal says that its last writer has gone
                break
            if not part:
                break
            shown += part
        assert process.wait(60) == 0
    finally:
        os.close(terminal)
    assert b"[red]not" in shown
    assert b"\x1b[2J" not in shown
    assert TODO.encode() in shown
