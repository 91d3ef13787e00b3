"""What the post's tools answer: views of messages that fit an answer's size and say where the rest is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom import mail_wire
from postroom.doors.mcp.results import MAX_RESULT_BYTES, size_of
from postroom.message import Delivery, Letter, Posted
from postroom.post import Occupant
from postroom.text import cut
from postroom.wire import show_time

_FRAME_BYTES = 512
_ROOM = MAX_RESULT_BYTES - _FRAME_BYTES
_STUB_BYTES = 48

_CONTENT = ("id", "from", "to", "channel", "kind", "priority", "reply_to", "payload", "created_at")


def letter(shown: Letter) -> dict[str, Any]:
    """A message of an inbox; what is null is left out."""
    view = mail_wire.message_view(shown.message)
    told = {key: view[key] for key in _CONTENT if view[key] is not None}
    told["handed_off_at"] = show_time(mail_wire.handed_off_at(shown.delivery))
    told["state"] = str(shown.delivery.state)
    told["read"] = shown.read
    return told


def letters_that_fit(letters: Sequence[Letter]) -> list[dict[str, Any]]:
    """The first of these, as many as an answer holds; one at least, its payload cut and marked if it has to be."""
    lines: list[dict[str, Any]] = []
    room = _ROOM
    for one in letters:
        told = letter(one)
        room -= size_of(told) + 1
        if room < 0:
            if not lines:
                lines.append(_cut(told))
            break
        lines.append(told)
    return lines


def _cut(told: dict[str, Any]) -> dict[str, Any]:
    id_ = told["id"]
    told = {
        **told,
        "payload_truncated": True,
        "whole": f"GET /v1/messages/{id_}, or: postroom message show {id_} --json",
    }
    room = _ROOM - size_of({**told, "payload": ""})
    limit = room
    while limit > _STUB_BYTES:
        head = cut(told["payload"], limit)
        size = size_of(head)
        if size <= room:
            return {**told, "payload": head}
        limit = min(limit - 1, limit * room // size)
    return {**told, "payload": "…"}


def receipt(posted: Posted) -> dict[str, Any]:
    """A message without its payload, and how each delivery stands; of very many the first are shown, the rest counted."""
    view = mail_wire.message_view(posted.message)
    told: dict[str, Any] = {key: view[key] for key in _CONTENT if key != "payload" and view[key] is not None}
    told["deliveries"] = _first(told, [_delivery(one) for one in posted.deliveries])
    left = len(posted.deliveries) - len(told["deliveries"])
    if left:
        told["deliveries_left_out"] = left
    return told


def _delivery(one: Delivery) -> dict[str, Any]:
    view = mail_wire.delivery_view(one)
    shown = (
        "mailbox",
        "carrier",
        "endpoint_id",
        "state",
        "attempts",
        "next_attempt_at",
        "reason",
        "last_failure_reason",
        "deferred_reason",
        "delivered_at",
        "acknowledged_at",
    )
    return {key: view[key] for key in shown if view[key] is not None}


def occupants_that_fit(occupants: Sequence[Occupant]) -> list[dict[str, Any]]:
    """The first of these, as many as an answer holds; what is null or empty is left out."""
    lines = [
        {key: value for key, value in mail_wire.occupant_view(one).items() if value not in (None, [])}
        for one in occupants
    ]
    return _first({}, lines)


def _first(besides: object, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    room = _ROOM - size_of(besides)
    for n, told in enumerate(lines):
        room -= size_of(told) + 1
        if room < 0:
            return lines[:n]
    return lines
