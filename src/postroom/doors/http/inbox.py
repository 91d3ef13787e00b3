"""Inboxes over HTTP: what was handed off to a mailbox, in the order in which it came, and how far it was read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.fields import Asked, Limit, told
from postroom.doors.http.mail_fields import Wait, party
from postroom.doors.http.polling import while_there
from postroom.doors.http.route import Call, Route
from postroom.doors.http.schemas import TEXT, WHOLE, many, named, record
from postroom.mail_wire import inbox_view
from postroom.wire import seconds_ms

NOUN = "inbox"

Mailbox = Annotated[str, party("Whose inbox: a name that the token may speak as; its own by default.")]


class ReadInbox(Asked):
    """Which part of an inbox is wanted."""

    mailbox: Mailbox | None = Field(default=None, alias="for")
    since: (
        Annotated[str, told("What came after this: a next_since, or a message's id; latest: the newest unread.")] | None
    ) = None
    limit: Limit | None = None
    wait_s: Wait | None = None


class MarkRead(Asked):
    """Up to where an inbox was read."""

    mailbox: Mailbox | None = Field(default=None, alias="for")
    since: Annotated[str, told("A next_since, or a message's id: this one and all before it were read.")]


async def read(call: Call, asked: ReadInbox) -> Answer:
    """A page in hand-off order, waiting for the first while there is none."""
    wait = seconds_ms(asked.wait_s, "wait_s") or 0
    looking = call.api.inbox.page(call.principal, asked.mailbox, asked.since, asked.limit, wait)
    return json_answer(inbox_view(await (while_there(call.receive, looking) if wait > 0 else looking)))


async def mark(call: Call, asked: MarkRead) -> Answer:
    """Unread -> read, never back."""
    return json_answer(inbox_view(await call.api.inbox.mark_read(call.principal, asked.mailbox, asked.since)))


_PAGE = record({"mailbox": TEXT, "messages": many(named("Letter")), "next_since": TEXT, "unread": WHOLE})

ROUTES = (
    Route(
        "GET",
        "/v1/inbox",
        NOUN,
        "Get what was handed off to a mailbox, in that order; next_since goes on from there.",
        read,
        {200: _PAGE},
        query=ReadInbox,
    ),
    Route(
        "POST",
        "/v1/inbox/read",
        NOUN,
        "Say up to where an inbox was read; gives what comes after.",
        mark,
        {200: _PAGE},
        body=MarkRead,
    ),
)
