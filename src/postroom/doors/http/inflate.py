"""Inflation: a body under `Content-Encoding: gzip`, within the size that its plain form may have."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from postroom.errors import TooLarge

_GZIP = frozenset({b"gzip", b"x-gzip"})
_GZIP_ALONE = 16 + zlib.MAX_WBITS


def codings(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """What a body is encoded as, in the order it was done, without what changes nothing."""
    values = [value for name, value in headers if name == b"content-encoding"]
    named = [part.strip().lower() for value in values for part in value.split(b",")]
    return [name for name in named if name not in {b"", b"identity"}]


def gzipped(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a body is gzip, once."""
    found = codings(headers)
    return len(found) == 1 and found[0] in _GZIP


def inflate(raw: bytes, most: int) -> bytes | None:
    """The plain bytes of a gzip body; None when it is none, or is cut off. Raises TooLarge once more than `most` come.

    However far a body would inflate, no more than `most` bytes of it are ever made.
    """
    made: list[bytes] = []
    left = most
    while raw:
        member = zlib.decompressobj(_GZIP_ALONE)
        try:
            made.append(member.decompress(raw, left + 1))
        except zlib.error:
            return None
        left -= len(made[-1])
        if left < 0:
            raise TooLarge(f"the body is over {most} bytes when it is inflated", field="body")
        if not member.eof:
            return None
        raw = member.unused_data
    return made[0] if len(made) == 1 else b"".join(made)
