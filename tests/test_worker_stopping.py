"""A worker that is stopped while a claim of its own is under way: what was claimed goes back, and waits for no lease."""

from __future__ import annotations

import asyncio

import pytest

from postroom.desk import ClaimNext
from postroom.errors import Unavailable
from postroom.model import Todo, TodoState
from postroom.worker import Worker
from tests.fakes import MemoryDesk
from tests.test_worker import nothing, running, until


@pytest.mark.parametrize("times", [1, 3])
async def test_a_claim_whose_answer_was_lost_is_given_back_by_a_stop_before_it_is_asked_for_again(times: int) -> None:
    desk = MemoryDesk()
    await desk.seed(3)
    desk.break_next("claim_next", Unavailable("the connection broke"), times=times, after=True)
    faults: list[BaseException] = []

    def stop_at_the_last(error: BaseException, _: Todo | None) -> None:
        # It pauses before it asks again, and is stopped in the pause.
        faults.append(error)
        if len(faults) == times:
            worker.stop()

    worker = Worker(desk, ["work"], nothing, on_error=stop_at_the_last)
    async with running(worker) as task:
        await task
    assert desk.states() == [TodoState.PENDING] * 3
    assert len({call["request"].claim_key for call in desk.asked("claim_next")}) == 1
    assert all(todo.attempt == 0 for todo in desk.todos.values())


async def test_what_is_claimed_beside_endings_while_it_stops_is_given_back() -> None:
    desk = MemoryDesk()
    await desk.seed(3)
    gate = desk.gate("outcomes")
    worker = Worker(desk, ["work"], nothing, concurrency=1, prefetch=1)
    async with running(worker) as task:
        await until(lambda: desk.asked("outcomes"))
        assert desk.asked("outcomes")[0]["claim"] == ClaimNext(("work",), None, 2)
        worker.stop()
        await until(lambda: worker._hand is not None and worker._hand.closing)
        for _ in range(10):
            await asyncio.sleep(0)
        # It has nothing left to begin or to wait for but this answer.
        gate.set()
        stats = await task
    assert desk.states() == [TodoState.DONE, TodoState.DONE, TodoState.PENDING]
    assert (stats.claimed, stats.completed, stats.released) == (3, 2, 1)
