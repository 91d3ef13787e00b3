"""The flush: endings of all kinds told together, one call at a time, fused with the next claim when there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from postroom.desk import ClaimNext, Desk, OutcomeResult
from postroom.errors import Conflict, Forbidden, NotFound, RateLimited, Unauthenticated, Unavailable
from postroom.hand import Hand, Held
from postroom.limits import MAX_OUTCOMES
from postroom.model import OutcomeItem, Todo, Verb

CALL_S: Final = 30.0
FIRST_PAUSE_S: Final = 0.05
LAST_PAUSE_S: Final = 5.0

AGAIN: Final = (Unavailable, RateLimited, TimeoutError)
"""Faults after which the same call may succeed later."""
_FATAL: Final = (Unauthenticated, Forbidden)

Tell = Callable[[BaseException, Todo | None], None]


def message(error: BaseException) -> str:
    """An exception as people read it: its type, and its words when it has any that can be shown."""
    try:
        words = str(error)
    except Exception:
        words = "(its message cannot be shown)"
    name = type(error).__name__
    return f"{name}: {words}" if words else name


async def pause(faults: int, jitter: Callable[[], float]) -> None:
    """Wait before trying again: longer with each fault in a row, 5 s at most, half of it by chance."""
    longest = min(FIRST_PAUSE_S * 2 ** min(faults - 1, 10), LAST_PAUSE_S)
    await asyncio.sleep(longest * (0.5 + jitter() / 2))


class Flush:
    """Tells the endings of a hand to the desk. `claim` is what to ask besides, its limit aside.

    After a fault the same endings go again, fenced by their lease ids, and without a claim: one whose answer was lost
    must not be made twice. How much can be unflushed is bounded by what may be claimed.
    """

    def __init__(
        self,
        hand: Hand,
        desk: Desk,
        claim: ClaimNext,
        flush_s: float,
        clock: Callable[[], float],
        jitter: Callable[[], float],
        tell: Tell,
    ) -> None:
        self._hand = hand
        self._desk = desk
        self._claim = claim
        self._flush_s = flush_s
        self._clock = clock
        self._jitter = jitter
        self._tell = tell

    async def run(self) -> None:
        """Flush until cancelled. Raises what makes further flushes senseless."""
        hand = self._hand
        faults = 0
        while True:
            if not hand.outbox:
                await hand.ending()
            if hand.held and self._flush_s and len(hand.outbox) < MAX_OUTCOMES:
                await hand.ending(self._flush_s)
            limit = 0 if faults or hand.polling else hand.room(len(hand.outbox))
            if await self._send(hand.batch(), limit):
                faults = 0
            else:
                faults += 1
                await pause(faults, self._jitter)

    async def _send(self, batch: dict[str, Held], limit: int) -> bool:
        hand = self._hand
        claim = replace(self._claim, limit=limit) if limit else None
        hand.flying = len(batch)
        asked = self._clock()
        try:
            results, todos = await self._outcomes(batch.values(), claim)
        except AGAIN as error:
            self._tell(error, None)
            hand.outbox.extendleft(reversed(batch.values()))
            hand.dry = True
            return False
        except _FATAL:
            raise
        except Exception as error:
            self._tell(error, None)
            hand.dry = True
            return await self._one_by_one(batch)
        else:
            hand.adopt(todos, asked)
            if claim is not None:
                hand.dry = not todos
            return self._settle(batch, results)
        finally:
            hand.flying = 0
            hand.changed.set()

    async def _outcomes(
        self, batch: Iterable[Held], claim: ClaimNext | None = None
    ) -> tuple[list[OutcomeResult], list[Todo]]:
        items = [held.item for held in batch if held.item is not None]
        async with asyncio.timeout(CALL_S):
            return await self._desk.outcomes(items, claim)

    async def _one_by_one(self, batch: dict[str, Held]) -> bool:
        """The same endings each in a call of its own, so that one which cannot be told holds no other back."""
        fine = True
        for id_, held in batch.items():
            try:
                results, _ = await self._outcomes([held])
            except AGAIN:
                self._hand.outbox.append(held)
                fine = False
            except _FATAL:
                raise
            except Exception as error:
                self._refused(held, error)
            else:
                fine = self._settle({id_: held}, results) and fine
        return fine

    def _settle(self, batch: dict[str, Held], results: Sequence[OutcomeResult]) -> bool:
        fine = True
        for result in results:
            held = batch[result.id]
            if result.error is None:
                self._hand.confirmed(held)
            elif isinstance(result.error, AGAIN):
                self._hand.outbox.append(held)
                fine = False
            else:
                self._refused(held, result.error)
        return fine

    def _refused(self, held: Held, error: Exception) -> None:
        """An ending the desk will not take: lost when the lease is over, else told once more as a plain failure."""
        self._tell(error, held.todo)
        if held.plain or isinstance(error, Conflict | NotFound):
            self._hand.stats.lost += 1
            return
        held.plain = True
        words = f"its ending was refused: {message(error)}"
        held.item = OutcomeItem(held.todo.id, Verb.FAIL, held.todo.lease_id, error=words)
        self._hand.outbox.append(held)
