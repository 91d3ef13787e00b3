"""What the post's tools may be given: one strict model a tool, as in `arguments`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from postroom import limits
from postroom.doors.mcp.arguments import Arguments
from postroom.postage import DEFAULT_KIND, MAX_TTL

_PARTY = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$"
_MESSAGE_ID = r"^[A-Za-z0-9._:-]{1,128}$"
_KIND = r"^[a-z][a-z0-9_.-]{0,63}$"
_CHANNEL = r"^[a-z0-9][a-z0-9._/-]{0,127}$"


def _told(description: str, **schema: Any) -> Any:
    return Field(description=description, json_schema_extra=schema or None)


MessageId = Annotated[str, _told("The message's id.", pattern=_MESSAGE_ID)]
MyName = "a name your token may speak as, such as your session's id; default the token's own name."


class SendMessage(Arguments):
    """send_message."""

    payload: Annotated[str, _told("What you have to say, as text of at most 64 KiB.", minLength=1)]
    to: (
        Annotated[str, _told("Whom it is for: a session (ses_...), an endpoint's id, or a name.", pattern=_PARTY)]
        | None
    ) = None
    channel: Annotated[str, _told("Instead of to: everybody subscribed to it.", pattern=_CHANNEL)] | None = None
    sender: Annotated[str, _told(f"Who says it: {MyName}", pattern=_PARTY)] | None = Field(default=None, alias="from")
    kind: Annotated[
        str, _told("What sort it is: chat, task.assign, status.update, or a word of your own.", pattern=_KIND)
    ] = DEFAULT_KIND
    priority: Annotated[
        Literal["urgent", "normal", "low"], Field(description="urgent does not wait for the target's turn to end.")
    ] = "normal"
    reply_to: Annotated[str, _told("The id of the message you answer.", pattern=_MESSAGE_ID)] | None = None
    correlation_id: (
        Annotated[str, _told("What it is about: a todo's id puts it into that todo's trace.", pattern=_MESSAGE_ID)]
        | None
    ) = None
    msg_id: (
        Annotated[
            str,
            _told("An id of your own: the same call again gives the first message, not a second.", pattern=_MESSAGE_ID),
        ]
        | None
    ) = None
    ack_mode: (
        Annotated[
            Literal["injected", "acknowledged"],
            Field(description="acknowledged: it is delivered again until the recipient acknowledges it."),
        ]
        | None
    ) = None
    ttl_s: (
        Annotated[
            float,
            Field(description="How long it may wait to be delivered, in seconds.", ge=1, le=MAX_TTL / limits.SECOND),
        ]
        | None
    ) = None
    wait_reply_s: (
        Annotated[
            float,
            Field(
                description="Wait that long for the first answer to it, in seconds; ask_again says how to wait longer.",
                ge=0,
                le=limits.MAX_WAIT / limits.SECOND,
            ),
        ]
        | None
    ) = None


class SwarmRead(Arguments):
    """swarm_read."""

    mailbox: Annotated[str, _told(f"Whose inbox: {MyName}", pattern=_PARTY)] | None = Field(default=None, alias="for")
    since: (
        Annotated[
            str,
            _told(
                "What came after this: the next_since of the answer before, or a message's id; latest: the newest unread."
            ),
        ]
        | None
    ) = None
    limit: Annotated[int, Field(description="The most messages of one answer.", ge=1, le=limits.MAX_LIST)] = 20
    wait_s: Annotated[
        float,
        Field(
            description="How long to wait for a message when there is none, in seconds.",
            ge=0,
            le=limits.MAX_WAIT / limits.SECOND,
        ),
    ] = 0.0

    id: Annotated[str, _told("Instead: the text of this one message, in parts.", pattern=_MESSAGE_ID)] | None = None
    field: Annotated[
        Literal["payload", "deliveries"], Field(description="With id: what it says, or how its deliveries stand.")
    ] = "payload"
    offset: Annotated[int, Field(description="With id: from which character on; a rest, or a next_offset.", ge=0)] = 0


class AckMessage(Arguments):
    """ack_message."""

    id: MessageId
    endpoint: (
        Annotated[str, _told("Whose delivery, where several may be yours: an endpoint's id or name.", pattern=_PARTY)]
        | None
    ) = None


class Who(Arguments):
    """who."""

    name: Annotated[str, _told("Only this one, with all that is known, in parts.", pattern=_PARTY)] | None = None
    offset: Annotated[int, Field(description="How many to leave out; with name, from which character on.", ge=0)] = 0
