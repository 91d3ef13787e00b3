"""The scene that checks look at: the settings, the folders, and the daemon, each read once however many ask."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from postroom.address import data_folder
from postroom.doors.cli.checks.call import NoAnswer, Reply, call
from postroom.errors import Invalid, PostroomError, from_dict

CONFIG: Final = "postroom.config"
NO_DAEMON: Final = "no daemon was reached"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class Skip(Exception):
    """There is nothing to look at, and why."""

    def __init__(self, words: str, fix: str | None = None) -> None:
        super().__init__(words)
        self.words = words
        self.fix = fix


@dataclass(slots=True)
class _Once:
    lock: threading.Lock = field(default_factory=threading.Lock)
    made: bool = False
    value: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class Scene:
    """Where the checks are made. data, config: what the command line named. statvfs, which and clock: the machine."""

    environ: Mapping[str, str]
    data: Path | None = None
    config: str | None = None
    home: Path = field(default_factory=Path.home)
    here: Path = field(default_factory=Path.cwd)
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    which: Callable[[str], str | None] = shutil.which
    clock: Callable[[], float] = time.time
    asked_at: dict[str, float] = field(default_factory=dict)
    """When, by this clock, the daemon answered what it was asked: the middle of each exchange."""
    _once: dict[object, _Once] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` gives or raises, made by whoever asks first for the key."""
        with self._guard:
            kept = self._once.setdefault(key, _Once())
        with kept.lock:
            if not kept.made:
                try:
                    kept.value = make()
                except Exception as error:
                    kept.error = error
                kept.made = True
        if kept.error is not None:
            raise kept.error
        return kept.value

    # The settings and the folders.

    def settings(self) -> Any:
        """The settings as a daemon that is started here would have them. Raises Misconfigured."""
        data = None if self.data is None else str(self.data)
        load = import_module(CONFIG).load_settings
        return self.once("settings", lambda: load(config=self.config, data=data, environ=self.environ))

    def settings_or_none(self) -> Any:
        """The settings, or None where they cannot be read: the check of the settings tells of that."""
        try:
            return self.settings()
        except PostroomError:
            return None

    def folder(self) -> Path:
        """The data folder: the one that the daemon has, where it is on this machine; else the one that one would have."""
        told = self.told_places().get("data")
        if self.near() and isinstance(told, str) and Path(told).is_dir():
            return Path(told)
        settings = self.settings_or_none()
        found: Path = settings.data if settings is not None else self.own_folder()
        return found

    def own_folder(self) -> Path:
        """The data folder that this command line and this environment name."""
        return data_folder(self.data, self.environ)

    # The daemon.

    def daemon(self) -> Any:
        """The daemon that the verbs would ask. Raises Invalid for an address that is none."""
        from postroom.doors.cli.connection import Daemon

        return self.once("daemon", lambda: Daemon.find(self.data, self.environ))

    def near(self) -> bool:
        """Whether the daemon is looked for on this machine."""
        try:
            address = self.daemon().address
        except Invalid:
            return False
        return address.socket is not None or urlsplit(address.base).hostname in _LOOPBACK

    def health(self) -> Mapping[str, Any]:
        """What `/health` says. Raises NoAnswer, and Invalid for an address that is none."""
        answer: Mapping[str, Any] = self.once("health", self._health)
        return answer

    def _health(self) -> Mapping[str, Any]:
        reply = self.call("GET", "/health")
        told = reply.table()
        if reply.status != 200 or "version" not in told:
            raise NoAnswer(f"what answers there is no Postroom daemon: status {reply.status}")
        return told

    def reached(self) -> bool:
        """Whether a daemon answers."""
        try:
            self.health()
        except (NoAnswer, PostroomError):
            return False
        return True

    def call(
        self, method: str, path: str, body: bytes | None = None, *, seconds: float | None = None, **headers: str
    ) -> Reply:
        """One request to the daemon under the token. Raises NoAnswer, and Invalid for an address that is none."""
        address = self.daemon().address
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if address.token is not None:
            sent.setdefault("Authorization", f"Bearer {address.token}")
        return call(address.base, method, path, socket=address.socket, headers=sent, body=body, seconds=seconds)

    def ask(self, path: str, **query: str | int) -> Mapping[str, Any]:
        """What a GET is answered with. Raises Skip where no daemon answers or it is not ready; the family's errors."""
        if not self.reached():
            raise Skip(NO_DAEMON)
        target = f"{path}?{urlencode(query, quote_via=quote)}" if query else path
        answer: Mapping[str, Any] = self.once(target, lambda: self._ask(target))
        return answer

    def _ask(self, target: str) -> Mapping[str, Any]:
        try:
            reply = self.call("GET", target)
        except NoAnswer as silent:
            raise Skip(f"the daemon gave {target.partition('?')[0]} no answer: {silent}") from None
        self.asked_at[target] = self.clock() - reply.took / 2
        told = reply.table()
        if reply.status < 400 and told:
            return told
        shown = told.get("error")
        if reply.status == 503:
            raise Skip("the daemon is not ready")
        if isinstance(shown, dict):
            raise from_dict(shown)
        raise Skip(f"the daemon answered {target.partition('?')[0]} with status {reply.status}")

    def status(self) -> Mapping[str, Any]:
        """The daemon's status. Raises as `ask` does."""
        return self.ask("/v1/status")

    def told_places(self) -> Mapping[str, Any]:
        """What the daemon tells an admin of its sources and places; empty where it does not."""
        try:
            return self.ask("/v1/sources")
        except (Skip, PostroomError):
            return {}
