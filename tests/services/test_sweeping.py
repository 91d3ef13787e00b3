"""Sweeping: what lapsed or fell due goes back, what was kept long enough goes, and never a live row."""

from __future__ import annotations

import asyncio

from postroom.event import EventState, EventTodo, Incoming
from postroom.limits import DAY, MIN_LEASE
from postroom.model import NewTodo, Outcome, OutcomeItem, Reason, TodoState, Verb
from postroom.services import sweep as sweeping
from postroom.store.engine import Once
from postroom.store.events import Decided, EventTable
from tests.conftest import Store
from tests.offices import ADMIN, ANN, BOB, Bench, gather
from tests.processes import until


async def test_lapsed_claims_go_back_or_are_dead_letters(bench: Bench) -> None:
    # S11
    again = await bench.claimed()
    spent = await bench.claimed(max_attempts=1)
    live = await bench.create()
    await bench.office.claims.claim(ANN, live.id, 900_000, None, None)
    bench.move(300_001)
    await bench.office.sweep.once()
    back, dead = await bench.get(again), await bench.get(spent)
    assert (back.state, back.attempt, back.owner, back.lease_id, back.claimed_at) == (
        TodoState.PENDING,
        1,
        None,
        None,
        None,
    )
    assert (dead.state, dead.reason, dead.error) == (TodoState.FAILED, Reason.EXHAUSTED, "the lease of ann lapsed")
    assert dead.completed_at == dead.updated_at
    assert (await bench.get(live)).state is TodoState.CLAIMED
    for todo in (back, dead):
        assert [(entry.outcome, entry.owner) for entry in todo.history] == [(Outcome.LAPSED, "ann")]
    assert bench.office.sweep.report.lapsed == 2


async def test_parked_and_delayed_todos_come_due(bench: Bench) -> None:
    # S10
    parked = await bench.fail(ANN, await bench.claimed())
    delayed = await bench.create(delay_ms=30_000)
    await bench.office.sweep.once()
    assert [(await bench.get(todo)).state for todo in (parked, delayed)] == [TodoState.FAILED, TodoState.PENDING]
    bench.move(30_001)
    await bench.office.sweep.once()
    parked, delayed = await bench.get(parked), await bench.get(delayed)
    assert (parked.state, parked.next_retry_at, parked.attempt) == (TodoState.PENDING, None, 1)
    assert (delayed.state, delayed.available_at) == (TodoState.PENDING, None)


async def test_a_sweep_takes_more_than_one_batch(bench: Bench) -> None:
    for _ in range(5):
        await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", "x", delay_ms=1_000) for _ in range(90)])
    bench.move(2_000)
    await bench.office.sweep.once()
    assert await bench.rows("select count(*) from todos where available_at is not null") == [(0,)]
    assert bench.office.sweep.report.due == 450


async def test_sweeps_at_once_enter_each_attempt_once(bench: Bench) -> None:
    # S11 # S21
    await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", "x") for _ in range(100)])
    await bench.claim(limit=100)
    bench.move(300_001)
    others = [Bench(bench.store) for _ in range(4)]
    answers = await gather(*[other.office.sweep.once() for other in others], bench.claim(BOB, limit=50))
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    await bench.office.sweep.once()
    assert await bench.rows("select count(*) from attempts") == [(100,)]
    states = dict(await bench.rows("select state, count(*) from todos group by state"))
    assert states == {"claimed": len(answers[-1]), "pending": 100 - len(answers[-1])}


async def test_an_owner_that_finishes_while_it_is_reaped_wins_or_loses_whole(bench: Bench) -> None:
    # S22
    await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", "x") for _ in range(60)])
    held = await bench.claim(limit=60)
    bench.move(300_001)
    items = [OutcomeItem(todo.id, Verb.COMPLETE, todo.lease_id) for todo in held]
    halves = [bench.office.endings.end_many(ANN, items[n::6]) for n in range(6)]
    answers = await gather(*halves[:3], bench.office.sweep.once(), *halves[3:])
    done = sum(result.error is None for answer in answers if answer is not None for result in answer)
    assert await bench.rows("select count(*) from todos where state = 'done'") == [(done,)]
    assert await bench.rows("select count(*) from attempts") == [(60 - done,)]


async def test_the_sweep_runs_more_often_than_the_shortest_lease(bench: Bench) -> None:
    # S16
    assert sweeping.INTERVAL * 1000 <= MIN_LEASE
    todo = await bench.claimed()
    running = asyncio.create_task(bench.office.sweep.run())
    bench.move(300_001)

    async def back() -> bool:
        return (await bench.get(todo)).state is TodoState.PENDING

    await until(back, "the lapsed claim is back")
    running.cancel()
    await gather(running)


async def test_retention_forgets_what_is_finished_and_never_what_lives(bench: Bench) -> None:
    done = await bench.complete(ANN, await bench.claimed())
    dead = await bench.fail(ANN, await bench.claimed(), retry=False)
    cancelled = await bench.office.todos.cancel(ADMIN, (await bench.create()).id)
    parked = await bench.fail(ANN, await bench.claimed(), retry_in_ms=365 * DAY)
    pending = await bench.create()
    await bench.office.todos.create(ADMIN, NewTodo("inbox", "x"), "r1")
    kept = [parked, pending]

    async def there() -> set[str]:
        return {row[0] for row in await bench.rows("select id from todos where title = 'work'")}

    await bench.office.sweep.retention()
    assert len(await there()) == 5
    bench.move(14 * DAY + 1)
    await bench.office.sweep.retention()
    assert await there() == {todo.id for todo in (dead, cancelled, *kept)}
    assert done.id not in await there()
    assert await bench.rows("select count(*) from requests") == [(0,)]
    bench.move(76 * DAY + 1)
    await bench.office.sweep.retention()
    assert await there() == {todo.id for todo in kept}
    assert await bench.rows("select todo_id from attempts") == [(parked.id,)]


async def test_a_queues_own_retention(bench: Bench) -> None:
    await bench.office.queues.put(ADMIN, "inbox", {"keep_done_ms": 60_000, "keep_dead_ms": 120_000})
    await bench.complete(ANN, await bench.claimed())
    await bench.complete(ANN, await bench.claimed(queue="other"))
    await bench.fail(ANN, await bench.claimed(), retry=False)
    bench.move(60_001)
    await bench.office.sweep.retention()
    assert await bench.rows("select queue, state from todos order by queue") == [("inbox", "failed"), ("other", "done")]
    bench.move(60_001)
    await bench.office.sweep.retention()
    assert await bench.rows("select queue from todos") == [("other",)]


async def test_an_event_stays_while_a_kept_todo_came_of_it(bench: Bench, store: Store) -> None:
    events, once = EventTable(), Once(store)
    ids = ["ev_00000000-0000-7000-8000-00000000000" + str(n) for n in range(2)]
    todos = [await bench.complete(ANN, await bench.claimed()), await bench.create()]
    for id_, todo in zip(ids, todos, strict=True):
        delivery = Incoming("gh", "github", id_, "push", None, "t", "hmac", b"{}", [], "{}", "d")
        await events.insert(once, id_, delivery, Decided(EventState.ROUTED, None))
        await events.link(once, EventTodo(id_, todo.id, "inbox", "r", True))
    bench.move(31 * DAY)
    await bench.office.sweep.retention()
    assert await bench.rows("select id from events") == [(ids[1],)]
    assert await bench.rows("select event_id from event_todos") == [(ids[1],)]


async def test_a_todo_that_came_back_to_life_is_not_deleted(bench: Bench, store: Store) -> None:
    from postroom.store.sweeps import SweepTable

    dead = await bench.fail(ANN, await bench.claimed(), retry=False)
    bench.move(91 * DAY)
    table = SweepTable(store.dialect)
    listed = await table.old_dead(Once(store), "inbox", 90 * DAY, 10)
    assert listed == [dead.id]
    await bench.office.todos.retry(ADMIN, dead.id)
    assert await store.transact(lambda tx: table.delete_todos(tx, listed)) == 0
    assert len((await bench.get(dead)).history) == 1


async def test_deletes_go_in_short_batches(bench: Bench) -> None:
    for _ in range(2):
        await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", "x") for _ in range(600)])
    while held := await bench.claim(limit=100):
        await bench.office.endings.end_many(ANN, [OutcomeItem(one.id, Verb.COMPLETE, one.lease_id) for one in held])
    bench.move(15 * DAY)
    await bench.office.sweep.retention()
    assert await bench.rows("select count(*) from todos") == [(0,)]
