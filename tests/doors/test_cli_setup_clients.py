"""What `postroom setup` writes for each client: the shapes it knows, what it keeps of them, and where it looks."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from postroom.doors.cli.clients import opencode as setup_opencode
from postroom.doors.cli.clients.codex import Codex
from postroom.doors.cli.clients.entry import program
from postroom.doors.cli.clients.opencode import Shape, installed_shape, shape_of
from postroom.doors.cli.clients.toml_text import NotToml
from postroom.errors import Misconfigured
from tests.doors.fake_daemon import TOKEN
from tests.doors.setup_rig import PROGRAM, SECRET, SetupRig, mode, rig

SCHEMA = {"$schema": "https://opencode.ai/config.json"}
SHIPPED = (files("postroom") / "clients" / "opencode_plugin.js").read_text("utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[SetupRig]:
    with rig(tmp_path, monkeypatch, capsys) as made:
        yield made


@pytest.fixture
def work(here: SetupRig) -> Path:
    """A project."""
    made = here.home / "work"
    made.mkdir()
    return made


def read(path: Path) -> Any:
    return json.loads(path.read_text())


# Claude Code.


def test_claude_by_a_process(here: SetupRig) -> None:
    path = here.home / ".claude.json"
    assert here.setup("claude", "--write") == 0
    entry = {"type": "stdio", "command": PROGRAM, "args": here.arguments("claude")}
    assert read(path) == {"mcpServers": {"postroom": entry}}
    assert here.setup("claude", "--channel", "--write") == 0
    assert read(path)["mcpServers"]["postroom"] == {**entry, "args": here.arguments("claude", "--channel")}
    assert "config: mcpServers.postroom renewed in" in here.out
    # What its user adds to the words is kept, and so is the channel.
    added = ["mcp", "--channel", "--name", "ann", "--url=old", "--token-file", "old", "--queue", "review"]
    path.write_text(json.dumps({"mcpServers": {"postroom": {**entry, "command": "/old/postroom", "args": added}}}))
    for _ in range(2):
        assert here.setup("claude", "--write") == 0
        written = [*here.arguments("claude", "--channel"), "--name", "ann", "--queue", "review"]
        assert read(path)["mcpServers"]["postroom"] == {**entry, "args": written}
    assert here.setup("claude", "--channel", "--write") == 0
    assert "claude --dangerously-load-development-channels server:postroom" in here.err


def test_claude_by_http_keeps_the_token_in_a_private_file_alone(here: SetupRig, work: Path) -> None:
    path = here.home / ".claude.json"
    url = f"{here.daemon.url}/mcp"
    assert here.setup("claude", "--http") == 0
    assert '+        "Authorization": "Bearer tk_..."' in here.out
    assert here.setup("claude", "--http", "--write") == 0
    headers = {"Authorization": f"Bearer {SECRET}"}
    assert read(path) == {"mcpServers": {"postroom": {"type": "http", "url": url, "headers": headers}}}
    assert mode(path) == 0o600
    assert here.setup("claude", "--http") == 0
    assert SECRET not in here.out + here.err

    path.chmod(0o644)
    count = len(here.daemon.asked)
    assert here.setup("claude", "--http", "--write") == 1
    assert f"{path} would hold the token in clear, and others than you may read it (mode 644)" in here.err
    assert f"chmod 600 {path}" in here.err
    assert len(here.daemon.asked) == count

    # What may be committed names a variable.
    assert here.setup("claude", "--project", str(work), "--http", "--write") == 0
    headers = {"Authorization": "Bearer ${POSTROOM_CLAUDE_TOKEN}"}
    assert read(work / ".mcp.json")["mcpServers"]["postroom"] == {"type": "http", "url": url, "headers": headers}
    assert mode(work / ".mcp.json") == 0o644
    assert f'export POSTROOM_CLAUDE_TOKEN="$(cat {here.token("claude")})"' in here.err


def test_claude_keeps_what_it_does_not_know(here: SetupRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(here.home / "elsewhere"))
    path = here.home / "elsewhere" / ".claude.json"
    path.parent.mkdir()
    mine = {"command": "/old/postroom", "args": ["mcp"], "env": {"A": "1"}, "timeout": 5}
    path.write_text(json.dumps({"mcpServers": {"postroom": mine}, "last": 1.0}))
    assert here.setup("claude", "--write") == 0, here.err
    written = {"command": PROGRAM, "args": here.arguments("claude"), "env": {"A": "1"}, "timeout": 5, "type": "stdio"}
    assert json.dumps(read(path)) == json.dumps({"mcpServers": {"postroom": written}, "last": 1.0})
    assert list(here.home.glob(".claude*")) == []


def test_claude_takes_plain_json_alone(here: SetupRig) -> None:
    for text, expected in (("{} // c", "which has no comments"), ('{"a": 1,}', "has no comma before }")):
        (here.home / ".claude.json").write_text(text)
        assert here.setup("claude", "--write") == 1
        assert expected in here.err


# Codex.


@pytest.mark.parametrize(
    "text",
    [
        "",
        'model = "m"',
        "[mcp_servers.a]\nx = 1 # a\n\n# tail\n[z]\nq = 1\n",
        "[mcp_servers]\n# why\na = { x = 1 }\n",
        "mcp_servers = { a = { x = 1 } } # why\nb = 2\n",
        "mcp_servers.a.x = 1\nb = 2\n",
        '[mcp_servers.postroom]\ncommand = "/old/postroom"\nargs = ["mcp"] # mine\ntool_timeout_sec = 9\n'
        '[mcp_servers.postroom.env]\nA = "1"\n\n# of z\n[z]\nq = 1\n',
        '[mcp_servers.postroom]\r\nurl = "http://127.0.0.1:1/mcp"\r\nenabled = false\r\n',
        "[mcp_servers]\npostroom = { command = '/old/postroom', args = ['mcp'] }\n"
        "b = { x = '''\n[mcp_servers.postroom]\n''' }\n",
    ],
)
def test_codex_takes_every_way_to_write_a_table(text: str) -> None:
    client = Codex()
    entry = {"command": "/bin/postroom", "args": ["mcp", "--url", "u"]}
    after = client.put(text, entry)
    before = tomllib.loads(text)
    servers = before.get("mcp_servers", {})
    kept = {key: one for key, one in servers.get("postroom", {}).items() if key != "url"}
    assert tomllib.loads(after) == {**before, "mcp_servers": {**servers, "postroom": {**kept, **entry}}}
    assert client.put(after, entry) == after
    for comment in ("# a", "# tail", "# why", "# mine", "# of z"):
        assert after.count(comment) == text.count(comment)
    assert ("\r\n" in after) == ("\r\n" in text)

    gone = client.take(after)
    left = {key: one for key, one in servers.items() if key != "postroom"}
    rest = {key: one for key, one in before.items() if key != "mcp_servers"}
    assert tomllib.loads(gone) == (rest | {"mcp_servers": left} if left else rest)
    for comment in ("# a", "# tail", "# why", "# of z"):
        assert gone.count(comment) == text.count(comment)
    assert client.take(gone) == gone


def test_codex_by_both_ways(here: SetupRig, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEX_HOME", str(here.home / "elsewhere"))
    path = here.home / "elsewhere" / "config.toml"
    assert here.setup("codex", "--write") == 0
    text = path.read_text()
    assert tomllib.loads(text) == {"mcp_servers": {"postroom": {"command": PROGRAM, "args": here.arguments("codex")}}}
    path.write_text(text.replace("command", "# mine\nenabled = false\ncommand"))
    assert here.setup("codex", "--http", "--write") == 0, here.err
    entry = {"url": f"{here.daemon.url}/mcp", "bearer_token_env_var": "POSTROOM_CODEX_TOKEN"}
    assert tomllib.loads(path.read_text()) == {"mcp_servers": {"postroom": {"enabled": False, **entry}}}
    assert "# mine" in path.read_text()
    assert f'export POSTROOM_CODEX_TOKEN="$(cat {here.token("codex")})"' in here.err
    assert here.setup("codex", "--project", str(work), "--write") == 0
    assert "mcp_servers" in (work / ".codex" / "config.toml").read_text()
    assert "once the project is trusted" in here.err


def test_codex_says_where_it_is_broken() -> None:
    for text, expected in (
        ("a = 1\nb = [\n", "end of document: expected TOML"),
        ("a = 1\na = 2\n", "line 2, column 6: expected TOML"),
        ("[mcp_servers]\npostroom = 1\n", "line 2: expected mcp_servers.postroom to be a table"),
    ):
        with pytest.raises(NotToml, match=expected.replace(".", r"\.")):
            Codex().entry(text)


# opencode.


def pretend(here: SetupRig, script: str) -> None:
    """An opencode on the path that does this."""
    path = here.home / "bin" / "opencode"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", None),
        ('{"model": "m"}', None),
        ('{"mcp": {}}', None),
        ('{"mcp": {"a": {"type": "local"}}}', Shape.V1),
        ('{"mcp": {"servers": {"type": "local", "command": ["x"]}}}', Shape.V1),
        ('{"mcp": {"servers": {}}}', Shape.V2),
        ('{"mcp": {"timeout": {}, "servers": {"a": {"type": "local"}}}}', Shape.V2),
        ('{"mcp": {"postroom": {}, "servers": {}}}', Shape.V1),
    ],
)
def test_opencode_has_two_shapes(text: str, shape: Shape | None) -> None:
    assert shape_of(text) == shape


def test_opencode_says_which_shape_it_takes(here: SetupRig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed_shape() is Shape.V1
    for script, shape in (
        ("echo 1.18.33", Shape.V1),
        ("echo 2.0.1", Shape.V2),
        ("echo opencode 12.3.4", Shape.V2),
        ("echo nothing; exit 1", Shape.V1),
        ('echo 2.0.0; test -n "$OPENCODE_DISABLE_AUTOUPDATE" || echo 1.0.0 >&2', Shape.V2),
    ):
        pretend(here, script)
        assert installed_shape() is shape
    monkeypatch.setattr(setup_opencode, "VERSION_S", 0.05)
    pretend(here, "exec /bin/sleep 60")
    assert installed_shape() is Shape.V1


def test_opencode_in_its_first_shape(here: SetupRig) -> None:
    path = here.home / "config" / "opencode" / "opencode.json"
    assert here.setup("opencode", "--write") == 0
    command = [PROGRAM, *here.arguments("opencode")]
    assert read(path) == {**SCHEMA, "mcp": {"postroom": {"type": "local", "command": command, "enabled": True}}}
    path.write_text(path.read_text().replace("true", "false"))
    assert here.setup("opencode", "--http", "--write") == 0
    headers = {"Authorization": f"Bearer {{file:{here.token('opencode')}}}"}
    remote = {"type": "remote", "enabled": False, "url": f"{here.daemon.url}/mcp", "oauth": False, "headers": headers}
    assert read(path) == {**SCHEMA, "mcp": {"postroom": remote}}


def test_opencode_in_its_second_shape(here: SetupRig, work: Path) -> None:
    pretend(here, "echo 2.1.0")
    command = [PROGRAM, *here.arguments("opencode")]
    assert here.setup("opencode", "--write") == 0
    path = here.home / "config" / "opencode" / "opencode.json"
    assert read(path) == {**SCHEMA, "mcp": {"servers": {"postroom": {"type": "local", "command": command}}}}
    assert here.setup("opencode", "--remove", "--write") == 0
    assert not path.exists()
    # The file says it, whichever is installed.
    pretend(here, "echo 1.18.33")
    (work / "opencode.jsonc").write_text('{"mcp": {"servers": {}}} // mine')
    assert here.setup("opencode", "--project", str(work), "--http", "--write") == 0
    written = json.loads((work / "opencode.jsonc").read_text().removesuffix(" // mine"))["mcp"]["servers"]["postroom"]
    assert written["headers"] == {"Authorization": "Bearer {env:POSTROOM_OPENCODE_TOKEN}"}
    assert "export POSTROOM_OPENCODE_TOKEN=" in here.err


def test_opencode_has_several_files(here: SetupRig) -> None:
    folder = here.home / "config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert here.told("opencode")["files"][0]["file"] == str(folder / "config.json")
    (folder / "opencode.jsonc").write_text("{}")
    assert here.told("opencode")["files"][0]["file"] == str(folder / "opencode.jsonc")
    entry = {"mcp": {"postroom": {"type": "local", "command": ["/old/postroom", "mcp"]}}}
    (folder / "config.json").write_text(json.dumps(entry))
    assert here.told("opencode")["files"][0]["file"] == str(folder / "config.json")
    (folder / "opencode.jsonc").write_text(json.dumps(entry))
    told = here.told("opencode", "--remove", "--write")
    assert {one["file"] for one in told["files"]} == {str(folder / "config.json"), str(folder / "opencode.jsonc")}
    assert list(folder.iterdir()) == []  # neither file held anything else


def test_opencode_is_told_no_odd_file_name(here: SetupRig) -> None:
    data = here.home / "da}ta"
    assert here.setup("opencode", "--http", "--data", str(data)) == 1
    assert "take --stdio" in here.err


# opencode's plugin.


def test_the_plugin_comes_with_it(here: SetupRig) -> None:  # P17
    plugin = here.home / "config" / "opencode" / "plugin" / "postroom.js"
    kept = here.data / "opencode.json"
    assert here.setup("opencode") == 0
    assert f"plugin: {plugin} would be a copy of " in here.out
    assert here.setup("opencode", "--write") == 0
    assert plugin.read_text("utf-8") == SHIPPED
    assert mode(plugin) == 0o644
    (asked,) = here.made()
    assert asked["name"].startswith("opencode-")
    assert (asked["role"], asked["speaks_as"]) == ("agent", ["ses_*"])
    record = read(kept)
    assert (record["url"], record["token"], record["token_id"]) == (here.daemon.url, SECRET, TOKEN)
    assert mode(kept) == 0o600
    assert f"plugin: installed {plugin}\n" in here.out
    assert f"token: client-1, which speaks as ses_* too, is in {here.token('opencode')}\n" in here.out
    assert here.err.startswith("opencode reads its plugins and servers when it starts: start it anew")

    count = len(here.daemon.asked)
    assert here.setup("opencode", "--global", "--write") == 0
    assert f"plugin: {plugin} is up to date\n" in here.out
    assert [one.path for one in here.daemon.asked[count:]] == ["/v1/inbox"]
    assert here.daemon.last.headers["authorization"] == f"Bearer {SECRET}"
    assert here.daemon.last.query["for"].startswith("ses_")
    assert here.setup("opencode", "--remove") == 0
    assert f"plugin: {plugin} would be removed\n" in here.out
    assert here.setup("opencode", "--remove", "--write") == 0
    assert f"plugin: removed {plugin}\n" in here.out
    assert not plugin.exists()
    assert not kept.exists()


def test_the_plugin_of_a_project(here: SetupRig, work: Path) -> None:
    plugin = work / ".opencode" / "plugin" / "postroom.js"
    os.environ["POSTROOM_URL"] = here.daemon.url
    # A data folder that is named goes into the plugin; the daemon is then looked for there.
    assert here.setup("opencode", "--project", str(work), "--data", f"{here.home}/da ta", "--write") == 3
    assert not plugin.exists()
    assert here.setup("opencode", "--project", str(work), "--write") == 0
    assert plugin.read_text("utf-8") == SHIPPED
    os.environ["POSTROOM_DATA"] = f"{here.home}/da ta"
    try:
        assert here.setup("opencode", "--project", str(work), "--write") == 0
    finally:
        del os.environ["POSTROOM_DATA"]
    written = plugin.read_text("utf-8")
    assert f'const DATA = "{here.home}/da ta" //' in written
    assert written.replace(f'"{here.home}/da ta"', "null") == SHIPPED


def test_a_plugin_that_is_somebody_elses_stays(here: SetupRig) -> None:
    plugin = here.home / "config" / "opencode" / "plugin" / "postroom.js"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("export const Mine = async () => ({})\n")
    before = here.files()
    for words in ((), ("--write",), ("--remove", "--write")):
        assert here.setup("opencode", *words) == 1
        assert f"error: conflict: {plugin} is not Postroom's, and is left as it is" in here.err
    assert here.files() == before
    assert here.daemon.asked == []
    plugin.write_text(SHIPPED.replace("ANSWER_MS = 15_000", "ANSWER_MS = 1"))
    assert here.setup("opencode") == 0
    assert f"plugin: {plugin} would be renewed from " in here.out
    assert here.setup("opencode", "--write") == 0
    assert f"plugin: renewed {plugin}\n" in here.out
    assert plugin.read_text("utf-8") == SHIPPED


def test_a_plugin_is_put_back_when_the_rest_fails(here: SetupRig) -> None:
    plugin = here.home / "config" / "opencode" / "plugin" / "postroom.js"
    old = SHIPPED.replace("ANSWER_MS = 15_000", "ANSWER_MS = 1")
    for before in (None, old):
        if before is not None:
            plugin.write_text(before)
        config = plugin.parent.parent / "opencode.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        # A backup that cannot be written: a folder is in its place.
        config.write_text("{}")
        config.with_name("opencode.json.postroom-backup").mkdir(exist_ok=True)
        assert here.setup("opencode", "--write") == 1
        assert "opencode.json cannot be written" in here.err
        assert (plugin.read_text("utf-8") if plugin.exists() else None) == before
        assert config.read_text() == "{}"
        assert not here.token("opencode").exists()
    assert here.revoked() == len(here.made()) == 2


def test_the_shipped_plugin_imports_no_package() -> None:
    assert "\nimport " not in SHIPPED
    assert "require(" not in SHIPPED
    assert {part.split('"', 1)[0] for part in SHIPPED.split('import("')[1:]} <= {
        "node:fs/promises",
        "node:os",
        "node:path",
    }
    assert SHIPPED.count("const DATA = null ") == 1


# The command that entries name.


def test_the_command_on_the_path_is_named_when_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, other = tmp_path / "link" / "postroom", tmp_path / "other" / "postroom"
    for path in (link, other):
        path.parent.mkdir()
    link.symlink_to(PROGRAM)
    other.write_text("#!/bin/sh\n")
    other.chmod(other.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(link.parent))
    assert program() == str(link)
    monkeypatch.setenv("PATH", str(other.parent))
    assert program() == PROGRAM
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert program() == str(other)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Misconfigured, match="there is no postroom command"):
        program()
