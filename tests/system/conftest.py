"""What the tests of real processes start from: an environment without settings of its own, a short folder, a daemon."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Processes
from tests.system.daemons import Daemon


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("POSTROOM_"):
            monkeypatch.delenv(name)
    # Neither settings nor data of whoever runs the tests are looked at.
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, since a socket's path may hold about 100 bytes."""
    made = Path(tempfile.mkdtemp(prefix="postroom-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def new_daemon(folder: Path, processes: Processes) -> Callable[..., Daemon]:
    """Makes a daemon on this test's folder, not yet started; takes settings (TOML) and what `Daemon` takes besides."""

    def make(settings: str = "", **more: Any) -> Daemon:
        return Daemon(processes, folder, settings, **more)

    return make


@pytest.fixture
def daemon(new_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon that serves SQLite."""
    return new_daemon().start()
