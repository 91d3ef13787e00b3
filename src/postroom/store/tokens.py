"""The tokens table: who may come in, known by the digest of a secret (RULINGS 37)."""

from __future__ import annotations

import json
from collections.abc import Iterable

from postroom.model import Principal, Role, Token
from postroom.store.engine import Row, Tx


def _token_of(row: Row) -> Token:
    return Token(row[0], row[1], Role(row[2]), tuple(json.loads(row[3])), row[4], row[5], tuple(json.loads(row[6])))


def is_barred(queues: str, queue: str) -> bool:
    """Whether the queues of a token's row do not cover this one."""
    return not Principal("", queues=tuple(json.loads(queues))).may_use(queue)


class TokenTable:
    """The statements over tokens."""

    async def insert(
        self,
        tx: Tx,
        id_: str,
        name: str,
        role: Role,
        queues: tuple[str, ...],
        digest: str,
        speaks_as: tuple[str, ...] = (),
    ) -> Token | None:
        """Nothing -> a token; None when an unrevoked one has the name."""
        rows = await tx.rows(
            "token_insert",
            id=id_,
            name=name,
            role=role.value,
            queues=json.dumps(queues),
            speaks_as=json.dumps(speaks_as),
            digest=digest,
        )
        return _token_of(rows[0]) if rows else None

    async def by_digest(self, tx: Tx, digest: str) -> Token | None:
        """The unrevoked token of a secret's digest."""
        rows = await tx.rows("token_by_digest", digest=digest)
        return _token_of(rows[0]) if rows else None

    async def by_name(self, tx: Tx, name: str) -> Token | None:
        """The unrevoked token of a name."""
        rows = await tx.rows("token_by_name", name=name)
        return _token_of(rows[0]) if rows else None

    async def barred(self, tx: Tx, names: Iterable[str], queue: str) -> frozenset[str]:
        """Which of these have a token that may not use the queue; a name without one is the operator's own."""
        known = sorted(set(names))
        rows = await tx.rows("tokens_named", names=known) if known else []
        return frozenset(row[0] for row in rows if is_barred(row[1], queue))

    async def all(self, tx: Tx) -> list[Token]:
        """Every token there was, oldest first."""
        return [_token_of(row) for row in await tx.rows("token_list")]

    async def revoke(self, tx: Tx, id_or_name: str) -> Token | None:
        """Valid -> revoked for ever; None when there is no valid one."""
        rows = await tx.rows("token_revoke", id=id_or_name)
        return _token_of(rows[0]) if rows else None

    async def release_claims(self, tx: Tx, owner: str) -> list[tuple[str, str]]:
        """Give back whatever this name holds: id and queue of each (RULINGS 17)."""
        return [(row[0], row[1]) for row in await tx.rows("token_release_claims", owner=owner)]
