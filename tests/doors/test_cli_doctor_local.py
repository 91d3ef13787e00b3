"""The doctor's checks of this machine: settings, variables, data folder, token, disk; and of the clients' settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from postroom.doors.cli.checks import local as checks_local
from postroom.doors.cli.checks.found import Findings, State
from postroom.doors.cli.checks.scene import Scene
from tests.doors.doctor_rig import DISK, Told, be_patient, only, scene

GITHUB = '[[source]]\nname = "github"\nprovider = "github"\nqueue = "inbox"\n'


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    be_patient(monkeypatch)
    # No settings of whoever runs the tests are found.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def there(tmp_path: Path) -> Told:
    """A scene without a daemon."""
    return scene(tmp_path)


def settings(there: Told, text: str) -> Told:
    """The scene with these settings."""
    (Path(there.environ["POSTROOM_DATA"]) / "postroom.toml").write_text(text)
    return there


# Settings.


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [
        ("", State.OK, "postroom.toml is valid"),
        ("port = 7400\n", State.OK, "postroom.toml is valid"),
        ('port = "x"\n', State.FAIL, "postroom.toml:1: port: expected a whole number"),
        ("prot = 1\n", State.FAIL, "postroom.toml:1: prot: expected one of"),
        ("port = \n", State.FAIL, "not TOML"),
        ("\nhost = '0.0.0.0'\n", State.FAIL, "postroom.toml:2: host: expected a loopback address"),
        (
            '[[opencode]]\nurl = "http://127.0.0.1:1"\npassword_env = "NOT_SET"\n',
            State.FAIL,
            "opencode[0].password_env",
        ),
    ],
)
def test_settings_are_read_as_a_start_reads_them(there: Told, text: str, state: State, words: str) -> None:
    line = only(checks_local.settings_file, settings(there, text))
    assert line.state is state
    assert words in line.found
    assert (line.fix is None) is (state is State.OK)


def test_no_settings_file_is_fine(there: Told) -> None:
    line = only(checks_local.settings_file, there)
    assert (line.state, line.found.startswith("no settings file")) == (State.OK, True)


def test_a_variable_that_only_the_daemon_has_is_a_warning_while_it_serves(there: Told) -> None:
    settings(there, '[[opencode]]\nurl = "http://127.0.0.1:1"\npassword_env = "NOT_SET"\n').status_is()
    line = only(checks_local.settings_file, there)
    assert line.state is State.WARN
    assert "may have it in its own environment" in line.found


@pytest.mark.parametrize(
    ("text", "environ", "state", "words"),
    [
        ("", {}, State.SKIP, "no source is set up"),
        (GITHUB + 'secrets = ["0123456789abcdef"]\n', {}, State.OK, "1 valid: github"),
        (GITHUB + 'secrets_env = ["GH"]\n', {}, State.FAIL, "secrets_env"),
        (GITHUB, {}, State.FAIL, "secrets"),
        (GITHUB.replace("github", "nobody"), {}, State.FAIL, "provider"),
        ("x = 1\n", {}, State.SKIP, "the settings cannot be read"),
    ],
)
def test_sources_are_built_as_a_start_builds_them(
    there: Told, text: str, environ: dict[str, str], state: State, words: str
) -> None:
    line = only(checks_local.settings_sources, settings(there, text))
    assert line.state is state, line
    assert words in line.found


@pytest.mark.parametrize(
    ("name", "text", "state"),
    [
        ("POSTROOM_TOKEN", "", State.OK),
        ("POSTROOM_TOKNE", "", State.WARN),
        ("POSTROOM_GITHUB", GITHUB + 'secrets_env = ["POSTROOM_GITHUB"]\n', State.OK),
        ("POSTROOM_PW", '[[opencode]]\nurl = "http://127.0.0.1:1"\npassword_env = "POSTROOM_PW"\n', State.OK),
        ("POSTROOM_PW", "nonsense = 1\n", State.SKIP),
        ("POSTROOM_TOKEN", "nonsense = 1\n", State.OK),
        ("POSTROOM_CODEX_TOKEN", "", State.OK),
    ],
)
def test_a_variable_that_nothing_reads_is_told(tmp_path: Path, name: str, text: str, state: State) -> None:
    there = settings(scene(tmp_path, **{name: "x"}), text)
    line = only(checks_local.settings_variables, there)
    assert line.state is state, line
    if state is State.WARN:
        assert line.found == "nothing reads POSTROOM_TOKNE"
        assert line.fix is not None
        assert line.fix.startswith("unset POSTROOM_TOKNE; known: POSTROOM_AGENT")


# The data folder.


@pytest.mark.parametrize(
    ("mode", "state", "words"),
    [
        (0o700, State.OK, "mode 0700"),
        (0o750, State.WARN, "others may look into it"),
        (0o755, State.WARN, "others may look into it"),
        (0o777, State.FAIL, "others may change what is in it"),
        (0o720, State.FAIL, "others may change what is in it"),
    ],
)
def test_the_data_folders_mode(there: Told, mode: int, state: State, words: str) -> None:
    folder = Path(there.environ["POSTROOM_DATA"])
    folder.chmod(mode)
    line = only(checks_local.data_folder, there)
    assert line.state is state
    assert words in line.found
    assert line.fix == (None if state is State.OK else f"chmod 700 {folder}")


def test_a_data_folder_that_is_not_there_or_no_folder(there: Told) -> None:
    folder = Path(there.environ["POSTROOM_DATA"])
    folder.rmdir()
    for check in (checks_local.data_folder, checks_local.data_token, checks_local.disk_space):
        assert only(check, there).found == f"there is no {folder} yet"
    folder.touch()
    assert only(checks_local.data_folder, there).state is State.FAIL


@pytest.mark.parametrize(
    ("text", "mode", "state", "fix"),
    [
        (b"tk_abc\n", 0o600, State.OK, None),
        (b"tk_abc\n", 0o640, State.FAIL, "chmod 600"),
        (b"tk_abc\n", 0o604, State.FAIL, "chmod 600"),
        (b"", 0o600, State.FAIL, "rm "),
        (b"\xff\xfe", 0o600, State.FAIL, "rm "),
        (None, 0, State.SKIP, None),
    ],
)
def test_the_admins_token(there: Told, text: bytes | None, mode: int, state: State, fix: str | None) -> None:
    path = Path(there.environ["POSTROOM_DATA"]) / "admin-token"
    if text is not None:
        path.write_bytes(text)
        path.chmod(mode)
    line = only(checks_local.data_token, there)
    assert line.state is state
    assert (line.fix or "").startswith(fix or "")
    assert "tk_abc" not in line.found.replace(str(path), "")


def test_a_token_that_went_missing_under_a_daemon(there: Told) -> None:
    assert only(checks_local.data_token, there.status_is()).state is State.WARN


def test_the_daemons_own_folder_is_looked_at_where_it_is_here(there: Told, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    assert str(other) in only(checks_local.data_folder, there.sources_are(data=str(other))).found


# The disk.


def disk(free: int, files: int, all_files: int = 10**7) -> tuple[int, ...]:
    """A disk with so many bytes and files free."""
    return (1, 1, 10**12, free, free, all_files, files, files, 0, 255)


@pytest.mark.parametrize(
    ("check", "found", "state"),
    [
        (checks_local.disk_space, DISK, State.OK),
        (checks_local.disk_space, disk(2**30, 10**6), State.OK),
        (checks_local.disk_space, disk(2**30 - 1, 10**6), State.WARN),
        (checks_local.disk_space, disk(100 * 2**20, 10**6), State.WARN),
        (checks_local.disk_space, disk(100 * 2**20 - 1, 10**6), State.FAIL),
        (checks_local.disk_space, disk(0, 10**6), State.FAIL),
        (checks_local.disk_inodes, DISK, State.OK),
        (checks_local.disk_inodes, disk(2**40, 9999), State.WARN),
        (checks_local.disk_inodes, disk(2**40, 0), State.FAIL),
        (checks_local.disk_inodes, disk(2**40, 0, all_files=0), State.SKIP),
    ],
)
def test_the_disk(tmp_path: Path, check: Callable[[Scene], Findings], found: tuple[int, ...], state: State) -> None:
    there = scene(tmp_path)
    there.statvfs = lambda _: os.statvfs_result(found)
    assert only(check, there).state is state


def test_the_write_ahead_log(there: Told) -> None:
    folder = Path(there.environ["POSTROOM_DATA"])
    assert only(checks_local.disk_wal, there).state is State.SKIP
    (folder / "postroom.db").touch()
    assert only(checks_local.disk_wal, there).state is State.OK
    with (folder / "postroom.db-wal").open("wb") as file:
        file.truncate(checks_local.LONG_WAL + 1)
    line = only(checks_local.disk_wal, there)
    assert (line.state, "256 MiB" in line.found) == (State.WARN, True)


def test_no_write_ahead_log_on_postgres(tmp_path: Path) -> None:
    there = scene(tmp_path).status_is(engine="postgres")
    assert only(checks_local.disk_wal, there).found == "the database is not SQLite"
    there = scene(tmp_path, POSTROOM_DATABASE_URL="postgresql://nowhere/x")
    assert only(checks_local.disk_wal, there).found == "the database is not SQLite"


def test_the_write_ahead_log_of_another_file(tmp_path: Path) -> None:
    there = scene(tmp_path, POSTROOM_DATABASE_URL=f"sqlite:///{tmp_path}/else.db")
    (tmp_path / "else.db").touch()
    assert only(checks_local.disk_wal, there).found.startswith("else.db-wal is not there")
