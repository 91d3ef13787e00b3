"""Announcing: what the database noted is told by messages, each note once, whatever is killed when (DESIGN §6).

A note is made in the transaction of the transition that it tells of, and goes in the one that admits its messages.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from postroom.endpoint import CarrierKind
from postroom.errors import Unavailable
from postroom.ids import Ids
from postroom.message import DeliveryState, NewMessage, Posted
from postroom.services import tellings
from postroom.services.notice import drafted
from postroom.services.wake import Wake
from postroom.store.admissions import Address, AdmissionTable
from postroom.store.engine import Duplicate, Engine, Operation, Reader, Tx

LOOK_AGAIN = 1.0
"""How often (seconds) it is looked for notes."""
BATCH = 50
"""How many notes one transaction takes."""
RIVALS = 8
"""How often it is looked again when an endpoint went in the very moment."""
MAX_WORDS = 300
"""How much of a title or an error a notice repeats, in bytes."""

Batch = Operation[tuple[int, list[Posted]]]
"""Notes -> gone, with the messages that tell of them: how many notes were taken, and the messages."""

log = logging.getLogger("postroom.announcing")


class _Again(Exception):
    """Where the message was to go had gone: undo everything, and look again."""


class Announcer(ABC):
    """Tells what was noted; `of` says what that is, `clock` gives ms UTC, for the ids of messages alone."""

    def __init__(
        self,
        of: str,
        engine: Engine,
        admissions: AdmissionTable,
        wake: Wake,
        ids: Ids,
        clock: Callable[[], int],
    ) -> None:
        self._of = of
        self._engine = engine
        self._admissions = admissions
        self._wake = wake
        self._ids = ids
        self._clock = clock
        self._reader = Reader(engine)

    @abstractmethod
    async def once(self) -> int:
        """Noted -> told, all there is: how many messages were admitted."""

    async def run(self) -> None:
        """Tell until cancelled; a database that is away is tried again at the next turn."""
        while True:
            try:
                await self.once()
            except Unavailable as error:
                log.warning("notices of %s are put off: %s", self._of, error.message)
            except Exception:
                log.exception("telling of %s failed and will be tried again", self._of)
            await asyncio.sleep(LOOK_AGAIN)

    async def _all(self, batch: Batch) -> int:
        """Run the batch until it finds no more than it takes: how many messages were admitted."""
        told = 0
        rivals = 0
        while True:
            try:
                taken, posted = await self._engine.transact(batch)
            except (Duplicate, _Again):
                rivals += 1
                if rivals == RIVALS:
                    raise Unavailable("where notices go keeps changing") from None
                continue
            self._tell(posted)
            told += len(posted)
            if taken < BATCH:
                return told

    async def _admit(self, tx: Tx, new: NewMessage, addresses: Sequence[Address]) -> Posted:
        posted = await self._admissions.admit(tx, drafted(new, self._ids.message(self._clock())), addresses)
        if posted is None:
            raise _Again
        return posted

    def _tell(self, posted: list[Posted]) -> None:
        deliveries = [delivery for one in posted for delivery in one.deliveries]
        self._wake.post(one.target_key for one in deliveries if one.state is DeliveryState.PENDING)
        there = [one.mailbox for one in deliveries if one.carrier is CarrierKind.INBOX]
        self._wake.changed((one.message_id for one in deliveries), there)
        self._wake.told(tellings.admitted, posted)
