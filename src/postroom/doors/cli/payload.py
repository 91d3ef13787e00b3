"""The text of a message as the senders read it: unchanged, bounded, and UTF-8."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from postroom.errors import Invalid, TooLarge

MAX_PAYLOAD_BYTES: Final = 64 * 1024


def text_of(word: str) -> str:
    """The text that a word gives: itself, or stdin's for `-`. Raises TooLarge, Invalid, OSError."""
    return _decoded(_stdin() if word == "-" else word.encode("utf-8", "surrogateescape"))


def text_in(file: Path) -> str:
    """The text in a file, or stdin's for `-`. Raises TooLarge, Invalid, OSError."""
    if str(file) == "-":
        return _decoded(_stdin())
    with file.open("rb") as opened:
        return _decoded(opened.read(MAX_PAYLOAD_BYTES + 1))


def _stdin() -> bytes:
    return sys.stdin.buffer.read(MAX_PAYLOAD_BYTES + 1)


def _decoded(raw: bytes) -> str:
    if len(raw) > MAX_PAYLOAD_BYTES:
        raise TooLarge(f"payload has more than {MAX_PAYLOAD_BYTES} bytes, which is the most", field="payload")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"payload is not UTF-8 text: byte {error.start} fits nowhere", field="payload") from None
