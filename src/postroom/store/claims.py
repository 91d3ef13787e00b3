"""Claiming: the arms of the scan merged in claim order, taken under one lease id (RULINGS 1-4, 11, 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from postroom.model import Todo
from postroom.store.engine import Row, Tx
from postroom.store.statements import Dialect
from postroom.store.todos import Ending, todo_of

SPARE = 8
"""How many more candidates than asked for are read, since others may have locked the first ones; the arms of what
fell due read as many on either engine, so that both choose alike."""


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """One claim: the queues, who takes it, lease in ms, and the new lease's id.

    name: the owner's token part. called: what else the owner goes by (see Principal.called).
    """

    queues: Sequence[str]
    owner: str
    name: str
    ttl: int | None
    limit: int
    lease_id: str
    claim_key: str | None = None
    called: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """What a claim got. `contended`: candidates were there that others had locked. `capped`: nothing was tried, since
    one of the queues has a cap and its row must be locked first."""

    todos: tuple[Todo, ...]
    contended: bool = False
    capped: bool = False


def _in_claim_order(todos: list[Todo]) -> tuple[Todo, ...]:
    return tuple(sorted(todos, key=lambda todo: (-todo.priority, todo.created_at, todo.seq)))


class ClaimTable:
    """The statements that hand todos out."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    async def take(self, tx: Tx, ask: ClaimAsk, rooms: Mapping[str, int] | None = None) -> Taken:
        """Claimable -> claimed, up to `limit` in claim order; with `rooms`, no more of a capped queue than its room."""
        if self._dialect is Dialect.SQLITE:
            return await self._take_here(tx, ask, rooms)
        rows = await tx.rows("todo_claim", **_params(ask, rooms))
        return _taken(rows, 0, ask.limit)

    async def complete_and_take(self, tx: Tx, ending: Ending, ended_by: str, ask: ClaimAsk) -> tuple[str | None, Taken]:
        """One statement on PostgreSQL: held -> done, and claim; the queue of the attempt that ended (RULINGS 11)."""
        rows = await tx.rows(
            "todo_complete_claim",
            id=ending.id,
            lease_id=ending.lease_id,
            ended_by=ended_by,
            result=ending.result,
            **_params(ask, None),
        )
        return rows[0][0], _taken(rows, 1, ask.limit)

    async def _take_here(self, tx: Tx, ask: ClaimAsk, rooms: Mapping[str, int] | None) -> Taken:
        """SQLite's way: read the candidates and take them, alone in the writer's transaction."""
        paused: set[str] = set()
        for name, stopped, cap in await tx.rows("claim_barriers", queues=list(ask.queues)):
            if cap is not None and rooms is None:
                return Taken((), capped=True)
            if stopped:
                paused.add(name)
        candidates: list[tuple[int, int, int, str, str, str]] = []
        for queue in ask.queues:
            room = ask.limit if rooms is None else min(ask.limit, rooms.get(queue, ask.limit))
            if queue in paused or room <= 0:
                continue
            found = await tx.rows(
                "claim_candidates",
                queue=queue,
                owner=ask.owner,
                name=ask.name,
                by_name=1 if ask.name != ask.owner else None,
                called=ask.called,
                window=ask.limit,
                due_window=ask.limit + SPARE,
            )
            inside = sorted((-priority, made, seq, id_, state, queue) for id_, state, priority, made, seq in found)
            candidates += inside[:room]
        candidates.sort()
        chosen = candidates[: ask.limit]
        ids = [id_ for _, _, _, id_, _, _ in chosen]
        lapsed = any(state == "claimed" for _, _, _, _, state, _ in chosen)
        if not ids:
            return Taken(())
        if lapsed:
            await tx.rows("claim_lapsed", ids=ids)
        rows = await tx.rows(
            "claim_take", ids=ids, owner=ask.owner, new_lease=ask.lease_id, claim_key=ask.claim_key, ttl=ask.ttl
        )
        return Taken(_in_claim_order([todo_of(row) for row in rows]))

    async def take_one(self, tx: Tx, id_: str, ask: ClaimAsk, *, capped: bool = False) -> Todo | None:
        """This todo, claimable -> claimed; None when it is not, or its queue is paused, or capped and not counted (S6)."""
        rows = await tx.rows(
            "todo_claim_one",
            id=id_,
            owner=ask.owner,
            name=ask.name,
            called=ask.called,
            new_lease=ask.lease_id,
            claim_key=ask.claim_key,
            ttl=ask.ttl,
            capped=capped,
        )
        return todo_of(rows[0]) if rows else None

    async def under_key(self, tx: Tx, owner: str, claim_key: str) -> tuple[Todo, ...]:
        """What is still claimed under a claim key, all of the batch; a concurrent twin waits here for the first's end."""
        if self._dialect is Dialect.POSTGRES:
            await tx.rows("claim_key_lock", lock_name=f"{owner}\x1f{claim_key}")
        rows = await tx.rows("claims_by_key", owner=owner, claim_key=claim_key)
        return tuple(todo_of(row) for row in rows)

    async def rooms(self, tx: Tx, queues: Sequence[str]) -> dict[str, int]:
        """How many each capped queue may still hand out; its row stays locked until the transaction's end."""
        caps = await tx.rows("caps_lock", queues=list(queues))
        if not caps:
            return {}
        used = {row[0]: row[1] for row in await tx.rows("caps_used", queues=[row[0] for row in caps])}
        return {name: cap - used.get(name, 0) for name, cap in caps}

    async def bury_spent(self, tx: Tx, queues: Sequence[str], limit: int = 100) -> list[tuple[str, str, str]]:
        """Lapsed with no attempt left -> dead letters, at most `limit`: id, queue and state of each (RULINGS 1)."""
        rows = await tx.rows("todo_bury_spent", queues=list(queues), limit=limit)
        return [(row[0], row[1], row[2]) for row in rows]

    async def next_due(self, tx: Tx, queues: Sequence[str]) -> int | None:
        """How many ms until the soonest delayed, parked or leased todo of these queues falls due; negative when it has."""
        rows = await tx.rows("claim_next_due", queues=list(queues))
        due = rows[0][0]
        return None if due is None else int(due)

    async def assignees(self, tx: Tx, queue: str) -> frozenset[str]:
        """Who has ready work in this queue that only they may claim."""
        return frozenset(row[0] for row in await tx.rows("claim_assignees", queue=queue))


def _params(ask: ClaimAsk, rooms: Mapping[str, int] | None) -> dict[str, object]:
    return {
        "queues": list(ask.queues),
        "rooms": [None if rooms is None else rooms.get(queue) for queue in ask.queues],
        "capped": rooms is not None,
        "owner": ask.owner,
        "name": ask.name,
        "called": ask.called,
        "ttl": ask.ttl,
        "limit": ask.limit,
        "window": ask.limit + SPARE,
        "new_lease": ask.lease_id,
        "claim_key": ask.claim_key,
    }


def _taken(rows: list[Row], skip: int, limit: int) -> Taken:
    todos = [todo_of(row[skip + 2 :]) for row in rows if row[skip + 3] is not None]
    seen, capped = rows[0][skip], rows[0][skip + 1]
    return Taken(_in_claim_order(todos), contended=len(todos) < min(limit, seen), capped=bool(capped))
