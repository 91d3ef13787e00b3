"""The `postroom` command: every verb under its noun, and the one way in from a shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from postroom import __version__
from postroom.doors.cli import event, queue, rules, serve, source, todo, token
from postroom.doors.cli.plain import Verbs


def build() -> Any:
    """The whole command, its words read without a schema library."""
    app = Verbs("Postroom: a durable post room for coding agents.")
    app.callback()(_root)
    app.command("serve")(serve.serve)
    app.command("demo")(serve.demo)
    app.command("status")(serve.status)
    app.command("config")(serve.show_config)
    app.command("mcp")(serve.mcp)
    app.add_typer(todo.app, name="todo")
    app.add_typer(queue.app, name="queue")
    app.add_typer(event.app, name="event")
    app.add_typer(source.app, name="source")
    app.add_typer(rules.app, name="rules")
    app.add_typer(token.app, name="token")
    app.command("fire")(source.fire)
    app.command("trace")(event.trace)
    return typer.main.get_command(app)


def run(words: Sequence[str] | None = None) -> None:
    """Run the command with a shell's words, and leave by SystemExit: 0 fine, 1 refused, 2 usage, 3 no daemon."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets another in its place; it is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        build()(args=None if words is None else list(words), prog_name="postroom")
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
