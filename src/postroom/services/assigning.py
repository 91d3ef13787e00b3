"""Assigning: who is given work by somebody else is told, by a message, that it waits for them (DESIGN §6).

The database notes it in the transaction that makes the todo, gives it to another, or puts a dead letter back, whichever
verb, rule or batch that is; the note goes in the transaction that admits the message. So each is told of once, and of a
repeated request that made nothing nobody hears. Nothing is said of what was claimed, cancelled or given to another in
the meantime, nor where the doorbell rings for it anyway: at a live endpoint of theirs that listens to the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.endpoint import Endpoint
from postroom.ids import Ids
from postroom.message import AckMode, NewMessage, Posted
from postroom.model import Todo, TodoState
from postroom.services.addresses import AddressBook
from postroom.services.announcing import BATCH, MAX_WORDS, Announcer
from postroom.services.notice import GRANTS_NOTHING
from postroom.services.owners import Owners
from postroom.services.wake import Wake
from postroom.store.admissions import AdmissionTable
from postroom.store.assignments import Assignment, AssignmentTable
from postroom.store.endpoints import Attachment, EndpointTable
from postroom.store.engine import Engine, Tx
from postroom.store.todos import TodoTable
from postroom.text import cut, printable
from postroom.wire import show_time

KIND: Final = "task.assign"


class AssigningService(Announcer):
    """Tells of work that was given to somebody; `clock` gives ms UTC, for the ids of messages alone."""

    def __init__(
        self,
        engine: Engine,
        table: AssignmentTable,
        todos: TodoTable,
        admissions: AdmissionTable,
        endpoints: EndpointTable,
        book: AddressBook,
        owners: Owners,
        wake: Wake,
        ids: Ids,
        clock: Callable[[], int],
    ) -> None:
        super().__init__("assigned work", engine, admissions, wake, ids, clock)
        self._table = table
        self._todos = todos
        self._endpoints = endpoints
        self._book = book
        self._owners = owners

    async def once(self) -> int:
        """Noted -> told, all there is: how many messages were admitted."""
        return await self._all(self._batch) if await self._table.due(self._reader) else 0

    async def _batch(self, tx: Tx) -> tuple[int, list[Posted]]:
        taken = await self._table.take(tx, BATCH)
        there = {todo.id: todo for todo in await self._todos.by_ids(tx, list({one.todo_id for one in taken}))}
        posted: list[Posted] = []
        for one in taken:
            todo = there.get(one.todo_id)
            if todo is None or not _waits(one, todo) or await self._owners.shut_out(tx, one.assignee, todo.queue):
                continue
            listening = await self._endpoints.attached(tx, Attachment.QUEUE, todo.queue, live=True)
            if not any(_rings_for(endpoint, one.assignee) for endpoint in listening):
                name = await self._owners.name_of(tx, one.assignee)
                new = assigned_message(one, todo, name)
                posted.append(await self._admit(tx, new, [await self._book.nearest(tx, name, new, one.token)]))
        return len(taken), posted


def _waits(one: Assignment, todo: Todo) -> bool:
    """Whether it still waits for the one it was given to, who did not give it to itself."""
    itself = one.giver is not None and one.giver in {one.assignee, one.token, f"{one.giver_token}/{one.assignee}"}
    return todo.state is TodoState.PENDING and todo.assignee == one.assignee and not itself


def _rings_for(endpoint: Endpoint, assignee: str) -> bool:
    """Whether the doorbell rings here for work that only this assignee may claim (see store.rings.Seat)."""
    named = endpoint.name or endpoint.created_by
    return endpoint.rings and assignee in {named, f"{endpoint.created_by}/{endpoint.name}"}


def assigned_message(one: Assignment, todo: Todo, name: str) -> NewMessage:
    """What waits, for whom and by whom, in a line; the payload is one look at the todo away."""
    title = cut(printable(todo.title), MAX_WORDS)
    since = "" if todo.available_at is None else f" from {show_time(todo.available_at)}"
    by = "" if one.giver is None else f", given by {one.giver}"
    return NewMessage(
        f'Todo {todo.id} "{title}" in queue {todo.queue} waits for {one.assignee}{since}{by}. '
        f'Claim with claim(id="{todo.id}"). {GRANTS_NOTHING}',
        to=name,
        kind=KIND,
        ack_mode=AckMode.INJECTED,
        metadata={
            "todo_id": todo.id,
            "queue": todo.queue,
            "state": "assigned",
            "assignee": one.assignee,
            "giver": one.giver,
        },
        correlation_id=todo.id,
    )
