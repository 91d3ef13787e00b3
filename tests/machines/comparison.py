"""One step of a state machine: what the store does, what the oracle says, and the comparison of every row."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from postroom.errors import PostroomError
from postroom.model import Attempt, NewTodo, Outcome, Todo
from postroom.store.todos import WIDTH, todo_of
from tests.machines.ground import Ground
from tests.machines.oracle import Oracle, Step, sorted_history

T = TypeVar("T")


class Comparison(RuleBasedStateMachine):
    """Store and oracle side by side: each step is planned by the one, done by the other, and compared row by row."""

    ground: Ground

    def __init__(self) -> None:
        super().__init__()
        self.ground.empty()
        self.office = self.ground.office
        self.oracle = Oracle()
        self.ids: list[str] = []
        self.leases: dict[str, list[str]] = {}
        self.requests: dict[tuple[str, str], tuple[NewTodo, str, bool, int]] = {}
        self.rows: dict[str, tuple[Any, ...]] = {}
        self.noted: list[tuple[Any, ...]] = []
        self.changed: dict[str, list[Step]] = {}
        self.made: dict[str, Todo] = {}
        self.gone: list[str] = []
        self.oracle.now = self.ground.look()[2]

    # One step: what the store does, what the oracle says, and the comparison.

    def _do(self, call: Coroutine[Any, Any, T], expected: type[PostroomError] | None = None) -> T | None:
        answer: T | None = None
        refused: PostroomError | None = None
        try:
            answer = self.ground.run(call)
        except PostroomError as error:
            refused = error
        assert (None if refused is None else type(refused)) is expected, f"{refused or answer!r}, not {expected}"
        return answer

    def _plan(self, id_: str, step: Step) -> None:
        self.changed.setdefault(id_, []).append(step)

    @invariant()
    def rows_are_the_oracles(self) -> None:
        """Every row, every attempt and every time is what the lifecycle says."""
        todos, attempts, clock = self.ground.look()
        rows = {row[1]: row for row in todos}
        assert set(rows) == (set(self.rows) | set(self.made)) - set(self.gone)
        planned = (set(self.changed) | set(self.made)) - set(self.gone)
        changed = {id_ for id_, row in rows.items() if self.rows.get(id_) != row}
        assert changed <= planned, f"{changed - planned} changed and should not have"
        for id_, shown in self.made.items():
            self.oracle.settle(id_, shown)
        for id_ in planned:
            actual = todo_of(rows[id_][:WIDTH])
            assert self.oracle.now <= actual.updated_at <= clock, (
                f"{actual.updated_at} of {id_} is not within {self.oracle.now} and {clock}"
            )
            for step in self.changed.get(id_, ()):
                before = self.oracle.todos[id_]
                self.oracle.settle(id_, step(before, actual.updated_at))
            expected = self.oracle.todos[id_]
            assert replace(expected, history=()) == actual
        if attempts != self.noted or self.gone:
            self._compare_histories(attempts)
        for id_ in self.gone:
            self.oracle.forget(id_)
            self.ids.remove(id_)
        self.rows, self.noted = rows, attempts
        self.changed, self.made, self.gone = {}, {}, []
        self.oracle.now = clock

    def _compare_histories(self, attempts: list[tuple[Any, ...]]) -> None:
        actual: dict[str, list[Attempt]] = {}
        known = {(todo_id, lease_id) for todo_id, leases in self.leases.items() for lease_id in leases}
        ended = {
            pair: outcome
            for pair, (_, outcome) in self.oracle.ended.items()
            if outcome is not Outcome.DONE and pair[0] not in self.gone
        }
        assert ended == {(row[0], row[6]): row[4] for row in attempts if (row[0], row[6]) in known}
        for todo_id, owner, claimed_at, ended_at, outcome, note, _ in attempts:
            actual.setdefault(todo_id, []).append(Attempt(owner, claimed_at, ended_at, Outcome(outcome), note))
        for todo in self.oracle.todos.values():
            history = actual.pop(todo.id, []) if todo.id not in self.gone else []
            if todo.id not in self.gone:
                assert sorted_history(todo.history) == sorted_history(history)
        assert not actual, "an attempt belongs to no todo"

    def _pick(self, at: int) -> str:
        """One of the newest todos; of an id that never was when there is none."""
        if not self.ids:
            return "td_00000000-0000-7000-8000-ffffffffffff"
        return self.ids[-1 - at % len(self.ids)]

    def _lease_of(self, id_: str, which: str) -> str | None:
        known = self.leases.get(id_, [])
        match which:
            case "none":
                return None
            case "wrong":
                return "ls_wrong"
            case "before" if len(known) > 1:
                return known[-2]
        return known[-1] if known else "ls_none"
