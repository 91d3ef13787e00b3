"""`postroom doctor` on real daemons: a healthy one, and one with several things wrong at once."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from postroom.doors.cli.checks import post as checks_post
from postroom.doors.cli.checks import scene as checks_scene
from tests.doors.command import leave
from tests.doors.doctor_rig import be_patient
from tests.sources.signing import SECRET
from tests.system.daemons import GITHUB, Daemon
from tests.system.test_sources import BODY

pytestmark = pytest.mark.system

Output = pytest.CaptureFixture[str]
Lines = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    be_patient(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "GITA_PROJECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def doctor(daemon: Daemon, capsys: Output) -> tuple[int, Lines]:
    """How it ends, and its lines by their checks."""
    code = leave("doctor", "--json", "--data", str(daemon.folder))
    return code, {one["check"]: one for one in json.loads(capsys.readouterr().out)}


def states(lines: Lines, state: str) -> set[str]:
    """The checks that came out so."""
    return {check for check, line in lines.items() if line["state"] == state}


def test_a_healthy_daemon_and_one_that_was_stopped(new_daemon: Callable[..., Daemon], capsys: Output) -> None:
    daemon = new_daemon(GITHUB, options=("--hooks-port", "0")).start()
    assert daemon.deliver(BODY).status == 202
    code, lines = doctor(daemon, capsys)
    assert (code, states(lines, "fail")) == (0, set()), lines
    assert lines["settings.sources"]["found"] == "1 valid: github"
    assert lines["daemon.reached"]["found"] == f"unix://{daemon.socket} (by --data)"
    assert lines["daemon.engine"]["found"].startswith("sqlite 3.")
    assert lines["sources.secrets[github]"]["found"].endswith("secrets[0] proved the latest delivery")
    assert lines["sources.deliveries[github]"]["state"] == "ok"
    assert f"cloudflared tunnel --url http://127.0.0.1:{daemon.hooks_port}" in lines["sources.hooks_port"]["found"]
    assert lines["mcp.http"]["state"] == lines["mcp.stdio"]["state"] == "ok"
    assert lines["work.queues"]["found"].startswith("1 pending in 1 queue,")
    leave("doctor", "--data", str(daemon.folder))
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
    # An agent is told what concerns it, and nothing of sources and their refusals.
    secret = daemon.ask("POST", "/v1/tokens", {"name": "ann"}).value["secret"]
    told = daemon.ask_port("GET", "/v1/status", token=secret).value
    assert told["hooks"] == {}
    assert daemon.ask("GET", "/v1/status").value["hooks"]["github"]["accepted"] == 1
    # Once it is stopped, what is local is looked at all the same.
    assert daemon.terminate() == 0
    code, lines = doctor(daemon, capsys)
    assert (code, states(lines, "fail")) == (3, {"daemon.reached"})
    assert lines["daemon.reached"]["fix"].startswith(f"postroom serve --data {daemon.folder}")
    assert {"data.folder", "data.token", "disk.wal", "mcp.stdio"} <= states(lines, "ok")


def test_several_things_are_wrong(
    new_daemon: Callable[..., Daemon], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((1, 1, 10**12, 0, 0, 10**7, 10**6, 10**6, 0, 255))
    monkeypatch.setattr(checks_scene, "Scene", partial(checks_scene.Scene, statvfs=lambda _: full))
    monkeypatch.setattr(checks_post, "PEER_S", 0.2)
    monkeypatch.setenv("POSTROOM_TYPO", "1")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        tea = f'[[source]]\nname = "tea"\nprovider = "gitea"\nsecrets = ["{SECRET}"]\nqueue = "inbox"\n'
        daemon = new_daemon(f'{GITHUB}{tea}[[opencode]]\nurl = "{url}"\n').start()
        old, dead = daemon.create("slow"), daemon.create("slow", max_attempts=1)
        held = daemon.ask("POST", f"/v1/todos/{dead}/claim", {}).value["todo"]
        lost = {"lease_id": held["lease_id"], "error": "it\x1b[2J broke", "retry": False}
        assert daemon.ask("POST", f"/v1/todos/{dead}/fail", lost).status == 200
        assert daemon.ask("PUT", "/v1/queues/slow", {"paused": True}).status == 200
        beside = apsw.Connection(str(daemon.folder / "postroom.db"))
        beside.set_busy_timeout(5000)
        beside.execute("update todos set created_at = created_at - 3600000 where id = ?", (old,))
        beside.close()
        (daemon.folder / "admin-token").chmod(0o644)
        code, lines = doctor(daemon, capsys)
    assert code == 1
    assert states(lines, "fail") == {"data.token", "disk.space", f"post.opencode[{url}]"}, lines
    assert lines["data.token"]["fix"] == f"chmod 600 {daemon.folder}/admin-token"
    assert lines[f"post.opencode[{url}]"]["found"] == "it cannot be reached: no answer within 0.2 s"
    assert {"settings.variables", "work.queues[slow]", "work.dead"} <= states(lines, "warn")
    assert lines["work.queues[slow]"]["fix"] == "postroom queue resume slow"
    assert lines["work.queues[slow]"]["found"].startswith(f"{old}, the oldest of 1 pending, waits for 1h")
    assert "ALLOWED_HOST_LIST" in lines["sources.gitea[tea]"]["fix"]
    assert "broke" in lines["work.dead"]["found"]
    assert all(text.isprintable() for line in lines.values() for text in line.values() if text)
