"""The way to a daemon: one HTTP request at a time over TCP or a Unix socket, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from postroom.address import Address, find
from postroom.errors import Invalid, PostroomError, Unauthenticated, from_dict

ANSWER_S: Final = 30.0
CONNECT_S: Final = 5.0
HEALTH_S: Final = 2.0
SHORT_ANSWER: Final = 200
EVENTS: Final = "text/event-stream"

_CODES: Final[Mapping[int, str]] = {
    400: "invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    409: "conflict",
    413: "too_large",
    429: "rate_limited",
    503: "unavailable",
}
"""What a status says where the error is told as bare text, as the swarm's routes do."""


class Unreachable(Exception):
    """No daemon took the request, or the connection broke before its answer; `hint` says what to do.

    sent: the request may have reached the daemon all the same.
    """

    def __init__(self, message: str, hint: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.sent = sent

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


class Daemon:
    """A daemon as the verbs see it: requests go out with the token, answers come back as parsed JSON."""

    def __init__(self, address: Address, *, start: str, token_origin: str) -> None:
        self.address = address
        self._start = start
        self._token_origin = token_origin

    @classmethod
    def find(cls, data: Path | None, environ: Mapping[str, str]) -> Daemon:
        """The daemon that `data`, else the environment, else the user's data folder names. Raises Invalid."""
        start = "postroom serve"
        if data is not None:
            # A folder named on the command line is meant more than a variable that happens to be set.
            folder = str(data.expanduser().absolute())
            environ = {key: value for key, value in environ.items() if key != "POSTROOM_URL"}
            environ = {**environ, "POSTROOM_DATA": folder}
            start = f"postroom serve --data {shlex.quote(folder)}"
        address = find(environ=environ)
        if address.token is None:
            origin = "No token was found: set POSTROOM_TOKEN, or make the data folder's admin-token readable."
        elif environ.get("POSTROOM_TOKEN"):
            origin = "The daemon does not know the token in POSTROOM_TOKEN, or it was revoked."
        else:
            origin = "The daemon does not know the data folder's admin-token: is it another installation's?"
        token = address.token or ""
        if not (token.isascii() and token.isprintable()):
            raise Invalid("the token holds characters that no token has; expected tk_...", field="POSTROOM_TOKEN")
        return cls(address, start=start, token_origin=origin)

    def under(self, token: str) -> Daemon:
        """The same daemon, asked with another token."""
        origin = "The daemon does not know this token, or it was revoked."
        return Daemon(replace(self.address, token=token), start=self._start, token_origin=origin)

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
        """The JSON object a request is answered with; `wait_s` is how many seconds the daemon may hold it.

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

    @contextmanager
    def opened(
        self, path: str, query: Sequence[tuple[str, str]], quiet_s: float
    ) -> Iterator[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
        """A connection and the answer on it that goes on, to be read within `quiet_s` each time. Raises as `ask` does."""
        with self._connected() as connection:
            if connection.sock is not None:
                connection.sock.settimeout(quiet_s)
            target = f"{path}?{urlencode(query, errors='surrogatepass')}" if query else path
            try:
                connection.request("GET", target, headers={**self._bearer(), "Accept": EVENTS})
                response = connection.getresponse()
                kind = response.headers.get_content_type()
                ours = response.status < 300 and ("Content-Type" not in response.headers or kind == EVENTS)
                raw = None if ours else response.read(SHORT_ANSWER if response.status < 300 else None)
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"the connection to {self.address} broke: {_why(error)}", "Ask again.") from None
            if raw is not None:
                raise self._refusal(response.status, raw, _object(raw))
            yield connection, response

    def healthy(self) -> bool:
        """Whether `/health` answers 2xx within two seconds."""
        connection = _unconnected(self.address)
        connection.timeout = HEALTH_S
        try:
            connection.request("GET", "/health")
            return 200 <= connection.getresponse().status < 300
        except (OSError, UnicodeError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _exchange(
        self, method: str, target: str, body: Mapping[str, Any] | None, request_id: str | None, wait_s: float
    ) -> tuple[int, bytes]:
        headers = {"Accept": "application/json", **self._bearer()}
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
                    f"the connection to {self.address} broke before the answer: {_why(error)}",
                    "Ask again."
                    if method == "GET"
                    else "It may have been done all the same: look before you repeat it.",
                    sent=True,
                ) from None

    def _bearer(self) -> dict[str, str]:
        return {} if self.address.token is None else {"Authorization": f"Bearer {self.address.token}"}

    @contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        connection = _unconnected(self.address)
        try:
            try:
                connection.connect()
            except (OSError, UnicodeError) as error:
                raise Unreachable(
                    f"no daemon answers at {self.address}: {_why(error)}",
                    f"Start one with: {self._start}; or set POSTROOM_URL to where it listens.",
                ) from None
            yield connection
        finally:
            connection.close()

    def _refusal(self, status: int, raw: bytes, answer: Mapping[str, Any] | None) -> PostroomError | Unreachable:
        shown = None if answer is None else answer.get("error")
        if isinstance(shown, str):
            shown = {"code": _CODES.get(status, "internal"), "message": shown}
        if not isinstance(shown, dict):
            text = raw[:SHORT_ANSWER].decode("utf-8", "replace").strip()
            return Unreachable(
                f"what answers at {self.address} is no Postroom daemon: status {status} {text!r}",
                "Check POSTROOM_URL.",
            )
        error = from_dict(shown)
        if isinstance(error, Unauthenticated):
            details = {**error.details, "hint": self._token_origin}
            return Unauthenticated(error.message, field=error.field, **details)
        return error


def segment(value: str) -> str:
    """A value as one segment of a path."""
    return quote(value, safe="", errors="surrogatepass")


def _unconnected(address: Address) -> http.client.HTTPConnection:
    if address.socket is not None:
        return UnixConnection(address.socket, CONNECT_S)
    parts = urlsplit(address.base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=CONNECT_S)


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
