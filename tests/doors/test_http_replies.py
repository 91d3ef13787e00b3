"""Answers over HTTP, and what is said when a message may not be sent: by the allow-list, or by the rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from postroom.client import Client
from postroom.errors import Forbidden, NotFound, RateLimited
from postroom.model import Principal
from postroom.post import Post
from postroom.services.allowed import Allowance, Allowed
from postroom.services.rates import Rates
from tests.doors.http_rig import HOST, Rig, Wire, ask, get, post, refusal, until
from tests.doors.test_mail_client import visible

ANN = Principal("ann", speaks_as=("ses_*",))


async def send(rig: Rig, by: str = "ann", **fields: Any) -> str:
    """The id of a message that `by` sent; to bob's inbox unless the fields say otherwise."""
    body = {"payload": "hello", "to": "bob", **fields}
    return str((await post(rig, by, "/v1/messages", body, 202))["id"])


async def test_an_answer_is_got_at_once_or_waited_for(rig: Rig) -> None:
    id_ = await send(rig)
    path = f"/v1/messages/{id_}/reply"
    nothing = await get(rig, "ann", path)
    assert (nothing["reply"], nothing["in_vain"], nothing["message"]["id"]) == (None, False, id_)
    waiting = asyncio.create_task(get(rig, "ann", f"{path}?wait_s=50"))
    await until(lambda: rig.office.watch.waiting == 1)
    back = await send(rig, "bob", to="ann", reply_to=id_, payload="here")
    told = await waiting
    assert (told["reply"]["id"], told["reply"]["payload"], told["reply"]["from"]) == (back, "here", "bob")
    assert told["reply"]["deliveries"][0]["mailbox"] == "ann"
    assert await get(rig, "root", path) == told
    refusal(await ask(rig, "bob", "GET", path), 403, "forbidden")
    refusal(await ask(rig, "eve", "GET", path), 404, "not_found")
    refusal(await ask(rig, "ann", "GET", "/v1/messages/msg_none/reply?wait_s=5"), 404, "not_found")
    refusal(await ask(rig, "ann", "GET", "/v1/messages/%20/reply"), 404, "not_found")


@pytest.mark.parametrize("wait", ["51", "-1", "soon", "nan"])
async def test_a_wait_out_of_its_bounds_is_refused(rig: Rig, wait: str) -> None:
    answer = await ask(rig, "ann", "GET", f"/v1/messages/{await send(rig)}/reply?wait_s={wait}")
    assert refusal(answer, 400, "invalid")["field"] == "wait_s"


async def test_who_goes_away_waits_no_more(rig: Rig) -> None:
    id_ = await send(rig)
    headers = {"authorization": f"Bearer {rig.secrets['ann']}", "host": "127.0.0.1:7373"}
    wire = Wire(rig.app, "GET", f"/v1/messages/{id_}/reply", headers, query_string=b"wait_s=50")
    wire.body(b"")
    running = asyncio.create_task(wire.run())
    await until(lambda: rig.office.watch.waiting == 1)
    wire.leave()
    await running
    assert wire.sent == []
    assert rig.office.watch.waiting == 0


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[Client]:
    """Ann's."""
    async with Client(HOST, rig.secrets["ann"], transport=httpx2.ASGITransport(rig.app)) as made:
        yield made


async def test_both_posts_tell_the_same_answer(rig: Rig, client: Client) -> None:
    posts: list[Post] = [client.post, rig.office.mail(ANN)]
    sent = await client.post.send("where?", to="bob")
    for one in posts:
        reply = await one.reply(sent.id, wait_s=0.01)
        assert (reply.answer, reply.in_vain) == (None, False)
    bobs = await rig.office.mail(Principal("bob")).send("here", to="ann", reply_to=sent.id)
    assert bobs.posted is not None
    for one in posts:
        answer = (await one.reply(sent.id, wait_s=50)).answer
        assert answer is not None
        assert visible(answer) == visible(bobs.posted)
        with pytest.raises(NotFound):
            await one.reply("msg_none")
    nobody = await client.post.send("hello?", channel="empty")
    assert [(await one.reply(nobody.id, wait_s=50)).in_vain for one in posts] == [True, True]


async def test_who_sends_too_much_is_told_when_to_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setattr(rig.office.post, "_rates", Rates(2, lambda: 7.0))
    ids = [await send(rig, msg_id=f"m{n}") for n in range(2)]
    answer = await ask(rig, "ann", "POST", "/v1/messages", {"to": "bob", "payload": "more"})
    error = refusal(answer, 429, "rate_limited")
    assert (error["field"], error["retry_after_s"], answer.headers["retry-after"]) == ("from", 30, "30")
    assert "ann has sent as many messages as [post] rate_per_minute = 2 allows" in error["message"]
    assert "again in 30 s" in error["message"]
    with pytest.raises(RateLimited):
        await client.post.send("more", to="bob")
    assert (await post(rig, "ann", "/v1/messages", {"to": "bob", "payload": "hello", "msg_id": ids[0]}, 202))[
        "deduplicated"
    ]
    # The swarm's own shape, and another sender of the same token.
    swarm = {"from": "ses_1", "to": "bob", "payload": "x"}
    assert [(await ask(rig, "ann", "POST", "/swarm/send", swarm)).status_code for _ in range(3)] == [202, 202, 429]
    answer = await ask(rig, "ann", "POST", "/swarm/send", swarm)
    assert answer.headers["retry-after"] == "30"
    assert set(answer.json()) == {"error"}
    assert "ses_1 (token ann) has sent as many messages" in answer.json()["error"]
    for _ in range(4):
        await send(rig, "root")


async def test_who_may_not_write_there_is_told_whom_it_may(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setattr(rig.office.post, "_allowed", Allowed([Allowance(("ses_*",), ("reviewer",))]))
    answer = await ask(rig, "ann", "POST", "/v1/messages", {"from": "ses_1", "to": "bob", "payload": "x"})
    error = refusal(answer, 403, "forbidden")
    assert error["field"] == "to"
    assert error["message"] == "ses_1 may not write to bob: [post] allow lets it write to reviewer"
    with pytest.raises(Forbidden):
        await client.post.send("x", channel="ops")
    answer = await ask(rig, "ann", "POST", "/swarm/send", {"from": "ses_1", "to": "ses_2", "payload": "x"})
    assert (answer.status_code, set(answer.json())) == (403, {"error"})
    assert "[post] allow lets it write to reviewer" in answer.json()["error"]
    await send(rig, to="reviewer", **{"from": "ses_1"})
    await send(rig, "root")
