"""`postroom message`, and the verbs `ack` and `retry`: what became of a message, and what its sender can still do."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import typer

from postroom.doors.cli.asking import AsJson, Cursor, Data, Limit, RequestId, asking, given, usage
from postroom.doors.cli.plain import Verbs, seconds
from postroom.doors.cli.table import fields, line, note, printed, short_time, table, tell

app = Verbs("Look at messages and steer their deliveries.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The message's whole id, msg_... or the one that was given.")]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="ENDPOINT", help="Whose delivery: an endpoint's id, or its name.")
]
State = Literal["pending", "awaiting_ack", "injected", "acknowledged", "failed"]

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
    tell(answer, as_json, _show_list)


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
    from postroom.doors.cli.reply import wait_for_reply

    with asking(as_json, data) as daemon:
        wait_for_reply(daemon, {"id": id}, wait or 0.0, as_json)


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
    """Acknowledge a message as its recipient; twice is the same, and late is not too late."""
    with asking(as_json, data) as daemon:
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


def standing(message: Mapping[str, Any]) -> str:
    """Where a message stands, in a few words: the state of its delivery, or how many are in which."""
    deliveries = message["deliveries"]
    if not deliveries:
        return "for nobody"
    if len(deliveries) == 1:
        return _state(deliveries[0])
    counted = Counter(_state(one) for one in deliveries)
    return ", ".join(f"{count} {state}" for state, count in counted.items())


def recipient(message: Mapping[str, Any]) -> str:
    """Whom a message is for, as its sender named it."""
    return f"#{message['channel']}" if message["channel"] is not None else str(message["to"] or message["target_repo"])


def show_line(answer: Mapping[str, Any]) -> None:
    """Print a message in one line."""
    message = answer["message"]
    line(message["id"], standing(message), "to", recipient(message))


def show_whole(answer: Mapping[str, Any]) -> None:
    """Print a message with its payload and deliveries."""
    message = answer["message"]
    fields(
        [
            ("id", message["id"]),
            ("from", message["from"]),
            ("to", recipient(message)),
            ("kind", message["kind"]),
            ("priority", message["priority"]),
            ("state", standing(message)),
            *((name, message.get(name)) for name in ("reply_to", "ack_mode", "created_by", "created_at", "expires_at")),
            ("metadata", message.get("metadata")),
        ]
    )
    line("payload:")
    printed(message["payload"])
    if message["deliveries"]:
        line()
        table(
            ("id", "to", "by", "state", "try", "since", "why"),
            [
                (
                    one["id"],
                    one["mailbox"],
                    one["carrier"],
                    _state(one),
                    f"{one['attempts']}/{one['max_attempts']}",
                    short_time(_since(one)),
                    _why(one),
                )
                for one in message["deliveries"]
            ],
        )


def _state(delivery: Mapping[str, Any]) -> str:
    return "cancelled" if delivery.get("reason") == "cancelled" else str(delivery["state"])


def _since(delivery: Mapping[str, Any]) -> object:
    reached = {"acknowledged": "acknowledged_at", "injected": "delivered_at", "awaiting_ack": "delivered_at"}
    return delivery.get(reached.get(str(delivery["state"]), "updated_at")) or delivery.get("updated_at")


def _why(delivery: Mapping[str, Any]) -> str | None:
    said: list[str] = []
    if delivery.get("reason") not in {None, "cancelled"}:
        said.append(str(delivery["reason"]))
    if delivery["state"] == "pending" and delivery.get("deferred_reason"):
        said.append(f"waits: {delivery['deferred_reason']}")
    if delivery["state"] in {"pending", "failed"} and delivery.get("last_failure_reason"):
        said.append(str(delivery["last_failure_reason"]))
    if delivery.get("next_attempt_at"):
        said.append(f"again at {short_time(delivery['next_attempt_at'])}")
    if delivery["state"] == "failed" and delivery.get("may_have_been_written"):
        said.append("it may have been written")
    if delivery["state"] == "awaiting_ack" and delivery.get("ack_deadline"):
        said.append(f"ack until {short_time(delivery['ack_deadline'])}")
    return "; ".join(said) or None


def _show_list(answer: Mapping[str, Any]) -> None:
    table(
        ("id", "from", "to", "kind", "pri", "state", "sent", "payload"),
        [
            (
                one["id"],
                one["from"],
                recipient(one),
                one["kind"],
                one["priority"],
                standing(one),
                short_time(one["created_at"]),
                _beginning(one["payload"]),
            )
            for one in answer["messages"]
        ],
    )
    if answer.get("next_cursor"):
        note(f"more: --cursor {answer['next_cursor']}")


def _beginning(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
