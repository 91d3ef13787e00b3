"""How `postroom todo` shows todos to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroom.doors.cli.table import block, fields, line, note, short_time, table


def standing(todo: Mapping[str, Any]) -> str:
    """The state for people: a failed todo is parked, cancelled or dead."""
    if todo["state"] != "failed":
        return str(todo["state"])
    if todo.get("next_retry_at"):
        return "parked"
    return "cancelled" if todo.get("reason") == "cancelled" else "dead"


def show_line(answer: Mapping[str, Any]) -> None:
    """A todo in one line."""
    todo = answer["todo"]
    state = standing(todo)
    until = {"claimed": todo.get("lease_expires_at"), "parked": todo.get("next_retry_at")}.get(state)
    line(todo["id"], state, _whose(todo), until and f"until {until}", "(replayed)" if answer.get("replayed") else "")


def _whose(todo: Mapping[str, Any]) -> str | None:
    """For whom it waits, where it waits for somebody."""
    return f"for {todo['assignee']}" if todo["state"] == "pending" and todo.get("assignee") else None


def show_created(answer: Mapping[str, Any]) -> None:
    """A new todo in one line, or the one that was there already."""
    todo = answer["todo"]
    again = "" if answer.get("created") else "(was there already)"
    line(todo["id"], standing(todo), "in", todo["queue"], _whose(todo), again)


def show_list(answer: Mapping[str, Any]) -> None:
    """A page of todos as a table."""
    table(
        ("id", "queue", "state", "pri", "try", "owner", "created", "title"),
        [
            (
                todo["id"],
                todo["queue"],
                standing(todo),
                todo["priority"],
                f"{todo['attempt']}/{todo['max_attempts']}",
                todo["owner"] or (todo["assignee"] and f"for {todo['assignee']}"),
                short_time(todo["created_at"]),
                todo["title"],
            )
            for todo in answer["todos"]
        ],
    )
    if answer.get("next_cursor"):
        note(f"more: --cursor {answer['next_cursor']}")


def show_claimed(answer: Mapping[str, Any]) -> None:
    """The todos of a claim, each whole."""
    if not answer["todos"]:
        note("nothing to claim")
    for place, todo in enumerate(answer["todos"]):
        if place:
            line()
        show_whole({"todo": todo})


def show_whole(answer: Mapping[str, Any]) -> None:
    """A todo with payload, result and the history of its attempts."""
    todo = answer["todo"]
    plain = ("kind", "source", "event_id", "idempotency_key", "created_by", "created_at", "available_at")
    later = ("claimed_at", "lease_expires_at", "next_retry_at", "completed_at", "reason", "error")
    fields(
        [
            ("id", todo["id"]),
            ("title", todo["title"]),
            ("queue", todo["queue"]),
            ("state", standing(todo)),
            ("owner", todo["owner"]),
            ("lease", todo.get("lease_id")),
            ("assignee", todo["assignee"]),
            ("attempt", f"{todo['attempt']} of {todo['max_attempts']}"),
            ("priority", todo["priority"]),
            *((name, todo.get(name) or None) for name in (*plain, *later)),
        ]
    )
    block("payload", todo.get("payload"))
    block("result", todo.get("result"))
    history = todo.get("history")
    if history:
        line()
        table(
            ("ended", "outcome", "owner", "claimed", "note"),
            [
                (
                    short_time(entry["ended_at"]),
                    entry["outcome"],
                    entry["owner"],
                    short_time(entry["claimed_at"]),
                    entry["note"],
                )
                for entry in history
            ],
        )
