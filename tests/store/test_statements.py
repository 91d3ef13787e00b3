"""The named statements: each is there for both engines, has no open mark, and is run by some verb of the services."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from postroom.event import EventFilter, EventState, EventTodo, Incoming
from postroom.limits import DAY
from postroom.model import ClaimRequest, NewTodo, OutcomeItem, Principal, Role, TodoChange, TodoFilter, Verb
from postroom.sources.settings import build_sources
from postroom.store.engine import Once, Operation, Reader, Row, T, Tx
from postroom.store.events import Decided, EventTable
from postroom.store.statements import Dialect, Statements
from tests.conftest import Store
from tests.offices import ADMIN, ANN, BOB, Bench, gather
from tests.processes import until
from tests.store.post_walk import walk_the_post

EVENT = "ev_00000000-0000-7000-8000-000000000001"


class Recording:
    """An engine that notes the names of the statements it runs."""

    def __init__(self, engine: Store) -> None:
        self._engine = engine
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def read(self, name: str, /, **params: object) -> list[Row]:
        self.names.add(name)
        return await self._engine.read(name, **params)

    async def write(self, name: str, /, **params: object) -> list[Row]:
        self.names.add(name)
        return await self._engine.write(name, **params)

    async def transact(self, operation: Operation[T], *, heavy: bool = False, one: bool = False) -> T:
        names = self.names

        class Noting:
            def __init__(self, tx: Tx) -> None:
                self._tx = tx

            async def rows(self, name: str, /, **params: object) -> list[Row]:
                names.add(name)
                return await self._tx.rows(name, **params)

        return await self._engine.transact(lambda tx: operation(Noting(tx)), heavy=heavy, one=one)


async def test_every_statement_is_run_by_a_verb(store: Store) -> None:
    recording = Recording(store)
    bench, moving = Bench(recording), Bench(store)  # type: ignore[arg-type]
    todos, claims, endings, queues = bench.office.todos, bench.office.claims, bench.office.endings, bench.office.queues
    # Create, by key, by request key, in a batch.
    keyed = NewTodo("inbox", "x", idempotency_key="k", payload={"a": 1})
    first = (await todos.create(ADMIN, keyed)).todo
    assert not (await todos.create(ADMIN, keyed)).created
    await todos.create(ADMIN, NewTodo("inbox", "y"), "r1")
    assert (await todos.create(ADMIN, NewTodo("inbox", "y"), "r1")).replayed
    batch = [keyed, *(NewTodo("inbox", str(n)) for n in range(20))]
    await todos.create_many(ADMIN, batch, "r2")
    await todos.create_many(ADMIN, batch, "r2")
    # Look.
    assert await todos.get(ADMIN, first.id) == first
    assert (await todos.page(Principal("eve", queues=("in*",)), TodoFilter(limit=2))).next_cursor is not None
    # Claim: plain, under a key, by id, capped, for any queue.
    await queues.put(ADMIN, "capped", {"max_in_flight": 1})
    await todos.create(ADMIN, NewTodo("capped", "c"))
    (held,) = await claims.claim_next(ANN, ClaimRequest(("inbox",)))
    await claims.claim_next(ANN, ClaimRequest(("capped", "inbox"), claim_key="c1"))
    by_id = await todos.create(ADMIN, NewTodo("inbox", "z"))
    await claims.claim(ANN, by_id.todo.id, None, None, None)
    assert len(await claims.claim_next(BOB, ClaimRequest(limit=3))) == 3
    # End.
    await endings.heartbeat(ANN, held.id, held.lease_id, None)
    item = OutcomeItem(held.id, Verb.COMPLETE, held.lease_id)
    _, (next_, *_) = await claims.end_and_claim(ANN, [item], ClaimRequest(("inbox",)))
    assert (await endings.complete(ANN, held.id, held.lease_id, None)).replayed
    await endings.complete(ANN, next_.id, next_.lease_id, None)
    held_many = await claims.claim_next(ANN, ClaimRequest(("inbox",), limit=3))
    items = [OutcomeItem(todo.id, verb, todo.lease_id) for todo, verb in zip(held_many, Verb, strict=True)]
    assert [one.error for one in await endings.end_many(ANN, items)] == [None] * 3
    # Steer.
    (dying,) = await claims.claim_next(ANN, ClaimRequest(("inbox",)))
    await endings.end(ANN, OutcomeItem(dying.id, Verb.FAIL, dying.lease_id, retry=False))
    await todos.retry(ADMIN, dying.id)
    await todos.update(ADMIN, dying.id, TodoChange(priority=1))
    await todos.cancel(ADMIN, dying.id)
    # Lapse, fall due, sweep, forget.
    await todos.create(ADMIN, NewTodo("inbox", "late", delay_ms=1_000))
    moving.move(400_000)
    assert await claims.claim_next(BOB, ClaimRequest(("inbox",), limit=5))
    moving.move(400_000)
    await bench.office.sweep.once()
    await claims.claim_next(BOB, ClaimRequest(("nothing",)))
    await bench.office.waiting.claim_next(BOB, ClaimRequest(("nothing",)), 50)
    room = bench.office.waiting
    waits = [asyncio.create_task(room.claim_next(who, ClaimRequest(("later",)), 20_000)) for who in (ANN, BOB)]
    await until(lambda: sum(not waiter.looking for waiter in room._waiters.values()) == 2, "both wait")
    await todos.create(ADMIN, NewTodo("later", "assigned", assignee="bob"))
    assert len(await waits[1]) == 1
    waits[0].cancel()
    await gather(waits[0])
    # Events, tokens, queues.
    events, once = EventTable(), Once(recording)
    delivery = Incoming("gh", "github", "k", "push", None, "t", "hmac", b"\x00{}", [("a", "b")], "{}", "d")
    routed = Decided(EventState.ROUTED, None, ("default: matched",), 1)
    await events.insert(once, EVENT, delivery, routed)
    assert (await events.insert(once, EVENT[:-1] + "2", delivery, routed)).deliveries == 2
    await events.link(once, EventTodo(EVENT, first.id, "inbox", "r", True))
    assert await bench.office.events.raw(ADMIN, EVENT) == b"\x00{}"
    assert (await bench.office.events.page(ADMIN))[0]
    # Rules, and events that are held, let go, replayed and thrown away.
    source = build_sources([{"name": "gh", "provider": "generic", "insecure": True, "queue": "inbox"}], {}, Path())
    bench.office.roster.swap(source)
    await bench.office.rulesets.put(ADMIN, "gh", [{"match": {"kind": "push"}}], 0)
    assert (await bench.office.intake.receive(replace(delivery, delivery_key="k2"), source.by_name["gh"])).todos
    assert (await bench.office.replays.replay(ADMIN, EVENT)).event.rules_version == 1
    assert (await bench.office.replays.replay_many(ADMIN, wanted=EventFilter(since=0))).results
    for number in (3, 4):
        other = replace(delivery, delivery_key=f"k{number}")
        await events.insert(once, f"{EVENT[:-1]}{number}", other, Decided(EventState.HELD, "broke"))
    assert (await bench.office.replays.release(ADMIN, EVENT[:-1] + "3")).event.state is not EventState.HELD
    assert (await bench.office.replays.discard(ADMIN, EVENT[:-1] + "4")).event.state is EventState.IGNORED
    assert (await bench.office.trace.trace(ADMIN, EVENT)).steps
    assert (await bench.office.trace.trace(ADMIN, first.id)).steps
    _, secret = await bench.office.tokens.create(ADMIN, "bob", Role.AGENT, ["in*"])
    assert (await bench.office.tokens.authenticate(secret)).name == "bob"
    assert len(await bench.office.tokens.all(ADMIN)) == 1
    await bench.office.tokens.revoke(ADMIN, "bob")
    assert {status.settings.name for status in await queues.status(ADMIN)} >= {"inbox", "capped"}
    await walk_the_post(bench, moving)
    assert await bench.office.sweep.warnings() == []
    assert abs(await bench.office.sweep.clock_skew_ms() - store.skew) < 60_000
    assert (await bench.office.sweep.engine_version())[0].isdigit()
    moving.move(200 * DAY)
    assert await bench.office.sweep.retention() > 0
    await bench.office.waiting.close()
    assert sorted(set(Statements(store.dialect)) - recording.names) == []


@pytest.mark.parametrize("dialect", list(Dialect))
def test_every_statement_renders_without_an_open_mark(dialect: Dialect) -> None:
    statements = Statements(dialect)
    for name in statements:
        optional = statements.optional(name)
        for given in (frozenset[str](), optional, *(frozenset({one}) for one in optional)):
            for step in statements.get(name, given).steps:
                assert not re.search(r"\{\w+(:[^}]*)?\}", step), (name, step)
                assert "--" not in step, name
                assert not re.search(r"^\s*\[\w+\]", step, re.MULTILINE), name


def test_statements_of_one_engine_alone_are_few_and_known() -> None:
    sqlite, postgres = set(Statements(Dialect.SQLITE)), set(Statements(Dialect.POSTGRES))
    assert postgres - sqlite <= {
        "claim_key_lock",
        "delivery_head",
        "event_take_in",
        "message_admit",
        "oldest_snapshot",
        "ring_lock",
        "sweep_lock",
        "todo_claim",
        "todo_complete_claim",
        "todo_end_many",
        "todo_insert_many",
    }
    assert sqlite - postgres <= {
        "admission_insert",
        "claim_barriers",
        "claim_candidates",
        "claim_lapsed",
        "claim_take",
        "delivery_head_id",
        "delivery_insert",
        "delivery_lapse_all",
        "delivery_parcel",
        "mailbox_place",
        "message_insert",
        "todo_end",
    }


async def test_a_reader_sees_what_is_committed(store: Store) -> None:
    bench = Bench(store)
    todo = await bench.create()
    rows = await Reader(store).rows("todo_get", id=todo.id)
    assert rows[0][1] == todo.id
