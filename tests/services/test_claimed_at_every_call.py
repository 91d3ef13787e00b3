"""Claims whose database goes away at any of their calls, in turn: what is held was handed over, and nothing else was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from postroom.desk import ClaimNext
from postroom.errors import Unavailable
from postroom.model import OutcomeItem, Todo, TodoState, Verb
from postroom.services.local import LocalDesk
from tests.away import Away
from tests.offices import ANN, BOB, Bench, titles

MANY = 1000


def _items(*todos: Todo) -> list[OutcomeItem]:
    return [OutcomeItem(todo.id, Verb.COMPLETE, todo.lease_id) for todo in todos]


async def _besides(desk: LocalDesk, queue: str, *todos: Todo) -> Sequence[Todo]:
    results, claimed = await desk.outcomes(_items(*todos), ClaimNext([queue], limit=3))
    assert len(results) == len(todos)
    return claimed


Claim = Callable[[LocalDesk, str, Todo, Todo], Awaitable[Sequence[Todo]]]
CLAIMS: dict[str, Claim] = {
    "next": lambda desk, queue, mine, late: desk.claim_next([queue], limit=3),
    "beside_one": lambda desk, queue, mine, late: _besides(desk, queue, mine),
    "beside_a_late_one": lambda desk, queue, mine, late: _besides(desk, queue, late),
    "beside_several": lambda desk, queue, mine, late: _besides(desk, queue, mine, late, mine),
}


@pytest.mark.parametrize("moment", [False, True], ids=["for_good", "for_a_moment"])
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
async def test_what_is_held_was_handed_over(bench: Bench, claim: Claim, moment: bool) -> None:
    engine = Away(bench.store, MANY, moment=moment)
    desk = Bench(engine).office.desk(ANN)  # type: ignore[arg-type]
    at, calls = 0, 1
    while at <= calls:
        queue = f"at-{at}"
        mine, late = await bench.claimed(ANN, queue), await bench.claimed(BOB, queue)
        new = [await bench.create(queue, title) for title in ("one", "two")]
        engine.at = at or MANY
        handed: Sequence[Todo] = ()
        try:
            handed = await claim(desk, queue, mine, late)
        except Unavailable:
            assert at > 0
        if at == 0:
            calls = MANY - engine.at
            assert titles(handed) == ["one", "two"]
        held = [todo.title for todo in new if (await bench.get(todo)).state is TodoState.CLAIMED]
        assert sorted(held) == sorted(titles(handed)), f"call {at} of {calls}"
        at += 1
