"""Firing: a sample delivery posted to this daemon's own address over a real connection, as its sender would post it."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Sequence
from urllib.parse import urlsplit

from postroom.errors import Unavailable

FIRE_SECONDS = 15.0
MAX_ANSWER = 1024 * 1024


async def post(base: str, path: str, headers: Sequence[tuple[str, str]], body: bytes) -> tuple[int, bytes]:
    """The status and body that a POST is answered with. Raises Unavailable when nothing answers in time."""
    return await asyncio.to_thread(_post, base, path, headers, body)


def _post(base: str, path: str, headers: Sequence[tuple[str, str]], body: bytes) -> tuple[int, bytes]:
    parts = urlsplit(base)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=FIRE_SECONDS)
    try:
        connection.request("POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{base} did not answer: {error or type(error).__name__}") from None
    finally:
        connection.close()
