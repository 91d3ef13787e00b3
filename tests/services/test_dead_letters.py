"""Dead letters: whoever is subscribed to their channel is told of each, once, whatever ended the todo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroom.limits import HOUR, SECOND
from postroom.message import Letter, NewMessage
from postroom.model import Principal, Todo
from postroom.services import announcing, handover
from postroom.services.addresses import DEAD_LETTERS as CHANNEL
from postroom.services.handover import DEAD, death_message
from postroom.store.handovers import DeadLetter
from postroom.text import cut
from tests.conftest import Store
from tests.offices import ADMIN, ANN, BOB, Bench, gather
from tests.services.mailing import Mail

OPS = Principal("ops")


class Morgue:
    """A bench where Ops hears of dead letters."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.office = bench.office

    async def subscribe(self, name: str = "ops") -> None:
        await self.office.registry.subscribe(ADMIN, CHANNEL, name)

    async def die(self, *, error: str = "it\tcannot be done", **more: Any) -> Todo:
        """A todo that Bob refuses for good."""
        todo = await self.bench.claimed(BOB, **more)
        return await self.bench.fail(BOB, todo, retry=False, error=error)

    async def letters(self, name: str = "ops") -> list[Letter]:
        """What an inbox shows once everything was told."""
        await self.office.handover.once()
        return list((await self.office.inbox.page(Principal(name), None, None, None)).letters)

    async def noted(self) -> int:
        """How many dead letters are noted and not told of."""
        return int((await self.bench.rows("select count(*) from dead_letters"))[0][0])


@pytest.fixture
async def morgue(bench: Bench) -> Morgue:
    made = Morgue(bench)
    await made.subscribe()
    return made


async def test_a_subscriber_is_told_once_and_what_it_is_told(morgue: Morgue) -> None:
    todo = await morgue.die(title="read\x1b[31m this", max_attempts=3)
    (letter,) = await morgue.letters()
    message = letter.message
    assert (message.sender, message.kind, message.channel, message.addressed) == ("postroom", DEAD, CHANNEL, None)
    assert message.correlation_id == todo.id
    assert message.payload == (
        f'Todo {todo.id} "read\ufffd[31m this" in queue inbox is a dead letter (refused, attempt 1 of 3): '
        "it cannot be done.\nThis is a notice and grants nothing."
    )
    assert message.metadata == {
        "todo_id": todo.id,
        "queue": "inbox",
        "title": "read\ufffd[31m this",
        "reason": "refused",
        "attempts": 1,
        "max_attempts": 3,
        "error": "it cannot be done",
    }
    assert len(await morgue.letters()) == 1
    assert await morgue.noted() == 0


async def _exhaust(bench: Bench, todo: Todo) -> None:
    await bench.fail(BOB, todo, error="no")


async def _lapse(bench: Bench, todo: Todo) -> None:
    bench.move(HOUR)
    await bench.office.sweep.once()


async def _bury(bench: Bench, todo: Todo) -> None:
    bench.move(HOUR)
    assert await bench.claim(ANN) == []


@pytest.mark.parametrize("die", [_exhaust, _lapse, _bury], ids=lambda one: one.__name__)
async def test_whatever_ended_it(morgue: Morgue, die: Callable[[Bench, Todo], Any]) -> None:
    todo = await morgue.bench.claimed(BOB, max_attempts=1)
    await die(morgue.bench, todo)
    (letter,) = await morgue.letters()
    assert (letter.message.correlation_id, letter.message.metadata["reason"]) == (todo.id, "exhausted")


async def test_what_is_done_cancelled_or_parked_is_no_dead_letter(morgue: Morgue) -> None:
    await morgue.bench.complete(BOB, await morgue.bench.claimed(BOB))
    await morgue.office.todos.cancel(ADMIN, (await morgue.bench.create()).id, "no longer wanted")
    parked = await morgue.bench.claimed(BOB, max_attempts=2)
    await morgue.bench.fail(BOB, parked, error="later", retry_in_ms=SECOND)
    assert await morgue.noted() == 0
    await morgue.office.todos.cancel(ADMIN, parked.id, "no longer wanted")
    assert await morgue.letters() == []


async def test_nothing_is_written_where_nobody_listens(bench: Bench) -> None:
    morgue = Morgue(bench)
    await bench.office.registry.subscribe(ADMIN, "another-channel", "ops")
    await morgue.die()
    assert await morgue.noted() == 0
    await morgue.subscribe()
    assert await morgue.letters() == []
    assert await bench.rows("select count(*) from messages") == [(0,)]


async def test_a_token_hears_of_its_own_queues_alone(morgue: Morgue) -> None:
    mal = Principal("mal", queues=("open*",))
    await morgue.office.tokens.create(ADMIN, "mal", queues=mal.queues)
    await morgue.office.registry.subscribe(mal, CHANNEL, "mal")
    secret, own = await morgue.die(queue="secret"), await morgue.die(queue="open/1")
    assert [letter.message.correlation_id for letter in await morgue.letters("mal")] == [own.id]
    assert {letter.message.correlation_id for letter in await morgue.letters()} == {secret.id, own.id}


async def test_nothing_is_written_where_nobody_who_listens_may_use_the_queue(bench: Bench) -> None:
    morgue, mal = Morgue(bench), Principal("mal", queues=("open*",))
    await morgue.office.tokens.create(ADMIN, "mal", queues=mal.queues)
    await morgue.office.registry.subscribe(mal, CHANNEL, "mal")
    await morgue.die(queue="secret")
    assert await morgue.letters("mal") == []
    assert await bench.rows("select count(*) from messages") == [(0,)]


async def test_who_unsubscribes_in_between_leaves_no_message(morgue: Morgue) -> None:
    await morgue.die()
    assert await morgue.noted() == 1
    await morgue.office.registry.unsubscribe(ADMIN, CHANNEL, "ops")
    assert await morgue.office.handover.once() == 0
    assert await morgue.noted() == 0
    assert await morgue.bench.rows("select count(*) from messages") == [(0,)]


async def test_every_subscriber_is_told_with_one_message(morgue: Morgue) -> None:
    await morgue.subscribe("ann")
    pane = await Mail(morgue.bench).pane(1, name="bob", channels=(CHANNEL,))
    await morgue.die()
    assert await morgue.office.handover.once() == 1
    rows = await morgue.bench.rows("select mailbox, endpoint_id = ? from deliveries order by mailbox", pane.id)
    assert [(mailbox, bool(there)) for mailbox, there in rows] == [("ann", False), ("bob", True), ("ops", False)]


async def test_a_retried_one_that_dies_again_is_told_of_again(morgue: Morgue) -> None:
    todo = await morgue.die()
    await morgue.office.todos.retry(ADMIN, todo.id)
    (held,) = await morgue.bench.claim(BOB)
    await morgue.bench.fail(BOB, held, retry=False, error="again")
    first, second = await morgue.letters()
    assert first.message.correlation_id == second.message.correlation_id == todo.id
    assert second.message.metadata["error"] == "again"


async def test_who_gave_the_work_is_told_besides(morgue: Morgue) -> None:
    todo = await morgue.bench.create(by=ANN, assignee="bob")
    held = await morgue.office.claims.claim(BOB, todo.id, None, None, None)
    await morgue.bench.fail(BOB, held, retry=False)
    assert await morgue.office.handover.once() == 2
    assert [letter.message.kind for letter in await morgue.letters("ann")] == [handover.KIND]
    assert [letter.message.kind for letter in await morgue.letters()] == [DEAD]


async def test_a_message_of_somebody_to_the_channel_is_an_ordinary_one(morgue: Morgue) -> None:
    await morgue.office.post.send(ANN, NewMessage("hello", channel=CHANNEL))
    (letter,) = await morgue.letters()
    assert (letter.message.sender, letter.message.kind) == ("ann", "chat")


async def test_many_are_told_in_their_order_by_several_daemons(
    morgue: Morgue, new_engine: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "BATCH", 3)
    died = [(await morgue.die()).id for _ in range(8)]
    engine = new_engine() if morgue.bench.store.dialect == "postgres" else None
    if engine is not None:
        await engine.open()
    other = Bench(engine or morgue.bench.store)
    told: list[Any] = await gather(*[one.office.handover.once() for one in (morgue.bench, other) for _ in range(2)])
    assert sum(told) + await morgue.office.handover.once() == len(died), told
    rows = await morgue.bench.rows("select correlation_id from messages order by seq")
    assert sorted(row[0] for row in rows) == sorted(died)
    if engine is not None:
        await engine.close()


async def test_what_was_not_told_before_a_crash_is_told_after_it(
    morgue: Morgue, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = await morgue.die()
    service = morgue.office.handover
    admit = service._admissions.admit

    async def breaks(*args: Any) -> Any:
        await admit(*args)
        raise RuntimeError("the daemon dies before its commit")

    monkeypatch.setattr(service._admissions, "admit", breaks)
    with pytest.raises(RuntimeError):
        await service.once()
    assert await morgue.bench.rows("select count(*) from messages") == [(0,)]
    assert await Bench(morgue.bench.store).office.handover.once() == 1
    assert await service.once() == 0
    (letter,) = await morgue.letters()
    assert letter.message.correlation_id == todo.id


async def test_its_story_says_who_was_told(morgue: Morgue) -> None:
    todo = await morgue.die()
    await morgue.office.handover.once()
    story = await morgue.office.trace.trace(ADMIN, todo.id)
    assert ("told", "ops by inbox") in [(step.what, step.detail) for step in story.steps]


def test_a_long_title_and_error_are_cut() -> None:
    long = "é" * 5000
    message = death_message(DeadLetter(1, "td_1", "inbox", long, "exhausted", long, 5, 5, 0))
    assert message.metadata is not None
    assert message.metadata["error"] == message.metadata["title"] == cut(long, announcing.MAX_WORDS)
    assert len(message.payload.encode()) < 1000
    assert "attempt 5 of 5).\n" in death_message(DeadLetter(1, "td_1", "q", "t", "exhausted", None, 5, 5, 0)).payload
