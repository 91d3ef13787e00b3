"""How `postroom status` shows to people how the daemon stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from postroom.doors.cli.queue import show_queues
from postroom.doors.cli.table import cell, fields, line, note, short_time, span, table

FIRST: Final = ("version", "engine", "database")
ELSEWHERE: Final = {*FIRST, "ready", "uptime_s", "queues", "warnings", "events", "sweep", "deliveries", "post", "hooks"}


def show_status(answer: Mapping[str, Any], where: str) -> None:
    """Print how the daemon at this address stands."""
    fields(
        [
            ("daemon", where),
            ("ready", answer.get("ready")),
            *((name, answer.get(name)) for name in FIRST),
            ("uptime", span(answer.get("uptime_s"))),
            ("events", in_words(answer.get("events"))),
            ("sweep", in_words(answer.get("sweep"))),
            ("endpoints", in_words((answer.get("deliveries") or {}).get("endpoints"))),
            *_courier(answer.get("post") or {}),
            *((name, in_words(value)) for name, value in answer.items() if name not in ELSEWHERE),
            *((f"hooks/{name}", in_words(told)) for name, told in (answer.get("hooks") or {}).items()),
        ]
    )
    if answer.get("queues"):
        line()
        show_queues(answer["queues"])
    _show_deliveries(answer.get("deliveries") or {})
    for warning in answer.get("warnings") or ():
        note(f"warning: {warning}")


def _courier(post: Mapping[str, Any]) -> list[tuple[str, object]]:
    """The courier, and each of its carriers, in a line."""
    own = {name: value for name, value in post.items() if name not in {"running", "carriers", "without_carrier"}}
    told: list[tuple[str, object]] = []
    if "running" in post:
        runs = "runs" if post["running"] else "stands still"
        told.append(("courier", ", ".join(str(said) for said in (runs, in_words(own)) if said)))
    for kind, carrier in {**post.get("carriers", {}), **post.get("without_carrier", {})}.items():
        told.append((f"by {kind}", in_words(carrier) or "nothing yet"))
    return told


def in_words(value: object) -> object:
    """A structure as a line of words: names with their values, what is within in brackets, and nothing of what is not."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_inner(item)}" for name, item in value.items() if item not in (None, {}, []))
    if isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
        return "; ".join(str(in_words(item)) for item in value)
    return value if value is None else cell(short_time(value))


def _inner(value: object) -> str:
    nested = isinstance(value, dict | list | tuple)
    return f"({in_words(value)})" if nested else str(in_words(value))


def _show_deliveries(told: Mapping[str, Any]) -> None:
    if told.get("carriers"):
        line()
        table(
            ("carrier", "pending", "oldest", "retrying", "being written", "awaiting ack", "failed"),
            [
                (
                    one["carrier"],
                    one["pending"],
                    span(one["oldest_pending_age_s"]),
                    one["retrying"],
                    one["being_written"],
                    one["awaiting_ack"],
                    one["failed"],
                )
                for one in told["carriers"]
            ],
        )
    if told.get("deferred"):
        line()
        table(
            ("waits for", "at", "waiting", "since", "because"),
            [
                (one["mailbox"], _place(one["target"]), one["waiting"], short_time(one["since"]), one["reason"])
                for one in told["deferred"]
            ],
        )


def _place(target: str) -> str:
    """Where a target is, for people: a pane by its id and its server's socket, anything else by its carrier."""
    carrier, _, rest = target.partition(":")
    socket, *server = rest.rsplit(":", 3)
    return f"tmux pane {server[-1]} of {socket}" if carrier == "tmux" and len(server) == 3 else carrier
