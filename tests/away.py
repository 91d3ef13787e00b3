"""An engine that goes away at a chosen one of its calls, for tests of what stands between one call and the next."""

from __future__ import annotations

from typing import Any

from postroom.errors import Unavailable
from postroom.store.engine import Operation, Row, T
from tests.conftest import Store


class Away:
    """The engine's own answers up to the call number `at`, counted from 1; there it is Unavailable, for good or a `moment`.

    reads: whether queries count as calls too.
    """

    def __init__(self, engine: Store, at: int, *, moment: bool = False, reads: bool = True) -> None:
        self._engine = engine
        self.at = at
        self.moment = moment
        self._reads = reads
        self.opened = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _count(self) -> None:
        self.at -= 1
        if self.at == 0 or (self.at < 0 and not self.moment):
            raise Unavailable("away")

    async def open(self) -> None:
        """Open the engine, which is no call that counts."""
        self.opened += 1
        await self._engine.open()

    async def read(self, name: str, /, **params: object) -> list[Row]:
        """One query."""
        if self._reads:
            self._count()
        return await self._engine.read(name, **params)

    async def write(self, name: str, /, **params: object) -> list[Row]:
        """One statement."""
        self._count()
        return await self._engine.write(name, **params)

    async def transact(self, operation: Operation[T], *, heavy: bool = False, one: bool = False) -> T:
        """One transaction."""
        self._count()
        return await self._engine.transact(operation, heavy=heavy, one=one)
