"""`postroom tail` against a stand-in daemon: what it asks, prints and refuses, and when it ends."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from postroom.doors.cli import following
from postroom.happening import LAGGED, Happening
from postroom.happening_wire import BEGIN, MEDIA, happening_view, shown_event
from tests.doors.command import child, leave
from tests.doors.fake_daemon import NOON, TODO, FakeDaemon, running

DONE = Happening(NOON, "todo.done", TODO, "review", None, "ann/w", "Read \x1b[31mit")
SENT = Happening(NOON, "message.admitted", "m1", None, "bob", "ann", "chat to bob", ("td_1",))


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """A stand-in daemon that tells of two happenings, and then ends its stream."""
    with running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        monkeypatch.setenv("POSTROOM_TOKEN", "tk_test")
        fake.answer("GET", "/stream", BEGIN + shown_event(DONE) + b": still there\n\n" + shown_event(SENT))
        yield fake


def test_a_line_a_happening(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("tail", "--count", "2") == 0
    first, second = capsys.readouterr().out.splitlines()
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NOON / 1000))
    assert first == f"{moment}  todo.done              {TODO}  review  ann/w  Read �[31mit"
    assert second == f"{moment}  message.admitted       m1  bob  ann  chat to bob"
    assert daemon.last.headers["authorization"] == "Bearer tk_test"
    assert daemon.last.headers["accept"] == MEDIA


def test_json_is_the_wires(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("tail", "--count", "2", "--json") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == [happening_view(DONE), happening_view(SENT)]


def test_the_filter_is_the_daemons(daemon: FakeDaemon) -> None:
    assert leave("tail", "td_1", "--queue", "review", "--mailbox", "bob", "--what", "todo", "--count", "1") == 0
    assert daemon.last.query == {"queue": "review", "mailbox": "bob", "what": "todo", "id": "td_1"}


def test_a_break_is_told_and_listened_past(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("tail", "--count", "4", "--json") == 0
    told = capsys.readouterr()
    whats = [json.loads(line)["what"] for line in told.out.splitlines()]
    assert whats == ["todo.done", "message.admitted", LAGGED, "todo.done"]
    assert "listening again" in told.err


def test_it_ends_when_its_time_is_up(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("tail", "--for", "0.1s", "--what", "todo") == 0
    assert "todo.done" in capsys.readouterr().out


def test_its_time_is_up_also_while_a_daemon_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(following, "LEAST_ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("POSTROOM_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert leave("tail", "--for", "0.05") == 3
    assert "broke: no answer in time" in capsys.readouterr().err


def test_what_is_refused_ends_it(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.refuse("GET", "/stream", 400, "invalid", "what 'x' is expected to be one of todo, …", field="what")
    assert leave("tail", "--what", "x") == 1
    assert "what 'x' is expected" in capsys.readouterr().err
    daemon.refuse("GET", "/stream", 401, "unauthenticated", "the token is unknown or revoked")
    assert leave("tail", "--json") == 1
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "unauthenticated"
    daemon.refuse("GET", "/stream", 503, "unavailable", "200 listen already")
    assert leave("tail") == 1


@pytest.mark.parametrize("words", [("--count", "0"), ("--count", "x"), ("--for", "soon"), ("a", "b"), ("--limit", "3")])
def test_wrong_usage_asks_nothing(daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    assert leave("tail", *words) == 2
    assert not daemon.asked


def test_what_is_no_stream_of_ours_is_told(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    # It may be a daemon on its way up behind a proxy: it goes on trying until its time is up.
    daemon.answer("GET", "/stream", b"data: {}\n\n")
    assert leave("tail", "--for", "0.1s") == 0
    assert "no stream: b'{}' is no happening; waiting for the daemon" in capsys.readouterr().err


def test_what_is_no_daemon_of_ours_is_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Page(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>")

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        monkeypatch.setenv("POSTROOM_URL", f"http://127.0.0.1:{server.server_address[1]}")
        assert leave("tail") == 3
        serving.join(10)
    assert "is no Postroom daemon: status 200 '<html>'" in capsys.readouterr().err


def test_no_daemon_at_first_is_3_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("POSTROOM_URL", "http://127.0.0.1:9")
    assert leave("tail") == 3
    assert "no daemon answers" in capsys.readouterr().err


def test_it_brings_in_no_library_that_is_slow(daemon: FakeDaemon) -> None:
    slow = ("httpx2", "pydantic", "mcp", "asyncio", "starlette", "rich")
    program = (
        "import sys\n"
        "from postroom.doors.cli.main import run\n"
        "try:\n    run()\n"
        f"finally:\n    print(sorted(set({slow!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = child("tail", "--count", "1", url=daemon.url, program=program, POSTROOM_TOKEN="tk_test")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    assert "todo.done" in done.stdout
