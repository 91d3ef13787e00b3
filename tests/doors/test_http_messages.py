"""Messages and inboxes over HTTP: sent, delivered, read, acknowledged and steered, with the answers a client goes by."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.endpoint import ANY_REACH
from postroom.message import Written
from tests.doors.http_rig import Rig, Wire, ask, get, hand_off, post, refusal, until

S, T = "ses_sender", "ses_target"
NONE = "msg_0_00000000"


async def send(rig: Rig, by: str = "ann", **fields: Any) -> dict[str, Any]:
    """A message that `by` sent, as the door shows it; to bob's inbox unless the fields say otherwise."""
    body = {"payload": "hello", **({} if "channel" in fields else {"to": "bob"}), **fields}
    return dict((await post(rig, by, "/v1/messages", body, 202))["message"])


async def state(rig: Rig, id_: str) -> str:
    """How the one delivery of a message stands."""
    (delivery,) = (await get(rig, "root", f"/v1/messages/{id_}"))["message"]["deliveries"]
    return str(delivery["state"])


async def failed(rig: Rig) -> str:
    """A message whose target refused it for good."""
    message = await send(rig, to=T, **{"from": S})
    parcel = await rig.office.dispatch.lease(f"opencode:{T}", [ANY_REACH])
    assert parcel is not None
    await rig.office.dispatch.settle(parcel, Written.PERMANENT, "no such session")
    return str(message["id"])


# P2, P4
async def test_every_field_of_a_message_is_kept(rig: Rig) -> None:
    first = await send(rig)
    answer = await post(
        rig,
        "ann",
        "/v1/messages",
        {
            "from": S,
            "to": T,
            "payload": "ü </swarm_message> \x1b[31m",
            "kind": "task.assign",
            "priority": "low",
            "reply_to": first["id"],
            "msg_id": "mine:1",
            "client_id": "a client",
            "idempotency_key": "k1",
            "ack_mode": "acknowledged",
            "ttl_s": 60,
            "metadata": {"lease": ["x", 1, None]},
        },
        202,
    )
    assert (answer["id"], answer["deduplicated"]) == ("mine:1", False)
    kept = (await get(rig, "ann", "/v1/messages/mine:1"))["message"]
    assert kept == answer["message"]
    assert (kept["from"], kept["to"], kept["channel"]) == (S, T, None)
    assert (kept["kind"], kept["priority"], kept["reply_to"]) == ("task.assign", "low", first["id"])
    assert kept["payload"] == "ü </swarm_message> \x1b[31m"
    assert kept["metadata"] == {"lease": ["x", 1, None]}
    assert (kept["client_id"], kept["idempotency_key"], kept["created_by"]) == ("a client", "k1", "ann")
    assert kept["expires_at"] > kept["created_at"]
    (delivery,) = kept["deliveries"]
    assert (delivery["state"], delivery["ack_mode"], delivery["attempts"]) == ("pending", "acknowledged", 0)
    assert (delivery["carrier"], delivery["target"], delivery["mailbox"]) == ("opencode", f"opencode:{T}", T)
    assert "lease_id" not in delivery


async def test_who_speaks_is_the_token_unless_it_says_otherwise(rig: Rig) -> None:
    assert (await send(rig, "bob"))["from"] == "bob"
    assert (await send(rig, **{"from": S}))["from"] == S
    assert (await send(rig, "root", **{"from": "anybody"}))["from"] == "anybody"
    for by, sender in (("bob", "ann"), ("bob", S), ("ann", "bob")):
        answer = await ask(rig, by, "POST", "/v1/messages", {"from": sender, "to": "x", "payload": "hi"})
        assert sender in refusal(answer, 403, "forbidden")["message"]


# P2, P21
async def test_the_same_message_again_is_the_first_one(rig: Rig) -> None:
    keys: list[dict[str, str]] = [{"msg_id": "m1"}, {"client_id": "c", "idempotency_key": "k"}]
    for key in keys:
        body = {"to": "bob", "payload": "hello", **key}
        first = await post(rig, "ann", "/v1/messages", body, 202)
        again = await post(rig, "ann", "/v1/messages", body, 202)
        assert (first["deduplicated"], again["deduplicated"]) == (False, True)
        assert again["message"]["id"] == first["id"]
        answer = await ask(rig, "ann", "POST", "/v1/messages", {**body, "payload": "other"})
        assert refusal(answer, 409, "conflict")
    assert len((await get(rig, "root", "/v1/messages"))["messages"]) == 2


async def test_a_request_key_sends_once(rig: Rig) -> None:
    body = {"to": "bob", "payload": "hello"}
    first = await post(rig, "ann", "/v1/messages", body, 202, **{"idempotency-key": "r1"})
    again = await post(rig, "ann", "/v1/messages", body, 202, **{"idempotency-key": "r1"})
    assert again["id"] == first["id"]
    answer = await ask(rig, "ann", "POST", "/v1/messages", {**body, "payload": "x"}, **{"idempotency-key": "r1"})
    refusal(answer, 409, "conflict")


# P21
async def test_an_inbox_is_read_in_hand_off_order_and_marked(rig: Rig) -> None:
    ids = [(await send(rig, payload=str(n)))["id"] for n in range(5)]
    first = await get(rig, "bob", "/v1/inbox?limit=2")
    assert first["mailbox"] == "bob"
    assert [one["id"] for one in first["messages"]] == ids[:2]
    assert first["unread"] == 5
    assert [one["read"] for one in first["messages"]] == [False, False]
    assert first["messages"][0]["delivery"]["state"] == "injected"
    assert first["messages"][0]["handed_off_at"]
    rest = await get(rig, "bob", f"/v1/inbox?for=bob&since={first['next_since']}")
    assert [one["id"] for one in rest["messages"]] == ids[2:]
    assert await get(rig, "bob", f"/v1/inbox?since={ids[1]}") == rest
    end = await get(rig, "bob", f"/v1/inbox?since={rest['next_since']}")
    assert end["messages"] == []
    assert end["next_since"] == rest["next_since"]
    left = await post(rig, "bob", "/v1/inbox/read", {"since": first["next_since"]})
    assert left["unread"] == 3
    back = await post(rig, "bob", "/v1/inbox/read", {"for": "bob", "since": ids[0]})
    assert back["unread"] == 3
    again = await get(rig, "bob", "/v1/inbox")
    assert [one["read"] for one in again["messages"]] == [True, True, False, False, False]
    assert (await post(rig, "bob", "/v1/inbox/read", {"since": rest["next_since"]}))["unread"] == 0


async def test_an_inbox_is_for_who_may_speak_as_it(rig: Rig) -> None:
    assert (await get(rig, "ann", f"/v1/inbox?for={S}"))["mailbox"] == S
    assert (await get(rig, "root", "/v1/inbox?for=bob"))["mailbox"] == "bob"
    refusal(await ask(rig, "bob", "GET", "/v1/inbox?for=ann"), 403, "forbidden")
    refusal(await ask(rig, "bob", "POST", "/v1/inbox/read", {"for": "ann", "since": "x"}), 403, "forbidden")


async def test_an_inbox_may_be_waited_for(rig: Rig) -> None:
    waiting = asyncio.create_task(get(rig, "bob", "/v1/inbox?wait_s=50"))
    await asyncio.sleep(0)
    message = await send(rig)
    assert [one["id"] for one in (await waiting)["messages"]] == [message["id"]]
    assert (await get(rig, "bob", f"/v1/inbox?since={message['id']}&wait_s=0.01"))["messages"] == []


async def test_a_message_may_be_waited_for(rig: Rig) -> None:
    message = await send(rig, to=T, **{"from": S})
    path = f"/v1/messages/{message['id']}"
    soon = (await get(rig, "ann", f"{path}?until=handed_off&wait_s=0.01"))["message"]
    assert soon["deliveries"][0]["state"] == "pending"
    waiting = asyncio.create_task(get(rig, "ann", f"{path}?until=handed_off&wait_s=50"))
    await asyncio.sleep(0)
    await hand_off(rig, f"opencode:{T}")
    assert (await waiting)["message"]["deliveries"][0]["state"] == "injected"
    waiting = asyncio.create_task(get(rig, "ann", f"{path}?until=acknowledged&wait_s=50"))
    await asyncio.sleep(0)
    await post(rig, "ann", f"{path}/ack", {})
    assert (await waiting)["message"]["deliveries"][0]["state"] == "acknowledged"


async def test_who_waits_for_what_cannot_come_is_told_at_once(rig: Rig) -> None:
    id_ = await failed(rig)
    message = (await get(rig, "ann", f"/v1/messages/{id_}?until=acknowledged&wait_s=50"))["message"]
    assert message["deliveries"][0]["reason"] == "no_such_target"


@pytest.mark.parametrize("path", ["/v1/inbox", "/v1/messages/m1"])
async def test_a_wait_ends_when_the_client_leaves(rig: Rig, path: str) -> None:
    await send(rig, "root", to=T, msg_id="m1")
    wire = Wire(
        rig.app,
        "GET",
        path,
        {"host": "127.0.0.1:7373", "authorization": f"Bearer {rig.secrets['root']}"},
        query_string=b"wait_s=50" if path == "/v1/inbox" else b"wait_s=50&until=handed_off",
    )
    answering = asyncio.create_task(wire.run())
    await until(lambda: wire.asked > 0)
    wire.leave()
    await asyncio.wait_for(answering, 10)
    assert wire.sent == []


# P23
async def test_messages_are_listed_newest_first_and_by_what_they_are(rig: Rig) -> None:
    first = await send(rig, kind="status.update")
    second = await send(rig, to=T, **{"from": S}, reply_to=first["id"], client_id="c", idempotency_key="k")
    third = await send(rig, channel="ops")

    async def listed(query: str, by: str = "root") -> list[str]:
        return [one["id"] for one in (await get(rig, by, f"/v1/messages?{query}"))["messages"]]

    ids = [third["id"], second["id"], first["id"]]
    assert await listed("") == ids
    assert await listed("from=ann") == [third["id"], first["id"]]
    assert await listed(f"from={S}") == [second["id"]]
    assert await listed("to=bob") == [first["id"]]
    assert await listed("channel=ops") == [third["id"]]
    assert await listed("state=injected") == [first["id"]]
    assert await listed("state=pending") == [second["id"]]
    assert await listed("kind=status.update") == [first["id"]]
    assert await listed("client_id=c") == [second["id"]]
    assert await listed(f"reply_to={first['id']}") == [second["id"]]
    assert await listed("target_repo=none") == []
    page = await get(rig, "root", "/v1/messages?limit=2")
    assert [one["id"] for one in page["messages"]] == ids[:2]
    rest = await get(rig, "root", f"/v1/messages?limit=2&cursor={page['next_cursor']}")
    assert [one["id"] for one in rest["messages"]] == ids[2:]
    assert rest["next_cursor"] is None
    assert await listed("", "bob") == [first["id"]]
    assert await listed("", "eve") == []


async def test_a_message_is_nothing_to_those_it_is_not_for(rig: Rig) -> None:
    message = await send(rig)
    for by in ("ann", "bob", "root"):
        assert (await get(rig, by, f"/v1/messages/{message['id']}"))["message"]["id"] == message["id"]
    for method, path in (("GET", ""), ("POST", "/ack"), ("POST", "/retry"), ("POST", "/cancel")):
        body: dict[str, Any] | None = {} if method == "POST" else None
        refusal(await ask(rig, "eve", method, f"/v1/messages/{message['id']}{path}", body), 404, "not_found")
        refusal(await ask(rig, "ann", method, f"/v1/messages/{NONE}{path}", body), 404, "not_found")


# T25, T36, T42
async def test_a_recipient_acknowledges(rig: Rig) -> None:
    message = await send(rig, ack_mode="acknowledged")
    assert await state(rig, message["id"]) == "awaiting_ack"
    refusal(await ask(rig, "ann", "POST", f"/v1/messages/{message['id']}/ack", {}), 403, "forbidden")
    for _ in range(2):
        acked = (await post(rig, "bob", f"/v1/messages/{message['id']}/ack", {}))["message"]
        assert acked["deliveries"][0]["state"] == "acknowledged"
        assert acked["deliveries"][0]["acknowledged_at"]


async def test_of_several_deliveries_the_meant_one_is_named(rig: Rig) -> None:
    for name in ("bob", "eve"):
        body = {"carrier": "inbox", "address": {}, "name": name, "channels": ["ops"]}
        await post(rig, "root", "/v1/endpoints", body, 201)
    message = await send(rig, channel="ops")
    assert {one["mailbox"] for one in message["deliveries"]} == {"bob", "eve"}
    path = f"/v1/messages/{message['id']}/ack"
    refusal(await ask(rig, "root", "POST", path, {}), 409, "ambiguous_endpoint")
    refusal(await ask(rig, "root", "POST", path, {"endpoint": "nobody"}), 404, "not_found")
    acked = (await post(rig, "eve", path, {}))["message"]["deliveries"]
    assert {one["mailbox"]: one["state"] for one in acked} == {"bob": "injected", "eve": "acknowledged"}
    acked = (await post(rig, "root", path, {"endpoint": "bob"}))["message"]["deliveries"]
    assert {one["state"] for one in acked} == {"acknowledged"}


# T37
async def test_a_failed_message_is_retried_by_its_sender(rig: Rig) -> None:
    id_ = await failed(rig)
    path = f"/v1/messages/{id_}/retry"
    again = (await post(rig, "ann", path, {}, 200, **{"idempotency-key": "r1"}))["message"]["deliveries"][0]
    assert (again["state"], again["attempts"], again["reason"]) == ("pending", 0, None)
    assert (await post(rig, "ann", path, {}, 200, **{"idempotency-key": "r1"}))["message"]["id"] == id_
    refusal(await ask(rig, "ann", "POST", path, {}), 409, "conflict")


async def test_a_waiting_message_is_cancelled_by_its_sender(rig: Rig) -> None:
    message = await send(rig, to=T, **{"from": S})
    path = f"/v1/messages/{message['id']}/cancel"
    gone = (await post(rig, "ann", path, {"reason": "no longer"}, 200, **{"idempotency-key": "r1"}))["message"]
    assert gone["deliveries"][0]["reason"] == "cancelled"
    assert (await post(rig, "ann", path, {"reason": "no longer"}, 200, **{"idempotency-key": "r1"}))["message"]
    refusal(await ask(rig, "ann", "POST", path, {}), 409, "conflict")
    other = await send(rig, "root", to=T)
    refusal(await ask(rig, "bob", "POST", f"/v1/messages/{other['id']}/cancel", {}), 404, "not_found")
    delivered = await send(rig)
    refusal(await ask(rig, "bob", "POST", f"/v1/messages/{delivered['id']}/cancel", {}), 403, "forbidden")


async def test_a_message_that_a_courier_holds_is_not_cancelled(rig: Rig) -> None:
    message = await send(rig, to=T, **{"from": S})
    assert await rig.office.dispatch.lease(f"opencode:{T}", [ANY_REACH])
    answer = await ask(rig, "ann", "POST", f"/v1/messages/{message['id']}/cancel", {})
    assert refusal(answer, 409, "conflict")["state"] == "being_written"


# P3, P4
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"payload": "x"}, "to"),
        ({"payload": "x", "to": "bob", "channel": "ops"}, "to"),
        ({"to": "bob"}, "payload"),
        ({"to": "bob", "payload": ""}, "payload"),
        ({"to": "bob", "payload": 5}, "payload"),
        ({"to": "bob", "payload": {"a": 1}}, "payload"),
        ({"to": "bob", "payload": "a\x00b"}, "payload"),
        ({"to": "b b", "payload": "x"}, "to"),
        ({"to": "", "payload": "x"}, "to"),
        ({"to": "b" * 129, "payload": "x"}, "to"),
        ({"channel": "Ops", "payload": "x"}, "channel"),
        ({"to": "bob", "payload": "x", "from": "a b"}, "from"),
        ({"to": "bob", "payload": "x", "from": 1}, "from"),
        ({"to": "bob", "payload": "x", "sender": "ann"}, "sender"),
        ({"to": "bob", "payload": "x", "kind": "Chat"}, "kind"),
        ({"to": "bob", "payload": "x", "kind": ""}, "kind"),
        ({"to": "bob", "payload": "x", "priority": "high"}, "priority"),
        ({"to": "bob", "payload": "x", "ack_mode": "maybe"}, "ack_mode"),
        ({"to": "bob", "payload": "x", "msg_id": "a b"}, "msg_id"),
        ({"to": "bob", "payload": "x", "msg_id": ""}, "msg_id"),
        ({"to": "bob", "payload": "x", "reply_to": "a/b"}, "reply_to"),
        ({"to": "bob", "payload": "x", "ttl_s": 0}, "ttl_s"),
        ({"to": "bob", "payload": "x", "ttl_s": "5"}, "ttl_s"),
        ({"to": "bob", "payload": "x", "ttl_s": 1e9}, "ttl_s"),
        ({"to": "bob", "payload": "x", "client_id": "c"}, "idempotency_key"),
        ({"to": "bob", "payload": "x", "idempotency_key": "k"}, "client_id"),
        ({"to": "bob", "payload": "x", "client_id": "\x1b", "idempotency_key": "k"}, "client_id"),
        ({"to": "bob", "payload": "x", "metadata": [1]}, "metadata"),
        ({"to": "bob", "payload": "x", "metadata": {"a": "\x00"}}, "metadata.a"),
        ({"to": "bob", "payload": "x", "colour": "red"}, "colour"),
    ],
)
async def test_a_bad_message_is_refused_by_its_field(rig: Rig, body: dict[str, Any], field: str) -> None:
    assert refusal(await ask(rig, "ann", "POST", "/v1/messages", body), 400, "invalid")["field"] == field
    assert (await get(rig, "root", "/v1/messages"))["messages"] == []


async def test_too_much_is_refused_by_its_field(rig: Rig) -> None:
    over = {"to": "bob", "payload": "ü" * 32 * 1024 + "x"}
    assert refusal(await ask(rig, "ann", "POST", "/v1/messages", over), 413, "too_large")["field"] == "payload"
    many = {"to": "bob", "payload": "x", "metadata": {"a": "x" * 4096}}
    assert refusal(await ask(rig, "ann", "POST", "/v1/messages", many), 413, "too_large")["field"] == "metadata"
    assert (await send(rig, payload="ü" * 32 * 1024))["payload"] == "ü" * 32 * 1024


async def test_what_is_not_there_is_refused_by_its_field(rig: Rig) -> None:
    answer = await ask(rig, "ann", "POST", "/v1/messages", {"to": "bob", "payload": "x", "reply_to": NONE})
    assert answer.status_code in {400, 404}
    assert answer.json()["error"]["field"] == "reply_to"
    to = {"to": "ep_00000000-0000-7000-8000-000000000000", "payload": "x"}
    assert refusal(await ask(rig, "ann", "POST", "/v1/messages", to), 404, "not_found")["field"] == "to"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/messages?state=asleep", "state"),
        ("/v1/messages?limit=0", "limit"),
        ("/v1/messages?cursor=x", "cursor"),
        ("/v1/messages?sender=ann", "sender"),
        ("/v1/messages?colour=red", "colour"),
        ("/v1/messages/m1?until=done", "until"),
        ("/v1/messages/m1?until=handed_off&wait_s=51", "wait_s"),
        ("/v1/messages/m1?until=handed_off&wait_s=-1", "wait_s"),
        ("/v1/messages/m1?until=handed_off&wait_s=soon", "wait_s"),
        ("/v1/messages/m1?until=handed_off&wait_s=1e999", "wait_s"),
        ("/v1/messages/m1?until=handed_off&wait_s=nan", "wait_s"),
        ("/v1/messages/m1?wait_s=1", "until"),
        ("/v1/inbox?wait_s=51", "wait_s"),
        ("/v1/inbox?limit=0", "limit"),
        ("/v1/inbox?for=a%20b", "for"),
        ("/v1/inbox?mailbox=bob", "mailbox"),
        ("/v1/inbox?for=a&for=b", "for"),
    ],
)
async def test_a_bad_question_is_refused_by_its_field(rig: Rig, path: str, field: str) -> None:
    await send(rig, "root", msg_id="m1")
    assert refusal(await ask(rig, "root", "GET", path), 400, "invalid")["field"] == field
