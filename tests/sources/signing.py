"""Requests as senders make them: headers and bodies, signed."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from postroom.event import Incoming
from postroom.sources.samples import sample
from postroom.sources.scheme import Rejected
from postroom.sources.settings import build_sources
from postroom.sources.source import Source

SECRET = "It's a Secret to Everybody"
NOW = 1_700_000_000_000
PAYLOADS = Path(__file__).parents[1] / "payloads/github"

Pairs = list[tuple[bytes, bytes]]


def hex_of(body: bytes, secret: str = SECRET) -> bytes:
    """The lower-case HMAC-SHA-256 of a body."""
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest().encode()


def github_headers(body: bytes, kind: str = "issues", id_: str = "d1", secret: str = SECRET, **more: str) -> Pairs:
    """GitHub's headers over a body; `content_type` and the like replace or add."""
    pairs = {
        "content-type": "application/json",
        "x-github-event": kind,
        "x-github-delivery": id_,
        "x-hub-signature-256": "sha256=" + hex_of(body, secret).decode(),
    }
    pairs |= {name.replace("_", "-"): value for name, value in more.items()}
    return [(name.encode(), value.encode("latin-1")) for name, value in pairs.items()]


def one(table: Mapping[str, Any], environment: Mapping[str, str] | None = None, folder: Path = Path()) -> Source:
    """The source that one table describes."""
    name = table["name"]
    assert isinstance(name, str)
    return build_sources([table], environment or {}, folder).by_name[name]


def github(**more: Any) -> Source:
    """A source of GitHub's under the usual secret."""
    return one({"name": "gh", "provider": "github", "secrets": [SECRET], "queue": "inbox", **more})


def accepted(source: Source, headers: Pairs, body: bytes, now_ms: int = NOW) -> Incoming:
    """What the source makes of a request that it accepts."""
    got = source.receive(headers, body, now_ms)
    assert isinstance(got, Incoming), got
    return got


def refused(source: Source, headers: Pairs, body: bytes, now_ms: int = NOW) -> str:
    """Why the source refuses a request."""
    got = source.receive(headers, body, now_ms)
    assert isinstance(got, Rejected), got
    return got.reason


STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def secret_for(provider: str) -> str:
    """A secret as this provider gives one."""
    return STANDARD_SECRET if provider in {"standard", "gitlab"} else SECRET


def source_of(provider: str, **more: Any) -> Source:
    """A source of a provider under its usual secret, with its preset where there is one."""
    table = {"name": provider, "provider": provider, "secrets": [secret_for(provider)], "queue": "inbox", **more}
    return one({key: value for key, value in table.items() if value is not None})


def sent(provider: str, kind: str | None = None, id_: str = "d-1", now_ms: int = NOW) -> tuple[Pairs, bytes]:
    """A sample of a provider as header lines and body."""
    source = source_of(provider)
    made = sample(provider, kind, now_ms, source.secrets[0], id_)
    return [(name.encode(), value.encode("latin-1")) for name, value in made.headers], made.body


def with_header(pairs: Pairs, name: str, value: bytes | None) -> Pairs:
    """The lines with one of them changed, or taken away."""
    kept = [(key, old) for key, old in pairs if key.lower() != name.encode()]
    return kept if value is None else [*kept, (name.encode(), value)]
