"""`postroom queue`, `event`, `trace`, `token`, `status`: what each verb asks of the daemon, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.endpoint import CarrierKind
from postroom.event import Event, EventState, EventTodo
from postroom.mail_wire import traffic_view
from postroom.model import Trace, TraceStep
from postroom.post import CarrierTraffic, Deferral, Traffic
from postroom.wire import event_view, trace_view
from tests.doors import fake_daemon
from tests.doors.command import child, leave
from tests.doors.fake_daemon import EVENT, NOON, TODO, TOKEN, FakeDaemon

Output = pytest.CaptureFixture[str]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDaemon]:
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_ann")
    with fake_daemon.running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        yield fake


def event(**parts: Any) -> dict[str, Any]:
    plain = Event(
        seq=1,
        id=EVENT,
        source="github",
        provider="github",
        delivery_key="k1",
        kind="issues",
        action="opened",
        title="It broke\x1b[31m",
        state=EventState.ROUTED,
        reason=None,
        verification="hmac sha256",
        digest="{}",
        deliveries=20,
        received_at=NOON,
        last_delivery_at=NOON,
        body_bytes=2,
        headers_json='[["X-GitHub-Event", "issues"]]',
        body_json='{"action": "opened"}',
    )
    return event_view(plain, **parts)


def test_queue_list(daemon: FakeDaemon, capsys: Output) -> None:
    queues = [fake_daemon.queue(lease_ms=1_800_000, max_in_flight=4), fake_daemon.queue("ci/fast", paused=True)]
    daemon.answer("GET", "/v1/queues", {"queues": queues})
    assert leave("queue", "list") == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    first, second = ([cell.strip() for cell in row if cell.strip()] for row in rows[1:])
    assert first == ["review", "open", "3", "2", "1", "0", "1.5m", "30m", "<= 4"]
    assert second == ["ci/fast", "paused", "3", "2", "1", "0", "1.5m", "-", "-"]

    assert leave("queue", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"queues": queues}


def test_queue_set_sends_only_what_was_named(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("PUT", "/v1/queues/ci%2Ffast", {"queue": fake_daemon.queue("ci/fast", lease_ms=600_000)})
    words = ("--lease", "10m", "--max-attempts", "3", "--max-in-flight", "default", "--keep-done", "1d")
    assert leave("queue", "set", "ci/fast", *words) == 0
    assert daemon.last.body == {"lease_s": 600, "max_attempts": 3, "max_in_flight": None, "keep_done_s": 86400}
    shown = capsys.readouterr().out
    assert shown.startswith("ci/fast is open\n")
    assert "  lease         10m\n" in shown
    assert "  max_attempts  default\n" in shown

    assert leave("queue", "set", "ci/fast", "--backoff", "1s", "--backoff-cap", "2h", "--keep-dead", "default") == 0
    assert daemon.last.body == {"backoff_s": 1, "backoff_cap_s": 7200, "keep_dead_s": None}


@pytest.mark.parametrize(
    "words", [("set", "q"), ("set", "q", "--lease", "long"), ("set", "q", "--max-attempts", "2.5"), ("pause", "")]
)
def test_queue_usage(daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    assert leave("queue", *words) == 2
    assert daemon.asked == []


def test_queue_pause_and_resume(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("PUT", "/v1/queues/review", {"queue": fake_daemon.queue(paused=True)})
    assert leave("queue", "pause", "review") == 0
    assert daemon.last.body == {"paused": True}
    assert capsys.readouterr().out.startswith("review is paused\n")
    daemon.answer("PUT", "/v1/queues/review", {"queue": fake_daemon.queue()})
    assert leave("queue", "resume", "review", "--json") == 0
    assert daemon.last.body == {"paused": False}
    assert json.loads(capsys.readouterr().out) == {"queue": fake_daemon.queue()}


def test_a_queue_that_was_never_seen_is_told_of(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("GET", "/v1/queues", {"queues": [fake_daemon.queue()]})
    daemon.answer("GET", "/v1/todos", {"todos": [], "next_cursor": None})
    daemon.answer("POST", "/v1/todos/claim", {"todos": []})
    for name, paused in (("reviw", True), ("review", True), ("other", False)):
        daemon.answer("PUT", f"/v1/queues/{name}", {"queue": fake_daemon.queue(name, paused=paused)})

    def said(*words: str) -> str:
        assert leave(*words) == 0
        return capsys.readouterr().err

    meant = "there is no queue reviw yet (is review meant?)"
    assert said("queue", "pause", "reviw") == f"{meant}: it is made, paused\n"
    assert said("queue", "set", "other", "--lease", "1m") == "there is no queue other yet: it is made\n"
    assert said("todo", "list", "--queue", "reviw") == f"{meant}\n"
    assert said("todo", "next", "reviw", "review") == f"nothing to claim\n{meant}\n"
    for known in (("queue", "pause", "review"), ("todo", "list", "--queue", "review"), ("todo", "list")):
        assert said(*known) == ""
    daemon.refuse("GET", "/v1/queues", 503, "unavailable", "not now")
    assert said("todo", "list", "--queue", "reviw") == ""


def test_event_list_and_show(daemon: FakeDaemon, capsys: Output) -> None:  # S27
    daemon.answer("GET", "/v1/events", {"events": [event(whole=False)], "next_cursor": "c"})
    assert leave("event", "list", "--source", "github", "--kind", "issues", "--state", "routed", "--limit", "9") == 0
    assert daemon.last.query == {"source": "github", "kind": "issues", "state": "routed", "limit": "9"}
    taken = capsys.readouterr()
    row = taken.out.splitlines()[1].split()
    assert row[:6] == [EVENT, "github", "issues.opened", "routed", "20", "2026-01-31T12:00:00Z"]
    assert "\x1b" not in taken.out
    assert taken.err == "more: --cursor c\n"

    link = EventTodo(EVENT, TODO, "inbox", "issue-opened", True)
    view = event(todos=(link,))
    daemon.answer("GET", f"/v1/events/{EVENT}", {"event": view})
    assert leave("event", "show", EVENT) == 0
    shown = capsys.readouterr().out
    assert "issue-opened" in shown
    assert '"action": "opened"' in shown
    assert "verification  hmac sha256\n" in shown
    assert leave("event", "show", EVENT, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"event": view}


def test_event_raw_is_byte_for_byte(daemon: FakeDaemon, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    body = b'{"a": "\xff\x00\x1b[31m"}\r\n'
    daemon.answer("GET", f"/v1/events/{EVENT}/raw", body)
    assert leave("event", "show", EVENT, "--raw") == 0
    assert capfdbinary.readouterr().out == body
    assert leave("event", "show", EVENT, "--raw", "--json") == 2
    daemon.refuse("GET", f"/v1/events/{EVENT}/raw", 404, "not_found", "no such event")
    assert leave("event", "show", EVENT, "--raw") == 1


def test_trace(daemon: FakeDaemon, capsys: Output) -> None:
    story = trace_view(
        Trace(TODO, (TraceStep(NOON, "received", EVENT), TraceStep(NOON + 5, "claimed", TODO, "by ann\x1b")))
    )
    daemon.answer("GET", f"/v1/trace/{TODO}", story)
    assert leave("trace", TODO) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[1].split() == ["2026-01-31T12:00:00.000Z", "received", EVENT]
    assert rows[2].endswith("by ann\N{REPLACEMENT CHARACTER}")
    assert leave("trace", TODO, "--json") == 0
    assert json.loads(capsys.readouterr().out) == story
    assert leave("trace", "") == 2


def test_token_create_prints_the_secret_alone_on_stdout(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", "/v1/tokens", {"token": fake_daemon.token(), "secret": "tk_secret"}, 201)
    assert leave("token", "create", "ann", "--queue", "review", "--queue", "ci/*") == 0
    assert daemon.last.body == {"name": "ann", "role": "agent", "queues": ["review", "ci/*"]}
    taken = capsys.readouterr()
    assert taken.out == "tk_secret\n"
    assert TOKEN in taken.err
    assert leave("token", "create", "root", "--role", "admin", "--json") == 0
    assert daemon.last.body == {"name": "root", "role": "admin"}
    assert json.loads(capsys.readouterr().out)["secret"] == "tk_secret"
    assert leave("token", "create", "x", "--role", "king") == 2


def test_token_list_and_revoke(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("GET", "/v1/tokens", {"tokens": [fake_daemon.token()]})
    assert leave("token", "list") == 0
    assert "review, ci/*" in capsys.readouterr().out
    revoked = {**fake_daemon.token(), "name": "gone", "revoked_at": "2026-01-31T12:00:00.000Z"}
    daemon.answer("GET", "/v1/tokens", {"tokens": [fake_daemon.token(), revoked]})
    for words, shown in (((), False), (("--all",), True), (("--all", "--json"), True), (("--json",), False)):
        assert leave("token", "list", *words) == 0
        assert ("gone" in capsys.readouterr().out) is shown
    daemon.answer("POST", f"/v1/tokens/{TOKEN}/revoke", {"token": fake_daemon.token()})
    assert leave("token", "revoke", TOKEN) == 0
    assert capsys.readouterr().out == f"{TOKEN} ann is revoked\n"
    assert leave("token", "revoke", "") == 2


def test_status_tells_what_there_is(daemon: FakeDaemon, capsys: Output) -> None:
    answer = {
        "version": "0.1.0",
        "engine": "sqlite",
        "database": "sqlite:///x.db",
        "ready": True,
        "uptime_s": 7200,
        "queues": [fake_daemon.queue()],
        "sweep": {"last_run_at": "2026-01-31T12:00:00.000Z", "reaped": 2},
        "warnings": ["the clock stepped back"],
        "events": {"received": 20, "duplicates": 19},
        "pool": {"free": 3},
        "post": {
            "running": True,
            "problem": None,
            "outcomes": {},
            "carriers": {"tmux": {"servers": [{"socket": "s", "panes": {"%3": "on"}, "fault": None}]}, "channel": {}},
            "without_carrier": {"opencode": "messages wait"},
        },
        "hooks": {"gh": {"accepted": 1, "refused": {"signature": 2}}},
        "deliveries": traffic_view(
            Traffic(
                (CarrierTraffic(CarrierKind.TMUX, 3, 1, 0, 2, 4, 7_200_000),),
                (Deferral("tmux:s:1:2:%3", CarrierKind.TMUX, "a dialog\x1b is open", NOON, 2, "claude-1"),),
                1,
                2,
            )
        ),
    }
    daemon.answer("GET", "/v1/status", answer)
    assert leave("status") == 0
    taken = capsys.readouterr()
    lines = [" ".join(row.split()) for row in taken.out.splitlines()]
    for said in (
        f"daemon {daemon.url}",
        "ready yes",
        "uptime 2h",
        "sweep last_run_at 2026-01-31T12:00:00Z, reaped 2",
        "pool free 3",
        "endpoints live 1, standing 2",
        "courier runs",
        "by tmux servers (socket s, panes (%3 on))",
        "by channel nothing yet",
        "by opencode messages wait",
        "hooks/gh accepted 1, refused (signature 2)",
    ):
        assert said in lines
    assert "review" in taken.out
    assert not set("{}[]") & set(taken.out), "JSON is for programs"
    rows = [row.split() for row in taken.out.splitlines()]
    assert ["tmux", "3", "2h", "1", "0", "2", "4"] in rows
    assert "claude-1 tmux pane %3 of s 2 2026-01-31T12:00:00Z a dialog\N{REPLACEMENT CHARACTER} is open" in [
        " ".join(row) for row in rows
    ]
    assert taken.err == "warning: the clock stepped back\n"
    assert leave("status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == answer

    daemon.refuse("GET", "/v1/status", 503, "unavailable", "the database is down")
    assert leave("status") == 1


STUB = """
import sys, types

class Settings:
    def shown(self):
        return [("port", 0, "flag"), ("database", "sqlite:///x.db", "default"), ("hooks_port", None, "default")]

def load_settings(**flags):
    if flags["host"] == "wrong":
        from postroom.errors import Misconfigured
        raise Misconfigured("postroom.toml: line 3: host: expected an address", field="host")
    print("flags", {name: value for name, value in flags.items() if value is not None}, file=sys.stderr)
    return Settings()

def serve(settings):
    print("serving", type(settings).__name__)
    return 7

def run(**options):
    print("mcp", options)
    return 0

for name, made in {
    "postroom.config": {"load_settings": load_settings},
    "postroom.daemon": {"serve": serve},
    "postroom.demos.run": {"run_demo": lambda story, keep: 5},
    "postroom.doors.mcp": {"__path__": []},
    "postroom.doors.mcp.stdio": {"run": run},
}.items():
    module = types.ModuleType(name)
    module.__dict__.update(made)
    sys.modules[name] = module

from postroom.doors.cli.main import run as command
command()
"""


def test_serve_hands_its_flags_on_and_leaves_with_the_daemons_code() -> None:
    words = ("--config", "c.toml", "--data", "d", "--database", "sqlite:///x.db", "--host", "127.0.0.1", "--port", "0")
    done = child("serve", *words, "--socket", "s.sock", "--hooks-port", "8080", "--open", program=STUB)
    assert done.returncode == 7
    assert done.stdout == "serving Settings\n"
    assert done.stderr == (
        "flags {'config': 'c.toml', 'data': 'd', 'database': 'sqlite:///x.db', 'host': '127.0.0.1', 'port': 0, "
        "'socket': 's.sock', 'hooks_port': 8080, 'open_': True}\n"
    )
    bare = child("serve", program=STUB)
    assert bare.stderr == "flags {}\n"


def test_a_wrong_setting_ends_the_start() -> None:
    done = child("serve", "--host", "wrong", program=STUB)
    assert done.returncode == 1
    assert "error: misconfigured: postroom.toml: line 3: host: expected an address\n" in done.stderr
    told = child("config", "--host", "wrong", "--json", program=STUB)
    assert told.returncode == 1
    assert json.loads(told.stderr)["error"]["field"] == "host"
    assert child("serve", "--port", "many", program=STUB).returncode == 2


def test_config_prints_where_each_setting_came_from() -> None:
    done = child("config", "--json", program=STUB)
    assert json.loads(done.stdout)["settings"][0] == {"key": "port", "value": 0, "origin": "flag"}
    rows = [line.split() for line in child("config", program=STUB).stdout.splitlines()]
    assert rows == [
        ["SETTING", "VALUE", "FROM"],
        ["port", "0", "flag"],
        ["database", "sqlite:///x.db", "default"],
        ["hooks_port", "-", "default"],
    ]


def test_mcp_and_demo_are_started_by_name() -> None:
    done = child("mcp", "--agent", "ann", "--url", "http://127.0.0.1:1", "--token-file", "t", program=STUB)
    assert done.returncode == 0
    assert done.stdout == "mcp {'agent': 'ann', 'url': 'http://127.0.0.1:1', 'token_file': 't', 'channel': None}\n"
    assert child("demo", program=STUB).returncode == 5
