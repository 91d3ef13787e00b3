"""The fields of the post's requests: told here with their bounds, which the services keep (see fields)."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from postroom.delivery import SESSION_ATTEMPTS
from postroom.doors.http.fields import KEY_PATTERN, NAME_PATTERN, QUEUE_PATTERN, Whole, seconds, told
from postroom.endpoint import CarrierKind
from postroom.limits import MAX_WAIT, SECOND
from postroom.message import AckMode, Priority
from postroom.postage import DEFAULT_KIND, MAX_PAYLOAD_BYTES, MAX_REPOSITORIES, MAX_TTL

LETTER = 6 * MAX_PAYLOAD_BYTES + 64 * 1024
"""A payload of 64 KiB may be written at six times its length, with what stands around it."""

MESSAGE_ID_PATTERN = r"^[A-Za-z0-9._:-]{1,128}$"
MESSAGE_KIND_PATTERN = r"^[a-z][a-z0-9_.-]{0,63}$"
PARTY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$"
PARTIES_PATTERN = r"^[A-Za-z0-9*?][A-Za-z0-9*?._:/@-]{0,127}$"
LINE_PATTERN = r"^[^\u0000-\u001f\u007f-\u009f]{1,256}$"
CLIENT_PATTERN = r"^[^\u0000-\u001f\u007f-\u009f]{1,128}$"

_NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?")


def _number(value: object) -> object:
    """A number as a query has it: its text."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _flag(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def party(description: str) -> Any:
    """Who a message is from or for: a session, an endpoint's id, or a name."""
    return told(description, pattern=PARTY_PATTERN)


Text = Annotated[
    str, told("What there is to say: text of at most 64 KiB in UTF-8.", minLength=1, maxLength=MAX_PAYLOAD_BYTES)
]
Channel = Annotated[str, told("A channel's name.", pattern=QUEUE_PATTERN)]
MessageId = Annotated[str, told("A message's id.", pattern=MESSAGE_ID_PATTERN)]
MessageKind = Annotated[
    str, told(f"What sort of message it is; `{DEFAULT_KIND}` by default.", pattern=MESSAGE_KIND_PATTERN)
]
MessagePriority = Annotated[
    str, told("Its place among what waits for the same target; `normal` by default.", enum=list(Priority))
]
Acknowledging = Annotated[
    str, told("Whether the write ends a delivery, or the recipient's acknowledgement.", enum=list(AckMode))
]
Ttl = Annotated[float, seconds("How long it may wait to be delivered; then it has expired", SECOND, MAX_TTL)]
ClientId = Annotated[str, told("Whose idempotency_key it is.", pattern=CLIENT_PATTERN)]
ClientKey = Annotated[
    str, told("The same key of the same client again is the first message, not a second one.", pattern=KEY_PATTERN)
]
EndpointId = Annotated[str, told("An endpoint's id, or the name it goes by.", pattern=PARTY_PATTERN)]
EndpointName = Annotated[str, told("What it goes by.", pattern=NAME_PATTERN)]
Carrier = Annotated[str, told("How messages get there.", enum=list(CarrierKind))]
Attempts = Annotated[
    Whole,
    told(
        "How many attempts a delivery has; the carrier's by default, and 9 at the most for a terminal.",
        minimum=1,
        maximum=SESSION_ATTEMPTS,
    ),
]
Pid = Annotated[Whole, told("The process that sits there.", minimum=1, maximum=2**31 - 1)]
Repository = Annotated[str, told("A repository's name.", pattern=LINE_PATTERN)]
Repositories = Annotated[list[Repository], told("The repositories it works on.", minItems=0, maxItems=MAX_REPOSITORIES)]
Channels = Annotated[list[Channel], told("The channels it gets.", minItems=0, maxItems=MAX_REPOSITORIES)]
Wait = Annotated[float, BeforeValidator(_number), seconds("How long to wait for it", 0, MAX_WAIT)]
Flag = Annotated[bool, BeforeValidator(_flag)]
"""true or false, as a query has it."""
