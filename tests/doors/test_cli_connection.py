"""How the command finds a daemon and its token, and what it leaves with when something is wrong."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from postroom.doors.cli.asking import refusing
from tests.doors import fake_daemon
from tests.doors.command import child, leave
from tests.doors.fake_daemon import LEASE, TODO, FakeDaemon


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("POSTROOM_URL", "POSTROOM_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with fake_daemon.running() as fake:
        yield fake


def test_finds_the_socket_and_token_of_the_data_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "admin-token").write_text("tk_admin\n")
    with fake_daemon.running(tmp_path / "postroom.sock") as fake:
        fake.answer("GET", "/v1/queues", {"queues": []})
        assert leave("queue", "list", "--json") == 0
    assert fake.last.headers["authorization"] == "Bearer tk_admin"
    assert json.loads(capsys.readouterr().out) == {"queues": []}


def test_a_named_folder_wins_over_the_environment(
    tmp_path: Path, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    other = tmp_path / "other"
    other.mkdir()
    with fake_daemon.running(other / "postroom.sock") as fake:
        fake.answer("GET", "/v1/queues", {"queues": []})
        assert leave("queue", "list", "--data", str(other)) == 0
    assert len(fake.asked) == 1
    assert daemon.asked == []


def test_url_and_token_of_the_environment(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "admin-token").write_text("tk_admin\n")
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_agent")
    daemon.answer("GET", "/v1/queues", {"queues": []})
    assert leave("queue", "list") == 0
    assert daemon.last.headers["authorization"] == "Bearer tk_agent"


def test_without_a_token_none_is_shown_and_the_hint_says_so(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    daemon.refuse("GET", "/v1/queues", 401, "unauthenticated", "no token")
    assert leave("queue", "list") == 1
    assert "authorization" not in daemon.last.headers
    shown = capsys.readouterr().err
    assert "error: unauthenticated: no token" in shown
    assert "hint: No token was found: set POSTROOM_TOKEN" in shown


def test_no_daemon_is_exit_3_and_says_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leave("queue", "list") == 3
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: unreachable: no daemon answers at unix://{tmp_path}/postroom.sock: No such file")
    assert "Start one with: postroom serve;" in shown

    assert leave("queue", "list", "--json", "--data", f"{tmp_path}/a b") == 3
    told = json.loads(capsys.readouterr().err)["error"]
    assert told["code"] == "unreachable"
    assert f"postroom serve --data '{tmp_path}/a b'" in told["hint"]

    with socket.socket() as held:  # bound and not listening: nobody answers here
        held.bind(("127.0.0.1", 0))
        monkeypatch.setenv("POSTROOM_URL", f"http://127.0.0.1:{held.getsockname()[1]}")
        assert leave("queue", "list") == 3
    assert "Connection refused" in capsys.readouterr().err

    monkeypatch.setenv("POSTROOM_URL", "unix:///" + "x" * 200)
    assert leave("queue", "list") == 3
    assert "too long" in capsys.readouterr().err


def test_a_broken_answer_is_exit_3_and_does_not_claim_that_nothing_was_done(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    daemon.answers["POST", "/v1/todos"] = None
    assert leave("todo", "add", "review", "x") == 3
    shown = capsys.readouterr().err
    assert "broke before the answer" in shown
    assert "may have been done" in shown
    assert len(daemon.asked) == 1


@pytest.mark.parametrize(
    ("status", "content"),
    [(200, b"<html>"), (200, b"[]"), (502, b"bad gateway"), (404, {"detail": "nope"}), (307, b"")],
)
def test_another_server_is_not_taken_for_a_daemon(
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
    content: object,
) -> None:
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    daemon.answer("GET", "/v1/queues", content, status)
    assert leave("queue", "list") == 3
    assert "is no Postroom daemon" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "unix://relative", "http://127.0.0.1:99999", "http://"])
def test_a_malformed_url_is_usage(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTROOM_URL", url)
    assert leave("queue", "list") == 2
    assert "error: invalid: url" in capsys.readouterr().err


def test_a_token_that_fits_no_header_is_usage(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_a\nX-Evil: 1")
    assert leave("queue", "list") == 2
    assert daemon.asked == []
    assert "token" in capsys.readouterr().err


def test_a_refusal_is_exit_1_with_where_it_stands(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # S12
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    path = f"/v1/todos/{TODO}/complete"
    daemon.refuse("POST", path, 409, "conflict", "held by \x1b[31mann", state="claimed", owner="ann")
    assert leave("todo", "complete", TODO, "--lease", LEASE) == 1
    taken = capsys.readouterr()
    assert taken.out == ""
    assert "error: conflict: held by \N{REPLACEMENT CHARACTER}[31mann\n" in taken.err
    assert "stands: state claimed, owner ann\n" in taken.err
    assert "hint: Somebody else was first" in taken.err

    assert leave("todo", "complete", TODO, "--lease", LEASE, "--json") == 1
    taken = capsys.readouterr()
    assert taken.out == ""
    told = json.loads(taken.err)["error"]
    assert told["code"] == "conflict"
    assert told["state"] == "claimed"
    assert told["hint"].startswith("Somebody else")


@pytest.mark.parametrize(
    ("details", "hint"),
    [
        (
            {"state": "claimed", "owner": "ann", "lease_expires_at": None},
            "Somebody else was first, or the lease is over",
        ),
        ({"state": "done", "owner": None, "hint": "Its own."}, "Its own."),
        ({"field": "name"}, "Take another name"),
        ({"field": "request_id"}, "Take a new request id"),
        ({"field": "msg_id", "message_id": "m1"}, "Give another message another id"),
        ({"state": "pending", "assignee": "bob"}, "Leave it to the one it is assigned to"),
        ({"state": "pending", "reason": "paused"}, "Wait until the queue is resumed"),
        ({"reason": "max_in_flight"}, "Wait until one of the queue's"),
        ({"state": "being_written"}, "Wait a moment"),
        ({"state": "ended"}, "Attach again"),
        ({"state": "injected"}, "Read how it stands"),
        ({}, "Read how it stands"),
    ],
)
def test_a_conflict_comes_with_what_fits_it(
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    details: dict[str, str],
    hint: str,
) -> None:
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    daemon.refuse("POST", f"/v1/todos/{TODO}/cancel", 409, "conflict", "no", **details)
    assert leave("todo", "cancel", TODO) == 1
    assert f"hint: {hint}" in capsys.readouterr().err


def test_a_flag_is_named_as_it_was_typed(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    for path, field, words, flag in (
        ("/v1/endpoints", "delivery_max_attempts", ("attach", "--inbox", "--name", "a", "--max-attempts", "99"), None),
        ("/v1/todos", "max_attempts", ("todo", "add", "q", "t", "--max-attempts", "999"), None),
        ("/v1/todos", "available_at", ("todo", "add", "q", "t", "--at", "2026-01-01T00:00:00Z"), "--at"),
        ("/v1/todos", "priority", ("todo", "add", "q", "t"), "priority"),
        ("/v1/todos", "title", ("todo", "add", "q", "t"), "title"),
    ):
        daemon.refuse("POST", path, 400, "invalid", f"{field} is wrong, not {field}_x", field=field)
        assert leave(*words, *(("--no-repo",) if words[0] == "attach" else ())) == 1
        said = flag or "--max-attempts"
        assert f"error: invalid: {said} is wrong, not {field}_x\n" in capsys.readouterr().err
        assert leave(*words, "--json", *(("--no-repo",) if words[0] == "attach" else ())) == 1
        assert json.loads(capsys.readouterr().err.splitlines()[-1])["error"]["field"] == field


def test_what_the_system_refuses_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, refusing(False):
        raise PermissionError(errno.EACCES, "Permission denied", "/x/y")
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err.startswith("error: misconfigured: /x/y cannot be used: Permission denied")
    # A fault that is no file's is a fault of ours, and is seen whole.
    with pytest.raises(OSError, match="no such process"), refusing(False):
        raise OSError(errno.ESRCH, "no such process")


def test_a_data_folder_that_cannot_be_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "afile").write_text("")
    for place, why in (
        (f"{tmp_path}/afile", "it is no folder"),
        (f"{tmp_path}/afile/x", "Not a directory"),
        ("/proc/xx", "No such file or directory"),
        (f"{tmp_path}/{'n' * 300}", "File name too long"),
    ):
        monkeypatch.setenv("POSTROOM_DATA", place)
        for flags, origin in ((), "environment POSTROOM_DATA"), (("--data", place), "flag"):
            assert leave("serve", *flags) == 1
            told = capsys.readouterr().err
            assert told.startswith("error: misconfigured: ")
            assert why in told
            if "too long" not in why:
                assert f"data: expected a folder that can be made at {place} ({origin})" in told
                assert "hint: Name another folder: --data FOLDER, POSTROOM_DATA" in told
        for words in (("config",), ("source", "add", "a", "--provider", "github")):
            leave(*words)
            assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "invalid"), (403, "forbidden"), (404, "not_found"), (413, "too_large"), (503, "unavailable")],
)
def test_each_code_is_told(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int, code: str
) -> None:
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    daemon.refuse("POST", "/v1/todos", status, code, "it says why", field="title")
    assert leave("todo", "add", "review", "x") == 1
    assert f"error: {code}: it says why (title)\n" in capsys.readouterr().err


PROBE = """
import json, sys
from postroom.doors.cli.main import run
try:
    run(sys.argv[1:])
finally:
    heavy = ("httpx", "httpx2", "pydantic", "pydantic_core", "starlette", "uvicorn", "mcp", "rich", "apsw", "psycopg")
    if sys.argv[1] in ("--version", "nosuch"):  # no verb is asked for, and none is read
        heavy += ("postroom.doors.cli.todo", "postroom.doors.cli.serve", "postroom.doors.cli.asking")
    print(json.dumps([name for name in heavy if name in sys.modules]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0),
        (("--version",), 0),
        (("nosuch",), 2),
        (("todo", "add", "review", "Read it", "--payload", '{"pr": 7}', "--delay", "5m", "--priority", "-3"), 0),
        (("todo", "list", "--state", "pending", "--limit", "5"), 0),
        (("todo", "next", "review", "ci", "--wait", "1s"), 0),
        (("todo", "show", "td_no"), 1),
        (("todo", "add", "review"), 2),
        (("queue", "set", "review", "--lease", "10m"), 0),
        (("status",), 0),
    ],
)
def test_verbs_stay_light(daemon: FakeDaemon, words: tuple[str, ...], code: int) -> None:
    daemon.answer("POST", "/v1/todos", {"todo": fake_daemon.todo(), "created": True}, 201)
    daemon.answer("GET", "/v1/todos", {"todos": [fake_daemon.todo(whole=False)], "next_cursor": None})
    daemon.answer("POST", "/v1/todos/claim", {"todos": []})
    daemon.answer("PUT", "/v1/queues/review", {"queue": fake_daemon.queue(lease_ms=600_000)})
    daemon.answer("GET", "/v1/status", {"ready": True})
    done = child(*words, url=daemon.url, program=PROBE)
    assert done.returncode == code, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_no_daemon_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = child("todo", "add", "review", "x", program=PROBE, POSTROOM_DATA=str(tmp_path))
    assert done.returncode == 3
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_completion_knows_verbs_and_choices() -> None:
    verbs = child(_POSTROOM_COMPLETE="complete_bash", COMP_WORDS="postroom todo re", COMP_CWORD="2").stdout.split()
    assert verbs == ["release", "retry"]
    states = child(
        _POSTROOM_COMPLETE="complete_bash", COMP_WORDS="postroom todo list --state p", COMP_CWORD="4"
    ).stdout.split()
    assert states == ["pending", "parked"]
    script = child(_POSTROOM_COMPLETE="source_bash").stdout
    assert "complete -o default -F _postroom_completion postroom" in script


def test_a_reader_that_goes_is_no_fault(daemon: FakeDaemon) -> None:
    many = [fake_daemon.todo(whole=False, title="x" * 400)] * 200
    daemon.answer("GET", "/v1/todos", {"todos": many, "next_cursor": None})
    shell = f"{sys.executable} -m postroom todo list --limit 200 | head -n 1"
    done = subprocess.run(
        ["/bin/sh", "-c", shell],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "POSTROOM_URL": daemon.url},
        check=False,
    )
    assert done.stdout.startswith("ID ")
    assert done.stderr == ""
