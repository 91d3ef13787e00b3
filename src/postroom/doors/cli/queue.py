"""`postroom queue`: the queues with their depths, and their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroom.doors.cli.asking import AsJson, Data, asking, usage
from postroom.doors.cli.plain import Verbs, seconds
from postroom.doors.cli.table import fields, line, note, span, table, tell
from postroom.errors import PostroomError

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

app = Verbs("See and set queues.")


@dataclass(frozen=True, slots=True)
class Setting:
    """The word given for a setting: a number, or None for `default`."""

    value: float | int | None


def duration(word: str) -> Setting:
    """A duration, or `default`. Raises ValueError."""
    return _setting(word, seconds)


def count(word: str) -> Setting:
    """A whole number, or `default`. Raises ValueError."""
    return _setting(word, int)


def _setting(word: str, read: Callable[[str], float | int]) -> Setting:
    if word == "default":
        return Setting(None)
    try:
        return Setting(read(word))
    except ValueError:
        expected = "a whole number" if read is int else "a duration as 90, 15m or 2h"
        raise ValueError(f"{word!r} is no value; expected {expected}, or the word default") from None


Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]


def _option(flag: str, parser: Callable[[str], Setting], help: str) -> Any:
    metavar = "N|default" if parser is count else "DURATION|default"
    return typer.Option(flag, parser=parser, metavar=metavar, help=help)


@app.command("list")
def list_queues(as_json: AsJson = False, data: Data = None) -> None:
    """List the queues with their depths by state and the age of their oldest pending todo."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/queues")
    tell(answer, as_json, lambda shown: show_queues(shown["queues"]))


@app.command("set")
def set_queue(
    name: Name,
    lease: Annotated[Setting | None, _option("--lease", duration, "How long a claim holds; 5m.")] = None,
    max_attempts: Annotated[Setting | None, _option("--max-attempts", count, "Before a dead letter; 5.")] = None,
    backoff: Annotated[Setting | None, _option("--backoff", duration, "Wait after the first failure; 30s.")] = None,
    backoff_cap: Annotated[Setting | None, _option("--backoff-cap", duration, "The longest such wait; 15m.")] = None,
    max_in_flight: Annotated[
        Setting | None, _option("--max-in-flight", count, "How many may be claimed at once; no bound.")
    ] = None,
    keep_done: Annotated[Setting | None, _option("--keep-done", duration, "How long done todos stay; 14d.")] = None,
    keep_dead: Annotated[Setting | None, _option("--keep-dead", duration, "How long dead letters stay; 90d.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Set what is given and leave the rest; the word `default` sets a default again."""
    asked = {
        "lease_s": lease,
        "max_attempts": max_attempts,
        "backoff_s": backoff,
        "backoff_cap_s": backoff_cap,
        "max_in_flight": max_in_flight,
        "keep_done_s": keep_done,
        "keep_dead_s": keep_dead,
    }
    body = {field: setting.value for field, setting in asked.items() if setting is not None}
    if not body:
        raise usage("name what is to be set, as --lease 10m; `postroom queue set --help` has the settings")
    _put(name, body, as_json, data)


@app.command("pause")
def pause(name: Name, as_json: AsJson = False, data: Data = None) -> None:
    """Stop claims from a queue; everything else goes on."""
    _put(name, {"paused": True}, as_json, data)


@app.command("resume")
def resume(name: Name, as_json: AsJson = False, data: Data = None) -> None:
    """Let claims from a queue go on."""
    _put(name, {"paused": False}, as_json, data)


def _put(name: str, body: Mapping[str, Any], as_json: bool, data: Data) -> None:
    from postroom.doors.cli.connection import segment

    if not name:
        raise usage("an empty name names no queue", "QUEUE")
    with asking(as_json, data) as daemon:
        new = unseen(daemon, [name])
        answer = daemon.ask("PUT", f"/v1/queues/{segment(name)}", body)
    tell(answer, as_json, _show_settings)
    for said in new:
        note(f"{said}: it is made{', paused' if body.get('paused') else ''}")


def unseen(daemon: Daemon, names: Sequence[str]) -> list[str]:
    """A line for each of these queues that is none yet, with the one that may be meant: it may be a slip of the pen."""
    from difflib import get_close_matches

    try:
        known = [queue["name"] for queue in daemon.ask("GET", "/v1/queues")["queues"]]
    except PostroomError:
        return []  # It is a remark; what was asked for has its own answer.
    said = []
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            said.append(f"there is no queue {name} yet{f' (is {near[0]} meant?)' if near else ''}")
    return said


def _show_settings(answer: Mapping[str, Any]) -> None:
    queue = answer.get("queue", answer)
    line(queue["name"], "is paused" if queue["paused"] else "is open")
    names = ("lease_s", "max_attempts", "backoff_s", "backoff_cap_s", "max_in_flight", "keep_done_s", "keep_dead_s")
    fields(
        [
            (
                f"  {name.removesuffix('_s')}",
                "default" if queue[name] is None else span(queue[name]) if name.endswith("_s") else queue[name],
            )
            for name in names
            if name in queue and (queue[name] is not None or name != "max_in_flight")
        ]
    )


def show_queues(queues: Sequence[Mapping[str, Any]]) -> None:
    """Print queues with their depths."""
    table(
        ("queue", "state", "pending", "claimed", "parked", "dead", "oldest", "lease", "in flight"),
        [
            (
                queue["name"],
                "paused" if queue["paused"] else "open",
                queue["pending"],
                queue["claimed"],
                queue["parked"],
                queue["dead"],
                span(queue["oldest_pending_age_s"]),
                span(queue["lease_s"]),
                queue["max_in_flight"] and f"<= {queue['max_in_flight']}",
            )
            for queue in queues
        ],
    )
