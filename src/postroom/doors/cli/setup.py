"""`postroom setup`: the entry, the token and for opencode the plugin that a client needs, shown, written or taken away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from postroom.doors.cli.asking import REFUSED, UNREACHABLE, AsJson, Data, asking, refusing, usage
from postroom.doors.cli.plain import Verbs
from postroom.doors.cli.table import line, note, print_json, table
from postroom.errors import PostroomError

if TYPE_CHECKING:
    from postroom.doors.cli.clients.entry import Client, Via
    from postroom.doors.cli.clients.installing import Done, Setup

app = Verbs("Set up a client, or take away what was set up; alone, say what is set up.")

Folder = Annotated[Path | None, typer.Argument(metavar="DIR", help="With --project: its folder; this one by default.")]
Project = Annotated[bool, typer.Option("--project", help="For one project alone.")]
Everywhere = Annotated[bool, typer.Option("--global", help="For every project of yours, which is the default.")]
Http = Annotated[bool, typer.Option("--http", help="Through the daemon's port, which has to stay the same.")]
Stdio = Annotated[bool, typer.Option("--stdio", help="Through a process that the client starts, which is the default.")]
Print = Annotated[bool, typer.Option("--print", help="Show what would be written, which is the default.")]
Write = Annotated[bool, typer.Option("--write", help="Write it; a file that is changed is kept beside it before.")]
Remove = Annotated[bool, typer.Option("--remove", help="Take it away again; with --write.")]


@app.callback(invoke_without_command=True, no_args_is_help=False)
def _group(context: typer.Context, as_json: AsJson = False, data: Data = None) -> None:
    """Set up a client, or take away what was set up; alone, say what is set up."""
    if context.invoked_subcommand is not None:
        if as_json or data is not None:
            raise usage("give --json and --data after the client's name")
        return
    from postroom.doors.cli.clients.installing import standing

    with refusing(as_json):
        clients = standing(data)
    if as_json:
        print_json({"clients": clients})
        return
    rows = [
        (one["client"], one["program"] or "-", at["scope"], at["file"], at["entry"] or at["problem"] or "-")
        for one in clients
        for at in one["configs"]
    ]
    table(("client", "program", "for", "file", "entry"), rows)
    for one in clients:
        if one["plugin"]:
            line("the plugin for opencode is in", one["plugin"])
    note("set one up with: postroom setup CLIENT, which shows what it would write, and --write, which writes it")


@app.command("claude")
def claude(
    folder: Folder = None,
    project: Project = False,
    everywhere: Everywhere = False,
    http: Http = False,
    stdio: Stdio = False,
    channel: Annotated[
        bool, typer.Option("--channel", help="Have messages pushed into the session, where Claude Code allows it.")
    ] = False,
    only_print: Print = False,
    write: Write = False,
    remove: Remove = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Set up Claude Code: an MCP server in ~/.claude.json, or in a project's .mcp.json."""
    from postroom.doors.cli.clients.claude import Claude

    scope = _scope(folder, project, everywhere)
    via = _via(http, stdio, channel)
    _run(Claude(), scope, via, _change(only_print, write), remove, as_json, data, channel=channel)


@app.command("codex")
def codex(
    folder: Folder = None,
    project: Project = False,
    everywhere: Everywhere = False,
    http: Http = False,
    stdio: Stdio = False,
    only_print: Print = False,
    write: Write = False,
    remove: Remove = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Set up Codex: an MCP server in ~/.codex/config.toml, or in a project's .codex/config.toml."""
    from postroom.doors.cli.clients.codex import Codex

    scope = _scope(folder, project, everywhere)
    _run(Codex(), scope, _via(http, stdio), _change(only_print, write), remove, as_json, data)


@app.command("opencode")
def opencode(
    folder: Folder = None,
    project: Project = False,
    everywhere: Everywhere = False,
    http: Http = False,
    stdio: Stdio = False,
    only_print: Print = False,
    write: Write = False,
    remove: Remove = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Set up opencode: an MCP server in its configuration, and the plugin that gives its sessions their own tools."""
    from postroom.doors.cli.clients.opencode import Opencode

    scope = _scope(folder, project, everywhere)
    _run(Opencode(), scope, _via(http, stdio), _change(only_print, write), remove, as_json, data)


def _scope(folder: Path | None, project: bool, everywhere: bool) -> Path | None:
    """The project's folder, None for every project."""
    if project and everywhere:
        raise usage("give --project or --global, not both", "--global")
    if folder is not None and not project:
        raise usage(f"{str(folder)[:200]!r} names a project: give --project with it", "DIR")
    if not project:
        return None
    found = Path(os.path.abspath((folder or Path()).expanduser()))
    if not found.is_dir():
        raise usage(f"{str(folder)[:200]!r} is no folder", "DIR")
    return found


def _via(http: bool, stdio: bool, channel: bool = False) -> Via:
    from postroom.doors.cli.clients.entry import Via

    if http and stdio:
        raise usage("give --http or --stdio, not both", "--http")
    if http and channel:
        raise usage("--channel needs a process of the client's: leave --http out", "--channel")
    return Via.HTTP if http else Via.STDIO


def _change(only_print: bool, write: bool) -> bool:
    if only_print and write:
        raise usage("give --print or --write, not both", "--print")
    return write


def _run(
    client: Client,
    project: Path | None,
    via: Via,
    write: bool,
    remove: bool,
    as_json: bool,
    data: Path | None,
    *,
    channel: bool = False,
) -> None:
    from postroom.doors.cli.clients.installing import Setup

    with asking(as_json, data) as daemon:
        setup = Setup(client, project, daemon, data)
        done = _do(setup, via, write, remove, channel)
    if as_json:
        print_json(done.as_dict())
    else:
        _show(done)
    if done.fault is not None:  # all was done but the last of it
        raise typer.Exit(REFUSED if isinstance(done.fault, PostroomError) else UNREACHABLE)


def _do(setup: Setup, via: Via, write: bool, remove: bool, channel: bool) -> Done:
    if remove:
        return setup.remove(note, write=write)
    return setup.add(via, channel=channel, write=write)


def _show(done: Done) -> None:
    for said in done.said:
        line(said)
    for change in done.changes:
        if not done.written and change.difference:
            print(change.difference)
    for said in done.next:
        note(said)
    if not done.written:
        note("nothing was changed: add --write to have it done")
