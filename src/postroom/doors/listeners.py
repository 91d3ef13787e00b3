"""Listeners: the loopback port, the Unix socket and the hooks-only port that the HTTP doors are served on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import resource
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from postroom.doors.acceptor import Acceptor
from postroom.doors.http.connection import Connection
from postroom.doors.socket.bound import BoundSocket
from postroom.doors.socket.lines import Lines
from postroom.errors import Misconfigured

GRACE_SECONDS = 10
KEEP_SECONDS = 75
"""How long a connection may be silent after an answer."""
MOST_DESCRIPTORS = 65536
"""What counts as the process's limit where it has a higher one or none."""
PORT_SHARE, SOCKET_SHARE, HOOKS_SHARE = 2, 4, 4
"""Which part (1/n) of its descriptors the HTTP connections of each place may take, so that none shuts out the others."""
PROBE_SECONDS = 0.5


class _Server(uvicorn.Server):
    """A server that leaves the signals to whoever composed it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin as it is used to, but with acceptors of our own at the sockets."""
        await super().startup(sockets=[])
        protocol: Any = self.config.http_protocol_class
        make = partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        self.servers = [Acceptor(one, make) for one in sockets or ()]  # type: ignore[misc]


class Listeners:
    """Every place an installation listens; `hooks_app` alone is behind the hooks port (RULINGS 38).

    lines: answers those who speak protocol 0.1 on the Unix socket, and there alone (T1, T3).
    """

    def __init__(
        self,
        app: Any,
        hooks_app: Any,
        *,
        host: str,
        port: int,
        path: Path,
        hooks_port: int | None,
        lines: Lines | None = None,
    ) -> None:
        self._lines = lines
        self._app = app
        self._hooks_app = hooks_app
        self._host = host
        self._port = port
        self._path = path
        self._hooks_port = hooks_port
        self._sockets: list[socket.socket] = []
        self._bound: BoundSocket | None = None
        self._servers: list[tuple[_Server, list[socket.socket]]] = []

    def open(self) -> None:
        """Bind everything, so that nobody is told of a place that does not answer. Raises Misconfigured."""
        try:
            most = _descriptors()
            port = _server(self._app, most // PORT_SHARE)
            self._servers.append((port, [self._tcp(self._port, "port")]))
            unix = _server(self._app, most // SOCKET_SHARE, self._lines)
            self._servers.append((unix, [self._unix()]))
            if self._hooks_port is not None:
                hooks = _server(self._hooks_app, most // HOOKS_SHARE)
                self._servers.append((hooks, [self._tcp(self._hooks_port, "hooks_port")]))
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
            raise self._taken(port, key, error) from None
        listener.listen(1024)
        listener.setblocking(False)
        return listener

    def _taken(self, port: int, key: str, error: OSError) -> Misconfigured:
        said, flag = error.strerror or str(error), f"--{key.replace('_', '-')}"
        if error.errno == errno.EADDRINUSE:
            whose = (
                "a Postroom answers there" if _is_postroom(self._host, port) else "what listens there is no Postroom"
            )
            said = f"{said}; {whose}"
        hint = f"Stop what listens there, or take another port: {flag} N, 0 for any."
        return Misconfigured(f"{key}: cannot listen on {self._host}:{port}: {said}", field=key, hint=hint)

    def _unix(self) -> socket.socket:
        self._bound = BoundSocket(self._path)
        self._sockets.append(self._bound.listener)
        return self._bound.listener

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
        try:
            await asyncio.gather(*(server.serve(sockets=sockets) for server, sockets in self._servers))
        finally:
            if self._lines is not None:
                await self._lines.close(GRACE_SECONDS)

    def stop(self) -> None:
        """Serving -> stopping: nothing new is taken, what is under way has 10 s."""
        for server, _ in self._servers:
            server.should_exit = True

    def close(self) -> None:
        """Let go of every socket, and of the path when it is still ours."""
        if self._bound is not None:
            self._bound.close()
        for one in self._sockets:
            one.close()


def _descriptors() -> int:
    """How many descriptors the process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, MOST_DESCRIPTORS)


def _is_postroom(host: str, port: int) -> bool:
    """Whether what answers at this port, within half a second, is a Postroom."""
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", "/health")
        return b'"version"' in connection.getresponse().read(1000)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _server(app: Any, most: int, lines: Lines | None = None) -> _Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=KEEP_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    config.load()

    def speak(**made: Any) -> asyncio.Protocol:
        make = partial(Connection, most=most, **made)
        return make() if lines is None else lines.protocol(make)

    config.http_protocol_class = speak  # type: ignore[assignment]
    return _Server(config)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
