"""What the post's tools answer: views of messages that fit an answer's size and say where the rest is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom import mail_wire
from postroom.doors.mcp.results import MAX_RESULT_BYTES, head_of, part, size_of
from postroom.errors import NotFound
from postroom.message import Delivery, Letter, Posted, Reply
from postroom.post import Occupant
from postroom.text import dump_json
from postroom.wire import show_time

_FRAME_BYTES = 1024
_ROOM = MAX_RESULT_BYTES - _FRAME_BYTES
_ANY_OFFSET = 999_999
_MOST_LISTED = 10
_MOST_SAID = 300
_RECEIPT_BYTES = 4 * 1024
"""What an answer to a message leaves for the receipt of that message."""

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


def newest_that_fit(letters: Sequence[Letter], room: int) -> list[dict[str, Any]]:
    """The last of these that fit so many bytes, in their order; the very last at least, its payload cut if it has to be."""
    lines: list[dict[str, Any]] = []
    left = room
    for one in reversed(letters):
        told = letter(one)
        left -= size_of(told) + 1
        if left < 0:
            if not lines:
                lines.append(_cut(told, room))
            break
        lines.append(told)
    return lines[::-1]


def _cut(told: dict[str, Any], room: int = _ROOM) -> dict[str, Any]:
    id_ = told["id"]
    told = {
        **told,
        "payload_truncated": True,
        "rest": _ANY_OFFSET,
        "whole": f"swarm_read with id={id_} and rest as offset; or: postroom message show {id_} --json",
    }
    head = head_of(told["payload"], room - size_of({**told, "payload": ""}))
    return {**told, "payload": head, "rest": len(head) - 1}


def part_of(posted: Posted, field: str, offset: int) -> dict[str, Any]:
    """A part of a message's payload, or of its deliveries as JSON. Raises Invalid for an offset beyond it."""
    text = posted.message.payload if field == "payload" else dump_json([_delivery(one) for one in posted.deliveries])
    return part(text, offset, id=posted.message.id, field=field)


def replied(reply: Reply, broken: str = "") -> dict[str, Any]:
    """The receipt of a message that was asked about and the first answer to it, or how to wait for it again.

    broken: why the waiting ended before its time, where it did.
    """
    asked = reply.asked.message.id
    if reply.answer is None:
        shown: dict[str, Any] = {"reply": None}
        if not reply.in_vain:
            how = f"call send_message again, the same but for msg_id={asked}: it is not sent twice, and waits again"
            if broken:
                how = f"it was sent, but the waiting broke off ({broken[:_MOST_SAID]}): shortly {how}"
            shown["ask_again"] = {"msg_id": asked, "how": how}
        return {"message": receipt(reply.asked, size_of(shown)), **shown}
    view = mail_wire.message_view(reply.answer.message)
    answer = {key: view[key] for key in _CONTENT if view[key] is not None}
    if size_of(answer) > _ROOM - _RECEIPT_BYTES:
        answer = _cut(answer, _ROOM - _RECEIPT_BYTES)
    return {"message": receipt(reply.asked, size_of(answer)), "reply": answer}


def receipt(posted: Posted, besides: int = 0) -> dict[str, Any]:
    """A message without its payload, and how each delivery stands; of very many the first are shown, the rest counted.

    besides: the bytes of what else the answer holds.
    """
    view = mail_wire.message_view(posted.message)
    told: dict[str, Any] = {key: view[key] for key in _CONTENT if key != "payload" and view[key] is not None}
    told["deliveries"] = _first(size_of(told) + besides, [_delivery(one) for one in posted.deliveries])
    left = len(posted.deliveries) - len(told["deliveries"])
    if left:
        told["deliveries_left_out"] = left
        told["whole"] = f"swarm_read with id={told['id']} and field=deliveries; or: postroom message show {told['id']}"
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
    """The first of these, as many as an answer holds; what is null or empty is left out, and long lists are cut."""
    return _first(0, [_occupant(one) for one in occupants])


def _occupant(one: Occupant) -> dict[str, Any]:
    line = {key: value for key, value in mail_wire.occupant_view(one).items() if value not in (None, [])}
    if size_of(line) <= _ROOM // 4:
        return line
    long = [key for key, value in line.items() if isinstance(value, list) and len(value) > _MOST_LISTED]
    if not long:
        return line
    short = {key: value[:_MOST_LISTED] if key in long else value for key, value in line.items()}
    short["cut"] = long
    short["whole"] = "who with this name; or: postroom who --json"
    return short


def occupants_part(occupants: Sequence[Occupant], name: str, offset: int) -> dict[str, Any]:
    """A part of all that is known of who has this name, as JSON. Raises Invalid for an offset beyond it, or NotFound."""
    known = [mail_wire.occupant_view(one) for one in occupants if one.name == name]
    if not known:
        raise NotFound(f"nobody here is called {name[:128]!r}", field="name")
    return part(dump_json(known), offset, id=name, field="who")


def _first(besides: int, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    room = _ROOM - besides
    for n, told in enumerate(lines):
        room -= size_of(told) + 1
        if room < 0:
            return lines[:n]
    return lines
