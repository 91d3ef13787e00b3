"""Protocol 0.1 as a coordination engine and its recipients use it: what each operation does, and what each state shows."""

from __future__ import annotations

import asyncio
import os
from itertools import chain
from typing import Any

import pytest

from postroom import __version__
from postroom.doors.socket.operations import OPERATOR
from postroom.errors import Unavailable
from postroom.message import NewMessage, Written
from postroom.services.gita import GitaRegistry
from postroom.store.sqlite import SqliteEngine
from tests.doors.socket_rig import SocketRig, wake

MESSAGE_FIELDS = {
    "message_id",
    "client_id",
    "idempotency_key",
    "correlation_id",
    "sender_repo",
    "target_repo",
    "endpoint_id",
    "provenance",
    "metadata",
    "body",
    "state",
    "attempt_count",
    "max_attempts",
    "next_attempt_at",
    "lease_expires_at",
    "ack_deadline",
    "last_failure_reason",
    "deferred_reason",
    "created_at",
    "updated_at",
    "delivered_at",
    "acknowledged_at",
}
SILENT = 46_000


async def message(door: SocketRig, id_: str) -> dict[str, Any]:
    """A message as it stands now."""
    shown: dict[str, Any] = (await door.done("message", message_id=id_))["message"]
    return shown


# T5 # T7
async def test_ping_tells_protocol_and_capabilities(door: SocketRig) -> None:
    assert await door.done("ping", protocol="0.1") == {
        "ok": True,
        "protocol": "0.1",
        "capabilities": ["bounded_delivery_ack_v1", "idempotent_send_v1"],
        "service": "postroom",
        "version": __version__,
    }
    door.away = "the database is away"
    await door.well()
    assert (await door.refused("unavailable", "history"))["message"] == "the database is away"


# T9 # T38
async def test_endpoints_are_instances_with_repositories_and_liveness(door: SocketRig) -> None:
    first = await door.pane(1, "alpha", "beta", name="ann", delivery_max_attempts=2)
    door.bench.move(SILENT)
    second = await door.pane(2, "alpha", ack_mode="acknowledged")
    found = (await door.done("endpoints"))["endpoints"]
    assert [(one["endpoint_id"], one["live"], one["repositories"]) for one in found] == [
        (first, False, ["alpha", "beta"]),
        (second, True, ["alpha"]),
    ]
    assert found[0]["name"] == "ann"
    assert (found[0]["delivery_ack_mode"], found[0]["delivery_max_attempts"]) == ("injected", 2)
    assert (found[1]["delivery_ack_mode"], found[1]["delivery_max_attempts"]) == ("acknowledged", 5)

    async def ids(**asked: Any) -> list[str]:
        return [one["endpoint_id"] for one in (await door.done("endpoints", **asked))["endpoints"]]

    assert await ids(target_repo="beta") == [first]
    assert await ids(target_repo="alpha", live=True) == [second]
    assert await ids(live=False) == [first]
    assert await ids(target_repo="alph") == []
    await door.done("heartbeat", endpoint_id=first)
    assert await ids(live=True) == [first, second]
    # Unregistered it is gone for ever, and a place taken anew is another instance.
    await door.done("unregister", endpoint_id=first)
    await door.done("unregister", endpoint_id=first)
    assert (await door.refused("conflict", "heartbeat", endpoint_id=first))["state"] == "ended"
    again = await door.pane(2, "alpha")
    assert await ids() == [again]
    assert again != second


# T13 # T21 # T39 # T40
async def test_a_wake_is_admitted_for_the_one_live_endpoint(door: SocketRig) -> None:
    endpoint = await door.pane(1, "alpha")
    sent = await door.send(endpoint_id=endpoint)
    assert sent == {
        "ok": True,
        "message_id": sent["message_id"],
        "endpoint_id": endpoint,
        "state": "pending",
        "deduplicated": False,
    }
    shown = await message(door, sent["message_id"])
    assert set(shown) >= MESSAGE_FIELDS
    for field, value in wake(endpoint_id=endpoint).items():
        if field != "protocol":
            assert shown[field] == value, field
    assert (shown["attempt_count"], shown["max_attempts"], shown["state"]) == (0, 5, "pending")
    # Without a named endpoint the only one is meant.
    other = await door.send(idempotency_key="lease-2")
    assert other["endpoint_id"] == endpoint


# T10 # T11 # T12 # T44
async def test_who_is_meant_is_never_guessed(door: SocketRig) -> None:
    assert (await door.refused("unavailable", "send", **wake()))["field"] == "target_repo"
    first, second = await door.pane(1, "alpha"), await door.pane(2, "alpha", "beta")
    error = await door.refused("ambiguous_endpoint", "send", **wake())
    assert error["endpoints"] == [first, second]
    assert (await door.send(idempotency_key="named", endpoint_id=second))["endpoint_id"] == second
    await door.refused("unavailable", "send", **wake(endpoint_id="ep_gone"))
    await door.refused("unavailable", "send", **wake(target_repo="beta", endpoint_id=first))
    door.bench.move(SILENT)
    await door.refused("unavailable", "send", **wake())
    await door.refused("unavailable", "send", **wake(endpoint_id=first))
    assert await door.count() == 1


# T14
async def test_repositories_are_those_of_the_registry_as_it_is_now(door: SocketRig) -> None:
    await door.pane(1, "alpha", "other/gamma")
    await door.send(idempotency_key="a", target_repo="other/gamma", sender_repo="beta")
    for local in (None, "local"):
        await door.send(idempotency_key=f"b{local}", sender_repo=local)
    refused = await door.refused("invalid", "send", **wake(sender_repo="delta"))
    assert (refused["field"], refused["reason"]) == ("sender_repo", "not_registered")
    door.register_repositories("alpha", "delta")
    os.utime(door.registry_file, ns=(1, 1))
    await door.send(idempotency_key="c", sender_repo="delta")
    refused = await door.refused("invalid", "send", **wake(sender_repo="beta"))
    assert (refused["field"], refused["reason"]) == ("sender_repo", "not_registered")
    refused = await door.refused("invalid", "send", **wake(target_repo="other/gamma", sender_repo="delta"))
    assert (refused["field"], refused["reason"]) == ("target_repo", "not_registered")
    door.registry_file.write_bytes(b"\xff\n")
    assert (await door.refused("unavailable", "send", **wake()))["reason"] == "registry_unreadable"
    door.registry_file.unlink()
    refused = await door.refused("unavailable", "send", **wake())
    assert refused["reason"] == "registry_missing"
    assert "[gita] required = false" in refused["message"]
    assert await door.count() == 4


# T14
async def test_a_registry_that_is_not_required_leaves_it_to_the_endpoints(engine: SqliteEngine) -> None:
    door = SocketRig(engine)
    object.__setattr__(door.door, "gita", GitaRegistry(door.folder / "none.csv", required=False))
    await door.open()
    try:
        await door.pane(1, "my own/repo")
        sent = await door.send(target_repo="my own/repo", sender_repo="your repo")
        assert (await message(door, sent["message_id"]))["sender_repo"] == "your repo"
        await door.refused("unavailable", "send", **wake(target_repo="mine", sender_repo=None, idempotency_key="x"))
    finally:
        await door.close()


# T18 # T19 # T20
async def test_a_repeat_is_the_first_message_and_anything_else_a_conflict(door: SocketRig) -> None:
    object.__setattr__(door.door, "gita", GitaRegistry(door.folder / "none.csv", required=False))
    first, second = await door.pane(1, "alpha", "beta"), await door.pane(2, "gamma")
    sent = await door.send(sender_repo="a b")
    for same in ({}, {"endpoint_id": first}, {"correlation_id": "other"}, {"provenance": "x"}, {"metadata": {"b": 1}}):
        again = await door.send(sender_repo="a b", **same)
        assert again == {**sent, "deduplicated": True}, same
    for other in (
        {"sender_repo": "a  b"},
        {"sender_repo": "a-b"},
        {"sender_repo": None},
        {"target_repo": "beta"},
        {"endpoint_id": second, "target_repo": "gamma"},
        {"body": "Please look at the failing build"},
    ):
        error = await door.refused("conflict", "send", **wake(**{"sender_repo": "a b", **other}))
        assert error["message_id"] == sent["message_id"], other
    # Another client's key is its own.
    assert not (await door.send(client_id="someone-else", sender_repo="a b"))["deduplicated"]
    assert await door.count() == 2


# T19
async def test_a_repeat_of_a_failed_one_tells_that_it_failed(door: SocketRig) -> None:
    await door.pane(1, "alpha")
    sent = await door.send()
    await door.carry(1, Written.PERMANENT, "the pane was closed")
    again = await door.send()
    assert (again["message_id"], again["state"], again["deduplicated"]) == (sent["message_id"], "failed", True)


# T18
async def test_the_same_wake_many_times_at_once_is_one_message(door: SocketRig) -> None:
    await door.pane(1, "alpha")
    answers = await asyncio.gather(*(door.send() for _ in range(40)))
    assert len({answer["message_id"] for answer in answers}) == 1
    assert sum(not answer["deduplicated"] for answer in answers) == 1
    assert await door.count() == 1


# T22 # T24 # T27 # T28 # T30 # T31 # T32
async def test_attempts_and_delays_are_shown(door: SocketRig) -> None:
    await door.pane(1, "alpha", delivery_max_attempts=6)
    id_ = (await door.send())["message_id"]
    for attempt, wait in enumerate((5, 15, 60, 300, 300), 1):
        await door.carry(1, Written.REFUSED, "the program takes no paste")
        shown = await message(door, id_)
        assert (shown["state"], shown["attempt_count"], shown["max_attempts"]) == ("pending", attempt, 6)
        assert shown["last_failure_reason"] == "the program takes no paste"
        assert shown["lease_expires_at"] is None
        assert shown["next_attempt_at"] > shown["updated_at"]
        door.bench.move(wait * 1000 - 200)
        assert await door.office.dispatch.lease("tmux:s:1:2:%1", ["any"]) is None
        door.bench.move(200)
    await door.carry(1)
    shown = await message(door, id_)
    assert (shown["state"], shown["attempt_count"], shown["next_attempt_at"]) == ("injected", 6, None)
    assert shown["delivered_at"] is not None
    assert shown["acknowledged_at"] is None


# T29 # T48
async def test_a_courier_that_died_is_a_failed_attempt(door: SocketRig) -> None:
    await door.pane(1, "alpha")
    id_ = (await door.send())["message_id"]
    assert await door.office.dispatch.lease("tmux:s:1:2:%1", ["any"]) is not None
    shown = await message(door, id_)
    assert (shown["state"], shown["attempt_count"]) == ("pending", 1)
    assert shown["lease_expires_at"] is not None
    door.bench.move(31_000)
    assert await door.office.dispatch.lease("tmux:s:1:2:%1", ["any"]) is None
    shown = await message(door, id_)
    assert (shown["attempt_count"], shown["lease_expires_at"]) == (1, None)
    assert "lease ended" in shown["last_failure_reason"]
    assert shown["next_attempt_at"] is not None
    door.bench.move(60_000)
    await door.carry(1)
    assert (await message(door, id_))["state"] == "injected"


# T23 # T33 # T34 # T35 # T36 # T42
async def test_an_acknowledgement_counts_however_late(door: SocketRig) -> None:
    await door.pane(1, "alpha", ack_mode="acknowledged", delivery_max_attempts=2)
    id_ = (await door.send())["message_id"]
    for attempt in (1, 2):
        delivery = await door.carry(1)
        assert delivery.message_id == id_
        shown = await message(door, id_)
        assert (shown["state"], shown["attempt_count"]) == ("awaiting_ack", attempt)
        assert shown["ack_deadline"] > shown["updated_at"]
        door.bench.move(30_001)
        await door.office.dispatch.sweep(100)
    shown = await message(door, id_)
    assert (shown["state"], shown["reason"], shown["last_failure_reason"]) == ("failed", "ack_timeout", "ack_timeout")
    acked = (await door.done("ack", message_id=id_))["message"]
    assert (acked["state"], acked["next_attempt_at"], acked["reason"]) == ("acknowledged", None, None)
    assert acked["acknowledged_at"] is not None
    assert (await door.done("ack", message_id=id_))["message"] == acked
    assert (await door.refused("conflict", "retry", message_id=id_))["state"] == "acknowledged"
    door.bench.move(600_000)
    assert await door.office.dispatch.lease("tmux:s:1:2:%1", ["any"]) is None


# T25 # T36
@pytest.mark.parametrize("state", ["pending", "waiting for its next attempt", "awaiting_ack", "injected", "failed"])
async def test_an_acknowledgement_ends_any_state_and_what_was_to_come(door: SocketRig, state: str) -> None:
    await door.pane(1, "alpha", ack_mode="acknowledged" if state == "awaiting_ack" else "injected")
    id_ = (await door.send())["message_id"]
    outcomes = {
        "waiting for its next attempt": Written.REFUSED,
        "awaiting_ack": Written.WRITTEN,
        "injected": Written.WRITTEN,
        "failed": Written.PERMANENT,
    }
    if state in outcomes:
        await door.carry(1, outcomes[state], "why")
    acked = (await door.done("ack", message_id=id_))["message"]
    assert acked["state"] == "acknowledged"
    assert (acked["next_attempt_at"], acked["ack_deadline"]) == (None, None)
    door.bench.move(600_000)
    await door.office.dispatch.sweep(100)
    assert await door.office.dispatch.lease("tmux:s:1:2:%1", ["any"]) is None
    assert (await message(door, id_))["state"] == "acknowledged"


# T26 # T37 # T43
async def test_retry_is_for_what_failed_alone_and_begins_anew(door: SocketRig) -> None:
    await door.pane(1, "alpha", delivery_max_attempts=1)
    id_ = (await door.send())["message_id"]
    assert (await door.refused("conflict", "retry", message_id=id_))["state"] == "pending"
    await door.carry(1, Written.REFUSED, "no")
    shown = await message(door, id_)
    assert (shown["state"], shown["reason"], shown["attempt_count"]) == ("failed", "exhausted", 1)
    again = (await door.done("retry", message_id=id_))["message"]
    assert (again["state"], again["attempt_count"], again["next_attempt_at"]) == ("pending", 0, None)
    assert again["message_id"] == id_
    await door.carry(1)
    assert (await door.refused("conflict", "retry", message_id=id_))["state"] == "injected"


# T45 # T46 # T47
@pytest.mark.parametrize("gone", ["ended", "silent"])
async def test_a_wake_moves_from_a_dead_endpoint_alone(door: SocketRig, gone: str) -> None:
    old = await door.pane(1, "alpha")
    sent = await door.send(endpoint_id=old)
    new = await door.pane(2, "alpha")
    # Two that live: it stays where it is, whoever is named.
    refused = await door.refused("conflict", "send", **wake(endpoint_id=new))
    assert refused["endpoint_id"] == old
    assert (await message(door, sent["message_id"]))["endpoint_id"] == old
    if gone == "ended":
        await door.done("unregister", endpoint_id=old)
    else:
        door.bench.move(SILENT)
        await door.done("heartbeat", endpoint_id=new)
    assert (await message(door, sent["message_id"]))["state"] == "pending"
    moved = await door.send(endpoint_id=new)
    assert moved == {**sent, "endpoint_id": new, "deduplicated": True}
    # The old instance is dead for ever, and the message is carried to the new one.
    assert (await door.refused("conflict", "heartbeat", endpoint_id=old))["state"] == "ended"
    await door.carry(2)
    shown = await message(door, sent["message_id"])
    assert (shown["state"], shown["endpoint_id"]) == ("injected", new)
    assert await door.count() == 1


# T41
async def test_history_is_paged_newest_first(door: SocketRig) -> None:
    await door.pane(1, "alpha")
    other = await door.pane(2, "beta")
    ids = [(await door.send(idempotency_key=f"k{n}"))["message_id"] for n in range(7)]
    await door.send(client_id="someone", target_repo="beta", sender_repo=None)
    await door.done("ack", message_id=ids[2])

    async def pages(**asked: Any) -> list[list[str]]:
        found, cursor = [], None
        while True:
            page = await door.done("history", **asked, **({"cursor": cursor} if cursor else {}))
            found.append([one["message_id"] for one in page["messages"]])
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    newest = list(reversed(ids))
    assert await pages(client_id="coordination-engine", limit=3) == [newest[:3], newest[3:6], newest[6:]]
    assert list(chain(*await pages(target_repo="alpha"))) == newest
    assert list(chain(*await pages(state="acknowledged"))) == [ids[2]]
    assert len(list(chain(*await pages(endpoint_id=other)))) == 1
    assert await pages(client_id="nobody") == [[]]
    page = await door.done("history", limit=1000)
    assert set(page["messages"][0]) >= MESSAGE_FIELDS
    # What comes while pages are read shifts none of them.
    first = await door.done("history", client_id="coordination-engine", limit=3)
    await door.send(idempotency_key="later")
    second = await door.done("history", client_id="coordination-engine", limit=3, cursor=first["next_cursor"])
    assert [one["message_id"] for one in second["messages"]] == newest[3:6]


# T40 # T41 # T42 # T43
async def test_of_a_message_to_several_the_delivery_that_is_meant_is_shown(door: SocketRig) -> None:
    panes = [await door.pane(n, channels=["team"], name=f"w{n}", delivery_max_attempts=1) for n in (1, 2, 3)]
    sent = await door.office.post.send(OPERATOR, NewMessage(payload="hello", channel="team"))

    async def told(op: str, **fields: Any) -> tuple[Any, ...]:
        shown = (await door.done(op, message_id=sent.id, **fields))["message"]
        return shown["endpoint_id"], shown["state"], shown["attempt_count"]

    await door.carry(2)
    for number, (pane, expected) in enumerate(zip(panes, ("pending", "injected", "pending"), strict=True)):
        assert await told("message", endpoint_id=pane) == (pane, expected, int(number == 1))
    assert await told("ack", endpoint_id=panes[1]) == (panes[1], "acknowledged", 1)
    assert await told("ack", endpoint_id="w2") == (panes[1], "acknowledged", 1)
    await door.carry(3, Written.PERMANENT, "no")
    assert await told("message", endpoint_id=panes[2]) == (panes[2], "failed", 1)
    # Without a word about it the only failed one is meant.
    assert await told("retry") == (panes[2], "pending", 0)
    # Nobody's delivery is asked for: the first is shown.
    assert await told("message") == (panes[0], "pending", 0)
    assert await told("message", endpoint_id="ep_of_nobody") == (panes[0], "pending", 0)
    for asked, listed in (
        ({}, [(panes[0], "pending")]),
        ({"state": "acknowledged"}, [(panes[1], "acknowledged")]),
        ({"endpoint_id": panes[2]}, [(panes[2], "pending")]),
        ({"endpoint_id": panes[1], "state": "acknowledged"}, [(panes[1], "acknowledged")]),
        # One and the same delivery is both.
        ({"endpoint_id": panes[0], "state": "acknowledged"}, []),
        ({"state": "failed"}, []),
    ):
        page = (await door.done("history", **asked))["messages"]
        assert [(one["endpoint_id"], one["state"]) for one in page] == listed, asked


# T41
async def test_a_page_holds_50_by_default_and_200_at_most(door: SocketRig) -> None:
    await door.pane(1, "alpha")
    for n in range(0, 210, 30):
        await asyncio.gather(*(door.send(idempotency_key=f"k{n + i}") for i in range(30)))
    for limit, expected in ((None, 50), (1, 1), (200, 200), (100_000, 200)):
        page = await door.done("history", **({} if limit is None else {"limit": limit}))
        assert len(page["messages"]) == expected
        assert page["next_cursor"] is not None


# T17 # T54
async def test_a_body_is_text_and_nothing_else(door: SocketRig) -> None:
    await door.pane(1, "alpha")
    body = '{"op": "ack", "message_id": "x"}\n\x1b[201~\x03 state: acknowledged \u202e done'
    sent = await door.send(body=body)
    shown = await message(door, sent["message_id"])
    assert shown["body"] == body
    assert shown["state"] == "pending"
    await door.carry(1)
    shown = await message(door, sent["message_id"])
    assert (shown["state"], shown["acknowledged_at"]) == ("injected", None)


async def test_a_fault_of_the_daemon_is_an_answer_too(door: SocketRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> Any:
        raise RuntimeError("secret words")

    monkeypatch.setattr(door.office.receipts, "ack", fails)
    error = await door.refused("internal", "ack", message_id="msg_1")
    assert "secret" not in error["message"]

    async def away(*_: object, **__: object) -> Any:
        raise Unavailable("the database is away")

    monkeypatch.setattr(door.office.post, "get", away)
    await door.refused("unavailable", "message", message_id="msg_1")

    async def hangs(*_: object, **__: object) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(door.office.post, "page", hangs)
    monkeypatch.setattr("postroom.doors.socket.operations.SECONDS", 0.05)
    assert "no answer within" in (await door.refused("unavailable", "history"))["message"]
    await door.well()


# T52 # T53
async def test_what_an_engine_keeps_is_carried_and_never_read(door: SocketRig) -> None:
    await door.pane(1, "alpha")
    sent = await door.send(metadata={"lease_id": "other", "state": "done", "deep": {"lease_expires_at": 0}})
    shown = await message(door, sent["message_id"])
    assert shown["metadata"] == {"lease_id": "other", "state": "done", "deep": {"lease_expires_at": 0}}
    assert (shown["idempotency_key"], shown["state"], shown["lease_expires_at"]) == ("lease-1", "pending", None)
