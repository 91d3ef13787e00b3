"""The program's post says over the daemon's HTTP door what the post in this process says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from postroom.client import Client
from postroom.daemon import connect
from postroom.endpoint import ANY_REACH, CarrierKind, EndpointFilter
from postroom.errors import Conflict, Forbidden, Invalid, NotFound, TooLarge
from postroom.message import DeliveryState, MessageFilter, Posted, Written
from postroom.model import Principal, Role
from postroom.post import Post
from tests.doors.http_rig import HOST, Rig

ANN = Principal("ann", speaks_as=("ses_*",))
T = "opencode:ses_target"


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[Client]:
    """Ann's."""
    async with Client(HOST, rig.secrets["ann"], transport=httpx2.ASGITransport(rig.app)) as made:
        yield made


@pytest.fixture(params=["http", "here"])
def post(request: pytest.FixtureRequest, rig: Rig, client: Client) -> Post:
    """Ann's post, over the door and in this process."""
    return client.post if request.param == "http" else rig.office.mail(ANN)


def bobs(rig: Rig) -> Post:
    """Bob's post, in this process."""
    return rig.office.mail(Principal("bob"))


def visible(posted: Posted) -> Posted:
    """What of a message is on the wire."""
    return Posted(
        replace(posted.message, seq=0, digest=""),
        tuple(replace(one, seq=0, reach=ANY_REACH, lease_id=None, handoff_seq=None) for one in posted.deliveries),
    )


async def test_a_message_comes_and_goes(rig: Rig, post: Post) -> None:
    sent = await post.send(
        "hello", to="bob", kind="status.update", priority="low", metadata={"a": [1]}, msg_id="m1", correlation_id="td_1"
    )
    assert sent.posted is not None
    assert (sent.id, sent.deduplicated) == ("m1", False)
    assert (sent.posted.message.sender, sent.posted.message.metadata) == ("ann", {"a": [1]})
    assert sent.posted.message.correlation_id == "td_1"
    assert sent.posted.delivery is not None
    assert sent.posted.delivery.state is DeliveryState.INJECTED
    assert (await post.send("hello", to="bob", kind="status.update", priority="low", msg_id="m1")).deduplicated
    with pytest.raises(Conflict):
        await post.send("other", to="bob", msg_id="m1")
    (letter,) = (await bobs(rig).inbox()).letters
    assert (letter.message.id, letter.read) == ("m1", False)
    acked = await bobs(rig).ack("m1")
    assert acked.delivery is not None
    assert acked.delivery.state is DeliveryState.ACKNOWLEDGED
    assert visible(await post.message("m1", until="acknowledged", wait_s=5)) == visible(acked)


async def test_both_posts_show_the_same(rig: Rig, client: Client) -> None:
    here = rig.office.mail(ANN)
    sent = await here.send(
        "ü\n", to="ses_target", sender="ses_s", reply_to=None, client_id="c", idempotency_key="k", ttl_s=60
    )
    await here.send("all", channel="ops", ack_mode="acknowledged")
    assert visible(await client.post.message(sent.id)) == visible(await here.message(sent.id))
    ours, theirs = await here.messages(MessageFilter()), await client.post.messages(MessageFilter())
    assert [visible(one) for one in ours.messages] == list(map(visible, theirs.messages))
    parcel = await rig.office.dispatch.lease(T, [ANY_REACH])
    assert parcel is not None
    await rig.office.dispatch.settle(parcel, Written.WRITTEN)
    mine, read = await here.inbox("ses_target"), await client.post.inbox("ses_target", limit=1)
    assert (mine.mailbox, mine.next_since, mine.unread) == (read.mailbox, read.next_since, read.unread)
    assert [one.message.id for one in mine.letters] == [one.message.id for one in read.letters] == [sent.id]
    made = await here.attach("opencode", {"session": "ses_x"}, repositories=["r"], channels=["ops"], pid=7)
    (seen,) = await client.post.endpoints(EndpointFilter(name="ses_x"))
    assert seen == replace(made, seq=0)
    assert await client.post.channels() == await here.channels()
    assert await client.post.who() == await here.who()


async def test_an_inbox_is_read_on(rig: Rig, post: Post) -> None:
    ids = [(await bobs(rig).send(str(n), to="ann")).id for n in range(3)]
    page = await post.inbox(limit=2)
    assert [one.message.id for one in page.letters] == ids[:2]
    assert [one.message.id for one in (await post.inbox("ann", since=page.next_since, wait_s=1)).letters] == ids[2:]
    assert (await post.mark_read("ann", page.next_since)).unread == 1
    assert (await post.mark_read(None, ids[2])).unread == 0
    with pytest.raises(Forbidden):
        await post.inbox("bob")


async def test_what_failed_is_retried_and_what_waits_is_cancelled(rig: Rig, post: Post) -> None:
    sent = await post.send("hello", to="ses_target")
    parcel = await rig.office.dispatch.lease(T, [ANY_REACH])
    assert parcel is not None
    await rig.office.dispatch.settle(parcel, Written.PERMANENT, "no such session")
    again = await post.retry_message(sent.id, request_id="r1")
    assert again.deliveries[0].state is DeliveryState.PENDING
    gone = await post.cancel_message(sent.id, reason="x" * 10_000, request_id="r2")
    assert gone.deliveries[0].reason == "cancelled"
    assert (await post.cancel_message(sent.id, reason="x" * 10_000, request_id="r2")).message.id == sent.id
    with pytest.raises(Conflict):
        await post.cancel_message(sent.id)


async def test_an_endpoint_is_attached_and_detached(rig: Rig, post: Post) -> None:
    made = await post.attach("inbox", {}, name="ann", queues=["inbox"], ack_mode="acknowledged", max_attempts=2)
    assert (made.carrier, made.target_key, made.max_attempts) == (CarrierKind.INBOX, "inbox:ann", 2)
    assert (await post.heartbeat_endpoint(made.id)).seen_at >= made.seen_at
    assert [one.id for one in await post.endpoints(EndpointFilter(live=True, queue="inbox"))] == [made.id]
    assert (await post.subscribe("team/ops", "ann")).subscribers == (("ann", made.id),)
    assert [one.name for one in await post.channels()] == ["team/ops"]
    assert (await post.unsubscribe("team/ops", "ann")).subscribers == ()
    assert [one.name for one in await post.who() if one.endpoint_id == made.id] == ["ann"]
    assert (await post.detach(made.id)).ended_at
    assert await post.endpoints(EndpointFilter()) == []
    assert [one.id for one in await post.endpoints(EndpointFilter(ended=True))] == [made.id]
    with pytest.raises(Conflict):
        await post.heartbeat_endpoint(made.id)


@pytest.mark.parametrize(
    ("call", "kind", "field"),
    [
        (lambda post: post.send("", to="bob"), Invalid, "payload"),
        (lambda post: post.send("\ud800", to="bob"), Invalid, "payload"),
        (lambda post: post.send("x" * 65_537, to="bob"), TooLarge, "payload"),
        (lambda post: post.send("x"), Invalid, "to"),
        (lambda post: post.send("x", to="bob", channel="ops"), Invalid, "to"),
        (lambda post: post.send("x", to="bob", sender="bob"), Forbidden, None),
        (lambda post: post.send("x", to="bob", priority="high"), Invalid, "priority"),
        (lambda post: post.send("x", to="bob", ack_mode="maybe"), Invalid, "ack_mode"),
        (lambda post: post.send("x", to="bob", ttl_s=0), Invalid, "ttl_s"),
        (lambda post: post.send("x", to="bob", ttl_s=float("nan")), Invalid, "ttl_s"),
        (lambda post: post.send("x", to="bob", metadata={"a": {1, 2}}), Invalid, "metadata.a"),
        (lambda post: post.message("a b"), NotFound, "id"),
        (lambda post: post.message(".."), NotFound, "id"),
        (lambda post: post.message("msg_x", until="done"), Invalid, "until"),
        (lambda post: post.messages(MessageFilter(state="asleep")), Invalid, "state"),
        (lambda post: post.messages(MessageFilter(sender="\ud800")), Invalid, "from"),
        (lambda post: post.inbox(wait_s=51), Invalid, "wait_s"),
        (lambda post: post.inbox("bob"), Forbidden, "for"),
        (lambda post: post.inbox("a b"), Invalid, "for"),
        (lambda post: post.inbox(limit=0), Invalid, "limit"),
        (lambda post: post.ack("msg_x"), NotFound, "id"),
        (lambda post: post.attach("pigeon", {}), Invalid, "carrier"),
        (lambda post: post.attach("inbox", {}, name="a b"), Invalid, "name"),
        (lambda post: post.heartbeat_endpoint("../x"), NotFound, "id"),
        (lambda post: post.detach("ep_00000000-0000-7000-8000-000000000000"), NotFound, "id"),
        (lambda post: post.subscribe("Ops", "ann"), Invalid, None),
        (lambda post: post.subscribe("ops", "a b"), Invalid, "subscriber"),
    ],
)
async def test_bad_input_is_refused_alike(post: Post, call: Any, kind: type[Exception], field: str | None) -> None:
    with pytest.raises(kind) as caught:
        await call(post)
    if field is not None:
        assert caught.value.field == field  # type: ignore[attr-defined]


async def test_a_text_is_no_list_of_names(client: Client) -> None:
    with pytest.raises(Invalid) as caught:
        await client.post.attach("inbox", {}, name="ann", queues="inbox")
    assert caught.value.field == "queues"


async def test_an_admin_speaks_as_anybody(rig: Rig) -> None:
    async with Client(HOST, rig.secrets["root"], transport=httpx2.ASGITransport(rig.app)) as client:
        sent = await client.post.send("x", to="bob", sender="anybody")
    assert sent.posted is not None
    here = await rig.office.mail(Principal("root", Role.ADMIN)).message(sent.id)
    assert here.message.sender == "anybody"


async def test_a_connected_desk_has_the_post(tmp_path: Path) -> None:
    async with connect(f"sqlite:///{tmp_path / 'own.db'}", name="ann") as desk:
        await desk.post.attach("opencode", {"session": "ses_x"}, channels=["ops"])
        sent = await desk.post.send("hello", channel="ops")
        assert sent.posted is not None
        assert [one.mailbox for one in sent.posted.deliveries] == ["ses_x"]
        assert (await desk.post.send("to myself", to="ann")).posted is not None
        assert [one.message.payload for one in (await desk.post.inbox()).letters] == ["to myself"]
