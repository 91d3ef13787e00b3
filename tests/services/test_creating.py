"""Creating todos: idempotent by key among live ones, one by one and in batches, replayed by request key."""

from __future__ import annotations

import random
from typing import Any

import pytest

from postroom.errors import Conflict, Invalid, NotFound, PostroomError, TooLarge
from postroom.model import Created, NewTodo, Principal, TodoState
from postroom.store.engine import Engine, Row
from tests.offices import ADMIN, ANN, BOB, Bench, gather


async def test_a_new_todo_has_the_columns_and_their_defaults(bench: Bench) -> None:
    # S13
    new = NewTodo("a/b.c-1", "título 🚀", kind="issue", payload={"n": [1, 2.5, None, "ü"]}, source="api")
    made = await bench.office.todos.create(ANN, new)
    todo = await bench.get(made.todo)
    assert made.created
    assert made.todo == todo
    assert todo.id.startswith("td_")
    assert (todo.queue, todo.title, todo.kind, todo.source) == ("a/b.c-1", "título 🚀", "issue", "api")
    assert (todo.state, todo.attempt, todo.max_attempts, todo.priority) == (TodoState.PENDING, 0, 5, 0)
    assert todo.payload == {"n": [1, 2.5, None, "ü"]}
    assert todo.payload_json is not None
    assert todo.payload_bytes == len(todo.payload_json.encode())
    assert todo.created_by == "ann"
    assert todo.created_at == todo.updated_at
    assert {todo.owner, todo.lease_id, todo.lease_expires_at, todo.result_json, todo.completed_at} == {None}


async def test_a_live_key_gives_the_todo_that_holds_it(bench: Bench) -> None:
    # S2
    first = await bench.create(idempotency_key="k")
    again = await bench.office.todos.create(ADMIN, NewTodo("inbox", "other", idempotency_key="k"))
    assert (again.created, again.todo.id, again.todo.title) == (False, first.id, "work")
    elsewhere = await bench.office.todos.create(ADMIN, NewTodo("outbox", "work", idempotency_key="k"))
    assert elsewhere.created
    without = await bench.office.todos.create(ADMIN, NewTodo("inbox", "work"))
    assert without.created


async def test_a_key_is_free_after_done_dead_or_cancelled_and_held_while_parked(bench: Bench) -> None:
    # S3
    new = NewTodo("inbox", "work", idempotency_key="k")

    async def create() -> Created:
        return await bench.office.todos.create(ADMIN, new)

    first = (await create()).todo
    held = await bench.claim()
    assert not (await create()).created
    await bench.fail(ANN, held[0])
    assert not (await create()).created  # parked
    bench.move(31_000)
    held = await bench.claim()
    assert held[0].id == first.id
    await bench.complete(ANN, held[0])
    second = await create()
    assert second.created
    held = await bench.claim()
    await bench.fail(ANN, held[0], retry=False)
    third = await create()
    assert third.created
    await bench.office.todos.cancel(ADMIN, third.todo.id)
    assert (await create()).created


async def test_the_same_key_at_once_makes_one_todo(bench: Bench) -> None:
    # S2 # S21
    new = NewTodo("inbox", "work", idempotency_key="k")
    answers = await gather(*[bench.office.todos.create(ADMIN, new) for _ in range(40)])
    assert sum(answer.created for answer in answers) == 1
    assert len({answer.todo.id for answer in answers}) == 1


class _Vanishing:
    """An engine on which, for a while, the holder of a key ends between the insert and the read-back."""

    def __init__(self, engine: Engine, times: int) -> None:
        self._engine = engine
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def write(self, name: str, /, **params: object) -> list[Row]:
        if name == "todo_by_key" and self.left > 0:
            self.left -= 1
            return []
        return await self._engine.write(name, **params)


async def test_a_read_back_that_finds_nothing_begins_again(bench: Bench) -> None:
    # S2
    first = await bench.create(idempotency_key="k")
    vanishing = _Vanishing(bench.store, 3)
    again = await Bench(vanishing).office.todos.create(  # type: ignore[arg-type]
        ADMIN, NewTodo("inbox", "work", idempotency_key="k")
    )
    assert (again.created, again.todo.id, vanishing.left) == (False, first.id, 0)


async def test_creating_races_with_ending_and_never_says_not_found(bench: Bench) -> None:
    # S2
    new = NewTodo("inbox", "work", idempotency_key="k")

    async def churn() -> int:
        made = 0
        for _ in range(15):
            made += (await bench.office.todos.create(ADMIN, new)).created
            for todo in await bench.claim():
                await bench.complete(ANN, todo)
        return made

    answers = await gather(*[churn() for _ in range(6)])
    assert all(isinstance(answer, int) for answer in answers), answers
    rows = await bench.rows("select count(*) from todos where state <> 'pending'")
    assert sum(answers) - rows[0][0] in {0, 1}


async def test_delays_and_times(bench: Bench) -> None:
    now = (await bench.create()).created_at
    assert (await bench.create(delay_ms=0)).available_at is None
    delayed = await bench.create(delay_ms=60_000)
    assert delayed.available_at == delayed.created_at + 60_000
    assert (await bench.create(available_at=now + 90_000)).available_at == now + 90_000
    assert (await bench.create(available_at=now - 1)).available_at is None


@pytest.mark.parametrize(
    ("new", "kind", "field"),
    [
        (NewTodo("Inbox", "x"), Invalid, "queue"),
        (NewTodo("", "x"), Invalid, "queue"),
        (NewTodo("a\x00", "x"), Invalid, "queue"),
        (NewTodo("inbox\n", "x"), Invalid, "queue"),
        (NewTodo("inbox", " "), Invalid, "title"),
        (NewTodo("inbox", "a\x00b"), Invalid, "title"),
        (NewTodo("inbox", "a\ud800"), Invalid, "title"),
        (NewTodo("inbox", "x" * 501), TooLarge, "title"),
        (NewTodo("inbox", "x", priority=101), Invalid, "priority"),
        (NewTodo("inbox", "x", max_attempts=0), Invalid, "max_attempts"),
        (NewTodo("inbox", "x", assignee="a/b/c"), Invalid, "assignee"),
        (NewTodo("inbox", "x", idempotency_key=""), Invalid, "idempotency_key"),
        (NewTodo("inbox", "x", idempotency_key="k" * 257), Invalid, "idempotency_key"),
        (NewTodo("inbox", "x", delay_ms=-1), Invalid, "delay_s"),
        (NewTodo("inbox", "x", delay_ms=1, available_at=1), Invalid, "available_at"),
        (NewTodo("inbox", "x", payload={"a": ["b", "\x00"]}), Invalid, "payload.a[1]"),
        (NewTodo("inbox", "x", payload={"a": float("nan")}), Invalid, "payload.a"),
        (NewTodo("inbox", "x", payload={"\ud800": 1}), Invalid, "payload"),
        (NewTodo("inbox", "x", payload=10**1300), Invalid, "payload"),
        (NewTodo("inbox", "x", payload="x" * (1 << 20)), TooLarge, "payload"),
    ],
)
async def test_what_a_database_cannot_hold_is_refused_by_field(
    bench: Bench, new: NewTodo, kind: type[PostroomError], field: str
) -> None:
    with pytest.raises(kind) as caught:
        await bench.office.todos.create(ADMIN, new)
    assert caught.value.field == field
    assert await bench.rows("select count(*) from todos") == [(0,)]


async def test_a_queue_of_others_is_not_there(bench: Bench) -> None:
    # S12
    with pytest.raises(NotFound):
        await bench.office.todos.create(Principal("eve", queues=("mine", "team/*")), NewTodo("inbox", "x"))


# Batches.


async def test_a_batch_answers_each_item_in_order(bench: Bench) -> None:
    held = await bench.create(idempotency_key="held")
    news = [
        NewTodo("inbox", "one", idempotency_key="z"),
        NewTodo("inbox", "two", idempotency_key="held"),
        NewTodo("inbox", ""),
        NewTodo("inbox", "four", idempotency_key="a", priority=3, delay_ms=1000, payload=[1]),
        NewTodo("inbox", "five", idempotency_key="z"),
        NewTodo("other", "six", idempotency_key="z", max_attempts=9, assignee="bob/7"),
        NewTodo("inbox", "seven"),
    ]
    answers = await bench.office.todos.create_many(ADMIN, news)
    refused = answers[2]
    assert isinstance(refused, Invalid)
    assert refused.field == "todos[2].title"
    made = [answer for answer in answers if isinstance(answer, Created)]
    assert [one.created for one in made] == [True, False, True, False, True, True]
    assert made[1].todo.id == held.id
    assert made[3].todo.id == made[0].todo.id
    fresh = [one.todo for one in made if one.created]
    assert [todo.title for todo in fresh] == ["one", "four", "six", "seven"]
    assert [todo.seq for todo in fresh] == sorted(todo.seq for todo in fresh)
    assert (fresh[1].priority, fresh[1].available_at, fresh[1].payload) == (3, fresh[1].created_at + 1000, [1])
    assert (fresh[2].max_attempts, fresh[2].assignee) == (9, "bob/7")
    assert fresh == [await bench.get(todo) for todo in fresh]


async def test_batches_with_the_same_keys_in_opposite_orders_do_not_deadlock(bench: Bench) -> None:
    keys = [f"k{n}" for n in range(60)]

    def batch(names: list[str]) -> list[NewTodo]:
        return [NewTodo("inbox", name, idempotency_key=name) for name in names]

    orders = [keys, keys[::-1]] + [random.Random(n).sample(keys, len(keys)) for n in range(6)]
    answers = await gather(*[bench.office.todos.create_many(ADMIN, batch(order)) for order in orders])
    made = [one for answer in answers for one in answer]
    assert all(isinstance(one, Created) for one in made), answers
    assert sum(one.created for one in made) == len(keys)
    for order, answer in zip(orders, answers, strict=True):
        assert [one.todo.title for one in answer] == order


async def test_a_thousand_fit_and_one_more_does_not(bench: Bench) -> None:
    news = [NewTodo("inbox", str(n)) for n in range(1000)]
    made = await bench.office.todos.create_many(ADMIN, news)
    assert [one.todo.title for one in made if isinstance(one, Created)] == [new.title for new in news]
    with pytest.raises(Invalid):
        await bench.office.todos.create_many(ADMIN, [*news, NewTodo("inbox", "x")])
    with pytest.raises(Invalid):
        await bench.office.todos.create_many(ADMIN, [])


# Request keys.


async def test_a_request_key_gives_the_same_answer_whatever_became_of_the_todo(bench: Bench) -> None:
    new = NewTodo("inbox", "work", idempotency_key="k")
    first = await bench.office.todos.create(ADMIN, new, "r1")
    held = await bench.claim()
    await bench.complete(ANN, held[0])
    again = await bench.office.todos.create(ADMIN, new, "r1")
    assert (again.replayed, again.created, again.todo.id) == (True, True, first.todo.id)
    assert again.todo.state is TodoState.DONE
    other = await bench.office.todos.create(BOB, new, "r1")  # another principal's key of the same name
    assert (other.replayed, other.created) == (False, True)


async def test_a_request_key_for_another_body_or_verb_is_a_conflict(bench: Bench) -> None:
    made = await bench.office.todos.create(ADMIN, NewTodo("inbox", "work"), "r1")
    for other in (NewTodo("inbox", "else"), NewTodo("inbox", "work", priority=1)):
        with pytest.raises(Conflict) as caught:
            await bench.office.todos.create(ADMIN, other, "r1")
        assert caught.value.field == "request_id"
    with pytest.raises(Conflict):
        await bench.office.todos.cancel(ADMIN, made.todo.id, None, "r1")
    with pytest.raises(Conflict):
        await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", "work")], "r1")
    with pytest.raises(Invalid):
        await bench.office.todos.create(ADMIN, NewTodo("inbox", "work"), "r\x00")


async def test_twins_under_one_request_key_make_one_todo(bench: Bench) -> None:
    answers = await gather(*[bench.office.todos.create(ADMIN, NewTodo("inbox", "work"), "r1") for _ in range(12)])
    assert len({answer.todo.id for answer in answers}) == 1
    assert sum(not answer.replayed for answer in answers) == 1


async def test_a_batch_is_replayed_by_its_request_key(bench: Bench) -> None:
    news = [NewTodo("inbox", "one", idempotency_key="a"), NewTodo("inbox", "two"), NewTodo("inbox", "")]
    first = await bench.office.todos.create_many(ADMIN, news, "r1")
    again = await bench.office.todos.create_many(ADMIN, news, "r1")
    for one, two in zip(first[:2], again[:2], strict=True):
        assert isinstance(one, Created)
        assert isinstance(two, Created)
        assert (two.replayed, two.created, two.todo.id) == (True, True, one.todo.id)
    assert isinstance(again[2], Invalid)
    assert await bench.rows("select count(*) from todos") == [(2,)]


async def test_a_refused_request_leaves_its_key_free(bench: Bench) -> None:
    held = await bench.claimed()
    await bench.complete(ANN, held)
    with pytest.raises(Conflict):
        await bench.office.todos.retry(ADMIN, held.id, "r1")
    assert await bench.rows("select count(*) from requests") == [(0,)]
