"""`postroom setup opencode`: what is put where, what is left alone, and whose token it is."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tests.doors import fake_daemon, fake_post
from tests.doors.command import leave
from tests.doors.fake_daemon import TOKEN, FakeDaemon

Output = pytest.CaptureFixture[str]
SHIPPED = (files("postroom") / "clients" / "opencode_plugin.js").read_text("utf-8")
MADE = {"token": {**fake_daemon.token(), "name": "opencode-1"}, "secret": "tk_secret"}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("POSTROOM_URL", "POSTROOM_TOKEN", "POSTROOM_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[FakeDaemon]:
    with fake_daemon.running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        fake.answer("POST", "/v1/tokens", MADE, 201)
        fake.answer("POST", f"/v1/tokens/{TOKEN}/revoke", {"token": fake_daemon.token()})
        fake.answer("GET", "/v1/inbox", fake_post.inbox())
        yield fake


def test_everywhere_is_where_opencode_looks(home: Path, daemon: FakeDaemon, capsys: Output) -> None:  # P17
    plugin = home / "config" / "opencode" / "plugin" / "postroom.js"
    (kept,) = [home / "data" / "postroom" / "opencode.json"]
    assert leave("setup", "opencode") == 0
    assert plugin.read_text("utf-8") == SHIPPED
    assert stat.S_IMODE(plugin.stat().st_mode) == 0o644
    asked = daemon.last.body
    assert asked["name"].startswith("opencode-")
    assert (asked["role"], asked["speaks_as"]) == ("agent", ["ses_*"])
    assert json.loads(kept.read_text()) == {"url": daemon.url, "token": "tk_secret", "token_id": TOKEN}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    taken = capsys.readouterr()
    assert taken.out == (f"plugin: installed {plugin}\ntoken: opencode-1, which speaks as ses_* alone, is in {kept}\n")
    assert "tk_secret" not in taken.out + taken.err
    assert taken.err == "opencode reads plugins when it starts: start it anew\n"

    count = len(daemon.asked)
    assert leave("setup", "opencode", "--global") == 0
    assert capsys.readouterr().out == f"plugin: {plugin} is up to date\ntoken: {kept} is up to date\n"
    assert [one.path for one in daemon.asked[count:]] == ["/v1/inbox"]
    assert daemon.last.headers["authorization"] == "Bearer tk_secret"
    assert daemon.last.query["for"].startswith("ses_")


def test_a_token_that_opens_nothing_more_is_made_anew(home: Path, daemon: FakeDaemon, capsys: Output) -> None:
    assert leave("setup", "opencode") == 0
    daemon.refuse("GET", "/v1/inbox", 401, "unauthenticated", "revoked")
    daemon.answer("POST", "/v1/tokens", {**MADE, "secret": "tk_newer"}, 201)
    assert leave("setup", "opencode") == 0
    assert json.loads((home / "data/postroom/opencode.json").read_text())["token"] == "tk_newer"


def test_without_a_daemon_or_an_admin_the_plugin_is_installed_all_the_same(
    home: Path, monkeypatch: pytest.MonkeyPatch, daemon: FakeDaemon, capsys: Output
) -> None:
    daemon.refuse("POST", "/v1/tokens", 403, "forbidden", "for admins")
    assert leave("setup", "opencode") == 0
    assert "token: none was made, since that takes an admin: for admins" in capsys.readouterr().out
    monkeypatch.delenv("POSTROOM_URL")
    assert leave("setup", "opencode", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["plugin"]).read_text("utf-8") == SHIPPED
    assert "no daemon answers" in told["done"][1]
    assert not (home / "data/postroom/opencode.json").exists()


def test_a_project_alone(home: Path, daemon: FakeDaemon, capsys: Output) -> None:
    plugin = home / "work" / ".opencode" / "plugin" / "postroom.js"
    assert leave("setup", "opencode", "--project", f"{home}/work") == 2
    (home / "work").mkdir()
    assert leave("setup", "opencode", "--project", f"{home}/work", "--data", f"{home}/da ta") == 0
    written = plugin.read_text("utf-8")
    assert f'const DATA = "{home}/da ta" //' in written
    assert written.replace(f'"{home}/da ta"', "null") == SHIPPED
    assert not (home / "config").exists()
    assert leave("setup", "opencode", "--project", f"{home}/work", "--remove") == 0
    assert f"plugin: removed {plugin}\n" in capsys.readouterr().out
    assert not plugin.exists()
    assert leave("setup", "opencode", "--project", f"{home}/work", "--remove") == 0
    assert "there is none" in capsys.readouterr().out


def test_what_is_somebody_elses_stays(home: Path, daemon: FakeDaemon, capsys: Output) -> None:
    plugin = home / "config" / "opencode" / "plugin" / "postroom.js"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("export const Mine = async () => ({})\n")
    for words in ((), ("--remove",)):
        assert leave("setup", "opencode", *words) == 1
        assert f"error: conflict: {plugin} is not Postroom's, and is left as it is" in capsys.readouterr().err
    assert plugin.read_text() == "export const Mine = async () => ({})\n"
    assert daemon.asked == []
    plugin.write_text(SHIPPED.replace("ANSWER_MS = 15_000", "ANSWER_MS = 1"))
    assert leave("setup", "opencode") == 0
    assert f"plugin: renewed {plugin}\n" in capsys.readouterr().out
    assert plugin.read_text("utf-8") == SHIPPED


def test_remove_takes_the_token_with_it(home: Path, daemon: FakeDaemon, capsys: Output) -> None:
    kept = home / "data" / "postroom" / "opencode.json"
    assert leave("setup", "opencode") == 0
    assert leave("setup", "opencode", "--remove") == 0
    assert daemon.last.path == f"/v1/tokens/{TOKEN}/revoke"
    assert f"token: revoked and removed {kept}\n" in capsys.readouterr().out
    assert not kept.exists()
    assert leave("setup", "opencode", "--remove") == 0
    assert f"token: there is none at {kept}\n" in capsys.readouterr().out

    assert leave("setup", "opencode") == 0
    daemon.refuse("POST", f"/v1/tokens/{TOKEN}/revoke", 404, "not_found", "no such token")
    capsys.readouterr()
    assert leave("setup", "opencode", "--remove") == 0
    taken = capsys.readouterr()
    assert f"token: removed {kept}\n" in taken.out
    assert "was not revoked: no such token" in taken.err


def test_print_changes_nothing(home: Path, daemon: FakeDaemon, capsys: Output) -> None:
    assert leave("setup", "opencode", "--print") == 0
    assert capsys.readouterr().out == SHIPPED
    assert list(home.iterdir()) == []
    assert daemon.asked == []


@pytest.mark.parametrize("kept", ["{", "[1]"])
def test_a_token_file_that_cannot_be_read_is_named(home: Path, daemon: FakeDaemon, capsys: Output, kept: str) -> None:
    path = home / "data" / "postroom" / "opencode.json"
    path.parent.mkdir(parents=True)
    path.write_text(kept)
    assert leave("setup", "opencode") == 1
    assert f"error: misconfigured: {path}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--project", ".", "--global"), ("--print", "--remove"), ("extra",)])
def test_setup_usage(home: Path, words: tuple[str, ...]) -> None:
    assert leave("setup", "opencode", *words) == 2


def test_the_shipped_plugin_imports_no_package() -> None:
    assert "\nimport " not in SHIPPED
    assert "require(" not in SHIPPED
    assert {part.split('"', 1)[0] for part in SHIPPED.split('import("')[1:]} <= {
        "node:fs/promises",
        "node:os",
        "node:path",
    }
    assert SHIPPED.count("const DATA = null ") == 1
