"""The messages table: content, admitted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom.message import AckMode, Message, Priority

MESSAGE_WIDTH = 21
"""How many columns of a row are the message's."""

_PRIORITIES = {priority.value: priority for priority in Priority}
_ACK_MODES = {mode.value: mode for mode in AckMode}


def message_of(row: Sequence[Any]) -> Message:
    """The message of a row's first columns."""
    fields: list[Any] = list(row[:MESSAGE_WIDTH])
    fields[9] = _PRIORITIES[fields[9]]
    fields[12] = _ACK_MODES[fields[12]]
    return Message(*fields)
