"""`postroom attach`, `detach` and `history`: what is asked for which options, and what is said."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.doors.cli import attach
from postroom.endpoint import CarrierKind
from tests.doors import fake_daemon, fake_post
from tests.doors.command import leave
from tests.doors.fake_daemon import NOON, FakeDaemon
from tests.doors.fake_post import ENDPOINT, MESSAGE, delivery, message
from tests.processes import Processes, wait_until

Output = pytest.CaptureFixture[str]
OTHER = "ep_01890000-0000-7000-8000-000000000006"
ADDRESS = {"socket": "/tmp/tmux-0/default", "pane": "%3", "server_pid": 77, "agent": "claude", "program": "claude"}


def endpoint(**changes: Any) -> dict[str, Any]:
    return fake_post.endpoint(**{"address_json": json.dumps(ADDRESS), "repositories": ("alpha",), **changes})


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDaemon]:
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_ann")
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,77,0")
    monkeypatch.setenv("TMUX_PANE", "%3")
    monkeypatch.setenv("GITA_PROJECT_HOME", str(tmp_path))
    with fake_daemon.running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        fake.answer("POST", "/v1/endpoints", {"endpoint": endpoint()}, 201)
        yield fake


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A registered repository, this process's working folder."""
    folder = tmp_path / "work" / "alpha"
    (folder / ".git").mkdir(parents=True)
    (folder / "src").mkdir()
    (tmp_path / "gita").mkdir()
    (tmp_path / "gita" / "repos.csv").write_bytes(f"{folder},alpha,,\r\n".encode())
    monkeypatch.chdir(folder / "src")
    return folder


def gita(daemon: FakeDaemon, file: Path | str, *, required: bool = True) -> None:
    daemon.answer("GET", "/v1/status", {"gita": {"file": str(file), "required": required, "asked": False}})


def body(daemon: FakeDaemon) -> Any:
    (asked,) = [one for one in daemon.asked if (one.method, one.path) == ("POST", "/v1/endpoints")]
    return asked.body


def test_this_pane_is_attached_for_the_repository_it_is_in(
    daemon: FakeDaemon, repository: Path, capsys: Output
) -> None:
    assert leave("attach") == 0
    assert body(daemon) == {
        "carrier": "tmux",
        "address": {"socket": "/tmp/tmux-0/default", "pane": "%3", "caller": os.getpid()},
        "repositories": ["alpha"],
        "queues": [],
        "channels": [],
        "spill": False,
        "rings": True,
    }
    taken = capsys.readouterr()
    assert taken.out == f"{ENDPOINT} attached: pane %3 (claude) as reader for alpha\n"
    assert taken.err == ""
    assert leave("attach", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"endpoint": endpoint()}


def test_every_option_is_asked_for(daemon: FakeDaemon, tmp_path: Path) -> None:
    words = ["--name", "ann", "--repo", "alpha", "--repo", "other/beta", "--queue", "review", "--channel", "a"]
    words += ["--channel", "b", "--ack", "acknowledged", "--max-attempts", "9", "--spill", "--no-rings"]
    words += ["--pane", "%7", "--tmux-socket", str(tmp_path / "own.sock"), "--agent", "codex"]
    gita(daemon, "/nowhere/repos.csv", required=False)
    assert leave("attach", *words) == 0
    assert body(daemon) == {
        "carrier": "tmux",
        "address": {"socket": str(tmp_path / "own.sock"), "pane": "%7", "agent": "codex"},
        "name": "ann",
        "repositories": ["alpha", "other/beta"],
        "queues": ["review"],
        "channels": ["a", "b"],
        "ack_mode": "acknowledged",
        "delivery_max_attempts": 9,
        "spill": True,
        "rings": False,
    }


def test_an_inbox_is_its_name(daemon: FakeDaemon, repository: Path, capsys: Output) -> None:
    inbox = endpoint(carrier=CarrierKind.INBOX, address_json="{}", repositories=())
    daemon.answer("POST", "/v1/endpoints", {"endpoint": inbox}, 201)
    assert leave("attach", "--inbox", "--name", "reader") == 0
    assert body(daemon)["carrier"] == "inbox"
    assert body(daemon)["address"] == {}
    # It lives until it is detached, so that it takes a repository's messages only where that is said.
    assert body(daemon)["repositories"] == []
    assert capsys.readouterr().out == f"{ENDPOINT} attached: an inbox as reader\n"


def session(**changes: Any) -> dict[str, Any]:
    address = json.dumps({"session": "ses_here"})
    return endpoint(carrier=CarrierKind.OPENCODE, address_json=address, repositories=(), name=None, **changes)


@pytest.mark.parametrize("own", ["none", "another daemon's", "the environment's is meant"])
def test_a_session_is_attached_with_the_token_that_is_found(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Output, own: str
) -> None:
    if own != "none":
        url = daemon.url if own == "the environment's is meant" else "http://127.0.0.1:1"
        kept_token(tmp_path, url)
    if own == "another daemon's":
        monkeypatch.delenv("POSTROOM_TOKEN")
        (tmp_path / "admin-token").write_text("tk_ann\n")
    daemon.answer("POST", "/v1/endpoints", {"endpoint": session()}, 201)
    assert leave("attach", "--session", "ses_here", "--queue", "inbox") == 0
    assert body(daemon) == {
        "carrier": "opencode",
        "address": {"session": "ses_here"},
        "repositories": [],
        "queues": ["inbox"],
        "channels": [],
        "spill": False,
        "rings": True,
    }
    assert daemon.last.headers["authorization"] == "Bearer tk_ann"
    assert capsys.readouterr().out == f"{ENDPOINT} attached: session ses_here\n"


def test_it_is_said_where_nothing_carries(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", "/v1/endpoints", {"endpoint": session(), "note": "nothing here carries to it"}, 201)
    assert leave("attach", "--session", "ses_here") == 0
    told = capsys.readouterr()
    assert told.out == f"{ENDPOINT} attached: session ses_here\n"
    assert told.err == "note: nothing here carries to it\n"


def kept_token(folder: Path, url: str) -> None:
    """What `postroom setup opencode` leaves."""
    (folder / "clients").mkdir()
    (folder / "clients" / "opencode.token").write_text("tk_opencode\n")
    (folder / "opencode.json").write_text(json.dumps({"url": url, "name": "opencode-1f0a"}))


@pytest.mark.parametrize("taken", [None, "by itself", "by another"])
def test_a_session_goes_by_the_name_of_opencodes_token_once(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, taken: str | None
) -> None:
    monkeypatch.delenv("POSTROOM_TOKEN")
    kept_token(tmp_path, daemon.url)
    there = {"by itself": [session()], "by another": [{**session(), "address": {"session": "ses_there"}}]}
    daemon.answer("GET", "/v1/endpoints", {"endpoints": there.get(str(taken), [])})
    assert leave("attach", "--session", "ses_here") == 0
    assert body(daemon).get("name") == (None if taken == "by another" else "opencode-1f0a")
    assert daemon.last.headers["authorization"] == "Bearer tk_opencode"
    daemon.asked.clear()
    # A name of one's own is not opencode's to give.
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_ann")
    assert leave("attach", "--session", "ses_here", "--name", "ann") == 0
    assert body(daemon)["name"] == "ann"
    assert daemon.last.headers["authorization"] == "Bearer tk_ann"


@pytest.mark.parametrize(
    "words",
    [
        ("--session", "here"),
        ("--session", "ses_"),
        ("--session", "ses_a", "--inbox", "--name", "a"),
        ("--session", "ses_a", "--pane", "%1"),
        ("--session", "ses_a", "--agent", "claude"),
        ("--session", "ses_a", "--spill"),
        ("--inbox",),
        ("--inbox", "--name", "a", "--pane", "%1"),
        ("--inbox", "--name", "a", "--spill"),
        ("--inbox", "--name", "a", "--agent", "claude"),
        ("--tmux-socket", "/tmp/s"),
        ("--repo", "a", "--no-repo"),
        ("--ack", "maybe"),
        ("--max-attempts", "many"),
    ],
)
def test_attach_usage(daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    assert leave("attach", *words) == 2
    assert daemon.asked == []


def test_outside_tmux_a_pane_is_to_be_named(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: Output, tmp_path: Path
) -> None:
    monkeypatch.delenv("TMUX")
    for verb in ("attach", "detach"):
        assert leave(verb) == 2
        assert "give --pane %3" in capsys.readouterr().err
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    assert leave("attach", "--pane", "%9", "--no-repo") == 0
    assert body(daemon)["address"] == {"socket": f"{tmp_path}/tmux-{os.geteuid()}/default", "pane": "%9"}


def test_without_a_registry_the_line_that_turns_it_off_is_told(
    daemon: FakeDaemon, tmp_path: Path, capsys: Output
) -> None:
    # The daemon's registry counts, not this shell's.
    gita(daemon, tmp_path / "none.csv")
    assert leave("attach") == 0
    (said,) = capsys.readouterr().err.splitlines()
    assert f"there is no gita registry {tmp_path / 'none.csv'}" in said
    assert said.endswith("[gita] required = false")
    assert body(daemon)["repositories"] == []

    daemon.asked.clear()
    gita(daemon, tmp_path / "none.csv", required=False)
    assert leave("attach") == 0
    assert "required = false" not in capsys.readouterr().err
    assert leave("attach", "--repo", "alpha") == 0
    assert capsys.readouterr().err == ""
    gita(daemon, tmp_path / "none.csv")
    assert leave("attach", "--repo", "alpha") == 0
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith("[gita] required = false")
    assert leave("attach", "--no-repo") == 0
    assert capsys.readouterr().err == ""


def test_what_gita_does_not_know_is_told(
    daemon: FakeDaemon, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    assert leave("attach", "--repo", "beta") == 0
    assert "--repo 'beta' is not registered" in capsys.readouterr().err
    assert body(daemon)["repositories"] == ["beta"]
    monkeypatch.chdir(tmp_path)
    assert leave("attach") == 0
    assert f"{tmp_path} is in no repository that gita knows" in capsys.readouterr().err
    (tmp_path / "gita" / "repos.csv").write_bytes(b"\xff")
    assert leave("attach") == 0
    assert "cannot be read: it is not UTF-8" in capsys.readouterr().err


def test_a_refusal_is_told(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.refuse("POST", "/v1/endpoints", 400, "invalid", "there is no pane %3", field="address.pane")
    assert leave("attach", "--no-repo", "--stay") == 1
    assert "error: invalid: there is no pane %3 (address.pane)" in capsys.readouterr().err


def test_detach_finds_this_panes_endpoint(daemon: FakeDaemon, capsys: Output) -> None:
    elsewhere = [
        endpoint(id=OTHER, address_json=json.dumps({**ADDRESS, **change}))
        for change in ({"pane": "%4"}, {"socket": "/tmp/other"}, {"server_pid": 78})
    ]
    inbox = endpoint(id=OTHER, carrier=CarrierKind.INBOX, address_json="{}")
    daemon.answer("GET", "/v1/endpoints", {"endpoints": [*elsewhere, inbox, endpoint()]})
    daemon.answer("DELETE", f"/v1/endpoints/{ENDPOINT}", {"endpoint": endpoint(ended_at=NOON)})
    assert leave("detach") == 0
    assert capsys.readouterr().out == f"{ENDPOINT} detached\n"
    daemon.answer("GET", "/v1/endpoints", {"endpoints": [*elsewhere, inbox]})
    assert leave("detach") == 1
    assert "nothing is attached at the pane %3" in capsys.readouterr().err
    daemon.answer("DELETE", f"/v1/endpoints/{OTHER}", {"endpoint": endpoint(id=OTHER, ended_at=NOON)})
    assert leave("detach", "--pane", "%4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["endpoint"]["id"] == OTHER
    daemon.answer("GET", "/v1/endpoints", {"endpoints": [endpoint(), endpoint(id=OTHER)]})
    assert leave("detach", "--json") == 1
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "conflict"


def test_detach_by_name_or_id(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("DELETE", f"/v1/endpoints/{ENDPOINT}", {"endpoint": endpoint(ended_at=NOON)})
    assert leave("detach", ENDPOINT) == 0
    assert [one.method for one in daemon.asked] == ["DELETE"]
    daemon.answer("GET", "/v1/endpoints", {"endpoints": [endpoint()]})
    assert leave("detach", "reader") == 0
    assert daemon.asked[-2].query == {"name": "reader"}
    daemon.answer("GET", "/v1/endpoints", {"endpoints": [endpoint(), endpoint(id=OTHER)]})
    assert leave("detach", "reader") == 1
    assert OTHER in capsys.readouterr().err
    assert leave("detach", "reader", "--pane", "%3") == 2


# T41
def test_history_tells_what_became_of_each(daemon: FakeDaemon, capsys: Output) -> None:
    shown = [
        message(delivery("acknowledged", delivered_at=NOON, acknowledged_at=NOON + 5000, attempt_count=1)),
        message(delivery("pending", deferred_reason="endpoint_gone"), addressed=None, target_repo="alpha"),
        message(delivery("failed", reason="ack_timeout", last_failure_reason="no acknowledgement came in time")),
    ]
    daemon.answer("GET", "/v1/messages", {"messages": shown, "next_cursor": "c7"})
    assert leave("history") == 0
    taken = capsys.readouterr()
    head, *rows = taken.out.splitlines()
    assert head.split() == ["ID", "FROM", "TO", "STATE", "TRY", "SENT", "WRITTEN", "ACKNOWLEDGED", "WHY"]
    assert rows[0].split()[3:5] == ["acknowledged", "1/10"]
    assert "2026-01-31T12:00:05Z" in rows[0]
    assert rows[1].split()[2] == "alpha"
    assert rows[1].endswith("waits: endpoint_gone")
    assert rows[2].endswith("ack_timeout; no acknowledgement came in time")
    assert taken.err == "more: --cursor c7\n"
    words = ["--repo", "alpha", "--endpoint", ENDPOINT, "--client", "engine", "--state", "failed"]
    assert leave("history", *words, "--cursor", "c7", "--limit", "5", "--json") == 0
    assert daemon.last.query == {
        "target_repo": "alpha",
        "endpoint_id": ENDPOINT,
        "client_id": "engine",
        "state": "failed",
        "cursor": "c7",
        "limit": "5",
    }
    assert json.loads(capsys.readouterr().out)["messages"][0]["id"] == MESSAGE
    assert leave("history", "--state", "done") == 2


# --stay: it is run as a program, which beats often.

STAY = (
    "import postroom.doors.cli.attach as a; a.BEAT_S, a.LIVE_S = 0.02, {live}; import postroom.__main__ as m; m.run()"
)


def staying(processes: Processes, daemon: FakeDaemon, live: float = 45.0) -> subprocess.Popen[str]:
    daemon.answer("POST", f"/v1/endpoints/{ENDPOINT}/heartbeat", {"endpoint": endpoint()})
    daemon.answer("DELETE", f"/v1/endpoints/{ENDPOINT}", {"endpoint": endpoint(ended_at=NOON)})
    process = processes.python("-c", STAY.format(live=live), "attach", "--no-repo", "--stay")
    beats(daemon, 2)
    return process


def beats(daemon: FakeDaemon, more: int) -> None:
    def count() -> int:
        return sum(one.path.endswith("/heartbeat") for one in daemon.asked)

    before = count()
    wait_until(lambda: count() >= before + more, "signs of life")


@pytest.mark.parametrize("number", ["TERM", "HUP", "INT"])
def test_who_stays_gives_signs_of_life_and_detaches_at_the_end(
    daemon: FakeDaemon, processes: Processes, number: str
) -> None:
    process = staying(processes, daemon)
    assert body(daemon)["pid"] == process.pid
    subprocess.run(["kill", f"-{number}", str(process.pid)], check=True)
    assert process.wait(20) == 0
    assert (daemon.last.method, daemon.last.path) == ("DELETE", f"/v1/endpoints/{ENDPOINT}")
    assert "detached" in processes.output(process)


def test_who_stays_waits_for_a_daemon_that_is_away(daemon: FakeDaemon, processes: Processes) -> None:
    process = staying(processes, daemon)
    daemon.refuse("POST", f"/v1/endpoints/{ENDPOINT}/heartbeat", 503, "unavailable", "starting")
    wait_until(lambda: "the daemon is away" in processes.output(process), "it is told once")
    beats(daemon, 3)
    daemon.answer("POST", f"/v1/endpoints/{ENDPOINT}/heartbeat", {"endpoint": endpoint()})
    wait_until(lambda: "the daemon is back" in processes.output(process), "it goes on")
    assert processes.output(process).count("away") == 1
    assert sum(one.path == "/v1/endpoints" for one in daemon.asked) == 1


def test_who_stays_attaches_again_where_it_was_forgotten(daemon: FakeDaemon, processes: Processes) -> None:
    process = staying(processes, daemon)
    daemon.answer("POST", f"/v1/endpoints/{OTHER}/heartbeat", {"endpoint": endpoint(id=OTHER)})
    daemon.answer("POST", "/v1/endpoints", {"endpoint": endpoint(id=OTHER)}, 201)
    daemon.refuse("POST", f"/v1/endpoints/{ENDPOINT}/heartbeat", 404, "not_found", "no such endpoint")
    wait_until(lambda: daemon.last.path == f"/v1/endpoints/{OTHER}/heartbeat", "the new one beats")
    assert f"{OTHER} attached in its place" in processes.output(process)


@pytest.mark.parametrize(("stands", "said"), [(True, "another attachment took this place"), (False, "it was detached")])
def test_who_stays_leaves_when_it_was_ended(daemon: FakeDaemon, processes: Processes, stands: bool, said: str) -> None:
    process = staying(processes, daemon)
    daemon.answer("GET", "/v1/endpoints", {"endpoints": [endpoint(id=OTHER)] if stands else []})
    daemon.refuse("POST", f"/v1/endpoints/{ENDPOINT}/heartbeat", 409, "conflict", "it has ended", state="ended")
    assert process.wait(20) == 0
    assert said in processes.output(process)


def test_who_stays_attaches_again_after_it_was_silent_for_too_long(daemon: FakeDaemon, processes: Processes) -> None:
    process = staying(processes, daemon, live=0.0)
    daemon.answer("GET", "/v1/endpoints", {"endpoints": []})
    daemon.answer("POST", f"/v1/endpoints/{OTHER}/heartbeat", {"endpoint": endpoint(id=OTHER)})
    daemon.answer("POST", "/v1/endpoints", {"endpoint": endpoint(id=OTHER)}, 201)
    daemon.refuse("POST", f"/v1/endpoints/{ENDPOINT}/heartbeat", 409, "conflict", "it has ended", state="ended")
    wait_until(lambda: daemon.last.path == f"/v1/endpoints/{OTHER}/heartbeat", "the new one beats")
    assert process.poll() is None


@pytest.mark.parametrize("lost", [True, False])
def test_who_stays_waits_for_a_daemon_that_goes_away_while_it_attaches_again(
    daemon: FakeDaemon, processes: Processes, lost: bool
) -> None:
    process = staying(processes, daemon, live=0.0)
    daemon.answer("GET", "/v1/endpoints", {"endpoints": []})
    daemon.answer("POST", f"/v1/endpoints/{OTHER}/heartbeat", {"endpoint": endpoint(id=OTHER)})
    daemon.answers["POST", "/v1/endpoints"] = None
    daemon.refuse("POST", f"/v1/endpoints/{ENDPOINT}/heartbeat", 409, "conflict", "it has ended", state="ended")
    wait_until(lambda: "the daemon is away" in processes.output(process), "it is told")
    if lost:
        # It was attached, and only the answer did not come.
        daemon.answer("GET", "/v1/endpoints", {"endpoints": [endpoint(id=OTHER, pid=process.pid)]})
    else:
        daemon.answer("POST", "/v1/endpoints", {"endpoint": endpoint(id=OTHER)}, 201)
    wait_until(lambda: daemon.last.path == f"/v1/endpoints/{OTHER}/heartbeat", "the new one beats")
    assert process.poll() is None
    assert "the daemon is back" in processes.output(process)


def test_a_pane_that_is_gone_ends_who_stays(daemon: FakeDaemon, processes: Processes) -> None:
    process = staying(processes, daemon)
    daemon.refuse("POST", "/v1/endpoints", 400, "invalid", "there is no pane %3", field="address.pane")
    daemon.refuse("POST", f"/v1/endpoints/{ENDPOINT}/heartbeat", 404, "not_found", "no such endpoint")
    assert process.wait(20) == 1
    assert "there is no pane %3" in processes.output(process)


def test_the_beat_is_well_within_what_counts_as_live() -> None:
    assert attach.BEAT_S * 3 <= attach.LIVE_S
