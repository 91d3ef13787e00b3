"""Firing: a sample delivery posted to this daemon's own address over a real connection, as its sender would post it."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from postroom.errors import Unavailable
from postroom.sources.samples import Sample

FIRE_SECONDS = 15.0
MAX_ANSWER = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Fired:
    """A sample that was posted, and what it was answered with; the proof that went with it is not told."""

    path: str
    size: int
    status: int
    answer: bytes


async def fire(base: str, name: str, sample: Sample) -> Fired:
    """Post a sample to a source at this address. Raises Unavailable when nothing answers in time."""
    path = f"/hooks/{name}"
    asked = f"{path}?{sample.query}" if sample.query else path
    status, answer = await asyncio.to_thread(_post, base, asked, sample.headers, sample.body)
    return Fired(path, len(sample.body), status, answer)


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
