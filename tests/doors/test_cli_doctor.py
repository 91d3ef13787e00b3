"""`postroom doctor` as a whole: its checks' order, deadlines and faults, what it prints, and how it ends."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom import __version__
from postroom.doors.cli import doctor
from postroom.doors.cli.checks import local as checks_local
from postroom.doors.cli.checks import mcp as checks_mcp
from postroom.doors.cli.checks.check import Check, run
from postroom.doors.cli.checks.found import Findings, Line, State, fail, ok, skip, warn
from postroom.doors.cli.checks.scene import Scene, Skip
from postroom.errors import Forbidden, Unauthenticated, Unavailable
from postroom.wire import show_time
from tests.doors import fake_daemon
from tests.doors.command import child, leave
from tests.doors.doctor_rig import NOWHERE, be_patient, scene, status
from tests.doors.fake_daemon import FakeDaemon

Output = pytest.CaptureFixture[str]
SOURCE = Path(checks_local.__file__).parents[3]


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    be_patient(monkeypatch)
    # The real one has a test of its own, and costs more than all the rest.
    greeting = json.dumps({"result": {"serverInfo": {"version": __version__}}})
    monkeypatch.setattr(checks_mcp, "COMMAND", ("/bin/sh", "-c", f"echo '{greeting}'"))
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("POSTROOM_URL", NOWHERE)
    monkeypatch.delenv("POSTROOM_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """A daemon that is healthy, and knows nothing but its status."""
    with fake_daemon.running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        fake.answer("GET", "/health", {"status": "ok", "version": status()["version"]})
        fake.answer("GET", "/ready", {"status": "ready"})
        now = time.time_ns() // 1_000_000
        sweep = {**status()["sweep"], "last_run_at": show_time(now)}
        fake.answer("GET", "/v1/status", {**status(), "now": show_time(now), "sweep": sweep})
        yield fake


# The run.


def test_lines_come_in_the_order_of_the_checks(tmp_path: Path) -> None:
    later = threading.Event()

    def first(_: Scene) -> Findings:
        assert later.wait(2)
        return ok("one")

    def second(_: Scene) -> Findings:
        later.set()
        return [warn("two", "do it", about="a"), skip("three", about="b")]

    lines = run([Check("x.first", first), Check("x.second", second)], scene(tmp_path))
    assert lines == [
        Line("x.first", State.OK, "one", None),
        Line("x.second[a]", State.WARN, "two", "do it"),
        Line("x.second[b]", State.SKIP, "three", None),
    ]


def test_what_hangs_fails_by_itself_and_holds_nothing_up(tmp_path: Path) -> None:
    end = threading.Event()

    def hangs(_: Scene) -> Findings:
        end.wait(30)
        return ok("too late")

    lines = run([Check("x.hangs", hangs)] * 5 + [Check("x.good", lambda _: ok("fine"))], scene(tmp_path), 0.2)
    assert not end.is_set(), "it has not waited for them"
    end.set()
    assert [line.state for line in lines] == [State.FAIL] * 5 + [State.OK]
    assert lines[0].found == "this check did not end within 0.2 s"


def test_what_hangs_does_not_keep_the_process_from_ending() -> None:
    program = (
        "import threading; from postroom.doors.cli.checks.check import side_by_side;"
        "print(side_by_side([threading.Event().wait, lambda: 7], 0.5))"
    )
    done = child(program=program)
    assert (done.stdout, done.returncode) == ("[None, 7]\n", 0)


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        (ZeroDivisionError("x/0"), State.FAIL, "the check itself broke: ZeroDivisionError: x/0"),
        (KeyError("queues"), State.FAIL, "the check itself broke: KeyError: 'queues'"),
        (Unavailable("the disk is full"), State.FAIL, "the disk is full"),
        (Skip("nothing there"), State.SKIP, "nothing there"),
        (Forbidden("for admins"), State.SKIP, "this token is an agent's; what is asked here takes an admin's"),
        (Unauthenticated("no"), State.SKIP, "the daemon does not know this token"),
    ],
)
def test_a_fault_is_the_checks_own(tmp_path: Path, error: Exception, state: State, words: str) -> None:
    def breaks(_: Scene) -> Findings:
        raise error

    broken, after = run([Check("x.breaks", breaks), Check("x.after", lambda _: ok("fine"))], scene(tmp_path))
    assert (broken.state, broken.found) == (state, words)
    assert after.state is State.OK


def test_every_line_is_printable_and_bounded(tmp_path: Path) -> None:
    said = "evil\x1b[2J\u202e\n" + "x" * 1000
    (line,) = run([Check("x.y", lambda _: fail(said, said, about=said))], scene(tmp_path))
    for words in (line.check, line.found, line.fix or ""):
        assert words.isprintable()
        assert len(words) <= 410


# The verb.


def test_every_check_is_named_once_and_groups_stand_together() -> None:
    names = [check.name for check in doctor.every_check()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in names)
    groups = [name.partition(".")[0] for name in names]
    assert sorted(set(groups), key=groups.index) == [
        "settings",
        "data",
        "disk",
        "daemon",
        "clock",
        "sources",
        "post",
        "clients",
        "mcp",
        "work",
    ]
    assert [group for n, group in enumerate(groups) if n == 0 or groups[n - 1] != group] == list(dict.fromkeys(groups))


def test_without_a_daemon_what_is_local_is_looked_at_and_it_ends_with_3(capsys: Output) -> None:
    assert leave("doctor", "--json") == 3
    lines = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert lines["daemon.reached"]["state"] == "fail"
    assert lines["daemon.reached"]["fix"] == "postroom serve; or set POSTROOM_URL"
    assert lines["settings.file"]["state"] == "ok"
    assert lines["disk.space"]["state"] in {"ok", "warn", "fail"}
    assert lines["work.dead"] == {
        "check": "work.dead",
        "state": "skip",
        "found": "no daemon was reached",
        "fix": None,
    }
    assert set(lines) == {check.name for check in doctor.every_check()}


def test_a_healthy_daemon_ends_with_0_and_a_failure_with_1(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", "/mcp", {"result": {"tools": [{"name": name} for name in TOOLS]}})
    for path, answer in ANSWERS.items():
        daemon.answer("GET", path, answer)
    assert leave("doctor") == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert out.splitlines()[0] == "settings"
    assert re.fullmatch(r"\d+ ok, \d+ warn, 0 fail, \d+ skip", out.splitlines()[-1])
    assert "  ok    engine    sqlite 3.54.0" in out.splitlines()
    daemon.refuse("GET", "/ready", 503, "unavailable", "the database is away")
    assert leave("doctor") == 1
    assert "not ready: the database is away -> start the database" in capsys.readouterr().out


TOOLS = ("claim_next", "complete", "heartbeat", "send_message")
ANSWERS = {
    "/v1/sources": {
        "sources": [],
        "warnings": [],
        "settings_file": None,
        "data": "/nowhere",
        "addresses": ["http://x"],
    },
    "/v1/endpoints": {"endpoints": []},
    "/v1/todos": {"todos": [], "next_cursor": None},
}


def test_an_agents_token_skips_what_takes_an_admin(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.refuse("GET", "/v1/sources", 403, "forbidden", "GET /v1/sources is for admins")
    leave("doctor", "--json")
    lines = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert lines["daemon.token"]["found"].startswith("an agent's token")
    for name in ("sources.secrets", "sources.deliveries", "daemon.place", "clock.senders"):
        assert (lines[name]["state"], "admin" in lines[name]["found"]) == ("skip", True), name


def test_a_token_that_is_not_known_is_told_once(daemon: FakeDaemon, capsys: Output) -> None:
    for path in ("/v1/status", "/v1/sources", "/v1/endpoints", "/v1/todos"):
        daemon.refuse("GET", path, 401, "unauthenticated", "the token is not known")
    assert leave("doctor", "--json") == 1
    lines = json.loads(capsys.readouterr().out)
    assert [one["check"] for one in lines if "is not known" in one["found"]] == ["daemon.token"]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "unix://relative"])
def test_an_address_that_is_none_is_named(url: str, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("POSTROOM_URL", url)
    assert leave("doctor", "--json") == 3
    lines = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert "expected" in lines["daemon.reached"]["found"] or "absolute" in lines["daemon.reached"]["found"]
    assert lines["daemon.reached"]["fix"] == "correct POSTROOM_URL, or unset it"


def test_what_answers_and_is_no_daemon_is_told(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("GET", "/health", b"<html>")
    assert leave("doctor", "--json") == 3
    assert "is no Postroom daemon" in capsys.readouterr().out


# What keeps it honest.


def test_the_known_variables_are_those_that_are_read() -> None:
    read: set[str] = set()
    for file in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.js")]:
        text = re.sub(r"_POSTROOM_\w+", "", file.read_text("utf-8"))
        if file != Path(checks_local.__file__):
            read |= set(re.findall(r"\bPOSTROOM_[A-Z_]+[A-Z]\b", text))
    assert read == checks_local.VARIABLES


def test_it_imports_nothing_heavy() -> None:
    program = (
        "import sys; from postroom.doors.cli.main import build; build('doctor');"
        "from postroom.doors.cli.doctor import every_check; every_check();"
        "print([m for m in ('httpx2', 'pydantic', 'mcp', 'asyncio', 'starlette', 'rich') if m in sys.modules])"
    )
    assert child(program=program).stdout.strip() == "[]"
