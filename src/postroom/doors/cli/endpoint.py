"""`postroom endpoints` and `postroom who`: the places that take messages, and who sits there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from postroom.doors.cli.asking import AsJson, Data, asking, given
from postroom.doors.cli.occupant import place
from postroom.doors.cli.table import short_time, table, tell


def endpoints(
    live: Annotated[bool, typer.Option("--live", help="Only those that can be reached now.")] = False,
    ended: Annotated[bool, typer.Option("--ended", help="Those that are gone for ever as well.")] = False,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only of this name.")] = None,
    channel: Annotated[str | None, typer.Option("--channel", metavar="CHANNEL", help="Only subscribed to it.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Only those that it rings.")] = None,
    repository: Annotated[
        str | None, typer.Option("--repo", metavar="REPOSITORY", help="Only those that work on it.")
    ] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the places that take messages, the oldest first."""
    query = given(name=name, channel=channel, queue=queue, target_repo=repository)
    query |= given(live="true" if live else None, ended="true" if ended else None)
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/endpoints", query=query)
    tell(answer, as_json, _show_endpoints)


def who(as_json: AsJson = False, data: Data = None) -> None:
    """Tell who works here: where they sit, what they hold, and when they were last heard of."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/who")
    tell(answer, as_json, _show_who)


def _show_endpoints(answer: Mapping[str, Any]) -> None:
    table(
        ("id", "name", "by", "state", "target", "channels", "queues", "repositories", "heard of"),
        [
            (
                one["id"],
                one["name"],
                one["carrier"],
                _state(one),
                one["target"],
                one["channels"],
                one["queues"],
                one["repositories"],
                short_time(one["seen_at"]),
            )
            for one in answer["endpoints"]
        ],
    )


def _state(endpoint: Mapping[str, Any]) -> str | None:
    if endpoint["ended_at"] is not None:
        return "ended"
    return {True: "live", False: "silent"}.get(endpoint["live"])


def _show_who(answer: Mapping[str, Any]) -> None:
    def work(one: Mapping[str, Any]) -> str | None:
        return None if one["todo_id"] is None else f"{one['todo_id']} {one['todo_title'] or ''}".rstrip()

    # A name that several have is told apart by what one of them is sent to by.
    names = [one["name"] for one in answer["who"]]
    ids = len(set(names)) < len(names)
    table(
        ("name", *(("id",) if ids else ()), "by", "live", "where", "works on", "channels", "queues", "heard of"),
        [
            (
                one["name"],
                *((one["endpoint_id"],) if ids else ()),
                one["carrier"],
                one["live"],
                place(one),
                work(one),
                one["channels"],
                one["queues"],
                short_time(one["last_seen"]),
            )
            for one in answer["who"]
        ],
    )
