"""`postroom doctor`: everything that may be wrong with an installation, a line a check, each with what to do about it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Final

import typer

from postroom.doors.cli.asking import REFUSED, UNREACHABLE, AsJson, Data
from postroom.doors.cli.checks.found import Line, State
from postroom.doors.cli.table import line, print_json, width

if TYPE_CHECKING:
    from postroom.doors.cli.checks.check import Check


def doctor(
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="The settings file; else POSTROOM_CONFIG, postroom.toml."),
    ] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Check the whole installation: a line a check, with its fix.

    It changes nothing, and ends with 0 when nothing fails, with 1 when something does, and with 3 when no daemon answers.
    """
    from postroom.doors.cli.checks.check import run
    from postroom.doors.cli.checks.scene import Scene

    scene = Scene(dict(os.environ), data=data, config=config)
    lines = run(every_check(), scene)
    if as_json:
        print_json([one.as_dict() for one in lines])
    else:
        show(lines)
    code = exit_code(lines, reached=any(one.check == REACHED and one.state is State.OK for one in lines))
    if code:
        raise typer.Exit(code)


REACHED: Final = "daemon.reached"


def every_check() -> tuple[Check, ...]:
    """Every check, in the order that it is shown in."""
    from postroom.doors.cli.checks import clients, daemon, local, mcp, post, sources, work

    nouns = (local, daemon, sources, post, clients, mcp, work)
    return tuple(check for noun in nouns for check in noun.CHECKS)


def exit_code(lines: Sequence[Line], *, reached: bool) -> int:
    """0 when nothing fails, 1 when something does, 3 when there was no daemon to ask."""
    if not reached:
        return UNREACHABLE
    return REFUSED if any(one.state is State.FAIL for one in lines) else 0


def show(lines: Sequence[Line]) -> None:
    """The lines under their groups, and how many came out how."""
    for group, members in groupby(lines, _group):
        line(group)
        shown = list(members)
        wide = max(width(_subject(one)) for one in shown)
        for one in shown:
            subject = _subject(one)
            fix = "" if one.fix is None else f" -> {one.fix}"
            print(f"  {one.state:<4}  {subject}{' ' * (wide - width(subject))}  {one.found}{fix}".rstrip())
    counts = Counter(one.state for one in lines)
    line(", ".join(f"{counts[state]} {state}" for state in State))


def _group(one: Line) -> str:
    return one.check.partition(".")[0]


def _subject(one: Line) -> str:
    return one.check.partition(".")[2]
