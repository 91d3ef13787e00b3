"""`postroom event` and `postroom trace`: what came in, and the one story of an id."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from postroom.doors.cli.asking import AsJson, Cursor, Data, Limit, asking, given, usage
from postroom.doors.cli.plain import Verbs
from postroom.doors.cli.table import block, fields, line, note, short_time, table, tell
from postroom.text import printable

app = Verbs("See the events that came in.")

State = Literal["routed", "ignored", "unparsed", "held"]


@app.command("list")
def list_events(
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only from this source.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only of this kind.")] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List events, newest first, without their bodies."""
    query = given(source=source, kind=kind, state=state, cursor=cursor, limit=limit)
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/events", query=query)
    tell(answer, as_json, _show_list)


@app.command("show")
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="The event's whole id, ev_...")],
    raw: Annotated[bool, typer.Option("--raw", help="Only the body's bytes, as they were signed.")] = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Show an event whole: how it was verified, what it led to, headers and body."""
    if raw and as_json:
        raise usage("give --raw or --json, not both", "--raw")
    path = f"/v1/events/{_segment(id)}"
    with asking(as_json, data) as daemon:
        if raw:
            _write_raw(daemon.raw(f"{path}/raw"))
            return
        answer = daemon.ask("GET", path)
    tell(answer, as_json, _show_whole)


def trace(
    id: Annotated[str, typer.Argument(metavar="ID", help="The whole id of an event or a todo.")],
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Tell the one story of an event or a todo, step by step."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", f"/v1/trace/{_segment(id)}")
    tell(answer, as_json, _show_trace)


def _segment(id: str) -> str:
    from postroom.doors.cli.connection import segment

    if not id:
        raise usage("an empty id names nothing", "ID")
    return segment(id)


def _write_raw(body: bytes) -> None:
    # A body is a stranger's: a file gets it byte for byte, a terminal only what it can print.
    if not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
        return
    for text in body.decode("utf-8", "replace").split("\n"):
        print(printable(text))


def _show_list(answer: Mapping[str, Any]) -> None:
    table(
        ("id", "source", "kind", "state", "times", "received", "title"),
        [
            (
                event["id"],
                event["source"],
                _kind(event),
                event["state"],
                event["deliveries"],
                short_time(event["received_at"]),
                event["title"],
            )
            for event in answer["events"]
        ],
    )
    if answer.get("next_cursor"):
        note(f"more: --cursor {answer['next_cursor']}")


def _kind(event: Mapping[str, Any]) -> str:
    return f"{event['kind']}.{event['action']}" if event.get("action") else str(event["kind"])


def _show_whole(answer: Mapping[str, Any]) -> None:
    event = answer["event"]
    rest = ("provider", "verification", "reason", "delivery_key", "received_at", "body_bytes")
    fields(
        [
            ("id", event["id"]),
            ("title", event["title"]),
            ("source", event["source"]),
            ("kind", _kind(event)),
            ("state", event["state"]),
            ("deliveries", event["deliveries"]),
            *((name, event.get(name)) for name in rest),
        ]
    )
    todos = event.get("todos") or answer.get("todos")
    if todos:
        line()
        table(
            ("todo", "queue", "rule", "new"),
            [(link["todo_id"], link["queue"], link["rule"], link["created"]) for link in todos],
        )
        line()
    block("headers", event.get("headers"))
    block("body", event.get("body"))


def _show_trace(answer: Mapping[str, Any]) -> None:
    story = answer.get("trace", answer)
    table(
        ("at", "what", "id", "detail"),
        [(step["at"], step["what"], step["id"], step.get("detail")) for step in story["steps"]],
    )
