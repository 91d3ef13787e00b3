"""Samples: a realistic delivery of each provider, signed as its sender would sign it, to try a source with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from postroom.errors import Invalid
from postroom.sources.body import FORM
from postroom.sources.options import Options
from postroom.sources.sample_bodies import BODIES
from postroom.sources.sample_moment import Moment
from postroom.sources.scheme import Secret, Signing
from postroom.sources.source import Sender
from postroom.sources.table import SENDERS
from postroom.text import dump_json

# What Slack posts as a form: a command's fields, and an interaction's JSON in one field.
_FIELDS: Final = "command"
_PAYLOAD: Final = "block_actions"


@dataclass(frozen=True, slots=True)
class Sample:
    """A request to post to a source: header lines, body, and for a token in the address the query."""

    headers: tuple[tuple[str, str], ...]
    body: bytes
    query: str = ""


def kinds(provider: str) -> tuple[str, ...]:
    """The kinds there are samples of, the most telling first. Raises Invalid for a provider that is not known."""
    if provider not in BODIES:
        raise Invalid(f"provider {provider[:64]!r} is expected to be one of {', '.join(BODIES)}", field="provider")
    return tuple(BODIES[provider](Moment(0, "")))


def sample(
    provider: str,
    kind: str | None,
    now_ms: int,
    secret: Secret | None,
    id_: str,
    sender: Sender | None = None,
) -> Sample:
    """A delivery of this kind (None: the first) made at now_ms under a secret. Raises Invalid naming the kinds there are.

    id_: the delivery id, from which the body's own ids and numbers follow. sender: a source's own, where its options
    change how it is signed; secret None: no signature, for an insecure source.
    """
    known = kinds(provider)
    kind = known[0] if kind is None else kind
    if kind not in known:
        raise Invalid(f"kind {kind[:64]!r} is expected to be one of {', '.join(known)}", field="kind")
    told, value = BODIES[provider](Moment(now_ms, id_))[kind]
    media, body = _written(provider, kind, value)
    made = SENDERS[provider](Options("sample", {})) if sender is None else sender
    signing = Signing() if secret is None else made.scheme.sign(secret, body, now_ms, id_)
    lines = {"content-type": media, **told, **dict(signing.headers)}
    for name in made.id_headers[:1]:
        lines.setdefault(name, id_)
    return Sample(tuple(lines.items()), body, signing.query)


def _written(provider: str, kind: str, value: dict[str, Any]) -> tuple[str, bytes]:
    """The body's media type and bytes."""
    if provider == "slack" and kind == _FIELDS:
        return FORM, urlencode(value).encode()
    if provider == "slack" and kind == _PAYLOAD:
        return FORM, urlencode({"payload": dump_json(value)}).encode()
    return "application/json", dump_json(value).encode()
