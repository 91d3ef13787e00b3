"""Listeners: the loopback port, the Unix socket and the hooks-only port that the HTTP doors are served on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from postroom.errors import Misconfigured

GRACE_SECONDS = 10
MAX_SOCKET_PATH = 100
"""A Unix socket's path is at most 108 bytes on Linux, 104 on BSD; the temporary name beside it needs some of them."""


class _Server(uvicorn.Server):
    """A server that leaves the signals to whoever composed it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listeners:
    """Every place an installation listens; `hooks_app` alone is behind the hooks port (RULINGS 38)."""

    def __init__(self, app: Any, hooks_app: Any, *, host: str, port: int, path: Path, hooks_port: int | None) -> None:
        self._app = app
        self._hooks_app = hooks_app
        self._host = host
        self._port = port
        self._path = path
        self._hooks_port = hooks_port
        self._sockets: list[socket.socket] = []
        self._bound: tuple[int, int] | None = None
        self._servers: list[tuple[_Server, list[socket.socket]]] = []

    def open(self) -> None:
        """Bind everything, so that nobody is told of a place that does not answer. Raises Misconfigured."""
        try:
            main = [self._tcp(self._port, "port"), self._unix()]
            self._servers.append((_server(self._app), main))
            if self._hooks_port is not None:
                self._servers.append((_server(self._hooks_app), [self._tcp(self._hooks_port, "hooks_port")]))
        except BaseException:
            self.close()
            raise

    def _tcp(self, port: int, key: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, port))
        except OSError as error:
            raise Misconfigured(f"{key}: cannot listen on {self._host}:{port}: {error.strerror}", field=key) from None
        listener.listen(1024)
        listener.setblocking(False)
        return listener

    def _unix(self) -> socket.socket:
        """Bind in a 0700 folder under a name of our own and rename it into place: it is never there with another mode."""
        path = self._path
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise Misconfigured(f"socket: {path} is longer than {MAX_SOCKET_PATH} bytes", field="socket")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists():
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise Misconfigured(f"socket: {path} is there and is no socket", field="socket")
            if _answers(path):
                raise Misconfigured(f"socket: another daemon answers on {path}", field="socket")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets.append(listener)
        temporary = path.with_name(f".{os.getpid()}.sock")
        before = os.umask(0o177)
        try:
            listener.bind(str(temporary))
        except OSError as error:
            raise Misconfigured(f"socket: cannot bind {path}: {error.strerror}", field="socket") from None
        finally:
            os.umask(before)
        os.replace(temporary, path)
        self._bound = _identity(path)
        listener.listen(1024)
        listener.setblocking(False)
        return listener

    def said(self) -> str:
        """Where it listens, for people."""
        places = [self.base, f"unix://{self._path}"]
        if self.hooks_base is not None:
            places.append(f"hooks alone on {self.hooks_base}")
        return ", ".join(places)

    @property
    def base(self) -> str:
        """The address of the port that everything is served on."""
        return self._address(0)

    @property
    def hooks_base(self) -> str | None:
        """The address of the port that has hooks alone, when there is one."""
        return None if self._hooks_port is None else self._address(2)

    def _address(self, index: int) -> str:
        return f"http://{_host(self._host)}:{self._sockets[index].getsockname()[1]}"

    async def serve(self) -> None:
        """Answer until stopped, then finish what is under way."""
        await asyncio.gather(*(server.serve(sockets=sockets) for server, sockets in self._servers))

    def stop(self) -> None:
        """Serving -> stopping: nothing new is taken, what is under way has 10 s."""
        for server, _ in self._servers:
            server.should_exit = True

    def close(self) -> None:
        """Let go of every socket, and of the path when it is still ours."""
        if self._bound is not None and _identity(self._path) == self._bound:
            self._path.unlink(missing_ok=True)
        for one in self._sockets:
            one.close()


def _server(app: Any) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE_SECONDS,
            h11_max_incomplete_event_size=64 * 1024,
        )
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a path is now; another daemon may have put its own there."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
