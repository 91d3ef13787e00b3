"""Claims whose caller leaves in the middle: what they took goes back at once, and not when its lease ends (RULINGS 4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from postroom.errors import PostroomError
from postroom.model import Principal, Todo
from postroom.services.claims import ClaimService
from postroom.services.wake import Wake

T = TypeVar("T")

log = logging.getLogger("postroom.giving_back")


class GivingBack:
    """Runs claims to their end, whether or not their caller stays to hear of it."""

    def __init__(self, claims: ClaimService, wake: Wake) -> None:
        self._claims = claims
        self._wake = wake
        self._undoing: set[asyncio.Task[None]] = set()

    async def guard(
        self,
        principal: Principal,
        claim_key: str | None,
        claim: Coroutine[Any, Any, T],
        taken: Callable[[T], Sequence[Todo]],
    ) -> T:
        """The answer of a claim; when its caller is cancelled meanwhile, `taken` of it goes back (see give_back)."""
        running = asyncio.get_running_loop().create_task(claim)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:

            async def undo() -> None:
                await self.give_back(principal, claim_key, taken(await running))

            self._later(undo())
            raise

    async def give_back(self, principal: Principal, claim_key: str | None, todos: Sequence[Todo]) -> None:
        """Claimed -> pending for a caller that has gone; under a claim key it stays for whoever asks with the same key."""
        if todos and claim_key is None:
            await self._claims.give_back(principal, todos)
        elif todos:
            self._wake.work({todo.queue for todo in todos})

    def give_back_soon(self, principal: Principal, claim_key: str | None, todos: Sequence[Todo]) -> None:
        """The same for a caller that is being cancelled, and cannot wait."""
        if todos:
            self._later(self.give_back(principal, claim_key, todos))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            try:
                await work
            except PostroomError as error:
                log.warning("a claim whose caller had gone stays until its lease ends: %s", error.message)

        task = asyncio.get_running_loop().create_task(quietly())
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)

    async def close(self) -> None:
        """Wait for what is being given back."""
        await asyncio.gather(*self._undoing, return_exceptions=True)
