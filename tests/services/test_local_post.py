"""The post of one principal over services in this process: seconds in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from postroom.endpoint import CarrierKind, EndpointFilter
from postroom.errors import Invalid
from postroom.message import DeliveryState, MessageFilter, Priority
from postroom.model import Principal
from postroom.post import Post
from tests.offices import ADMIN, ANN, BOB, Bench


def place(carrier: CarrierKind, address: Mapping[str, Any], name: str | None) -> tuple[Mapping[str, Any], str, str]:
    """A place for whatever address."""
    return address, f"{carrier}:{address.get('at', name)}", "any"


async def test_every_verb_of_the_post_does_what_it_says(bench: Bench) -> None:
    mail = bench.office.mail
    post: Post = mail(ADMIN, place)
    ann: Post = mail(ANN, place)
    pane = await ann.attach(
        "tmux", {"at": "1"}, name="ann", repositories=["r"], queues=["q"], channels=["c"], ack_mode="acknowledged"
    )
    assert (pane.target_key, pane.name, pane.ack_mode, pane.rings) == ("tmux:1", "ann", "acknowledged", True)
    assert await ann.endpoints(EndpointFilter(queue="q")) == [pane]
    assert (await ann.heartbeat_endpoint(pane.id)).id == pane.id
    sent = await post.send(
        "hi",
        to="ann",
        priority="urgent",
        ttl_s=2.5,
        msg_id="m",
        ack_mode="injected",
        metadata={},
        correlation_id="td_1",
    )
    assert sent.posted is not None
    assert sent.posted.message.priority is Priority.URGENT
    assert sent.posted.message.correlation_id == "td_1"
    assert sent.posted.message.expires_at == sent.posted.message.created_at + 2500
    assert await ann.message("m") == sent.posted
    assert await ann.message("m", until="handed_off", wait_s=0.01) == sent.posted
    assert (await post.messages(MessageFilter(state="pending"))).messages == (sent.posted,)
    assert (await post.cancel_message("m", reason="no")).deliveries[0].reason == "cancelled"
    assert (await post.retry_message("m")).deliveries[0].state is DeliveryState.PENDING
    assert (await ann.ack("m")).deliveries[0].state is DeliveryState.ACKNOWLEDGED
    page = await ann.inbox(wait_s=0.01)
    assert ([one.message.id for one in page.letters], page.unread) == (["m"], 1)
    assert (await ann.mark_read(None, page.next_since)).unread == 0
    assert (await post.subscribe("c", "bob")).subscribers[1][0] == "bob"
    assert [channel.name for channel in await post.channels()] == ["c"]
    to_all = await post.send("all", channel="c")
    assert to_all.posted is not None
    assert [one.mailbox for one in to_all.posted.deliveries] == ["ann", "bob"]
    assert len((await mail(BOB).inbox()).letters) == 1
    assert len((await post.unsubscribe("c", "bob")).subscribers) == 1
    assert [one.name for one in await post.who()] == ["ann"]
    assert (await ann.detach(pane.id)).ended_at is not None


async def test_what_has_no_meaning_is_refused_by_field(bench: Bench) -> None:
    post = bench.office.mail(Principal("ann"), place)
    for call, field in (
        (post.send("x", to="a", priority="high"), "priority"),
        (post.send("x", to="a", ack_mode="x"), "ack_mode"),
        (post.send("x", to="a", ttl_s=0), "ttl_s"),
        (post.message("m", wait_s=1), "until"),
        (post.inbox(wait_s=-1), "wait_s"),
        (post.attach("pigeon", {}), "carrier"),
        (bench.office.mail(ANN).attach("tmux", {}), "carrier"),
    ):
        with pytest.raises(Invalid) as refused:
            await call
        assert refused.value.field == field
