"""`postroom setup`: shown first, written whole or not at all, taken away without a trace, whichever the client."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.doors.cli import connection
from postroom.doors.cli.clients import config_file
from postroom.doors.cli.clients.config_file import ConfigFile
from postroom.errors import Conflict, Misconfigured
from tests.doors import fake_daemon
from tests.doors.fake_daemon import TOKEN
from tests.doors.setup_rig import MADE, PROGRAM, SECRET, SetupRig, mode, rig

CONFIGS = {
    "claude": ".claude.json",
    "codex": ".codex/config.toml",
    "opencode": "config/opencode/opencode.json",
}
BEFORE = {
    "claude": '{"numStartups": 3,\n    "mcpServers": {\n        "other": {\n            "command": "x"\n        }\n    }\n}',
    "codex": '# mine\nmodel = "m" # best\n\n[mcp_servers.other]\ncommand = "x"\n\n# last\n[tui]\ntheme = "t"\n',
    "opencode": '{ // mine\n  "m": "m", /* best */\n  "mcp": {\n    "other": {"type": "local", "command": ["x"]},\n  },\n}\n',
}
BROKEN = {
    "claude": ('{"mcpServers": {}\n  "a": 1}', "line 2, column 3: expected , or }"),
    "codex": ('model = "m"\n[mcp_servers\n', "line 2, column 13: expected TOML"),
    "opencode": ('{"mcp": {\n  // c\n  a: 1}}', 'line 3, column 3: expected a key in "quotes", or }'),
}
WRONG = {
    "claude": ('{"mcpServers": []}', "line 1, column 16: expected an object as mcpServers"),
    "codex": ('a = 1\nmcp_servers = "x"\n', "line 2: expected mcp_servers to be a table"),
    "opencode": ('{"mcp": true}', "line 1, column 9: expected an object as mcp"),
}
FOREIGN = {
    "claude": '{"mcpServers": {"postroom": {"command": "/bin/other", "args": ["mcp"]}}}',
    "codex": '[mcp_servers.postroom]\nurl = "https://elsewhere.example/mcp"\n',
    "opencode": '{"mcp": {"postroom": {"type": "local", "command": ["postroom", "serve"]}}}',
}
CLIENTS = pytest.mark.parametrize("client", sorted(CONFIGS))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[SetupRig]:
    with rig(tmp_path, monkeypatch, capsys) as made:
        yield made


def config(here: SetupRig, client: str, text: str | None = None) -> Path:
    """The client's configuration file, with this text in it."""
    path = here.home / CONFIGS[client]
    if text is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


@CLIENTS
@pytest.mark.parametrize("there", [True, False])
def test_without_write_it_is_only_shown(here: SetupRig, client: str, there: bool) -> None:
    path = config(here, client, BEFORE[client] if there else None)
    if there:
        path.chmod(0o600)
    before = here.files()
    for flag in ((), ("--print",), ("--remove",), ("--http",)):
        here.daemon.answer("GET", "/v1/sources", {"addresses": ["http://127.0.0.1:7373"]})
        assert here.setup(client, *flag) == 0
        assert here.files() == before
        assert here.err.endswith("nothing was changed: add --write to have it done\n")
    assert here.made() == []
    assert here.setup(client) == 0
    assert f"--- {path if there else '/dev/null'}\n+++ {path}\n@@ " in here.out
    shown = "\n".join(line[1:] for line in here.out.splitlines() if line.startswith("+") and "+++" not in line)
    assert str(here.token(client)) in shown
    assert "other" not in shown
    told = here.told(client)
    assert (told["written"], told["files"][0]["action"], told["files"][0]["backup"]) == (False, "add", None)


@CLIENTS
def test_it_is_written_once_and_taken_away_again(here: SetupRig, client: str) -> None:
    path = config(here, client, BEFORE[client])
    path.chmod(0o640)
    assert here.setup(client, "--write") == 0, here.err
    backup = path.with_name(path.name + ".postroom-backup")
    assert f"in {path} (as it was: {backup})\n" in here.out
    assert backup.read_text() == BEFORE[client]
    assert (mode(path), mode(backup)) == (0o640, 0o640)
    # What was there is there still, in its order, with its comments; a comma may have come to it.
    lines = iter(line.rstrip(",") for line in path.read_text().splitlines())
    assert all(line.rstrip(",") in lines for line in BEFORE[client].splitlines())
    (made,) = here.made()
    assert (made["name"].rpartition("-")[0], made["role"]) == (client, "agent")
    assert here.token(client).read_text() == SECRET + "\n"
    assert mode(here.token(client)) == 0o600
    assert mode(here.token(client).parent) == 0o700
    assert SECRET not in here.out + here.err + path.read_text()

    written = here.files()
    assert here.setup(client, "--write") == 0
    assert f"config: {path} is up to date\n" in here.out
    assert here.files() == written
    assert len(here.made()) == 1

    assert here.setup(client, "--remove", "--write") == 0
    assert path.read_text() == BEFORE[client]
    assert f"token: revoked and removed {here.token(client)}\n" in here.out
    assert here.revoked() == 1
    assert not here.token(client).exists()
    assert here.setup(client, "--remove", "--write") == 0
    assert f"token: there is none at {here.token(client)}\n" in here.out
    assert "config: there is no " in here.out


@CLIENTS
def test_a_file_of_its_own_comes_and_goes(here: SetupRig, client: str) -> None:
    path = config(here, client)
    assert here.setup(client, "--write") == 0, here.err
    assert mode(path) == 0o600
    assert here.setup(client, "--remove", "--write") == 0
    assert not path.exists()
    assert [name for name in here.files() if "backup" not in name] == []


def everything(folder: Path) -> set[str]:
    """Files and folders, by their path there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@CLIENTS
def test_what_setup_made_in_a_project_goes_whole(here: SetupRig, client: str) -> None:
    work = here.home / "work"
    work.mkdir()
    project = (client, "--project", str(work))
    for flags in ((), ("--http",), ()):
        assert here.setup(*project, *flags, "--write") == 0, here.err
    assert here.setup(*project, "--remove", "--write") == 0
    assert everything(work) == set()
    # As an earlier version left it: a backup with our own entry alone goes too.
    assert here.setup(*project, "--write") == 0
    (written,) = (path for path in work.rglob("*") if path.is_file() and path.suffix in {".json", ".toml"})
    backup = written.with_name(written.name + ".postroom-backup")
    backup.write_bytes(written.read_bytes())
    assert here.setup(*project, "--http", "--write") == 0
    assert here.setup(*project, "--remove", "--write") == 0
    assert everything(work) == set()
    # What is somebody else's stays, and so do the folders around it.
    assert here.setup(*project, "--write") == 0
    backup.write_text(BEFORE[client])
    beside = written.with_name("mine")
    beside.write_text("mine")
    assert here.setup(*project, "--http", "--write") == 0
    assert here.setup(*project, "--remove", "--write") == 0
    assert {path.name for path in work.rglob("*") if path.is_file()} >= {"mine", backup.name}
    assert str(backup) in here.out
    assert backup.read_text() == BEFORE[client]


@CLIENTS
def test_a_token_that_is_good_still_is_told(here: SetupRig, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = os.environ["POSTROOM_URL"]
    for flags, code in (((), 3), (("--data", str(here.data)), 3), ((), 1)):
        assert here.setup(client, "--write") == 0
        if code == 1:
            here.daemon.refuse("POST", f"/v1/tokens/{TOKEN}/revoke", 403, "forbidden", "for admins")
        else:
            monkeypatch.delenv("POSTROOM_URL")
        assert here.setup(client, "--remove", "--write", *flags) == code
        assert f"revoke it with: postroom token revoke {TOKEN}\n" in here.err
        assert not here.token(client).exists()
        assert not config(here, client).exists()
        monkeypatch.setenv("POSTROOM_URL", url)


@CLIENTS
def test_a_token_that_may_have_been_made_is_told(here: SetupRig, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("POSTROOM_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert here.setup(client, "--write") == 3
    assert re.search(rf"The token {client}-[0-9a-f]{{4}} may have been made", here.err)
    assert "`postroom token revoke ID`" in here.err
    assert here.files() == {}


@CLIENTS
def test_where_nothing_can_be_written_that_is_said(
    here: SetupRig, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = here.home / "work"
    work.mkdir()
    before = everything(here.home)
    made = Path.mkdir

    def mkdir(path: Path, *given: Any, **more: Any) -> None:
        if path.is_relative_to(refused):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        made(path, *given, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    for flags, refused in (
        (("--project", str(work)), here.home),
        ((), here.home),
        ((), here.data),
        ((), here.home / CONFIGS[client].partition("/")[0]),
    ):
        if client == "claude" and refused not in {here.home, here.data}:
            continue  # its folder is the home, which is there
        assert here.setup(client, *flags, "--write") == 1
        assert here.err.startswith("error: misconfigured: /")
        assert "cannot be written: Read-only file system" in here.err
        assert "hint: Make sure that /" in here.err
        assert {one for one in everything(here.home) if "data" not in one.split("/")} == before


@CLIENTS
def test_what_was_changed_since_stays(here: SetupRig, client: str) -> None:
    path = config(here, client, BEFORE[client])
    assert here.setup(client, "--write") == 0
    since = path.read_text().replace('"x"', '"y"')
    path.write_text(since)
    assert here.setup(client, "--remove", "--write") == 0
    assert path.read_text() == BEFORE[client].replace('"x"', '"y"')


@CLIENTS
def test_what_is_broken_wrong_or_somebody_elses_is_left_alone(here: SetupRig, client: str) -> None:
    for text, expected, code in (
        (*BROKEN[client], "misconfigured"),
        (*WRONG[client], "misconfigured"),
        (FOREIGN[client], "starts something else than Postroom", "conflict"),
    ):
        path = config(here, client, text)
        before = here.files()
        for words in ((), ("--write",), ("--remove",), ("--remove", "--write")):
            assert here.setup(client, *words) == 1, words
            assert here.err.startswith(f"error: {code}: {path}")
            assert expected in here.err
        assert here.files() == before
    assert here.daemon.asked == []


@CLIENTS
def test_no_file_can_be_read(here: SetupRig, client: str) -> None:
    path = config(here, client, "")
    for number, expected in enumerate(
        ("is a folder", "lead in a circle", "is no ordinary file", "line 2: expected UTF-8 text")
    ):
        path.rename(path.with_name(f"former-{number}"))
        match number:
            case 0:
                path.mkdir()
            case 1:
                path.symlink_to(path)
            case 2:
                os.mkfifo(path)
            case _:
                path.write_bytes(b"\n\xff")
        assert here.setup(client, "--write") == 1
        assert expected in here.err
        assert str(path) in here.err
    assert here.daemon.asked == []
    assert not here.data.exists()


@CLIENTS
def test_nothing_is_half_done(here: SetupRig, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(here, client, BEFORE[client])
    before = here.files()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(config_file, "_temporary", full)
    assert here.setup(client, "--write") == 1
    assert here.err.startswith(f"error: misconfigured: {path} cannot be written: No space left on device")
    assert here.files() == before
    assert (len(here.made()), here.revoked()) == (1, 1)


@CLIENTS
def test_a_token_that_cannot_be_kept_is_revoked(here: SetupRig, client: str) -> None:
    here.data.mkdir(parents=True)
    (here.data / "clients").write_text("in the way")
    before = here.files()
    assert here.setup(client, "--write") == 1
    assert here.files() == before
    (here.data / "clients").unlink()
    (here.data / "clients" / f"{client}.token").mkdir(parents=True)
    assert here.setup(client, "--write") == 1
    assert "token cannot be read" in here.err.replace(str(here.token(client)), "token")
    assert here.made() == []


@CLIENTS
def test_where_no_token_can_be_made_nothing_is_written(
    here: SetupRig, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.daemon.refuse("POST", "/v1/tokens", 403, "forbidden", "for admins")
    assert here.setup(client, "--write") == 1
    assert f"error: forbidden: making a token for {client} takes an admin: for admins" in here.err
    monkeypatch.delenv("POSTROOM_URL")
    assert here.setup(client, "--write") == 3
    assert "error: unreachable: no daemon answers" in here.err
    assert here.files() == {}
    assert here.setup(client) == 0


@CLIENTS
def test_a_token_that_opens_nothing_more_is_made_anew(here: SetupRig, client: str) -> None:
    assert here.setup(client, "--write") == 0
    here.daemon.refuse("GET", "/v1/inbox", 401, "unauthenticated", "revoked")
    here.daemon.answer("POST", "/v1/tokens", {"token": {"id": "tk_2", "name": "n"}, "secret": "tk_newer"}, 201)
    assert here.setup(client, "--write") == 0
    assert here.token(client).read_text() == "tk_newer\n"
    here.daemon.refuse("POST", "/v1/tokens/tk_2/revoke", 404, "not_found", "no such token")
    assert here.setup(client, "--remove", "--write") == 0
    assert "the token tk_2 was not revoked: no such token" in here.err
    assert not here.token(client).exists()


def test_a_token_whose_file_is_gone_is_told_of_while_it_is_good(here: SetupRig) -> None:
    still = {**fake_daemon.token(), "name": "claude-1"}
    for revoked_at, told in ((None, True), ("2026-11-30T08:00:00.000Z", False)):
        here.daemon.answer("GET", "/v1/tokens", {"tokens": [{**still, "revoked_at": revoked_at}]})
        here.daemon.answer("POST", "/v1/tokens", MADE, 201)
        assert here.setup("claude", "--write") == 0
        assert "is good still" not in here.out
        here.token("claude").unlink()
        here.daemon.answer("POST", "/v1/tokens", {"token": {"id": "tk_2", "name": "n"}, "secret": "tk_newer"}, 201)
        assert here.setup("claude", "--write") == 0
        said = f"; the one before it, claude-1, is good still: revoke it with postroom token revoke {TOKEN}\n"
        assert (said in here.out) is told
        assert here.token("claude").read_text() == "tk_newer\n"
        here.daemon.answer("POST", "/v1/tokens/tk_2/revoke", {"token": still})
        assert here.setup("claude", "--remove", "--write") == 0


@CLIENTS
def test_a_name_that_is_taken_is_not_the_end(here: SetupRig, client: str) -> None:
    here.daemon.refuse("POST", "/v1/tokens", 409, "conflict", "there is a token")
    assert here.setup(client, "--write") == 1
    names = [one["name"] for one in here.made()]
    assert len(set(names)) > 1
    assert here.files() == {}


@CLIENTS
def test_a_project_alone(here: SetupRig, client: str) -> None:
    work = here.home / "work"
    assert here.setup(client, "--project", str(work)) == 2
    work.mkdir()
    assert here.setup(client, "--project", str(work), "--write") == 0, here.err
    assert here.setup(client, "--write") == 0
    (made,) = here.made()
    where = {name: text for name, text in here.files().items() if name.startswith("work/")}
    assert where
    for one in where.values():
        assert SECRET.encode() not in one
    told = {one["client"]: one for one in here.told()["clients"]}
    assert [(one["scope"], one["entry"]) for one in told[client]["configs"]] == [("global", "stdio")]
    assert here.setup(client, "--remove", "--write") == 0
    assert f"token: {here.token(client)} stays, since {work}" in here.out
    assert here.revoked() == 0
    os.chdir(work)
    told = {one["client"]: one for one in here.told()["clients"]}
    assert [(one["scope"], one["entry"]) for one in told[client]["configs"]] == [("global", None), ("project", "stdio")]
    assert here.setup(client, "--project", "--remove", "--write") == 0
    assert [path for path in work.rglob("*") if path.is_file()] == []
    assert here.revoked() == 1
    assert made["role"] == "agent"


@CLIENTS
def test_by_http_the_daemon_says_its_port(here: SetupRig, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(here, client)
    assert here.setup(client, "--http", "--write") == 0, here.err
    assert f"{here.daemon.url}/mcp" in path.read_text()
    told = {one["client"]: one for one in here.told()["clients"]}
    assert told[client]["configs"][0]["entry"] == "http"
    # Back to a process: what was of HTTP is gone.
    assert here.setup(client, "--write") == 0
    assert not {"/mcp", "POSTROOM_CODEX_TOKEN", "oauth", "headers"} & set(re.findall(r"/?\w+", path.read_text()))
    assert here.setup(client, "--http", "--write") == 0
    assert PROGRAM not in path.read_text()
    # Over a socket the daemon is asked; while none answers a guess is shown.
    monkeypatch.setenv("POSTROOM_URL", f"unix://{here.home}/none.sock")
    monkeypatch.setenv("POSTROOM_PORT", "7444")
    assert here.setup(client, "--http") == 0
    assert "http://127.0.0.1:7444/mcp" in here.out
    assert here.setup(client, "--http", "--write") == 3


def test_alone_it_says_what_is_there(here: SetupRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROOM_URL")
    folder = here.home / "bin"
    folder.mkdir()
    (folder / "claude").write_text("#!/bin/sh\n")
    (folder / "claude").chmod(0o755)
    config(here, "codex", "broken")
    os.chdir(folder)
    config(here, "opencode", FOREIGN["opencode"])
    assert here.setup() == 0
    assert [line.split()[:3] for line in here.out.splitlines()[1:]] == [
        ["claude", str(folder / "claude"), "global"],
        ["codex", "-", "global"],
        ["opencode", "-", "global"],
    ]
    told = {one["client"]: one for one in here.told()["clients"]}
    assert told["claude"]["configs"] == [
        {"scope": "global", "file": f"{here.home}/.claude.json", "there": False, "entry": None, "problem": None}
    ]
    assert "expected TOML" in told["codex"]["configs"][0]["problem"]
    assert "something else than Postroom" in told["opencode"]["configs"][0]["problem"]
    assert (told["opencode"]["plugin"], told["opencode"]["token_file"]) == (None, None)
    assert here.daemon.asked == []


@pytest.mark.parametrize(
    "words",
    [
        ("claude", "--project", "--global"),
        ("claude", "--print", "--write"),
        ("codex", "--http", "--stdio"),
        ("claude", "--channel", "--http"),
        ("codex", "--channel"),
        ("opencode", "extra"),
        ("opencode", "--project", "a", "b"),
        ("emacs",),
        ("--json", "claude"),
    ],
)
def test_usage(here: SetupRig, words: tuple[str, ...]) -> None:
    assert here.setup(*words) == 2
    assert here.files() == {}


@pytest.mark.parametrize("kept", ["{", "[1]"])
@CLIENTS
def test_a_record_that_cannot_be_read_is_named(here: SetupRig, client: str, kept: str) -> None:
    path = here.data / "opencode.json" if client == "opencode" else here.data / "clients" / f"{client}.json"
    path.parent.mkdir(parents=True)
    path.write_text(kept)
    assert here.setup(client, "--write") == 1
    assert f"error: misconfigured: {path}" in here.err
    assert here.made() == []


def test_a_lost_record_is_made_again(here: SetupRig) -> None:
    assert here.setup("claude", "--write") == 0
    (here.data / "clients" / "claude.json").unlink()
    assert here.setup("claude", "--write") == 0
    assert json.loads((here.data / "clients" / "claude.json").read_text())["used_by"] == [f"{here.home}/.claude.json"]
    here.token("claude").write_bytes(b"\xff\n")
    assert here.setup("claude", "--write") == 0
    assert here.token("claude").read_text() == SECRET + "\n"
    assert json.loads((here.data / "clients" / "claude.json").read_text())["token_id"] == TOKEN


# The file itself.


def test_a_file_behind_a_link_is_changed_where_it_is(tmp_path: Path) -> None:
    real, link = tmp_path / "real" / "file", tmp_path / "link"
    real.parent.mkdir()
    real.write_text("old\n")
    link.symlink_to(real)
    assert ConfigFile(link).write("new\n", 0o600) == tmp_path / "link.postroom-backup"
    assert (real.read_text(), link.is_symlink()) == ("new\n", True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "link.postroom-backup", "real"]
    assert [path.name for path in real.parent.iterdir()] == ["file"]
    # A link in the backup's place is replaced, not followed.
    backup = tmp_path / "link.postroom-backup"
    backup.unlink()
    backup.symlink_to(real)
    ConfigFile(link).write("newer\n", 0o600)
    assert (backup.is_symlink(), backup.read_text(), real.read_text()) == (False, "new\n", "newer\n")


def test_a_change_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for before, meanwhile, after in (
        ("old\n", "other\n", "new\n"),
        ("old\n", None, "new\n"),
        (None, "other\n", "new\n"),
        ("old\n", "other\n", None),
    ):
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_text(before)
        file = ConfigFile(path)
        if meanwhile is None:
            path.unlink()
        else:
            path.write_text(meanwhile)
        with pytest.raises(Conflict, match="changed by another program meanwhile"):
            file.write(after, 0o600)
        assert (path.read_text() if path.exists() else None) == meanwhile
        assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    file = ConfigFile(tmp_path / "folder" / "file")
    assert file.write("new\n", 0o640) is None
    assert (file.path.read_text(), mode(file.path)) == ("new\n", 0o640)
    assert [path.name for path in file.path.parent.iterdir()] == ["file"]


def test_a_difference_shows_the_changed_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one\ntwo\nthree\n")
    file = ConfigFile(path)
    assert file.difference("one\ntwo\nthree\n") == ""
    head = f"--- {path}\n+++ {path}\n"
    assert file.difference("one\n2\nthree\n") == head + "@@ -2,1 +2,1 @@\n-two\n+2"
    assert file.difference("one\ntwo\nand\nthree\n") == head + "@@ -2,0 +3,1 @@\n+and"
    assert file.difference("one\nthree\n") == head + "@@ -2,1 +1,0 @@\n-two"
    assert file.difference(None) == f"--- {path}\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-one\n-two\n-three"
    hidden = file.difference(f"one\ntwo\nthree \x1b[2J {SECRET} {'x' * 999}\n")
    assert "tk_…" in hidden
    assert SECRET not in hidden
    assert "\x1b" not in hidden
    assert len(hidden) < 600


def test_too_large_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(65 * 1024 * 1024)
    with pytest.raises(Misconfigured, match="expected at most 67108864"):
        ConfigFile(path)
