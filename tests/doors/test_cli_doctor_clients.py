"""The doctor's checks of the clients: their settings, opencode's plugin, and the tokens that are theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from postroom.doors.cli.checks import clients as checks_clients
from postroom.doors.cli.checks.found import State
from tests.doors import fake_daemon
from tests.doors.doctor_rig import NOWHERE, be_patient, look, only, scene, status
from tests.doors.fake_daemon import FakeDaemon

GOOD = "tk_good_good_good"
CLIENTS = {
    "claude": (checks_clients.claude, "home/.claude.json", '{"mcpServers": {"postroom": %s}}'),
    "claude here": (checks_clients.claude, "here/.mcp.json", '{"mcpServers": {"postroom": %s}}'),
    "claude local": (
        checks_clients.claude,
        "home/.claude.json",
        '{"projects": {"HERE": {"mcpServers": {"postroom": %s}}}}',
    ),
    "opencode": (checks_clients.opencode, "home/.config/opencode/opencode.json", '{"mcp": {"postroom": %s}}'),
    "opencode newer": (checks_clients.opencode, "here/opencode.jsonc", '{"mcp": {"servers": {"postroom": %s}}} // x'),
}


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    be_patient(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def peer() -> Iterator[FakeDaemon]:
    """A daemon that knows every token."""
    with fake_daemon.running() as fake:
        fake.answer("GET", "/health", {"status": "ok", "version": status()["version"]})
        fake.answer("GET", "/v1/who", {"who": []})
        yield fake


def strange(peer: FakeDaemon) -> None:
    """From now on it knows none."""
    peer.refuse("GET", "/v1/who", 401, "unauthenticated", "the token is not known")


def written(folder: Path, place: str, text: str, mode: int = 0o600) -> Path:
    """A file with this text."""
    file = folder / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def program(folder: Path, mode: int = 0o755) -> Path:
    """A program that can be started, or cannot."""
    return written(folder, "bin/postroom", "#!/bin/sh\n", mode)


def started(client: str, *words: str) -> str:
    """An entry that starts a process, as the client has it."""
    if client.startswith("opencode"):
        return json.dumps({"type": "local", "command": list(words)})
    return json.dumps({"command": words[0], "args": list(words[1:])})


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_starts_a_process(tmp_path: Path, client: str) -> None:
    check, place, shape = CLIENTS[client]
    there = scene(tmp_path)
    shape = shape.replace("HERE", str(there.here))
    assert only(check, there).state is State.SKIP
    entry = started(client, str(program(tmp_path)), "mcp")
    file = written(tmp_path, place, shape % entry)
    line = only(check, there)
    assert (line.state, line.found) == (State.OK, f"{file} starts {tmp_path}/bin/postroom")
    program(tmp_path, 0o644)
    assert "cannot be run" in only(check, there).found
    program(tmp_path).unlink()
    line = only(check, there)
    assert (line.state, line.fix) == (State.FAIL, f"postroom setup {client.split(maxsplit=1)[0]} --write")
    assert "which is not there" in line.found
    written(tmp_path, place, shape % started(client, "postroom", "mcp"))
    assert "which is not on the PATH" in only(check, there).found
    written(tmp_path, place, shape % started(client, "somebody", "else"))
    line = only(check, there)
    assert (line.state, "something else than Postroom" in line.found) == (State.WARN, True)
    written(tmp_path, place, shape.replace("postroom", "other") % entry)
    line = only(check, there)
    assert (line.state, line.found) == (State.SKIP, f"{file} does not name Postroom")
    written(tmp_path, place, '{"mcpServers": [')
    line = only(check, there)
    assert (line.state, line.found.startswith(f"{file}, line 1")) == (State.FAIL, True)


def test_a_client_that_has_it_switched_off(tmp_path: Path) -> None:
    entry = {"type": "local", "command": [str(program(tmp_path)), "mcp"], "enabled": False}
    written(tmp_path, "here/opencode.json", json.dumps({"mcp": {"postroom": entry}}))
    assert only(checks_clients.opencode, scene(tmp_path)).state is State.WARN


def test_codex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer: FakeDaemon) -> None:
    there = scene(tmp_path)
    text = f'[mcp_servers.postroom]\ncommand = "{program(tmp_path)}"\nargs = ["mcp"]\n'
    file = written(tmp_path, "home/.codex/config.toml", text)
    assert only(checks_clients.codex, there).state is State.OK
    file.write_text("[mcp_servers")
    assert only(checks_clients.codex, there).state is State.FAIL
    file.write_text(f'[mcp_servers.postroom]\nurl = "{NOWHERE}/mcp"\n')
    assert "where nothing answers" in only(checks_clients.codex, there).found
    file.write_text(f'[mcp_servers.postroom]\nurl = "{peer.url}/mcp"\nbearer_token_env_var = "MY_TOKEN"\n')
    line = only(checks_clients.codex, there)
    assert (line.state, "MY_TOKEN, which is not set here" in line.found) == (State.WARN, True)
    assert only(checks_clients.codex, scene(tmp_path, MY_TOKEN=GOOD)).state is State.OK


def test_several_files_are_told_apart(tmp_path: Path) -> None:
    shape = '{"mcpServers": {"postroom": {"command": "%s", "args": ["mcp"]}}}'
    written(tmp_path, "home/.claude.json", shape % program(tmp_path))
    written(tmp_path, "here/.mcp.json", shape % "/nowhere/postroom")
    lines = look(checks_clients.claude, scene(tmp_path))
    assert [(line.check, line.state) for line in lines] == [
        ("group.subject[1]", State.OK),
        ("group.subject[2]", State.FAIL),
    ]


def asks(folder: Path, url: str, token: str, mode: int = 0o600) -> None:
    """A project in which Claude Code asks a daemon under this token."""
    server = {"type": "http", "url": f"{url}/mcp", "headers": {"Authorization": f"Bearer {token}"}}
    written(folder, "here/.mcp.json", json.dumps({"mcpServers": {"postroom": server}}), mode)


def test_a_client_that_asks_by_http(tmp_path: Path, peer: FakeDaemon) -> None:
    there = scene(tmp_path)
    asks(tmp_path, peer.url, GOOD)
    line = only(checks_clients.claude, there)
    assert (line.state, GOOD in line.found) == (State.OK, False)
    assert peer.last.headers["authorization"] == f"Bearer {GOOD}"
    asks(tmp_path, peer.url, GOOD, 0o640)
    line = only(checks_clients.claude, there)
    assert (line.state, line.fix) == (State.WARN, f"chmod 600 {tmp_path}/here/.mcp.json")
    strange(peer)
    line = only(checks_clients.claude, there)
    assert (line.state, "does not know" in line.found) == (State.FAIL, True)
    asks(tmp_path, peer.url, "${SOME_TOKEN}")
    assert "SOME_TOKEN, which is not set here" in only(checks_clients.claude, there).found
    assert only(checks_clients.claude, scene(tmp_path, SOME_TOKEN=GOOD)).state is State.OK
    asks(tmp_path, NOWHERE, GOOD)
    assert "where nothing answers" in only(checks_clients.claude, there).found


def by_command(folder: Path, token: Path) -> Any:
    """opencode's settings with a process that reads its token from a file."""
    entry = {"type": "local", "command": [str(program(folder)), "mcp", "--token-file", str(token)]}
    written(folder, "here/opencode.json", json.dumps({"mcp": {"postroom": entry}}))


def by_url(folder: Path, token: Path, url: str) -> Any:
    """opencode's settings with an address, and a token that opencode reads from a file."""
    entry = {"type": "remote", "url": f"{url}/mcp", "headers": {"Authorization": f"Bearer {{file:{token}}}"}}
    written(folder, "here/opencode.json", json.dumps({"mcp": {"postroom": entry}}))


@pytest.mark.parametrize("way", ["command", "url"])
def test_a_clients_token_file(tmp_path: Path, peer: FakeDaemon, way: str) -> None:
    token = written(tmp_path, "token", GOOD, 0o640)
    by_command(tmp_path, token) if way == "command" else by_url(tmp_path, token, peer.url)
    line = only(checks_clients.opencode, scene(tmp_path))
    assert (line.state, line.fix) == (State.FAIL, f"chmod 600 {token}")
    token.chmod(0o600)
    assert only(checks_clients.opencode, scene(tmp_path)).state is State.OK
    token.write_text("nothing")
    assert "holds no token" in only(checks_clients.opencode, scene(tmp_path)).found
    token.unlink()
    assert "cannot be read" in only(checks_clients.opencode, scene(tmp_path)).found


def test_the_plugin(tmp_path: Path) -> None:
    there = scene(tmp_path)
    assert only(checks_clients.plugin, there).state is State.SKIP
    own = (files("postroom") / "clients" / "opencode_plugin.js").read_text("utf-8")
    assert sum(line.startswith(checks_clients.DATA_LINE) for line in own.splitlines()) == 1
    file = written(tmp_path, "home/.config/opencode/plugin/postroom.js", own)
    assert only(checks_clients.plugin, there).state is State.OK
    file.write_text(own.replace("const DATA = null ", 'const DATA = "/elsewhere" '))
    assert only(checks_clients.plugin, there).state is State.OK
    file.write_text(own + "// older\n")
    assert "is not this version's" in only(checks_clients.plugin, there).found
    file.write_text("export const x = 1\n")
    assert "is not Postroom's" in only(checks_clients.plugin, there).found


def test_the_clients_tokens(tmp_path: Path, peer: FakeDaemon) -> None:
    there = scene(tmp_path, POSTROOM_URL=peer.url)
    assert only(checks_clients.tokens, there).state is State.SKIP
    written(tmp_path, "data/clients/claude.token", f"{GOOD}\n")
    written(tmp_path, "data/opencode.json", json.dumps({"token_id": "tk_an_id_an_id", "token": GOOD}), 0o644)
    mine, plugins = look(checks_clients.tokens, there)
    assert (mine.check, mine.state) == ("group.subject[claude.token]", State.OK)
    assert mine.found.endswith("is private, and known")
    assert peer.last.headers["authorization"] == f"Bearer {GOOD}"
    assert (plugins.check, plugins.state) == ("group.subject[opencode.json]", State.FAIL)
    (tmp_path / "data/opencode.json").chmod(0o600)
    assert look(checks_clients.tokens, there)[1].state is State.OK
    assert peer.last.headers["authorization"] == f"Bearer {GOOD}"
    (tmp_path / "data/opencode.json").write_text("[")
    assert "holds no token" in look(checks_clients.tokens, there)[1].found
    strange(peer)
    assert "does not know the token" in look(checks_clients.tokens, there)[0].found
