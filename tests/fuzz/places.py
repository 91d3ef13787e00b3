"""Where the fuzzer posts to: a source of every provider and of every generic scheme, and a daemon that serves them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from postroom.sources.samples import Sample, kinds, sample
from postroom.sources.scheme import Signing
from postroom.sources.settings import build_sources
from postroom.sources.source import Source
from postroom.sources.table import SENDERS
from tests.sources.signing import SECRET, secret_for

OLDER: Final = "whsec_b2xkZXIgYW5kIG9uIGl0cyB3YXkgb3V0IQ=="
SIGNED: Final = {
    "scheme": "hmac",
    "header": "X-Mac",
    "algorithm": "sha512",
    "encoding": "base64",
    "signed": "{id}:{timestamp}:{body}",
    "timestamp_header": "X-Time",
    "id_header": "X-Id",
}
RULE: Final = {
    "name": "all",
    "match": {"kind": "*", "author": ["*", "a[b"], "label": "*"},
    "title": "{repository}#{number} {title} {branch} {event_title}",
    "key": "{source}:{repository}:{number}:{item}:{delivery}",
    "assignee": "alice",
    "delay_s": 1,
    "continue": True,
}
_PRESETS: Final = ("github", "gitlab", "gitea", "forgejo", "slack", "linear", "sentry", "pagerduty")


def _tables() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for provider in SENDERS:
        table = {"name": provider, "provider": provider, "secrets": [OLDER, secret_for(provider)]}
        if provider in _PRESETS:
            table["preset"] = provider
        made.append({**table, "queue": "inbox", "ignore_authors": ["*[[]bot]"]})
    generic = {"provider": "generic", "secrets": [SECRET], "queue": "q"}
    made += [
        {"name": "stamped", **generic, **SIGNED, "rule": [RULE]},
        {"name": "bearer", **generic, "scheme": "bearer", "id_pointer": "/id"},
        {"name": "token", **generic, "scheme": "token", "header": "X-Token", "rule": [RULE]},
        {"name": "address", **generic, "query_token": "t"},
        {"name": "open", "provider": "generic", "insecure": True, "queue": "q", "rule": [RULE]},
        {"name": "clear", "provider": "gitlab", "secrets": [SECRET], "queue": "q", "preset": "gitlab"},
        {"name": "small", "provider": "github", "secrets": [SECRET], "queue": "q", "max_bytes": 1024},
    ]
    return made


TABLES: Final = _tables()
SOURCES: Final[Mapping[str, Source]] = build_sources(TABLES, {}, Path()).by_name


def settings() -> str:
    """The tables as a settings file."""
    return "\n".join(_written(table) for table in TABLES)


def _written(table: Mapping[str, Any]) -> str:
    lines = ["[[source]]", *(f"{key} = {json.dumps(value)}" for key, value in table.items() if key != "rule")]
    for rule in table.get("rule", []):
        lines += ["[[source.rule]]", *(f"{key} = {_inline(value)}" for key, value in rule.items())]
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


def proof(source: Source, body: bytes, now_ms: int, id_: str) -> Signing:
    """What a sender that knows the secret adds to a body; nothing where the source asks for none."""
    if not source.secrets:
        return Signing()
    return source.sender.scheme.sign(source.secrets[-1], body, now_ms, id_)


@lru_cache(maxsize=2 * len(TABLES))
def samples(name: str, now_ms: int) -> tuple[Sample, ...]:
    """Every sample of a source's provider, without a proof."""
    source = SOURCES[name]
    return tuple(sample(source.provider, kind, now_ms, None, "d-0", source.sender) for kind in kinds(source.provider))
