"""The engine contract: what the table families ask of a database, the same for both engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from postroom.store.statements import Dialect

Row = tuple[Any, ...]
T = TypeVar("T")


class Duplicate(Exception):
    """A unique index refused a row that a concurrent transaction had just made."""


class Tx(Protocol):
    """A transaction in progress: everything run through it happens together or not at all."""

    async def rows(self, name: str, /, **params: object) -> list[Row]:
        """Run a named statement and give its rows."""
        ...


Operation = Callable[[Tx], Awaitable[T]]
"""A transaction's body. It awaits nothing but its transaction, and may be run again from the start."""


class Engine(Protocol):
    """A database that runs named statements. Raises Unavailable when it cannot be reached or written now."""

    @property
    def dialect(self) -> Dialect:
        """Which texts of the statements it runs."""
        ...

    @property
    def listening(self) -> bool:
        """Whether hints of other processes arrive; without them waiters look again more often (RULINGS 13)."""
        ...

    @property
    def clock_steps_back(self) -> int:
        """How often the clock of its host was seen to go back by more than 5 s."""
        ...

    async def open(self) -> None:
        """Connect and bring the schema up to date. Raises Misconfigured when it is newer than the program."""
        ...

    async def read(self, name: str, /, **params: object) -> list[Row]:
        """Run one named query on committed state."""
        ...

    async def write(self, name: str, /, **params: object) -> list[Row]:
        """Run one named statement as a transaction of its own; answered after its commit."""
        ...

    async def transact(self, operation: Operation[T], *, heavy: bool = False, one: bool = False) -> T:
        """Run an operation as one transaction; answered after its commit.

        `heavy` ones may take their time. `one` says that on PostgreSQL it is a single statement, atomic by itself.
        """
        ...

    def hint(self, queue: str) -> None:
        """Tell other processes that a queue has work; best effort, after the commit, never waited for."""
        ...

    def on_hint(self, call: Callable[[str | None], None]) -> None:
        """Call this with the queue of each hint from elsewhere, and with None when hints may have been missed."""
        ...

    def on_news(self, call: Callable[[str | None], None]) -> None:
        """The same with the hints of other processes alone; `on_hint` may tell those of this one again."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then let go of every connection."""
        ...


class Once:
    """A transaction of one statement: each call commits by itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def rows(self, name: str, /, **params: object) -> list[Row]:
        """Run a named statement as a transaction of its own."""
        return await self._engine.write(name, **params)


class Reader:
    """Queries on committed state, in a transaction's shape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def rows(self, name: str, /, **params: object) -> list[Row]:
        """Run a named query."""
        return await self._engine.read(name, **params)
