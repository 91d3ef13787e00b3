"""The envelope, version 1: a message as an opencode session reads it in its transcript (P8-P10).

Everything in it is escaped, so that no payload and no name can end it, begin another, or claim another sender.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from postroom.errors import Invalid
from postroom.message import Message, Parcel, Priority

VERSION = "1"

_TAG = "swarm_message"
_INDENT = "\n" + " " * len(f"<{_TAG} ")
_LINE_BREAKS = "\n\r\t\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_BODY_MARKS = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_VALUE_MARKS = _BODY_MARKS | {'"': "&quot;", "'": "&apos;"} | {mark: f"&#{ord(mark)};" for mark in _LINE_BREAKS}
_TO_BODY = str.maketrans(_BODY_MARKS)
_TO_VALUE = str.maketrans(_VALUE_MARKS)
_BACK = {name: mark for mark, name in _VALUE_MARKS.items()}

_OPENING = re.compile(rf"<{_TAG}((?:\s+[a-z_]+=\"[^\"<>]*\")*)\s*>\n")
_ATTRIBUTE = re.compile(r"\s+([a-z_]+)=\"([^\"]*)\"")
_CLOSING = f"\n</{_TAG}>"
_ENTITY = re.compile(r"&[^&;\s]{0,8};?")
_REQUIRED = ("kind", "from", "msg_id", "priority")
_KNOWN = frozenset({"v", "to", "channel", "reply_to", *_REQUIRED})


@dataclass(frozen=True, slots=True)
class Envelope:
    """What an envelope says; `to` or `channel`, never both."""

    kind: str
    sender: str
    msg_id: str
    payload: str
    to: str | None = None
    channel: str | None = None
    priority: Priority = Priority.NORMAL
    reply_to: str | None = None


def of_parcel(parcel: Parcel) -> Envelope:
    """The envelope of a delivery's message; one that was addressed by repository goes to its mailbox."""
    message: Message = parcel.message
    addressed = None if message.channel is not None else message.addressed or parcel.delivery.mailbox
    return Envelope(
        kind=message.kind,
        sender=message.sender,
        msg_id=message.id,
        payload=message.payload,
        to=addressed,
        channel=message.channel,
        priority=message.priority,
        reply_to=message.reply_to,
    )


def render(envelope: Envelope) -> str:
    """The envelope's text, laid out as the swarm has it, with nothing before or after it."""
    if (envelope.to is None) == (envelope.channel is None):
        raise Invalid("an envelope goes to a session or to a channel, and to one of them", field="to")
    place = ("to", envelope.to) if envelope.to is not None else ("channel", envelope.channel or "")
    lines = [
        [("v", VERSION), ("kind", envelope.kind)],
        [("from", envelope.sender), place],
        [("msg_id", envelope.msg_id), ("priority", str(envelope.priority))],
    ]
    if envelope.reply_to is not None:
        lines.append([("reply_to", envelope.reply_to)])
    attributes = _INDENT.join(
        " ".join(f'{name}="{(value or "").translate(_TO_VALUE)}"' for name, value in line) for line in lines
    )
    return f"<{_TAG} {attributes}>\n{envelope.payload.translate(_TO_BODY)}{_CLOSING}"


def parse(text: str) -> Envelope:
    """The envelope that a text is, whole. Raises Invalid: for another version before anything else, and for any text
    that `render` would not have made, white space between the attributes aside."""
    opening = _OPENING.match(text)
    if opening is None:
        raise Invalid(f"no envelope: expected a text that begins with <{_TAG} …> on its own", field="envelope")
    found = _ATTRIBUTE.findall(opening.group(1))
    values = dict(found)
    if values.get("v") != VERSION:
        said = "none" if "v" not in values else repr(values["v"][:16])
        raise Invalid(f"the envelope's version is {said}; this reads version {VERSION} alone", field="v")
    if len(values) != len(found):
        raise Invalid("the envelope has an attribute twice", field="envelope")
    for name in values:
        if name not in _KNOWN:
            raise Invalid(
                f"the envelope has an attribute {name[:64]!r} that version {VERSION} does not know", field=name
            )
    for name in _REQUIRED:
        if name not in values:
            raise Invalid(f"the envelope has no {name}", field=name)
    if ("to" in values) == ("channel" in values):
        raise Invalid("the envelope is expected to have to or channel, and one of them", field="to")
    if not text.endswith(_CLOSING) or len(text) < opening.end() + len(_CLOSING):
        raise Invalid(
            f"the envelope is expected to end with </{_TAG}> on its own line, and nothing after it", field="envelope"
        )
    body = text[opening.end() : -len(_CLOSING)]
    if "<" in body or ">" in body:
        raise Invalid("the envelope's payload holds < or > as it is; expected &lt; and &gt;", field="payload")
    plain = {name: _unescape(value, name) for name, value in values.items()}
    try:
        priority = Priority(plain["priority"])
    except ValueError:
        raise Invalid(f"priority {plain['priority'][:32]!r} is none of urgent, normal, low", field="priority") from None
    return Envelope(
        kind=plain["kind"],
        sender=plain["from"],
        msg_id=plain["msg_id"],
        payload=_unescape(body, "payload"),
        to=plain.get("to"),
        channel=plain.get("channel"),
        priority=priority,
        reply_to=plain.get("reply_to"),
    )


def _unescape(text: str, field: str) -> str:
    def mark(found: re.Match[str]) -> str:
        plain = _BACK.get(found.group())
        if plain is None:
            raise Invalid(f"{field} holds {found.group()!r}, which stands for nothing", field=field)
        return plain

    return _ENTITY.sub(mark, text) if "&" in text else text
