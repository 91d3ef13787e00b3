"""Hand-over: who gave work to somebody else is told, by a message, when it is done or dead (DESIGN §6).

Dead letters are announced besides, whoever made them, to whoever is subscribed to the channel `dead-letters`, and may
use their queue.

The database notes an ending in the transaction that makes it, whichever verb, batch or sweep that is; the note goes in
the transaction that admits the message. So each ending is told once, whatever is killed when, and a todo that is
retried and ends again is told of again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.ids import Ids
from postroom.message import AckMode, NewMessage, Posted
from postroom.model import TodoState
from postroom.services.addresses import DEAD_LETTERS, AddressBook
from postroom.services.announcing import BATCH, MAX_WORDS, Announcer
from postroom.services.notice import GRANTS_NOTHING, SENDER
from postroom.services.owners import Owners
from postroom.services.wake import Wake
from postroom.store.admissions import AdmissionTable
from postroom.store.engine import Engine, Tx
from postroom.store.handovers import DeadLetter, Handover, HandoverTable
from postroom.text import cut, printable

KIND: Final = "status.update"
DEAD: Final = "todo.dead"
"""The kind of an announced dead letter."""


class HandoverService(Announcer):
    """Tells of ended work that was given away; `clock` gives ms UTC, for the ids of messages alone."""

    def __init__(
        self,
        engine: Engine,
        table: HandoverTable,
        admissions: AdmissionTable,
        book: AddressBook,
        owners: Owners,
        wake: Wake,
        ids: Ids,
        clock: Callable[[], int],
    ) -> None:
        super().__init__("ended work", engine, admissions, wake, ids, clock)
        self._table = table
        self._book = book
        self._owners = owners

    async def once(self) -> int:
        """Noted -> told, all there is: how many messages were admitted."""
        due = await self._table.due(self._reader)
        told = await self._all(self._endings) if due.handovers else 0
        return told + (await self._all(self._deaths) if due.dead_letters else 0)

    async def _endings(self, tx: Tx) -> tuple[int, list[Posted]]:
        taken = await self._table.take(tx, BATCH)
        told: list[Posted] = []
        for one in taken:
            if one.creator not in {one.owner, one.holder}:
                name = await self._owners.name_of(tx, one.creator)
                new = ending_message(one, name)
                token = one.creator.partition("/")[0]
                told.append(await self._admit(tx, new, [await self._book.nearest(tx, name, new, token)]))
        return len(taken), told

    async def _deaths(self, tx: Tx) -> tuple[int, list[Posted]]:
        taken = await self._table.take_dead_letters(tx, BATCH)
        told: list[Posted] = []
        for one in taken:
            new = death_message(one)
            listening = await self._book.subscribers(tx, DEAD_LETTERS)
            barred = await self._owners.barred(tx, [endpoint.created_by for endpoint in listening], one.queue)
            allowed = [endpoint for endpoint in listening if endpoint.created_by not in barred]
            addresses = self._book.fan_out(allowed, new, SENDER)
            if addresses:
                told.append(await self._admit(tx, new, addresses))
        return len(taken), told


def ending_message(ended: Handover, name: str) -> NewMessage:
    """What became of the work, in a line or two; the result is one look at the todo away."""
    title = cut(printable(ended.title), MAX_WORDS)
    if ended.state is TodoState.DONE:
        became = f"is done, by {ended.owner}. Its result: get_todo({ended.todo_id})."
    else:
        why = f": {cut(printable(ended.error), MAX_WORDS)}" if ended.error else ""
        became = f"is a dead letter ({ended.reason}, attempt {ended.attempt}){why}."
    return NewMessage(
        f'Todo {ended.todo_id} "{title}" in queue {ended.queue}, given to {ended.assignee}, {became}\n{GRANTS_NOTHING}',
        to=name,
        kind=KIND,
        ack_mode=AckMode.INJECTED,
        metadata={
            "todo_id": ended.todo_id,
            "queue": ended.queue,
            "state": "done" if ended.state is TodoState.DONE else "dead",
            "assignee": ended.assignee,
            "owner": ended.owner,
            "attempt": ended.attempt,
        },
        correlation_id=ended.todo_id,
    )


def death_message(dead: DeadLetter) -> NewMessage:
    """That a todo is a dead letter, in a line or two, for whoever is subscribed to hear of those."""
    title = cut(printable(dead.title), MAX_WORDS)
    error = None if dead.error is None else cut(printable(dead.error), MAX_WORDS)
    why = f": {error}" if error else ""
    return NewMessage(
        f'Todo {dead.todo_id} "{title}" in queue {dead.queue} is a dead letter '
        f"({dead.reason}, attempt {dead.attempt} of {dead.max_attempts}){why}.\n{GRANTS_NOTHING}",
        channel=DEAD_LETTERS,
        kind=DEAD,
        ack_mode=AckMode.INJECTED,
        metadata={
            "todo_id": dead.todo_id,
            "queue": dead.queue,
            "title": title,
            "reason": dead.reason,
            "attempts": dead.attempt,
            "max_attempts": dead.max_attempts,
            "error": error,
        },
        correlation_id=dead.todo_id,
    )
