"""A claim whose caller leaves in the middle, whichever verb claimed: it goes back at once, or stays under its key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from postroom.desk import ClaimNext
from postroom.errors import Unavailable
from postroom.model import OutcomeItem, Todo, TodoState, Verb
from postroom.services.local import LocalDesk
from tests.offices import ANN, BOB, Bench, gather, titles
from tests.processes import until
from tests.services.room import HeldBack

Claim = Callable[[LocalDesk, Todo, Todo], Awaitable[Any]]

CLAIMS: dict[str, Claim] = {
    "next": lambda desk, _, todo: desk.claim_next(["inbox"]),
    "waiting": lambda desk, _, todo: desk.claim_next(["inbox"], wait_s=30),
    "one": lambda desk, _, todo: desk.claim(todo.id),
    "besides": lambda desk, held, todo: desk.outcomes(
        [OutcomeItem(held.id, Verb.COMPLETE, held.lease_id)], ClaimNext(["inbox"])
    ),
}
KEYED: dict[str, Claim] = {
    "next": lambda desk, _, todo: desk.claim_next(["inbox"], claim_key="c1"),
    "waiting": lambda desk, _, todo: desk.claim_next(["inbox"], wait_s=30, claim_key="c1"),
    "one": lambda desk, _, todo: desk.claim(todo.id, claim_key="c1"),
}


class Held:
    """An office whose answers are held back, one todo that ANN works on, and one that waits."""

    def __init__(self, bench: Bench, working: Todo, todo: Todo) -> None:
        self.bench = bench
        self.engine = HeldBack(bench.store)
        self.slow = Bench(self.engine)  # type: ignore[arg-type]
        self.working = working
        self.todo = todo

    async def leave(self, claim: Claim) -> asyncio.Task[Any]:
        """Begin a claim, and leave once it is written and before it is answered."""
        task = asyncio.create_task(_run(claim(self.slow.office.desk(ANN), self.working, self.todo)))
        await self.engine.looked.wait()
        task.cancel()
        assert isinstance((await gather(task))[0], asyncio.CancelledError)
        return task

    async def close(self) -> None:
        """Let everything be answered, and wait for what is being given back."""
        self.engine.go.set()
        await self.slow.office.waiting.close()


async def _run(claim: Awaitable[Any]) -> Any:
    return await claim


@pytest.fixture
async def held(bench: Bench) -> AsyncIterator[Held]:
    """Work that waits, and answers that are held back."""
    held = Held(bench, await bench.claimed(ANN), await bench.create(title="waits"))
    yield held
    await held.close()


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
async def test_what_was_claimed_goes_back(held: Held, claim: Claim) -> None:
    # RULINGS 4
    await held.leave(claim)
    await held.close()
    here = await held.bench.get(held.todo)
    assert (here.state, here.attempt, here.owner) == (TodoState.PENDING, 0, None)
    assert titles(await held.bench.claim(BOB)) == ["waits"]


@pytest.mark.parametrize("claim", KEYED.values(), ids=KEYED)
async def test_under_a_key_it_stays_for_who_asks_again(held: Held, claim: Claim) -> None:
    await held.leave(claim)
    await held.close()
    assert await held.bench.claim(BOB) == []
    assert titles(await held.bench.claim(ANN, claim_key="c1")) == ["waits"]
    assert (await held.bench.get(held.todo)).attempt == 1


async def test_a_claim_that_cannot_be_given_back_is_told_of_and_ends_with_its_lease(
    held: Held, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise Unavailable("away")

    monkeypatch.setattr(held.slow.office.claims, "give_back", away)
    await held.leave(CLAIMS["next"])
    held.engine.go.set()
    await until(lambda: "stays until its lease ends: away" in caplog.text, "it is logged")
    assert (await held.bench.get(held.todo)).state is TodoState.CLAIMED
