"""Queues that come to exist by use, their settings and depths; tokens, and what an agent sees of events."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from postroom.event import EventState, EventTodo, Incoming
from postroom.model import Principal, QueueSettings, Role, TodoState
from postroom.store.engine import Once
from postroom.store.events import Decided, EventTable
from tests.conftest import Store
from tests.offices import ADMIN, ANN, BOB, Bench, gather


async def test_queues_exist_by_use_and_settings(bench: Bench) -> None:
    assert await bench.office.queues.names(ADMIN) == []
    await bench.create("ready")
    await bench.create("assigned", assignee="ann")
    await bench.create("delayed", delay_ms=60_000)
    await bench.claimed(queue="claimed")
    await bench.fail(ANN, await bench.claimed(queue="parked"))
    await bench.fail(ANN, await bench.claimed(queue="dead"), retry=False)
    await bench.complete(ANN, await bench.claimed(queue="done"))
    await bench.office.queues.put(ADMIN, "settings", {"paused": True})
    names = ["assigned", "claimed", "dead", "delayed", "done", "parked", "ready", "settings"]
    assert await bench.office.queues.names(ADMIN) == names
    assert await bench.office.queues.names(Principal("eve", queues=("d*",))) == ["dead", "delayed", "done"]


async def test_depths_count_by_state_and_age(bench: Bench) -> None:
    for _ in range(3):
        await bench.create()
    await bench.create(assignee="ann")
    await bench.create(delay_ms=60_000)
    bench.move(5_000)
    await bench.claimed(BOB, queue="inbox")
    await bench.fail(ANN, await bench.claimed())
    await bench.fail(ANN, await bench.claimed(), retry=False)
    await bench.office.todos.cancel(ADMIN, (await bench.create()).id)
    (status,) = await bench.office.queues.status(ADMIN, "inbox")
    assert (status.pending, status.claimed, status.parked, status.dead) == (5, 1, 1, 1)
    assert status.oldest_pending_age_ms is not None
    assert 5_000 <= status.oldest_pending_age_ms < 60_000
    (empty,) = await bench.office.queues.status(ADMIN, "empty")
    assert (empty.pending, empty.oldest_pending_age_ms) == (0, None)
    with pytest.raises(NotFound):
        await bench.office.queues.status(Principal("eve", queues=("other",)), "inbox")


async def test_settings_are_changed_one_by_one_and_at_once(bench: Bench) -> None:
    changes: list[dict[str, Any]] = [
        {"lease_ms": 9_000},
        {"max_attempts": 9},
        {"backoff_ms": 1_000},
        {"max_in_flight": 9},
        {"keep_done_ms": 60_000},
    ]
    await gather(*[bench.office.queues.put(ADMIN, "inbox", change) for change in changes])
    (status,) = await bench.office.queues.status(ADMIN, "inbox")
    assert status.settings == QueueSettings("inbox", False, 9_000, 9, 1_000, None, 9, 60_000, None)
    assert (await bench.office.queues.put(ADMIN, "inbox", {"lease_ms": None})).lease_ms is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lease_ms": 999}, "lease_s"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"backoff_ms": -1}, "backoff_s"),
        ({"backoff_ms": 60_000, "backoff_cap_ms": 1_000}, "backoff_cap_s"),
        ({"keep_done_ms": 1}, "keep_done_s"),
        ({"colour": "red"}, "colour"),
        ({"name": "other"}, "name"),
    ],
)
async def test_bad_settings_are_refused_by_field(bench: Bench, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        await bench.office.queues.put(ADMIN, "inbox", changes)
    assert caught.value.field == field
    assert await bench.rows("select count(*) from queues") == [(0,)]
    with pytest.raises(Forbidden):
        await bench.office.queues.put(ANN, "inbox", {"paused": True})


# Tokens.


async def test_a_token_lets_in_until_it_is_revoked_and_its_claims_go_back(bench: Bench) -> None:
    token, secret = await bench.office.tokens.create(ADMIN, "ann", "agent", ["in*"])
    who = await bench.office.tokens.authenticate(secret)
    assert (who.name, who.role, who.queues, who.token_id) == ("ann", Role.AGENT, ("in*",), token.id)
    assert secret not in str(await bench.rows("select * from tokens"))
    # Nor is a name of the daemon's own to be had: notices are from `postroom`.
    for name in ("ann", "postroom"):
        with pytest.raises(Conflict):
            await bench.office.tokens.create(ADMIN, name)
    for _ in range(3):
        await bench.create()
    (one,), (two,) = await bench.claim(who), await bench.claim(who, worker="w")
    (other,) = await bench.claim(Principal("ann2"))
    await bench.office.tokens.revoke(ADMIN, token.id)
    for todo in (one, two):
        free = await bench.get(todo)
        assert (free.state, free.attempt, free.history[0].note) == (TodoState.PENDING, 0, "the token was revoked")
    assert (await bench.get(other)).state is TodoState.CLAIMED
    with pytest.raises(Unauthenticated, match="unknown or revoked"):
        await bench.office.tokens.authenticate(secret)
    with pytest.raises(Unauthenticated, match="a token's id, not its secret"):
        await bench.office.tokens.authenticate(token.id)
    with pytest.raises(NotFound):
        await bench.office.tokens.revoke(ADMIN, "ann")
    await bench.office.tokens.create(ADMIN, "ann")
    assert [one.name for one in await bench.office.tokens.all(ADMIN)] == ["ann", "ann"]


async def test_tokens_are_for_admins_and_bad_ones_are_refused(bench: Bench) -> None:
    for call in (
        bench.office.tokens.create(ANN, "x"),
        bench.office.tokens.all(ANN),
        bench.office.tokens.revoke(ANN, "x"),
    ):
        with pytest.raises(Forbidden):
            await call
    for name, role, queues, field in (
        ("a/b", "agent", ["*"], "name"),
        ("a\x00", "agent", ["*"], "name"),
        ("a", "king", ["*"], "role"),
        ("a", "agent", [], "queues"),
        ("a", "agent", ["Bad"], "queues"),
    ):
        with pytest.raises(Invalid) as caught:
            await bench.office.tokens.create(ADMIN, name, role, queues)
        assert caught.value.field == field
    for text in ("\x00", "\ud800"):
        with pytest.raises(Invalid):
            await bench.office.tokens.revoke(ADMIN, text)
    for secret in ("", "tk_", "tk_" + "x" * 500, "\x00", "tk_\ud800", "Bearer x"):
        with pytest.raises(Unauthenticated):
            await bench.office.tokens.authenticate(secret)


# Events.


async def test_an_agent_sees_the_events_of_its_queues(bench: Bench, store: Store) -> None:
    # S27
    events, once = EventTable(), Once(store)
    id_ = "ev_00000000-0000-7000-8000-000000000001"
    delivery = Incoming("gh", "github", "k", "push", None, "t", "hmac", b"\xff\x00", [("a", "b")], "{}", "d")
    await events.insert(once, id_, delivery, Decided(EventState.ROUTED, None))
    todo = await bench.create("inbox")
    await events.link(once, EventTodo(id_, todo.id, "inbox", "r", True))
    eve = Principal("eve", queues=("other",))
    event, links = await bench.office.events.get(ANN, id_)
    assert (event.body_bytes, event.deliveries, links[0].todo_id) == (2, 1, todo.id)
    assert await bench.office.events.raw(ANN, id_) == b"\xff\x00"
    assert [one.id for one, _ in (await bench.office.events.page(ANN, source="gh", kind="push"))[0]] == [id_]
    assert (await bench.office.events.page(eve))[0] == []
    for call in (
        bench.office.events.get(eve, id_),
        bench.office.events.raw(eve, id_),
        bench.office.trace.trace(eve, id_),
    ):
        with pytest.raises(NotFound):
            await call
    for field in ("source", "kind"):
        with pytest.raises(Invalid) as caught:
            await bench.office.events.page(ADMIN, **{field: "a\x00"})  # type: ignore[arg-type]
        assert caught.value.field == field
