"""A walk through every verb of the post, so that each of its named statements is run once."""

from __future__ import annotations

import pytest

from postroom.endpoint import ANY_REACH, CarrierKind, EndpointFilter, NewEndpoint
from postroom.errors import Invalid
from postroom.message import AckMode, MessageFilter, NewMessage, Written
from postroom.model import Principal, TodoChange
from postroom.office import compose
from postroom.services.allowed import Allowance
from tests.offices import ADMIN, ANN, BOB, Bench
from tests.services.mailing import appointments

SESSION = "opencode:ses_1"
REACHES = (ANY_REACH,)


async def walk_the_post(bench: Bench, moving: Bench) -> None:
    """Run each verb of the post at least once; `moving` moves the time of the bench's store."""
    await _admit(bench)
    await _register(bench)
    await _read(bench)
    await _carry(bench)
    await _lapse(bench, moving)
    await _ring(bench)


async def _admit(bench: Bench) -> None:
    post, registry = bench.office.post, bench.office.registry
    await post.send(ADMIN, NewMessage("one", to="ses_1", msg_id="one", client_id="c", idempotency_key="k"))
    assert (await post.send(ADMIN, NewMessage("one", to="ses_1", msg_id="one"))).deduplicated
    two = await post.send(ADMIN, NewMessage("two", to="ann", reply_to="one", sender="ses_1"))
    assert (await bench.office.replies.first(ADMIN, "one")).answer is not None
    listed = compose(bench.office.engine, allow=[Allowance(("ann",), ("bob",))])
    assert (await listed.replies.first(Principal("ses_1"), two.id)).answer is None
    with pytest.raises(Invalid):
        await post.send(ADMIN, NewMessage("two", to="ann", reply_to="never"))
    panes = [NewEndpoint(CarrierKind.TMUX, {}, f"tmux:{n}", name="pane", repositories=("repo",)) for n in (1, 2)]
    wake = NewMessage("wake", target_repo="repo", client_id="engine", idempotency_key="1")
    old = await registry.attach(ADMIN, panes[0])
    await post.send(ADMIN, wake)
    held = await bench.office.dispatch.head(old.target_key, REACHES)
    assert held is not None
    assert await bench.office.dispatch.attached(held)
    await registry.detach(ADMIN, old.id)
    assert await bench.office.dispatch.bereft(old.target_key)
    await registry.attach(ADMIN, panes[1])
    assert (await post.send(ADMIN, wake)).rebound


async def _register(bench: Bench) -> None:
    registry = bench.office.registry
    await registry.subscribe(ADMIN, "team", "ses_1")
    await registry.subscribe(ADMIN, "team", "pane")
    await registry.unsubscribe(ADMIN, "team", "pane")
    assert len(await registry.channels(ADMIN)) == 1
    found = await registry.find(ADMIN, EndpointFilter(live=True))
    await registry.heartbeat(ADMIN, found[0].id)
    assert await registry.who(ADMIN)


async def _read(bench: Bench) -> None:
    inbox, post = bench.office.inbox, bench.office.post
    assert (await inbox.page(ANN, None, "a", None)).letters
    assert (await inbox.mark_read(ANN, None, "s.1")).unread == 0
    await bench.office.watch._mailboxes.places(bench.office.watch._reader, ["ann"])
    assert (await post.page(Principal("root"), MessageFilter(state="pending"))).messages
    assert (await post.get(ADMIN, "one")).deliveries
    await bench.office.receipts.ack(ADMIN, "one")


async def _carry(bench: Bench) -> None:
    dispatch, post = bench.office.dispatch, bench.office.post
    for n in range(4):
        await post.send(BOB, NewMessage(str(n), to="ses_1", msg_id=f"b{n}", sender="bob"))
    assert SESSION in await dispatch.ready_targets(REACHES, 10)
    assert await dispatch.head(SESSION, REACHES) is not None
    await dispatch.next_due(SESSION)
    assert await dispatch.seated(SESSION)
    parcel = await dispatch.lease(SESSION, REACHES)
    assert parcel is not None
    await dispatch.settle(parcel, Written.WRITTEN, None, turn=True)
    await dispatch.note_seen(parcel.delivery.id)
    assert await dispatch.turns(REACHES, 10)
    assert (await bench.office.trace.trace(ADMIN, parcel.delivery.id)).steps
    assert await dispatch.end_turn(SESSION, parcel.delivery.id, answered=True)
    await dispatch.defer(SESSION, "busy")
    await dispatch.defer(SESSION, None)
    await dispatch.pause(SESSION, 1)
    await bench.office.receipts.cancel(ADMIN, "b3")
    await bench.office.receipts.retry(ADMIN, "b3")


async def _lapse(bench: Bench, moving: Bench) -> None:
    dispatch = bench.office.dispatch
    moving.move(1000)
    assert await dispatch.lease(SESSION, REACHES) is not None
    moving.move(40_000)
    await dispatch.lease(SESSION, REACHES)
    for to, more in (
        ("ses_2", NewMessage("acked", to="ses_2", ack_mode=AckMode.ACKNOWLEDGED)),
        ("ses_3", NewMessage("turn", to="ses_3")),
    ):
        await bench.office.post.send(ADMIN, more)
        parcel = await dispatch.lease(f"opencode:{to}", REACHES)
        assert parcel is not None
        await dispatch.settle(parcel, Written.WRITTEN, None, turn=to == "ses_3")
    await bench.office.post.send(ADMIN, NewMessage("short", to="ses_4", ttl_ms=1000))
    await bench.office.post.send(ADMIN, NewMessage("held", to="ses_5"))
    assert await dispatch.lease("opencode:ses_5", REACHES) is not None
    moving.move(3 * 3600_000)
    swept = await dispatch.sweep(10)
    assert min(swept.lapsed, swept.overdue, swept.expired, swept.turns) >= 1
    await dispatch.lapse_all()


async def _ring(bench: Bench) -> None:
    bell, registry = bench.office.doorbell, bench.office.registry
    places = [
        NewEndpoint(CarrierKind.INBOX, {}, f"inbox:{name}", name=name, queues=("rung",)) for name in ("eve", "fay")
    ]
    eve, fay = [await registry.attach(ADMIN, place) for place in places]
    todo = await bench.create("rung", by=BOB, assignee="eve")
    await bench.create("rung", by=BOB, assignee="gus/w")
    await bench.create("rung")
    assert await bell.once() == 2
    await bench.office.todos.update(ADMIN, todo.id, TodoChange(assignee="gus", assignee_given=True))
    assert await bench.office.assigning.once() >= 1
    await bench.office.todos.update(ADMIN, todo.id, TodoChange(assignee="eve", assignee_given=True))
    await bench.office.todos.cancel(ADMIN, todo.id)
    await bench.office.todos.retry(ADMIN, todo.id)
    await registry.detach(ADMIN, fay.id)
    assert (await bench.office.traffic.now()).carriers
    assert "rung" in [step.what for step in (await bench.office.trace.trace(ADMIN, todo.id)).steps]
    held = await bench.office.claims.claim(Principal("eve"), todo.id, None, None, None)
    await bell.once()
    await bench.claim(ANN, "rung")
    await bench.create("rung")
    await bench.complete(Principal("eve"), held)
    assert await bell.once() == 1
    await bench.claim(ANN, "rung")
    await bell.once()
    assert await bench.office.handover.once() == 1
    assert eve.id != fay.id
    await registry.subscribe(ADMIN, "dead-letters", "ops")
    await bench.fail(ANN, await bench.claimed(ANN, "rung"), retry=False)
    assert await bench.office.handover.once() == 1
    webhook = NewEndpoint(CarrierKind.WEBHOOK, {"url": "https://example.com"}, "webhook:hook", name="hook")
    for wanted in ([webhook], []):
        await appointments(bench, wanted).settle()
