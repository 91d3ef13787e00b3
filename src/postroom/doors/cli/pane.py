"""A tmux pane as a shell in it, or somebody outside it, names it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postroom.doors.cli.asking import usage
from postroom.errors import Invalid
from postroom.limits import check_name

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

TMUX_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Pane:
    """A pane of the tmux server at `socket`; server_pid: that server's process, where it is known. own: it runs this."""

    socket: str
    pane: str
    server_pid: int | None = None
    own: bool = False

    @classmethod
    def find(cls, pane: str | None, socket: Path | None, environ: Mapping[str, str]) -> Pane:
        """The pane that the options name, else the one that this runs in. Raises BadParameter where there is neither."""
        path, _, rest = environ.get("TMUX", "").partition(",")
        server = rest.partition(",")[0]
        if pane is None and socket is not None:
            raise usage("--tmux-socket without --pane: say which pane of that server is meant", "--tmux-socket")
        if pane is not None:
            chosen = str(socket.expanduser().absolute()) if socket is not None else path or _usual(environ)
            return cls(chosen, pane)
        if not path or not environ.get("TMUX_PANE"):
            raise usage("this is no tmux pane: run it in one, or give --pane %3, or --inbox --name NAME", "--pane")
        return cls(path, environ["TMUX_PANE"], int(server) if server.isdigit() else None, own=True)

    def is_at(self, address: Mapping[str, Any]) -> bool:
        """Whether an endpoint's address is this pane."""
        same = str(address.get("pane")) == self.pane and _real(str(address.get("socket"))) == _real(self.socket)
        return same and self.server_pid in {None, address.get("server_pid")}

    def folder(self) -> Path | None:
        """The working folder of what runs there; None where nobody can tell."""
        if self.own:
            return Path.cwd()
        asked = ("tmux", "-S", self.socket, "display-message", "-p", "-t", self.pane, "#{pane_current_path}")
        try:
            done = subprocess.run(asked, capture_output=True, stdin=subprocess.DEVNULL, timeout=TMUX_S, check=False)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
        told = done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")
        return Path(told) if done.returncode == 0 and told.startswith("/") else None


def name_here(daemon: Daemon, environ: Mapping[str, str]) -> str | None:
    """The name of the endpoint that is attached at the pane this runs in; None outside, or where it has no name."""
    if not environ.get("TMUX") or not environ.get("TMUX_PANE"):
        return None
    here = Pane.find(None, None, environ)
    found = daemon.ask("GET", "/v1/endpoints", query={"live": "true"})["endpoints"]
    return next(
        (one["name"] for one in found if one["name"] and one["carrier"] == "tmux" and here.is_at(one["address"])), None
    )


def worker_here(daemon: Daemon, environ: Mapping[str, str]) -> str | None:
    """The name under the token that who works in this pane goes by; None where the pane has none that would do."""
    name = name_here(daemon, environ)
    try:
        return None if name is None else check_name(name, "name")
    except Invalid:
        return None


def recipient_here(daemon: Daemon, path: str, environ: Mapping[str, str]) -> str | None:
    """The id of the endpoint by which the message at `path` goes to the pane this runs in; None in any other place.

    It is the one that stood there when the message was sent, also where another has taken its place.
    """
    if not environ.get("TMUX") or not environ.get("TMUX_PANE"):
        return None
    here = Pane.find(None, None, environ)
    deliveries = daemon.ask("GET", path)["message"]["deliveries"]
    return next((one["endpoint_id"] for one in deliveries if here.is_at(_address(one["target"]))), None)


def _address(target: str) -> dict[str, Any]:
    """The address that the key of a tmux target is made of; an empty one for any other target."""
    parts = target.removeprefix("tmux:").rsplit(":", 3)
    if not target.startswith("tmux:") or len(parts) < 4 or not parts[1].isdigit():
        return {}
    return {"socket": parts[0], "server_pid": int(parts[1]), "pane": parts[3]}


def _usual(environ: Mapping[str, str]) -> str:
    return f"{environ.get('TMUX_TMPDIR') or '/tmp'}/tmux-{os.geteuid()}/default"


def _real(path: str) -> str:
    return os.path.realpath(path)
