"""The oracle: the queue as a dictionary of todos, moved by the pure functions of the lifecycle and by nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from postroom import lifecycle, limits
from postroom.errors import Conflict, Forbidden, NotFound, PostroomError
from postroom.limits import DEFAULT_BACKOFF, DEFAULT_BACKOFF_CAP, DEFAULT_LEASE
from postroom.model import (
    Attempt,
    NewTodo,
    Outcome,
    OutcomeItem,
    Principal,
    QueueSettings,
    Todo,
    TodoChange,
    TodoState,
    Verb,
)
from postroom.store.claims import SPARE
from postroom.text import cut

Step = Callable[[Todo, int], Todo]
"""What becomes of a todo, given the database's time at its change."""

_OUTCOMES = {Verb.COMPLETE: Outcome.DONE, Verb.FAIL: Outcome.FAILED, Verb.RELEASE: Outcome.RELEASED}


def claim_order(todo: Todo) -> tuple[int, int, int]:
    """Priority high to low, then age, then number."""
    return -todo.priority, todo.created_at, todo.seq


class Oracle:
    """What the store must hold. `plan` collects what an operation does to each todo; `settle` does it.

    Times are the database's own: what a change gives is computed from the time at which the database made it.
    """

    def __init__(self) -> None:
        self.todos: dict[str, Todo] = {}
        self.settings: dict[str, QueueSettings] = {}
        self.ended: dict[tuple[str, str], tuple[str | None, Outcome]] = {}
        self.now = 0

    # Rules about queues.

    def queue(self, name: str) -> QueueSettings:
        return self.settings.get(name, QueueSettings(name))

    def lease(self, queue: str, ttl: int | None) -> int:
        return ttl or self.queue(queue).lease_ms or DEFAULT_LEASE

    def room(self, name: str) -> int:
        """How many more of this queue may be claimed."""
        cap = self.queue(name).max_in_flight
        if cap is None:
            return 10_000
        live = sum(
            todo.queue == name and todo.state is TodoState.CLAIMED and (todo.lease_expires_at or 0) > self.now
            for todo in self.todos.values()
        )
        return cap - live

    # What is asked, and by whom.

    def find(self, who: Principal, id_: str) -> Todo:
        todo = self.todos.get(id_)
        if todo is None or not who.may_use(todo.queue):
            raise NotFound("missing")
        return todo

    def steered(self, who: Principal, id_: str, step: Step) -> Todo:
        """The todo as steering it would leave it, or the refusal."""
        todo = self.find(who, id_)
        if not who.admin and todo.created_by != who.name:
            raise Forbidden("not yours")
        return step(todo, self.now)

    def holder(self, queue: str, key: str | None) -> Todo | None:
        """The live todo under a key."""
        if key is None:
            return None
        live = [one for one in self.todos.values() if one.queue == queue and one.idempotency_key == key and one.live]
        assert len(live) <= 1
        return live[0] if live else None

    def rival(self, todo: Todo) -> None:
        """Refuse the retry of a todo whose key a newer one holds."""
        held = self.holder(todo.queue, todo.idempotency_key)
        if held is not None and held.id != todo.id:
            raise Conflict("held", todo_id=held.id)

    # Steps.

    def created(self, new: NewTodo, by: str, shown: Todo) -> Todo:
        """The todo that a creation makes; number, id and time are the store's."""
        now = shown.created_at
        at = new.available_at if new.available_at is not None else now + (new.delay_ms or 0)
        payload = None if new.payload is None else f'{{"n":{new.payload["n"]}}}'
        return Todo(
            seq=shown.seq,
            id=shown.id,
            queue=new.queue,
            source=new.source,
            kind=new.kind,
            title=new.title,
            event_id=None,
            idempotency_key=new.idempotency_key,
            assignee=new.assignee,
            state=TodoState.PENDING,
            owner=None,
            lease_id=None,
            lease_expires_at=None,
            claim_key=None,
            attempt=0,
            max_attempts=new.max_attempts or self.queue(new.queue).max_attempts or limits.DEFAULT_MAX_ATTEMPTS,
            priority=new.priority,
            available_at=at if at > now else None,
            next_retry_at=None,
            reason=None,
            error=None,
            created_by=by,
            created_at=now,
            updated_at=now,
            claimed_at=None,
            completed_at=None,
            payload_bytes=0 if payload is None else len(payload),
            payload_json=payload,
            result_json=None,
        )

    def ending(self, who: Principal, item: OutcomeItem) -> Step:
        """What an ending makes of the todo its holder holds."""

        def step(todo: Todo, now: int) -> Todo:
            result = None if item.result is None else str(item.result)
            match item.verb:
                case Verb.COMPLETE:
                    return lifecycle.complete(todo, now, who.name, item.lease_id, result)
                case Verb.FAIL:
                    queue = self.queue(todo.queue)
                    backoff = lifecycle.backoff(
                        todo.attempt, queue.backoff_ms or DEFAULT_BACKOFF, queue.backoff_cap_ms or DEFAULT_BACKOFF_CAP
                    )
                    delay = backoff if item.retry_in_ms is None else item.retry_in_ms
                    note = None if item.error is None else cut(item.error, 2048)
                    return lifecycle.fail(
                        todo, now, who.name, item.lease_id, note, delay, retry=item.retry, result_json=result
                    )
                case Verb.RELEASE:
                    return lifecycle.release(todo, now, who.name, item.lease_id, item.note, item.delay_ms)

        return step

    def ends(self, who: Principal, item: OutcomeItem) -> tuple[Step | None, bool]:
        """(the step, False) when it is held; (None, True) when it repeats what the lease did; or the refusal."""
        todo = self.todos.get(item.id)
        if todo is not None and lifecycle.held_by(todo, who.name, item.lease_id):
            return self.ending(who, item), False
        owner, outcome = self.ended.get((item.id, item.lease_id or ""), (None, None))
        if (
            owner is not None
            and owner.split("/")[0] == who.name
            and outcome is _OUTCOMES[item.verb]
            and todo is not None
        ):
            return None, True
        self.find(who, item.id)
        raise Conflict("not held")

    def under_key(self, owner: str, key: str | None) -> list[Todo]:
        """What is claimed under a claim key."""
        if key is None:
            return []
        found = [
            todo
            for todo in self.todos.values()
            if (todo.owner, todo.claim_key, todo.state) == (owner, key, TodoState.CLAIMED)
            and (todo.lease_expires_at or 0) > self.now
        ]
        return sorted(found, key=claim_order)

    def next(self, queues: Iterable[str], owner: str, limit: int, called: str | None = None) -> list[Todo]:
        """What a claim gets: ready ones in exact order, of the due ones the longest due, merged in claim order."""
        candidates: list[Todo] = []
        for name in queues:
            if self.queue(name).paused:
                continue
            mine = [
                todo
                for todo in self.todos.values()
                if todo.queue == name and lifecycle.claimable(todo, self.now, owner, called)
            ]
            ready = [todo for todo in mine if todo.state is TodoState.PENDING and todo.available_at is None]
            arms = [
                [todo for todo in mine if todo.state is TodoState.PENDING and todo.available_at is not None],
                [todo for todo in mine if todo.state is TodoState.FAILED],
                [todo for todo in mine if todo.state is TodoState.CLAIMED],
            ]
            due = [todo for arm in arms for todo in sorted(arm, key=_due)[: limit + SPARE]]
            candidates += sorted(ready + due, key=claim_order)[: max(self.room(name), 0)]
        return sorted(candidates, key=claim_order)[:limit]

    def spent(self, queues: Iterable[str]) -> list[Todo]:
        """Lapsed claims without an attempt left, which every short claim buries."""
        return [
            todo
            for todo in self.todos.values()
            if todo.queue in set(queues)
            and todo.state is TodoState.CLAIMED
            and (todo.lease_expires_at or 0) <= self.now
            and lifecycle.spent(todo)
        ]

    def swept(self) -> dict[str, Step]:
        """What a sweep does."""
        steps: dict[str, Step] = {}
        for todo in self.todos.values():
            if todo.state is TodoState.CLAIMED and (todo.lease_expires_at or 0) <= self.now:
                steps[todo.id] = lifecycle.reap
            elif todo.parked and (todo.next_retry_at or 0) <= self.now:
                steps[todo.id] = lifecycle.due
            elif todo.state is TodoState.PENDING and todo.available_at is not None and todo.available_at <= self.now:
                steps[todo.id] = lambda one, now: replace(one, available_at=None, updated_at=now)
        return steps

    def forgotten(self) -> list[str]:
        """What the retention deletes."""
        gone = []
        for todo in self.todos.values():
            final = todo.state is TodoState.DONE or (todo.state is TodoState.FAILED and not todo.parked)
            keep = limits.KEEP_DONE if todo.state is TodoState.DONE else limits.KEEP_DEAD
            if final and todo.completed_at is not None and todo.completed_at <= self.now - keep:
                gone.append(todo.id)
        return gone

    # Settling.

    def settle(self, id_: str, after: Todo) -> None:
        """A todo has changed: remember how its lease ended, when it did."""
        before = self.todos.get(id_)
        self.todos[id_] = after
        if before is None or before.lease_id is None or before.state is not TodoState.CLAIMED:
            return
        if after.state is TodoState.DONE:
            self.ended[id_, before.lease_id] = (before.owner, Outcome.DONE)
        elif len(after.history) > len(before.history):
            self.ended[id_, before.lease_id] = (before.owner, after.history[0].outcome)

    def forget(self, id_: str) -> None:
        """A todo is gone, and how its leases ended."""
        del self.todos[id_]
        self.ended = {pair: known for pair, known in self.ended.items() if pair[0] != id_}


def change_step(change: TodoChange) -> Step:
    """What an update makes of a pending todo; a time that has come is none."""

    def step(todo: Todo, now: int) -> Todo:
        payload = None if change.payload is None else str(change.payload)
        new = lifecycle.update(todo, now, change, payload)
        if change.payload_given:
            new = replace(new, payload_bytes=len(payload or ""))
        if change.available_at_given and change.available_at is not None and change.available_at <= now:
            new = replace(new, available_at=None)
        return new

    return step


def sorted_history(history: Sequence[Attempt]) -> list[tuple[int, int, str, str]]:
    """A history in an order that does not hang on two entries of one millisecond."""
    return sorted((one.ended_at, one.claimed_at or 0, str(one.outcome), f"{one.owner} {one.note}") for one in history)


def _due(todo: Todo) -> int:
    return todo.available_at or todo.next_retry_at or todo.lease_expires_at or 0


def refusal(run: Callable[[], object]) -> type[PostroomError] | None:
    """The kind of error the oracle raises."""
    try:
        run()
    except PostroomError as error:
        return type(error)
    return None
