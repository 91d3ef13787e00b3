"""`postroom tail`: what happens, a line each, while it happens."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from postroom.doors.cli.asking import AsJson, Data, asking
from postroom.doors.cli.plain import seconds
from postroom.doors.cli.table import GAP, cell, note, print_json

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon
    from postroom.happening import Happening, HappeningFilter

FIRST_PAUSE_S: Final = 0.25
MOST_PAUSE_S: Final = 2.0
"""How long it waits between two tries to reach a daemon that is away."""


def tail(
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only of this event, todo, message or endpoint.")
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="QUEUE", help="Only of this queue; several widen it.")
    ] = None,
    mailbox: Annotated[
        list[str] | None, typer.Option("--mailbox", metavar="NAME", help="Only of this mailbox; several widen it.")
    ] = None,
    what: Annotated[
        list[str] | None,
        typer.Option(
            "--what", metavar="WHAT", help="Only todo, event, message, delivery, endpoint or queue; or todo.done."
        ),
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--for", parser=seconds, metavar="DURATION", help="End after so long.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", metavar="N", help="End after so many.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Watch what happens from now on, a line each; Ctrl-C ends it.

    What happened before is told by `trace`. A line that says lagged stands for happenings that were not told.
    """
    if count is not None and count < 1:
        raise typer.BadParameter(f"{count} is no number of happenings; expected 1 or more", param_hint="--count")
    from postroom.happening import HappeningFilter

    wanted = HappeningFilter(tuple(queue or ()), tuple(mailbox or ()), tuple(what or ()), id)
    until = None if duration is None else time.monotonic() + duration
    show = _show_json if as_json else _show
    with asking(as_json, data) as daemon:
        try:
            for number, happening in enumerate(_follow(daemon, wanted, until), 1):
                show(happening)
                sys.stdout.flush()
                if number == count:
                    return
        except KeyboardInterrupt:
            return


def _follow(daemon: Daemon, wanted: HappeningFilter, until: float | None) -> Iterator[Happening]:
    """What happens, across breaks of the connection, to the end of the time or of whoever reads our lines."""
    from postroom.doors.cli.connection import Unreachable
    from postroom.doors.cli.following import Followed, Over, rest
    from postroom.errors import Unavailable
    from postroom.happening import LAGGED, Happening

    began, away, pause = False, False, FIRST_PAUSE_S
    try:
        while True:
            try:
                with Followed(daemon, wanted, until) as followed:
                    if began:
                        note("listening again")
                        yield Happening(
                            time.time_ns() // 1_000_000, LAGGED, "", words="the daemon was away: look again"
                        )
                    began, away, pause = True, False, FIRST_PAUSE_S
                    yield from followed
            except (Unreachable, Unavailable) as error:
                if not began:
                    raise
                if not away:
                    note(f"{error.message}; waiting for the daemon")
                away = True
            rest(pause, until)
            pause = min(pause * 2, MOST_PAUSE_S)
    except Over:
        return


def _show_json(happening: Happening) -> None:
    from postroom.happening_wire import happening_view

    print_json(happening_view(happening))


def _show(happening: Happening) -> None:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(happening.at / 1000))
    where = happening.queue or happening.mailbox
    words = (moment, f"{cell(happening.what):<21}", cell(happening.id or None), cell(where), cell(happening.who))
    print(GAP.join((*words, cell(happening.words))).rstrip())
