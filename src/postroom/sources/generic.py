"""Generic: whatever can sign its body, or knows a token: CI scripts, home-made senders, products without a file here."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from postroom.facts import Facts
from postroom.sources.headers import Headers
from postroom.sources.options import Options
from postroom.sources.scheme import ALGORITHMS, ENCODINGS, Hmac, QueryToken, Scheme, Token, bearer
from postroom.sources.source import Reading, Sender
from postroom.sources.value import items, pointed, whole, words

KEY_HEADERS = ("idempotency-key", "x-idempotency-key")
KIND_HEADERS = ("x-event", "x-event-type")

_FIELDS = re.compile(r"\{([^{}]*)\}")
_POINTER = re.compile(r"(/([^~/]|~[01])*)+")
_PARAMETER = re.compile(r"[A-Za-z0-9_.~-]{1,64}")


def make(options: Options) -> Sender:
    """The sender that the options describe: scheme hmac, bearer, token or query. Raises Misconfigured.

    `query_token` names a parameter of the address that may hold the secret, alone or beside bearer or token.
    """
    id_header = options.header("id_header")
    parameter = _parameter(options)
    kind = options.choice("scheme", ("hmac", "bearer", "token", "query"), "query" if parameter else "hmac")
    scheme: Scheme
    if kind == "hmac":
        if parameter is not None:
            raise options.wrong("query_token", "expected none beside scheme hmac: it would prove less than a signature")
        scheme = _hmac(options, id_header)
    elif kind == "query":
        if parameter is None:
            raise options.wrong("query_token", "expected the name of the query parameter that holds the secret")
        scheme = QueryToken(parameter)
    else:
        token = _token(options) if kind == "token" else bearer()
        scheme = QueryToken(parameter, token) if parameter is not None else token
    return Sender(
        provider="generic",
        scheme=scheme,
        describe=partial(describe, pointer=_pointer(options)),
        id_headers=(id_header, *KEY_HEADERS) if id_header else KEY_HEADERS,
        once=KIND_HEADERS,
    )


def _token(options: Options) -> Token:
    header = options.header("header")
    if header is None:
        raise options.wrong("header", "expected the name of the header that holds the token")
    return Token(header, options.text("prefix") or "")


def _parameter(options: Options) -> str | None:
    name = options.text("query_token")
    if name is not None and not _PARAMETER.fullmatch(name):
        raise options.wrong(
            "query_token", "expected the name of a query parameter such as token, not the secret itself"
        )
    return name


def _pointer(options: Options) -> tuple[str, ...]:
    pointer = options.text("id_pointer")
    if pointer is None:
        return ()
    if not _POINTER.fullmatch(pointer):
        raise options.wrong("id_pointer", f"expected a JSON pointer such as /delivery/id, got {pointer!r:.80}")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/"))


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
        tolerance_s=options.tolerance(),
    )


def describe(headers: Headers, data: Any, *, pointer: tuple[str, ...] = ()) -> Reading:
    """The kind from a header where it is told there, the rest from the body; pointer: where the body tells the id."""
    kind = next((found for name in KIND_HEADERS if (found := headers.text(name, 128)) is not None), None)
    return read(kind, data, pointed(data, pointer) if pointer else None)


def read(kind: str | None, data: Any, key: str | None = None) -> Reading:
    """Kind, action and facts under the plain names, where an object has them; any other JSON value is an event too."""
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
    return Reading(kind, title, words(data, "action"), facts, key=key)
