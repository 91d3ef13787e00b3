"""A scene for the doctor's checks: folders of a test's own, and a daemon whose answers are put into its mouth."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from postroom import __version__
from postroom.doors.cli.checks import call as checks_call
from postroom.doors.cli.checks import check as checks_check
from postroom.doors.cli.checks import clients as checks_clients
from postroom.doors.cli.checks import mcp as checks_mcp
from postroom.doors.cli.checks import post as checks_post
from postroom.doors.cli.checks import sources as checks_sources
from postroom.doors.cli.checks import work as checks_work
from postroom.doors.cli.checks.check import Check, run
from postroom.doors.cli.checks.found import Findings, Line
from postroom.doors.cli.checks.scene import Scene
from postroom.errors import PostroomError
from postroom.wire import show_time
from tests.doors.fake_daemon import NOON

NOWHERE = "http://127.0.0.1:9"
"""Where nothing listens."""
DISK = (4096, 4096, 10**9, 10**9, 10**9, 10**7, 10**7, 10**7, 0, 255)
"""What a roomy disk says of itself."""


class Told(Scene):
    """A scene at noon in folders of its own; `tell` sets what the daemon answers to a path with a query."""

    def tell(self, path: str, answer: Mapping[str, Any] | PostroomError, **query: str | int) -> Told:
        """Have the daemon answer so."""
        self.once("health", lambda: {"status": "ok", "version": __version__})
        target = f"{path}?{urlencode(query, quote_via=quote)}" if query else path

        def give() -> Mapping[str, Any]:
            if isinstance(answer, PostroomError):
                raise answer
            return answer

        self.asked_at[target] = self.clock()
        with suppress(PostroomError):
            self.once(target, give)
        return self

    def status_is(self, **changes: Any) -> Told:
        """Have the daemon's status be that of a healthy one but for these."""
        return self.tell("/v1/status", {**status(), **changes})

    def sources_are(self, *sources: Mapping[str, Any], **changes: Any) -> Told:
        """Have the daemon know these sources."""
        told = {"sources": list(sources), "warnings": [], "settings_file": None, "data": "/nowhere", "addresses": []}
        return self.tell("/v1/sources", {**told, **changes})


def scene(folder: Path, **environ: str) -> Told:
    """A scene whose home, data and working folders are in `folder`, with no daemon."""
    for name in ("home", "here"):
        (folder / name).mkdir(exist_ok=True)
    data = folder / "data"
    data.mkdir(mode=0o700, exist_ok=True)
    return Told(
        {"POSTROOM_URL": NOWHERE, "POSTROOM_DATA": str(data), "PATH": os.environ["PATH"], **environ},
        home=folder / "home",
        here=folder / "here",
        statvfs=lambda _: os.statvfs_result(DISK),
        which=lambda name: None,
        clock=lambda: NOON / 1000,
    )


def look(check: Callable[[Scene], Findings], there: Scene) -> list[Line]:
    """A check's lines."""
    return run([Check("group.subject", check)], there)


def only(check: Callable[[Scene], Findings], there: Scene) -> Line:
    """A check's one line."""
    (line,) = look(check, there)
    return line


def status() -> dict[str, Any]:
    """The status of a healthy daemon."""
    return {
        "version": __version__,
        "engine": "sqlite",
        "engine_version": "3.54.0",
        "now": show_time(NOON),
        "clock_skew_ms": 0,
        "ready": True,
        "queues": [],
        "sweep": {"last_run_at": show_time(NOON - 500), "lapsed": 0, "due": 0, "deleted": 0, "failures": 0},
        "deliveries": {"pending": 0, "failed": 0, "carriers": [], "deferred": []},
        "post": {"running": True, "problem": None, "lanes": 0, "carriers": {}},
        "doorbell": {"queues": 0, "rung": 0, "problem": None},
        "gita": {"file": "/nowhere/repos.csv", "required": False},
        "sources": [],
        "hooks": {},
        "warnings": [],
    }


def source(name: str = "github", **changes: Any) -> dict[str, Any]:
    """A source's view."""
    return {
        "name": name,
        "provider": "github",
        "queue": "inbox",
        "insecure": False,
        "local": False,
        "secrets": ["secrets[0]"],
        "matched": None,
        **changes,
    }


def counted(**changes: Any) -> dict[str, Any]:
    """A source's counts."""
    return {"accepted": 0, "duplicates": 0, "refused": {}, "last_at": None, "last_refusal": None, **changes}


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a machine that is busy with other tests take its time: what is tested is the answer, not how soon it comes."""
    for module, name in (
        (checks_call, "CALL_S"),
        (checks_check, "CHECK_S"),
        (checks_mcp, "HTTP_S"),
        (checks_mcp, "STDIO_S"),
        (checks_mcp, "PROMPT_S"),
        (checks_sources, "ASK_S"),
        (checks_post, "PEERS_S"),
        (checks_post, "PEER_S"),
        (checks_post, "TMUX_S"),
        (checks_work, "QUEUE_S"),
        (checks_clients, "PEER_S"),
    ):
        monkeypatch.setattr(module, name, 60.0)
