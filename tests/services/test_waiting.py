"""The waiting room: no wake-up is lost, the longest waiting is served first, and nothing is claimed for who has gone."""

from __future__ import annotations

import asyncio

import pytest

from postroom.errors import Invalid, NotFound
from postroom.model import ClaimRequest, NewTodo, OutcomeItem, Principal, Todo, TodoChange, Verb
from tests.offices import ADMIN, ANN, BOB, Bench, gather
from tests.processes import until
from tests.services.room import WAIT, HeldBack, served, wait

pytestmark = pytest.mark.usefixtures("no_looking_again")


async def test_what_is_there_is_given_at_once_and_nothing_is_empty(bench: Bench) -> None:
    # S18
    await bench.create(title="there")
    assert await served(await wait(bench)) == ["there"]
    assert await bench.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), 1) == ()
    assert await bench.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), 0) == ()
    assert bench.office.waiting.waiting == 0


async def test_a_wait_out_of_bounds_or_of_foreign_queues_is_refused(bench: Bench) -> None:
    for wait_ms in (-1, 50_001):
        with pytest.raises(Invalid) as caught:
            await bench.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), wait_ms)
        assert caught.value.field == "wait_s"
    with pytest.raises(NotFound):
        await bench.office.waiting.claim_next(Principal("eve", queues=("other",)), ClaimRequest(("inbox",)), WAIT)
    assert bench.office.waiting.waiting == 0


async def test_a_new_todo_reaches_who_waits(bench: Bench) -> None:
    task = await wait(bench)
    await bench.create(title="new")
    assert await served(task) == ["new"]


async def test_a_batch_reaches_as_many_as_wait(bench: Bench) -> None:
    tasks = [await wait(bench, Principal(f"w{n}")) for n in range(5)]
    await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", str(n)) for n in range(5)])
    assert [await served(task) for task in tasks] == [["0"], ["1"], ["2"], ["3"], ["4"]]


async def test_a_todo_created_while_a_waiter_looks_is_not_missed(bench: Bench) -> None:
    held = HeldBack(bench.store)
    slow = Bench(held)  # type: ignore[arg-type]
    task = asyncio.create_task(slow.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), WAIT))
    await held.looked.wait()
    made = await bench.create(title="between")
    slow.office.wake.work([made.queue])
    held.go.set()
    assert await served(task) == ["between"]
    await slow.office.waiting.close()


async def test_many_creations_meet_many_waits_and_none_is_lost(bench: Bench) -> None:
    async def consume(name: str) -> int:
        got = 0
        while got < 25:
            todos = await bench.office.waiting.claim_next(Principal(name), ClaimRequest(("inbox",)), WAIT)
            assert todos
            got += len(todos)
        return got

    async def produce() -> None:
        for number in range(50):
            await bench.create(title=str(number))
            if number % 3 == 0:
                await asyncio.sleep(0)

    async with asyncio.timeout(WAIT / 1000):
        answers = await gather(*[consume(f"w{n}") for n in range(4)], produce(), produce())
    assert answers[:4] == [25] * 4, answers


async def test_the_longest_waiting_is_served_first(bench: Bench) -> None:
    tasks = [await wait(bench, Principal(f"w{n}")) for n in range(4)]
    for number in range(4):
        await bench.create(title=str(number))
        assert await served(tasks[number]) == [str(number)]
        assert [task.done() for task in tasks] == [n <= number for n in range(4)]


async def test_who_waits_for_several_queues_is_woken_by_each(bench: Bench) -> None:
    for queue in ("a", "b", "c"):
        task = await wait(bench, ANN, "a", "b", "c")
        await bench.create(queue, title=queue)
        assert await served(task) == [queue]
    everything = asyncio.create_task(bench.office.waiting.claim_next(ANN, ClaimRequest(), WAIT))
    await until(lambda: bench.office.waiting.waiting == 1, "it waits")
    await bench.create("brand/new", title="brand")
    assert await served(everything) == ["brand"]


async def test_assigned_work_reaches_its_assignee_past_longer_waiters(bench: Bench) -> None:
    # S6
    first = await wait(bench, ANN)
    second = await wait(bench, BOB)
    third = await wait(bench, BOB, worker="w2")
    await bench.create(title="for w2", assignee="bob/w2")
    assert await served(third) == ["for w2"]
    await bench.create(title="for bob", assignee="bob")
    assert await served(second) == ["for bob"]
    assert not first.done()
    await bench.create(title="for anybody")
    assert await served(first) == ["for anybody"]


async def test_work_given_to_a_worker_by_its_own_name_reaches_it(bench: Bench) -> None:
    # S6
    first = await wait(bench, ANN)
    second = await wait(bench, Principal("bob", speaks_as=("w",)), worker="w")
    await bench.create(title="for w", assignee="w")
    assert await served(second) == ["for w"]
    assert not first.done()
    first.cancel()


async def test_reassigned_work_reaches_its_new_assignee(bench: Bench) -> None:
    todo = await bench.create(title="moved", assignee="ann")
    task = await wait(bench, BOB)
    await bench.office.todos.update(ADMIN, todo.id, TodoChange(assignee="bob", assignee_given=True))
    assert await served(task) == ["moved"]


# What comes with time: no sweep runs here, the room's own alarm rings.


async def test_a_delayed_todo_reaches_who_waits_when_it_comes_due(bench: Bench) -> None:
    task = await wait(bench)
    await bench.create(title="delayed", delay_ms=150)
    assert await served(task) == ["delayed"]


async def test_a_parked_todo_reaches_who_waits_when_it_comes_due(bench: Bench) -> None:
    # S10
    held = await bench.claimed(title="parked")
    task = await wait(bench, BOB)
    await bench.fail(ANN, held, retry_in_ms=150)
    assert await served(task) == ["parked"]
    (again,) = task.result()
    task = await wait(bench, ANN)
    await bench.fail(BOB, again, retry_in_ms=0)
    assert await served(task) == ["parked"]


async def test_a_lapsed_lease_reaches_who_waits(bench: Bench) -> None:
    # S10 # S11
    todo = await bench.create(title="lapsed")
    await bench.office.claims.claim(ANN, todo.id, 1_000, None, None)
    bench.move(850)
    assert await served(await wait(bench, BOB)) == ["lapsed"]


async def test_due_work_of_one_assignee_reaches_it_past_longer_waiters(bench: Bench) -> None:
    first = await wait(bench, ANN)
    second = await wait(bench, BOB)
    await bench.create(title="bob's", assignee="bob", delay_ms=100)
    assert await served(second) == ["bob's"]
    first.cancel()
    await gather(first)


async def test_the_room_does_not_spin_over_due_work_that_nobody_may_take(bench: Bench) -> None:
    await bench.create(assignee="carol", delay_ms=1)
    bench.move(60_000)
    looks = 0
    take = bench.office.claims.take

    async def counted(principal: Principal, request: ClaimRequest) -> tuple[tuple[Todo, ...], bool]:
        nonlocal looks
        looks += 1
        return await take(principal, request)

    bench.office.claims.take = counted  # type: ignore[method-assign]
    assert await bench.office.waiting.claim_next(ANN, ClaimRequest(("inbox",)), 1_000) == ()
    assert looks <= 12


# What frees a place or opens a queue.


@pytest.mark.parametrize("how", ["complete", "fail", "release", "cancel", "batch", "fused", "reap", "raise"])
async def test_a_freed_place_wakes(bench: Bench, how: str) -> None:
    await bench.office.queues.put(ADMIN, "inbox", {"max_in_flight": 1})
    held = await bench.claimed(title="first")
    await bench.create(title="second")
    task = await wait(bench, BOB)
    item = OutcomeItem(held.id, Verb.COMPLETE, held.lease_id)
    match how:
        case "complete":
            await bench.complete(ANN, held)
        case "fail":
            await bench.fail(ANN, held)
        case "release":
            await bench.office.todos.update(ADMIN, (await _pending(bench)).id, TodoChange(priority=5))
            await bench.release(ANN, held)
        case "cancel":
            await bench.office.todos.cancel(ADMIN, held.id)
        case "batch":
            await bench.office.endings.end_many(ANN, [item])
        case "fused":
            await bench.office.claims.end_and_claim(ANN, [item], ClaimRequest(("elsewhere",)))
        case "reap":
            bench.move(300_001)
            await bench.office.sweep.once()
        case "raise":
            await bench.office.queues.put(ADMIN, "inbox", {"max_in_flight": 2})
    expected = ["first"] if how == "reap" else ["second"]
    assert await served(task) == expected


async def _pending(bench: Bench) -> Todo:
    rows = await bench.rows("select id from todos where state = 'pending'")
    return await bench.get(rows[0][0])


async def test_a_resumed_queue_wakes(bench: Bench) -> None:
    await bench.create(title="held up")
    await bench.office.queues.pause(ADMIN, "inbox", paused=True)
    task = await wait(bench)
    await bench.office.queues.pause(ADMIN, "inbox", paused=False)
    assert await served(task) == ["held up"]


async def test_released_retried_and_revoked_work_wakes(bench: Bench) -> None:
    held = await bench.claimed()
    task = await wait(bench, BOB)
    await bench.release(ANN, held)
    assert await served(task) == ["work"]
    (held,) = task.result()
    dead = await bench.fail(BOB, held, retry=False)
    task = await wait(bench, ANN)
    await bench.office.todos.retry(ADMIN, dead.id)
    assert await served(task) == ["work"]
    task = await wait(bench, BOB)
    await bench.office.tokens.create(ADMIN, "ann")
    await bench.office.tokens.revoke(ADMIN, "ann")
    assert await served(task) == ["work"]
