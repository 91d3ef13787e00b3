"""Standard Webhooks, under its own header names and under Svix's: `id.timestamp.body`, keys in base64 after `whsec_`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from postroom.errors import Invalid
from postroom.sources import generic
from postroom.sources.headers import Headers
from postroom.sources.options import Options
from postroom.sources.scheme import DEFAULT_TOLERANCE_S, Hmac, Rejected, Secret, Signing, Verified
from postroom.sources.source import Reading, Sender
from postroom.sources.value import at, words

PREFIX: Final = "whsec_"
MIN_KEY: Final = 24
MAX_KEY: Final = 64


def key_of(value: str) -> bytes:
    """The signing key in a secret such as `whsec_MfKQ...`: the base64 after the prefix. Raises Invalid."""
    if value.startswith("whpk_"):
        raise Invalid("is a public key; expected a symmetric secret, which begins with whsec_")
    encoded = value.removeprefix(PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise Invalid(f"is no base64; expected {PREFIX} and the key in base64, as the sender shows it") from None
    if not key:
        raise Invalid(f"has no key; expected {PREFIX} and {MIN_KEY} to {MAX_KEY} bytes in base64")
    return key


@dataclass(frozen=True, slots=True)
class Standard:
    """The signature over id, time and body.

    families: the beginnings of the three header names; the first family whose signature is there counts. One header
    lists several signatures while a secret is changed. Those of other versions are passed over.
    """

    tolerance_s: int = DEFAULT_TOLERANCE_S
    families: tuple[str, ...] = ("webhook", "svix")

    @property
    def names(self) -> tuple[str, ...]:
        """The signatures' headers."""
        return tuple(f"{family}-signature" for family in self.families)

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Prove id, time and body together."""
        for family in self.families:
            if any(headers.all(f"{family}-signature")):
                return self._hmac(family).verify(secrets, headers, body, now_ms)
        return Rejected(f"no {' or '.join(self.names)} header")

    def sign(self, secret: Secret, body: bytes, now_ms: int, id_: str) -> Signing:
        """The three headers under the first name."""
        return self._hmac(self.families[0]).sign(secret, body, now_ms, id_)

    def _hmac(self, family: str) -> Hmac:
        return Hmac(
            header=f"{family}-signature",
            prefix="v1,",
            encoding="base64",
            signed="{id}.{timestamp}.{body}",
            separator=" ",
            timestamp_header=f"{family}-timestamp",
            id_header=f"{family}-id",
            tolerance_s=self.tolerance_s,
        )


def make(options: Options) -> Sender:
    """The sender; `tolerance_s` is how far the signed time may lie from now."""
    return Sender(provider="standard", scheme=Standard(options.tolerance()), describe=describe, key=key_of)


def describe(headers: Headers, data: Any) -> Reading:
    """Kind and facts under the plain names, looked for in `data` too, where the specification puts the payload."""
    inner = at(data, "data")
    kind = words(data, "type") or words(data, "event_type") or words(data, "eventType")
    told = {**inner, **data} if isinstance(data, dict) and isinstance(inner, dict) else data
    return generic.read(kind, told)
