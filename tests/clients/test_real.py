"""What `postroom setup` writes, read by the clients' own programs before a real daemon (marked `clients`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.real import CLAUDE, CODEX, Home
from tests.opencode.real import CURRENT, VERSIONS
from tests.opencode.real import program as opencode_program
from tests.processes import Processes
from tests.system.daemons import Daemon, command

pytestmark = pytest.mark.clients

CONNECTED = "✔ Connected"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXPORT = re.compile(r"^where .* is started: (export .*)$", re.MULTILINE)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty home, and no setting of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith(("POSTROOM_", "CLAUDE", "CODEX", "OPENCODE", "ANTHROPIC", "OPENAI")):
            monkeypatch.delenv(name)
    return Home(tmp_path / "home")


@pytest.fixture
def daemon(home: Home, processes: Processes) -> Iterator[Daemon]:
    """A daemon on a folder with a short name, since a socket's path may hold about 100 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="postroom-"))
    home.environ["POSTROOM_DATA"] = str(folder)
    yield Daemon(processes, folder).start()
    processes.end_all()
    shutil.rmtree(folder, ignore_errors=True)


def setup(home: Home, *words: str, **environ: str) -> str:
    """Run `postroom setup` with --write: what it says on stderr."""
    done = home.tried(command(), "setup", *words, "--write", **environ)
    assert done.returncode == 0, done.stderr
    return done.stderr


def exported(home: Home, said: str) -> dict[str, str]:
    """The variable that the printed line sets in a shell."""
    (found,) = _EXPORT.findall(said)
    name = found.partition("=")[0].removeprefix("export ")
    return {name: home.run("sh", "-c", f'{found}; printf %s "${name}"')}


def opencode_list(home: Home, version: str, **environ: str) -> str:
    """What `opencode mcp list` says of the server, in plain text."""
    said = _COLOUR.sub("", home.run(opencode_program(version), "mcp", "list", **environ))
    (found,) = re.findall(r"^.*\bpostroom\b.*$", "\n".join(re.findall(r"^●.*$", said, re.MULTILINE)), re.MULTILINE)
    return str(found)


def who_calls(daemon: Daemon, home: Home, words: list[str]) -> str:
    """Leave a todo through the process that an entry starts, with nothing but what it is given: who is told to have."""
    call = {"name": "create_for", "arguments": {"queue": "q", "title": "left"}}
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    lines: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    bare = {"PATH": os.defpath, "HOME": str(home.folder)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=bare, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for one in lines:
            process.stdin.write(json.dumps(one) + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdin.close()
        process.wait(30)
    assert not answers[1]["result"].get("isError"), answers[1]
    (todo,) = daemon.ask("GET", "/v1/todos").value["todos"]
    return str(todo["created_by"])


def test_claude_for_its_user(home: Home, daemon: Daemon) -> None:
    assert "No MCP servers" in home.run(CLAUDE.program, "mcp", "list")
    path = home.folder / ".claude.json"
    before = json.loads(path.read_text())
    setup(home, "claude")
    entry = json.loads(path.read_text())["mcpServers"]["postroom"]
    assert f"postroom: {' '.join([entry['command'], *entry['args']])} - {CONNECTED}" in home.run(
        CLAUDE.program, "mcp", "list"
    )
    assert "Scope: User config" in home.run(CLAUDE.program, "mcp", "get", "postroom")
    assert who_calls(daemon, home, [entry["command"], *entry["args"]]).startswith("claude-")

    setup(home, "claude", "--channel")
    assert re.search(rf"^postroom: .* mcp --channel .* - {CONNECTED}$", home.run(CLAUDE.program, "mcp", "list"), re.M)

    setup(home, "claude", "--http")
    assert f"postroom: {daemon.url}/mcp (HTTP) - {CONNECTED}" in home.run(CLAUDE.program, "mcp", "list")
    setup(home, "claude", "--remove")
    assert "No MCP servers" in home.run(CLAUDE.program, "mcp", "list")
    # What Claude Code has in its file is there still; it has added to it meanwhile.
    assert before.items() <= json.loads(path.read_text()).items()


def test_claude_for_a_project(home: Home, daemon: Daemon) -> None:
    told = exported(home, setup(home, "claude", "--project", "--http"))
    assert list(told) == ["POSTROOM_CLAUDE_TOKEN"]
    listed = home.run(CLAUDE.program, "mcp", "list", **told)
    assert f"postroom: {daemon.url}/mcp (HTTP) - ⏸ Pending approval" in listed
    # What its user says yes to, when Claude Code asks in that project.
    (home.folder / ".claude").mkdir(exist_ok=True)
    (home.folder / ".claude" / "settings.json").write_text('{"enabledMcpjsonServers": ["postroom"]}')
    assert f"postroom: {daemon.url}/mcp (HTTP) - {CONNECTED}" in home.run(CLAUDE.program, "mcp", "list", **told)
    setup(home, "claude", "--project")
    assert CONNECTED in home.run(CLAUDE.program, "mcp", "list")


def test_codex_lists_it(home: Home, daemon: Daemon) -> None:
    path = home.folder / ".codex" / "config.toml"
    mine = '# mine\nmodel = "m" # best\n\n[mcp_servers.other]\ncommand = "true"\nenabled = false\n'
    mine += "\n[analytics]\nenabled = false\n"
    path.write_text(mine)
    setup(home, "codex")
    entry = tomllib.loads(path.read_text())["mcp_servers"]["postroom"]
    listed = home.run(CODEX.program, "mcp", "list")
    assert re.search(rf"^postroom +{entry['command']} +{' '.join(entry['args'])} .* enabled ", listed, re.MULTILINE)
    assert re.search(r"^other .* disabled", listed, re.MULTILINE)
    got = json.loads(home.run(CODEX.program, "mcp", "get", "postroom", "--json"))
    assert (got["enabled"], got["transport"]["type"], got["transport"]["args"]) == (True, "stdio", entry["args"])
    assert who_calls(daemon, home, [entry["command"], *entry["args"]]).startswith("codex-")

    told = exported(home, setup(home, "codex", "--http"))
    listed = home.run(CODEX.program, "mcp", "list", **told)
    assert re.search(rf"^postroom +{daemon.url}/mcp +POSTROOM_CODEX_TOKEN +enabled +Bearer token", listed, re.MULTILINE)
    setup(home, "codex", "--remove")
    assert path.read_text() == mine


def test_codex_reads_a_project_once_it_is_trusted(home: Home, daemon: Daemon) -> None:
    (home.work / ".git").mkdir()
    setup(home, "codex", "--project")
    assert "postroom" not in home.run(CODEX.program, "mcp", "list")
    (home.folder / ".codex" / "config.toml").write_text(f'[projects."{home.work}"]\ntrust_level = "trusted"\n')
    assert re.search(r"^postroom .* enabled ", home.run(CODEX.program, "mcp", "list"), re.MULTILINE)


@pytest.mark.parametrize("version", VERSIONS)
def test_opencode_is_connected(home: Home, daemon: Daemon, version: str) -> None:
    # The installed one is asked for the shape that it takes.
    home.environ["PATH"] = f"{opencode_program(version).parent}:{home.environ['PATH']}"
    path = home.folder / "config" / "opencode" / "opencode.jsonc"
    path.parent.mkdir(parents=True)
    mine = '{\n  "$schema": "https://opencode.ai/config.json",\n  // mine\n  "autoupdate": false,\n}\n'
    path.write_text(mine)
    setup(home, "opencode")
    assert "// mine" in path.read_text()
    assert opencode_list(home, version).split() == ["●", "✓", "postroom", "connected"]
    entry = json.loads(path.read_text().replace("// mine", "").replace(",\n}", "\n}"))["mcp"]["postroom"]
    assert who_calls(daemon, home, entry["command"]).startswith("opencode-")
    setup(home, "opencode", "--http")
    assert opencode_list(home, version).split() == ["●", "✓", "postroom", "connected"]
    setup(home, "opencode", "--remove")
    assert path.read_text() == mine


def test_opencode_in_its_second_shape(home: Home, daemon: Daemon) -> None:
    path = home.work / "opencode.json"
    path.write_text('{"mcp": {"servers": {}}}\n')
    told = exported(home, setup(home, "opencode", "--project", "--http"))
    assert "postroom" in json.loads(path.read_text())["mcp"]["servers"]
    assert opencode_list(home, CURRENT, **told).split() == ["●", "✓", "postroom", "connected"]
