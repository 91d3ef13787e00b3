"""Claiming: in order, by one owner at a time, for those who may, under a lease and a key."""

from __future__ import annotations

import random

import pytest

from postroom.errors import Conflict, Invalid, NotFound
from postroom.ids import Prefix, RandomIds
from postroom.model import ClaimRequest, NewTodo, Outcome, Principal, Reason, Role, Todo, TodoState
from tests.offices import ADMIN, ANN, BOB, SECOND, Bench, gather, titles


async def test_a_claim_sets_owner_lease_and_attempt(bench: Bench) -> None:
    # S4
    made = await bench.create(payload={"a": 1})
    (todo,) = await bench.claim(worker="w1", ttl_ms=60_000)
    assert (todo.id, todo.state, todo.owner, todo.attempt) == (made.id, TodoState.CLAIMED, "ann/w1", 1)
    assert todo.lease_id is not None
    assert todo.claimed_at is not None
    assert todo.lease_expires_at == todo.claimed_at + 60_000
    assert todo.payload == {"a": 1}
    assert todo == await bench.get(todo)
    assert await bench.claim(BOB) == []


async def test_the_lease_is_the_callers_the_queues_or_300_s(bench: Bench) -> None:
    # S4
    for _ in range(3):
        await bench.create()
    (one,) = await bench.claim()
    await bench.office.queues.put(ADMIN, "inbox", {"lease_ms": 7_000})
    (two,) = await bench.claim()
    (three,) = await bench.claim(ttl_ms=1_000)
    leases = [todo.lease_expires_at - todo.claimed_at for todo in (one, two, three)]  # type: ignore[operator]
    assert leases == [300_000, 7_000, 1_000]
    for ttl in (999, 24 * 3_600_000 + 1, 0, -1):
        with pytest.raises(Invalid) as caught:
            await bench.claim(ttl_ms=ttl)
        assert caught.value.field == "ttl_s"


async def test_order_is_priority_then_age_then_number_across_queues(bench: Bench) -> None:
    # S5
    chance = random.Random(7)
    made: list[Todo] = []
    for _ in range(6):
        news = [
            NewTodo(chance.choice(["q0", "q1", "q2"]), "x", priority=chance.choice([-100, -1, 0, 0, 5, 100]))
            for _ in range(12)
        ]
        made += [one.todo for one in await bench.office.todos.create_many(ADMIN, news)]  # type: ignore[union-attr]
        bench.move(10)
    expected = sorted(made, key=lambda todo: (-todo.priority, todo.created_at, todo.seq))
    got: list[Todo] = []
    while taken := await bench.claim(ANN, "q2", "q0", "q1", limit=chance.choice([1, 2, 7, 20])):
        got += taken
    assert [todo.id for todo in got] == [todo.id for todo in expected]


async def test_each_todo_goes_to_one_owner(bench: Bench) -> None:
    # S5 # S21
    await bench.office.todos.create_many(ADMIN, [NewTodo(f"q{n % 3}", str(n)) for n in range(120)])

    async def drain(name: str) -> list[str]:
        got: list[str] = []
        while taken := await bench.claim(Principal(name), "q0", "q1", "q2", limit=3):
            got += [todo.id for todo in taken]
        return got

    answers = await gather(*[drain(f"w{n}") for n in range(8)])
    got = [id_ for answer in answers for id_ in answer]
    assert len(got) == len(set(got)) == 120


async def test_no_claimer_is_told_that_there_is_nothing_while_there_is(bench: Bench) -> None:
    # S5
    for _ in range(5):
        await bench.office.todos.create_many(ADMIN, [NewTodo("inbox", str(n)) for n in range(10)])
        answers = await gather(*[bench.claim(Principal(f"w{n}")) for n in range(10)])
        assert [len(answer) for answer in answers] == [1] * 10


async def test_an_assignee_is_a_name_or_one_worker_of_it(bench: Bench) -> None:
    # S6
    by_name = await bench.create(title="ann's", assignee="ann")
    by_worker = await bench.create(title="ann/w2's", assignee="ann/w2")
    assert await bench.claim(BOB, limit=10) == []
    assert await bench.claim(Principal("ann2"), limit=10) == []
    assert titles(await bench.claim(ANN, worker="w1", limit=10)) == ["ann's"]
    assert await bench.claim(ANN, limit=10) == []
    with pytest.raises(Conflict) as caught:
        await bench.office.claims.claim(ANN, by_worker.id, None, None, "w1")
    assert caught.value.details["assignee"] == "ann/w2"
    assert titles(await bench.claim(ANN, worker="w2", limit=10)) == ["ann/w2's"]
    with pytest.raises(Conflict):
        await bench.office.claims.claim(BOB, by_name.id, None, None, None)


async def test_an_assignee_is_the_worker_whose_token_speaks_as_that(bench: Bench) -> None:
    # S6
    bob = Principal("bob", speaks_as=("rob*",))
    for number, (who, worker, may) in enumerate(
        [(ADMIN, "rob", True), (bob, "rob", True), (BOB, "rob", False), (bob, "tim", False), (bob, None, False)]
    ):
        todo = await bench.create(title=f"rob's {number}", assignee="rob", priority=number)
        if may:
            assert titles(await bench.claim(who, worker=worker, limit=10)) == [todo.title]
            later = await bench.create(assignee="rob", delay_ms=SECOND)
            bench.move(SECOND)
            assert (await bench.claim(who, worker=worker, limit=10))[0].id == later.id
            again = await bench.create(assignee="rob")
            assert (await bench.office.claims.claim(who, again.id, None, None, worker)).owner == who.owner(worker)
        else:
            assert await bench.claim(who, worker=worker, limit=10) == []
            with pytest.raises(Conflict, match="is assigned to rob"):
                await bench.office.claims.claim(who, todo.id, None, None, worker)
    mixed = await bench.create(title="any", priority=9)
    assert titles(await bench.claim(bob, worker="rob", limit=2)) == [mixed.title, "rob's 4"]


async def test_a_worker_named_as_its_token_gets_each_todo_once(bench: Bench) -> None:
    # S6
    todo = await bench.create(assignee="ann")
    assert [one.id for one in await bench.claim(ANN, worker="ann", limit=10)] == [todo.id]


async def test_assigned_and_unassigned_work_share_one_order(bench: Bench) -> None:
    # S5 # S6
    for number, assignee in enumerate((None, "ann", "ann/w", None, "bob", "ann")):
        await bench.create(title=str(number), assignee=assignee, priority=-number)
    assert titles(await bench.claim(ANN, worker="w", limit=4)) == ["0", "1", "2", "3"]


async def test_claim_by_id(bench: Bench) -> None:
    # S6
    await bench.create(title="first")
    second = await bench.create(title="second")
    todo = await bench.office.claims.claim(ANN, second.id, 5_000, None, "w")
    assert (todo.title, todo.owner, todo.attempt) == ("second", "ann/w", 1)
    with pytest.raises(Conflict) as caught:
        await bench.office.claims.claim(BOB, second.id, None, None, None)
    assert (caught.value.details["state"], caught.value.details["owner"]) == ("claimed", "ann/w")
    bench.move(5_001)
    again = await bench.office.claims.claim(BOB, second.id, None, None, None)
    assert (again.owner, again.attempt, again.history[0].outcome) == ("bob", 2, Outcome.LAPSED)
    await bench.complete(BOB, again)
    with pytest.raises(Conflict) as caught:
        await bench.office.claims.claim(ANN, second.id, None, None, None)
    assert caught.value.details["state"] == "done"


async def test_many_who_claim_one_id(bench: Bench) -> None:
    # S6
    todo = await bench.create()
    answers = await gather(
        *[bench.office.claims.claim(Principal(f"w{n}"), todo.id, None, None, None) for n in range(20)]
    )
    assert sum(isinstance(answer, Todo) for answer in answers) == 1
    assert sum(isinstance(answer, Conflict) for answer in answers) == 19


async def test_foreign_queues_are_not_there(bench: Bench) -> None:
    # S12
    todo = await bench.create("secret", payload={"a": 1})
    eve = Principal("eve", queues=("inbox", "team/*"))
    with pytest.raises(NotFound):
        await bench.claim(eve, "secret")
    with pytest.raises(NotFound):
        await bench.claim(eve, "inbox", "secret")
    assert await bench.claim(Principal("eve", queues=("inbox",)), "inbox") == []
    missing = RandomIds().new(Prefix.TODO)
    said = []
    for id_ in (todo.id, missing):
        with pytest.raises(NotFound) as caught:
            await bench.office.claims.claim(eve, id_, None, None, None)
        said.append(caught.value.message.replace(id_, "ID"))
        with pytest.raises(NotFound):
            await bench.office.todos.get(eve, id_)
        with pytest.raises(NotFound):
            await bench.office.endings.complete(eve, id_, "ls_x", None)
        with pytest.raises(NotFound):
            await bench.office.endings.heartbeat(eve, id_, None, None)
    assert said[0] == said[1]
    for shape in ("", "td_", "ev_" + missing[3:], missing + "\n", missing.upper(), "x" * 5000):
        with pytest.raises(NotFound):
            await bench.office.claims.claim(eve, shape, None, None, None)


async def test_without_named_queues_all_that_the_principal_may_use_are_claimed(bench: Bench) -> None:
    for queue in ("inbox", "team/a", "team/b", "other"):
        await bench.create(queue, title=queue)

    async def claim(who: Principal) -> list[str]:
        return titles(list(await bench.office.claims.claim_next(who, ClaimRequest(limit=10, ttl_ms=1_000))))

    assert await claim(Principal("eve", queues=("team/*",))) == ["team/a", "team/b"]
    assert await claim(Principal("eve", queues=("other",))) == ["other"]
    assert await claim(ADMIN) == ["inbox"]
    bench.move(1_001)
    assert await claim(ADMIN) == ["inbox", "team/a", "team/b", "other"]


async def test_a_paused_queue_hands_nothing_out_and_does_everything_else(bench: Bench) -> None:
    held = await bench.claimed()
    todo = await bench.create()
    await bench.office.queues.pause(ADMIN, "inbox", paused=True)
    assert await bench.claim() == []
    with pytest.raises(Conflict) as caught:
        await bench.office.claims.claim(ANN, todo.id, None, None, None)
    assert caught.value.details["reason"] == "paused"
    await bench.create()
    await bench.office.endings.heartbeat(ANN, held.id, held.lease_id, None)
    await bench.complete(ANN, held)
    await bench.office.queues.pause(ADMIN, "inbox", paused=False)
    assert len(await bench.claim(limit=10)) == 2


# Due and lapsed todos are taken by the scan itself.


async def test_the_scan_takes_due_parked_and_lapsed_todos_without_any_sweep(bench: Bench) -> None:
    # S10 # S11
    delayed = await bench.create(title="delayed", delay_ms=10_000)
    parked = await bench.claimed(title="parked")
    await bench.fail(ANN, parked, error="no", retry_in_ms=20_000)
    lapsed = await bench.claimed(title="lapsed")
    await bench.office.endings.heartbeat(ANN, lapsed.id, lapsed.lease_id, 400_000)
    assert await bench.claim(BOB, limit=10) == []
    bench.move(9_000)
    assert await bench.claim(BOB, limit=10) == []
    bench.move(1_001)
    (one,) = await bench.claim(BOB, limit=10, ttl_ms=3_600_000)
    bench.move(10_000)
    (two,) = await bench.claim(BOB, limit=10, ttl_ms=3_600_000)
    bench.move(400_000)
    (three,) = await bench.claim(BOB, limit=10)
    assert [todo.id for todo in (one, two, three)] == [delayed.id, parked.id, lapsed.id]
    assert [todo.attempt for todo in (one, two, three)] == [1, 2, 2]
    assert two.history[0].outcome is Outcome.FAILED
    assert (three.history[0].outcome, three.history[0].owner) == (Outcome.LAPSED, "ann")


async def test_due_todos_of_others_stay(bench: Bench) -> None:
    # S6
    await bench.create(assignee="bob", delay_ms=1_000)
    bench.move(2_000)
    assert await bench.claim(ANN) == []
    assert len(await bench.claim(BOB)) == 1


async def test_both_engines_choose_alike_among_what_fell_due(bench: Bench) -> None:
    # The longest due are candidates, then claim order decides.
    for number in range(6):
        await bench.create(title=str(number), priority=number, delay_ms=1_000 + number)
    bench.move(5_000)
    assert titles(await bench.claim()) == ["5"]
    assert titles(await bench.claim(limit=3)) == ["4", "3", "2"]


async def test_a_spent_attempt_is_dead_lettered_by_the_scan_and_never_handed_out(bench: Bench) -> None:
    # S9 # S11
    todo = await bench.create(max_attempts=2)
    for _ in range(2):
        assert len(await bench.claim(ttl_ms=1_000)) == 1
        bench.move(1_001)
    assert await bench.claim() == []
    dead = await bench.get(todo)
    assert (dead.state, dead.reason, dead.attempt) == (TodoState.FAILED, Reason.EXHAUSTED, 2)
    assert dead.next_retry_at is None
    assert dead.error == "the lease of ann lapsed"
    assert [entry.outcome for entry in dead.history] == [Outcome.LAPSED, Outcome.LAPSED]


async def test_claiming_a_spent_todo_by_id_buries_it(bench: Bench) -> None:
    # S9
    todo = await bench.claimed(max_attempts=1)
    bench.move(300_001)
    with pytest.raises(Conflict) as caught:
        await bench.office.claims.claim(BOB, todo.id, None, None, None)
    assert caught.value.details["state"] == "failed"
    assert (await bench.get(todo)).dead


# Claim keys.


async def test_a_claim_key_gives_the_same_batch_again(bench: Bench) -> None:
    for number in range(5):
        await bench.create(title=str(number))
    first = await bench.claim(limit=3, claim_key="c1")
    again = await bench.claim(limit=5, claim_key="c1")
    assert again == first  # all of it, and no more
    assert len({todo.lease_id for todo in first}) == 1
    await bench.complete(ANN, first[0])
    assert titles(await bench.claim(limit=3, claim_key="c1")) == ["1", "2"]
    assert titles(await bench.claim(worker="w", claim_key="c1")) == ["3"]  # another owner's key of the same name
    for todo in first[1:]:
        await bench.release(ANN, todo)
    assert titles(await bench.claim(limit=9, claim_key="c1")) == ["1", "2", "4"]


async def test_a_lapsed_claim_is_no_longer_under_its_key(bench: Bench) -> None:
    await bench.create()
    (first,) = await bench.claim(claim_key="c1", ttl_ms=1_000)
    bench.move(1_001)
    (second,) = await bench.claim(claim_key="c1")
    assert second.lease_id != first.lease_id
    assert second.attempt == 2


async def test_twins_under_one_claim_key_get_one_claim(bench: Bench) -> None:
    for _ in range(20):
        await bench.create()
    answers = await gather(*[bench.claim(limit=2, claim_key="c1") for _ in range(10)])
    assert len({tuple(todo.id for todo in answer) for answer in answers}) == 1
    assert await bench.rows("select count(*) from todos where state = 'claimed'") == [(2,)]


async def test_claim_by_id_under_a_key(bench: Bench) -> None:
    todo = await bench.create()
    first = await bench.office.claims.claim(ANN, todo.id, None, "c1", None)
    again = await bench.office.claims.claim(ANN, todo.id, None, "c1", None)
    assert again == first
    with pytest.raises(Conflict):
        await bench.office.claims.claim(ANN, todo.id, None, "c2", None)


# Caps.


async def test_a_cap_holds_whoever_claims_at_once(bench: Bench) -> None:
    await bench.office.queues.put(ADMIN, "capped", {"max_in_flight": 5})
    await bench.office.todos.create_many(ADMIN, [NewTodo("capped", str(n)) for n in range(40)])
    await bench.office.todos.create_many(ADMIN, [NewTodo("free", str(n)) for n in range(10)])
    calls = [bench.claim(Principal(f"w{n}"), "capped", "free", limit=4) for n in range(6)]
    calls += [bench.claim(Principal(f"k{n}"), "capped", limit=4, claim_key="c") for n in range(6)]
    answers = await gather(*calls)
    got = [todo for answer in answers for todo in answer]
    assert sum(todo.queue == "capped" for todo in got) == 5
    assert await bench.rows("select count(*) from todos where queue = 'capped' and state = 'claimed'") == [(5,)]
    with pytest.raises(Conflict) as caught:
        waiting = await bench.rows("select id from todos where queue = 'capped' and state = 'pending' limit 1")
        await bench.office.claims.claim(ANN, waiting[0][0], None, None, None)
    assert caught.value.details["reason"] == "max_in_flight"


async def test_claims_by_id_respect_a_cap_at_once(bench: Bench) -> None:
    await bench.office.queues.put(ADMIN, "inbox", {"max_in_flight": 2})
    todos = [await bench.create() for _ in range(8)]
    answers = await gather(*[bench.office.claims.claim(ANN, todo.id, None, None, None) for todo in todos])
    assert sum(isinstance(answer, Todo) for answer in answers) == 2


async def test_what_ends_or_lapses_frees_its_place(bench: Bench) -> None:
    await bench.office.queues.put(ADMIN, "inbox", {"max_in_flight": 1})
    for number in range(5):
        await bench.create(title=str(number), max_attempts=9)
    (held,) = await bench.claim(limit=3)
    assert await bench.claim() == []
    await bench.complete(ANN, held)
    (held,) = await bench.claim(limit=3)
    await bench.fail(ANN, held)
    (held,) = await bench.claim(limit=3)
    await bench.release(ANN, held)
    (held,) = await bench.claim(limit=3)
    await bench.office.todos.cancel(ADMIN, held.id)
    (held,) = await bench.claim(limit=3, ttl_ms=1_000)
    bench.move(1_001)
    assert len(await bench.claim(BOB, limit=3)) == 1
    await bench.office.queues.put(ADMIN, "inbox", {"max_in_flight": None})
    assert titles(await bench.claim(BOB, limit=9)) == ["4"]


async def test_a_capped_queue_keeps_claim_order(bench: Bench) -> None:
    await bench.office.queues.put(ADMIN, "capped", {"max_in_flight": 2})
    for priority in (1, 9, 5):
        await bench.create("capped", title=f"c{priority}", priority=priority)
        await bench.create("free", title=f"f{priority}", priority=priority)
    assert titles(await bench.claim(ANN, "capped", "free", limit=4)) == ["c9", "f9", "c5", "f5"]
    assert titles(await bench.claim(ANN, "capped", "free", limit=4)) == ["f1"]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ClaimRequest(("inbox",), limit=0), "limit"),
        (ClaimRequest(("inbox",), limit=-1), "limit"),
        (ClaimRequest(("inbox",), limit=101), "limit"),
        (ClaimRequest(("inbox",), limit=True), "limit"),
        (ClaimRequest(()), "queues"),
        (ClaimRequest(tuple(f"q{n}" for n in range(101))), "queues"),
        (ClaimRequest(("Bad",)), "queues"),
        (ClaimRequest(("inbox",), claim_key="a\x00"), "claim_key"),
        (ClaimRequest(("inbox",), worker="a/b"), "worker"),
    ],
)
async def test_a_claim_out_of_bounds_is_refused_by_field(bench: Bench, request_: ClaimRequest, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        await bench.office.claims.claim_next(ADMIN, request_)
    assert caught.value.field == field


async def test_a_history_shows_the_newest_fifty(bench: Bench) -> None:
    todo = await bench.create()
    for number in range(55):
        (held,) = await bench.claim(ANN, worker=f"w{number}")
        await bench.release(ANN, held, note=f"note {number}")
        bench.move(1)
    (held,) = await bench.claim(BOB)
    assert [entry.note for entry in held.history] == [f"note {number}" for number in range(54, 4, -1)]
    assert held.history[0].owner == "ann/w54"
    assert (await bench.get(todo)).history == held.history
    assert held.attempt == 1


async def test_what_the_seed_calls_a_claim_needs_no_admin(bench: Bench) -> None:
    # S6 # S12: another agent's todo that is taken is a conflict, not a matter of rights.
    todo = await bench.claimed(by=Principal("maker", Role.AGENT))
    with pytest.raises(Conflict):
        await bench.office.claims.claim(BOB, todo.id, None, None, None)
