"""What every verb shares: its options, the asking of the daemon, and how a refusal leaves the process.

Exit codes: 0 fine, 1 refused, 2 wrong usage, 3 no daemon reached.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from postroom.doors.cli.plain import seconds
from postroom.doors.cli.table import note, print_json
from postroom.errors import Ambiguous, Invalid, Misconfigured, PostroomError
from postroom.text import parse_json

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon, Unreachable

REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3

MAX_INPUT_BYTES: Final = 16 * 1024 * 1024


def _key(word: str) -> str:
    """A key that fits a header. Raises ValueError."""
    if not (word.isascii() and word.isprintable() and word.strip() == word and word):
        raise ValueError(f"{word[:64]!r} is no key; expected ASCII letters, digits and signs")
    return word


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="The daemon's data folder; else POSTROOM_URL or POSTROOM_DATA."),
]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id", parser=_key, metavar="KEY", help="A key of yours: the same request again changes nothing more."
    ),
]
Cursor = Annotated[str | None, typer.Option("--cursor", help="Go on where an earlier page ended.")]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", help="How many at most; 50 by default, 200 at most.")
]
Ttl = Annotated[
    float | None,
    typer.Option("--ttl", parser=seconds, metavar="DURATION", help="How long the lease holds; the queue's by default."),
]


@contextmanager
def asking(as_json: bool, data: Path | None) -> Iterator[Daemon]:
    """The daemon for the length of a verb; a refusal is told on stderr and ends the process with its code."""
    from postroom.doors.cli.connection import Daemon, Unreachable

    with refusing(as_json):
        try:
            daemon = Daemon.find(data, os.environ)
        except Invalid as error:
            _tell(error, error.advice, as_json)
            raise typer.Exit(USAGE) from None
        try:
            yield daemon
        except Ambiguous as error:
            among = error.details.get("endpoints")
            if as_json or not isinstance(among, list):
                raise
            from postroom.doors.cli.occupant import apart

            _tell(error, error.advice, as_json, apart(daemon, among))
            raise typer.Exit(REFUSED) from None
        except Unreachable as error:
            _tell(error, error.hint, as_json)
            raise typer.Exit(UNREACHABLE) from None


@contextmanager
def refusing(as_json: bool) -> Iterator[None]:
    """An error of the family inside is told on stderr and ends the process with 1."""
    try:
        yield
    except PostroomError as error:
        _tell(error, error.advice, as_json)
        raise typer.Exit(REFUSED) from None
    except OSError as error:
        # A file or folder that a verb came upon; what else goes wrong with the system has a traceback.
        if error.filename is None or isinstance(error, BrokenPipeError):
            raise
        fault = Misconfigured(f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}", field="file")
        _tell(fault, "Name another, or make sure that it is there and that you may use it.", as_json)
        raise typer.Exit(REFUSED) from None


def _tell(error: PostroomError | Unreachable, hint: str, as_json: bool, among: Sequence[str] = ()) -> None:
    told = {"hint": hint, **error.as_dict()}
    if as_json:
        print_json({"error": told}, sys.stderr)
        return
    told = _as_typed(told)
    field = f" ({told['field']})" if told.get("field") and str(told["field"]) not in str(told["message"]) else ""
    note(f"error: {told['code']}: {told['message']}{field}")
    known = ("state", "owner", "lease_expires_at")
    stands = [f"{key} {told[key]}" for key in known if told.get(key) is not None]
    if stands:
        note(f"stands: {', '.join(stands)}")
    for one in among:
        note(f"  {one}")
    note(f"hint: {told['hint']}")


FLAGS: Final[Mapping[str, str]] = {
    "delivery_max_attempts": "max_attempts",
    "available_at": "at",
    "idempotency_key": "key",
}
"""The parameters that hold what the daemon calls otherwise."""


def _as_typed(shown: dict[str, object]) -> dict[str, object]:
    """The error with its field by the flag that was typed for it, where this verb has one and it was given."""
    from typer._click.globals import get_current_context

    field, context = shown.get("field"), get_current_context(silent=True)
    if not isinstance(field, str) or context is None or shown["code"] == "misconfigured":
        return shown  # a setting is named as its file has it
    for parameter in context.command.params:
        names = {FLAGS.get(field, field), field.removesuffix("_s")}
        if parameter.name in names and context.params.get(parameter.name) is not None:
            flag = max(parameter.opts, key=len)
            if flag.startswith("--"):
                # A field whose name is a word of the language is meant where the message begins with it alone.
                begin = r"(?<![\w.-])" if "_" in field else "^"
                message = re.sub(rf"{begin}{re.escape(field)}(?![\w.-])", flag, str(shown["message"]))
                return {**shown, "field": flag, "message": message}
    return shown


def given(**fields: object) -> dict[str, object]:
    """The fields that have a value: absent is what was not asked for, and null would mean something."""
    return {name: value for name, value in fields.items() if value is not None}


def usage(message: str, hint: str | None = None) -> typer.BadParameter:
    """The error for arguments that do not fit together; raising it exits with 2."""
    return typer.BadParameter(message, param_hint=hint)


def read_json(word: str, option: str) -> object:
    """The JSON value of an option: the word itself, a file's after `@`, or stdin's for `-`. Raises BadParameter."""
    name = option.removeprefix("--")
    try:
        if word == "-":
            raw: str | bytes = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        elif word.startswith("@"):
            with Path(word[1:]).open("rb") as file:
                raw = file.read(MAX_INPUT_BYTES + 1)
        else:
            raw = word
    except (OSError, ValueError) as error:
        raise usage(f"{word[:200]!r} cannot be read: {error}", option) from None
    if len(raw) > MAX_INPUT_BYTES:
        raise usage(f"more than {MAX_INPUT_BYTES} bytes", option)
    try:
        return parse_json(raw, name)
    except Invalid as error:
        raise usage(f"{error.message}; expected JSON, @FILE or - for stdin", option) from None
