"""Checks of this machine's side: the settings file, the environment, the data folder and its disk."""

from __future__ import annotations

import os
import shlex
import stat
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from postroom.doors.cli.checks.check import Check
from postroom.doors.cli.checks.found import Findings, Found, fail, ok, skip, warn
from postroom.doors.cli.checks.scene import Scene, Skip
from postroom.errors import Misconfigured, PostroomError

VARIABLES: Final = frozenset(
    {
        "POSTROOM_AGENT",
        "POSTROOM_CONFIG",
        "POSTROOM_DATA",
        "POSTROOM_DATABASE_URL",
        "POSTROOM_HOOKS_PORT",
        "POSTROOM_HOST",
        "POSTROOM_PORT",
        "POSTROOM_SOCKET",
        "POSTROOM_TOKEN",
        "POSTROOM_URL",
    }
)
"""Every variable of this prefix that some part of Postroom reads."""
CLIENTS: Final = frozenset({"POSTROOM_CLAUDE_TOKEN", "POSTROOM_CODEX_TOKEN", "POSTROOM_OPENCODE_TOKEN"})
"""Those that a client reads, where `setup` wrote their names into its settings."""
PREFIX: Final = "POSTROOM_"
INSTALLATION: Final = "postroom.installation"

MIB: Final = 1024 * 1024
LOW_DISK: Final = 1024 * MIB
NO_DISK: Final = 100 * MIB
LOW_INODES: Final = 10_000
NO_INODES: Final = 500
LONG_WAL: Final = 256 * MIB
SQLITE: Final = "sqlite:///"


def settings_file(scene: Scene) -> Findings:
    """Whether the settings can be read, and which file they are in."""
    try:
        settings = scene.settings()
    except Misconfigured as error:
        return _misread(scene, error, "settings")
    if settings.file is None:
        place = scene.own_folder() / "postroom.toml"
        return ok(f"no settings file; the defaults are in force, and {place} would be read")
    return ok(f"{settings.file} is valid")


def settings_sources(scene: Scene) -> Findings:
    """Whether the sources of the settings can be built, their secrets included."""
    settings = scene.settings_or_none()
    if settings is None:
        raise Skip("the settings cannot be read")
    if not settings.sources:
        raise Skip("no source is set up", "postroom source add NAME --provider github --queue inbox")
    try:
        sources = import_module(INSTALLATION).read_sources(settings)
    except Misconfigured as error:
        return _misread(scene, error, "sources")
    said = f"{len(sources.by_name)} valid: {', '.join(sorted(sources.by_name))}"
    if sources.warnings and not scene.reached():
        return warn(f"{said}; {'; '.join(sources.warnings)}", "docs/senders says what each key of a source opens")
    return ok(said)


def _misread(scene: Scene, error: Misconfigured, what: str) -> Found:
    key = (error.field or "").rpartition(".")[2]
    if key.endswith("_env") and scene.reached():
        # A daemon that a supervisor started has secrets in its environment that no shell has.
        return warn(
            f"{error.message}; the daemon that serves may have it in its own environment",
            f"set that variable here too before the {what} are edited",
        )
    return fail(error.message, "correct that key; `postroom config` shows what is read from where")


def settings_variables(scene: Scene) -> Findings:
    """Whether every POSTROOM_ variable is one that something reads."""
    given = sorted(name for name in scene.environ if name.startswith(PREFIX))
    strange = [name for name in given if name not in VARIABLES | CLIENTS]
    if strange and scene.settings_or_none() is None:
        raise Skip("the settings cannot be read, and they may name variables of their own")
    strange = [name for name in strange if name not in _named(scene)]
    if strange:
        return warn(f"nothing reads {', '.join(strange)}", f"unset {' '.join(strange)}; known: {_known()}")
    return ok(f"set: {', '.join(given)}" if given else "none is set")


def _known() -> str:
    return ", ".join(sorted(VARIABLES))


def _named(scene: Scene) -> frozenset[str]:
    """The variables that the settings themselves name."""
    settings = scene.settings_or_none()
    if settings is None:
        return frozenset()
    named: set[str] = set()
    for source in settings.sources:
        listed = source.get("secrets_env", [])
        named |= {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else {str(listed)}
    return frozenset(named | _password_variables(settings.file))


def _password_variables(file: Path | None) -> set[str]:
    import tomllib

    if file is None:
        return set()
    table: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    return {str(one["password_env"]) for one in table.get("opencode", []) if "password_env" in one}


def data_folder(scene: Scene) -> Findings:
    """Whether the data folder is there, this user's, and closed to others."""
    folder = _folder(scene)
    found = folder.stat()
    quoted = shlex.quote(str(folder))
    if not stat.S_ISDIR(found.st_mode):
        return fail(f"{folder} is no folder", "move that file away, or name another folder with --data")
    if found.st_uid != os.geteuid():
        return fail(f"{folder} belongs to user {found.st_uid}, not to you", f"sudo chown {os.geteuid()} {quoted}")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022:
        return fail(f"{folder} has mode {mode:04o}: others may change what is in it", f"chmod 700 {quoted}")
    if mode & 0o055:
        return warn(f"{folder} has mode {mode:04o}: others may look into it", f"chmod 700 {quoted}")
    if not os.access(folder, os.W_OK | os.X_OK):
        return fail(f"{folder} has mode {mode:04o}: you cannot write to it", f"chmod 700 {quoted}")
    return ok(f"{folder}, mode {mode:04o}")


def data_token(scene: Scene) -> Findings:
    """Whether the admin's token is there, whole, and for this user's eyes alone."""
    path = _folder(scene) / "admin-token"
    quoted = shlex.quote(str(path))
    try:
        found = path.stat()
        text = path.read_text("ascii").strip()
    except FileNotFoundError:
        if scene.near() and scene.reached():
            return warn(f"{path} is gone", "start the daemon anew: it writes another")
        raise Skip(f"{path} is written by the first start of the daemon") from None
    except OSError as error:
        return fail(f"{path} cannot be read: {error.strerror}", f"chmod 600 {quoted}")
    except UnicodeDecodeError:
        text = ""
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return fail(f"{path} has mode {mode:04o}: whoever reads it is admin", f"chmod 600 {quoted}")
    if not text.startswith("tk_"):
        return fail(f"{path} holds no token", f"rm {quoted}, and start the daemon anew")
    return ok(f"{path}, mode {mode:04o}")


def _folder(scene: Scene) -> Path:
    folder = scene.folder()
    if folder.exists():
        return folder
    if not scene.near():
        raise Skip("the daemon is on another machine, and there is no data folder here")
    raise Skip(f"there is no {folder} yet", "postroom serve makes it at its first start")


def disk_space(scene: Scene) -> Findings:
    """Whether the data folder's disk has room."""
    folder = _folder(scene)
    found = scene.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    said = f"{_size(free)} free for {folder}"
    fix = "make room on that disk, or move the data folder (--data)"
    if free < NO_DISK:
        return fail(f"{said}: writes are about to be refused", fix)
    if free < LOW_DISK:
        return warn(said, fix)
    return ok(said)


def disk_inodes(scene: Scene) -> Findings:
    """Whether the data folder's disk can take more files."""
    folder = _folder(scene)
    found = scene.statvfs(folder)
    if found.f_files == 0:
        raise Skip(f"the disk of {folder} does not count its files")
    said = f"room for {found.f_favail} more files"
    fix = "delete small files on that disk: `df -i` shows where they are counted"
    if found.f_favail < NO_INODES:
        return fail(f"{said} on the disk of {folder}", fix)
    if found.f_favail < LOW_INODES:
        return warn(f"{said} on the disk of {folder}", fix)
    return ok(said)


def disk_wal(scene: Scene) -> Findings:
    """Whether SQLite's write-ahead log is folded in."""
    settings = scene.settings_or_none()
    engine = _engine(scene, settings)
    if engine != "sqlite":
        raise Skip("the database is not SQLite" if engine else "it is not known which database there is")
    named = settings.database if settings is not None else ""
    file = (
        Path(named.removeprefix(SQLITE)).expanduser()
        if named.startswith(SQLITE) and "database" in settings.origins
        else scene.folder() / "postroom.db"
    )
    wal = file.with_name(f"{file.name}-wal")
    try:
        size = wal.stat().st_size
    except FileNotFoundError:
        return ok(f"{wal.name} is not there: all is folded in") if file.exists() else skip(f"there is no {file} yet")
    if size > LONG_WAL:
        return warn(
            f"{wal} has {_size(size)}: a reader keeps it from being folded in, or a burst left it so long",
            "end what reads the file for long (a sqlite3 shell, a backup); restarting the daemon folds it in",
        )
    return ok(f"{wal.name} has {_size(size)}")


def _engine(scene: Scene, settings: Any) -> str | None:
    """Which database the daemon has, or would have."""
    try:
        return str(scene.status()["engine"])
    except (Skip, PostroomError, KeyError):
        if settings is None:
            return None
        return "sqlite" if settings.database.startswith(SQLITE) else "postgres"


def _size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
        count = count / 1024  # type: ignore[assignment]
    raise AssertionError


CHECKS: Final = (
    Check("settings.file", settings_file),
    Check("settings.variables", settings_variables),
    Check("settings.sources", settings_sources),
    Check("data.folder", data_folder),
    Check("data.token", data_token),
    Check("disk.space", disk_space),
    Check("disk.inodes", disk_inodes),
    Check("disk.wal", disk_wal),
)
