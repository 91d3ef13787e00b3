"""Replies: who asked something by a message waits for what comes back (DESIGN §6).

A reply is a message that names the first one in reply_to, was admitted after it, and is from somebody else; the first
of them by admission counts. It is told to the sender of what it answers, whoever it was sent to, and stays in the
inbox that it came to: reading it here marks nothing. Where an allow-list holds its sender back from who asked, it
counts only when who asked may read it anyhow: an answer is no way around the list.
"""

from __future__ import annotations

import asyncio

from postroom import limits
from postroom.errors import Forbidden
from postroom.limits import MAX_WAIT
from postroom.message import Message, Posted, Reply
from postroom.model import Principal
from postroom.services.allowed import Allowed
from postroom.services.post import PostService
from postroom.services.refusals import named_message
from postroom.services.watch import Watch
from postroom.store.engine import Engine, Reader
from postroom.store.posted import PostedTable


class ReplyService:
    """Looks for the answer to a message, and waits for it."""

    def __init__(self, engine: Engine, table: PostedTable, post: PostService, watch: Watch, allowed: Allowed) -> None:
        self._table = table
        self._post = post
        self._watch = watch
        self._allowed = allowed
        self._reader = Reader(engine)

    async def first(self, principal: Principal, id_: str, wait_ms: int = 0) -> Reply:
        """The first reply to a message; waits for it up to `wait_ms`, unless nobody can answer.

        Its sender and admins may ask. Raises NotFound, Forbidden for its recipients, and Invalid for more than 50 s.
        """
        limits.check_seconds(wait_ms, 0, MAX_WAIT, "wait_s")
        if wait_ms == 0:
            return await self._look(principal, id_)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        # Told before each look, so that what is admitted between a look and the sleep wakes it all the same.
        with self._watch.message(named_message(id_)) as watcher:
            while True:
                watcher.clear()
                reply = await self._look(principal, id_)
                if reply.answer is not None or reply.in_vain or not await watcher.changed(deadline):
                    return reply

    async def _look(self, principal: Principal, id_: str) -> Reply:
        asked = await self._post.get(principal, id_)
        if not _asked_by(principal, asked.message):
            raise Forbidden(f"only the sender of {id_} may wait for its answer", field="id")
        return Reply(asked, await self._first(principal, asked.message))

    async def _first(self, principal: Principal, asked: Message) -> Posted | None:
        viewer, writers = None, list[str]()
        if self._allowed.limits and not principal.admin:
            viewer = principal.name
            senders = await self._table.answerers(self._reader, asked)
            writers = [sender for sender in senders if self._allowed.lets(sender, asked.sender)]
        names = (principal.name, *principal.speaks_as)
        return await self._table.first_reply(self._reader, asked, viewer, names, writers)


def _asked_by(principal: Principal, asked: Message) -> bool:
    return principal.may_speak_as(asked.sender) or asked.created_by == principal.name
