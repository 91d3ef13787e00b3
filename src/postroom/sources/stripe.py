"""Stripe: `t=...,v1=...` in one header over `t.body`; the key is the literal `whsec_...` text, not base64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from postroom.facts import Facts
from postroom.sources.headers import Headers
from postroom.sources.options import Options
from postroom.sources.scheme import DEFAULT_TOLERANCE_S, Rejected, Secret, Signing, Verified, digest, fresh, maker
from postroom.sources.source import Reading, Sender
from postroom.sources.value import at, words

HEADER = "stripe-signature"


@dataclass(frozen=True, slots=True)
class Elements:
    """A header of `name=value` elements: one `t`, and a `v1` for each secret that is in use; other names are passed over."""

    tolerance_s: int = DEFAULT_TOLERANCE_S

    @property
    def names(self) -> tuple[str, ...]:
        """The header."""
        return (HEADER,)

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Compare every v1 with what each secret makes of time and body."""
        times: set[bytes] = set()
        given: list[bytes] = []
        for line in headers.all(HEADER):
            for element in line.split(b","):
                name, mark, value = element.strip(b" \t").partition(b"=")
                if mark and name == b"t":
                    times.add(value)
                elif mark and name == b"v1":
                    given.append(value)
        if len(times) != 1 or not given:
            return Rejected(f"expected {HEADER} with one t and at least one v1")
        raw = times.pop()
        stamp = fresh(raw, f"t in {HEADER}", self.tolerance_s, now_ms)
        if isinstance(stamp, Rejected):
            return stamp
        matched = maker(secrets, raw + b"." + body, given)
        if matched is None:
            return Rejected(f"no secret of {len(secrets)} made a v1 in {HEADER}")
        return Verified(matched.label, "hmac-sha256", stamp, timed=True)

    def sign(self, secret: Secret, body: bytes, now_ms: int, id_: str) -> Signing:
        """The header with t and one v1."""
        stamp = str(now_ms // 1000)
        made = digest(secret.key, stamp.encode() + b"." + body).decode()
        return Signing(((HEADER, f"t={stamp},v1={made}"),))


def make(options: Options) -> Sender:
    """The sender; `tolerance_s` is how far the signed time may lie from now."""
    return Sender(provider="stripe", scheme=Elements(options.tolerance()), describe=describe)


def describe(headers: Headers, data: Any) -> Reading:
    """The kind is the event's type, such as `invoice.payment_failed`; `evt_...` is the key."""
    if not isinstance(data, dict) or words(data, "type") is None:
        return Reading("unknown", "stripe: unknown", unparsed="expected a JSON object with a type")
    kind = words(data, "type") or "unknown"
    thing = at(data, "data", "object") or at(data, "related_object")
    live = data.get("livemode") is not False
    id_ = words(data, "id")
    facts = Facts(
        repository=words(data, "account") or words(data, "context"),
        title=words(thing, "description") or words(thing, "number") or words(thing, "id"),
        url=f"https://dashboard.stripe.com/{'' if live else 'test/'}events/{id_}" if id_ else None,
        labels=() if live else ("test",),
        outcome=words(thing, "status"),
        item=words(thing, "id"),
    )
    return Reading(kind, f"stripe: {kind}{f': {facts.title}' if facts.title else ''}", None, facts, key=id_)
