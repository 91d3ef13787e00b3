"""The rule_sets table: every version of the rules that a source was given while a daemon served."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.store.engine import Row, Tx


@dataclass(frozen=True, slots=True)
class StoredRules:
    """One version of a source's rules: JSON text, and who made it when (ms UTC)."""

    source: str
    version: int
    rules: str
    created_by: str
    created_at: int


def _stored(rows: list[Row]) -> StoredRules | None:
    return StoredRules(*rows[0]) if rows else None


class RuleSetTable:
    """The statements over rule sets; nothing is ever changed or removed."""

    async def current(self, tx: Tx, source: str) -> StoredRules | None:
        """The highest version, which is in force."""
        return _stored(await tx.rows("rule_set_current", source=source))

    async def insert(self, tx: Tx, source: str, version: int, rules: str, created_by: str) -> StoredRules | None:
        """Nothing -> this version; None when it is there already."""
        params = {"source": source, "version": version, "rules": rules, "created_by": created_by}
        return _stored(await tx.rows("rule_set_insert", **params))
