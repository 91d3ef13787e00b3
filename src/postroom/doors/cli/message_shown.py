"""How messages are printed: a line, a list, or one whole with its deliveries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from postroom.doors.cli.table import fields, line, note, printed, short_time, table


def standing(message: Mapping[str, Any]) -> str:
    """Where a message stands, in a few words: the state of its delivery, or how many are in which."""
    deliveries = message["deliveries"]
    if not deliveries:
        return "for nobody"
    if len(deliveries) == 1:
        return _state(deliveries[0])
    counted = Counter(_state(one) for one in deliveries)
    return ", ".join(f"{count} {state}" for state, count in counted.items())


def recipient(message: Mapping[str, Any]) -> str:
    """Whom a message is for, as its sender named it."""
    return f"#{message['channel']}" if message["channel"] is not None else str(message["to"] or message["target_repo"])


def whom(message: Mapping[str, Any]) -> str:
    """The same by name: an endpoint that was meant by its id goes by the name of its inbox."""
    named = recipient(message)
    if named.startswith("ep_") and len(message["deliveries"]) == 1:
        return str(message["deliveries"][0]["mailbox"])
    return named


def show_line(answer: Mapping[str, Any]) -> None:
    """Print a message in one line."""
    message = answer["message"]
    line(message["id"], standing(message), "to", recipient(message))


def show_whole(answer: Mapping[str, Any]) -> None:
    """Print a message with its payload and deliveries."""
    message = answer["message"]
    fields(
        [
            ("id", message["id"]),
            ("from", message["from"]),
            ("to", recipient(message)),
            ("kind", message["kind"]),
            ("priority", message["priority"]),
            ("state", standing(message)),
            *((name, message.get(name)) for name in ("reply_to", "ack_mode", "created_by", "created_at", "expires_at")),
            ("metadata", message.get("metadata")),
        ]
    )
    line("payload:")
    printed(message["payload"])
    if message["deliveries"]:
        line()
        table(
            ("id", "to", "by", "state", "try", "since", "why"),
            [
                (
                    one["id"],
                    one["mailbox"],
                    one["carrier"],
                    _state(one),
                    f"{one['attempts']}/{one['max_attempts']}",
                    short_time(_since(one)),
                    _why(one),
                )
                for one in message["deliveries"]
            ],
        )


def _state(delivery: Mapping[str, Any]) -> str:
    return "cancelled" if delivery.get("reason") == "cancelled" else str(delivery["state"])


def _since(delivery: Mapping[str, Any]) -> object:
    reached = {"acknowledged": "acknowledged_at", "injected": "delivered_at", "awaiting_ack": "delivered_at"}
    return delivery.get(reached.get(str(delivery["state"]), "updated_at")) or delivery.get("updated_at")


def _why(delivery: Mapping[str, Any]) -> str | None:
    said: list[str] = []
    if delivery.get("reason") not in {None, "cancelled"}:
        said.append(str(delivery["reason"]))
    if delivery["state"] == "pending" and delivery.get("deferred_reason"):
        said.append(f"waits: {delivery['deferred_reason']}")
    if delivery["state"] in {"pending", "failed"} and delivery.get("last_failure_reason"):
        said.append(str(delivery["last_failure_reason"]))
    if delivery.get("next_attempt_at"):
        said.append(f"again at {short_time(delivery['next_attempt_at'])}")
    if delivery["state"] == "failed" and delivery.get("may_have_been_written"):
        said.append("it may have been written")
    if delivery["state"] == "awaiting_ack" and delivery.get("ack_deadline"):
        said.append(f"ack until {short_time(delivery['ack_deadline'])}")
    return "; ".join(said) or None


def show_list(answer: Mapping[str, Any]) -> None:
    table(
        ("id", "from", "to", "kind", "pri", "state", "sent", "payload"),
        [
            (
                one["id"],
                one["from"],
                whom(one),
                one["kind"],
                one["priority"],
                standing(one),
                short_time(one["created_at"]),
                _beginning(one["payload"]),
            )
            for one in answer["messages"]
        ],
    )
    if answer.get("next_cursor"):
        note(f"more: --cursor {answer['next_cursor']}")


def _beginning(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
