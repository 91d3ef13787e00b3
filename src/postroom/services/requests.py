"""Requests: the same request under the same key again gives the same answer, whatever became of it (RULINGS 5)."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from postroom.errors import Conflict
from postroom.limits import check_key
from postroom.model import Principal
from postroom.store.engine import Engine, Tx
from postroom.store.requests import RequestTable
from postroom.text import dump_json

T = TypeVar("T")
Answer = tuple[object, ...]


def body_digest(body: object) -> str:
    """The SHA-256 of a request's checked body, the same for the same content."""
    return hashlib.sha256(dump_json(body).encode()).hexdigest()


class Requests:
    """Runs a verb once for each (principal, key), in the verb's own transaction."""

    def __init__(self, engine: Engine, table: RequestTable) -> None:
        self._engine = engine
        self._table = table

    async def once(
        self,
        principal: Principal,
        key: str,
        verb: str,
        body: object,
        run: Callable[[Tx], Awaitable[tuple[T, Answer]]],
        replay: Callable[[Tx, Answer], Awaitable[T]],
    ) -> T:
        """Run the verb, or give the earlier answer's current view; Conflict when the key named another request."""
        check_key(key, "request_id")
        digest = body_digest(body)

        async def operation(tx: Tx) -> T:
            known = await self._table.enter(tx, principal.name, key, verb, digest)
            if known is None:
                made, answer = await run(tx)
                await self._table.answer(tx, principal.name, key, answer)
                return made
            if (known.verb, known.digest) != (verb, digest):
                raise Conflict(f"request_id {key[:64]!r} was used for another {known.verb} request", field="request_id")
            return await replay(tx, known.answer)

        return await self._engine.transact(operation)
