"""The todos table: every transition of a todo but claiming, as named statements (DESIGN §4)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from postroom.errors import Conflict
from postroom.model import Attempt, NewTodo, Outcome, Todo, TodoChange, TodoFilter, TodoState, Verb
from postroom.store import steps
from postroom.store.engine import Row, Tx
from postroom.store.statements import Dialect

WIDTH = 29
"""How many columns of a row are the todo's own; a history may follow."""

_STATES = {state.value: state for state in TodoState}


def todo_of(row: Sequence[Any]) -> Todo:
    """The todo of a row, with its history when the row carries one."""
    fields: list[Any] = list(row[: WIDTH + 1])
    fields[9] = _STATES[fields[9]]
    if len(fields) > WIDTH:
        fields[WIDTH] = _history(fields[WIDTH])
    return Todo(*fields)


def _history(value: Any) -> tuple[Attempt, ...]:
    if not value:
        return ()
    entries = json.loads(value) if isinstance(value, str) else value
    return tuple(Attempt(owner, claimed, ended, Outcome(what), note) for owner, claimed, ended, what, note in entries)


@dataclass(frozen=True, slots=True)
class Ending:
    """One ending of an attempt with its words already stored text: times in ms, jitter 0..0.1."""

    id: str
    lease_id: str | None
    verb: Verb
    result: str | None
    note: str | None
    retry: bool
    delay: int | None
    jitter: float


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a todo stands after a guarded statement touched nothing: the row, and how this lease ended before."""

    todo: Todo | None
    ended: Outcome | None
    ended_by: str | None


class TodoTable:
    """The statements over todos, attempts aside from claiming."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    async def insert(self, tx: Tx, id_: str, new: NewTodo, payload: str | None, created_by: str) -> tuple[Todo, bool]:
        """Nothing -> pending, unless a live todo holds the key: then that one, and False (S2).

        A read-back that finds the holder gone begins again; it never answers that there is none.
        """
        while True:
            rows = await tx.rows(
                "todo_insert",
                id=id_,
                queue=new.queue,
                source=new.source,
                kind=new.kind,
                title=new.title,
                event_id=new.event_id,
                idempotency_key=new.idempotency_key,
                assignee=new.assignee,
                max_attempts=new.max_attempts,
                priority=new.priority,
                available_at=new.available_at,
                delay=new.delay_ms,
                created_by=created_by,
                payload=payload,
            )
            if rows:
                return todo_of(rows[0]), True
            rows = await tx.rows("todo_by_key", queue=new.queue, idempotency_key=new.idempotency_key)
            if rows:
                return todo_of(rows[0]), False

    async def insert_many(
        self, tx: Tx, ids: Sequence[str], news: Sequence[NewTodo], payloads: Sequence[str | None], created_by: str
    ) -> list[tuple[Todo, bool]]:
        """Insert a batch in one transaction, each item with its own answer (RULINGS 10)."""
        if self._dialect is Dialect.SQLITE:
            return [
                await self.insert(tx, id_, new, payload, created_by)
                for id_, new, payload in zip(ids, news, payloads, strict=True)
            ]
        made: dict[str, Todo] = {}
        found: dict[int, tuple[Todo, bool]] = {}
        left = list(range(len(news)))
        while left:
            rows = await tx.rows(
                "todo_insert_many",
                items=[
                    {
                        "id": ids[n],
                        "queue": news[n].queue,
                        "source": news[n].source,
                        "kind": news[n].kind,
                        "title": news[n].title,
                        "event_id": news[n].event_id,
                        "idempotency_key": news[n].idempotency_key,
                        "assignee": news[n].assignee,
                        "max_attempts": news[n].max_attempts,
                        "priority": news[n].priority,
                        "available_at": news[n].available_at,
                        "delay": news[n].delay_ms,
                        "payload": payloads[n],
                    }
                    for n in left
                ],
                created_by=created_by,
            )
            made.update((row[1], todo_of(row)) for row in rows)
            gone: list[int] = []
            for n in left:
                if ids[n] in made:
                    found[n] = (made[ids[n]], True)
                    continue
                held = await tx.rows("todo_by_key", queue=news[n].queue, idempotency_key=news[n].idempotency_key)
                if held:
                    found[n] = (todo_of(held[0]), False)
                else:
                    gone.append(n)
            left = gone
        return [found[n] for n in range(len(news))]

    async def get(self, tx: Tx, id_: str) -> Todo | None:
        """The whole todo with its history."""
        rows = await tx.rows("todo_get", id=id_)
        return todo_of(rows[0]) if rows else None

    async def by_ids(self, tx: Tx, ids: Sequence[str]) -> list[Todo]:
        """These todos, whole but for the history, in the order of the ids."""
        found = {row[1]: todo_of(row) for row in await tx.rows("todo_whole", ids=list(ids))}
        return [found[id_] for id_ in ids if id_ in found]

    async def page(
        self, tx: Tx, wanted: TodoFilter, queues: Sequence[str] | None, before: int | None, limit: int
    ) -> list[Todo]:
        """A page of todos without payloads, newest first."""
        state = None if wanted.state in {"parked", "dead", "cancelled"} else wanted.state
        rows = await tx.rows(
            "todo_list",
            queue=wanted.queue,
            queues=list(queues) if queues is not None else None,
            state=state,
            parked=1 if wanted.state == "parked" else None,
            dead=1 if wanted.state == "dead" else None,
            cancelled=1 if wanted.state == "cancelled" else None,
            assignee=wanted.assignee,
            before=before,
            limit=limit,
        )
        return [todo_of(row) for row in rows]

    async def heartbeat(self, tx: Tx, id_: str, owner: str, lease_id: str | None, ttl: int | None) -> Todo | None:
        """Held -> its lease never shortened; None when not held (S7)."""
        rows = await tx.rows("todo_heartbeat", id=id_, owner=owner, lease_id=lease_id, ttl=ttl)
        return todo_of(rows[0]) if rows else None

    async def complete(self, tx: Tx, id_: str, owner: str, lease_id: str | None, result: str | None) -> Todo | None:
        """Held -> done; None when not held (S8)."""
        rows = await tx.rows("todo_complete", id=id_, owner=owner, lease_id=lease_id, result=result)
        return todo_of(rows[0]) if rows else None

    async def end(self, tx: Tx, owner: str, ending: Ending) -> Todo | None:
        """Held -> done, parked, dead or pending, by the ending's verb; None when not held (S8, S9, S24)."""
        rows = await self._end(tx, owner, [ending], whole=1, brief=None)
        return todo_of(rows[0]) if rows else None

    async def end_many(self, tx: Tx, owner: str, endings: Sequence[Ending]) -> dict[str, tuple[str, TodoState]]:
        """End many attempts, at most one a todo: queue and state by id, for those that were held."""
        rows = await self._end(tx, owner, endings, whole=None, brief=1)
        return {row[0]: (row[1], _STATES[row[2]]) for row in rows}

    async def _end(
        self, tx: Tx, owner: str, endings: Sequence[Ending], *, whole: int | None, brief: int | None
    ) -> list[Row]:
        rows: list[Row] = []
        if brief:
            done = [one for one in endings if one.verb is Verb.COMPLETE]
            if done:
                endings = [one for one in endings if one.verb is not Verb.COMPLETE]
                rows += await tx.rows("todo_complete_many", items=[self._held(one) for one in done], owner=owner)
        if self._dialect is Dialect.POSTGRES:
            if endings:
                items = [
                    {
                        "id": one.id,
                        "lease_id": one.lease_id,
                        "verb": one.verb.value,
                        "result": one.result,
                        "note": one.note,
                        "retry": one.retry,
                        "delay": one.delay,
                        "jitter": one.jitter,
                    }
                    for one in endings
                ]
                rows += await tx.rows("todo_end_many", owner=owner, items=items, whole=whole, brief=brief)
            return rows
        for one in endings:
            rows += await tx.rows(
                "todo_end",
                id=one.id,
                owner=owner,
                lease_id=one.lease_id,
                verb=one.verb.value,
                result=one.result,
                note=one.note,
                retry=one.retry,
                delay=one.delay,
                jitter=one.jitter,
                whole=whole,
                brief=brief,
            )
        return rows

    def _held(self, ending: Ending) -> object:
        if self._dialect is Dialect.SQLITE:
            return [ending.id, ending.lease_id, ending.result]
        return {"id": ending.id, "lease_id": ending.lease_id, "result": ending.result}

    async def standings(self, tx: Tx, pairs: Sequence[tuple[str, str | None]]) -> list[Standing]:
        """Where these todos stand, and how each one's lease id ended when it did, to tell a replay from a conflict."""
        ids = [id_ for id_, _ in pairs]
        todos = {todo.id: todo for todo in await self.by_ids(tx, ids)}
        leases = [lease for _, lease in pairs if lease is not None]
        ended: dict[tuple[str, str], tuple[str | None, Outcome]] = {}
        if leases:
            for todo_id, lease, owner, outcome in await tx.rows("attempt_outcomes", ids=ids, leases=leases):
                ended[todo_id, lease] = (owner, Outcome(outcome))
        standings = []
        for id_, lease in pairs:
            todo = todos.get(id_)
            by, how = ended.get((id_, lease or ""), (None, None))
            if todo is not None and todo.state is TodoState.DONE and lease is not None and todo.lease_id == lease:
                by, how = todo.owner, Outcome.DONE
            standings.append(Standing(todo, how, by))
        return standings

    async def retry(self, tx: Tx, id_: str, creator: str | None, by: str) -> Todo | None:
        """Failed -> pending with attempts anew; None when not failed, or not this creator's (S26). `by` is who does it.

        Raises Conflict naming the newer live todo that holds its key, or the engine's Duplicate when one just came.
        """
        rows = await tx.rows("todo_key_rival", id=id_)
        if rows:
            raise Conflict(f"the key of {id_} is held by the newer {rows[0][0]}", todo_id=rows[0][0])
        was = await self._steered(tx, id_, TodoState.FAILED, creator)
        rows = await tx.rows("todo_retry", id=id_, creator=creator)
        if not rows or was is None:
            return None
        todo = todo_of(rows[0])
        await steps.note_retry(tx, was, by)
        if todo.assignee is not None:
            await tx.rows("assignment_add", todo_id=id_, assignee=todo.assignee, giver=by)
        return todo

    async def cancel(
        self, tx: Tx, id_: str, creator: str | None, entry: str, reason: str | None, by: str
    ) -> Todo | None:
        """Live -> failed, cancelled; None when not live, or not this creator's. `entry` keys its line in the history."""
        note = reason or f"cancelled by {by}"
        rows = await tx.rows("todo_cancel", id=id_, creator=creator, entry=entry, note=note)
        if not rows:
            return None
        todo = todo_of(rows[0])
        why = f": {reason}" if reason else ""
        await steps.note(tx, id_, steps.CANCELLED, f"by {by}{why}", todo.completed_at)
        return todo

    async def _steered(self, tx: Tx, id_: str, state: TodoState, creator: str | None) -> Todo | None:
        """The todo as it stands, held for this transaction; None when not in this state, or not this creator's."""
        rows = await tx.rows("todo_steered", id=id_, state=state.value, creator=creator)
        return todo_of(rows[0]) if rows else None

    async def update(
        self, tx: Tx, id_: str, creator: str | None, change: TodoChange, payload: str | None, by: str
    ) -> Todo | None:
        """Pending -> pending, changed; None when not pending, or not this creator's. `by` is who changes it."""
        was = await self._steered(tx, id_, TodoState.PENDING, creator)
        rows = await tx.rows(
            "todo_update",
            id=id_,
            creator=creator,
            title=change.title,
            priority=change.priority,
            payload_given=1 if change.payload_given else None,
            payload=payload,
            assignee_given=1 if change.assignee_given else None,
            assignee=change.assignee,
            available_given=1 if change.available_at_given else None,
            available_at=change.available_at,
        )
        if not rows or was is None:
            return None
        todo = todo_of(rows[0])
        if change.assignee is not None:
            await tx.rows("assignment_giver", todo_id=id_, giver=by)
        await steps.note_update(tx, was, todo, change, by)
        return todo
