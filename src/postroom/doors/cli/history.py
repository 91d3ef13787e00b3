"""`postroom history`: the receipts of what was sent, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from postroom.doors.cli.asking import AsJson, Cursor, Data, Limit, asking, given
from postroom.doors.cli.message import State
from postroom.doors.cli.message_shown import standing, whom
from postroom.doors.cli.table import note, short_time, table, tell


def history(
    repository: Annotated[
        str | None, typer.Option("--repo", metavar="SLUG", help="Only what was sent to this repository.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="ENDPOINT", help="Only what went to this endpoint, by its id.")
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="CLIENT", help="Only what this client of the socket sent.")
    ] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only with a delivery in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Show what became of the messages, newest first: when each was sent, written and acknowledged, and why not."""
    query = given(target_repo=repository, endpoint_id=endpoint, client_id=client, state=state)
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/messages", query={**query, **given(cursor=cursor, limit=limit)})
    tell(answer, as_json, _show)


def _show(answer: Mapping[str, Any]) -> None:
    table(
        ("id", "from", "to", "state", "try", "sent", "written", "acknowledged", "why"),
        [
            (
                one["id"],
                one["from"],
                whom(one),
                standing(one),
                _tries(one["deliveries"]),
                short_time(one["created_at"]),
                short_time(_last(one["deliveries"], "delivered_at")),
                short_time(_last(one["deliveries"], "acknowledged_at")),
                _why(one["deliveries"]),
            )
            for one in answer["messages"]
        ],
    )
    if answer.get("next_cursor"):
        note(f"more: --cursor {answer['next_cursor']}")


def _tries(deliveries: list[Mapping[str, Any]]) -> str | None:
    return ", ".join(f"{one['attempts']}/{one['max_attempts']}" for one in deliveries) or None


def _last(deliveries: list[Mapping[str, Any]], field: str) -> str | None:
    return max((one[field] for one in deliveries if one.get(field)), default=None)


def _why(deliveries: list[Mapping[str, Any]]) -> str | None:
    """Why what is not written yet is not, and why what failed did."""
    said: list[str] = []
    for one in deliveries:
        if one["state"] == "pending" and one.get("deferred_reason"):
            said.append(f"waits: {one['deferred_reason']}")
        elif one["state"] in {"pending", "failed"}:
            said += [str(one[field]) for field in ("reason", "last_failure_reason") if one.get(field)]
    return "; ".join(dict.fromkeys(said)) or None
