"""What a webhook is sent: an event's name, its time and its data as JSON, signed as Standard Webhooks has it.

The bytes of one delivery are the same at each repeat, and so is its id: only the time of the attempt, and with it the
signature, are new.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any, Final

from postroom.message import Message, Parcel
from postroom.services.doorbell import KIND as RING
from postroom.services.handover import DEAD
from postroom.services.notice import SENDER
from postroom.text import cut
from postroom.wire import show_time

AVAILABLE_TYPE: Final = "todo.available"
DEAD_TYPE: Final = "todo.dead"
MESSAGE_TYPE: Final = "message"


def event_id(parcel: Parcel) -> str:
    """What a receiver knows a repeat by: the message, and its round where there was more than one.

    No message's own id can hold the mark between them.
    """
    delivery = parcel.delivery
    return delivery.message_id if delivery.round == 0 else f"{delivery.message_id}~{delivery.round}"


def event_type(message: Message) -> str:
    """What it is told as; anybody may choose a message's kind, so that only Postroom's own notices are more than one."""
    if message.created_by == SENDER:
        if message.kind == RING:
            return AVAILABLE_TYPE
        if message.kind == DEAD:
            return DEAD_TYPE
    return MESSAGE_TYPE


def event_body(parcel: Parcel, most: int) -> bytes:
    """The event as JSON; of a longer payload than `most` bytes the beginning, and how to read the rest."""
    message = parcel.message
    kind = event_type(message)
    data: dict[str, Any] = {"id": message.id}
    if kind == MESSAGE_TYPE:
        data |= _letter(message, parcel.delivery.mailbox, most)
    else:
        data |= message.metadata or {}
        data["text"] = message.payload
    event = {"type": kind, "timestamp": show_time(message.created_at), "data": data}
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _letter(message: Message, mailbox: str, most: int) -> dict[str, Any]:
    whole = len(message.payload.encode("utf-8", "replace"))
    letter: dict[str, Any] = {
        "from": message.sender,
        "to": None if message.channel is not None else message.addressed or mailbox,
        "channel": message.channel,
        "kind": message.kind,
        "priority": message.priority.value,
        "reply_to": message.reply_to,
        "correlation_id": message.correlation_id,
        "payload": message.payload if whole <= most else cut(message.payload, most),
    }
    if whole > most:
        letter["payload_bytes"] = whole
        letter["rest"] = f"cut: GET /v1/messages/{message.id} and `postroom message show {message.id}` have the whole"
    return letter


def signatures(keys: Sequence[bytes], id_: str, at: int, body: bytes) -> str:
    """The `webhook-signature` header: one for each key, so that a receiver may have either while a secret is changed.

    `at` is the time of the attempt in whole seconds UTC.
    """
    signed = f"{id_}.{at}.".encode("ascii") + body
    made = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode("ascii") for key in keys)
    return " ".join(f"v1,{one}" for one in made)
