"""Sending: a message is admitted once for each of its keys, with its deliveries, or refused by field and not at all."""

from __future__ import annotations

import re
from typing import Any

import pytest

from postroom.endpoint import CarrierKind, NewEndpoint
from postroom.errors import Ambiguous, Conflict, Forbidden, Invalid, NotFound, PostroomError, TooLarge, Unavailable
from postroom.message import AckMode, DeliveryState, MessageFilter, NewMessage, Priority
from postroom.model import Principal
from tests.offices import ADMIN, ANN, BOB, Bench
from tests.services.mailing import Mail, only

NOBODY = "ep_00000000-0000-7000-8000-000000000001"


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


async def test_a_message_to_a_session_waits_for_its_courier(mail: Mail) -> None:
    # P2 # P4 # P5 # P22
    sent = await mail.send("wörk\n🚀", by=ANN, metadata={"n": 1}, kind="task.assign", priority=Priority.URGENT)
    assert re.fullmatch(r"msg_[0-9a-z]+_[0-9a-f]{8}", sent.id)
    assert not sent.deduplicated
    assert sent.posted is not None
    message, delivery = sent.posted.message, only(sent)
    assert (message.sender, message.addressed, message.channel, message.kind) == ("ann", "ses_1", None, "task.assign")
    assert (message.payload, message.metadata, message.created_by) == ("wörk\n🚀", {"n": 1}, "ann")
    assert (delivery.target_key, delivery.carrier) == ("opencode:ses_1", CarrierKind.OPENCODE)
    assert (delivery.mailbox, delivery.reach, delivery.endpoint_id) == ("ses_1", "any", None)
    assert (delivery.state, delivery.rank, delivery.attempt_count, delivery.max_attempts) == ("pending", 0, 0, 10)
    assert delivery.handoff_seq is None
    # What was answered is what is stored.
    assert await mail.office.post.get(ANN, sent.id) == sent.posted
    assert await mail.bench.rows("select target_key, carrier from targets") == [("opencode:ses_1", "opencode")]


async def test_kind_and_priority_have_their_defaults(mail: Mail) -> None:
    # P4
    sent = await mail.send()
    assert sent.posted is not None
    assert (sent.posted.message.kind, sent.posted.message.priority) == ("chat", Priority.NORMAL)
    assert sent.posted.message.ack_mode is AckMode.INJECTED
    assert only(sent).rank == 1


async def test_a_name_without_endpoint_is_an_inbox_that_has_it_at_once(mail: Mail) -> None:
    # P21
    sent = await mail.send(to="bob")
    delivery = only(sent)
    assert (delivery.target_key, delivery.mailbox, delivery.state) == ("inbox:bob", "bob", DeliveryState.INJECTED)
    assert (delivery.handoff_seq, delivery.delivered_at) == (1, delivery.created_at)
    waits = only(await mail.send(to="bob", ack_mode=AckMode.ACKNOWLEDGED))
    assert (waits.state, waits.ack_deadline, waits.handoff_seq) == (DeliveryState.AWAITING_ACK, None, 2)
    assert await mail.office.post.get(ADMIN, waits.message_id) is not None
    assert only(await mail.send(to="eve")).handoff_seq == 1


async def test_an_endpoint_gives_its_policy_where_the_message_has_none(mail: Mail) -> None:
    # T31
    pane = await mail.pane(1, name="bob", ack_mode="acknowledged", max_attempts=3)
    for to in ("bob", pane.id):
        delivery = only(await mail.send(to=to))
        assert (delivery.endpoint_id, delivery.target_key, delivery.mailbox) == (pane.id, pane.target_key, "bob")
        assert (delivery.ack_mode, delivery.max_attempts) == (AckMode.ACKNOWLEDGED, 3)
    own = await mail.send(to="bob", ack_mode=AckMode.INJECTED)
    assert only(own).ack_mode is AckMode.INJECTED
    assert own.posted is not None
    assert await mail.office.post.get(ADMIN, own.id) == own.posted
    unnamed = await mail.pane(2)
    assert only(await mail.send(to=unnamed.id)).mailbox == unnamed.id
    assert unnamed.max_attempts == 5


async def test_expiry_is_counted_from_the_admission(mail: Mail) -> None:
    sent = await mail.send(ttl_ms=5000)
    assert sent.posted is not None
    assert sent.posted.message.expires_at == sent.posted.message.created_at + 5000
    assert only(sent).expires_at == sent.posted.message.expires_at


async def test_a_channel_reaches_each_subscriber_but_the_sender(mail: Mail) -> None:
    # P19
    registry = mail.office.registry
    pane = await mail.pane(1, name="bob", channels=("team",), ack_mode="acknowledged")
    for subscriber in ("ses_1", "ses_2", "carol", "ann"):
        await registry.subscribe(ADMIN, "team", subscriber)
    sent = await mail.send(channel="team", sender="ses_1")
    assert sent.posted is not None
    assert sent.posted.delivery is None
    assert [(one.mailbox, one.state) for one in sent.posted.deliveries] == [
        ("bob", DeliveryState.PENDING),
        ("ses_2", DeliveryState.PENDING),
        ("carol", DeliveryState.INJECTED),
        ("ann", DeliveryState.INJECTED),
    ]
    assert sent.posted.deliveries[0].endpoint_id == pane.id
    assert sent.posted.deliveries[0].ack_mode is AckMode.ACKNOWLEDGED
    assert await mail.office.post.get(ADMIN, sent.id) == sent.posted
    # Subscribed later, or not any more: the first admission stands.
    await registry.subscribe(ADMIN, "team", "ses_3")
    await registry.unsubscribe(ADMIN, "team", "ses_2")
    again = await mail.send(channel="team", sender="ses_1", msg_id=sent.id)
    assert (again.deduplicated, again.posted) == (True, sent.posted)


async def test_nobody_subscribed_is_admitted_without_deliveries(mail: Mail) -> None:
    # P19
    sent = await mail.send(channel="empty")
    assert sent.posted is not None
    assert sent.posted.deliveries == ()
    assert await mail.bench.rows("select state, attempts from swarm_messages") == [("queued", 0)]


async def test_the_same_content_under_a_known_key_is_the_first_message(mail: Mail) -> None:
    # T18 # T19 # T50 # P2
    both: dict[str, Any] = {"msg_id": "mine:1", "client_id": "c", "idempotency_key": "k"}
    first = await mail.send(**both, correlation_id="one")
    assert first.id == "mine:1"
    some: list[dict[str, Any]] = [both, {"msg_id": "mine:1"}, {"client_id": "c", "idempotency_key": "k"}]
    for keys in some:
        again = await mail.send(**keys, correlation_id="two", metadata={"other": True}, provenance="p")
        assert (again.id, again.deduplicated, again.posted) == ("mine:1", True, first.posted)
    assert await mail.count("messages") == await mail.count("deliveries") == 1
    # A key is its client's own, and an id that the post made counts as well.
    other = await mail.send(client_id="d", idempotency_key="k")
    assert not other.deduplicated
    assert (await mail.send(msg_id=other.id)).deduplicated


CHANGES: list[dict[str, Any]] = [
    {"payload": "other"},
    {"kind": "status.update"},
    {"priority": Priority.LOW},
    {"to": "ses_2"},
    {"channel": "team"},
    {"sender": "ses_9"},
    {"reply_to": "known"},
]


@pytest.mark.parametrize("keys", [{"msg_id": "m1"}, {"client_id": "c", "idempotency_key": "k"}], ids=["id", "key"])
async def test_other_content_under_a_known_key_is_a_conflict(mail: Mail, keys: dict[str, Any]) -> None:
    # T20 # P2 # P21
    await mail.send("known", msg_id="known")
    await mail.send(**keys)
    for change in CHANGES:
        with pytest.raises(Conflict) as refused:
            await mail.send(**{"payload": "hello", **keys, **change})
        assert refused.value.field == ("msg_id" if "msg_id" in keys else "idempotency_key")
        assert "message_id" in refused.value.details
    assert await mail.count("messages") == 2


async def test_keys_of_two_messages_are_a_conflict(mail: Mail) -> None:
    # T20
    await mail.send(msg_id="a")
    await mail.send(client_id="c", idempotency_key="k")
    for msg_id in ("a", "fresh"):
        if msg_id == "fresh":
            again = await mail.send(msg_id=msg_id, client_id="c", idempotency_key="k")
            assert again.deduplicated
            assert again.id != "fresh"
        else:
            with pytest.raises(Conflict):
                await mail.send(msg_id=msg_id, client_id="c", idempotency_key="k")
    # Nothing of the refused ones stays: their new keys are free.
    assert not (await mail.send("else", msg_id="fresh")).deduplicated


async def test_a_failed_message_answers_a_repeat_as_it_is(mail: Mail) -> None:
    # T19
    first = await mail.send(msg_id="m")
    await mail.office.receipts.cancel(ADMIN, "m")
    again = await mail.send(msg_id="m")
    assert again.deduplicated
    assert only(again).state is DeliveryState.FAILED
    assert only(again).id == only(first).id


async def test_a_request_key_replays_the_answer(mail: Mail) -> None:
    post, new = mail.office.post, NewMessage("hello", to="ses_1")
    first = await post.send(ADMIN, new, "r1")
    again = await post.send(ADMIN, new, "r1")
    assert (again.id, again.posted, again.deduplicated) == (first.id, first.posted, True)
    with pytest.raises(Conflict) as refused:
        await post.send(ADMIN, NewMessage("other", to="ses_1"), "r1")
    assert refused.value.field == "request_id"
    # One that was refused has used up nothing.
    with pytest.raises(Unavailable):
        await post.send(ADMIN, NewMessage("wake", target_repo="repo"), "r2")
    await mail.pane(1, repositories=("repo",))
    assert not (await post.send(ADMIN, NewMessage("wake", target_repo="repo"), "r2")).deduplicated
    assert await mail.count("messages") == 2


BAD: list[tuple[dict[str, Any], str, type[PostroomError]]] = [
    ({"to": None}, "to", Invalid),
    ({"channel": "team"}, "to", Invalid),
    ({"target_repo": "repo"}, "to", Invalid),
    ({"to": None, "channel": "c", "target_repo": "repo"}, "channel", Invalid),
    ({"endpoint_id": NOBODY}, "endpoint_id", Invalid),
    ({"payload": ""}, "payload", Invalid),
    ({"payload": "a\x00b"}, "payload", Invalid),
    ({"payload": "\ud800"}, "payload", Invalid),
    ({"payload": "ü" * 32769}, "payload", TooLarge),
    ({"kind": "Chat"}, "kind", Invalid),
    ({"to": "a b"}, "to", Invalid),
    ({"to": None, "channel": "UPPER"}, "channel", Invalid),
    ({"sender": "\x1b[31m"}, "from", Invalid),
    ({"msg_id": "a b"}, "msg_id", Invalid),
    ({"msg_id": "x" * 129}, "msg_id", Invalid),
    ({"reply_to": "a/b"}, "reply_to", Invalid),
    ({"reply_to": "never"}, "reply_to", Invalid),
    ({"client_id": "c"}, "idempotency_key", Invalid),
    ({"idempotency_key": "k"}, "client_id", Invalid),
    ({"client_id": "c\n", "idempotency_key": "k"}, "client_id", Invalid),
    ({"ttl_ms": 0}, "ttl_s", Invalid),
    ({"ttl_ms": 15 * 86_400_000}, "ttl_s", Invalid),
    ({"metadata": {"a": "x" * 4096}}, "metadata", TooLarge),
    ({"metadata": {"a": float("nan")}}, "metadata.a", Invalid),
    ({"correlation_id": ""}, "correlation_id", Invalid),
    ({"provenance": "a\nb"}, "provenance", Invalid),
    ({"to": NOBODY}, "to", NotFound),
    ({"to": None, "target_repo": "repo"}, "target_repo", Unavailable),
    ({"to": None, "target_repo": "repo", "endpoint_id": NOBODY}, "endpoint_id", Unavailable),
]


@pytest.mark.parametrize(("change", "field", "kind"), BAD, ids=lambda value: str(value)[:40])
async def test_what_is_wrong_is_named_and_nothing_is_admitted(
    mail: Mail, change: dict[str, Any], field: str, kind: type[PostroomError]
) -> None:
    # P3 # P4 # T11 # T44
    new = NewMessage(**{"payload": "hello", "to": "ses_1", **change})
    with pytest.raises(kind) as refused:
        await mail.office.post.send(ADMIN, new)
    assert refused.value.field == field
    for table in ("messages", "deliveries", "admissions", "targets", "mailboxes"):
        assert await mail.count(table) == 0


async def test_a_sender_is_one_that_the_token_speaks_as(mail: Mail) -> None:
    plugin = Principal("plugin", speaks_as=("ses_*", "team-?"))
    for sender in ("plugin", "ses_1", "team-a"):
        sent = await mail.send(by=plugin, sender=sender)
        assert sent.posted is not None
        assert sent.posted.message.sender == sender
    for sender in ("ann", "ses", "team-ab"):
        with pytest.raises(Forbidden) as refused:
            await mail.send(by=plugin, sender=sender)
        assert refused.value.field == "from"


async def test_a_reply_names_a_message_that_is_or_was(mail: Mail) -> None:
    first = await mail.send(msg_id="question")
    made = await mail.send()
    for id_ in (first.id, made.id):
        assert not (await mail.send("answer", reply_to=id_)).deduplicated
    await mail.bench.rows("delete from messages where id = 'question'")
    assert not (await mail.send("late answer", reply_to="question")).deduplicated


async def test_a_repeat_whose_message_is_gone_says_so(mail: Mail) -> None:
    await mail.send(msg_id="m")
    await mail.bench.rows("delete from deliveries")
    await mail.bench.rows("delete from messages")
    again = await mail.send(msg_id="m")
    assert (again.id, again.posted, again.deduplicated) == ("m", None, True)
    with pytest.raises(Conflict):
        await mail.send("other", msg_id="m")


async def test_a_repository_needs_exactly_one_live_endpoint(mail: Mail) -> None:
    # T10 # T11 # T12 # T44
    with pytest.raises(Unavailable):
        await mail.wake()
    first = await mail.pane(1, repositories=("repo", "other"))
    second = await mail.pane(2, repositories=("repo",))
    with pytest.raises(Ambiguous) as refused:
        await mail.wake()
    assert refused.value.details["endpoints"] == [first.id, second.id]
    assert only(await mail.wake(endpoint_id=second.id)).endpoint_id == second.id
    with pytest.raises(Unavailable):
        await mail.wake("other", endpoint_id=second.id, idempotency_key="2")
    await mail.office.registry.detach(ADMIN, second.id)
    assert only(await mail.wake(idempotency_key="3")).endpoint_id == first.id
    mail.bench.move(46_000)
    with pytest.raises(Unavailable):
        await mail.wake(idempotency_key="4")
    await mail.office.registry.heartbeat(ADMIN, first.id)
    assert only(await mail.wake(idempotency_key="4")).endpoint_id == first.id


async def test_several_endpoints_of_a_name_are_never_picked_from(mail: Mail) -> None:
    # T12
    panes = [await mail.pane(n, name="bob") for n in (1, 2)]
    with pytest.raises(Ambiguous) as refused:
        await mail.send(to="bob")
    assert refused.value.details["endpoints"] == [pane.id for pane in panes]
    await mail.office.registry.detach(ADMIN, panes[0].id)
    assert only(await mail.send(to="bob")).endpoint_id == panes[1].id


async def test_who_is_concerned_may_look(mail: Mail) -> None:
    get, carol = mail.office.post.get, Principal("carol", speaks_as=("ses_*",))
    own = await mail.office.registry.attach(BOB, NewEndpoint(CarrierKind.CHANNEL, {}, "channel:1"))
    to_session = await mail.send(by=ANN)
    to_endpoint = await mail.send(by=ANN, to=own.id)
    for who, sent in ((ANN, to_session), (carol, to_session), (BOB, to_endpoint), (ADMIN, to_endpoint)):
        assert await get(who, sent.id) == sent.posted
    for who, id_ in ((BOB, to_session.id), (carol, to_endpoint.id), (ADMIN, "nothing"), (ADMIN, "a b\x00")):
        with pytest.raises(NotFound):
            await get(who, id_)
    seen = {
        who.name: [one.message.id for one in (await mail.office.post.page(who, MessageFilter())).messages]
        for who in (ANN, BOB, carol, Principal("eve"), ADMIN)
    }
    both = [to_endpoint.id, to_session.id]
    assert seen == {"ann": both, "bob": both[:1], "carol": both[1:], "eve": [], "root": both}


async def test_pages_are_newest_first_and_filtered(mail: Mail) -> None:
    # T41 # P23
    post = mail.office.post
    pane = await mail.pane(1, repositories=("repo",))
    sent = [await mail.send(str(n), msg_id=f"m{n}") for n in range(5)]
    inbox = await mail.send(to="bob", sender="ses_9", kind="status.update", reply_to="m0")
    woken = await mail.wake()
    channel = await mail.send(channel="team")
    page = await post.page(ADMIN, MessageFilter(limit=3))
    assert [one.message.id for one in page.messages] == [channel.id, woken.id, inbox.id]
    rest = await post.page(ADMIN, MessageFilter(limit=5, cursor=page.next_cursor))
    assert [one.message.id for one in rest.messages] == ["m4", "m3", "m2", "m1", "m0"]
    assert rest.next_cursor is None
    assert rest.messages[0] == sent[4].posted
    wanted = [
        (MessageFilter(sender="ses_9"), [inbox.id]),
        (MessageFilter(to="bob"), [inbox.id]),
        (MessageFilter(kind="status.update"), [inbox.id]),
        (MessageFilter(reply_to="m0"), [inbox.id]),
        (MessageFilter(state="injected"), [inbox.id]),
        (MessageFilter(channel="team"), [channel.id]),
        (MessageFilter(client_id="engine"), [woken.id]),
        (MessageFilter(target_repo="repo"), [woken.id]),
        (MessageFilter(endpoint_id=pane.id, state="pending"), [woken.id]),
        (MessageFilter(endpoint_id=pane.id, state="failed"), []),
    ]
    # Of one that went to several, an endpoint and a state are looked for in the same delivery.
    first, second = [await mail.pane(n, channels=("crew",)) for n in (2, 3)]
    several = await mail.send(channel="crew")
    await mail.office.receipts.ack(ADMIN, several.id, second.id)
    wanted += [
        (MessageFilter(endpoint_id=second.id), [several.id]),
        (MessageFilter(endpoint_id=second.id, state="acknowledged"), [several.id]),
        (MessageFilter(endpoint_id=first.id, state="acknowledged"), []),
    ]
    for asked, ids in wanted:
        assert [one.message.id for one in (await post.page(ADMIN, asked)).messages] == ids, asked
    await mail.office.receipts.cancel(ADMIN, "m3")
    for state in ("cancelled", "failed"):
        assert [one.message.id for one in (await post.page(ADMIN, MessageFilter(state=state))).messages] == ["m3"]
    for bad, field in (
        (MessageFilter(state="queued"), "state"),
        (MessageFilter(limit=0), "limit"),
        (MessageFilter(cursor="x"), "cursor"),
        (MessageFilter(to="\x00"), "to"),
        (MessageFilter(client_id="\x00"), "client_id"),
    ):
        with pytest.raises(Invalid) as refused:
            await post.page(ADMIN, bad)
        assert refused.value.field == field
