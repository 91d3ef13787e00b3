"""The `postroom` command: every verb under its noun, and the one way in from a shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from postroom import __version__
from postroom.doors.cli.plain import Verbs

HOME: Final = "postroom.doors.cli"
HELP: Final = "--help"
WHOLE: Final = frozenset({None, "--"})
"""What tells nothing of the verb that follows: with these all are read."""

COMPLETION: Final = "_POSTROOM_COMPLETE"
"""What a shell sets when it asks how a line may go on."""

VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("serve", "serve"),
    "demo": ("serve", "demo"),
    "status": ("serve", "status"),
    "reload": ("serve", "reload"),
    "doctor": ("doctor", "doctor"),
    "config": ("serve", "show_config"),
    "mcp": ("serve", "mcp"),
    "send": ("send", "send"),
    "inbox": ("inbox", "inbox"),
    "ack": ("message", "ack"),
    "retry": ("message", "retry"),
    "history": ("history", "history"),
    "replay": ("replay", "replay"),
    "attach": ("attach", "attach"),
    "detach": ("attach", "detach"),
    "endpoints": ("endpoint", "endpoints"),
    "who": ("endpoint", "who"),
    "fire": ("source", "fire"),
    "trace": ("event", "trace"),
    "tail": ("tail", "tail"),
}
"""Each verb that stands alone, with the module and the function that it is."""

NOUNS: Final[Mapping[str, str]] = {
    "todo": "todo",
    "queue": "queue",
    "message": "message",
    "channel": "channel",
    "event": "event",
    "source": "source",
    "rules": "rules",
    "token": "token",
    "setup": "setup",
}
"""Each noun, with the module that has its verbs."""


def build(first: str | None = None) -> Any:
    """The command, its words read without a schema library: whole, or only what its first word asks for.

    A verb does not pay for reading the others, the list of them all pays for none, and a word that is none of them, as
    `--version` is, pays for their names alone; completion sees the whole.
    """
    app = Verbs("Postroom: a durable post room for coding agents.")
    app.callback()(_root)
    known, listed = first in VERBS or first in NOUNS, first == HELP
    named = not known and not listed and first not in WHOLE
    for name, (module, function) in VERBS.items():
        if named:
            app.command(name)(_unread)
        elif not known or name == first:
            verb = getattr(import_module(f"{HOME}.{module}"), function)
            app.command(name)(_named(verb) if listed else verb)
    for name, module in NOUNS.items():
        if named:
            app.add_typer(Verbs(""), name=name)
        elif not known or name == first:
            noun = import_module(f"{HOME}.{module}").app
            app.add_typer(Verbs(noun.info.help) if listed else noun, name=name)
    return typer.main.get_command(app)


def _unread() -> None:
    """A verb of which the name alone is wanted."""


def _named(verb: Callable[..., None]) -> Callable[[], None]:
    """What a list says of a verb, and no more."""

    def named() -> None: ...

    named.__doc__ = verb.__doc__
    return named


def run(words: Sequence[str] | None = None) -> None:
    """Run the command with a shell's words, and leave by SystemExit: 0 fine, 1 refused, 2 usage, 3 no daemon."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets another in its place; it is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if words is None else words)
    first = None if COMPLETION in os.environ else given[0] if given else HELP
    try:
        build(first)(args=given, prog_name="postroom")
    finally:
        _flush()


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read has gone, as `| head` does when it has enough: the interpreter need not complain of it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(wanted: bool) -> None:
    if wanted:
        print(f"postroom {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Postroom: a durable post room for coding agents."""
