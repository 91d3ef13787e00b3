"""`postroom send`: a message on its way, and when asked how it ended.

Exit codes with --wait: 0 it came to that, 1 it cannot any more, 4 it was still under way at the deadline; with
--wait-reply likewise, for an answer to it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from postroom.doors.cli.asking import REFUSED, AsJson, Data, RequestId, asking, given, refusing, usage
from postroom.doors.cli.message import path_of, speaker
from postroom.doors.cli.message_shown import recipient, standing
from postroom.doors.cli.pane import name_here
from postroom.doors.cli.plain import seconds
from postroom.doors.cli.reply import LONGEST_WAIT_S, PAUSE_S, UNDER_WAY, wait_for_reply
from postroom.doors.cli.table import line, note, print_json
from postroom.errors import Unavailable

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

DEADLINE_S: Final = 60.0

Priority = Literal["urgent", "normal", "low"]
Mode = Literal["injected", "acknowledged"]
Awaited = Literal["handed_off", "acknowledged"]

_REACHED: Final = {
    "handed_off": {"injected", "awaiting_ack", "acknowledged"},
    "acknowledged": {"acknowledged"},
}


def send(
    body: Annotated[
        str | None, typer.Argument(metavar="BODY", help="The text, of at most 64 KiB; - reads it from stdin.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NAME", help="A session (ses_...), an endpoint's id (ep_...), or a name."),
    ] = None,
    channel: Annotated[
        str | None, typer.Option("--channel", metavar="CHANNEL", help="Instead: whoever is subscribed to it now.")
    ] = None,
    sender: Annotated[
        str | None,
        typer.Option("--from", metavar="NAME", help="Else $OPENCODE_SESSION_ID, this pane's name, or the token's."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="chat by default; task.assign, status.update, and others of yours.")
    ] = None,
    priority: Annotated[
        Priority | None, typer.Option("--priority", help="Its place in the line; urgent waits for no turn's end.")
    ] = None,
    reply_to: Annotated[
        str | None, typer.Option("--reply-to", metavar="ID", help="The message that this one answers.")
    ] = None,
    about: Annotated[
        str | None,
        typer.Option("--about", metavar="ID", help="What it is about; a todo's id puts it into the todo's trace."),
    ] = None,
    msg_id: Annotated[
        str | None, typer.Option("--msg-id", metavar="ID", help="An id of yours: the same again is no second message.")
    ] = None,
    ack: Annotated[
        Mode | None, typer.Option("--ack", help="Whether the hand-off ends it, or the recipient's acknowledgement.")
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option("--ttl", parser=seconds, metavar="DURATION", help="How long it may wait; then it has expired."),
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="Read the text from FILE.")] = None,
    wait: Annotated[
        Awaited | None, typer.Option("--wait", help="Wait until it came to that; the exit code says whether.")
    ] = None,
    wait_reply: Annotated[bool, typer.Option("--wait-reply", help="Wait for the first answer, and print it.")] = False,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            parser=seconds,
            metavar="DURATION",
            help="How long --wait or --wait-reply waits; 1m by default.",
        ),
    ] = None,
    request_id: RequestId = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Send a message: it is taken at once, and delivered in its turn.

    With --wait the exit code is 0 when every delivery came to that, 1 when one cannot any more, 4 when the deadline
    came first; with --wait-reply 0 when an answer came, 1 when nobody can give one, 4 when the deadline came first.
    """
    if (to is None) == (channel is None):
        raise usage("give --to or --channel, one of them", "--to")
    if wait is not None and wait_reply:
        raise usage("give --wait or --wait-reply, not both", "--wait-reply")
    if deadline is not None and wait is None and not wait_reply:
        raise usage("--deadline without --wait or --wait-reply: say what is waited for", "--deadline")
    with refusing(as_json):
        payload = read_body(body, file)
    asked = given(to=to, channel=channel, kind=kind, priority=priority, reply_to=reply_to, msg_id=msg_id)
    asked |= given(ack_mode=ack, ttl_s=ttl, payload=payload, correlation_id=about)
    with asking(as_json, data) as daemon:
        asked |= given(**{"from": speaker(sender) or name_here(daemon, os.environ)})
        answer = daemon.ask("POST", "/v1/messages", asked, request_id=request_id)
        if not as_json:
            _show_sent(answer)
        if wait_reply:
            within_s = DEADLINE_S if deadline is None else deadline
            wait_for_reply(daemon, path_of(answer["id"], "reply"), answer, within_s, as_json)
            return
        if wait is None:
            if as_json:
                print_json(answer)
            return
        outcome = _await(daemon, answer, wait, DEADLINE_S if deadline is None else deadline, as_json)
    _tell_outcome(answer, outcome, wait, as_json)


def read_body(body: str | None, file: Path | None) -> str:
    """The text of a message: the argument, a file's, or stdin's for `-`. Raises BadParameter, TooLarge, Invalid."""
    from postroom.doors.cli.payload import text_in, text_of

    if (body is None) == (file is None):
        raise usage("give the text, --file FILE, or - for stdin: one of them", "BODY")
    try:
        return text_of(str(body)) if file is None else text_in(file)
    except (OSError, ValueError) as error:
        raise usage(
            f"{str(file or '-')[:200]!r} cannot be read: {error}", "BODY" if file is None else "--file"
        ) from None


def _await(daemon: Daemon, answer: dict[str, Any], until: Awaited, within_s: float, as_json: bool) -> str:
    """Look until the message came to that, cannot any more, or the time is over; the answer holds the latest look."""
    from postroom.doors.cli.connection import Unreachable

    ends = time.monotonic() + within_s
    while True:
        outcome = outcome_of(answer["message"], until)
        left = ends - time.monotonic()
        if outcome != "under_way" or left <= 0:
            return outcome
        asked_s = min(left, LONGEST_WAIT_S)
        began = time.monotonic()
        try:
            query = {"until": until, "wait_s": f"{asked_s:.3f}"}
            seen = daemon.ask("GET", path_of(answer["id"]), query=query, wait_s=asked_s)
            answer["message"] = seen["message"]
        except (Unreachable, Unavailable):
            # The message is kept, and its daemon may be on its way back.
            if time.monotonic() + PAUSE_S >= ends:
                if as_json:
                    print_json(answer)
                raise
        # A daemon that is about to stop answers before its time: it is not to be asked in a circle.
        early = asked_s - (time.monotonic() - began)
        if early > 0:
            time.sleep(min(PAUSE_S, early) if outcome_of(answer["message"], until) == "under_way" else 0)


def outcome_of(message: Mapping[str, Any] | None, until: Awaited) -> str:
    """The awaited word once all deliveries have come to it, `failed` once one cannot any more, else `under_way`.

    A message that nobody gets, and one that is kept no longer, can come to nothing.
    """
    if message is None or not message["deliveries"]:
        return "failed"
    states = {one["state"] for one in message["deliveries"]}
    if states <= _REACHED[until]:
        return until
    return "failed" if "failed" in states else "under_way"


def _tell_outcome(answer: dict[str, Any], outcome: str, until: Awaited, as_json: bool) -> None:
    message = answer["message"]
    if as_json:
        print_json({**answer, "outcome": outcome})
    elif message is not None:
        line(message["id"], standing(message), "to", recipient(message))
        for one in message["deliveries"]:
            if one["state"] == "failed":
                said = [one["reason"], one["last_failure_reason"]]
                note(f"{one['mailbox']}: {': '.join(str(word) for word in said if word)}")
        if not message["deliveries"]:
            note(f"nobody is subscribed to {message['channel']}")
        if outcome == "under_way":
            pending = all(one["state"] == "pending" for one in message["deliveries"])
            stands = "still on its way" if pending else standing(message)
            note(f"not {until} by the deadline; it is {stands}: postroom message show {message['id']}")
    if outcome != until:
        raise typer.Exit(UNDER_WAY if outcome == "under_way" else REFUSED)


def _show_sent(answer: Mapping[str, Any]) -> None:
    message = answer["message"]
    if message is None:
        line(answer["id"], "was sent before, and is kept no longer")
        return
    again = "(was there already)" if answer["deduplicated"] else ""
    line(message["id"], standing(message), "to", recipient(message), again)
    # Whoever waits for the outcome may want the id before that.
    sys.stdout.flush()
    if not again and message["to"] is not None:
        # An inbox may be opened later; or its name is a slip of the pen.
        for one in message["deliveries"]:
            if one["carrier"] == "inbox" and one["endpoint_id"] is None:
                note(f"nobody named {one['mailbox']} is attached: it waits in the inbox of that name until it is read")
