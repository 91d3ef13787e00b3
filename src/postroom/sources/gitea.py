"""Gitea and Forgejo: bare hex over the payload in their own headers; GitHub's, sent beside them, count for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote_plus, unquote_to_bytes

from postroom.sources import github
from postroom.sources.body import FORM
from postroom.sources.headers import Headers
from postroom.sources.mentions import mentions
from postroom.sources.options import Options
from postroom.sources.scheme import Hmac, Rejected, Secret, Signing, Verified
from postroom.sources.source import Reading, Sender
from postroom.sources.value import at, items, words

FIELD = b"payload="

_REVIEWS = {
    "pull_request_approved": "approved",
    "pull_request_rejected": "changes_requested",
    "pull_request_comment": "commented",
    "pull_request_review_approved": "approved",
    "pull_request_review_rejected": "changes_requested",
    "pull_request_review_comment": "commented",
}


@dataclass(frozen=True, slots=True)
class Payload:
    """The signature over the payload: the body, or for a form what stands in its one field, in the encoding that Go writes.

    headers: where it may stand, the first that is there counts.
    """

    headers: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The signature's headers."""
        return self.headers

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Prove the body; or the form's field, when the form holds nothing else and is written in one way alone."""
        header = next((name for name in self.headers if any(headers.all(name))), self.headers[0])
        scheme = Hmac(header)
        found = scheme.verify(secrets, headers, body, now_ms)
        if isinstance(found, Rejected) and (headers.text("content-type") or "").lower().startswith(FORM):
            value = body.removeprefix(FIELD)
            payload = unquote_to_bytes(value.replace(b"+", b" "))
            # A form that could be written otherwise would give one delivery many digests.
            if value != body and quote_plus(payload).encode() == value:
                return scheme.verify(secrets, headers, payload, now_ms)
        return found

    def sign(self, secret: Secret, body: bytes, now_ms: int, id_: str) -> Signing:
        """The header over a JSON body."""
        return Hmac(self.headers[0]).sign(secret, body, now_ms, id_)


def make(options: Options) -> Sender:
    """The sender for Gitea; it has no options of its own."""
    return _sender("gitea", ("gitea",))


def make_forgejo(options: Options) -> Sender:
    """The sender for Forgejo, whose older versions sign in Gitea's header alone."""
    return _sender("forgejo", ("forgejo", "gitea"))


def _sender(provider: str, families: tuple[str, ...]) -> Sender:
    def headers(what: str) -> tuple[str, ...]:
        return tuple(f"x-{family}-{what}" for family in families)

    kinds = headers("event")

    def describe(lines: Headers, data: Any) -> Reading:
        kind = next((found for name in kinds if (found := lines.text(name, 128)) is not None), "unknown")
        return read(kind, data)

    return Sender(
        provider=provider,
        scheme=Payload(headers("signature")),
        describe=describe,
        id_headers=headers("delivery"),
        once=kinds,
        form_field="payload",
    )


def read(kind: str, data: Any) -> Reading:
    """GitHub's reading of a body, and what these forges tell in another place."""
    reading = github.read(kind, data)
    if reading.unparsed is not None:
        return reading
    facts = reading.facts
    thing = at(data, "pull_request") or at(data, "issue")
    if kind in _REVIEWS and at(data, "review") is not None:
        text = at(data, "review", "content")
        facts = replace(
            facts,
            url=words(data, "pull_request", "html_url"),
            outcome=_REVIEWS[kind],
            target=words(data, "pull_request", "user", "login"),
            mentions=mentions(text, wide=True) if isinstance(text, str) else (),
        )
    elif kind == "issue_comment":
        text = at(data, "comment", "body")
        facts = replace(facts, mentions=mentions(text, wide=True) if isinstance(text, str) else ())
    elif reading.action == "assigned":
        people = [name for entry in items(thing, "assignees")[:100] if (name := words(entry, "login")) is not None]
        first = words(data, "assignee", "login") or words(thing, "assignee", "login")
        targets = tuple(dict.fromkeys([first, *people] if first else people))
        facts = replace(facts, target=targets[0] if targets else None, targets=targets if len(targets) > 1 else ())
    elif reading.action == "label_updated":
        facts = replace(facts, changed=("labels",))
    return replace(reading, facts=facts)
