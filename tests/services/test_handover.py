"""Hand-over: work given to somebody else, and the word that comes back when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from postroom.errors import Forbidden
from postroom.limits import HOUR, SECOND
from postroom.message import Letter
from postroom.model import ClaimRequest, OutcomeItem, Principal, Todo, TodoChange, Verb
from postroom.services import announcing
from postroom.services.handover import KIND
from tests.conftest import Store
from tests.offices import ADMIN, Bench, gather
from tests.processes import until
from tests.services.mailing import Mail
from tests.services.test_intake import delivery, source_of

ANN, BOB, CID = (Principal(name) for name in ("ann", "bob", "cid"))


class Desk:
    """A bench on which Ann gives work to Bob."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.office = bench.office

    async def give(self, by: Principal = ANN, assignee: str | None = "bob", **more: Any) -> Todo:
        """A new todo for Bob."""
        return await self.bench.create(by=by, assignee=assignee, **more)

    async def held(self, by: Principal = ANN, **more: Any) -> Todo:
        """The same, claimed by Bob."""
        todo = await self.give(by, **more)
        return await self.office.claims.claim(BOB, todo.id, None, None, None)

    async def letters(self, name: str = "ann") -> list[Letter]:
        """What an inbox shows once everything was told."""
        await self.office.handover.once()
        return list((await self.office.inbox.page(Principal(name), None, None, None)).letters)


@pytest.fixture
def desk(bench: Bench) -> Desk:
    return Desk(bench)


async def test_who_gave_work_away_is_told_once_that_it_is_done(desk: Desk) -> None:
    todo = await desk.held(title="read\tthis\x1b[31m", queue="inbox")
    assert await desk.letters() == []
    await desk.bench.complete(BOB, todo, {"answer": 42})
    (letter,) = await desk.letters()
    message = letter.message
    assert (message.sender, message.kind, message.addressed, message.correlation_id) == (
        "postroom",
        KIND,
        "ann",
        todo.id,
    )
    assert message.payload == (
        f'Todo {todo.id} "read this\ufffd[31m" in queue inbox, given to bob, is done, by bob. '
        f"Its result: get_todo({todo.id}).\nThis is a notice and grants nothing."
    )
    assert message.metadata == {
        "todo_id": todo.id,
        "queue": "inbox",
        "state": "done",
        "assignee": "bob",
        "owner": "bob",
        "attempt": 1,
    }
    assert len(await desk.letters()) == 1
    assert await desk.bench.rows("select count(*) from handovers") == [(0,)]


async def _refuse(desk: Desk, todo: Todo) -> None:
    await desk.bench.fail(BOB, todo, retry=False, error="cannot\nbe done")


async def _exhaust(desk: Desk, todo: Todo) -> None:
    await desk.bench.fail(BOB, todo, error="cannot\nbe done")


async def _lapse(desk: Desk, todo: Todo) -> None:
    desk.bench.move(HOUR)
    await desk.office.sweep.once()


async def _bury(desk: Desk, todo: Todo) -> None:
    desk.bench.move(HOUR)
    assert await desk.bench.claim(CID) == []


DEATHS: list[tuple[Callable[[Desk, Todo], Any], str, str]] = [
    (_refuse, "refused", "cannot be done"),
    (_exhaust, "exhausted", "cannot be done"),
    (_lapse, "exhausted", "the lease of bob lapsed"),
    (_bury, "exhausted", "the lease of bob lapsed"),
]


@pytest.mark.parametrize(("die", "reason", "why"), DEATHS, ids=lambda value: getattr(value, "__name__", None))
async def test_and_once_that_it_is_dead_however_it_died(
    desk: Desk, die: Callable[[Desk, Todo], Any], reason: str, why: str
) -> None:
    todo = await desk.held(max_attempts=1)
    await die(desk, todo)
    (letter,) = await desk.letters()
    assert f"is a dead letter ({reason}, attempt 1): {why}." in letter.message.payload
    assert letter.message.metadata["state"] == "dead"
    assert letter.message.metadata["owner"] == "bob"


@pytest.mark.parametrize("way", ["complete", "end", "many", "completes", "and claims"])
async def test_every_way_of_ending_is_told_of(desk: Desk, way: str) -> None:
    todo = await desk.held()
    item = OutcomeItem(todo.id, Verb.COMPLETE, todo.lease_id, result="x")
    endings = desk.office.endings
    if way == "complete":
        await endings.complete(BOB, todo.id, todo.lease_id, "x")
    elif way == "end":
        await endings.end(BOB, item)
    elif way == "many":
        other = await desk.held()
        await endings.end_many(BOB, [item, OutcomeItem(other.id, Verb.FAIL, other.lease_id)])
    elif way == "completes":
        await endings.end_many(BOB, [item])
    else:
        await desk.office.claims.end_and_claim(BOB, [item], ClaimRequest(("inbox",)))
    (letter,) = await desk.letters()
    assert letter.message.metadata["todo_id"] == todo.id


async def test_what_is_not_an_ending_of_given_work_is_not_told_of(desk: Desk) -> None:
    parked = await desk.held()
    await desk.bench.fail(BOB, parked)
    released = await desk.held()
    await desk.bench.release(BOB, released)
    cancelled = await desk.give()
    await desk.office.todos.cancel(ANN, cancelled.id)
    unassigned = await desk.bench.create(by=ANN, queue="apart")
    own = await desk.give(by=BOB, queue="apart")
    for todo in (unassigned, own):
        await desk.bench.complete(BOB, await desk.office.claims.claim(BOB, todo.id, None, None, None))
    workers = await desk.give(by=BOB, assignee="bob/w", queue="apart")
    await desk.bench.complete(BOB, await desk.office.claims.claim(BOB, workers.id, None, None, "w"))
    for name in ("ann", "bob", "root"):
        assert await desk.letters(name) == []


async def test_work_of_an_event_has_nobody_who_gave_it(desk: Desk) -> None:
    bench = desk.bench
    await bench.office.intake.receive(delivery("d1"), source_of(bench, {"name": "to-bob", "assignee": "bob"}))
    (todo,) = await bench.claim(BOB)
    assert todo.assignee == "bob"
    await bench.complete(BOB, todo)
    await bench.office.handover.once()
    assert await bench.rows("select count(*) from messages") == [(0,)]


async def test_who_did_it_itself_is_not_told(desk: Desk) -> None:
    todo = await desk.give(by=ANN)
    await desk.bench.rows("update todos set assignee = null where id = ?", todo.id)
    (held,) = await desk.bench.claim(ANN)
    await desk.bench.rows("update todos set assignee = 'bob' where id = ?", todo.id)
    await desk.bench.complete(ANN, held)
    assert await desk.letters() == []
    assert await desk.bench.rows("select count(*) from handovers") == [(0,)]


async def test_what_is_retried_and_ends_again_is_told_of_again(desk: Desk) -> None:
    todo = await desk.held(max_attempts=1)
    await desk.bench.fail(BOB, todo, error="no")
    await desk.office.todos.retry(ANN, todo.id)
    again = await desk.office.claims.claim(BOB, todo.id, None, None, None)
    await desk.bench.complete(BOB, again)
    assert [letter.message.metadata["state"] for letter in await desk.letters()] == ["dead", "done"]


async def test_word_goes_to_a_live_endpoint_of_that_name(desk: Desk) -> None:
    mail = Mail(desk.bench)
    old, new = await mail.pane(1, name="ann"), await mail.pane(2, name="ann")
    for expected in (new, old):
        desk.bench.move(1)
        await desk.office.registry.touch([expected.id])
        await desk.bench.complete(BOB, await desk.held())
        await desk.office.handover.once()
        rows = await desk.bench.rows("select endpoint_id, state from deliveries order by seq desc limit 1")
        assert rows == [(expected.id, "pending")]
    session = Principal("ses_9")
    await desk.bench.complete(BOB, await desk.held(by=session))
    await desk.office.handover.once()
    rows = await desk.bench.rows("select target_key, endpoint_id from deliveries order by seq desc limit 1")
    assert rows == [("opencode:ses_9", None)]


async def test_many_endings_are_told_in_their_order(desk: Desk) -> None:
    todos = [await desk.give() for _ in range(2 * announcing.BATCH + 1)]
    for todo in todos:
        held = await desk.office.claims.claim(BOB, todo.id, None, None, None)
        await desk.bench.complete(BOB, held)
    assert await desk.office.handover.once() == len(todos)
    rows = await desk.bench.rows("select correlation_id from messages order by seq")
    assert [row[0] for row in rows] == [todo.id for todo in todos]


async def test_several_daemons_tell_once(desk: Desk, new_engine: Callable[[], Store]) -> None:
    for _ in range(announcing.BATCH + 10):
        await desk.bench.complete(BOB, await desk.held())
    engine = new_engine() if desk.bench.store.dialect == "postgres" else None
    if engine is not None:
        await engine.open()
    other = Bench(engine or desk.bench.store)
    told: list[Any] = await gather(*[one.office.handover.once() for one in (desk.bench, other) for _ in range(3)])
    assert sum(told) == announcing.BATCH + 10, told
    assert await desk.bench.rows("select count(*), count(distinct correlation_id) from messages") == [(60, 60)]
    if engine is not None:
        await engine.close()


async def test_what_was_not_told_before_a_crash_is_told_after_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.bench.complete(BOB, await desk.held())
    service = desk.office.handover
    admit = service._admissions.admit

    async def breaks(*args: Any) -> Any:
        await admit(*args)
        raise RuntimeError("the daemon dies before its commit")

    monkeypatch.setattr(service._admissions, "admit", breaks)
    with pytest.raises(RuntimeError):
        await service.once()
    assert await desk.bench.rows("select count(*) from messages") == [(0,)]
    assert await Bench(desk.bench.store).office.handover.once() == 1
    assert await service.once() == 0


async def test_it_tells_by_itself_and_outlives_a_fault(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "LOOK_AGAIN", 0.01)
    service = desk.office.handover
    due = service._table.due
    broken = 2

    async def fault(tx: Any) -> Any:
        nonlocal broken
        broken -= 1
        if broken >= 0:
            raise RuntimeError("unforeseen")
        return await due(tx)

    monkeypatch.setattr(service._table, "due", fault)
    await desk.bench.complete(BOB, await desk.held())
    task = asyncio.create_task(service.run())

    async def told() -> bool:
        return await desk.bench.rows("select count(*) from messages") == [(1,)]

    await until(told, "the creator is told")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# Assigning, and the words that go with a release.


async def test_admin_and_creator_assign_and_nobody_else(desk: Desk) -> None:
    todo = await desk.bench.create(by=ANN)
    change = TodoChange(assignee="bob", assignee_given=True)
    with pytest.raises(Forbidden):
        await desk.office.todos.update(CID, todo.id, change)
    assert (await desk.bench.get(todo)).assignee is None
    for by, name in ((ANN, "bob"), (ADMIN, "cid"), (ANN, None)):
        changed = TodoChange(assignee=name, assignee_given=True)
        assert (await desk.office.todos.update(by, todo.id, changed)).assignee == name


async def test_who_assigns_its_own_work_later_is_told_as_well(desk: Desk) -> None:
    todo = await desk.bench.create(by=ANN)
    await desk.office.todos.update(ANN, todo.id, TodoChange(assignee="bob", assignee_given=True))
    (held,) = await desk.bench.claim(BOB)
    await desk.bench.complete(BOB, held)
    assert len(await desk.letters()) == 1


async def test_the_next_claimer_sees_why_the_last_one_gave_it_back(desk: Desk) -> None:
    todo = await desk.bench.claimed(BOB)
    await desk.bench.release(BOB, todo, note="the tests need a machine with more memory")
    desk.bench.move(SECOND)
    (held,) = await desk.bench.claim(CID)
    (attempt,) = held.history
    assert (attempt.owner, attempt.note) == ("bob", "the tests need a machine with more memory")
