"""The inbox: what was handed off to a mailbox, in the order of its coming: nothing late is skipped (RULINGS 32; P11)."""

from __future__ import annotations

import asyncio
import re

from postroom import limits, postage
from postroom.errors import Forbidden, Invalid
from postroom.ids import Prefix
from postroom.limits import MAX_WAIT
from postroom.message import InboxPage
from postroom.model import Principal
from postroom.services import tellings
from postroom.services.pages import page_limit
from postroom.services.wake import Wake
from postroom.services.watch import Watch
from postroom.store.deliveries import DeliveryTable, Touched
from postroom.store.endpoints import EndpointTable
from postroom.store.engine import Engine, Reader, Tx
from postroom.store.mailboxes import Mailbox, MailboxTable
from postroom.text import clean

MAX_SINCE = 1000
"""How many characters of a `since` that names nothing are compared with."""

_PLACE = re.compile(r"s\.([0-9]{1,18})")


def show_since(place: int) -> str:
    """A place in a mailbox as `next_since` has it: it outlives the message that stood there."""
    return f"s.{place}"


class InboxService:
    """The verbs over mailboxes for a principal."""

    def __init__(
        self,
        engine: Engine,
        table: MailboxTable,
        deliveries: DeliveryTable,
        endpoints: EndpointTable,
        watch: Watch,
        wake: Wake,
    ) -> None:
        self._engine = engine
        self._table = table
        self._deliveries = deliveries
        self._wake = wake
        self._endpoints = endpoints
        self._watch = watch
        self._reader = Reader(engine)

    async def page(
        self, principal: Principal, mailbox: str | None, since: str | None, limit: int | None, wait_ms: int = 0
    ) -> InboxPage:
        """Letters after `since`, oldest first; waits up to wait_ms for the first. `unread` counts 1000 at the most.

        since: a page's next_since, or a message's id; what is neither compares with the ids, as the swarm's own inbox
        did, and is no error; `latest` gives the newest unread ones. Raises Forbidden for a mailbox of others.
        """
        limits.check_seconds(wait_ms, 0, MAX_WAIT, "wait_s")
        name = await self._mine(principal, mailbox)
        most = page_limit(limit)
        if wait_ms == 0:
            return await self._page(name, since, most)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        with self._watch.mailbox(name) as watcher:
            while True:
                watcher.clear()
                page = await self._page(name, since, most)
                if page.letters or not await watcher.changed(deadline):
                    return page

    async def mark_read(self, principal: Principal, mailbox: str | None, since: str) -> InboxPage:
        """Unread -> read up to where `since` points, never back; gives the page after it.

        What was pushed to a channel there has thereby arrived. Raises Invalid when it points nowhere, and Forbidden for
        a mailbox of others.
        """
        name = await self._mine(principal, mailbox)
        place, since_id = await self._after(name, since)
        if since_id is not None:
            raise Invalid(
                f"since {since[:64]!r} is neither a next_since nor a message in the inbox of {name}", field="since"
            )

        async def operation(tx: Tx) -> Touched:
            arrived = await self._deliveries.read(tx, name, place)
            await self._table.mark_read(tx, name, place)
            return arrived

        arrived = await self._engine.transact(operation)
        self._wake.changed(one.message_id for one in arrived)
        self._wake.told(tellings.arrived, arrived)
        return await self._page(name, since, page_limit(None))

    async def _mine(self, principal: Principal, mailbox: str | None) -> str:
        """The mailbox, when the principal may read it: its own, one it speaks as, or that of an endpoint it attached."""
        if mailbox is None:
            return principal.name
        postage.check_party(mailbox, "for")
        if principal.may_speak_as(mailbox):
            return mailbox
        if mailbox.startswith(Prefix.ENDPOINT):
            endpoint = await self._endpoints.get(self._reader, mailbox)
            if endpoint is not None and endpoint.created_by == principal.name:
                return mailbox
        raise Forbidden(f"{principal.name} may not read the inbox of {mailbox}", field="for")

    async def _page(self, name: str, since: str | None, limit: int) -> InboxPage:
        standing: Mailbox = await self._table.get(self._reader, name)
        if since == postage.LATEST:
            after, since_id = max(standing.read, standing.last - limit), None
        else:
            after, since_id = await self._after(name, since)
        letters = await self._table.letters(self._reader, name, after, since_id, standing.read, limit)
        if letters:
            last = letters[-1].delivery.handoff_seq or 0
            return InboxPage(name, tuple(letters), show_since(last), standing.unread)
        on = show_since(after) if since_id is None else since_id
        return InboxPage(name, (), on, standing.unread)

    async def _after(self, name: str, since: str | None) -> tuple[int, str | None]:
        """The place after which to go on; and what ids are compared with, when `since` names no place."""
        if not since:
            return 0, None
        place = _PLACE.fullmatch(since)
        if place is not None:
            return int(place.group(1)), None
        since = clean(since[:MAX_SINCE])
        found = await self._table.place(self._reader, name, since)
        return (0, since) if found is None else (found, None)
