"""Generic: whatever can sign its body, or knows a token: CI scripts, home-made senders, products without a file here."""

from __future__ import annotations

import re
from typing import Any

from postroom.facts import Facts
from postroom.sources.headers import Headers
from postroom.sources.options import Options
from postroom.sources.scheme import ALGORITHMS, DEFAULT_TOLERANCE_S, ENCODINGS, Hmac, Scheme, Token, bearer
from postroom.sources.source import Reading, Sender
from postroom.sources.value import items, whole, words

MAX_TOLERANCE_S = 7 * 24 * 3600
KEY_HEADERS = ("idempotency-key", "x-idempotency-key")
KIND_HEADERS = ("x-event", "x-event-type")

_FIELDS = re.compile(r"\{([^{}]*)\}")


def make(options: Options) -> Sender:
    """The sender that the options describe: scheme bearer, token or hmac. Raises Misconfigured."""
    id_header = options.header("id_header")
    kind = options.choice("scheme", ("hmac", "bearer", "token"), "hmac")
    scheme: Scheme
    if kind == "hmac":
        scheme = _hmac(options, id_header)
    elif kind == "token":
        header = options.header("header")
        if header is None:
            raise options.wrong("header", "expected the name of the header that holds the token")
        scheme = Token(header, options.text("prefix") or "")
    else:
        scheme = bearer()
    return Sender(
        provider="generic",
        scheme=scheme,
        describe=describe,
        id_headers=(id_header, *KEY_HEADERS) if id_header else KEY_HEADERS,
        once=KIND_HEADERS,
    )


def _hmac(options: Options, id_header: str | None) -> Hmac:
    signed = options.text("signed") or "{body}"
    fields = _FIELDS.findall(signed)
    wrong = [name for name in fields if name not in {"body", "timestamp", "id"}]
    if wrong or re.sub(_FIELDS, "", signed).strip("{}") != re.sub(_FIELDS, "", signed) or fields.count("body") != 1:
        raise options.wrong(
            "signed", "expected {body} once, and perhaps {timestamp} and {id}, as in {timestamp}.{body}"
        )
    timestamp_header = options.header("timestamp_header")
    if "timestamp" in fields and timestamp_header is None:
        raise options.wrong("timestamp_header", "expected the header that holds the {timestamp} of signed")
    if "timestamp" not in fields:
        for key in ("timestamp_header", "tolerance_s"):
            if options.has(key):
                raise options.wrong(key, "expected {timestamp} in signed: a time that is not signed proves nothing")
    if "id" in fields and id_header is None:
        raise options.wrong("id_header", "expected the header that holds the {id} of signed")
    return Hmac(
        header=options.header("header") or "x-signature",
        prefix=options.text("prefix") or "",
        algorithm=options.choice("algorithm", ALGORITHMS) or "sha256",
        encoding=options.choice("encoding", ENCODINGS) or "hex",
        signed=signed,
        timestamp_header=timestamp_header,
        id_header=id_header,
        tolerance_s=options.number("tolerance_s", 1, MAX_TOLERANCE_S, DEFAULT_TOLERANCE_S),
    )


def describe(headers: Headers, data: Any) -> Reading:
    """Kind, action and facts under the plain names, where an object has them; any other JSON value is an event too."""
    kind = next((found for name in KIND_HEADERS if (found := headers.text(name, 128)) is not None), None)
    kind = kind or words(data, "kind") or words(data, "type") or words(data, "event") or "event"
    number = whole(data, "number")
    facts = Facts(
        repository=words(data, "repository") or words(data, "repository", "full_name"),
        number=number,
        title=words(data, "title") or words(data, "subject") or words(data, "message") or words(data, "name"),
        url=words(data, "url") or words(data, "html_url"),
        author=words(data, "author") or words(data, "user"),
        labels=tuple(label for label in items(data, "labels")[:100] if isinstance(label, str)),
        branch=words(data, "branch"),
        ref=words(data, "sha") or words(data, "ref"),
        outcome=words(data, "outcome") or words(data, "status") or words(data, "conclusion"),
    )
    place = f"{facts.repository or ''}{f'#{number}' if number is not None else ''}"
    title = ": ".join(part for part in (place, facts.title or kind) if part)
    return Reading(kind, title, words(data, "action"), facts)
