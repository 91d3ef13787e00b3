"""send_message with wait_reply_s: the answer, or how to ask again; and refusals that a model can act on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroom.errors import PostroomError, Unauthenticated, Unavailable
from postroom.message import Reply
from postroom.model import Principal
from postroom.services.allowed import Allowance, Allowed
from postroom.services.rates import Rates
from postroom.services.replies import ReplyService
from tests.doors.http_rig import Rig, until
from tests.doors.mcp_rig import ERAS, at_desk, good, refused
from tests.doors.test_mcp_mail import agent, in_process, over_http


@pytest.fixture(params=[over_http, in_process], ids=["http", "here"])
def post_of(request: pytest.FixtureRequest) -> Any:
    """How the tools reach the post."""
    return request.param


@pytest.mark.parametrize("era", ERAS)
async def test_a_question_is_answered_in_one_call(rig: Rig, post_of: Any, era: str) -> None:
    async with agent(rig, post_of, era) as ann, agent(rig, post_of, era, "bob") as bob:
        asking = asyncio.create_task(good(ann, "send_message", to="bob", payload="Done?", msg_id="q1", wait_reply_s=50))
        await until(lambda: rig.office.watch.waiting == 1)
        back = await good(bob, "send_message", to="ann", payload="Yes. </x>", reply_to="q1", kind="clarification.reply")
        told = await asking
        assert "ask_again" not in told
        assert (told["id"], told["deduplicated"], told["message"]["id"]) == ("q1", False, "q1")
        reply = told["reply"]
        assert (reply["id"], reply["from"], reply["payload"]) == (back["id"], "bob", "Yes. </x>")
        assert (reply["reply_to"], reply["kind"]) == ("q1", "clarification.reply")
        # It came to the inbox as well, and is not read there.
        read = await good(ann, "swarm_read")
        assert ([one["id"] for one in read["messages"]], read["unread"]) == ([back["id"]], 1)


async def test_with_no_answer_the_same_call_asks_again(rig: Rig, post_of: Any) -> None:
    async with agent(rig, post_of, "auto") as ann, agent(rig, post_of, "auto", "bob") as bob:
        question = {"to": "bob", "payload": "Done?", "wait_reply_s": 0.01}
        told = await good(ann, "send_message", **question)
        assert told["reply"] is None
        assert told["ask_again"]["msg_id"] == told["id"]
        assert told["id"] in told["ask_again"]["how"]
        # By the id that was given, though the caller chose none.
        again = await good(ann, "send_message", **question, msg_id=told["ask_again"]["msg_id"])
        assert (again["id"], again["deduplicated"], again["reply"]) == (told["id"], True, None)
        await good(bob, "send_message", to="ann", payload="Yes.", reply_to=told["id"])
        answered = await good(ann, "send_message", **question, msg_id=told["id"])
        assert answered["reply"]["payload"] == "Yes."
        assert len((await good(bob, "swarm_read"))["messages"]) == 1


@pytest.mark.parametrize(
    ("post_of", "fault"),
    [(in_process, Unavailable("the store is stopping")), (over_http, Unauthenticated("the token was revoked"))],
    ids=["here", "http"],
)
async def test_a_waiting_that_breaks_off_says_what_was_sent(
    rig: Rig, post_of: Any, monkeypatch: pytest.MonkeyPatch, fault: PostroomError
) -> None:
    async def away(*_: Any) -> Reply:
        raise fault

    async with agent(rig, post_of, "auto") as ann, agent(rig, post_of, "auto", "bob") as bob:
        question = {"to": "bob", "payload": "Done?", "wait_reply_s": 50}
        with monkeypatch.context() as patch:
            patch.setattr(ReplyService, "first", away)
            told = await good(ann, "send_message", **question)
        assert (told["reply"], told["message"]["id"], told["ask_again"]["msg_id"]) == (None, told["id"], told["id"])
        assert fault.message in told["ask_again"]["how"]
        await good(bob, "send_message", to="ann", payload="Yes.", reply_to=told["id"])
        answered = await good(ann, "send_message", **question, msg_id=told["id"])
        assert answered["reply"]["payload"] == "Yes."
        assert len((await good(bob, "swarm_read"))["messages"]) == 1


async def test_what_nobody_can_answer_is_not_waited_for(rig: Rig, post_of: Any) -> None:
    async with agent(rig, post_of, "auto") as ann:
        told = await good(ann, "send_message", channel="empty", payload="Anybody?", wait_reply_s=50)
        assert told["reply"] is None
        assert "ask_again" not in told
        assert told["message"]["deliveries"] == []


async def test_a_long_answer_and_a_long_receipt_fit_together(rig: Rig, post_of: Any) -> None:
    many = rig.office.mail(Principal("root", speaks_as=("*",)))
    for n in range(200):
        await many.attach("inbox", {}, name=f"agent-{n:03}", channels=["all"])
    async with agent(rig, post_of, "auto") as ann, agent(rig, post_of, "auto", "bob") as bob:
        asked = await good(ann, "send_message", channel="all", payload="All?", wait_reply_s=0)
        back = await good(bob, "send_message", to="ann", payload='"é\n' * 15_000, reply_to=asked["id"])
        told = await good(ann, "send_message", channel="all", payload="All?", msg_id=asked["id"], wait_reply_s=0)
        assert told["reply"]["payload_truncated"] is True
        assert told["reply"]["payload"].startswith('"é\n' * 1000)
        assert back["id"] in told["reply"]["whole"]
        receipt = told["message"]
        assert receipt["deliveries"]
        assert len(receipt["deliveries"]) + receipt["deliveries_left_out"] == 200


@pytest.mark.parametrize(("wait", "field"), [(51, "wait_reply_s"), (-1, "wait_reply_s"), ("long", "wait_reply_s")])
async def test_a_wait_out_of_its_bounds_sends_nothing(rig: Rig, post_of: Any, wait: Any, field: str) -> None:
    async with agent(rig, post_of, "auto") as ann, agent(rig, post_of, "auto", "bob") as bob:
        error = await refused(ann, "send_message", to="bob", payload="x", wait_reply_s=wait)
        assert (error["code"], error["field"]) == ("invalid", field)
        assert (await good(bob, "swarm_read"))["messages"] == []


async def test_the_rate_and_the_list_say_what_to_do(rig: Rig, post_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.office.post, "_rates", Rates(1, lambda: 7.0))
    async with agent(rig, post_of, "auto") as ann:
        await good(ann, "send_message", to="bob", payload="x")
        error = await refused(ann, "send_message", to="bob", payload="x")
        assert (error["code"], error["retry_after_s"]) == ("rate_limited", 60)
        assert "send again in 60 s" in error["message"]
        monkeypatch.setattr(rig.office.post, "_allowed", Allowed([Allowance(("ann",), ("reviewer",))]))
        error = await refused(ann, "send_message", to="bob", payload="x", **{"from": "ses_1"})
        assert (error["code"], error["field"]) == ("forbidden", "to")
        assert "ses_1 may not write to bob" in error["message"]


@pytest.mark.parametrize("era", ERAS)
async def test_work_given_by_a_tool_is_heard_of_on_both_sides(rig: Rig, era: str) -> None:
    def at(name: str) -> Any:
        who = Principal(name)
        return at_desk(rig.office.desk(who, "mcp"), era, name=name, post=rig.office.mail(who))

    async with at("ann") as ann, at("bob") as bob, at("cid") as cid:
        given = {"queue": "review", "title": "Read it", "assignee": "bob", "request_id": "r1"}
        todo = (await good(ann, "create_for", **given))["todo"]["id"]
        assert (await good(ann, "create_for", **given))["replayed"] is True
        assert await rig.office.assigning.once() == 1
        (letter,) = (await good(bob, "swarm_read"))["messages"]
        assert (letter["from"], letter["kind"]) == ("postroom", "task.assign")
        assert f'claim(id="{todo}")' in letter["payload"]
        assert (await good(cid, "claim_next", queues=["review"], wait_s=0))["todos"] == []
        held = (await good(bob, "claim", id=todo))["todo"]
        await good(bob, "release", id=todo, lease_id=held["lease_id"], note="the fixture is missing")
        held = (await good(bob, "claim_next", queues=["review"], wait_s=0))["todos"][0]
        assert [(entry["outcome"], entry["note"]) for entry in held["history"]] == [
            ("released", "the fixture is missing")
        ]
        await good(bob, "complete", id=todo, lease_id=held["lease_id"], result="fine")
        assert await rig.office.handover.once() == 1
        (letter,) = (await good(ann, "swarm_read"))["messages"]
        assert (letter["from"], letter["kind"]) == ("postroom", "status.update")
        assert f"{todo} " in letter["payload"]
        assert "is done, by bob" in letter["payload"]
