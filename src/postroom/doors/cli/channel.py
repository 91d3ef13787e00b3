"""`postroom channel`: who gets what is sent to a channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from postroom.doors.cli.asking import AsJson, Data, asking, usage
from postroom.doors.cli.message import speaker
from postroom.doors.cli.plain import Verbs
from postroom.doors.cli.table import line, table, tell

app = Verbs("See and change who is subscribed to channels.")

Name = Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")]
Who = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="A session, an endpoint's id, or a name; else $OPENCODE_SESSION_ID."),
]


@app.command("list")
def list_channels(as_json: AsJson = False, data: Data = None) -> None:
    """List the channels that somebody is subscribed to."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/channels")
    tell(answer, as_json, _show_list)


@app.command("subscribe")
def subscribe(channel: Name, who: Who = None, as_json: AsJson = False, data: Data = None) -> None:
    """Subscribe somebody: what is sent to the channel from now on comes to them; twice is the same."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("PUT", _place(channel, who), {})
    tell(answer, as_json, _show_one)


@app.command("unsubscribe")
def unsubscribe(channel: Name, who: Who = None, as_json: AsJson = False, data: Data = None) -> None:
    """Unsubscribe somebody: what was sent before still comes; twice is the same."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("DELETE", _place(channel, who))
    tell(answer, as_json, _show_one)


def _place(channel: str, who: str | None) -> str:
    from postroom.doors.cli.connection import segment

    name = speaker(who)
    if not channel:
        raise usage("an empty name names no channel", "CHANNEL")
    if not name:
        raise usage("say who: a session, an endpoint's id, or a name", "NAME")
    return f"/v1/channels/{segment(channel)}/subscribers/{segment(name)}"


def _names(channel: Mapping[str, Any]) -> list[str]:
    return [str(one["mailbox"]) for one in channel["subscribers"]]


def _show_one(answer: Mapping[str, Any]) -> None:
    channel = answer["channel"]
    names = _names(channel)
    line(f"#{channel['name']}:", ", ".join(names) if names else "nobody is subscribed")


def _show_list(answer: Mapping[str, Any]) -> None:
    table(("channel", "subscribers"), [(f"#{one['name']}", _names(one)) for one in answer["channels"]])
