"""Signature schemes: whether the bytes of a request were made by somebody who knows one of the secrets.

Every scheme compares in constant time, tries all secrets against all signatures, and answers hostile input with a
refusal that carries a reason for the log. The sender is told none of it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from postroom.sources.headers import Headers

ALGORITHMS: Final = ("sha256", "sha512", "sha384", "sha1")
ENCODINGS: Final = ("hex", "base64")
DEFAULT_TOLERANCE_S: Final = 300

_FIELD = re.compile(r"\{(body|timestamp|id)\}")
_STAMP = re.compile(rb"[0-9]{1,16}")
_MS_FROM = 100_000_000_000


@dataclass(frozen=True, slots=True)
class Secret:
    """A shared secret, and the label under which its use is recorded; the value never appears in a repr."""

    value: bytes = field(repr=False)
    label: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The request is genuine: how it was proved, by which secret, and the stamp that tells it from its like.

    stamp: the signed time where there is one, else the UTC day; it tells apart equal bodies that carry no id.
    """

    label: str
    how: str
    stamp: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request is refused; the reason is for the log alone."""

    reason: str


class Scheme(Protocol):
    """One way to prove a request."""

    @property
    def names(self) -> tuple[str, ...]:
        """The headers that carry the proof: never shown, never stored."""
        ...

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Tell whether one of the secrets made this request."""
        ...


def _day(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%d")


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
        signed = self._signed(headers, body, now_ms)
        if isinstance(signed, Rejected):
            return signed
        content, stamp = signed
        matched: Secret | None = None
        for secret in secrets:
            for expected in self._expected(secret.value, content):
                for candidate in given:
                    if hmac.compare_digest(expected, candidate) and matched is None:
                        matched = secret
        if matched is None:
            return Rejected(f"no secret of {len(secrets)} made the signature in {self.header}")
        return Verified(matched.label, f"hmac-{self.algorithm}", stamp or _day(now_ms))

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
            values = [part.strip() for value in values for part in value.split(self.separator.encode())]
        prefix = self.prefix.encode()
        found = [value[len(prefix) :] for value in values if value.startswith(prefix)]
        return found or Rejected(f"{self.header} does not begin with {self.prefix!r}")

    def _signed(self, headers: Headers, body: bytes, now_ms: int) -> tuple[bytes, str | None] | Rejected:
        """The bytes that the sender signed, and the signed time when it is part of them."""
        parts: dict[str, bytes] = {"body": body}
        stamp: str | None = None
        for name, header in (("timestamp", self.timestamp_header), ("id", self.id_header)):
            if f"{{{name}}}" not in self.signed:
                continue
            values = headers.all(header) if header else []
            if len(set(values)) != 1 or not values[0]:
                return Rejected(f"expected one value in {header}, which is signed")
            parts[name] = values[0]
        if "timestamp" in parts:
            if not _STAMP.fullmatch(parts["timestamp"]):
                return Rejected(f"{self.timestamp_header} is no whole number of seconds")
            number = int(parts["timestamp"])
            at_ms = number if number >= _MS_FROM else number * 1000
            if abs(now_ms - at_ms) > self.tolerance_s * 1000:
                return Rejected(f"{self.timestamp_header} lies {(now_ms - at_ms) // 1000} s from now")
            stamp = str(number)
        # Split, not replaced: a body that holds "{timestamp}" must stay as it is.
        pieces = _FIELD.split(self.signed)
        content = b"".join(parts[piece] if index % 2 else piece.encode() for index, piece in enumerate(pieces))
        return content, stamp

    def _expected(self, secret: bytes, content: bytes) -> tuple[bytes, ...]:
        """The signature as this scheme writes it; hex in either case, but never mixed."""
        digest = hmac.digest(secret, content, self.algorithm)
        if self.encoding == "base64":
            return (base64.b64encode(digest),)
        return (digest.hex().encode(), digest.hex().upper().encode())


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
        # Digests have one length, so the comparison tells nothing of the secret's.
        given = hashlib.sha256(values[0][len(prefix) :].strip(b" \t")).digest()
        matched: Secret | None = None
        for secret in secrets:
            if hmac.compare_digest(hashlib.sha256(secret.value).digest(), given) and matched is None:
                matched = secret
        if matched is None:
            return Rejected(f"no secret of {len(secrets)} is the one in {self.header}")
        return Verified(matched.label, self.how, _day(now_ms))


def bearer() -> Token:
    """`Authorization: Bearer SECRET`."""
    return Token("authorization", "Bearer ", "bearer")


@dataclass(frozen=True, slots=True)
class Unsigned:
    """No proof at all: for a source that was made insecure on purpose, and stays on the loopback."""

    @property
    def names(self) -> tuple[str, ...]:
        """None."""
        return ()

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Let everything in."""
        return Verified("nobody", "none", _day(now_ms))
