"""The page `docs/mcp.md`, made from the served tools: `python -m postroom.doors.mcp.page > docs/mcp.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from postroom import errors
from postroom.doors.mcp.greeting import INSTRUCTIONS
from postroom.doors.mcp.http import MAX_BODY_BYTES
from postroom.doors.mcp.mail_tools import LETTER, RECEIPT
from postroom.doors.mcp.notices import MOST_PLACES, PAUSE_S
from postroom.doors.mcp.resources import INBOX_FIELDS, QUEUE_FIELDS, TEMPLATES
from postroom.doors.mcp.results import MAX_RESULT_BYTES
from postroom.doors.mcp.spec import PART, Spec
from postroom.doors.mcp.tools import LINE, TOOLS, WHOLE

_REFUSALS: tuple[type[errors.PostroomError], ...] = (
    errors.Invalid,
    errors.NotFound,
    errors.Conflict,
    errors.TooLarge,
    errors.Forbidden,
    errors.Unauthenticated,
    errors.RateLimited,
    errors.Unavailable,
    errors.PostroomError,
)

_HEAD = f"""\
# The tools

<!-- Made by `python -m postroom.doors.mcp.page`; a test compares it with what is served. -->

A model reaches the queue and the post through MCP: `postroom mcp` speaks it on stdin and stdout, the daemon over
streamable HTTP at `/mcp` with `Authorization: Bearer tk_...`. Both speak revision 2026-07-28 and, to clients that begin
with `initialize`, the revisions up to 2025-11-25. No session is kept on HTTP: every POST stands alone, GET and DELETE
answer 405, a body over {MAX_BODY_BYTES // 1024 // 1024} MiB answers 413.

Who calls is told by the token alone; on stdio `--agent NAME` or `POSTROOM_AGENT` adds the worker's name that claims carry
beside it. A message's sender and an inbox are names that the token may speak as. A client that goes away while
`claim_next` waits takes its place in the line with it; one that goes while it claims gets the claim by its `claim_key`.

## Answers

Every answer is given twice: as `structuredContent`, and as the same JSON in one text block. Times are RFC 3339 in UTC with
milliseconds, durations are seconds, ids are text. Lists leave out what is null; a whole todo shows every field.

No answer is longer than {MAX_RESULT_BYTES // 1024} KiB as JSON in UTF-8, in each of its two forms. What does not fit is cut
and marked: `payload_truncated` and `result_truncated` say that the value is the beginning of its text, `history_truncated`
that older attempts or the ends of long notes are missing, `cut` names other fields. `rest` then says by field at which
offset the missing text begins, and `get_todo` with that `field` and `offset` gives it part by part: each `part` has its
`text` and a `next_offset`, null at the end. A letter's `rest` is the offset for `swarm_read` with its `id`; `who` goes on
at `next_offset`. `whole` says the same in words. A page of `list_todos` or `swarm_read` that would be longer ends sooner,
and `next_cursor` or `next_since` goes on from there. Integers beyond 2^53 - 1 are shown as text, because many clients would
round them; the parts have them as they are.

`lease_id` is shown in the answer to its own claim, and by `get_todo` to its holder.

## Errors

A refusal is a result with `isError: true`, never an error of the protocol, so that the model sees it:

```json
{{"error": {{"code": "invalid", "message": "title is missing; it is required", "field": "title", "hint": "..."}}}}
```

`field` names the argument; a conflict also says in what state the todo is. An unknown argument, a text where a number is
expected, or a number out of its range is `invalid`, and nothing is done.

| code | what to do |
| --- | --- |
"""

_RESOURCES = f"""
## Resources

What stands in a queue or an inbox can be read as a resource of type `application/json`, of {MAX_RESULT_BYTES // 1024} KiB at
most. `resources/list` gives the caller's own inbox and the queues its token may use; any other name goes into the
template, percent-encoded where it has to be. A queue exists by use: one that was never used is empty. What the token may
not see is not found, which is -32602 in revision 2026-07-28 and -32002 before; an address that is none is -32602. The
error's `data` has the `uri` and the error as tools show it.

A client can be told that a resource changed, and reads it again when it likes:

| client | on stdio | over HTTP |
| --- | --- | --- |
| 2026-07-28 | `subscriptions/listen` with `resourceSubscriptions` | the same: the answer to that POST is the stream |
| before | `resources/subscribe`, then `notifications/resources/updated` | none: there is no session to send it on |

The capability `resources.subscribe` says which it is. A notice names the address as it was asked for and nothing else. It is
sent at once, then at most every {PAUSE_S * 1000:.0f} ms an address, and the last change always has one after it. Where
something may have been missed, as after a restart of the daemon, there is a notice for every address. One stream or
connection follows {MOST_PLACES} addresses at most. A notice is a hint: the claim is the proof.
"""


def page() -> str:
    """The whole page."""
    return "".join(_parts())


def _parts() -> Iterator[str]:
    yield _HEAD
    for kind in _REFUSALS:
        yield f"| `{kind.code}` | {kind.hint} |\n"
    yield "\n## What a model is told\n\n```text\n" + INSTRUCTIONS + "```\n"
    yield "\n## Todos in answers\n"
    yield from _shape(LINE, {})
    yield from _shape(
        {**WHOLE, "description": WHOLE["description"] + " It has the fields of a line, and:"}, LINE["properties"]
    )
    yield "\n## Messages in answers\n"
    yield from _shape(LETTER, {})
    yield from _shape(RECEIPT, {})
    yield "\n## Parts in answers\n"
    yield from _shape(PART, {})
    yield from _resources()
    for spec in TOOLS:
        yield from _tool(spec)


def _resources() -> Iterator[str]:
    yield _RESOURCES
    for template, fields in zip(TEMPLATES, (QUEUE_FIELDS, INBOX_FIELDS), strict=True):
        yield f"\n### {template.uri}\n\n{template.description}\n\n| field | |\n| --- | --- |\n"
        for name, words in fields.items():
            yield f"| `{name}` | {words} |\n"


def _tool(spec: Spec) -> Iterator[str]:
    hints = ["changes nothing" if spec.read_only else f"changes {spec.changes}"]
    if spec.idempotent:
        hints.append("may be repeated")
    yield f"\n## {spec.name}\n\n{spec.title} ({', '.join(hints)}). {spec.description}\n\n"
    schema = spec.input_schema
    yield "| argument | type | default | |\n| --- | --- | --- | --- |\n"
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(field)
        yield f"| `{name}` | {_type(field)} | {default} | {field['description']} |\n"
    yield "\n| answer | type | |\n| --- | --- | --- |\n"
    answers = {name: field for name, field in spec.answers["properties"].items() if name != "error"}
    for name, field in answers.items():
        yield f"| `{name}` | {_type(field)} | {_told(field)} |\n"


def _shape(schema: Mapping[str, Any], besides: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n### {schema['title']}\n\n{schema['description']}\n\n| field | type | |\n| --- | --- | --- |\n"
    for name, field in schema["properties"].items():
        if name not in besides:
            always = "" if name in schema["required"] else " (may be missing)"
            yield f"| `{name}` | {_type(field)}{always} | {_told(field)} |\n"


def _told(field: Mapping[str, Any]) -> str:
    return str(field.get("description") or field.get("items", {}).get("description", ""))


def _default(field: Mapping[str, Any]) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = field.get("type", "any JSON")
    words = " or ".join(kind) if isinstance(kind, list) else str(field.get("title") or kind)
    if kind == "array":
        words = f"list of {field['items'].get('title') or field['items'].get('type', 'any JSON')}"
    for low, high, unit in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", ""),
    ):
        if high in field:
            words += f", {field.get(low, 0):g} to {field[high]:g}{unit}"
    return words


if __name__ == "__main__":
    sys.stdout.write(page())
