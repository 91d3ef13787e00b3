"""`postroom inbox`: what was handed off to a mailbox, in that order, and how far it was read."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from postroom.doors.cli.asking import AsJson, Data, Limit, asking, given, usage
from postroom.doors.cli.message import speaker
from postroom.doors.cli.pane import name_here
from postroom.doors.cli.plain import seconds
from postroom.doors.cli.table import line, note, printed, short_time, tell

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

PAGE: Final = 200
DEFAULT_LIMIT: Final = 50


def inbox(
    mailbox: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="NAME", help="Whose; else $OPENCODE_SESSION_ID, this pane's name, or the token's."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="PLACE", help="What came after a message's id, or a next_since.")
    ] = None,
    unread: Annotated[bool, typer.Option("--unread", help="Only what was not marked as read.")] = False,
    mark_read: Annotated[
        bool, typer.Option("--mark-read", help="Mark what is shown, and all before, as read.")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option("--wait", parser=seconds, metavar="DURATION", help="Wait for a message that long; 50 s at most."),
    ] = None,
    limit: Limit = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Show what came to an inbox, the oldest first; nothing there is no error."""
    if unread and since is not None:
        raise usage("give --since or --unread, not both", "--unread")
    asked = given(limit=limit, wait_s=wait)
    with asking(as_json, data) as daemon:
        asked |= given(**{"for": speaker(mailbox) or name_here(daemon, os.environ)})
        if unread:
            answer = _unread(daemon, asked, DEFAULT_LIMIT if limit is None else limit)
        else:
            answer = _waited(daemon, given(since=since, **asked))
        if mark_read and answer["messages"]:
            read = {"for": answer["mailbox"], "since": answer["next_since"]}
            answer["unread"] = daemon.ask("POST", "/v1/inbox/read", read)["unread"]
    tell(answer, as_json, _show)


def _unread(daemon: Daemon, asked: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """The first unread messages, found by walking the inbox; waits at its end when there are none."""
    wait = float(asked.get("wait_s") or 0.0)
    query = {**asked, "limit": PAGE}
    query.pop("wait_s", None)
    since = None
    while True:
        answer = daemon.ask("GET", "/v1/inbox", query=given(since=since, **query))
        fresh = [one for one in answer["messages"] if not one["read"]]
        if fresh:
            return {**answer, "messages": fresh[:limit], "next_since": _after(answer, fresh, limit)}
        if not answer["messages"]:
            break
        since = answer["next_since"]
    if not wait:
        return answer
    return _waited(daemon, {**asked, "limit": limit, "since": answer["next_since"]})


def _waited(daemon: Daemon, query: Mapping[str, Any]) -> dict[str, Any]:
    from postroom.doors.cli.waiting import wait_for

    def ask(wait_s: float) -> dict[str, Any]:
        return daemon.ask("GET", "/v1/inbox", query={**query, "wait_s": wait_s or None}, wait_s=wait_s)

    return wait_for(ask, lambda answer: answer["messages"], query.get("wait_s") or 0.0)


def _after(answer: Mapping[str, Any], fresh: list[dict[str, Any]], limit: int) -> str:
    return str(answer["next_since"] if len(fresh) <= limit else fresh[limit - 1]["id"])


def _show(answer: Mapping[str, Any]) -> None:
    for place, one in enumerate(answer["messages"]):
        if place:
            line()
        told = "" if one["read"] else "(new)"
        channel = one["channel"] and f"#{one['channel']}"
        answers = one["reply_to"] and f"re {one['reply_to']}"
        urgency = "" if one["priority"] == "normal" else one["priority"]
        when = short_time(one["handed_off_at"])
        line(one["id"], "from", one["from"], channel, one["kind"], urgency, answers, when, told)
        printed(one["payload"])
    # The place to go on from is no part of what was said.
    sys.stdout.flush()
    count = len(answer["messages"])
    note(f"{count or 'no'} message{'' if count == 1 else 's'} for {answer['mailbox']}, {answer['unread']} unread")
    if answer["messages"]:
        note(f"more: --since {answer['next_since']}")
