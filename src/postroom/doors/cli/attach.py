"""`postroom attach` and `postroom detach`: a pane, a session or an inbox becomes a place that takes messages, or ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

import typer

from postroom.doors.cli.asking import AsJson, Data, asking, given, usage
from postroom.doors.cli.pane import Pane
from postroom.doors.cli.session import Session
from postroom.doors.cli.table import line, note, print_json
from postroom.errors import Conflict, Invalid, NotFound, PostroomError, Unavailable

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

BEAT_S: Final = 15.0
LIVE_S: Final = 45.0
"""How long after its last sign of life an endpoint counts as live; one that was silent for longer may be replaced."""

TURN_OFF: Final = "; messages for a repository need that registry, unless postroom.toml says [gita] required = false"

Mode = Literal["injected", "acknowledged"]
PaneOption = Annotated[
    str | None, typer.Option("--pane", metavar="PANE", help="Another pane than this one, by its id as %3.")
]
SocketOption = Annotated[
    Path | None,
    typer.Option(
        "--tmux-socket", metavar="PATH", help="That pane's tmux server; this one's, or the usual, by default."
    ),
]


def attach(
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="What it goes by: send --to NAME.")] = None,
    repository: Annotated[
        list[str] | None,
        typer.Option("--repo", metavar="SLUG", help="What it works on; by default what gita calls the working folder."),
    ] = None,
    no_repository: Annotated[bool, typer.Option("--no-repo", help="It is attached to no repository.")] = False,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="QUEUE", help="A queue whose work rings it.")
    ] = None,
    channel: Annotated[
        list[str] | None, typer.Option("--channel", metavar="CHANNEL", help="A channel whose messages it gets.")
    ] = None,
    ack: Annotated[
        Mode | None, typer.Option("--ack", help="Whether the write ends a delivery, or an acknowledgement.")
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option("--max-attempts", metavar="N", help="How often a delivery is tried: 1 to 9; 5 by default."),
    ] = None,
    spill: Annotated[
        bool, typer.Option("--spill", help="Bodies over 4000 bytes go into a private file, and a line points there.")
    ] = False,
    no_rings: Annotated[bool, typer.Option("--no-rings", help="Waiting work does not ring it.")] = False,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="Read the pane by this agent's rules, not by its program's."),
    ] = None,
    pane: PaneOption = None,
    tmux_socket: SocketOption = None,
    inbox: Annotated[bool, typer.Option("--inbox", help="No pane: an inbox that NAME reads; needs --name.")] = False,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="No pane: an opencode session, as $OPENCODE_SESSION_ID has it."),
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Stay, give signs of life, and detach at Ctrl-C, or when the pane closes.")
    ] = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Make this tmux pane a place that takes messages, and return: start your agent in it, or let it go on.

    The daemon looks after the pane: it ends as a place when it closes. What was attached here before ends now. A session
    is attached under opencode's own token where `postroom setup opencode` made one, and goes by its name.
    """
    if session is not None and (inbox or pane is not None or tmux_socket is not None or agent is not None or spill):
        other = "--inbox" if inbox else "--pane, --tmux-socket, --agent and --spill"
        raise usage(f"--session is neither pane nor inbox: without {other}", "--session")
    if inbox and (pane is not None or tmux_socket is not None or agent is not None or spill):
        raise usage("--inbox is no pane: without --pane, --tmux-socket, --agent and --spill", "--inbox")
    if inbox and name is None:
        raise usage("--inbox needs --name: an inbox is its name", "--name")
    if no_repository and repository:
        raise usage("--repo and --no-repo exclude each other", "--no-repo")
    talk = None if session is None else Session.named(session)
    place = None if inbox or talk is not None else Pane.find(pane, tmux_socket, os.environ)
    carrier, address = "inbox", {}
    if talk is not None:
        carrier, address = "opencode", dict(talk.address)
    elif place is not None:
        caller = os.getpid() if place.own else None
        carrier, address = "tmux", given(socket=place.socket, pane=place.pane, agent=agent, caller=caller)
    asked: dict[str, Any] = {
        "carrier": carrier,
        "address": address,
        "spill": spill,
        "rings": not no_rings,
        "queues": list(queue or ()),
        "channels": list(channel or ()),
        "repositories": list(repository or ()),
        **given(name=name, ack_mode=ack, delivery_max_attempts=max_attempts, pid=os.getpid() if stay else None),
    }
    with asking(as_json, data) as daemon:
        remarks = []
        if not no_repository and (place is not None or repository):
            remarks = _repositories(daemon, asked["repositories"], place)
        attaching = daemon
        if talk is not None and name is None:
            attaching, own = talk.owner(daemon, data)
            asked |= given(name=own)
        answer = attaching.ask("POST", "/v1/endpoints", asked)
        endpoint = answer["endpoint"]
        if answer.get("note"):
            remarks = [*remarks, f"note: {answer['note']}"]
        if as_json:
            print_json({"endpoint": endpoint})
        else:
            _show(endpoint)
        for remark in remarks:
            for one in remark.split("\n"):
                note(one)
        if stay:
            _stay(attaching, asked, endpoint)


def detach(
    endpoint: Annotated[
        str | None, typer.Argument(metavar="[ENDPOINT]", help="Its id or name; this pane's by default.")
    ] = None,
    pane: PaneOption = None,
    tmux_socket: SocketOption = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """End a place that takes messages, for ever; what waits for it waits on."""
    if endpoint is not None and (pane is not None or tmux_socket is not None):
        raise usage("an endpoint and --pane exclude each other", "--pane")
    place = Pane.find(pane, tmux_socket, os.environ) if endpoint is None else None
    with asking(as_json, data) as daemon:
        from postroom.doors.cli.connection import segment

        id_ = _meant(daemon, endpoint, place)
        answer = daemon.ask("DELETE", f"/v1/endpoints/{segment(id_)}")
    if as_json:
        print_json(answer)
    else:
        line(answer["endpoint"]["id"], "detached")


def _meant(daemon: Daemon, endpoint: str | None, place: Pane | None) -> str:
    """The id of the endpoint that is to end. Raises NotFound, and Conflict where several have the name."""
    if endpoint is not None and endpoint.startswith("ep_"):
        return endpoint
    found = daemon.ask("GET", "/v1/endpoints", query={"name": endpoint})["endpoints"]
    if place is not None:
        found = [one for one in found if one["carrier"] == "tmux" and place.is_at(one["address"])]
    what = f"the pane {place.pane}" if place is not None else f"the name {endpoint}"
    if not found:
        raise NotFound(f"nothing is attached at {what}")
    if len(found) > 1:
        raise Conflict(f"{len(found)} endpoints are attached at {what}: {', '.join(one['id'] for one in found)}")
    return str(found[0]["id"])


def _show(endpoint: Mapping[str, Any]) -> None:
    address = endpoint["address"]
    where = "an inbox"
    if endpoint["carrier"] == "tmux":
        where = f"pane {address.get('pane')} ({address.get('agent') or address.get('program')})"
    elif endpoint["carrier"] == "opencode":
        where = f"session {address.get('session')}"
    names = f"as {endpoint['name']}" if endpoint["name"] else ""
    works = f"for {', '.join(endpoint['repositories'])}" if endpoint["repositories"] else ""
    line(endpoint["id"], "attached:", where, names, works)


def _repositories(daemon: Daemon, repositories: list[str], place: Pane | None) -> list[str]:
    """Fill in what gita calls the working folder when no repository is named; what is to be said of the registry."""
    from postroom.services.gita import GitaRegistry, registry_file

    told: Mapping[str, Any] = {}
    # Not everybody may see how the daemon stands; then this user's own registry has to do.
    with contextlib.suppress(PostroomError):
        told = daemon.ask("GET", "/v1/status").get("gita") or {}
    required = told.get("required", True) is not False
    registry = GitaRegistry(Path(told["file"]) if "file" in told else registry_file(os.environ, Path.home()))
    also = TURN_OFF if required else ""
    try:
        if repositories:
            for repository in repositories if required else ():
                registry.check(repository, "--repo")
            return []
        folder = place.folder() if place is not None else None
        slug = registry.slug_of(folder) if folder is not None else None
    except Invalid as error:
        return [f"note: {error.message}{also}"]
    except Unavailable as error:
        return [f"note: {error.message.partition(';')[0]}{also}"]
    if slug is not None:
        repositories.append(slug)
        return []
    if not registry.file.exists():
        if not required:
            return []
        return [f"note: there is no gita registry {registry.file}: attached to no repository, --repo names one{also}"]
    return [f"note: {folder} is in no repository that gita knows: attached to none; `gita add {folder}`, or --repo"]


def _stay(daemon: Daemon, asked: Mapping[str, Any], endpoint: Mapping[str, Any]) -> None:
    """Give signs of life until somebody ends this, or the place; then detach."""

    def leave(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    there = _Beating(daemon, asked, endpoint)
    try:
        while there.standing:
            time.sleep(BEAT_S)
            there.beat()
    except KeyboardInterrupt:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        there.detach()


class _Beating:
    """An attachment that is kept: it outlives a daemon that is away, and is made anew where it was given up for lost."""

    def __init__(self, daemon: Daemon, asked: Mapping[str, Any], endpoint: Mapping[str, Any]) -> None:
        self._daemon = daemon
        self._asked = asked
        self._id = str(endpoint["id"])
        self._target = endpoint["target"]
        self._heard = time.monotonic()
        self._away = False
        self.standing = True

    def beat(self) -> None:
        """One sign of life. Raises what the daemon refuses an attachment with."""
        from postroom.doors.cli.connection import Unreachable

        try:
            self._beat()
        except (Unreachable, Unavailable) as error:
            if not self._away:
                note(f"the daemon is away: {error.message}; waiting for it")
            self._away = True
            return
        if self._away:
            note("the daemon is back")
        self._away, self._heard = False, time.monotonic()

    def _beat(self) -> None:
        try:
            self._daemon.ask("POST", f"/v1/endpoints/{self._id}/heartbeat", {})
        except NotFound:
            self._again()
        except Conflict:
            self._ended()

    def _ended(self) -> None:
        """It ended: by another attachment at its place, by its user, or because it had been silent for too long."""
        found = [one for one in self._daemon.ask("GET", "/v1/endpoints")["endpoints"] if one["target"] == self._target]
        mine = [str(one["id"]) for one in found if one["pid"] == os.getpid()]
        if mine:
            # Made here by a call whose answer was lost.
            self._id = mine[0]
        elif found:
            note("another attachment took this place")
            self.standing = False
        elif time.monotonic() - self._heard < LIVE_S:
            note("it was detached")
            self.standing = False
        else:
            self._again()

    def _again(self) -> None:
        endpoint = self._daemon.ask("POST", "/v1/endpoints", self._asked)["endpoint"]
        self._id, self._target = str(endpoint["id"]), endpoint["target"]
        note(f"{self._id} attached in its place")

    def detach(self) -> None:
        """Standing -> detached, where the daemon can be told."""
        from postroom.doors.cli.connection import Unreachable

        try:
            self._daemon.ask("DELETE", f"/v1/endpoints/{self._id}")
            said = f"{self._id} detached"
        except (Unreachable, PostroomError) as error:
            said = f"the daemon could not be told: {error.message}"
        # A pane that closed takes no words any more.
        with contextlib.suppress(OSError):
            note(said)
