"""`postroom message`, and the verbs `ack` and `retry`: what became of a message, and what its sender can still do."""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal

import typer

from postroom.doors.cli.asking import AsJson, Cursor, Data, Limit, RequestId, asking, given, usage
from postroom.doors.cli.message_shown import show_line, show_list, show_whole
from postroom.doors.cli.pane import recipient_here
from postroom.doors.cli.plain import Verbs, seconds
from postroom.doors.cli.reply import wait_for_reply
from postroom.doors.cli.table import tell

app = Verbs("Look at messages and steer their deliveries.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The message's whole id, msg_... or the one that was given.")]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="ENDPOINT", help="Whose delivery: an endpoint's id, or its name.")
]
State = Literal["pending", "awaiting_ack", "injected", "acknowledged", "failed", "cancelled"]

SESSION: Final = "OPENCODE_SESSION_ID"


@app.command("show")
def show(id: Id, as_json: AsJson = False, data: Data = None) -> None:
    """Show a message whole, and each of its deliveries: where it stands, since when, and why."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", path_of(id))
    tell(answer, as_json, show_whole)


@app.command("list")
def list_messages(
    sender: Annotated[str | None, typer.Option("--from", metavar="NAME", help="Only from NAME.")] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="Only to NAME, as the sender wrote it.")
    ] = None,
    channel: Annotated[str | None, typer.Option("--channel", metavar="CHANNEL", help="Only this channel's.")] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only with a delivery in this state.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only of this kind.")] = None,
    reply_to: Annotated[str | None, typer.Option("--reply-to", metavar="ID", help="Only answers to this one.")] = None,
    cursor: Cursor = None,
    limit: Limit = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the messages you may see, newest first."""
    query = given(to=to, channel=channel, state=state, kind=kind, reply_to=reply_to, cursor=cursor, limit=limit)
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/messages", query=given(**{"from": sender}, **query))
    tell(answer, as_json, show_list)


@app.command("reply")
def reply(
    id: Id,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", parser=seconds, metavar="DURATION", help="Wait for it that long; not at all by default."
        ),
    ] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Show the first answer to a message of yours.

    The exit code is 0 when there is one, 1 when nobody can give one, 4 when there was none in that time.
    """
    with asking(as_json, data) as daemon:
        wait_for_reply(daemon, path_of(id, "reply"), {"id": id}, wait or 0.0, as_json)


@app.command("cancel")
def cancel(
    id: Id,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for whoever looks.")] = None,
    request_id: RequestId = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Cancel the deliveries that are still under way; what was handed off stays so."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", path_of(id, "cancel"), given(reason=reason), request_id=request_id)
    tell(answer, as_json, show_line)


@app.command("retry")
def retry(
    id: Id, endpoint: Endpoint = None, request_id: RequestId = None, as_json: AsJson = False, data: Data = None
) -> None:
    """Try a message's failed deliveries anew, with all their attempts."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", path_of(id, "retry"), given(endpoint=endpoint), request_id=request_id)
    tell(answer, as_json, show_line)


def ack(id: Id, endpoint: Endpoint = None, as_json: AsJson = False, data: Data = None) -> None:
    """Acknowledge a message as its recipient; twice is the same, and late is not too late.

    In a pane that it was written into, the delivery to that pane is meant.
    """
    with asking(as_json, data) as daemon:
        endpoint = endpoint or recipient_here(daemon, path_of(id), os.environ)
        answer = daemon.ask("POST", path_of(id, "ack"), given(endpoint=endpoint))
    tell(answer, as_json, show_line)


def speaker(name: str | None) -> str | None:
    """Who speaks: the name given, else the opencode session that runs this, else None for the token's own name."""
    return name if name is not None else os.environ.get(SESSION) or None


def path_of(id: str, verb: str | None = None) -> str:
    """A message's path, or that of a verb on it."""
    from postroom.doors.cli.connection import segment

    if not id:
        raise usage("an empty id names nothing; expected a message's id", "ID")
    return f"/v1/messages/{segment(id)}" + (f"/{verb}" if verb else "")
