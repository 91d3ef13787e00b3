"""Waiting for the answer to a message: `postroom send --wait-reply`, and `postroom message reply` to ask again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import typer

from postroom.doors.cli.asking import REFUSED
from postroom.doors.cli.message_shown import recipient, standing
from postroom.doors.cli.table import line, note, print_json, printed, short_time
from postroom.errors import Unavailable

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

UNDER_WAY: Final = 4
"""The exit code of a wait whose deadline came first."""
LONGEST_WAIT_S: Final = 50.0
PAUSE_S: Final = 0.5


def wait_for_reply(daemon: Daemon, path: str, answer: dict[str, Any], within_s: float, as_json: bool) -> None:
    """Look until there is a reply at `path`, nobody can give one, or the time is over, and tell it with `answer`.

    Ends the process with its code unless there is a reply.
    """
    seen = _look(daemon, path, answer, within_s, as_json)
    outcome = "answered" if seen["reply"] is not None else "failed" if seen["in_vain"] else "under_way"
    if as_json:
        print_json({**answer, **seen, "outcome": outcome})
    elif seen["reply"] is not None:
        _show(seen["reply"])
    else:
        _tell_why_not(seen["message"], outcome)
    if outcome != "answered":
        raise typer.Exit(UNDER_WAY if outcome == "under_way" else REFUSED)


def _look(daemon: Daemon, path: str, answer: dict[str, Any], within_s: float, as_json: bool) -> dict[str, Any]:
    from postroom.doors.cli.connection import Unreachable

    ends = time.monotonic() + within_s
    while True:
        began = time.monotonic()
        asked_s = min(max(ends - began, 0.0), LONGEST_WAIT_S)
        try:
            query = {"wait_s": f"{asked_s:.3f}"} if asked_s > 0 else None
            seen = daemon.ask("GET", path, query=query, wait_s=asked_s)
            if seen["reply"] is not None or seen["in_vain"] or time.monotonic() >= ends:
                return seen
        except (Unreachable, Unavailable):
            # The message is kept, and its daemon may be on its way back.
            if time.monotonic() + PAUSE_S >= ends:
                if as_json and "message" in answer:
                    print_json(answer)
                raise
        # A daemon that is about to stop answers before its time: it is not to be asked in a circle.
        early = asked_s - (time.monotonic() - began)
        if early > 0:
            time.sleep(min(PAUSE_S, early))


def _show(reply: dict[str, Any]) -> None:
    line(reply["id"], "from", reply["from"], reply["kind"], f"re {reply['reply_to']}", short_time(reply["created_at"]))
    printed(reply["payload"])


def _tell_why_not(message: dict[str, Any], outcome: str) -> None:
    if outcome == "under_way":
        note(f"no answer yet; wait again: postroom message reply {message['id']} --wait 50s")
        return
    line(message["id"], standing(message), "to", recipient(message))
    note("nobody can answer it: it came to nobody")
