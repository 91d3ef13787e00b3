"""Claims: handing todos out under a lease, in claim order, one owner at a time (RULINGS 1-4, 11, 12)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from postroom import lifecycle
from postroom.errors import Conflict, PostroomError, Unavailable
from postroom.ids import Ids, Prefix, check_id
from postroom.limits import check_claim
from postroom.model import ClaimRequest, OutcomeItem, Principal, Todo, TodoState, Verb
from postroom.services import tellings
from postroom.services.endings import EndingService, EndResult
from postroom.services.refusals import told
from postroom.services.todos import TodoService
from postroom.services.wake import Wake
from postroom.store.claims import ClaimAsk, ClaimTable, Taken
from postroom.store.engine import Engine, Once, Reader, Tx
from postroom.store.queues import QueueTable
from postroom.store.statements import Dialect
from postroom.store.todos import Ending, TodoTable

LOOKS = 3
"""How often a claim looks again at once when others had locked what it saw."""


class ClaimService:
    """claim_next, claim(id), and endings that claim besides."""

    def __init__(
        self,
        engine: Engine,
        table: ClaimTable,
        todo_table: TodoTable,
        queue_table: QueueTable,
        todos: TodoService,
        endings: EndingService,
        wake: Wake,
        ids: Ids,
        jitter: random.Random,
    ) -> None:
        self._engine = engine
        self._table = table
        self._todo_table = todo_table
        self._queue_table = queue_table
        self._todos = todos
        self._endings = endings
        self._wake = wake
        self._ids = ids
        self._jitter = jitter
        self._once = Once(engine)
        self._reader = Reader(engine)

    # claim one

    async def claim(
        self, principal: Principal, id_: str, ttl_ms: int | None, claim_key: str | None, worker: str | None
    ) -> Todo:
        """This todo, claimable -> claimed; Conflict telling where it stands (S6)."""
        check_id(id_, Prefix.TODO, "todo")
        request = ClaimRequest(None, ttl_ms, 1, claim_key, worker)
        check_claim(request)
        ask = self._ask(principal, request, ())

        async def operation(tx: Tx) -> Todo | None:
            if claim_key is not None:
                for todo in await self._table.under_key(tx, ask.owner, claim_key):
                    if todo.id == id_:
                        return todo
            found = await self._todo_table.by_ids(tx, [id_])
            if not found or not principal.may_use(found[0].queue):
                return None
            rooms = await self._table.rooms(tx, [found[0].queue])
            if rooms and rooms[found[0].queue] <= 0:
                raise Conflict(f"queue {found[0].queue} has as many in flight as it may", reason="max_in_flight")
            return await self._table.take_one(tx, id_, ask, capped=bool(rooms))

        todo = await self._engine.transact(operation)
        if todo is not None:
            self._claimed(ask, (todo,))
            return todo
        standing = (await self._todo_table.standings(self._reader, [(id_, None)]))[0]
        here = standing.todo
        if here is not None and principal.may_use(here.queue):
            settings = await self._queue_table.settings(self._reader, [here.queue])
            if here.queue in settings and settings[here.queue].paused:
                raise Conflict(f"queue {here.queue} is paused", state=str(here.state), reason="paused")
            if not lifecycle.assigned_to(here, ask.owner, ask.called):
                raise Conflict(f"{id_} is assigned to {here.assignee}", state=str(here.state), assignee=here.assignee)
            if lifecycle.spent(here):
                await self._bury([here.queue])
                standing = (await self._todo_table.standings(self._reader, [(id_, None)]))[0]
        raise told(principal, id_, standing, "claim")

    # claim next

    def check(self, principal: Principal, request: ClaimRequest) -> None:
        """Pass what this principal may ask `claim_next` for. Raises Invalid, NotFound."""
        check_claim(request)
        for queue in request.queues or ():
            self._todos.check_queue(principal, queue, "queues")

    async def claim_next(self, principal: Principal, request: ClaimRequest) -> tuple[Todo, ...]:
        """Claimable -> claimed, up to `limit` in claim order; empty when there is nothing (S5)."""
        self.check(principal, request)
        todos, _ = await self.take(principal, request)
        return todos

    async def end_and_claim(
        self, principal: Principal, items: Sequence[OutcomeItem], request: ClaimRequest
    ) -> tuple[list[EndResult], tuple[Todo, ...]]:
        """End attempts and claim besides, each with its own results; neither half stops the other (RULINGS 11)."""
        self.check(principal, request)
        only = items[0] if len(items) == 1 and self._engine.dialect is Dialect.POSTGRES else None
        if only is not None and only.verb is Verb.COMPLETE and only.lease_id and request.claim_key is None:
            return await self._fused(principal, only, request)
        if self._engine.dialect is Dialect.SQLITE and request.claim_key is None:
            return await self._together(principal, items, request)
        # The claim comes after the endings: what fails, is released or is late may else be claimed beside its own ending.
        results = await self._endings.end_many(principal, items)
        todos, _ = await self.take(principal, request)
        return results, todos

    async def _together(
        self, principal: Principal, items: Sequence[OutcomeItem], request: ClaimRequest
    ) -> tuple[list[EndResult], tuple[Todo, ...]]:
        """Both halves in one transaction of SQLite's one writer."""
        ask = self._ask(principal, request, await self._queues(principal, request))
        taken: list[Taken] = []

        async def claim(tx: Tx) -> None:
            taken[:] = [await self._table.take(tx, ask) if ask.queues else Taken(())]

        results = await self._endings.end_many(principal, items, claim)
        todos = taken[0].todos
        self._claimed(ask, todos)
        if len(todos) < request.limit:
            todos = await self._more(principal, request, todos)
        return results, todos

    async def _fused(
        self, principal: Principal, item: OutcomeItem, request: ClaimRequest
    ) -> tuple[list[EndResult], tuple[Todo, ...]]:
        try:
            check_id(item.id, Prefix.TODO, "todo")
            ending = self._endings.ending(item)
        except PostroomError as error:
            return [EndResult(item.id, error=error)], (await self.take(principal, request))[0]
        queues = await self._queues(principal, request)
        ask = self._ask(principal, request, queues)

        async def operation(tx: Tx) -> tuple[str | None, Taken]:
            return await self._table.complete_and_take(tx, ending, principal.name, ask)

        queue, taken = await self._engine.transact(operation, one=True)
        todos = taken.todos
        if queue is not None:
            self._wake.told(tellings.todos_ended, principal, [(item, queue, TodoState.DONE)])
        self._claimed(ask, todos)
        if queue is not None:
            results = [EndResult(item.id, queue, TodoState.DONE)]
            self._wake.work([queue])
        else:
            try:
                results = await self._endings.end_many(principal, [item])
            except Unavailable as error:
                if not todos:
                    raise
                results = [EndResult(item.id, error=error)]
        if len(todos) < request.limit and (taken.capped or taken.contended or not todos):
            todos = await self._more(principal, request, todos)
        return results, todos

    async def _more(self, principal: Principal, request: ClaimRequest, todos: tuple[Todo, ...]) -> tuple[Todo, ...]:
        """What was claimed, and up to the limit besides; what is claimed is handed over even if the database goes away."""
        left = ClaimRequest(request.queues, request.ttl_ms, request.limit - len(todos), None, request.worker)
        try:
            return todos + (await self.take(principal, left))[0]
        except Unavailable:
            if not todos:
                raise
            return todos

    async def _queues(self, principal: Principal, request: ClaimRequest) -> Sequence[str]:
        if request.queues is not None:
            return tuple(dict.fromkeys(request.queues))
        if not any(mark in glob for glob in principal.queues for mark in "*?["):
            return principal.queues
        return [name for name in await self._queue_table.names(self._reader) if principal.may_use(name)]

    def _ask(self, principal: Principal, request: ClaimRequest, queues: Sequence[str]) -> ClaimAsk:
        return ClaimAsk(
            queues=queues,
            owner=principal.owner(request.worker),
            name=principal.name,
            ttl=request.ttl_ms,
            limit=request.limit,
            lease_id=self._ids.new(Prefix.LEASE),
            claim_key=request.claim_key,
            called=principal.called(request.worker),
        )

    async def take(self, principal: Principal, request: ClaimRequest) -> tuple[tuple[Todo, ...], bool]:
        """Claim now; and whether an empty answer rests on rows that others had locked."""
        ask = self._ask(principal, request, await self._queues(principal, request))
        key = request.claim_key
        if key is not None:

            async def keyed(tx: Tx) -> Taken:
                known = await self._table.under_key(tx, ask.owner, key)
                if known or not ask.queues:
                    return Taken(known)
                return await self._table.take(tx, ask, await self._table.rooms(tx, ask.queues))

            taken = await self._engine.transact(keyed)
            todos, contended = taken.todos, taken.contended
        elif not ask.queues:
            return (), False
        else:
            todos, contended = await self._take_unkeyed(ask)
        self._claimed(ask, todos)
        if len(todos) < request.limit and ask.queues:
            try:
                await self._bury(ask.queues)
            except Unavailable:
                if not todos:
                    raise
                # What is claimed is handed over: nobody else could end it before its lease does.
        return todos, contended and not todos

    def _claimed(self, ask: ClaimAsk, todos: Sequence[Todo]) -> None:
        if todos:
            at = max(todo.claimed_at or 0 for todo in todos)
            self._wake.claimed((todo.queue for todo in todos), ask.owner, at)
            self._wake.told(tellings.todos_claimed, ask.lease_id, todos)

    async def _take_unkeyed(self, ask: ClaimAsk) -> tuple[tuple[Todo, ...], bool]:
        todos: tuple[Todo, ...] = ()
        contended = False
        for look in range(LOOKS + 1):
            left = replace(ask, limit=ask.limit - len(todos), claim_key=None)

            async def operation(tx: Tx, left: ClaimAsk = left) -> Taken:
                return await self._table.take(tx, left)

            async def counted(tx: Tx, left: ClaimAsk = left) -> Taken:
                return await self._table.take(tx, left, await self._table.rooms(tx, left.queues))

            try:
                taken = await self._engine.transact(operation, one=True)
                if taken.capped:
                    taken = await self._engine.transact(counted)
            except Unavailable:
                if not todos:
                    raise
                break
            todos += taken.todos
            contended = taken.contended
            if not contended or len(todos) >= ask.limit or look == LOOKS:
                break
            await asyncio.sleep(self._jitter.random() * 0.004 * (look + 1))
        return todos, contended

    async def _bury(self, queues: Sequence[str]) -> None:
        """A stopped sweep must not leave a spent claim standing: it is dead, not claimable (RULINGS 1)."""
        buried = await self._table.bury_spent(self._once, queues)
        self._wake.told(tellings.todos_lapsed, buried)
        self._wake.work({queue for _, queue, _ in buried})

    async def give_back(self, principal: Principal, todos: Sequence[Todo]) -> None:
        """The waiter went away while it was served: its claim is released, so that the next one gets it at once."""
        note = "the caller had gone before the claim was handed over"
        endings = [Ending(todo.id, todo.lease_id, Verb.RELEASE, None, note, True, None, 0.0) for todo in todos]

        async def operation(tx: Tx) -> object:
            return await self._todo_table.end_many(tx, principal.name, endings)

        await self._engine.transact(operation, one=True)
        self._wake.told(tellings.todos_released, [(todo.id, todo.queue) for todo in todos], principal.name, note)
        self._wake.work({todo.queue for todo in todos})
