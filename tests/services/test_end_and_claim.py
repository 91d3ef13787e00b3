"""Endings and a claim in one call: each half with its own results, and neither stopping the other."""

from __future__ import annotations

from postroom.errors import Conflict, NotFound
from postroom.model import ClaimRequest, OutcomeItem, TodoState, Verb
from tests.offices import ADMIN, ANN, BOB, Bench, titles


async def test_complete_and_claim_in_one_step(bench: Bench) -> None:
    for number in range(3):
        await bench.create(title=str(number), payload=number)
    (held,) = await bench.claim(worker="w")
    request = ClaimRequest(("inbox",), limit=1, worker="w")
    item = OutcomeItem(held.id, Verb.COMPLETE, held.lease_id, result="r")
    results, todos = await bench.office.claims.end_and_claim(ANN, [item], request)
    assert (results[0].state, results[0].queue, results[0].replayed) == (TodoState.DONE, "inbox", False)
    assert titles(todos) == ["1"]
    assert (await bench.get(held)).result == "r"
    assert todos[0] == await bench.get(todos[0])
    # Again, after a broken connection: the outcome is replayed and the claim is another.
    results, todos = await bench.office.claims.end_and_claim(ANN, [item], request)
    assert (results[0].state, results[0].replayed) == (TodoState.DONE, True)
    assert titles(todos) == ["2"]
    results, todos = await bench.office.claims.end_and_claim(ANN, [item], request)
    assert (results[0].replayed, todos) == (True, ())


async def test_a_refused_outcome_does_not_stop_the_claim(bench: Bench) -> None:
    held = await bench.claimed(BOB)
    await bench.create(title="next")
    item = OutcomeItem(held.id, Verb.COMPLETE, held.lease_id)
    results, todos = await bench.office.claims.end_and_claim(ANN, [item], ClaimRequest(("inbox",)))
    assert isinstance(results[0].error, Conflict)
    assert titles(todos) == ["next"]
    assert (await bench.get(held)).state is TodoState.CLAIMED


async def test_a_bad_item_beside_a_claim(bench: Bench) -> None:
    await bench.create(title="next")
    for item in (OutcomeItem("nonsense", Verb.COMPLETE, "ls_x"), OutcomeItem("nonsense", Verb.FAIL, "ls_x")):
        results, todos = await bench.office.claims.end_and_claim(ANN, [item], ClaimRequest(("inbox",)))
        assert isinstance(results[0].error, NotFound)
        for todo in todos:
            await bench.release(ANN, todo)
    assert titles(todos) == ["next"]


async def test_a_capped_queue_hands_on_the_place_that_was_just_freed(bench: Bench) -> None:
    await bench.office.queues.put(ADMIN, "inbox", {"max_in_flight": 1})
    for number in range(3):
        await bench.create(title=str(number))
    (held,) = await bench.claim()
    for number in (1, 2):
        item = OutcomeItem(held.id, Verb.COMPLETE, held.lease_id)
        results, todos = await bench.office.claims.end_and_claim(ANN, [item], ClaimRequest(("inbox",), limit=2))
        assert results[0].state is TodoState.DONE
        assert titles(todos) == [str(number)]
        held = todos[0]


async def test_many_endings_and_a_claim(bench: Bench) -> None:
    for number in range(6):
        await bench.create(title=str(number))
    held = await bench.claim(limit=3)
    items = [OutcomeItem(todo.id, verb, todo.lease_id) for todo, verb in zip(held, Verb, strict=True)]
    results, todos = await bench.office.claims.end_and_claim(ANN, items, ClaimRequest(("inbox",), limit=3))
    assert [result.state for result in results] == [TodoState.DONE, TodoState.FAILED, TodoState.PENDING]
    assert titles(todos) == ["2", "3", "4"]


async def test_a_late_holder_completes_and_does_not_claim_the_same_todo_again(bench: Bench) -> None:
    # S22
    held = await bench.claimed(title="late")
    other = await bench.create(title="other")
    bench.move(300_001)
    item = OutcomeItem(held.id, Verb.COMPLETE, held.lease_id)
    results, todos = await bench.office.claims.end_and_claim(ANN, [item], ClaimRequest(("inbox",), limit=5))
    assert (results[0].state, results[0].error) == (TodoState.DONE, None)
    assert [todo.id for todo in todos] == [other.id]
    assert (await bench.get(held)).state is TodoState.DONE
