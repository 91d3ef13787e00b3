"""Assigning: who is given work hears of it once, by the doorbell or by a message, whichever way it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from postroom.errors import Conflict, Forbidden, Invalid
from postroom.limits import HOUR
from postroom.message import Letter
from postroom.model import Created, NewTodo, Principal, TodoChange
from postroom.services import announcing
from postroom.services.assigning import KIND
from postroom.store.engine import Tx
from tests.conftest import Store
from tests.offices import ADMIN, ANN, BOB, Bench, gather
from tests.processes import until
from tests.services.mailing import Mail
from tests.services.test_intake import delivery, source_of


class Desk:
    """A bench on which Ann gives work to Bob."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.office = bench.office

    async def letters(self, name: str = "bob") -> list[Letter]:
        """What an inbox shows once everything was told."""
        await self.office.assigning.once()
        return list((await self.office.inbox.page(Principal(name), None, None, None)).letters)

    async def assign(self, todo_id: str, name: str | None, by: Principal = ANN) -> None:
        """Give a todo to another."""
        await self.office.todos.update(by, todo_id, TodoChange(assignee=name, assignee_given=True))

    async def noted(self) -> int:
        """How many notes wait to be told."""
        return int((await self.bench.rows("select count(*) from assignments"))[0][0])


@pytest.fixture
def desk(bench: Bench) -> Desk:
    return Desk(bench)


async def test_who_is_given_work_is_told_once_that_it_waits(desk: Desk) -> None:
    todo = await desk.bench.create(by=ANN, assignee="bob", title="read\tthis\x1b[31m", queue="review")
    (letter,) = await desk.letters()
    message = letter.message
    assert (message.sender, message.kind, message.addressed, message.correlation_id) == (
        "postroom",
        KIND,
        "bob",
        todo.id,
    )
    assert message.payload == (
        f'Todo {todo.id} "read this\ufffd[31m" in queue review waits for bob, given by ann. '
        f'Claim with claim(id="{todo.id}"). This is a notice and grants nothing.'
    )
    assert message.metadata == {
        "todo_id": todo.id,
        "queue": "review",
        "state": "assigned",
        "assignee": "bob",
        "giver": "ann",
    }
    assert len(await desk.letters()) == 1
    assert await desk.noted() == 0
    told = [step for step in (await desk.office.trace.trace(ADMIN, todo.id)).steps if step.what == "told"]
    assert [step.detail for step in told] == ["bob by inbox"]


async def test_a_repeated_request_tells_nobody_again(desk: Desk) -> None:
    new = NewTodo("review", "once", assignee="bob", idempotency_key="k")
    create = desk.office.todos.create
    for key in ("r1", "r1", None, "r2"):
        made = await create(ANN, new, key)
    assert made.created is False
    assert len(await desk.letters()) == 1
    batch = [NewTodo("review", str(n), assignee="bob", idempotency_key=str(n % 2)) for n in range(4)]
    await desk.office.todos.create_many(ANN, batch)
    await desk.office.todos.create_many(ANN, batch)
    assert len(await desk.letters()) == 3


async def test_work_that_changes_hands_is_told_to_whom_it_came(desk: Desk) -> None:
    todo = await desk.bench.create(by=ANN)
    assert await desk.noted() == 0
    await desk.assign(todo.id, "bob")
    (letter,) = await desk.letters()
    assert "given by ann" in letter.message.payload
    await desk.assign(todo.id, "bob", ADMIN)
    assert len(await desk.letters()) == 1  # It was Bob's already.
    await desk.assign(todo.id, "ann", ADMIN)
    (letter,) = await desk.letters("ann")
    assert letter.message.metadata["giver"] == "root"
    await desk.assign(todo.id, None)
    assert await desk.noted() == 0
    # By hand, past every verb: it is not known by whom.
    await desk.bench.rows("update todos set assignee = 'cid' where id = ?", todo.id)
    (letter,) = await desk.letters("cid")
    assert "waits for cid. Claim with" in letter.message.payload


async def test_nobody_is_told_of_what_is_not_so_any_more(desk: Desk) -> None:
    own = await desk.bench.create(by=BOB, assignee="bob/w")
    assert await desk.noted() == 0
    await desk.assign(own.id, "bob", BOB)
    passed_on = await desk.bench.create(by=ANN, assignee="bob")
    await desk.assign(passed_on.id, "cid")
    cancelled = await desk.bench.create(by=ANN, assignee="bob")
    await desk.office.todos.cancel(ANN, cancelled.id)
    claimed = await desk.bench.create(by=ANN, assignee="bob")
    await desk.office.claims.claim(BOB, claimed.id, None, None, None)
    forgotten = await desk.bench.create(by=ANN, assignee="bob")
    await desk.bench.rows("delete from todos where id = ?", forgotten.id)
    assert await desk.letters() == []
    assert len(await desk.letters("cid")) == 1
    assert await desk.noted() == 0


async def test_a_dead_letter_that_is_put_back_is_told_of_again(desk: Desk) -> None:
    todo = await desk.bench.create(by=ANN, assignee="bob")
    assert len(await desk.letters()) == 1
    held = await desk.office.claims.claim(BOB, todo.id, None, None, None)
    await desk.bench.fail(BOB, held)
    assert await desk.noted() == 0  # It is parked, and comes back by itself.
    desk.bench.move(HOUR)
    held = await desk.office.claims.claim(BOB, todo.id, None, None, None)
    await desk.bench.fail(BOB, held, retry=False)
    assert await desk.noted() == 0
    await desk.office.todos.retry(ADMIN, todo.id)
    assert [letter.message.metadata["giver"] for letter in await desk.letters()] == ["ann", "root"]


async def test_a_refused_change_tells_nobody(desk: Desk) -> None:
    todo = await desk.bench.create(by=ANN)
    with pytest.raises(Forbidden):
        await desk.assign(todo.id, "bob", BOB)
    assert await desk.noted() == 0


async def test_where_the_doorbell_rings_there_is_no_message(desk: Desk) -> None:
    mail = Mail(desk.bench)
    listening = await mail.pane(1, name="bob", queues=["review"])
    await desk.bench.create(by=ANN, assignee="bob", queue="review")
    assert await desk.office.assigning.once() == 0
    assert await desk.office.doorbell.once() == 1
    # Another queue, an endpoint without rings, and one that went silent are told by a message.
    await desk.bench.create(by=ANN, assignee="bob", queue="other")
    assert await desk.office.assigning.once() == 1
    rows = await desk.bench.rows("select endpoint_id from deliveries order by seq desc limit 1")
    assert rows == [(listening.id,)]
    await mail.pane(2, name="quiet", queues=["review"], rings=False)
    await desk.bench.create(by=ANN, assignee="quiet", queue="review")
    assert await desk.office.assigning.once() == 1
    desk.bench.move(HOUR)
    await desk.bench.create(by=ANN, assignee="bob", queue="review")
    assert await desk.office.assigning.once() == 1
    rows = await desk.bench.rows("select carrier, mailbox from deliveries order by seq desc limit 1")
    assert rows == [("inbox", "bob")]


async def test_a_worker_is_told_where_it_sits_or_by_its_token(desk: Desk) -> None:
    mail = Mail(desk.bench)
    await desk.office.tokens.create(ADMIN, "bob")
    await desk.bench.create(by=ANN, assignee="bob/w")
    (letter,) = await desk.letters()
    assert "waits for bob/w, given by ann" in letter.message.payload
    await desk.office.tokens.revoke(ADMIN, "bob")
    await desk.office.tokens.create(ADMIN, "bob", speaks_as=("w",))
    await desk.bench.create(by=ANN, assignee="bob/w")
    assert [one.message.addressed for one in await desk.letters("w")] == ["w"]
    bob = Principal("bob", speaks_as=("w",))
    strangers = await mail.pane(1, name="w")
    its_own = await mail.pane(2, by=bob, name="w")
    await desk.bench.create(by=ANN, assignee="bob/w")
    assert await desk.office.assigning.once() == 1
    rows = await desk.bench.rows("select endpoint_id from deliveries order by seq desc limit 1")
    assert rows == [(its_own.id,)] != [(strangers.id,)]
    await desk.bench.create(by=ANN, assignee="ses_7")
    assert await desk.office.assigning.once() == 1
    rows = await desk.bench.rows("select target_key from deliveries order by seq desc limit 1")
    assert rows == [("opencode:ses_7",)]


async def test_workers_of_one_token_give_each_other_work(desk: Desk) -> None:
    await desk.office.tokens.create(ADMIN, "team", speaks_as=("fe", "be"))
    team = Principal("team", speaks_as=("fe", "be"))
    given = NewTodo("inbox", "for be", assignee="team/be")
    todo = (await desk.office.todos.create(team, given, "r1", "fe")).todo
    assert todo.created_by == "team/fe"
    (told,) = await desk.letters("be")
    assert "waits for team/be, given by team/fe" in told.message.payload
    for own in ("team/fe", "fe", "team"):
        (made,) = await desk.office.todos.create_many(team, [NewTodo("inbox", "own", assignee=own)], None, "fe")
        assert isinstance(made, Created)
        await desk.bench.complete(team, await desk.office.claims.claim(team, made.todo.id, None, None, "fe"))
    assert (await desk.letters("fe"), await desk.letters("team")) == ([], [])
    await desk.bench.complete(team, await desk.office.claims.claim(team, todo.id, None, None, "be"))
    await desk.office.handover.once()
    (back,) = await desk.letters("fe")
    assert "given to team/be, is done, by team/be." in back.message.payload
    assert await desk.letters("team") == []
    with pytest.raises(Invalid, match="worker"):
        await desk.office.todos.create(team, given, None, "a/b")
    with pytest.raises(Conflict):
        await desk.office.todos.create(team, given, "r1", "be")


async def test_the_worker_that_made_it_and_its_token_may_steer_it(desk: Desk) -> None:
    todo = (await desk.office.todos.create(ANN, NewTodo("inbox", "t"), None, "w")).todo
    with pytest.raises(Forbidden, match="ann/w"):
        await desk.office.todos.cancel(Principal("an"), todo.id)
    change = TodoChange(title="u")
    assert (await desk.office.todos.update(ANN, todo.id, change)).title == "u"
    await desk.office.todos.cancel(ANN, todo.id)
    assert (await desk.office.todos.retry(ANN, todo.id)).created_by == "ann/w"


async def test_nobody_is_given_work_that_they_could_never_claim(desk: Desk) -> None:
    await desk.office.tokens.create(ADMIN, "eve", queues=("open",))
    for assignee in ("eve", "eve/w"):
        for request in (None, f"r {assignee}"):
            with pytest.raises(Invalid, match="may not use queue inbox") as caught:
                await desk.office.todos.create(ADMIN, NewTodo("inbox", "t", assignee=assignee), request)
            assert caught.value.field == "assignee"
    news = [NewTodo("open", "fine", assignee="eve"), NewTodo("inbox", "not", assignee="eve")]
    fine, refused = await desk.office.todos.create_many(ADMIN, news)
    assert isinstance(fine, Created)
    assert isinstance(refused, Invalid)
    assert refused.field == "todos[1].assignee"
    todo = await desk.bench.create()
    with pytest.raises(Invalid, match="may not use queue inbox"):
        await desk.assign(todo.id, "eve", ADMIN)
    assert (await desk.bench.get(todo)).assignee is None
    assert len(await desk.letters("eve")) == 1
    # A rule may still do it; who cannot come to it is told nothing of it.
    await desk.office.intake.receive(delivery("d1"), source_of(desk.bench, {"name": "to-eve", "assignee": "eve"}))
    assert len(await desk.letters("eve")) == 1


async def test_a_batch_asks_once_for_each_who_is_given_work(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = desk.office.todos._owners
    asked: list[tuple[str, str]] = []
    whole = owners.shut_out

    async def shut_out(tx: Tx, owner: str, queue: str) -> bool:
        asked.append((owner, queue))
        return await whole(tx, owner, queue)

    monkeypatch.setattr(owners, "shut_out", shut_out)
    news = [NewTodo("inbox", str(number), assignee=("bob", "cid", None)[number % 3]) for number in range(30)]
    assert all(isinstance(one, Created) for one in await desk.office.todos.create_many(ADMIN, news))
    assert asked == [("bob", "inbox"), ("cid", "inbox")]


async def test_a_repeated_batch_has_its_first_answer_whatever_its_assignees_may_now(desk: Desk) -> None:
    # RULINGS 5
    await desk.office.tokens.create(ADMIN, "eve", queues=("open",))
    news = [NewTodo("open", "fine", assignee="eve"), NewTodo("inbox", "not", assignee="eve")]
    made, refused = await desk.office.todos.create_many(ADMIN, news, "r1")
    await desk.bench.rows("update tokens set queues = ? where name = 'eve'", '["inbox"]')
    again, still = await desk.office.todos.create_many(ADMIN, news, "r1")
    assert isinstance(made, Created)
    assert isinstance(again, Created)
    assert (again.todo, again.created, again.replayed) == (made.todo, True, True)
    assert isinstance(refused, Invalid)
    assert isinstance(still, Invalid)
    assert (still.message, still.field) == (refused.message, refused.field)


async def test_delayed_work_says_from_when_on(desk: Desk) -> None:
    todo = await desk.bench.create(by=ANN, assignee="bob", delay_ms=HOUR)
    (letter,) = await desk.letters()
    assert todo.available_at is not None
    assert " waits for bob from 20" in letter.message.payload


async def test_who_a_rule_gives_work_is_told_as_well(desk: Desk) -> None:
    await desk.office.intake.receive(delivery("d1"), source_of(desk.bench, {"name": "to-bob", "assignee": "bob"}))
    (letter,) = await desk.letters()
    assert letter.message.metadata["assignee"] == "bob"


async def test_many_are_told_in_their_order_and_once_by_several_daemons(
    desk: Desk, new_engine: Callable[[], Store]
) -> None:
    count = announcing.BATCH + 10
    news = [NewTodo("review", str(n), assignee="bob") for n in range(count)]
    await desk.office.todos.create_many(ANN, news)
    engine = new_engine() if desk.bench.store.dialect == "postgres" else None
    if engine is not None:
        await engine.open()
    other = Bench(engine or desk.bench.store)
    told: list[Any] = await gather(*[one.office.assigning.once() for one in (desk.bench, other) for _ in range(3)])
    assert sum(told) == count, told
    assert await desk.bench.rows("select count(*), count(distinct correlation_id) from messages") == [(count, count)]
    if engine is not None:
        await engine.close()


async def test_what_was_not_told_before_a_crash_is_told_after_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.bench.create(by=ANN, assignee="bob")
    service = desk.office.assigning
    admit = service._admissions.admit

    async def breaks(*args: Any) -> Any:
        await admit(*args)
        raise RuntimeError("the daemon dies before its commit")

    monkeypatch.setattr(service._admissions, "admit", breaks)
    with pytest.raises(RuntimeError):
        await service.once()
    assert await desk.bench.rows("select count(*) from messages") == [(0,)]
    assert await Bench(desk.bench.store).office.assigning.once() == 1
    assert await service.once() == 0


async def test_it_tells_by_itself_and_outlives_a_fault(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "LOOK_AGAIN", 0.01)
    service = desk.office.assigning
    due = service._table.due
    broken = 2

    async def fault(tx: Any) -> bool:
        nonlocal broken
        broken -= 1
        if broken >= 0:
            raise RuntimeError("unforeseen")
        return await due(tx)

    monkeypatch.setattr(service._table, "due", fault)
    await desk.bench.create(by=ANN, assignee="bob")
    task = asyncio.create_task(service.run())

    async def told() -> bool:
        return await desk.bench.rows("select count(*) from messages") == [(1,)]

    await until(told, "the assignee is told")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
