"""The targets table: what each target of deliveries is doing, and which of them have something to carry (RULINGS 21-27)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom.delivery import Policy
from postroom.endpoint import CarrierKind
from postroom.message import Target
from postroom.store.engine import Row, Tx

TARGET_WIDTH = 7
"""How many columns of a row are the target's."""

_CARRIERS = {carrier.value: carrier for carrier in CarrierKind}


def target_of(row: Sequence[Any]) -> Target:
    """The target of a row's first columns."""
    return Target(row[0], _CARRIERS[row[1]], *row[2:TARGET_WIDTH])


class TargetTable:
    """The statements over targets."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def ready(self, tx: Tx, reaches: Sequence[str], limit: int, after: str) -> list[str]:
        """Keys of targets with something to carry now, in their order, of those after this one."""
        rows = await tx.rows("target_ready", reaches=list(reaches), limit=limit, after=after)
        return [row[0] for row in rows]

    async def next_due(self, tx: Tx, target_key: str, reaches: Sequence[str] | None) -> int | None:
        """How many ms until something of this target may be carried, 0 when now; None when nothing waits."""
        rows = await tx.rows(
            "target_next_due",
            target_key=target_key,
            reaches=None if reaches is None else list(reaches),
            turn_most=self._policy.turn_most,
        )
        due = rows[0][0]
        return None if due is None else max(int(due), 0)

    async def seated(self, tx: Tx, target_key: str) -> bool:
        """Whether a live endpoint stands there."""
        rows = await tx.rows("target_seated", target_key=target_key, silent=self._policy.live)
        return bool(rows[0][0])

    async def bereft(self, tx: Tx, target_key: str) -> bool:
        """Whether something waits there for an endpoint that has ended."""
        return bool((await tx.rows("target_bereft", target_key=target_key))[0][0])

    async def defer(self, tx: Tx, target_key: str, reason: str | None) -> bool:
        """Why nothing is tried now -> this, and since now; False when it was that before."""
        return bool(await tx.rows("target_defer", target_key=target_key, reason=reason))

    async def pause(self, tx: Tx, target_key: str, ms: int) -> None:
        """Nothing of this target is carried for so long; 0 ends a pause."""
        await tx.rows("target_pause", target_key=target_key, wait=ms)

    async def turns(self, tx: Tx, reaches: Sequence[str], limit: int) -> list[Row]:
        """The rows of the parcels whose turns are on, the oldest first."""
        return await tx.rows("target_turns", reaches=list(reaches), limit=limit)

    async def end_turn(
        self, tx: Tx, target_key: str, delivery_id: str, *, answered: bool, reason: str | None
    ) -> tuple[bool, str | None]:
        """This delivery's turn -> over: whether it was on, and the message's id."""
        rows = await tx.rows("target_end_turn", target_key=target_key, id=delivery_id, answered=answered, reason=reason)
        return (True, rows[0][1]) if rows else (False, None)

    async def turns_over(self, tx: Tx, limit: int) -> list[str]:
        """Turns that nobody ended in the longest time that one may take -> over: their targets."""
        rows = await tx.rows("post_turns_over", limit=limit, turn_most=self._policy.turn_most)
        return [row[0] for row in rows]
