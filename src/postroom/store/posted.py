"""Messages with their deliveries, as every door shows them, one by one and by pages."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.message import Cause, Delivery, Message, MessageFilter, Posted
from postroom.store.deliveries import DeliveryTable
from postroom.store.engine import Tx
from postroom.store.messages import message_of
from postroom.store.statements import Dialect


class PostedTable:
    """The queries over messages."""

    def __init__(self, dialect: Dialect, deliveries: DeliveryTable) -> None:
        self._dialect = dialect
        self._deliveries = deliveries

    async def many(self, tx: Tx, ids: Sequence[str]) -> list[Posted]:
        """These messages with their deliveries, in the order of the ids."""
        found = {message.id: message for message in map(message_of, await tx.rows("messages_whole", ids=list(ids)))}
        return await self._with_deliveries(tx, [found[id_] for id_ in ids if id_ in found])

    async def of_delivery(self, tx: Tx, id_: str) -> str | None:
        """The id of the message that this delivery carries."""
        rows = await tx.rows("message_of_delivery", id=id_)
        return str(rows[0][0]) if rows else None

    async def notices(self, tx: Tx, about: str, limit: int) -> list[Posted]:
        """The newest notices about this todo with their deliveries, the oldest of them first."""
        rows = await tx.rows("notices_of", about=about, limit=limit)
        return await self._with_deliveries(tx, [message_of(row) for row in reversed(rows)])

    async def about(self, tx: Tx, todo_id: str, limit: int) -> list[Posted]:
        """The same for the messages of others about it."""
        rows = await tx.rows("messages_about", about=todo_id, limit=limit)
        return await self._with_deliveries(tx, [message_of(row) for row in reversed(rows)])

    async def _with_deliveries(self, tx: Tx, messages: Sequence[Message]) -> list[Posted]:
        if not messages:
            return []
        of: dict[str, list[Delivery]] = {message.id: [] for message in messages}
        for delivery in await self._deliveries.of_messages(tx, list(of)):
            of[delivery.message_id].append(delivery)
        return [Posted(message, tuple(of[message.id])) for message in messages]

    async def answerers(self, tx: Tx, asked: Message) -> list[str]:
        """Whoever answered this message, its sender not among them."""
        rows = await tx.rows("reply_senders", id=asked.id, after=asked.seq, sender=asked.sender)
        return [row[0] for row in rows]

    async def first_reply(
        self, tx: Tx, asked: Message, viewer: str | None, globs: Sequence[str], writers: Sequence[str]
    ) -> Posted | None:
        """The first message that answers this one, of whoever is not its sender, with its deliveries.

        For a `viewer` only of those that concern it or the names it speaks as, or are from `writers`.
        """
        rows = await tx.rows(
            "reply_first",
            id=asked.id,
            after=asked.seq,
            sender=asked.sender,
            viewer=viewer,
            names=self._patterns(globs),
            writers=list(writers),
        )
        found = await self._with_deliveries(tx, [message_of(row) for row in rows])
        return found[0] if found else None

    async def page(
        self, tx: Tx, asked: MessageFilter, viewer: str | None, globs: Sequence[str], before: int | None, limit: int
    ) -> list[Posted]:
        """A page with deliveries, newest first; what concerns `viewer` and the names it speaks as, or all for None."""
        rows = await tx.rows(
            "message_list",
            sender=asked.sender,
            addressed=asked.to,
            channel=asked.channel,
            kind=asked.kind,
            client_id=asked.client_id,
            target_repo=asked.target_repo,
            reply_to=asked.reply_to,
            state=None if asked.state == Cause.CANCELLED else asked.state,
            cancelled=1 if asked.state == Cause.CANCELLED else None,
            endpoint_id=asked.endpoint_id,
            before=before,
            viewer=viewer,
            names=self._patterns(globs),
            limit=limit,
        )
        return await self._with_deliveries(tx, [message_of(row) for row in rows])

    def _patterns(self, globs: Sequence[str]) -> list[str]:
        if self._dialect is Dialect.SQLITE:
            return list(globs)
        return [_regular(glob) for glob in globs]


def _regular(glob: str) -> str:
    """The regular expression of a glob of `*` and `?`, as PostgreSQL takes it."""
    words = {"*": ".*", "?": "."}
    return "^" + "".join(words.get(one, one if one.isalnum() else "\\" + one) for one in glob) + "$"
