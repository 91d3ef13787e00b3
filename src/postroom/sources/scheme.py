"""Signature schemes: whether the bytes of a request were made by somebody who knows one of the secrets.

Every scheme compares in constant time, tries all secrets against all signatures, and answers hostile input with a
refusal that carries a reason for the log. The sender is told none of it. Beside `verify` stands `sign`, which makes
the headers that `verify` takes: for samples and tests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol
from urllib.parse import quote

from postroom.sources.headers import Headers

ALGORITHMS: Final = ("sha256", "sha512", "sha384", "sha1")
ENCODINGS: Final = ("hex", "base64")
DEFAULT_TOLERANCE_S: Final = 300
MAX_TOLERANCE_S: Final = 7 * 24 * 3600

_FIELD = re.compile(r"\{(body|timestamp|id)\}")
_STAMP = re.compile(rb"[0-9]{1,16}")
_MS_FROM = 100_000_000_000
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Secret:
    """A shared secret, and the label under which its use is recorded; neither value nor key appears in a repr.

    value: the text as it was set. key: the bytes that sign, where they are not those of the text.
    """

    value: bytes = field(repr=False)
    label: str
    key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        """Sign with the text itself unless told otherwise."""
        if not self.key:
            object.__setattr__(self, "key", self.value)


@dataclass(frozen=True, slots=True)
class Verified:
    """The request is genuine: how it was proved, by which secret, and the stamp that tells it from its like.

    stamp: the signed time where there is one (`timed`), else the UTC day; it tells apart equal bodies that carry no id.
    id: the delivery id, where it is signed. sealed: the body is covered by the proof, not only the sender's name.
    """

    label: str
    how: str
    stamp: str
    id: str | None = None
    timed: bool = False
    sealed: bool = True


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request is refused; the reason is for the log alone. untimely: its signed time lies too far from now."""

    reason: str
    untimely: bool = False


@dataclass(frozen=True, slots=True)
class Signing:
    """What a sender adds to a body to prove it: header lines, and for a token in the address the query."""

    headers: tuple[tuple[str, str], ...] = ()
    query: str = ""


class Scheme(Protocol):
    """One way to prove a request."""

    @property
    def names(self) -> tuple[str, ...]:
        """The headers that carry the proof: never shown, never stored."""
        ...

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Tell whether one of the secrets made this request."""
        ...

    def sign(self, secret: Secret, body: bytes, now_ms: int, id_: str) -> Signing:
        """The proof of a body under a secret, as the sender would make it now."""
        ...


def day(now_ms: int) -> str:
    """The UTC day."""
    return _day(now_ms // _DAY_MS)


@lru_cache(maxsize=8)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * (_DAY_MS // 1000), UTC).strftime("%Y-%m-%d")


def digest(key: bytes, content: bytes, algorithm: str = "sha256", encoding: str = "hex") -> bytes:
    """The keyed hash of some content, encoded."""
    made = hmac.digest(key, content, algorithm)
    return base64.b64encode(made) if encoding == "base64" else made.hex().encode()


def maker(
    secrets: Sequence[Secret], content: bytes, given: Sequence[bytes], algorithm: str = "sha256", encoding: str = "hex"
) -> Secret | None:
    """The first secret that made one of the signatures given; each is compared with each. Hex may be in either case."""
    found: Secret | None = None
    for secret in secrets:
        lower = digest(secret.key, content, algorithm, encoding)
        for expected in (lower,) if encoding == "base64" else (lower, lower.upper()):
            for candidate in given:
                if hmac.compare_digest(expected, candidate) and found is None:
                    found = secret
    return found


def fresh(raw: bytes, name: str, tolerance_s: int, now_ms: int) -> str | Rejected:
    """A timestamp in seconds (or milliseconds, when it is that large) as text, when it lies near enough to now."""
    if not _STAMP.fullmatch(raw):
        return Rejected(f"{name} is no whole number of seconds")
    number = int(raw)
    at_ms = number if number >= _MS_FROM else number * 1000
    late = stale(at_ms, name, tolerance_s, now_ms)
    return late if late is not None else str(number)


def stale(at_ms: int, name: str, tolerance_s: int, now_ms: int) -> Rejected | None:
    """The refusal of a time that lies further from now than the tolerance, before or after."""
    if abs(now_ms - at_ms) <= tolerance_s * 1000:
        return None
    return Rejected(f"{name} lies {(now_ms - at_ms) // 1000} s from now", untimely=True)


@dataclass(frozen=True, slots=True)
class Hmac:
    """A keyed hash over the raw body, or over a template such as `{timestamp}.{body}`, in a header.

    prefix: what stands before the signature. separator: set where one header may list several signatures; elements
    with another prefix are passed over. tolerance_s: how far the signed timestamp (seconds, or milliseconds when it
    is that large) may lie from now, on either side.
    """

    header: str
    prefix: str = ""
    algorithm: str = "sha256"
    encoding: str = "hex"
    signed: str = "{body}"
    separator: str | None = None
    timestamp_header: str | None = None
    id_header: str | None = None
    tolerance_s: int = DEFAULT_TOLERANCE_S

    @property
    def names(self) -> tuple[str, ...]:
        """The signature's header."""
        return (self.header,)

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Compare the signature of every secret with every one sent; timestamps outside the window are refused."""
        given = self._signatures(headers)
        if isinstance(given, Rejected):
            return given
        parts = self._parts(headers, body)
        if isinstance(parts, Rejected):
            return parts
        stamp: str | None = None
        if "timestamp" in parts:
            read = fresh(parts["timestamp"], str(self.timestamp_header), self.tolerance_s, now_ms)
            if isinstance(read, Rejected):
                return read
            stamp = read
        matched = maker(secrets, self._content(parts), given, self.algorithm, self.encoding)
        if matched is None:
            return Rejected(f"no secret of {len(secrets)} made the signature in {self.header}")
        id_ = parts["id"].decode("latin-1") if "id" in parts else None
        return Verified(matched.label, f"hmac-{self.algorithm}", stamp or day(now_ms), id=id_, timed=stamp is not None)

    def sign(self, secret: Secret, body: bytes, now_ms: int, id_: str) -> Signing:
        """The signature's header, and those of the time and id where they are signed."""
        parts = {"body": body, "timestamp": str(now_ms // 1000).encode(), "id": id_.encode()}
        made = digest(secret.key, self._content(parts), self.algorithm, self.encoding).decode()
        lines = [(self.header, self.prefix + made)]
        for name, header in (("timestamp", self.timestamp_header), ("id", self.id_header)):
            if header is not None and f"{{{name}}}" in self.signed:
                lines.append((header, parts[name].decode()))
        return Signing(tuple(lines))

    def _signatures(self, headers: Headers) -> list[bytes] | Rejected:
        """The encoded signatures in the header, without their prefix."""
        values = headers.all(self.header)
        if not any(values):
            return Rejected(f"no {self.header} header")
        if self.separator is None:
            if headers.conflicting(self.header):
                return Rejected(f"several {self.header} headers that differ")
            values = values[:1]
        else:
            # Whoever passes a request on may have joined repeated lines into one, with commas between them.
            values = [part.strip().rstrip(b",") for value in values for part in value.split(self.separator.encode())]
        prefix = self.prefix.encode()
        found = [value[len(prefix) :] for value in values if value.startswith(prefix)]
        return found or Rejected(f"{self.header} does not begin with {self.prefix!r}")

    def _parts(self, headers: Headers, body: bytes) -> dict[str, bytes] | Rejected:
        """What the template is filled with: the body, and each signed header."""
        parts: dict[str, bytes] = {"body": body}
        for name, header in (("timestamp", self.timestamp_header), ("id", self.id_header)):
            if f"{{{name}}}" not in self.signed:
                continue
            values = headers.all(header) if header else []
            if len(set(values)) != 1 or not values[0]:
                return Rejected(f"expected one value in {header}, which is signed")
            parts[name] = values[0]
        return parts

    def _content(self, parts: dict[str, bytes]) -> bytes:
        """The bytes that the sender signs. Split, not replaced: a body that holds `{timestamp}` must stay as it is."""
        if self.signed == "{body}":
            return parts["body"]
        pieces = _FIELD.split(self.signed)
        return b"".join(parts[piece] if index % 2 else piece.encode() for index, piece in enumerate(pieces))


def known(secrets: Sequence[Secret], given: bytes) -> Secret | None:
    """The first secret that is the text given. Digests have one length, so the comparison tells nothing of a secret's."""
    hashed = hashlib.sha256(given).digest()
    found: Secret | None = None
    for secret in secrets:
        if hmac.compare_digest(hashlib.sha256(secret.value).digest(), hashed) and found is None:
            found = secret
    return found


@dataclass(frozen=True, slots=True)
class Token:
    """The secret itself in a header, after a prefix: it proves the sender, not the body."""

    header: str
    prefix: str = ""
    how: str = "token"

    @property
    def names(self) -> tuple[str, ...]:
        """The token's header."""
        return (self.header,)

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Compare every secret with the header's value; the word before it may be in any case."""
        values = headers.all(self.header)
        if not any(values):
            return Rejected(f"no {self.header} header")
        if headers.conflicting(self.header):
            return Rejected(f"several {self.header} headers that differ")
        prefix = self.prefix.encode()
        if values[0][: len(prefix)].lower() != prefix.lower():
            return Rejected(f"{self.header} does not begin with {self.prefix!r}")
        matched = known(secrets, values[0][len(prefix) :].strip(b" \t"))
        if matched is None:
            return Rejected(f"no secret of {len(secrets)} is the one in {self.header}")
        return Verified(matched.label, self.how, day(now_ms), sealed=False)

    def sign(self, secret: Secret, body: bytes, now_ms: int, id_: str) -> Signing:
        """The header with the secret."""
        return Signing(((self.header, self.prefix + secret.value.decode()),))


def bearer() -> Token:
    """`Authorization: Bearer SECRET`."""
    return Token("authorization", "Bearer ", "bearer")


@dataclass(frozen=True, slots=True)
class QueryToken:
    """The secret in a parameter of the address, for senders that can set nothing else; `instead` proves without it.

    An address is written into more logs than a header is: the last resort.
    """

    parameter: str
    instead: Token | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The other way's header."""
        return self.instead.names if self.instead is not None else ()

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Compare every secret with the parameter, which may stand there once; without it the other way must prove."""
        values = headers.parameter(self.parameter)
        if not values and self.instead is not None:
            return self.instead.verify(secrets, headers, body, now_ms)
        if len(values) != 1:
            return Rejected(f"expected the query parameter {self.parameter} once, found it {len(values)} times")
        matched = known(secrets, values[0])
        if matched is None:
            return Rejected(f"no secret of {len(secrets)} is the one in the query parameter {self.parameter}")
        return Verified(matched.label, "query", day(now_ms), sealed=False)

    def sign(self, secret: Secret, body: bytes, now_ms: int, id_: str) -> Signing:
        """The query with the secret."""
        return Signing(query=f"{quote(self.parameter)}={quote(secret.value, safe='')}")


@dataclass(frozen=True, slots=True)
class Unsigned:
    """No proof at all: for a source that was made insecure on purpose, and stays on the loopback."""

    @property
    def names(self) -> tuple[str, ...]:
        """None."""
        return ()

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Let everything in."""
        return Verified("nobody", "none", day(now_ms), sealed=False)

    def sign(self, secret: Secret, body: bytes, now_ms: int, id_: str) -> Signing:
        """Nothing."""
        return Signing()
