"""`postroom serve`, `mcp`, `demo`, `config`, `status` and `reload`: what starts something, looks at it, and has it read.

The command line is the process's front door, so these verbs start what stands above or beside the doors. They name it
by a string that is imported when the verb runs: the other verbs never pay for it, and the floors keep their order.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Final, Literal

import typer

from postroom.doors.cli.asking import AsJson, Data, asking, refusing, usage
from postroom.doors.cli.source_shown import show_sources
from postroom.doors.cli.status_shown import show_status
from postroom.doors.cli.table import note, print_json, table, tell

CONFIG: Final = "postroom.config"
DAEMON: Final = "postroom.daemon"
DEMO: Final = "postroom.demos.run"
MCP: Final = "postroom.doors.mcp.stdio"

Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="The settings file; else POSTROOM_CONFIG, postroom.toml."),
]
Folder = Annotated[
    str | None,
    typer.Option("--data", metavar="FOLDER", help="Database, socket and admin token; else POSTROOM_DATA."),
]
Database = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="sqlite:///FILE or postgresql://...; else POSTROOM_DATABASE_URL."),
]
Host = Annotated[str | None, typer.Option("--host", help="The address to listen on; loopback by default.")]
Port = Annotated[int | None, typer.Option("--port", help="The port; 7373 by default, 0 for any, which is printed.")]
Socket = Annotated[str | None, typer.Option("--socket", metavar="FILE", help="The Unix socket to listen on.")]
HooksPort = Annotated[
    int | None, typer.Option("--hooks-port", help="A second port with the webhooks alone, to be put behind a tunnel.")
]
Story = Literal["survival", "duo", "ci"]
Ack = Literal["injected", "acknowledged"]
Open = Annotated[bool, typer.Option("--open", help="No tokens: whoever reaches loopback is admin.")]


def serve(
    config: Config = None,
    data: Folder = None,
    database: Database = None,
    host: Host = None,
    port: Port = None,
    socket: Socket = None,
    hooks_port: HooksPort = None,
    open_: Open = False,
    as_json: AsJson = False,
) -> None:
    """Run the daemon until it is told to stop."""
    with refusing(as_json):
        settings = import_module(CONFIG).load_settings(
            **_flags(config, data, database, host, port, socket, hooks_port, open_)
        )
        code = import_module(DAEMON).serve(settings)
    raise typer.Exit(code or 0)


def show_config(
    config: Config = None,
    data: Folder = None,
    database: Database = None,
    host: Host = None,
    port: Port = None,
    socket: Socket = None,
    hooks_port: HooksPort = None,
    open_: Open = False,
    as_json: AsJson = False,
) -> None:
    """Print each setting and where it came from, as `serve` would have it with the same options."""
    with refusing(as_json):
        settings = import_module(CONFIG).load_settings(
            **_flags(config, data, database, host, port, socket, hooks_port, open_)
        )
        shown = list(settings.shown())
    if as_json:
        # A value may be a path or another type that only its own text can show.
        rows = [{"key": key, "value": _plain(value), "origin": str(origin)} for key, value, origin in shown]
        print_json({"settings": rows})
        return
    table(("setting", "value", "from"), [(key, _plain(value), str(origin)) for key, value, origin in shown])


def mcp(
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            metavar="NAME",
            help="The worker's name that claims carry beside the token's; else POSTROOM_AGENT.",
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="The daemon: http://HOST:PORT or unix:///PATH.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="A file with the token; else POSTROOM_TOKEN.")
    ] = None,
    channel: Annotated[
        bool, typer.Option("--channel", help="Push what comes for this agent: Claude Code's channel, while it runs.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="What the channel goes by; else --agent, else the folder's name."),
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="QUEUE", help="A queue whose work rings the channel.")
    ] = None,
    subscribe: Annotated[
        list[str] | None,
        typer.Option("--subscribe", metavar="CHANNEL", help="A channel of Postroom's whose messages are pushed."),
    ] = None,
    repository: Annotated[
        list[str] | None,
        typer.Option("--repo", metavar="SLUG", help="What it works on; by default what gita calls the working folder."),
    ] = None,
    no_repository: Annotated[bool, typer.Option("--no-repo", help="It works on no repository.")] = False,
    no_rings: Annotated[bool, typer.Option("--no-rings", help="Waiting work does not ring it.")] = False,
    ack: Annotated[
        Ack | None, typer.Option("--ack", help="Whether reading ends a delivery, or an acknowledgement alone.")
    ] = None,
) -> None:
    """Speak MCP on stdin and stdout, for an agent's tool configuration; with --channel, push messages to it as well."""
    seat = None
    if channel:
        from postroom.doors.cli.seat import seat_of

        seat = seat_of(
            name=name,
            agent=agent,
            queues=queue or (),
            channels=subscribe or (),
            repositories=repository or (),
            no_repository=no_repository,
            no_rings=no_rings,
            ack=ack,
        )
    elif any((name, queue, subscribe, repository, no_repository, no_rings, ack)):
        raise usage("these go with --channel: --name, --queue, --subscribe, --repo, --no-repo, --no-rings, --ack")
    with refusing(as_json=False):
        code = import_module(MCP).run(agent=agent, url=url, token_file=token_file, channel=seat)
    raise typer.Exit(code or 0)


def demo(
    story: Annotated[
        Story,
        typer.Argument(
            metavar="duo|ci",
            show_default=False,
            help="Instead: two agents, one of them busy; or a failed check that wakes an agent.",
        ),
    ] = "survival",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep its folder, with database and logs, and say where it is.")
    ] = False,
) -> None:
    """Show the whole in under a minute: one delivery, sent often, killed in mid-work, done once."""
    with refusing(as_json=False):
        code = import_module(DEMO).run_demo(story, keep=keep)
    raise typer.Exit(code or 0)


def status(as_json: AsJson = False, data: Data = None) -> None:
    """Say how the daemon is: ready or not, its queues, the deliveries that wait and why, its sweep, its warnings."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/status")
        where = str(daemon.address)
    tell(answer, as_json, lambda shown: show_status(shown, where))


def reload(as_json: AsJson = False, data: Data = None) -> None:
    """Have the daemon read its settings file's sources again, all or none; every other setting needs a restart."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", "/v1/reload", {})
    tell(answer, as_json, show_sources)
    if not as_json:
        note(f"read from {answer['settings_file'] or 'no settings file: the daemon has none'}")


def _flags(
    config: str | None,
    data: str | None,
    database: str | None,
    host: str | None,
    port: int | None,
    socket: str | None,
    hooks_port: int | None,
    open_: bool,
) -> dict[str, Any]:
    return {
        "config": config,
        "data": data,
        "database": database,
        "host": host,
        "port": port,
        "socket": socket,
        "hooks_port": hooks_port,
        # Left out is not the same as no: a file or the environment may say yes.
        "open_": open_ or None,
    }


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else str(value)
