"""The way to a daemon: where it is, which token opens it, and one HTTP request at a time over TCP or a Unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from postroom.errors import Misconfigured, PostroomError, Unauthenticated, from_dict

ANSWER_S: Final = 30.0
CONNECT_S: Final = 5.0
DEFAULT_PORT: Final = 7373
SHORT_ANSWER: Final = 200

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Unreachable(Exception):
    """No daemon took the request, or the connection broke before its answer; `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def as_dict(self) -> dict[str, object]:
        """The fault in the shape of the daemon's own errors."""
        return {"code": "unreachable", "message": self.message, "hint": self.hint}


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection whose peer is a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self.socket_path = path

    def connect(self) -> None:
        """Connect to the socket. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self.socket_path)
        except OSError:
            self.sock.close()
            raise


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens: a Unix socket's path, or a host and port; `shown` is how the user wrote it."""

    shown: str
    path: str | None = None
    host: str = ""
    port: int = DEFAULT_PORT

    @classmethod
    def of(cls, url: str) -> Address:
        """The address in `http://HOST:PORT` or `unix:///PATH`. Raises Misconfigured."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme == "unix" and not parts.netloc and len(parts.path) > 1:
            return cls(url, path=unquote(parts.path))
        plain = parts.path in {"", "/"} and not (parts.query or parts.fragment or parts.username)
        if parts.scheme == "http" and parts.hostname and plain:
            return cls(url, host=parts.hostname, port=DEFAULT_PORT if port is None else port)
        raise Misconfigured(
            f"POSTROOM_URL is {url[:200]!r}; expected http://HOST:PORT or unix:///PATH", field="POSTROOM_URL"
        )

    @property
    def local(self) -> bool:
        """Whether the address is on this machine."""
        return self.path is not None or self.host in _LOOPBACK

    def open(self, timeout: float) -> http.client.HTTPConnection:
        """A connection, not yet connected."""
        if self.path is not None:
            return UnixConnection(self.path, timeout)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)


class Daemon:
    """A daemon as the verbs see it: requests go out with the token, answers come back as parsed JSON."""

    def __init__(self, address: Address, token: str | None, *, token_origin: str, start: str) -> None:
        self.address = address
        self._token = token
        self._token_origin = token_origin
        self._start = start

    @classmethod
    def find(cls, data: Path | None, environ: Mapping[str, str]) -> Daemon:
        """The daemon that POSTROOM_URL or the data folder names, with its token. Raises Misconfigured."""
        folder = data_folder(data, environ)
        url = environ.get("POSTROOM_URL", "")
        socket_path = folder / "postroom.sock"
        # A folder named on the command line is meant more than a variable that happens to be set.
        if url and data is None:
            address, start = Address.of(url), "postroom serve"
        else:
            address = Address(str(socket_path), path=str(socket_path))
            start = "postroom serve" if data is None else f"postroom serve --data {data}"
        token, origin = find_token(folder, address, environ)
        return cls(address, token, token_origin=origin, start=start)

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        wait_s: float = 0.0,
    ) -> dict[str, Any]:
        """The JSON object a request is answered with; `wait_s` is how long the daemon may hold it.

        Raises the error family of `postroom.errors` for a refusal, Unreachable for the rest.
        """
        status, raw = self._exchange(method, _with_query(path, query), body, request_id, wait_s)
        answer = _object(raw)
        if status < 400 and answer is not None:
            return answer
        raise self._refusal(status, raw, answer)

    def raw(self, path: str) -> bytes:
        """The bytes a GET is answered with. Raises as `ask` does."""
        status, raw = self._exchange("GET", path, None, None, 0.0)
        if status < 400:
            return raw
        raise self._refusal(status, raw, _object(raw))

    def _exchange(
        self, method: str, target: str, body: Mapping[str, Any] | None, request_id: str | None, wait_s: float
    ) -> tuple[int, bytes]:
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if request_id is not None:
            headers["Idempotency-Key"] = request_id
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        with self._connected() as connection:
            if connection.sock is not None:
                connection.sock.settimeout(ANSWER_S + wait_s)
            try:
                connection.request(method, target, content, headers)
                response = connection.getresponse()
                return response.status, response.read()
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(
                    f"the connection to {self.address.shown} broke before the answer: {_why(error)}",
                    "What was asked may have been done: look before you repeat it, or repeat it with one --request-id.",
                ) from None

    @contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        connection = self.address.open(CONNECT_S)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise Unreachable(
                    f"no daemon answers at {self.address.shown}: {_why(error)}",
                    f"Start one with: {self._start}; or set POSTROOM_URL to where it listens.",
                ) from None
            yield connection
        finally:
            connection.close()

    def _refusal(self, status: int, raw: bytes, answer: Mapping[str, Any] | None) -> PostroomError | Unreachable:
        shown = None if answer is None else answer.get("error")
        if not isinstance(shown, dict):
            text = raw[:SHORT_ANSWER].decode("utf-8", "replace").strip()
            return Unreachable(
                f"what answers at {self.address.shown} is no Postroom daemon: status {status} {text!r}",
                "Check POSTROOM_URL.",
            )
        error = from_dict(shown)
        if isinstance(error, Unauthenticated):
            details = {**error.details, "hint": f"The token was {self._token_origin}."}
            return Unauthenticated(error.message, field=error.field, **details)
        return error


def data_folder(data: Path | None, environ: Mapping[str, str]) -> Path:
    """The folder with a daemon's socket and token: given, else POSTROOM_DATA, else the platform's user data folder."""
    if data is not None:
        return data.expanduser().absolute()
    named = environ.get("POSTROOM_DATA")
    if named:
        return Path(named).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("postroom", appauthor=False)


def find_token(folder: Path, address: Address, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The token and where it came from: POSTROOM_TOKEN, else the folder's `admin-token`. Raises Misconfigured."""
    given = environ.get("POSTROOM_TOKEN", "").strip()
    if given:
        return _sendable(given, "POSTROOM_TOKEN"), "taken from POSTROOM_TOKEN"
    file = folder / "admin-token"
    if not address.local:
        # This machine's admin token opens this machine's daemon, and is nobody else's business.
        return None, f"not given: {address.shown} is not on this machine, so set POSTROOM_TOKEN"
    try:
        return _sendable(file.read_text().strip(), str(file)) or None, f"read from {file}"
    except (OSError, UnicodeDecodeError) as error:
        return None, f"not found: set POSTROOM_TOKEN, or make {file} readable ({_why(error)})"


def segment(value: str) -> str:
    """A value as one segment of a path."""
    return quote(value, safe="", errors="surrogatepass")


def _sendable(token: str, origin: str) -> str:
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise Misconfigured(f"{origin} holds no token; expected one word as tk_...", field=origin)
    return token


def _with_query(path: str, query: Mapping[str, Any] | None) -> str:
    given = {key: value for key, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given, errors='surrogatepass')}" if given else path


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
