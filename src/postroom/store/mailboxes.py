"""The mailboxes table: what was handed off to whom, in the order of its coming, and up to where it was read (RULINGS 32)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from postroom.message import Letter
from postroom.store.deliveries import delivery_of
from postroom.store.engine import Row, Tx
from postroom.store.messages import MESSAGE_WIDTH, message_of

MOST_UNREAD = 1000
"""Up to how many unread letters are counted."""


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Where a mailbox stands: the last place given in it, up to where it was read, and how many are unread."""

    last: int = 0
    read: int = 0
    unread: int = 0


class MailboxTable:
    """The statements over mailboxes and the letters in them."""

    async def get(self, tx: Tx, name: str) -> Mailbox:
        """The mailbox of this name; one that never got anything is empty."""
        rows = await tx.rows("mailbox_get", name=name, most=MOST_UNREAD)
        return Mailbox(*rows[0]) if rows else Mailbox()

    async def place(self, tx: Tx, name: str, message_id: str) -> int | None:
        """The place of a message in a mailbox, None when it was never handed off to it."""
        rows = await tx.rows("inbox_place", id=message_id, mailbox=name)
        return rows[0][0] if rows else None

    async def letters(self, tx: Tx, name: str, after: int, since_id: str | None, read: int, limit: int) -> list[Letter]:
        """Letters after a place, in hand-off order; with `since_id` only those whose message's id is greater."""
        if since_id is None:
            rows = await tx.rows("inbox_page", mailbox=name, after=after, limit=limit)
        else:
            rows = await tx.rows("inbox_after_id", mailbox=name, after=after, since_id=since_id, limit=limit)
        return [_letter_of(row, read) for row in rows]

    async def mark_read(self, tx: Tx, name: str, place: int) -> None:
        """Unread -> read up to this place, never back and never past the last."""
        await tx.rows("mailbox_read", name=name, place=place)

    async def places(self, tx: Tx, names: Iterable[str]) -> dict[str, int]:
        """The last place of each of these mailboxes that ever got anything."""
        return {row[0]: row[1] for row in await tx.rows("mailbox_places", names=sorted(names))}


def _letter_of(row: Row, read: int) -> Letter:
    delivery = delivery_of(row[MESSAGE_WIDTH:])
    return Letter(message_of(row), delivery, read=(delivery.handoff_seq or 0) <= read)
