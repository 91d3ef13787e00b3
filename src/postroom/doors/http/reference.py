"""The reference page of the HTTP door, made from the route table: `python -m postroom.doors.http.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from postroom.doors.http.errors import STATUS
from postroom.doors.http.openapi import KEY_HEADER, SHAPES, plain, refusals_of
from postroom.doors.http.route import Route, Schema, Who
from postroom.doors.http.routes import route_table
from postroom.errors import Misconfigured, PostroomError

_HOOKS = """
## Webhooks

### POST /hooks/{source}

Take in a delivery of a source that the settings name. It is proved by its signature, not by a token, and any `Host` may
be asked for it. The body is of at most 5 MiB and there within 30 s; under `Content-Encoding: gzip` it may be signed as
it was before or after it was compressed, is at most 5 MiB in either form, and is kept inflated.

Answers 202 `{event_id, duplicate, todos: EventTodo[]}` once the event and its todos are committed; the same delivery
again waits for the first and is a `duplicate`. The same bytes under another id that nobody signed are taken in as well,
and marked `suspected_replay`. A ping is recorded and makes no work; a body that is signed but cannot be
read is kept as `unparsed`. Refuses with 401 Unauthorized (the same for every reason; the log has it), 404 Not Found, 405
Method Not Allowed, 408 Request Timeout, 413 Request Entity Too Large, 415 Unsupported Media Type and, with
`Retry-After`, 503 Service Unavailable.
"""

_SWARM = """
## Swarm

The two calls of the opencode swarm, in its own words: times are milliseconds, an error is `{"error": "text"}` with the
statuses above, null is as absent, and what is not known is passed over. The token is told as everywhere.

### POST /swarm/send

Send a message: `from`, `payload`, one of `to` and `channel`, and `kind`, `priority`, `reply_to` and `msg_id` where they
are given, bounded as in `POST /v1/messages`.

Answers 202 `{accepted: true, msg_id}`. The same `msg_id` again is the first message; with other content it is a conflict.

### GET /swarm/inbox

Get what was handed off to `session`, in that order: after `since`, a message's id, and up to `limit` messages, 200 by
default and at the most. A `since` that is no such message is compared with the ids as text.

Answers 200 `{messages}`, each `{msg_id, from, to, channel, kind, priority, reply_to, payload, created_at, handed_off_at}`.
What waits or failed is not there: `GET /v1/messages` has it.
"""

_OWN = frozenset({404, 409})
"""The refusals that depend on the route; the others are told once, at the top."""

_HEAD = f"""# HTTP

<!-- Made from the route table by `python -m postroom.doors.http.reference`; a test keeps the two alike. -->

Everything is JSON under `/v1`, on a loopback port (7373) and on a Unix socket. `GET /v1/openapi.json` gives the same
as an OpenAPI 3.1 document.

- **Who asks** is told by `Authorization: Bearer tk_…`. On the Unix socket its own user needs no token and is admin.
- **Times** are RFC 3339 in UTC with milliseconds, **durations** seconds, **ids** strings.
- **Bodies** are strict: a field that is not known, a key that stands twice, NaN, text with NUL or a lone surrogate and
  more than 64 levels are refused, and the error names the field (`todos[3].priority`). The words of an ending (`error`,
  `note`, `result`) are cleaned and cut instead.
- **Lists** are newest first. `limit` is 50 by default and never more than 200; `next_cursor` leads to the next page and
  is null on the last.
- **`lease_id`** is in the answer to a claim and shown to its holder alone. Ending a claim asks for it; the same ending
  again gives the same answer, `replayed: true`.
- **`{KEY_HEADER}`**, where it is listed, makes a request safe to repeat: for 24 h the same request under the same key
  is done once, and another one under it is a conflict.
- **`Host`** is loopback or one of `[http] hosts`, and an `Origin`, when there is one, is that same host.
"""


def page(routes: Sequence[Route]) -> str:
    """The page as Markdown."""
    parts = [_HEAD, *_errors()]
    for noun in dict.fromkeys(route.noun for route in routes):
        parts.append(f"\n## {noun.capitalize()}\n")
        for route in routes:
            if route.noun == noun:
                parts += _route(route)
    parts += [_SWARM, _HOOKS]
    parts.append("\n## Shapes\n")
    for name, schema in SHAPES.items():
        if name != "Error":
            parts.append(f"\n**{name}**: {', '.join(_answered(schema))}.\n")
    return "".join(parts)


def _errors() -> Iterator[str]:
    yield '\n## Errors\n\nEvery error is `{"error": {"code", "message", "field"?, …}}`.\n\n'
    yield "| status | code | meaning |\n| --- | --- | --- |\n"
    for kind, status in STATUS.items():
        if kind not in {PostroomError, Misconfigured}:
            yield f"| {int(status)} | `{kind.code}` | {(kind.__doc__ or '').strip()} |\n"
    yield "| 500 | `internal` | A fault of the daemon; its log has the trace, the answer has not. |\n"
    yield (
        "\nAny route may answer these; 404 and 409 are named where they can come. Three more tell of the request itself, "
        "with the code `invalid`: 405 (the method is not for this path; `Allow` has those that are), 408 (the head "
        "did not arrive within 10 s, or the body within 30 s) and 415 (the body is encoded). A head over 64 KiB is "
        "`too_large` with 431. 429 and 503 have `Retry-After`.\n"
    )


def _route(route: Route) -> Iterator[str]:
    yield f"\n### {route.method} {route.shown_path}\n\n{route.summary}"
    yield {Who.PUBLIC: " No token is needed.", Who.AGENT: "", Who.ADMIN: " For admins."}[route.who]
    yield "\n"
    asked = route.body or route.query
    if asked is not None:
        schema = plain(asked.model_json_schema())
        yield from _fields(schema, schema.get("$defs", {}), "query" if route.query else "body")
    if route.keyed:
        yield f"\nTakes `{KEY_HEADER}`.\n"
    each = "a stream of " if route.streams else ""
    answers = [f"{status} {each}{_shape(schema)}" for status, schema in route.replies.items()]
    refusals = ", ".join(f"{status} {HTTPStatus(status).phrase}" for status in refusals_of(route) if status in _OWN)
    yield f"\nAnswers {'; '.join(answers)}." + (f" Refuses with {refusals}.\n" if refusals else "\n")


def _fields(schema: Schema, models: Mapping[str, Schema], where: str, prefix: str = "") -> Iterator[str]:
    rows = list(_rows(schema, models, prefix))
    if not rows:
        return
    yield f"\n| {where} | type | |\n| --- | --- | --- |\n"
    for name, kind, said in rows:
        yield f"| `{name}` | {kind} | {said} |\n"


def _rows(schema: Schema, models: Mapping[str, Schema], prefix: str) -> Iterator[tuple[str, str, str]]:
    needed = schema.get("required", ())
    for name, value in schema["properties"].items():
        options: list[Schema] = value.get("anyOf", [value])
        told: Schema = next(one for one in options if one.get("type") != "null")
        inner = _model_of(told, models)
        kind = _kind(told) + ("" if name in needed else "?")
        said = str(told.get("description", value.get("description", ""))) + _bounds(told)
        yield f"{prefix}{name}", kind, said.strip()
        if inner is not None:
            mark = "[]" if told.get("type") == "array" else ""
            yield from _rows(inner, models, f"{prefix}{name}{mark}.")


def _model_of(schema: Schema, models: Mapping[str, Schema]) -> Schema | None:
    target = schema.get("items", schema).get("$ref") if isinstance(schema.get("items", schema), dict) else None
    return None if target is None else models[str(target).rsplit("/", 1)[-1]]


def _kind(schema: Schema) -> str:
    if "$ref" in schema:
        return "object"
    if schema.get("type") == "array":
        return "list"
    return {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}.get(
        str(schema.get("type")), "JSON"
    )


def _bounds(schema: Schema) -> str:
    if "enum" in schema:
        return f" One of {', '.join(f'`{word}`' for word in schema['enum'])}."
    if "minimum" in schema and "maximum" in schema:
        return f" {schema['minimum']:.12g} to {schema['maximum']:.12g}."
    if "maxItems" in schema:
        return f" {schema.get('minItems', 0)} to {schema['maxItems']}."
    if "maxLength" in schema:
        return f" {schema.get('minLength', 0)} to {schema['maxLength']} characters."
    if "pattern" in schema:
        return f" `{str(schema['pattern']).replace('|', chr(92) + '|')}`."
    return ""


def _shape(schema: Schema | None) -> str:
    if schema is None:
        return "the bytes"
    if "properties" not in schema:
        return "an object"
    return f"`{{{', '.join(_answered(schema)).replace('`', '')}}}`"


def _answered(schema: Schema) -> list[str]:
    needed = schema.get("required", ())
    shown: list[str] = []
    for name, value in schema["properties"].items():
        mark = "" if name in needed else "?"
        shown.append(f"`{name}{mark}`{_of(value)}")
    return shown


def _of(schema: Any) -> str:
    """What a field of an answer holds, where its name does not say it."""
    many = schema.get("type") == "array"
    target = (schema["items"] if many else schema).get("$ref", "")
    name = str(target).rsplit("/", 1)[-1]
    if name:
        return f": {name}[]" if many else f": {name}"
    return ""


if __name__ == "__main__":
    sys.stdout.write(page(route_table()))
