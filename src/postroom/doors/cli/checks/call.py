"""One HTTP request by a check: answered whole within its seconds, or not at all."""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from postroom.doors.cli.connection import UnixConnection
from postroom.text import parse_json

MAX_ANSWER: Final = 8 * 1024 * 1024
CALL_S: Final = 2.0
"""How long a peer may take to connect, and then to answer."""


class NoAnswer(Exception):
    """The peer did not answer, or with what is no answer; says why."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a peer answered. took: seconds."""

    status: int
    body: bytes
    took: float

    def value(self) -> Any:
        """The body's JSON value; None for what is none."""
        try:
            return parse_json(self.body, "answer")
        except Exception:
            return None

    def table(self) -> Mapping[str, Any]:
        """The body's JSON object; empty for what is none."""
        value = self.value()
        return value if isinstance(value, dict) else {}


def call(
    base: str,
    method: str,
    path: str,
    *,
    socket: str | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    seconds: float | None = None,
) -> Reply:
    """Ask the server at a base URL, or at a Unix socket, for CALL_S seconds or as many as are given. Raises NoAnswer."""
    seconds = CALL_S if seconds is None else seconds
    begun = time.monotonic()
    connection: http.client.HTTPConnection
    if socket is not None:
        connection = UnixConnection(socket, seconds)
    else:
        parts = urlsplit(base)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    try:
        connection.request(method, path, body, {"Accept": "application/json", **(headers or {})})
        response = connection.getresponse()
        content = response.read(MAX_ANSWER + 1)
    except TimeoutError:
        raise NoAnswer(f"no answer within {seconds:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(_why(error)) from None
    finally:
        connection.close()
    if len(content) > MAX_ANSWER:
        raise NoAnswer(f"an answer of more than {MAX_ANSWER} bytes")
    return Reply(response.status, content, time.monotonic() - begun)


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"{type(error).__name__} {error}".strip()
