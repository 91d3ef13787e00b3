"""`postroom event` and `postroom trace`: what came in, and the one story of an id."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroom.doors.cli.asking import REFUSED, AsJson, Cursor, Data, Limit, RequestId, asking, given, usage
from postroom.doors.cli.plain import Verbs, seconds
from postroom.doors.cli.table import block, fields, line, note, print_json, short_time, table, tell
from postroom.text import printable

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

app = Verbs("See the events that came in, and sort them again.")

State = Literal["routed", "ignored", "unparsed", "held"]


def _moment(word: str) -> str:
    """A time: as it is, or as long ago as a duration says. Raises ValueError."""
    try:
        ago = seconds(word)
    except ValueError:
        try:
            aware = datetime.fromisoformat(word).tzinfo is not None
        except ValueError:
            aware = False
        if not aware:
            raise ValueError(f"{word!r} is no time; expected 2h, 3d or 2026-01-31T12:00:00Z") from None
        return word
    return datetime.fromtimestamp(time.time() - ago, UTC).isoformat(timespec="milliseconds")


Id = Annotated[str, typer.Argument(metavar="ID", help="The event's whole id, ev_...")]
Source = Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only from this source.")]
Kind = Annotated[str | None, typer.Option("--kind", help="Only of this kind.")]
Action = Annotated[str | None, typer.Option("--action", help="Only with this action.")]
InState = Annotated[State | None, typer.Option("--state", help="Only in this state.")]
Since = Annotated[
    str | None, typer.Option("--since", parser=_moment, metavar="TIME", help="From then on: 2h ago, or a time.")
]
Until = Annotated[str | None, typer.Option("--until", parser=_moment, metavar="TIME", help="Only before then.")]


@app.command("list")
def list_events(
    source: Source = None,
    kind: Kind = None,
    action: Action = None,
    state: InState = None,
    since: Since = None,
    until: Until = None,
    suspected: Annotated[
        bool, typer.Option("--suspected", help="Only those whose bytes had come before under another id.")
    ] = False,
    cursor: Cursor = None,
    limit: Limit = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List events, newest first, without their bodies."""
    query = given(source=source, kind=kind, action=action, state=state, since=since, until=until)
    query |= given(suspected_replay="true" if suspected else None, cursor=cursor, limit=limit)
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/events", query=query)
    tell(answer, as_json, _show_list)


@app.command("show")
def show(
    id: Id,
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


@app.command("replay")
def replay(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Events' whole ids, ev_...")] = None,
    source: Source = None,
    kind: Kind = None,
    action: Action = None,
    state: InState = None,
    since: Since = None,
    until: Until = None,
    request_id: RequestId = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Sort events again by today's rules: these, or with --since all that came from then on, the oldest first."""
    chosen = given(source=source, kind=kind, action=action, state=state, since=since, until=until)
    if bool(ids) == (since is not None) or (ids and chosen):
        raise usage("give ids, or --since with filters; not both and not neither")
    with asking(as_json, data) as daemon:
        results = _replay_all(daemon, {"ids": ids} if ids else chosen, request_id)
    if as_json:
        print_json({"results": results})
    else:
        _show_replayed(results)
    if any("error" in one for one in results):
        raise typer.Exit(REFUSED)


@app.command("release")
def release(id: Id, request_id: RequestId = None, as_json: AsJson = False, data: Data = None) -> None:
    """Let a held event go: today's rules sort it again."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", f"/v1/events/{_segment(id)}/release", {}, request_id=request_id)
    tell(answer, as_json, _show_whole)


@app.command("discard")
def discard(
    id: Id,
    note: Annotated[str | None, typer.Option("--note", help="Why; it is told with the event.")] = None,
    request_id: RequestId = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Throw a held event away: it is kept and ignored."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", f"/v1/events/{_segment(id)}/discard", given(note=note), request_id=request_id)
    tell(answer, as_json, _show_whole)


def _replay_all(daemon: Daemon, chosen: Mapping[str, Any], request_id: str | None) -> list[dict[str, Any]]:
    """The results of every page; each page has a key of its own that follows from the caller's."""
    results: list[dict[str, Any]] = []
    cursor = None
    for page in range(1, sys.maxsize):
        key = None if request_id is None else request_id if page == 1 else f"{request_id}.{page}"
        answer = daemon.ask("POST", "/v1/events/replay", {**chosen, **given(cursor=cursor)}, request_id=key, wait_s=300)
        results += answer["results"]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    return results


def _show_replayed(results: Sequence[Mapping[str, Any]]) -> None:
    def row(one: Mapping[str, Any]) -> tuple[object, ...]:
        if "error" in one:
            return one["event_id"], "-", "-", "-", f"{one['error']['code']}: {one['error']['message']}"
        event = one["event"]
        new = sum(1 for link in event["todos"] if link["created"])
        return event["id"], event["state"], new, len(event["todos"]) - new, event["reason"] or event["title"]

    table(("event", "state", "new todos", "joined", "what"), [row(one) for one in results])


def trace(
    id: Annotated[str, typer.Argument(metavar="ID", help="The whole id of an event, a todo, a message or a delivery.")],
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Tell the one story of an event, a todo or a message, step by step."""
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
    rest = ("provider", "verification", "reason", "delivery_key", "received_at", "body_bytes", "rules_version")
    fields(
        [
            ("id", event["id"]),
            ("title", event["title"]),
            ("source", event["source"]),
            ("kind", _kind(event)),
            ("state", event["state"]),
            ("deliveries", event["deliveries"]),
            *((name, event.get(name)) for name in rest),
            ("suspected replay", True if event.get("suspected_replay") else None),
            *(("decided", told) for told in event.get("trace") or ()),
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
