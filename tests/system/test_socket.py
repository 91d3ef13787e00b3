"""Protocol 0.1 on a real daemon's socket: its user alone, beside HTTP, with gita's own registry, captured and replayed."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Processes, wait_until
from tests.system import reference_client
from tests.system.daemons import Daemon, command
from tests.system.reference_client import Client, pane, wake
from tests.system.registry import Gita

pytestmark = pytest.mark.system

NewDaemon = Callable[..., Daemon]
NO_GITA = "[gita]\nrequired = false\n"


@pytest.fixture
def gita(tmp_path: Path) -> Gita:
    """Two repositories, one of them with the contract's engine as its name."""
    made = Gita(tmp_path)
    made.repository("alpha")
    made.repository("beta")
    return made


@pytest.fixture
def served(new_daemon: NewDaemon, gita: Gita) -> Daemon:
    """A daemon that knows gita's registry."""
    return new_daemon(env=gita.env).start()


def test_a_client_written_from_the_contract_alone_finds_it_kept(
    served: Daemon, processes: Processes
) -> None:  # T1 # T4 # T5 # T38 # T39 # T40 # T41 # T42 # T43
    script = Path(reference_client.__file__)
    assert not re.search(r"^\s*(import|from)\s+(postroom|tests)", script.read_text(), re.MULTILINE)
    # `-I` and a file: neither this project nor anything installed is in its way.
    run = processes.start(sys.executable, "-I", "-S", str(script), str(served.socket), "alpha", "beta", "gamma")
    assert run.wait(120) == 0, processes.output(run)
    assert served.ready()
    assert "Traceback" not in served.output


# T1
def test_the_socket_is_its_users_alone(served: Daemon) -> None:
    found = served.socket.stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_uid == os.geteuid()
    capture = served.folder / "protocol.jsonl"
    Client(str(served.socket)).refused("not_found", "ack", message_id="msg_1")
    assert stat.S_IMODE(capture.stat().st_mode) == 0o600


# T1
def test_the_data_folder_is_made_private(processes: Processes, folder: Path) -> None:
    (folder / "new").mkdir()
    (folder / "new").rmdir()
    before = os.umask(0)
    try:
        daemon = Daemon(processes, folder / "new").start()
    finally:
        os.umask(before)
    assert stat.S_IMODE(daemon.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600


# T2
def test_a_process_of_another_user_is_refused(served: Daemon) -> None:
    """Where the tests run as root another user's process asks, past the file's mode; elsewhere the mode alone is tried."""
    if os.geteuid() != 0:
        assert stat.S_IMODE(served.socket.stat().st_mode) == 0o600
        return
    served.folder.chmod(0o755)
    served.socket.chmod(0o666)
    asker = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "peer = socket.socket(socket.AF_UNIX); peer.settimeout(20); peer.connect(sys.argv[1])\n"
        "peer.sendall(sys.argv[2].encode())\n"
        "got = b''\n"
        "while part := peer.recv(65536): got += part\n"
        "sys.stdout.buffer.write(got)\n"
    )
    for sent in ('{"op":"ping","protocol":"0.1"}\n', "GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        done = subprocess.run(
            [sys.executable, "-I", "-c", asker, str(served.socket), sent],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["error"]["code"] == "forbidden"
    assert Client(str(served.socket)).done("ping")["ok"]


# T3
def test_the_protocol_is_on_the_socket_alone(served: Daemon) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as peer:
        peer.sendall(b'{"op":"ping","protocol":"0.1"}\n\r\n\r\n')
        answer = b""
        while part := peer.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")


def test_lines_and_http_side_by_side(served: Daemon) -> None:
    client = Client(str(served.socket))
    wrong: list[Any] = []

    def lines() -> None:
        try:
            for _ in range(40):
                assert client.done("ping")["service"] == "postroom"
        except Exception as error:
            wrong.append(error)

    def http() -> None:
        try:
            for n in range(20):
                served.create(title=f"t{n}")
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=one) for one in (lines, http) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert served.ask("GET", "/ready").status == 200


def test_what_a_peer_does_wrong_hurts_nobody_else(served: Daemon) -> None:
    opened = []
    for sent in (b"", b"{", b"G", b"GET / HTTP/1.1\r\n", b"\x00" * 200_000, b'{"op":"history"}\n'):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(20)
        peer.connect(str(served.socket))
        peer.sendall(sent)
        opened.append(peer)
    client = Client(str(served.socket))
    for _ in range(20):
        client.done("ping")
    for peer in opened:
        peer.close()
    assert served.ready()
    assert "Traceback" not in served.output


def test_two_daemons_do_not_share_a_socket(served: Daemon, processes: Processes, tmp_path: Path) -> None:
    elsewhere = tmp_path / "d"
    elsewhere.mkdir()
    second = Daemon(processes, elsewhere, options=("--socket", str(served.socket)))
    second.socket = served.socket
    second.launch()
    assert second.ended() == 1
    assert f"another daemon answers on {served.socket}: process {served.pid}" in second.output
    Client(str(served.socket)).done("ping")
    # The lock is its process's: killed, it leaves a stale socket that the next one replaces.
    served.kill()
    second.start()
    Client(str(served.socket)).done("ping")


def test_a_socket_path_that_is_too_long_is_refused(processes: Processes, folder: Path) -> None:
    path = folder / ("s" * 120)
    daemon = Daemon(processes, folder, options=("--socket", str(path)))
    daemon.launch()
    assert daemon.ended() == 1
    assert "is longer than 103 bytes" in daemon.output
    assert "Traceback" not in daemon.output


# T14
def test_repositories_are_those_that_gita_registered(served: Daemon, gita: Gita) -> None:
    client = Client(str(served.socket))
    assert client.refused("invalid", "send", **wake("gamma"))["reason"] == "not_registered"
    gita.repository("gamma")
    assert gita.slugs() == ["alpha", "beta", "gamma"]
    endpoint = pane(client, "ann", "alpha", "gamma")
    client.done("send", **wake("gamma", idempotency_key="1"))
    # A second of the same name gets its folder's before it, and a name may be changed.
    gita.repository("other/alpha")
    named = [slug for slug in gita.slugs() if slug.endswith("other/alpha")]
    assert named
    client.refused("unavailable", "send", **wake(named[0], idempotency_key="2"))
    gita.run("rename", "gamma", "delta")
    assert client.refused("invalid", "send", **wake("gamma", idempotency_key="3"))["reason"] == "not_registered"
    client.refused("unavailable", "send", **wake("delta", idempotency_key="3"))
    # One that gita forgot, and one whose folder is no repository any more.
    gita.run("rm", "beta")
    assert client.refused("invalid", "send", **wake("alpha", sender_repo="beta"))["field"] == "sender_repo"
    (gita.home / "work" / "alpha" / ".git").rename(gita.home / "moved")
    assert client.refused("invalid", "send", **wake("alpha", sender_repo="local"))["field"] == "target_repo"
    client.done("unregister", endpoint_id=endpoint)


# T14
def test_who_has_no_gita_turns_it_off(new_daemon: NewDaemon, tmp_path: Path) -> None:
    env = {"GITA_PROJECT_HOME": str(tmp_path / "nowhere")}
    daemon = new_daemon(env=env).start()
    client = Client(str(daemon.socket))
    error = client.refused("unavailable", "send", **wake("alpha"))
    assert error["reason"] == "registry_missing"
    assert "[gita] required = false" in error["message"]
    daemon.terminate()
    (daemon.folder / "postroom.toml").write_text(NO_GITA)
    daemon.start()
    pane(client, "ann", "alpha")
    client.done("send", **wake("alpha"))


# T4 # T41 # T45
def test_a_restart_is_invisible_between_any_two_calls(served: Daemon) -> None:
    client = Client(str(served.socket))
    endpoint = pane(client, "ann", "alpha")
    sent = client.done("send", **wake("alpha"))
    for _ in range(2):
        served.kill()
        served.start()
        assert client.done("send", **wake("alpha"))["message_id"] == sent["message_id"]
        assert client.done("message", message_id=sent["message_id"])["message"]["endpoint_id"] == endpoint
        page = client.done("history", client_id="coordination-engine")
        assert [one["message_id"] for one in page["messages"]] == [sent["message_id"]]
    served.kill()
    served.start()
    assert client.done("ack", message_id=sent["message_id"])["message"]["state"] == "acknowledged"


# T46 # T47
def test_a_wake_follows_its_repository_across_restarts(served: Daemon) -> None:
    """A terminal's endpoint that is gone, and a restart, and its replacement: the same message for the new one."""
    client = Client(str(served.socket))
    asked = {"carrier": "opencode", "repositories": ["alpha"]}
    old = client.done("register", **asked, address={"session": "ses_old"})["endpoint_id"]
    sent = client.done("send", **wake("alpha"))
    assert (sent["endpoint_id"], sent["state"]) == (old, "pending")
    new = client.done("register", **asked, address={"session": "ses_new"})["endpoint_id"]
    assert client.refused("conflict", "send", **wake("alpha", endpoint_id=new))["endpoint_id"] == old
    client.done("unregister", endpoint_id=old)
    served.kill()
    served.start()
    moved = client.done("send", **wake("alpha"))
    assert (moved["message_id"], moved["endpoint_id"], moved["deduplicated"]) == (sent["message_id"], new, True)
    assert client.done("history")["messages"][0]["endpoint_id"] == new


# Replay.


def replay(daemon: Daemon, *words: str, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [command(), "replay", "--json", *words],
        env={**os.environ, **daemon.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def todos_and_endpoints(daemon: Daemon) -> Any:
    return [daemon.ask("GET", path).value for path in ("/v1/todos", "/v1/queues")]


# T49 # T50 # T51
def test_a_capture_is_replayed_once(served: Daemon, gita: Gita, tmp_path: Path) -> None:
    client = Client(str(served.socket))
    endpoint = pane(client, "ann", "alpha")
    second = pane(client, "bob", "alpha")
    first = client.done("send", **wake("alpha", endpoint_id=endpoint))["message_id"]
    client.done("send", **wake("alpha", endpoint_id=endpoint))
    client.done("send", **wake("alpha", idempotency_key="lease-2", endpoint_id=second, sender_repo="local"))
    client.done("send", **wake("alpha", idempotency_key="s", endpoint_id=second, body=f"use tk_{'a' * 40}"))
    client.done("ack", message_id=first)
    client.refused("invalid", "send", **wake("gamma", idempotency_key="lease-3"))
    capture = tmp_path / "capture.jsonl"
    capture.write_bytes((served.folder / "protocol.jsonl").read_bytes() + b"no json\n\n")

    dry = replay(served, str(capture), "--dry-run")
    assert (dry["told"], dry["skipped"], dry["replayed"]) == (4, 1, 0)
    assert len(client.done("history")["messages"]) == 3

    once = replay(served, str(capture), code=1)
    assert {name: once[name] for name in ("replayed", "deduplicated", "refused", "skipped")} == {
        "replayed": 2,
        "deduplicated": 1,
        "refused": 1,
        "skipped": 1,
    }
    assert "not_registered" not in json.dumps(once["messages"][0])
    assert "gamma" in once["messages"][-1]["why"]
    before = todos_and_endpoints(served), client.done("endpoints")
    twice = replay(served, str(capture), code=1)
    assert (twice["replayed"], twice["deduplicated"], twice["refused"]) == (0, 3, 1)
    assert [one["message_id"] for one in twice["messages"]] == [one["message_id"] for one in once["messages"]]
    assert (todos_and_endpoints(served), client.done("endpoints")) == before

    found = client.done("history", client_id="tamq-replay")["messages"]
    assert [(one["idempotency_key"], one["endpoint_id"]) for one in reversed(found)] == [
        (first, endpoint),
        (once["messages"][2]["key"], second),
    ]
    again = found[-1]
    assert (again["body"], again["correlation_id"], again["metadata"], again["provenance"]) == (
        "Wake up.",
        "trigger-1",
        {"lease_id": "lease-1", "trigger_id": "trigger-1"},
        "replay",
    )
    # The original is as it was, and its acknowledgement was not said a second time.
    assert client.done("message", message_id=first)["message"]["state"] == "acknowledged"
    assert again["state"] == "injected"
    # The daemon's own capture holds the replays now, and replayed it says the same.
    own = replay(served, str(served.folder / "protocol.jsonl"), code=1)
    assert (own["replayed"], own["refused"]) == (0, 3)
    assert len(client.done("history", client_id="tamq-replay")["messages"]) == 2


# T49
def test_what_was_never_admitted_is_keyed_by_its_content(served: Daemon, tmp_path: Path) -> None:
    client = Client(str(served.socket))
    client.refused("unavailable", "send", **wake("alpha"))
    capture = tmp_path / "capture.jsonl"
    entry = json.loads((served.folder / "protocol.jsonl").read_text())
    bare = {**entry["request"], "correlation_id": "trigger-2", "idempotency_key": "other"}
    capture.write_text(f"{json.dumps(entry)}\n{json.dumps(bare)}\n")
    refused = replay(served, str(capture), code=1)
    assert refused["refused"] == 2
    assert "unavailable" in refused["messages"][0]["why"]
    pane(client, "ann", "alpha")
    told = replay(served, str(capture))
    assert (told["replayed"], told["deduplicated"]) == (1, 1)
    assert all(one["key"].startswith("sha256-") for one in told["messages"])


def test_a_replay_needs_a_file_and_a_daemon(served: Daemon, tmp_path: Path, processes: Processes) -> None:
    capture = tmp_path / "capture.jsonl"
    capture.write_text(json.dumps({"op": "send", **wake("alpha")}) + "\n")
    served.terminate()
    env = served.environment

    def code(*words: str, **more: str) -> int:
        return processes.start(command(), "replay", *words, env={**env, **more}).wait(60)

    assert code(str(tmp_path / "none")) == 2
    assert code(str(capture), POSTROOM_URL="http://127.0.0.1:1") == 2
    assert code(str(capture)) == 3
    assert code(str(capture), "--dry-run") == 0


def test_a_client_that_dies_with_its_request_leaves_the_message_whole(served: Daemon) -> None:
    client = Client(str(served.socket))
    pane(client, "ann", "alpha")
    for n in range(20):
        line = json.dumps({"op": "send", "protocol": "0.1", **wake("alpha", idempotency_key=f"k{n}")}).encode() + b"\n"
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(served.socket))
            peer.sendall(line)
    wait_until(lambda: len(client.done("history")["messages"]) == 20, "all are admitted")
    assert client.done("send", **wake("alpha", idempotency_key="k7"))["deduplicated"] is True
