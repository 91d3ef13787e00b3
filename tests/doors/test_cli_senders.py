"""`pigeon-send` and `opencode-send`: what they ask of whom, what they print, and how they leave."""

from __future__ import annotations

import base64
import importlib.metadata
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.doors.cli import direct, pigeon
from tests.doors import fake_daemon
from tests.doors.command import child
from tests.doors.fake_daemon import FakeDaemon

Output = pytest.CaptureFixture[str]
QUEUED = {"accepted": True, "msg_id": "msg_1"}
SESSION = "ses_reader"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDaemon]:
    for name in ("OPENCODE_URL", "OPENCODE_SERVER_PASSWORD", "OPENCODE_SERVER_USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_ann")
    monkeypatch.setenv("OPENCODE_SESSION_ID", "ses_writer")
    with fake_daemon.running() as fake:
        fake.answer("POST", "/swarm/send", QUEUED, 202)
        fake.answer("GET", "/health", {"ok": True})
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        yield fake


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """An opencode server that has one session."""
    with fake_daemon.running() as fake:
        fake.answer("GET", f"/session/{SESSION}", {"id": SESSION, "directory": "/src/a b"})
        fake.answer("POST", f"/session/{SESSION}/prompt_async", b"", 204)
        monkeypatch.setenv("OPENCODE_URL", fake.url)
        yield fake


def pigeon_send(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        pigeon.run(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def opencode_send(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        direct.run(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def give_stdin(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))


def test_pigeon_send_posts_to_the_swarm_and_prints_the_id(daemon: FakeDaemon, capsys: Output) -> None:  # P18, P22
    assert pigeon_send(SESSION, "hello") == 0
    assert (daemon.last.method, daemon.last.path) == ("POST", "/swarm/send")
    assert daemon.last.body == {"from": "ses_writer", "to": SESSION, "payload": "hello"}
    assert daemon.last.headers["authorization"] == "Bearer tk_ann"
    taken = capsys.readouterr()
    assert taken.out == "msg_1\n"
    assert taken.err == f"Queued msg_1 -> {SESSION} (kind=chat priority=normal, 5 chars)\n"


def test_pigeon_send_takes_its_options_anywhere(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {
        "from": "ses_other",
        "to": SESSION,
        "kind": "task.assign",
        "priority": "urgent",
        "reply_to": "msg_0",
        "msg_id": "mine",
        "payload": "do it",
    }
    options = ["--from", "ses_other", "--kind", "task.assign", "--reply-to", "msg_0", "--msg-id", "mine"]
    for words in (
        [*options, "--priority", "urgent", SESSION, "do it"],
        [SESSION, *options, "do it", "--priority", "urgent"],
        ["do it", "--to", SESSION, *options, "--priority=urgent"],
    ):
        assert pigeon_send(*words) == 0
        assert daemon.last.body == whole
    give_stdin(monkeypatch, "stdin\nsays \N{PILE OF POO}\n".encode())
    assert pigeon_send("--channel", "team", "-") == 0
    assert daemon.last.body == {"from": "ses_writer", "channel": "team", "payload": "stdin\nsays \N{PILE OF POO}\n"}
    assert pigeon_send(SESSION, "--", "-dashed") == 0
    assert daemon.last.body["payload"] == "-dashed"


@pytest.mark.parametrize(
    "words",
    [
        (),
        (SESSION,),
        (SESSION, "x", "y"),
        ("--to", SESSION),
        ("--to", SESSION, "--channel", "c", "x"),
        ("--to", SESSION, "other", "x"),
        (SESSION, "x", "--priority", "high"),
        (SESSION, "x", "--prio", "low"),
        (SESSION, "x", "--nope"),
    ],
)
def test_pigeon_send_usage(daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    assert pigeon_send(*words) == 2
    assert opencode_send(*words) == 2
    assert not [one for one in daemon.asked if one.path != "/health"]


def test_somebody_has_to_say_it(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("OPENCODE_SESSION_ID", "")
    assert pigeon_send(SESSION, "x") == 2
    assert "give --from, or set OPENCODE_SESSION_ID" in capsys.readouterr().err
    assert daemon.asked == []


def test_what_the_swarm_refuses_is_exit_1(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    for status, code in ((400, "invalid"), (401, "unauthenticated"), (403, "forbidden"), (409, "conflict")):
        daemon.answer("POST", "/swarm/send", {"error": "it says \x1b why"}, status)
        assert pigeon_send(SESSION, "x") == 1
        taken = capsys.readouterr()
        assert taken.out == ""
        assert taken.err.startswith(f"error: {code}: it says \N{REPLACEMENT CHARACTER} why\nhint: ")

    give_stdin(monkeypatch, b"x" * (64 * 1024 + 1))
    count = len(daemon.asked)
    assert pigeon_send(SESSION, "-") == 1
    assert "error: too_large: payload has more than 65536 bytes" in capsys.readouterr().err
    give_stdin(monkeypatch, b"\xff")
    assert pigeon_send(SESSION, "-") == 1
    assert "error: invalid: payload is not UTF-8" in capsys.readouterr().err
    assert len(daemon.asked) == count


def test_no_daemon_is_exit_3(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Output
) -> None:
    monkeypatch.delenv("POSTROOM_URL")
    assert pigeon_send(SESSION, "x") == 3
    assert f"error: unreachable: no daemon answers at unix://{tmp_path}/postroom.sock" in capsys.readouterr().err
    monkeypatch.setenv("POSTROOM_URL", daemon.url)
    assert pigeon_send("--data", f"{tmp_path}/other", SESSION, "x") == 3


def test_opencode_send_goes_by_the_daemon(daemon: FakeDaemon, server: FakeDaemon, capsys: Output) -> None:  # P18
    assert opencode_send(SESSION, "hello", "--kind", "status.update") == 0
    assert [one.path for one in daemon.asked] == ["/health", "/swarm/send"]
    assert daemon.last.body == {"from": "ses_writer", "to": SESSION, "kind": "status.update", "payload": "hello"}
    assert server.asked == []
    taken = capsys.readouterr()
    assert taken.out == "msg_1\n"
    assert "warning" not in taken.err


@pytest.mark.parametrize("health", [503, 404, 302])
def test_opencode_send_goes_straight_past_a_daemon_that_is_not_well(
    daemon: FakeDaemon, server: FakeDaemon, capsys: Output, health: int
) -> None:  # P18
    daemon.answer("GET", "/health", {}, health)
    assert opencode_send(SESSION, "hello") == 0
    assert [one.path for one in daemon.asked] == ["/health"]
    assert [one.path for one in server.asked] == [f"/session/{SESSION}", f"/session/{SESSION}/prompt_async"]
    assert server.last.body == {"parts": [{"type": "text", "text": "hello"}]}
    assert server.last.headers["x-opencode-directory"] == "/src/a b"
    assert "authorization" not in server.last.headers
    taken = capsys.readouterr()
    assert taken.out == f"Sent to {SESSION} (cwd=/src/a b, 5 chars)\n"
    assert taken.err.startswith("warning: no daemon answers\nwarning: sent past the daemon: nothing keeps")


def test_direct_asks_no_daemon_and_warns(
    daemon: FakeDaemon, server: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:  # P18
    monkeypatch.setenv("OPENCODE_SERVER_PASSWORD", "secret")
    monkeypatch.delenv("OPENCODE_SESSION_ID")
    assert opencode_send("--direct", SESSION, "hello") == 0
    assert daemon.asked == []
    assert server.last.headers["authorization"] == "Basic " + base64.b64encode(b"opencode:secret").decode()
    assert "warning: sent past the daemon" in capsys.readouterr().err
    assert opencode_send("--direct", "--cwd", "/el\N{LATIN SMALL LETTER E WITH ACUTE}", SESSION, "x") == 0
    assert [one.method for one in server.asked] == ["GET", "POST", "POST"]
    assert server.last.headers["x-opencode-directory"] == "/el%C3%A9"


def test_what_is_no_session_goes_straight(daemon: FakeDaemon, server: FakeDaemon) -> None:
    server.answer("GET", "/session/other%2F1", {"directory": "/src"})
    server.answer("POST", "/session/other%2F1/prompt_async", b"", 204)
    assert opencode_send("other/1", "x") == 0
    assert daemon.asked == []
    assert server.last.path == "/session/other%2F1/prompt_async"


def test_what_goes_wrong_on_the_straight_way(
    daemon: FakeDaemon, server: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    assert opencode_send("--direct", "ses_gone", "x") == 1
    assert f"error: not_found: {server.url} has no session 'ses_gone'" in capsys.readouterr().err
    server.answer("GET", f"/session/{SESSION}", [])
    assert opencode_send("--direct", SESSION, "x") == 3
    assert "is no opencode server" in capsys.readouterr().err
    server.answer("GET", f"/session/{SESSION}", {}, 401)
    assert opencode_send("--direct", SESSION, "x") == 1
    assert "OPENCODE_SERVER_PASSWORD" in capsys.readouterr().err
    server.answers["POST", f"/session/{SESSION}/prompt_async"] = (500, b"no\x1b")
    assert opencode_send("--direct", "--cwd", "/", SESSION, "x") == 1
    assert "answered 500: no\N{REPLACEMENT CHARACTER}" in capsys.readouterr().err
    server.answers["POST", f"/session/{SESSION}/prompt_async"] = None
    assert opencode_send("--direct", "--cwd", "/", SESSION, "x") == 3
    assert "It may have arrived all the same" in capsys.readouterr().err
    count = len(server.asked)
    for url in ("http://192.0.2.1:4096", "https://127.0.0.1", "nonsense", "http://127.0.0.1:4096/x", "http://[", ""):
        monkeypatch.setenv("OPENCODE_URL", url)
        if url:
            assert opencode_send("--direct", SESSION, "x") == 1
            assert "error: invalid: url" in capsys.readouterr().err
    assert len(server.asked) == count
    assert opencode_send("--direct", "--channel", "team", "x") == 2


def test_both_are_installed_beside_postroom() -> None:
    scripts = {one.name: one.value for one in importlib.metadata.distribution("postroom").entry_points}
    assert scripts["pigeon-send"] == "postroom.doors.cli.pigeon:run"
    assert scripts["opencode-send"] == "postroom.doors.cli.direct:run"


@pytest.mark.parametrize("module", ["pigeon", "direct"])
def test_the_senders_load_nothing_but_the_library(daemon: FakeDaemon, module: str) -> None:
    program = f"""
import json, sys
from postroom.doors.cli.{module} import run
try:
    run(sys.argv[1:])
finally:
    heavy = ("typer", "rich", "httpx2", "pydantic", "starlette", "mcp", "apsw", "psycopg", "uuid_utils")
    print(json.dumps([name for name in heavy if name in sys.modules]), file=sys.stderr)
"""
    done = child(SESSION, "hello", url=daemon.url, program=program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "msg_1\n"
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_a_message_through_a_pipe(daemon: FakeDaemon) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from postroom.doors.cli.pigeon import run; run()", SESSION, "-"],
        input=b"x" * (64 * 1024 + 1),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert b"too_large" in done.stderr
    assert daemon.asked == []


@pytest.mark.parametrize(
    "words",
    [
        ("--to", "ses_a", "--to", "ses_b", "hi"),
        ("--priority", "low", "--priority=low", "ses_a", "hi"),
        ("ses_a", "hi", "--msg-id", "a", "--msg-id", "b"),
    ],
)
def test_an_option_is_given_once(daemon: FakeDaemon, capsys: Output, words: tuple[str, ...]) -> None:
    for sending in (pigeon_send, opencode_send):
        assert sending(*words) == 2
        assert "given several times; expected once" in capsys.readouterr().err
    assert not daemon.asked
    assert opencode_send("--url", "http://127.0.0.1:1", "ses_a", "hi", "--url", "http://127.0.0.1:2") == 2
