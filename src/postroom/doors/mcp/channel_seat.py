"""Where a channel's agent sits: its name, what rings it, and what its calls take for granted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from postroom.doors.mcp.mail_results import letters_that_fit
from postroom.errors import NotFound, PostroomError
from postroom.mail_client import ClientPost
from postroom.message import Admitted, InboxPage, Posted
from postroom.postage import LATEST


@dataclass(frozen=True, slots=True)
class Seat:
    """What a channel's endpoint is attached with. derived: the name is the folder's, and gives way to the token's own.

    directory, host: where the process runs.
    """

    name: str
    derived: bool = False
    queues: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    rings: bool = True
    ack_mode: str | None = None
    directory: str | None = None
    host: str | None = None

    def address(self, pid: int) -> Mapping[str, Any]:
        """Where the process is, as the carrier has it."""
        known = {"pid": pid, "directory": self.directory, "host": self.host}
        return {key: value for key, value in known.items() if value is not None}


class SeatedPost(ClientPost):
    """The post as who sits at `mailbox` has it: what it sends is from there, and what it reads there has arrived."""

    def __init__(self, post: ClientPost, mailbox: str) -> None:
        super().__init__(post._call)
        self._mailbox = mailbox

    async def send(
        self, payload: str, *, sender: str | None = None, reply_to: str | None = None, **more: Any
    ) -> Admitted:
        """As the post's, from this mailbox where nobody is named. Whoever answers a message has read it."""
        admitted = await super().send(payload, sender=sender or self._mailbox, reply_to=reply_to, **more)
        if reply_to is not None:
            with contextlib.suppress(PostroomError):
                await super().ack(reply_to, self._mailbox)
        return admitted

    async def inbox(
        self, mailbox: str | None = None, *, since: str | None = None, limit: int | None = None, wait_s: float = 0.0
    ) -> InboxPage:
        """As the post's, of this mailbox where none is named; as much as one answer shows, which is then marked as read."""
        named = mailbox or self._mailbox
        page = await super().inbox(named, since=since, limit=limit, wait_s=wait_s)
        shown = len(letters_that_fit(page.letters))
        if 0 < shown < len(page.letters):
            page = await super().inbox(named, since=since, limit=shown)
        if page.letters and named == self._mailbox and since != LATEST:
            # What cannot be marked now is pushed once more, and marked the next time.
            with contextlib.suppress(PostroomError):
                await self.mark_read(named, page.next_since)
        return page

    async def ack(self, id: str, endpoint: str | None = None) -> Posted:
        """As the post's, for this mailbox's delivery where none is named and there is one."""
        if endpoint is None:
            try:
                return await super().ack(id, self._mailbox)
            except NotFound as error:
                if error.field != "endpoint":
                    raise
        return await super().ack(id, endpoint)
