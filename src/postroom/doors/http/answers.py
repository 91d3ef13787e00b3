"""Answers: what a handler gives back, and how it goes over the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Send

from postroom.text import dump_json

Header = tuple[bytes, bytes]

JSON = b"application/json"
BYTES = b"application/octet-stream"

# What is answered belongs to one token: no cache keeps it, and no browser guesses that it is a page.
ALWAYS: tuple[Header, ...] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""The headers of every answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body and the headers that are this answer's own."""

    body: bytes
    status: int = 200
    media: bytes = JSON
    headers: tuple[Header, ...] = ()


def json_answer(value: Mapping[str, Any], status: int = 200, headers: tuple[Header, ...] = ()) -> Answer:
    """A JSON object as an answer; what UTF-8 cannot hold (it comes from bad input alone) is shown as a question mark."""
    return Answer(dump_json(value).encode("utf-8", "replace"), status, JSON, headers)


async def send_answer(send: Send, answer: Answer, *, head: bool = False) -> None:
    """Send an answer whole; to HEAD without its body."""
    headers = [
        (b"content-type", answer.media),
        (b"content-length", str(len(answer.body)).encode()),
        *ALWAYS,
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else answer.body})
