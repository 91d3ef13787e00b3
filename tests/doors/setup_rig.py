"""A home of its own and a stand-in daemon, as `postroom setup` finds them."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.doors import fake_daemon, fake_post
from tests.doors.command import leave
from tests.doors.fake_daemon import TOKEN, FakeDaemon

SECRET = "tk_" + "s" * 43
MADE = {"token": {**fake_daemon.token(), "name": "client-1"}, "secret": SECRET}
PROGRAM = str(Path(sys.executable).with_name("postroom"))


class SetupRig:
    """One user's home, with `postroom setup` run in it; the daemon answers at `daemon.url`."""

    def __init__(self, home: Path, daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self.daemon = daemon
        self.data = home / "data" / "postroom"
        self.out = ""
        self.err = ""
        self._capsys = capsys

    def setup(self, *words: str) -> int:
        """Run it: its exit code; what it said is in `out` and `err`."""
        self._capsys.readouterr()
        code = leave("setup", *words)
        self.out, self.err = self._capsys.readouterr()
        return code

    def told(self, *words: str) -> Any:
        """What it says to programs, once it has succeeded."""
        assert self.setup(*words, "--json") == 0, self.err
        return json.loads(self.out)

    def token(self, client: str) -> Path:
        """Where a client's token is kept."""
        return self.data / "clients" / f"{client}.token"

    def arguments(self, client: str, *flags: str) -> list[str]:
        """The words after the program's name in an entry on stdio."""
        return ["mcp", *flags, "--url", self.daemon.url, "--token-file", str(self.token(client))]

    def made(self) -> list[dict[str, Any]]:
        """The tokens that were asked for."""
        return [one.body for one in self.daemon.asked if (one.method, one.path) == ("POST", "/v1/tokens")]

    def revoked(self) -> int:
        """How often the token was revoked."""
        return sum(one.path == f"/v1/tokens/{TOKEN}/revoke" for one in self.daemon.asked)

    def files(self) -> dict[str, bytes]:
        """Every file in the home, by its path there."""
        found = (path for path in self.home.rglob("*") if path.is_file())
        return {str(path.relative_to(self.home)): path.read_bytes() for path in found}


def mode(path: Path) -> int:
    """A file's mode."""
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def rig(home: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[SetupRig]:
    """A rig in an empty home, whose daemon makes tokens, knows them and revokes them."""
    for name in ("POSTROOM_TOKEN", "POSTROOM_DATA", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "POSTROOM_PORT"):
        patch.delenv(name, raising=False)
    home = home / "home"
    home.mkdir()
    patch.setenv("HOME", str(home))
    patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    patch.setenv("XDG_DATA_HOME", str(home / "data"))
    # No client's program is found, whoever's machine this is.
    patch.setenv("PATH", str(home / "bin"))
    patch.chdir(home)
    with fake_daemon.running() as fake:
        patch.setenv("POSTROOM_URL", fake.url)
        fake.answer("POST", "/v1/tokens", MADE, 201)
        fake.answer("POST", f"/v1/tokens/{TOKEN}/revoke", {"token": fake_daemon.token()})
        fake.answer("GET", "/v1/inbox", fake_post.inbox())
        yield SetupRig(home, fake, capsys)
