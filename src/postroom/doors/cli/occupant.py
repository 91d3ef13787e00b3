"""Those who work here, told apart: by the place they sit in, and by the ids of their endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from postroom.doors.cli.table import GAP, cell
from postroom.errors import PostroomError

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

MOST_SHOWN: Final = 20


def place(one: Mapping[str, Any]) -> str | None:
    """The directory that somebody sits in, with its branch; None where that is not known."""
    if one["directory"] is None:
        return None
    return str(one["directory"]) + (f" ({one['branch']})" if one["branch"] else "")


def apart(daemon: Daemon, endpoints: Sequence[object]) -> list[str]:
    """A line for each of these endpoints: its id, how it is reached, and where it sits, as far as that is known."""
    from postroom.doors.cli.connection import Unreachable

    try:
        known = {one["endpoint_id"]: one for one in daemon.ask("GET", "/v1/who")["who"]}
    except (PostroomError, Unreachable):
        known = {}
    lines: list[str] = []
    for endpoint in endpoints[:MOST_SHOWN]:
        one = known.get(endpoint)
        told = [] if one is None else [one["name"], one["carrier"], place(one)]
        lines.append(GAP.join(cell(word) for word in (endpoint, *told) if word is not None))
    if len(endpoints) > MOST_SHOWN:
        lines.append(f"and {len(endpoints) - MOST_SHOWN} more: postroom endpoints --live")
    return lines
