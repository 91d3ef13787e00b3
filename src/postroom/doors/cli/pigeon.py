"""`pigeon-send`: one message to an opencode session, or a channel, by the swarm's own route.

Exit codes: 0 queued, 1 refused, 2 wrong usage, 3 no daemon reached. The id alone goes to stdout.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from postroom.doors.cli.connection import Daemon, Unreachable
from postroom.doors.cli.payload import text_of
from postroom.errors import PostroomError

SESSION: Final = "OPENCODE_SESSION_ID"

REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3


def run(words: Sequence[str] | None = None) -> None:
    """Send what a shell's words ask for, and leave by SystemExit."""
    parser = _parser()
    asked = parser.parse_intermixed_args(words)
    target, message = aimed(parser, asked)
    raise SystemExit(telling(lambda: send(parser, asked, target, message)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pigeon-send",
        description="Send a message to an opencode session: it is queued at once, and delivered one turn at a time.",
        epilog="The daemon is found by POSTROOM_URL and POSTROOM_TOKEN, else in the data folder (POSTROOM_DATA).",
        allow_abbrev=False,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[TARGET] MESSAGE",
        help="the session, unless --to or --channel is given, and the text; - reads stdin",
    )
    add_sending(parser)
    return parser


class _Once(argparse.Action):
    """Stores the value of an option that is given once: of two argparse would silently take the last."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, None) is not self.default:
            raise argparse.ArgumentError(self, "given several times; expected once")
        setattr(namespace, self.dest, values)


def add_sending(parser: argparse.ArgumentParser) -> None:
    """The options that say what is sent, and as whom; each of them, and of those that are added later, once."""
    parser.register("action", None, _Once)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--to", metavar="SESSION", help="whom it is for")
    where.add_argument("--channel", metavar="CHANNEL", help="whoever is subscribed to this channel")
    parser.add_argument("--from", dest="sender", metavar="SESSION", help=f"who says it; ${SESSION} by default")
    parser.add_argument("--kind", help="chat by default; task.assign, status.update, clarification.request, ...")
    parser.add_argument("--priority", choices=("urgent", "normal", "low"), help="normal by default")
    parser.add_argument("--reply-to", metavar="MSG_ID", help="the message that this one answers")
    parser.add_argument("--msg-id", metavar="MSG_ID", help="an id of yours: the same again is no second message")
    parser.add_argument("--data", metavar="FOLDER", type=Path, help="the daemon's data folder")


def aimed(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> tuple[str | None, str]:
    """The target, None for a channel, and the message, of the words and options. Leaves with 2 when they do not fit."""
    words = list(asked.words)
    named = asked.to is not None or asked.channel is not None
    wanted = 1 if named else 2
    if len(words) != wanted:
        parser.error(
            "expected the message alone, beside --to or --channel" if named else "expected a target and a message"
        )
    return (asked.to if named else words[0]), words[-1]


def send(parser: argparse.ArgumentParser, asked: argparse.Namespace, target: str | None, message: str) -> int:
    """Post the message to the daemon and print its id. Raises what refuses it."""
    sender = asked.sender or os.environ.get(SESSION)
    if not sender:
        parser.error(f"nobody says it: give --from, or set {SESSION}")
    payload = text_of(message)
    body = {
        "from": sender,
        "to": target,
        "channel": asked.channel,
        "kind": asked.kind,
        "priority": asked.priority,
        "reply_to": asked.reply_to,
        "msg_id": asked.msg_id,
        "payload": payload,
    }
    daemon = Daemon.find(asked.data, os.environ)
    answer = daemon.ask("POST", "/swarm/send", {key: value for key, value in body.items() if value is not None})
    _tell_queued(answer, body)
    return 0


def telling(sending: Callable[[], int]) -> int:
    """The exit code of what is done; what refuses it is told on stderr."""
    try:
        return sending()
    except PostroomError as error:
        hint = shown(error.advice)
        print(f"error: {error.code}: {shown(error.message)}\nhint: {hint}", file=sys.stderr)
        return REFUSED
    except Unreachable as error:
        print(f"error: unreachable: {shown(error.message)}\nhint: {shown(error.hint)}", file=sys.stderr)
        return UNREACHABLE


def shown(text: str) -> str:
    """The text without what a terminal would act on."""
    from postroom.text import printable

    return printable(text)


def _tell_queued(answer: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    msg_id = shown(str(answer["msg_id"]))
    where = shown(str(body["to"] or f"#{body['channel']}"))
    print(msg_id, flush=True)
    # For people: a program takes the line above, which is the id and nothing else.
    kind, priority = shown(body["kind"] or "chat"), body["priority"] or "normal"
    size = len(body["payload"])
    print(f"Queued {msg_id} -> {where} (kind={kind} priority={priority}, {size} chars)", file=sys.stderr)
