"""Intake under many senders: every delivery is one event with its todos, whatever comes beside it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from postroom.errors import Unavailable
from postroom.event import AS_IT_CAME, Event, EventState, Incoming, Received
from postroom.model import NewTodo
from postroom.services.rulesets import Sorting
from postroom.services.together import MAX_AT_ONCE, MAX_TOGETHER, MAX_TOGETHER_BYTES, Together
from postroom.sources.settings import build_sources
from postroom.store.engine import Once
from postroom.store.events import Asked, Coming, Decided, EventTable
from postroom.store.statements import Dialect
from tests.offices import ADMIN, Bench, gather
from tests.processes import until
from tests.sources.signing import accepted, github, github_headers

KEYED = {"name": "keyed", "match": {"action": "keyed"}, "key": "one", "queue": "keys"}
TWICE = {"name": "first", "match": {"action": "twice"}, "key": "both", "continue": True}


def source_of(bench: Bench, *rules: dict[str, Any]) -> Sorting:
    """A source with these rules, and a last one that takes everything."""
    table = {"name": "gh", "provider": "github", "secrets": ["a-secret-of-sixteen"], "queue": "inbox"}
    bench.office.roster.swap(build_sources([{**table, "rule": [*rules, {"name": "rest"}]}], {}, Path()))
    source = bench.office.roster.get("gh")
    assert source is not None
    return source


def delivery(key: str, action: str | None = None, **more: Any) -> Incoming:
    told: dict[str, Any] = {
        "title": f"delivery {key}",
        "body": f'{{"key":"{key}"}}'.encode(),
        "digest": f"digest {key}",
    }
    told |= more
    return Incoming(
        "gh",
        "github",
        key,
        "push",
        action,
        told["title"],
        "hmac:x",
        told["body"],
        [("a", "b")],
        told.get("body_json", AS_IT_CAME),
        told["digest"],
        signed_key=told.get("signed_key", False),
    )


async def test_deliveries_at_once_are_each_one_event_and_one_todo(bench: Bench) -> None:
    source = source_of(bench)
    sent = [delivery(f"d{n % 60}") for n in range(200)]
    answers = await gather(*(bench.office.intake.receive(one, source) for one in sent))
    assert all(isinstance(answer, Received) for answer in answers), answers
    first: dict[str, Received] = {}
    for one, answer in zip(sent, answers, strict=True):
        known = first.setdefault(one.delivery_key, answer)
        assert answer.duplicate == (known is not answer)
        assert answer.event.id == known.event.id
        assert answer.todos == known.todos
        assert len(answer.todos) == 1
    assert await bench.rows("select count(*), sum(deliveries) from events") == [(60, 200)]
    assert await bench.rows("select count(*) from todos t join event_todos e on e.todo_id = t.id and e.created") == [
        (60,)
    ]
    claimed = await bench.claim(ADMIN, limit=100)
    assert sorted(todo.title for todo in claimed) == sorted(f"delivery d{n}" for n in range(60))


async def test_deliveries_of_one_statement_are_numbered_as_they_came(bench: Bench) -> None:
    if bench.store.dialect is not Dialect.POSTGRES:
        # One writer takes one after the other.
        source = source_of(bench)
        await gather(*(bench.office.intake.receive(delivery(f"d{n % 7}{n}"), source) for n in range(20)))
    else:
        asked = [Asked(f"td_{n}", NewTodo("inbox", f"t{n}", idempotency_key=f"k{-n}"), None, "r") for n in range(20)]
        sent = [
            Coming(f"ev_{n}", delivery(f"d{n % 7}{n}"), Decided(EventState.ROUTED, None), [asked[n]]) for n in range(20)
        ]
        await EventTable().take_in(Once(bench.store), sent)
    assert await bench.rows("select delivery_key from events order by seq") == [(f"d{n % 7}{n}",) for n in range(20)]
    assert len(await bench.rows("select distinct created_at, seq from todos")) == 20
    linked = "select e.delivery_key from todos t join events e on e.id = t.event_id order by t.seq"
    assert await bench.rows(linked) == [(f"d{n % 7}{n}",) for n in range(20)]


async def test_what_a_todo_made_at_once_holds(bench: Bench) -> None:
    rule = {"name": "all", "queue": "late", "kind": "a.kind", "priority": 7, "assignee": "ann", "key": "{delivery}"}
    source = source_of(bench, {**rule, "max_attempts": 3, "delay_s": 60})
    (link,) = (await bench.office.intake.receive(delivery("d1", "opened"), source)).todos
    todo = await bench.get(link.todo_id)
    assert (todo.queue, todo.kind, todo.priority, todo.assignee) == ("late", "a.kind", 7, "ann")
    assert (todo.idempotency_key, todo.max_attempts, todo.source, todo.event_id) == ("d1", 3, "gh", link.event_id)
    assert todo.available_at is not None
    assert todo.available_at - todo.created_at == 60_000
    assert (todo.payload["action"], todo.created_by) == ("opened", "source:gh")
    await bench.office.queues.put(ADMIN, "inbox", {"max_attempts": 9})
    (link,) = (await bench.office.intake.receive(delivery("d2"), source_of(bench))).todos
    todo = await bench.get(link.todo_id)
    assert (todo.max_attempts, todo.available_at) == (9, None)


async def test_todos_of_one_key_collapse_whatever_comes_at_once(bench: Bench) -> None:
    source = source_of(bench, KEYED)
    calls = [bench.office.intake.receive(delivery(f"d{n}", "keyed" if n % 2 else None), source) for n in range(40)]
    answers = await gather(*calls)
    links = [answer.todos[0] for answer in answers]
    assert sum(link.created for link in links[1::2]) == 1
    assert len({link.todo_id for link in links[1::2]}) == 1
    assert all(link.created for link in links[::2])
    assert await bench.rows("select count(*) from todos where queue = 'keys'") == [(1,)]
    later = await bench.office.intake.receive(delivery("later", "keyed"), source)
    assert (later.duplicate, later.todos[0].created) == (False, False)


async def test_two_todos_of_one_delivery_may_have_one_key(bench: Bench) -> None:
    source = source_of(bench, TWICE, {**TWICE, "name": "second"})
    received = await bench.office.intake.receive(delivery("d1", "twice"), source)
    made = {link.rule: link.created for link in received.todos}
    assert made == {"first": True, "second": False, "rest": True}


async def test_one_body_under_many_ids_is_suspected_but_once(bench: Bench) -> None:
    source = source_of(bench)
    # The rules are known already, so that nobody waits for them and the calls go in as they stand.
    await bench.office.rulesets.in_force(source)
    calls = [bench.office.intake.receive(delivery(f"d{n}", digest="same"), source) for n in range(20)]
    calls += [bench.office.intake.receive(delivery(f"s{n}", digest="same", signed_key=True), source) for n in range(3)]
    answers = await gather(*calls)
    assert [answer.event.suspected_replay for answer in answers] == [False] + [True] * 19 + [False] * 3


async def test_a_delivery_that_cannot_be_stored_fails_alone(bench: Bench) -> None:
    source = source_of(bench)
    sent = [delivery(f"d{n}") for n in range(10)]
    sent[4] = delivery("d4", title="a lone \ud800")
    answers = await gather(*(bench.office.intake.receive(one, source) for one in sent))
    assert isinstance(answers[4], Exception) or answers[4].event.state is EventState.HELD
    good = [answer for n, answer in enumerate(answers) if n != 4]
    assert all(isinstance(answer, Received) and answer.todos[0].created for answer in good), answers


async def test_a_body_that_is_clean_as_it_came_is_kept_once(bench: Bench) -> None:
    source = source_of(bench)
    for raw, kept in (
        (b'{"a": ["\xc3\xa9"]}', ""),
        (b'{"a":"\\u0000"}', '{"a":"�"}'),
        (b"\xef\xbb\xbf[1]", None),
        (b"{", None),
    ):
        read = accepted(github(name="gh"), github_headers(raw, id_=raw.hex()), raw)
        received = await bench.office.intake.receive(read, source)
        event, _ = await bench.office.events.get(ADMIN, received.event.id)
        assert event.body == read.data
        assert await bench.office.events.raw(ADMIN, event.id) == raw
        assert await bench.rows("select body_json from events where id = ?", event.id) == [(kept,)]


class Slow:
    """An engine that holds each statement until it is let go, and notes what stood in it."""

    dialect = Dialect.POSTGRES

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.gates: list[asyncio.Future[None]] = []

    async def transact(self, operation: Any, *, heavy: bool = False, one: bool = False) -> Any:
        assert one
        gate = asyncio.get_running_loop().create_future()
        found = await operation(self)
        self.gates.append(gate)
        await gate
        return found

    def started(self, count: int) -> bool:
        return len(self.gates) == count

    async def take_in(self, tx: object, comings: list[Coming]) -> list[Event | None]:
        self.groups.append([one.delivery.delivery_key for one in comings])
        return [None] * len(comings)


def coming(key: str, **more: Any) -> Coming:
    return Coming(key, delivery(key, **more), Decided(EventState.ROUTED, None), ())


async def test_what_comes_while_a_statement_runs_stands_in_the_next_one() -> None:
    slow: Any = Slow()
    together = Together(slow, slow)
    calls: list[asyncio.Task[Event | None]] = []

    def send(*comings: Coming) -> None:
        calls.extend(asyncio.create_task(together.take(one)) for one in comings)

    for n in range(MAX_AT_ONCE):
        send(coming(f"first{n}"))
        await until(partial(slow.started, n + 1), "a lone delivery waits for nobody")
    send(*(coming(f"d{n}") for n in range(MAX_TOGETHER + 2)), coming("first0", digest="other"), coming("d0"))
    await asyncio.sleep(0)
    assert len(slow.groups) == MAX_AT_ONCE
    # The second one of an id waits until the first one's statement is over.
    slow.gates[1].set_result(None)
    await until(lambda: len(slow.gates) == MAX_AT_ONCE + 1, "the next statement")
    assert slow.groups[-1] == [f"d{n}" for n in range(MAX_TOGETHER)]
    slow.gates[0].set_result(None)
    await until(lambda: len(slow.gates) == MAX_AT_ONCE + 2, "the one after it")
    assert slow.groups[-1] == [f"d{MAX_TOGETHER}", f"d{MAX_TOGETHER + 1}", "first0"]
    for gate in slow.gates:
        if not gate.done():
            gate.set_result(None)
    await until(lambda: len(slow.gates) == MAX_AT_ONCE + 3, "the last one")
    assert slow.groups[-1] == ["d0"]
    slow.gates[-1].set_result(None)
    assert await asyncio.gather(*calls) == [None] * len(calls)


async def test_large_deliveries_go_alone_and_small_ones_within_a_size() -> None:
    slow: Any = Slow()
    together = Together(slow, slow)
    assert await together.take(coming("large", body=b" " * (MAX_TOGETHER_BYTES + 1))) is None
    assert slow.groups == []
    calls = [
        asyncio.create_task(together.take(coming(f"d{n}", body=b" " * (MAX_TOGETHER_BYTES // 2)))) for n in range(3)
    ]
    await until(lambda: len(slow.gates) == 2, "both statements")
    assert slow.groups == [["d0", "d1"], ["d2"]]
    for gate in slow.gates:
        gate.set_result(None)
    await asyncio.gather(*calls)


async def test_while_the_database_is_away_each_is_told_so() -> None:
    class Away(Slow):
        async def transact(self, operation: Any, *, heavy: bool = False, one: bool = False) -> Any:
            raise Unavailable("away")

    away: Any = Away()
    together = Together(away, away)
    answers = await gather(*(together.take(coming(f"d{n}")) for n in range(40)))
    assert all(isinstance(answer, Unavailable) for answer in answers)


async def test_a_sender_that_went_away_is_left_out() -> None:
    slow: Any = Slow()
    together = Together(slow, slow)
    calls = [asyncio.create_task(together.take(coming(f"d{n}"))) for n in range(MAX_AT_ONCE)]
    await until(lambda: len(slow.gates) >= 1, "a statement runs")
    waiting = [asyncio.create_task(together.take(coming(f"w{n}"))) for n in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    released = 0
    while not all(call.done() for call in (*calls, *waiting)):
        for gate in slow.gates[released:]:
            gate.set_result(None)
        released = len(slow.gates)
        await asyncio.sleep(0)
    assert sorted(key for group in slow.groups for key in group if key.startswith("w")) == ["w0", "w2"]
