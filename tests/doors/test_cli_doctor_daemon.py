"""The doctor's checks of the daemon, the clocks, the sources, the post and the work, each by what the daemon answers."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from postroom import __version__
from postroom.doors.cli.checks import daemon as checks_daemon
from postroom.doors.cli.checks import mcp as checks_mcp
from postroom.doors.cli.checks import post as checks_post
from postroom.doors.cli.checks import sources as checks_sources
from postroom.doors.cli.checks import work as checks_work
from postroom.doors.cli.checks.found import Findings, State
from postroom.doors.cli.checks.scene import Scene
from postroom.endpoint import CarrierKind
from postroom.errors import Forbidden, Unauthenticated
from postroom.message import DeliveryState
from postroom.model import QueueSettings, QueueStatus, TodoState
from postroom.wire import queue_view, show_time
from tests.doors import fake_daemon, fake_post
from tests.doors.doctor_rig import Told, be_patient, counted, look, only, scene, source
from tests.doors.fake_daemon import NOON, FakeDaemon

SECOND, MINUTE = 1000, 60_000
Look = Callable[[Scene], Findings]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    be_patient(monkeypatch)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def there(tmp_path: Path) -> Told:
    """A scene whose daemon answers what it is told to."""
    return scene(tmp_path)


@pytest.fixture
def peer() -> Iterator[FakeDaemon]:
    """A server over real sockets."""
    with fake_daemon.running() as fake:
        yield fake


# The daemon.


def swept(ago_ms: int | None, failures: int = 0) -> dict[str, Any]:
    """What the status says of the sweep."""
    at = None if ago_ms is None else show_time(NOON - ago_ms)
    return {"sweep": {"last_run_at": at, "lapsed": 0, "due": 0, "deleted": 0, "failures": failures}}


@pytest.mark.parametrize(
    ("check", "told", "state", "words"),
    [
        (checks_daemon.engine, {}, State.OK, "sqlite 3.54.0"),
        (checks_daemon.engine, {"engine": "postgres", "engine_version": "15.4"}, State.OK, "postgres 15.4"),
        (checks_daemon.engine, {"engine_version": None}, State.OK, "sqlite of unknown version"),
        (checks_daemon.sweep, swept(900), State.OK, "last 0.9s ago, 0 failures"),
        (checks_daemon.sweep, swept(11 * SECOND, 3), State.WARN, "last 11s ago, 3 failures"),
        (checks_daemon.sweep, swept(61 * SECOND), State.FAIL, "leases do not lapse"),
        (checks_daemon.sweep, swept(None), State.WARN, "has not swept yet"),
        (checks_daemon.loops, {}, State.OK, "0 rings"),
        (checks_daemon.loops, {"post": {"running": False}}, State.FAIL, "no message is carried"),
        (
            checks_daemon.loops,
            {"post": {"running": True, "problem": "away"}},
            State.WARN,
            "the courier is held up: away",
        ),
        (checks_daemon.loops, {"doorbell": {"problem": "away"}}, State.WARN, "the doorbell is held up: away"),
        (checks_daemon.warnings, {}, State.OK, "none"),
        (checks_daemon.warnings, {"warnings": ["a snapshot is old"]}, State.WARN, "a snapshot is old"),
        (checks_daemon.clock_database, {"clock_skew_ms": -1999}, State.OK, "agrees within 2 s"),
        (checks_daemon.clock_database, {"clock_skew_ms": 2500}, State.WARN, "is 2.5 s ahead"),
        (checks_daemon.clock_database, {"clock_skew_ms": -2500}, State.WARN, "is 2.5 s behind"),
        (checks_daemon.clock_database, {"clock_skew_ms": -61_000}, State.FAIL, "is 61.0 s behind"),
        (checks_daemon.clock_database, {"clock_skew_ms": None}, State.SKIP, "does not tell"),
        (checks_daemon.clock_daemon, {}, State.OK, "agrees within 2 s"),
        (checks_daemon.clock_daemon, {"now": show_time(NOON + 5 * SECOND)}, State.WARN, "is 5.0 s ahead"),
        (checks_daemon.clock_daemon, {"now": show_time(NOON - 90 * SECOND)}, State.FAIL, "is 90.0 s behind"),
    ],
)
def test_what_the_status_tells(there: Told, check: Look, told: dict[str, Any], state: State, words: str) -> None:
    line = only(check, there.status_is(**told))
    assert line.state is state, line
    assert words in line.found
    assert (line.fix is None) is (state in {State.OK, State.SKIP})


def test_many_warnings_are_a_line_each_with_a_cure(there: Told) -> None:
    said = ["a database snapshot has been open for 400 s", "the host's clock went back 2 times", "something else"]
    lines = look(checks_daemon.warnings, there.status_is(warnings=said))
    assert [line.found for line in lines] == said
    assert "pg_stat_activity" in (lines[0].fix or "")
    assert "timedatectl" in (lines[1].fix or "")
    assert all(line.fix for line in lines)


def test_a_daemon_of_another_version(there: Told) -> None:
    there.status_is()
    assert only(checks_daemon.version, there).state is State.OK
    older = scene(there.home.parent)
    older.once("health", lambda: {"version": "0.0.1"})
    line = only(checks_daemon.version, older)
    assert (line.state, line.found) == (State.WARN, f"the daemon is 0.0.1, this program {__version__}")


def test_how_it_was_found_is_told(tmp_path: Path, peer: FakeDaemon) -> None:
    peer.answer("GET", "/health", {"version": __version__})
    assert only(checks_daemon.reached, scene(tmp_path, POSTROOM_URL=peer.url)).found == f"{peer.url} (by POSTROOM_URL)"
    by_data = scene(tmp_path)
    by_data.data = tmp_path / "elsewhere"
    line = only(checks_daemon.reached, by_data)
    assert "(by --data)" in line.found
    assert (line.fix or "").startswith(f"postroom serve --data {tmp_path}/elsewhere")
    unset = scene(tmp_path, POSTROOM_URL="", POSTROOM_DATA=str(tmp_path))
    assert "(by POSTROOM_DATA)" in only(checks_daemon.reached, unset).found


def test_a_daemon_that_hangs_is_not_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from postroom.doors.cli.checks import call as checks_call

    monkeypatch.setattr(checks_call, "CALL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        there = scene(tmp_path, POSTROOM_URL=f"http://127.0.0.1:{deaf.getsockname()[1]}")
        line = only(checks_daemon.reached, there)
        assert (line.state, "no answer within 0.2 s" in line.found) == (State.FAIL, True)
        assert only(checks_daemon.engine, there).found == "no daemon was reached"


def test_a_daemon_that_breaks_off_or_talks_nonsense(tmp_path: Path, peer: FakeDaemon) -> None:
    peer.answer("GET", "/health", {"version": __version__})
    peer.answers["GET", "/v1/status"] = None
    assert "gave /v1/status no answer" in only(checks_daemon.engine, scene(tmp_path, POSTROOM_URL=peer.url)).found
    peer.answer("GET", "/v1/status", b"[1, 2")
    assert "status 200" in only(checks_daemon.engine, scene(tmp_path, POSTROOM_URL=peer.url)).found
    peer.answer("GET", "/v1/status", {"engine": 7})
    assert only(checks_daemon.sweep, scene(tmp_path, POSTROOM_URL=peer.url)).found.startswith("the check itself broke")
    peer.refuse("GET", "/v1/status", 503, "unavailable", "not ready")
    assert only(checks_daemon.engine, scene(tmp_path, POSTROOM_URL=peer.url)).found == "the daemon is not ready"


def test_whose_token_it_is(there: Told, tmp_path: Path) -> None:
    line = only(checks_daemon.token, there.status_is().sources_are())
    assert (line.state, line.fix) == (State.WARN, "restart it without --open")
    known = scene(tmp_path, POSTROOM_TOKEN="tk_x").status_is().sources_are()
    assert only(checks_daemon.token, known).found == "an admin's token"
    agents = scene(tmp_path).status_is().tell("/v1/sources", Forbidden("for admins"))
    assert only(checks_daemon.token, agents).found.startswith("an agent's token")
    unknown = scene(tmp_path, POSTROOM_TOKEN="tk_x").tell("/v1/status", Unauthenticated("not valid"))
    line = only(checks_daemon.token, unknown)
    assert (line.state, line.found) == (State.FAIL, "POSTROOM_TOKEN: not valid")


def test_another_data_folder_than_this_programs(there: Told, tmp_path: Path) -> None:
    assert only(checks_daemon.place, there.sources_are(data=str(tmp_path / "data"))).state is State.OK
    line = only(checks_daemon.place, scene(tmp_path).sources_are(data="/srv/post"))
    assert (line.state, line.fix) == (State.WARN, "export POSTROOM_DATA=/srv/post")


# Clocks of senders, and the sources.


def test_rejections_that_are_all_timestamps_are_clock_skew(there: Told) -> None:
    late = {"last_refusal": "the time lies 412 s from now"}
    hooks = {
        "slack": counted(refused={"clock": 3}, **late),
        "stripe": counted(accepted=4, refused={"clock": 1, "proof": 2}, **late),
        "github": counted(accepted=9, refused={"proof": 2}),
        "once": counted(accepted=1, refused={"clock": 1}, **late),
    }
    skewed, some, once = look(checks_daemon.clock_senders, there.status_is(hooks=hooks).sources_are())
    assert skewed.check == "group.subject[slack]"
    assert skewed.state is State.FAIL
    assert skewed.found.startswith("all rejections of source slack are timestamps: clock skew (the time lies 412 s")
    assert (once.check, once.state) == ("group.subject[once]", State.WARN)
    assert (some.state, some.found[:49]) == (State.WARN, "1 of 3 refusals of source stripe are timestamps: ")


@pytest.mark.parametrize(
    ("told", "state", "words"),
    [
        (source(), State.OK, "1 set: secrets[0]"),
        (source(matched={"secret": "secrets[0]", "at": "x"}), State.OK, "secrets[0] proved the latest delivery"),
        (source(secrets=[]), State.FAIL, "every delivery is refused"),
        (source(secrets=[], insecure=True, local=True), State.OK, "on this machine alone"),
        (source(secrets=[], insecure=True), State.WARN, "whoever finds its address makes work"),
    ],
)
def test_secrets(there: Told, told: dict[str, Any], state: State, words: str) -> None:
    line = only(checks_sources.secrets, there.sources_are(told))
    assert (line.check, line.state) == ("group.subject[github]", state)
    assert words in line.found


@pytest.mark.parametrize(
    ("events", "counts", "state", "words"),
    [
        ([], {}, State.SKIP, "nothing ever came by it"),
        ([{"received_at": show_time(NOON)}], {}, State.OK, "the latest event came 2026-01-31T"),
        (
            [],
            counted(refused={"proof": 2}, last_refusal="no secret made it"),
            State.FAIL,
            "every delivery since the daemon's start (2) was refused",
        ),
        ([{"received_at": show_time(NOON)}], counted(accepted=1, refused={"proof": 2}), State.WARN, "2 refused since"),
    ],
)
def test_deliveries_of_a_source(
    there: Told, events: list[Mapping[str, Any]], counts: dict[str, Any], state: State, words: str
) -> None:
    there.sources_are(source()).status_is(hooks={"github": counts} if counts else {})
    there.tell("/v1/events", {"events": events}, source="github", limit=1)
    line = only(checks_sources.deliveries, there)
    assert line.state is state, line
    assert words in line.found


@pytest.mark.parametrize("accepted", [0, 1])
@pytest.mark.parametrize(
    ("cause", "fix"),
    [
        ("proof", "compare its secret with the sender's"),
        ("too_large", "raise max_bytes in its [[source]] table"),
        ("clock", "set this host's clock by NTP"),
        ("afar", "public = true"),
    ],
)
def test_the_fix_is_for_the_refusal_that_is_shown(there: Told, cause: str, fix: str, accepted: int) -> None:
    there.tell("/v1/events", {"events": []}, source="github", limit=1)
    counts = counted(accepted=accepted, refused={"proof": 3, cause: 1}, last_refusal="no", last_cause=cause)
    line = only(checks_sources.deliveries, there.sources_are(source()).status_is(hooks={"github": counts}))
    assert fix in (line.fix or "")


def test_no_sources_is_no_fault(there: Told) -> None:
    for check in (checks_sources.secrets, checks_sources.deliveries, checks_sources.self_hosted):
        assert only(check, there.sources_are().status_is()).state is State.SKIP


def test_the_hooks_port_and_the_tunnels_line(there: Told, tmp_path: Path, peer: FakeDaemon) -> None:
    line = only(checks_sources.hooks, there.sources_are(addresses=["http://127.0.0.1:1"]))
    assert line.state is State.SKIP
    assert (line.fix or "").endswith("cloudflared tunnel --url http://127.0.0.1:7374")
    gone = scene(tmp_path).sources_are(addresses=["http://127.0.0.1:9", "http://127.0.0.1:1"])
    assert only(checks_sources.hooks, gone).state is State.FAIL
    peer.answer("GET", "/health", {"status": "ok"})
    open_ = scene(tmp_path).sources_are(addresses=[peer.url, "http://127.0.0.1:1"])
    line = only(checks_sources.hooks, open_)
    assert (line.state, line.found.endswith(f"cloudflared tunnel --url {peer.url}")) == (State.OK, True)


@pytest.mark.parametrize(
    ("hosts", "state"), [("[]", State.OK), ('["a.example"]', State.OK), ('["a.example", "*"]', State.WARN)]
)
def test_hosts(there: Told, hosts: str, state: State) -> None:
    (Path(there.environ["POSTROOM_DATA"]) / "postroom.toml").write_text(f"[http]\nhosts = {hosts}\n")
    assert only(checks_sources.hosts, there).state is state


def test_what_gitea_has_to_be_told(there: Told, tmp_path: Path) -> None:
    there.sources_are(source("tea", provider="gitea"), source())
    there.tell("/v1/events", {"events": []}, source="tea", limit=1)
    line = only(checks_sources.self_hosted, there)
    assert "ALLOWED_HOST_LIST = loopback,private" in (line.fix or "")
    heard = scene(tmp_path).sources_are(source("jo", provider="forgejo"))
    heard.tell("/v1/events", {"events": [{"received_at": "x"}]}, source="jo", limit=1)
    assert only(checks_sources.self_hosted, heard).state is State.OK


# The post.


def opencode_at(there: Told, url: str, more: str = "") -> Told:
    """The scene with this opencode server in its settings."""
    (Path(there.environ["POSTROOM_DATA"]) / "postroom.toml").write_text(f'[[opencode]]\nurl = "{url}"\n{more}')
    return there


def carried(url: str, *, basic: bool = False, problem: str | None = None) -> dict[str, Any]:
    """The post's status with an opencode server."""
    server = {"url": url, "connected": True, "basic": basic, "missing_routes": [], "problem": problem}
    return {"post": {"running": True, "carriers": {"opencode": {"servers": [server]}}}}


def test_sessions_without_any_opencode_server(tmp_path: Path) -> None:
    def line_of(*endpoints: Mapping[str, Any]) -> Any:
        there = scene(tmp_path).status_is(post={"running": True, "carriers": {}})
        return only(checks_post.opencode, there.tell("/v1/endpoints", {"endpoints": list(endpoints)}))

    assert line_of().state is State.SKIP
    one = fake_post.endpoint(carrier=CarrierKind.OPENCODE, name="ses_y", address_json='{"session": "ses_y"}')
    line = line_of(one)
    assert (line.state, line.found) == (State.WARN, "no opencode server is set up: nothing carries to ses_y")
    assert (line.fix or "").startswith("set up [[opencode]]")


def test_an_opencode_server(tmp_path: Path, peer: FakeDaemon) -> None:
    def line_of(told: dict[str, Any] | None = None) -> Any:
        there = opencode_at(scene(tmp_path), peer.url)
        return only(checks_post.opencode, there if told is None else there.status_is(**told))

    peer.answer("GET", "/global/health", {"healthy": True, "version": "1.18.33"})
    peer.answer("GET", "/session/status", {})
    line = line_of()
    assert (line.check, line.state) == (f"group.subject[{peer.url}]", State.OK)
    assert line.found == "version 1.18.33, full: its turns are watched"
    assert line_of(carried(peer.url)).state is State.OK
    assert line_of({}).found.endswith("the daemon does not carry to it yet")
    assert line_of(carried(peer.url, problem="it broke")).state is State.WARN
    assert ", basic: " in line_of(carried(peer.url, basic=True)).found
    del peer.answers["GET", "/session/status"]
    assert ", basic: " in line_of().found
    peer.answer("GET", "/session/status", b"<html>")
    assert ", basic: " in line_of().found
    del peer.answers["GET", "/global/health"]
    assert line_of().found.startswith("of unknown version")
    peer.answer("GET", "/session/status", b"", 401)
    line = line_of()
    assert (line.state, line.found) == (State.FAIL, "it refuses the password")
    peer.answers["GET", "/session/status"] = None
    assert "gets no answer" in line_of().found


def test_an_opencode_servers_password_is_shown_to_it(tmp_path: Path, peer: FakeDaemon) -> None:
    (tmp_path / "secret").write_text("pass word\n")
    peer.answer("GET", "/global/health", {"version": "1"})
    peer.answer("GET", "/session/status", {})
    there = opencode_at(scene(tmp_path), peer.url, f'password_file = "{tmp_path}/secret"\n')
    line = only(checks_post.opencode, there)
    assert line.state is State.OK
    assert {one.headers.get("authorization") for one in peer.asked} == {"Basic b3BlbmNvZGU6cGFzcyB3b3Jk"}
    assert "pass word" not in line.found


def test_an_opencode_server_that_is_gone_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_post, "PEER_S", 0.2)
    line = only(checks_post.opencode, opencode_at(scene(tmp_path), "http://127.0.0.1:9"))
    assert (line.state, line.fix) == (State.FAIL, "start it: opencode serve --port 9")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        line = only(checks_post.opencode, opencode_at(scene(tmp_path), url))
        assert (line.state, line.found) == (State.FAIL, "it cannot be reached: no answer within 0.2 s")


def test_no_opencode_server_says_how_to_set_one_up(there: Told) -> None:
    line = only(checks_post.opencode, there)
    assert (line.state, "[[opencode]]" in (line.fix or "")) == (State.SKIP, True)


def tmux_that(folder: Path, script: str) -> Callable[[str], str | None]:
    """A stand-in for tmux: a shell script."""
    file = folder / "tmux"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return lambda name: str(file) if name == "tmux" else None


@pytest.mark.parametrize(
    ("told", "state", "words"),
    [
        ("tmux 2.9a", State.WARN, "lacks what panes are watched by"),
        ("tmux 3.3a", State.OK, "a paste into a dead pane would end its server: each is guarded; does not tell"),
        ("tmux 3.4", State.OK, "tmux 3.4; does not tell who takes pastes"),
        ("tmux 3.7b", State.OK, "tmux 3.7b; shows control characters in pastes"),
        ("tmux next-4.0", State.OK, "next-4.0"),
        ("tmux master", State.OK, "tmux master: taken for a new one"),
    ],
)
def test_tmux_and_its_traps(there: Told, tmp_path: Path, told: str, state: State, words: str) -> None:
    assert only(checks_post.tmux, there).state is State.SKIP
    there.which = tmux_that(tmp_path, f"echo {told}")
    line = only(checks_post.tmux, there)
    assert line.state is state
    assert words in line.found


def test_tmux_servers_with_attached_panes(there: Told, tmp_path: Path) -> None:
    (tmp_path / "good").touch()
    (tmp_path / "dead").touch()
    seats = [pane(tmp_path / name, name) for name in ("good", "dead", "gone")]
    there.tell("/v1/endpoints", {"endpoints": [*seats, pane(tmp_path / "quiet", "quiet", live=False)]})
    there.which = tmux_that(tmp_path, 'case "$2" in *good|*quiet) echo 12 3.3a;; esac')
    found = {line.check: line for line in look(checks_post.tmux_servers, there)}
    assert {check.rpartition("/")[2]: line.state for check, line in found.items()} == {
        "good]": State.OK,
        "dead]": State.WARN,
        "gone]": State.WARN,
        "quiet]": State.WARN,
    }
    there.which = lambda name: None
    assert only(checks_post.tmux_servers, there).state is State.FAIL


def test_a_tmux_server_that_hangs(there: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_post, "TMUX_S", 0.2)
    there.tell("/v1/endpoints", {"endpoints": [pane(tmp_path / "stuck", "ann")]})
    there.which = tmux_that(tmp_path, "exec sleep 30")
    line = only(checks_post.tmux_servers, there)
    assert (line.state, line.found) == (State.FAIL, "it does not answer; its panes: ann at %1")


def test_no_pane_is_attached(there: Told) -> None:
    assert only(checks_post.tmux_servers, there.tell("/v1/endpoints", {"endpoints": []})).state is State.SKIP


def pane(path: Path, name: str, *, live: bool = True) -> dict[str, Any]:
    """An attached pane's view."""
    return fake_post.endpoint(live, name=name, address_json=f'{{"socket": "{path}", "pane": "%1"}}')


def held(carrier: str, ago_ms: int, reason: str) -> dict[str, Any]:
    """A place that holds its messages up."""
    return {
        "target": f"{carrier}:x",
        "carrier": carrier,
        "reason": reason,
        "since": show_time(NOON - ago_ms),
        "waiting": 2,
    }


@pytest.mark.parametrize(
    ("check", "one", "state", "fix"),
    [
        (checks_post.panes, held("tmux", MINUTE, "claude is working"), State.OK, None),
        (checks_post.panes, held("tmux", 6 * MINUTE, "blocked: it asks"), State.WARN, "answer the dialog in the pane"),
        (checks_post.panes, held("opencode", 6 * MINUTE, "busy"), State.OK, None),
        (checks_post.deliveries, held("opencode", 6 * MINUTE, "busy"), State.WARN, "look at the pane or the session"),
        (checks_post.deliveries, held("opencode", SECOND, "no_carrier"), State.WARN, "set up [[opencode]]"),
        (checks_post.deliveries, held("webhook", SECOND, "no_carrier"), State.WARN, "set up what carries by webhook"),
        (checks_post.panes, held("tmux", SECOND, "no_carrier"), State.WARN, "install tmux, and restart"),
        (checks_post.deliveries, held("tmux", 6 * MINUTE, "busy"), State.OK, None),
    ],
)
def test_what_holds_messages_up(there: Told, check: Look, one: dict[str, Any], state: State, fix: str | None) -> None:
    line = only(check, there.status_is(deliveries={"pending": 2, "failed": 0, "deferred": [one]}))
    assert line.state is state, line
    assert (line.fix or "").startswith(fix or "")


def test_deliveries_that_failed_for_good(there: Told) -> None:
    line = only(checks_post.deliveries, there.status_is(deliveries={"pending": 0, "failed": 3, "deferred": []}))
    assert (line.state, line.found) == (State.WARN, "3 failed for good")


@pytest.mark.parametrize(
    ("content", "required", "state", "words"),
    [
        (b"/x,alpha,,\r\n", True, State.OK, "can be read"),
        (b"", True, State.OK, "can be read"),
        (b"\xff", True, State.FAIL, "not UTF-8"),
        (None, True, State.SKIP, "a send over the socket to a repository is refused"),
        (None, True, State.WARN, "a send over the socket to a repository is refused"),
        (None, False, State.OK, "not required"),
    ],
)
def test_the_gita_registry(
    there: Told, tmp_path: Path, content: bytes | None, required: bool, state: State, words: str
) -> None:
    file = tmp_path / "repos.csv"
    if content is not None:
        file.write_bytes(content)
    told = {"file": str(file), "required": required, "asked": state is State.WARN}
    line = only(checks_post.gita, there.status_is(gita=told))
    assert line.state is state
    assert words in line.found
    if state in {State.WARN, State.SKIP, State.FAIL}:
        assert "[gita] required = false in postroom.toml" in (line.fix or "")


@pytest.mark.parametrize(
    ("told", "state", "words"),
    [
        ({"state": "well"}, State.OK, "takes what is sent"),
        ({"state": "failing", "failures": 3, "last_failure": "HTTP 500"}, State.WARN, "3 times, at last: HTTP 500"),
        ({"state": "disabled", "waits": "disabled since noon; last: HTTP 410"}, State.FAIL, "noon; last: HTTP 410"),
    ],
)
def test_webhooks_that_are_called(there: Told, told: dict[str, Any], state: State, words: str) -> None:
    carriers = {"webhook": {"pager": {"url": "https://a.example", **told}}}
    line = only(checks_post.webhooks, there.status_is(post={"running": True, "carriers": carriers}))
    assert (line.check, line.state) == ("group.subject[pager]", state)
    assert words in line.found


def test_no_webhooks_are_called(there: Told) -> None:
    assert only(checks_post.webhooks, there.status_is()).state is State.SKIP


# MCP.


@pytest.mark.parametrize(
    ("answer", "code", "state", "words"),
    [
        ({"result": {"tools": [{"name": name} for name in sorted(checks_mcp.NEEDED)]}}, 200, State.OK, "4 tools in"),
        ({"result": {"tools": [{"name": "claim_next"}]}}, 200, State.FAIL, "lacks complete, heartbeat, send_message"),
        ({"result": {"tools": [7]}}, 200, State.FAIL, "does not list the tools"),
        ({"error": {"code": -32601}}, 404, State.FAIL, "status 404"),
        (b"<html>", 200, State.FAIL, "status 200"),
        ({"error": {"code": "unauthenticated"}}, 401, State.SKIP, "does not let this token in"),
        ({"error": {"code": "unavailable"}}, 503, State.SKIP, "not ready"),
    ],
)
def test_mcp_over_http(tmp_path: Path, peer: FakeDaemon, answer: Any, code: int, state: State, words: str) -> None:
    peer.answer("GET", "/health", {"version": __version__})
    peer.answer("POST", "/mcp", answer, code)
    line = only(checks_mcp.over_http, scene(tmp_path, POSTROOM_URL=peer.url, POSTROOM_TOKEN="tk_x"))
    assert line.state is state, line
    assert words in line.found
    assert peer.last.headers["authorization"] == "Bearer tk_x"
    assert peer.last.headers["mcp-method"] == peer.last.body["method"] == "tools/list"


def test_mcp_over_http_that_breaks_off(tmp_path: Path, peer: FakeDaemon) -> None:
    peer.answer("GET", "/health", {"version": __version__})
    peer.answers["POST", "/mcp"] = None
    assert only(checks_mcp.over_http, scene(tmp_path, POSTROOM_URL=peer.url)).state is State.FAIL


def test_mcp_over_stdio(tmp_path: Path) -> None:
    line = only(checks_mcp.over_stdio, scene(tmp_path, **os.environ))
    assert line.state is State.OK, line


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import sys; sys.exit('no such module')", "no such module"),
        ("print('[]')", "does not introduce itself"),
        ("import os, time; os.close(1); time.sleep(60)", "does not introduce itself"),
        ("print('{\"result\": [{}]}')", "introduces itself as None"),
        ("print('nonsense')", "does not introduce itself"),
        ('print(\'{"result": {"serverInfo": {"version": "0"}}}\')', "introduces itself as 0"),
    ],
)
def test_mcp_over_stdio_that_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(checks_mcp, "COMMAND", (sys.executable, "-c", script))
    line = only(checks_mcp.over_stdio, scene(tmp_path))
    assert line.state is State.FAIL
    assert words in line.found


def test_mcp_over_stdio_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_mcp, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(checks_mcp, "STDIO_S", 0.2)
    assert only(checks_mcp.over_stdio, scene(tmp_path)).found.endswith("no answer within 0.2 s")


# The work.


def queued(there: Told, *todos: dict[str, Any], age_s: int = 600, paused: bool = False) -> Told:
    """The scene with a queue whose pending todos are these, the newest first, and nobody who ever claimed."""
    queue = queue_view(QueueStatus(QueueSettings("review", paused=paused), len(todos), 0, 0, 0, age_s * SECOND))
    there.status_is(queues=[queue])
    there.tell("/v1/todos", {"todos": list(todos), "next_cursor": None}, queue="review", state="pending", limit=200)
    for state in ("claimed", "done"):
        there.tell("/v1/todos", {"todos": []}, queue="review", state=state, limit=20)
    there.tell("/v1/endpoints", {"endpoints": []}, queue="review")
    return there


def aged(minutes: int, **changes: Any) -> dict[str, Any]:
    """A pending todo that was made so long ago."""
    return fake_daemon.todo(whole=False, created_at=NOON - minutes * MINUTE, **changes)


def test_young_work_is_fine(there: Told) -> None:
    line = only(checks_work.queues, queued(there, aged(4), age_s=240))
    assert (line.state, line.found) == (State.OK, "1 pending in 1 queue, none for more than 5m")


def test_work_that_is_not_due_yet_is_fine(there: Told) -> None:
    line = only(checks_work.queues, queued(there, aged(10, available_at=NOON + MINUTE)))
    assert (line.state, line.found) == (State.OK, "what is pending is not due yet in review")


def test_old_work_of_which_nobody_hears(there: Told) -> None:
    line = only(checks_work.queues, queued(there, aged(1), aged(10)))
    assert line.check == "group.subject[review]"
    assert line.found == (
        f"{fake_daemon.TODO}, the oldest of 2 pending, waits for 10m; "
        "no endpoint hears of it, and nobody claimed from it lately"
    )
    assert line.fix == "postroom attach --queue review in an agent's pane"


def test_old_work_in_a_paused_queue(there: Told) -> None:
    line = only(checks_work.queues, queued(there, aged(10), paused=True))
    assert (line.state, line.fix) == (State.WARN, "postroom queue resume review")


def test_old_work_for_one_who_is_not_seen(there: Told, tmp_path: Path) -> None:
    there.tell("/v1/who", {"who": []})
    line = only(checks_work.queues, queued(there, aged(10, assignee="ann")))
    assert "for ann alone, who is not seen here" in line.found
    seen = scene(tmp_path).tell("/v1/who", {"who": [fake_post.occupant(name="ann", live=False)]})
    line = only(checks_work.queues, queued(seen, aged(10, assignee="ann/2")))
    assert "who is silent and was last heard of 2026-01-31T" in line.found


def test_old_work_and_who_should_have_heard_of_it(there: Told) -> None:
    rung = fake_post.message(
        fake_post.delivery(DeliveryState.INJECTED), kind="queue.ring", metadata_json='{"queue": "review"}'
    )
    seats = [
        fake_post.endpoint(True, id="ep_1", name="ann", queues=("review",)),
        fake_post.endpoint(False, id="ep_2", name="bob", queues=("review",)),
        fake_post.endpoint(True, id="ep_3", name="eve", queues=("review",), rings=False),
    ]
    queued(there, aged(10))
    del there._once["/v1/endpoints?queue=review"], there._once["/v1/todos?queue=review&state=done&limit=20"]
    there.tell("/v1/endpoints", {"endpoints": seats}, queue="review")
    there.tell("/v1/messages", {"messages": [rung]}, kind="queue.ring", endpoint_id="ep_1", limit=50)
    there.tell("/v1/messages", {"messages": []}, kind="queue.ring", endpoint_id="ep_2", limit=50)
    done = fake_daemon.todo(whole=False, state=TodoState.DONE, owner="ann/1")
    there.tell("/v1/todos", {"todos": [done]}, queue="review", state="done", limit=20)
    line = only(checks_work.queues, there)
    assert "subscribed: ann (live, rung 2026-01-31T12:00:00Z: injected)" in line.found
    assert "bob (silent, never rung for it); eve (live, attached without rings)" in line.found
    assert "claimed from it lately: ann/1 2026-01-31T12:00:00Z" in line.found
    assert (line.fix or "").startswith("look at ann, bob, eve")


@pytest.mark.parametrize(
    ("ago_ms", "cursor", "state", "words"),
    [
        (MINUTE, None, State.WARN, "1 died within a day, in review; the last one: it broke"),
        (MINUTE, "c", State.WARN, "1 or more died within a day"),
        (25 * 60 * MINUTE, None, State.OK, "none within a day, 2 in all"),
    ],
)
def test_dead_letters(there: Told, ago_ms: int, cursor: str | None, state: State, words: str) -> None:
    dead = fake_daemon.todo(whole=False, state=TodoState.FAILED, error="it broke", updated_at=NOON - ago_ms)
    there.status_is(queues=[queue_view(QueueStatus(QueueSettings("review"), 0, 0, 0, 2, None))])
    there.tell("/v1/todos", {"todos": [dead], "next_cursor": cursor}, state="dead", limit=200)
    line = only(checks_work.dead, there)
    assert line.state is state
    assert words in line.found
