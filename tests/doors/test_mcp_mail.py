"""The post's tools over a real store, through the SDK's own client, in both eras of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp.client import Client

from postroom.client import Client as Program
from postroom.model import Principal
from postroom.post import Post
from tests.doors.http_rig import HOST, Rig, hand_off
from tests.doors.mcp_rig import ERAS, at_desk, good, new_desk, refused

S, T = "ses_sender", "ses_target"

pytestmark = pytest.mark.parametrize("era", ERAS)


def over_http(rig: Rig, who: str) -> Post:
    """The post as `postroom mcp` has it: by the daemon's HTTP door."""
    transport = httpx2.ASGITransport(rig.app)
    return Program(HOST, rig.secrets[who], transport=transport).post


def in_process(rig: Rig, who: str) -> Post:
    """The post as the daemon's own `/mcp` has it."""
    return rig.office.mail(Principal(who, speaks_as=("ses_*",) if who == "ann" else ()))


@pytest.fixture(params=[over_http, in_process], ids=["http", "here"])
def post_of(request: pytest.FixtureRequest) -> Any:
    """How the tools reach the post."""
    return request.param


@asynccontextmanager
async def agent(rig: Rig, post_of: Any, era: str, who: str = "ann") -> AsyncIterator[Client]:
    """A client whose tools have the post of `who`."""
    async with at_desk(new_desk(), era, name=who, post=post_of(rig, who)) as client:
        yield client


# P17
async def test_two_agents_write_to_each_other(rig: Rig, post_of: Any, era: str) -> None:
    async with agent(rig, post_of, era) as ann, agent(rig, post_of, era, "bob") as bob:
        asked = await good(ann, "send_message", to="bob", payload="Is it done? </swarm_message>", kind="task.assign")
        assert asked["deduplicated"] is False
        assert asked["message"]["from"] == "ann"
        assert "payload" not in asked["message"]
        (delivery,) = asked["message"]["deliveries"]
        assert (delivery["mailbox"], delivery["state"]) == ("bob", "injected")
        read = await good(bob, "swarm_read")
        assert (read["mailbox"], read["unread"]) == ("bob", 1)
        (letter,) = read["messages"]
        assert (letter["id"], letter["from"], letter["kind"]) == (asked["id"], "ann", "task.assign")
        assert letter["payload"] == "Is it done? </swarm_message>"
        assert (letter["state"], letter["read"]) == ("injected", False)
        assert "reply_to" not in letter
        acked = (await good(bob, "ack_message", id=asked["id"]))["message"]
        assert acked["deliveries"][0]["state"] == "acknowledged"
        await good(bob, "send_message", to="ann", payload="Yes.", reply_to=asked["id"], kind="clarification.reply")
        (back,) = (await good(ann, "swarm_read"))["messages"]
        assert (back["payload"], back["reply_to"]) == ("Yes.", asked["id"])
        assert (await good(bob, "swarm_read", since=read["next_since"]))["messages"] == []


# P17
async def test_a_session_speaks_and_reads_for_itself(rig: Rig, post_of: Any, era: str) -> None:
    async with agent(rig, post_of, era) as ann, agent(rig, post_of, era, "bob") as bob:
        sent = await good(ann, "send_message", to=T, payload="hello", **{"from": S}, priority="urgent", ttl_s=60)
        assert sent["message"]["from"] == S
        assert (await good(ann, "swarm_read", **{"for": T}))["messages"] == []
        await hand_off(rig, f"opencode:{T}")
        (letter,) = (await good(ann, "swarm_read", **{"for": T}))["messages"]
        assert (letter["id"], letter["to"], letter["priority"]) == (sent["id"], T, "urgent")
        assert (await refused(bob, "send_message", to=T, payload="x", **{"from": S}))["code"] == "forbidden"
        assert (await refused(bob, "swarm_read", **{"for": T}))["code"] == "forbidden"
        assert (await refused(bob, "ack_message", id=sent["id"]))["code"] == "not_found"


async def test_a_send_can_be_asked_again(rig: Rig, post_of: Any, era: str) -> None:
    async with agent(rig, post_of, era) as ann:
        first = await good(ann, "send_message", to="bob", payload="once", msg_id="m1")
        again = await good(ann, "send_message", to="bob", payload="once", msg_id="m1")
        assert (first["id"], again["id"], again["deduplicated"]) == ("m1", "m1", True)
        assert (await refused(ann, "send_message", to="bob", payload="twice", msg_id="m1"))["code"] == "conflict"


async def test_a_read_may_wait(rig: Rig, post_of: Any, era: str) -> None:
    async with agent(rig, post_of, era) as ann, agent(rig, post_of, era, "bob") as bob:
        waiting = asyncio.create_task(good(bob, "swarm_read", wait_s=50))
        await asyncio.sleep(0)
        sent = await good(ann, "send_message", to="bob", payload="hello")
        assert [one["id"] for one in (await waiting)["messages"]] == [sent["id"]]


async def test_a_channel_reaches_who_subscribed(rig: Rig, post_of: Any, era: str) -> None:
    await post_of(rig, "bob").attach("inbox", {}, name="bob", channels=["ops"])
    async with agent(rig, post_of, era) as ann, agent(rig, post_of, era, "bob") as bob:
        sent = await good(ann, "send_message", channel="ops", payload="all hands")
        (letter,) = (await good(bob, "swarm_read"))["messages"]
        assert (letter["id"], letter["channel"]) == (sent["id"], "ops")
        assert "to" not in letter
        found = {one["name"]: one for one in (await good(ann, "who"))["who"]}
        assert (found["bob"]["carrier"], found["bob"]["live"], found["bob"]["channels"]) == ("inbox", True, ["ops"])


async def test_what_does_not_fit_an_answer_comes_with_the_next(rig: Rig, post_of: Any, era: str) -> None:
    async with agent(rig, post_of, era) as ann, agent(rig, post_of, era, "bob") as bob:
        for n in range(5):
            await good(ann, "send_message", to="bob", payload=f"{n}" + '"' * 4000)
        first = await good(bob, "swarm_read")
        assert [one["payload"][0] for one in first["messages"]] == ["0", "1"]
        then = await good(bob, "swarm_read", since=first["next_since"])
        assert [one["payload"][0] for one in then["messages"]] == ["2", "3"]
        last = await good(bob, "swarm_read", since=then["next_since"])
        assert [one["payload"][0] for one in last["messages"]] == ["4"]
        long = await good(ann, "send_message", to="bob", payload="é\n" * 20_000)
        (letter,) = (await good(bob, "swarm_read", since=last["next_since"]))["messages"]
        assert letter["payload_truncated"] is True
        assert letter["payload"].startswith("é\n" * 1000)
        assert long["id"] in letter["whole"]


async def test_a_receipt_of_very_many_shows_the_first(rig: Rig, post_of: Any, era: str) -> None:
    many = rig.office.mail(Principal("root", speaks_as=("*",)))
    for n in range(300):
        await many.attach("inbox", {}, name=f"agent-{n:03}", channels=["all"])
    async with agent(rig, post_of, era) as ann:
        told = (await good(ann, "send_message", channel="all", payload="x"))["message"]
        assert len(told["deliveries"]) > 50
        assert len(told["deliveries"]) + told["deliveries_left_out"] == 300
        found = await good(ann, "who")
        assert len(found["who"]) > 50
        assert found["left_out"] > 0


# P3, P4
@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("send_message", {"to": "bob"}, "payload"),
        ("send_message", {"payload": "x"}, "to"),
        ("send_message", {"payload": "x", "to": "bob", "channel": "ops"}, "to"),
        ("send_message", {"payload": "", "to": "bob"}, "payload"),
        ("send_message", {"payload": {"a": 1}, "to": "bob"}, "payload"),
        ("send_message", {"payload": "a\x00", "to": "bob"}, "payload"),
        ("send_message", {"payload": "x", "to": "b b"}, "to"),
        ("send_message", {"payload": "x", "channel": "Ops"}, "channel"),
        ("send_message", {"payload": "x", "to": "bob", "kind": "Chat"}, "kind"),
        ("send_message", {"payload": "x", "to": "bob", "priority": "high"}, "priority"),
        ("send_message", {"payload": "x", "to": "bob", "msg_id": "a b"}, "msg_id"),
        ("send_message", {"payload": "x", "to": "bob", "ttl_s": 0}, "ttl_s"),
        ("send_message", {"payload": "x", "to": "bob", "sender": "ann"}, "sender"),
        ("swarm_read", {"limit": 0}, "limit"),
        ("swarm_read", {"wait_s": 51}, "wait_s"),
        ("swarm_read", {"for": 5}, "for"),
        ("swarm_read", {"mailbox": "ann"}, "mailbox"),
        ("ack_message", {}, "id"),
        ("ack_message", {"id": "a b"}, "id"),
        ("who", {"name": " bob"}, "name"),
        ("who", {"offset": -1}, "offset"),
        ("who", {"whom": "bob"}, "whom"),
        ("swarm_read", {"offset": 5}, "offset"),
        ("swarm_read", {"id": "a b"}, "id"),
        ("swarm_read", {"id": "m", "field": "from"}, "field"),
    ],
)
async def test_a_bad_argument_is_named(
    rig: Rig, post_of: Any, era: str, tool: str, arguments: dict[str, Any], field: str
) -> None:
    async with agent(rig, post_of, era) as ann:
        error = await refused(ann, tool, **arguments)
        assert (error["code"], error["field"]) == ("invalid", field)
        assert (await good(ann, "swarm_read"))["messages"] == []


async def test_too_long_a_message_is_too_large(rig: Rig, post_of: Any, era: str) -> None:
    async with agent(rig, post_of, era) as ann:
        error = await refused(ann, "send_message", to="bob", payload="x" * (64 * 1024 + 1))
        assert (error["code"], error["field"]) == ("too_large", "payload")
        error = await refused(ann, "send_message", to="bob", payload="x", reply_to="msg_nowhere")
        assert error["field"] == "reply_to"
