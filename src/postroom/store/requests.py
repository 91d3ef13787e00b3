"""The requests table: what a caller's own key was answered with, so that asking again changes nothing (RULINGS 5)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from postroom.store.engine import Tx


@dataclass(frozen=True, slots=True)
class Known:
    """An earlier request under the same key: its verb, the digest of its body, and the answer's ids."""

    verb: str
    digest: str
    answer: tuple[object, ...]


class RequestTable:
    """The statements over request keys."""

    async def enter(self, tx: Tx, principal: str, key: str, verb: str, digest: str) -> Known | None:
        """Nothing -> entered (None); or the earlier request, after the wait for its commit."""
        while True:
            if await tx.rows("request_insert", principal=principal, key=key, verb=verb, digest=digest):
                return None
            rows = await tx.rows("request_get", principal=principal, key=key)
            if rows:
                return Known(rows[0][0], rows[0][1], tuple(json.loads(rows[0][2] or "[]")))

    async def answer(self, tx: Tx, principal: str, key: str, answer: tuple[object, ...]) -> None:
        """Keep what the request was answered with."""
        await tx.rows("request_answer", principal=principal, key=key, answer=json.dumps(answer))
