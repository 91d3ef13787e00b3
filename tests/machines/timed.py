"""What happens to a queue by itself and by its operator: time, sweeps, settings, and tokens that are revoked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from postroom import lifecycle
from postroom.limits import DAY, MINUTE
from postroom.model import Principal, TodoState
from tests.machines.choices import (
    PEOPLE,
    ROOT,
    queue,
)
from tests.machines.comparison import Comparison
from tests.machines.oracle import Step


class TimedMachine(Comparison):
    """The rules that nobody who works on a todo asks for."""

    @rule(minutes=st.sampled_from([1, 1, 2, 5, 5, 16]))
    def time_passes(self, minutes: int) -> None:
        self.ground.move(minutes * MINUTE)
        self.oracle.now += minutes * MINUTE

    @rule()
    def sweep(self) -> None:
        for id_, step in self.oracle.swept().items():
            self._plan(id_, step)
        self._do(self.office.sweep.once())

    @rule(days=st.sampled_from([0, 0, 15, 91]))
    def retention(self, days: int) -> None:
        self.ground.move(days * DAY)
        self.oracle.now += days * DAY
        self.gone = self.oracle.forgotten()
        self.requests = {key: known for key, known in self.requests.items() if known[3] > self.oracle.now - DAY}
        self._do(self.office.sweep.retention())

    @rule(
        name=queue,
        changes=st.sampled_from(
            [
                {"paused": True},
                {"paused": False},
                {"paused": False, "max_in_flight": None},
                {"max_in_flight": 1},
                {"max_in_flight": 2},
                {"lease_ms": 4 * MINUTE},
                {"backoff_ms": MINUTE, "backoff_cap_ms": 2 * MINUTE},
                {"max_attempts": 3},
            ]
        ),
    )
    def put_queue(self, name: str, changes: dict[str, Any]) -> None:
        settings = self._do(self.office.queues.put(ROOT, name, changes))
        self.oracle.settings[name] = replace(self.oracle.queue(name), **changes)
        assert settings == self.oracle.settings[name]

    @rule(person=st.sampled_from(PEOPLE[1:3]))
    def revoke(self, person: Principal) -> None:
        for todo in self.oracle.todos.values():
            if todo.state is TodoState.CLAIMED and lifecycle.held_by(todo, person.name, None):
                self._plan(todo.id, _given_back(person))

        async def create_and_revoke() -> None:
            await self.office.tokens.create(ROOT, person.name)
            await self.office.tokens.revoke(ROOT, person.name)

        self._do(create_and_revoke())


def _given_back(person: Principal) -> Step:
    return lambda todo, now: lifecycle.release(todo, now, person.name, None, "the token was revoked")
