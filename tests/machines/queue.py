"""A state machine over every verb of the queue: each step is done by the store and by the oracle, and compared.

Time moves in whole minutes and every duration is a multiple of half a minute, so that what is due never hangs on the
milliseconds that a step takes.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from postroom import lifecycle
from postroom.errors import Conflict, NotFound
from postroom.limits import MINUTE
from postroom.model import ClaimRequest, Created, NewTodo, OutcomeItem, Principal, Todo, TodoChange, TodoState, Verb
from postroom.store.todos import WIDTH, todo_of
from tests.machines.choices import (
    PEOPLE,
    claim_key,
    ending,
    lease,
    limit,
    new_todo,
    place,
    queues,
    ttl,
    who,
    worker,
)
from tests.machines.oracle import Step, change_step, claim_order, refusal, sorted_history
from tests.machines.timed import TimedMachine


class QueueMachine(TimedMachine):
    """The queue against its oracle; `ground` says on which engine."""

    # Creating.

    @rule(person=who, new=new_todo)
    def create(self, person: Principal, new: NewTodo) -> None:
        expected = None if person.may_use(new.queue) else NotFound
        answer = self._do(self.office.todos.create(person, new), expected)
        if answer is not None:
            self._created(person, new, answer)

    def _created(self, person: Principal, new: NewTodo, answer: Created) -> None:
        held = self.oracle.holder(new.queue, new.idempotency_key)
        if held is None:
            held = next((one for one in self.made.values() if _same_key(one, new)), None)
        assert answer.created == (held is None)
        if held is None:
            made = self.oracle.created(new, person.name, answer.todo)
            assert made == answer.todo
            self.made[made.id] = made
            self.ids.append(made.id)
        else:
            assert answer.todo.id == held.id

    @rule(person=who, news=st.lists(new_todo, min_size=1, max_size=4))
    def create_many(self, person: Principal, news: list[NewTodo]) -> None:
        answers = self._do(self.office.todos.create_many(person, news))
        assert answers is not None
        for new, answer in zip(news, answers, strict=True):
            if isinstance(answer, Created):
                self._created(person, new, answer)
            else:
                assert not person.may_use(new.queue)
        numbers = [todo.seq for todo in self.made.values()]
        assert numbers == sorted(numbers)

    @rule(person=st.sampled_from(PEOPLE[:2]), new=new_todo, key=st.sampled_from(["r1", "r2"]))
    def create_by_request(self, person: Principal, new: NewTodo, key: str) -> None:
        known = self.requests.get((person.name, key))
        if known is None:
            answer = self._do(self.office.todos.create(person, new, key))
            assert answer is not None
            assert not answer.replayed
            self.requests[person.name, key] = (new, answer.todo.id, answer.created, self.oracle.now)
            self._created(person, new, answer)
        elif known[0] != new:
            self._do(self.office.todos.create(person, new, key), Conflict)
        else:
            expected = None if known[1] in self.oracle.todos else NotFound
            answer = self._do(self.office.todos.create(person, new, key), expected)
            if answer is not None:
                assert (answer.replayed, answer.todo.id, answer.created) == (True, known[1], known[2])

    # Claiming.

    def _claims(self, person: Principal, request: ClaimRequest) -> tuple[list[Todo], bool, tuple[str, ...]]:
        """What a claim gets, whether that is an earlier one's, and the queues it looks at."""
        owner = person.owner(request.worker)
        if request.queues is not None:
            named = request.queues
        elif person.queues == ("*",):
            live = {todo.queue for todo in self.oracle.todos.values() if todo.live}
            named = tuple(sorted(live))
        else:
            named = person.queues
        known = self.oracle.under_key(owner, request.claim_key)
        if known:
            return known, True, named
        return self.oracle.next(named, owner, request.limit, person.called(request.worker)), False, named

    def _claimed(
        self,
        person: Principal,
        request: ClaimRequest,
        planned: tuple[list[Todo], bool, tuple[str, ...]],
        got: Any,
        buried: set[str] | None = None,
    ) -> None:
        expected, known, named = planned
        got = list(got)
        assert [todo.id for todo in got] == [todo.id for todo in expected]
        assert got == sorted(got, key=claim_order)
        assert len({todo.lease_id for todo in got}) <= 1
        if not known:
            for todo in got:
                self._take(person, request, todo)
        if len(got) < request.limit:
            for todo in self.oracle.spent(named):
                may_stay = buried is not None and todo.id not in buried and bool(got) and self.ground.halves_at_once
                if not self.changed.get(todo.id) and not may_stay:
                    self._plan(todo.id, lifecycle.reap)

    def _take(self, person: Principal, request: ClaimRequest, got: Todo) -> None:
        lease_id = got.lease_id
        assert lease_id is not None
        assert lease_id not in {old for known in self.leases.values() for old in known[:-1]}
        self.leases.setdefault(got.id, []).append(lease_id)
        length = self.oracle.lease(got.queue, request.ttl_ms)
        owner, called = person.owner(request.worker), person.called(request.worker)

        def step(todo: Todo, now: int) -> Todo:
            taken = lifecycle.claim(todo, now, owner, length, lease_id, request.claim_key, called)
            assert sorted_history(taken.history) == sorted_history(got.history)
            assert replace(taken, history=got.history) == got
            return taken

        self._plan(got.id, step)

    @rule(person=who, named=queues, most=limit, lease_ms=ttl, key=claim_key, worker_=worker)
    def claim_next(
        self,
        person: Principal,
        named: tuple[str, ...] | None,
        most: int,
        lease_ms: int | None,
        key: str | None,
        worker_: str | None,
    ) -> None:
        request = ClaimRequest(named, lease_ms, most, key, worker_)
        refused = named is not None and not all(person.may_use(name) for name in named)
        planned = self._claims(person, request)
        got = self._do(self.office.claims.claim_next(person, request), NotFound if refused else None)
        if got is not None:
            self._claimed(person, request, planned, got)

    @rule(person=who, at=place, lease_ms=ttl, key=claim_key, worker_=worker)
    def claim(self, person: Principal, at: int, lease_ms: int | None, key: str | None, worker_: str | None) -> None:
        id_ = self._pick(at)
        owner, called = person.owner(worker_), person.called(worker_)
        request = ClaimRequest(None, lease_ms, 1, key, worker_)

        def expect() -> bool:
            if id_ in {todo.id for todo in self.oracle.under_key(owner, key)}:
                return False
            todo = self.oracle.find(person, id_)
            if self.oracle.room(todo.queue) <= 0 or self.oracle.queue(todo.queue).paused:
                raise Conflict("capped or paused")
            lifecycle.claim(todo, self.oracle.now, owner, 1, "x", called=called)
            return True

        expected = refusal(expect)
        got = self._do(self.office.claims.claim(person, id_, lease_ms, key, worker_), expected)
        if got is not None:
            assert got.id == id_
            if expect():
                self._take(person, request, got)
        elif expected is Conflict:
            todo = self.oracle.todos[id_]
            looked = self.oracle.room(todo.queue) > 0 and not self.oracle.queue(todo.queue).paused
            if looked and lifecycle.assigned_to(todo, owner, called) and lifecycle.spent(todo):
                for one in self.oracle.spent([todo.queue]):
                    self._plan(one.id, lifecycle.reap)

    # Ending.

    def _item(self, chosen: dict[str, Any]) -> OutcomeItem:
        id_ = self._pick(chosen["place"])
        words = chosen["words"]
        return OutcomeItem(
            id=id_,
            verb=chosen["verb"],
            lease_id=self._lease_of(id_, chosen["lease"]),
            result=None if words is None else 7,
            error=words,
            retry=chosen["retry"],
            retry_in_ms=chosen["retry_in_ms"],
            note=words,
            delay_ms=chosen["delay_ms"],
        )

    @precondition(lambda self: self.ids)
    @rule(person=who, chosen=ending)
    def end(self, person: Principal, chosen: dict[str, Any]) -> None:
        item = self._item(chosen)
        expected = refusal(lambda: self.oracle.ends(person, item))
        if item.verb is Verb.COMPLETE:
            call = self.office.endings.complete(person, item.id, item.lease_id, item.result)
        else:
            call = self.office.endings.end(person, item)
        ended = self._do(call, expected)
        if ended is not None:
            step, replayed = self.oracle.ends(person, item)
            assert ended.replayed == replayed
            if step is not None:
                self._plan(item.id, step)

    @precondition(lambda self: self.ids)
    @rule(
        person=who,
        chosen=st.lists(ending, min_size=1, max_size=4, unique_by=lambda one: one["place"]),
        claims=st.booleans(),
        named=queues,
        most=limit,
    )
    def end_many(
        self,
        person: Principal,
        chosen: list[dict[str, Any]],
        claims: bool,
        named: tuple[str, ...] | None,
        most: int,
    ) -> None:
        items = list({item.id: item for item in map(self._item, chosen)}.values())
        if (
            named is not None
            and self.ground.halves_at_once
            and not (len(items) == 1 and items[0].verb is Verb.COMPLETE)
        ):
            # The two halves run beside each other there: what they give is certain only over queues apart.
            touched = {self.oracle.todos[item.id].queue for item in items}
            named = tuple(name for name in named if name not in touched)
        request = ClaimRequest(named, None, most)
        if not claims or not named or not all(person.may_use(name) for name in named):
            results = self._do(self.office.endings.end_many(person, items))
            assert results is not None
            self._ended(person, items, results)
            return
        both = self._do(self.office.claims.end_and_claim(person, items, request))
        assert both is not None
        self._ended(person, items, both[0])
        # The claim comes after the endings, which the oracle therefore makes good first, at the store's own time.
        since = self.oracle.now
        todos = {row[1]: row for row in self.ground.look()[0]}
        taken = {todo.id: todo for todo in both[1]}
        for id_, steps in list(self.changed.items()):
            at = taken[id_].history[0].ended_at if id_ in taken else todo_of(todos[id_][:WIDTH]).updated_at
            for step in steps:
                self.oracle.settle(id_, step(self.oracle.todos[id_], at))
            self.changed[id_] = []
            self.oracle.now = max(self.oracle.now, at)
        planned = self._claims(person, request)
        # One statement for both halves leaves the spent to the next short claim, when it found anything at all.
        self._claimed(
            person, request, planned, both[1], buried={id_ for id_, row in todos.items() if row[9] == "failed"}
        )
        self.oracle.now = since

    def _ended(self, person: Principal, items: Iterable[OutcomeItem], results: Iterable[Any]) -> None:
        for item, result in zip(items, results, strict=True):
            expected = refusal(lambda item=item: self.oracle.ends(person, item))  # type: ignore[misc]
            assert result.id == item.id
            assert (None if result.error is None else type(result.error)) is expected
            if expected is None:
                step, replayed = self.oracle.ends(person, item)
                assert result.replayed == replayed
                if step is not None:
                    self._plan(item.id, step)

    @precondition(lambda self: self.ids)
    @rule(person=who, at=place, which=lease, lease_ms=ttl)
    def heartbeat(self, person: Principal, at: int, which: str, lease_ms: int | None) -> None:
        id_ = self._pick(at)
        lease_id = self._lease_of(id_, which)

        def step(todo: Todo, now: int) -> Todo:
            return lifecycle.heartbeat(todo, now, person.name, self.oracle.lease(todo.queue, lease_ms), lease_id)

        def expect() -> None:
            todo = self.oracle.todos[id_]
            if not lifecycle.held_by(todo, person.name, lease_id):
                self.oracle.find(person, id_)
            step(todo, self.oracle.now)

        if self._do(self.office.endings.heartbeat(person, id_, lease_id, lease_ms), refusal(expect)) is not None:
            self._plan(id_, step)

    # Steering.

    def _steer(self, person: Principal, id_: str, step: Step, call: Callable[[], Coroutine[Any, Any, Todo]]) -> None:
        expected = refusal(lambda: self.oracle.steered(person, id_, step))
        shown = self._do(call(), expected)
        if shown is not None:
            assert shown.lease_id is None
            self._plan(id_, step)

    @precondition(lambda self: self.ids)
    @rule(person=who, at=place)
    def retry(self, person: Principal, at: int) -> None:
        def step(todo: Todo, now: int) -> Todo:
            if todo.state is TodoState.FAILED:
                self.oracle.rival(todo)
            return lifecycle.retry(todo, now)

        id_ = self._pick(at)
        self._steer(person, id_, step, lambda: self.office.todos.retry(person, id_))

    @precondition(lambda self: self.ids)
    @rule(person=who, at=place)
    def cancel(self, person: Principal, at: int) -> None:
        def step(todo: Todo, now: int) -> Todo:
            return lifecycle.cancel(todo, now, f"cancelled by {person.name}")

        id_ = self._pick(at)
        self._steer(person, id_, step, lambda: self.office.todos.cancel(person, id_))

    @precondition(lambda self: self.ids)
    @rule(
        person=who,
        at=place,
        title=st.sampled_from([None, "t3"]),
        payload=st.sampled_from(["-", None, 5]),
        priority=st.sampled_from([None, 9]),
        to=st.sampled_from(["-", None, "bob"]),
        ahead=st.sampled_from([None, None, -MINUTE, 2 * MINUTE, "never"]),
    )
    def update(
        self, person: Principal, at: int, title: str | None, payload: Any, priority: int | None, to: Any, ahead: Any
    ) -> None:
        change = TodoChange(
            title=title,
            payload=None if payload == "-" else payload,
            payload_given=payload != "-",
            priority=priority,
            assignee=None if to == "-" else to,
            assignee_given=to != "-",
            available_at=self.oracle.now + ahead if isinstance(ahead, int) else None,
            available_at_given=ahead is not None,
        )
        id_ = self._pick(at)
        self._steer(person, id_, change_step(change), lambda: self.office.todos.update(person, id_, change))


def _same_key(todo: Todo, new: NewTodo) -> bool:
    return new.idempotency_key is not None and (todo.queue, todo.idempotency_key) == (new.queue, new.idempotency_key)
