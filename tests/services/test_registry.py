"""The registry: endpoints from attachment to end, what they listen to, and who works here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from postroom.delivery import Policy, is_live
from postroom.endpoint import CarrierKind, Endpoint, EndpointFilter, NewEndpoint
from postroom.errors import Ambiguous, Conflict, Forbidden, Invalid, NotFound, TooLarge
from postroom.model import Principal
from postroom.post import Channel
from tests.offices import ADMIN, ANN, BOB, Bench, gather
from tests.services.mailing import Mail, only


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


async def test_an_endpoint_is_attached_with_all_it_says(mail: Mail) -> None:
    # T9
    registry = mail.office.registry
    new = NewEndpoint(
        CarrierKind.TMUX,
        {"pane": "%3", "socket": "/s"},
        "tmux:/s:1:2:%3",
        reach="host:abc:1000",
        name="ann",
        repositories=("b", "a"),
        queues=("review",),
        channels=("team", "all"),
        ack_mode="acknowledged",
        max_attempts=9,
        spill=True,
        rings=False,
        pid=77,
    )
    made = await registry.attach(ANN, new)
    assert made.id.startswith("ep_")
    assert (made.name, made.carrier, made.address) == ("ann", CarrierKind.TMUX, {"pane": "%3", "socket": "/s"})
    assert (made.target_key, made.reach, made.ack_mode, made.max_attempts) == (
        "tmux:/s:1:2:%3",
        "host:abc:1000",
        "acknowledged",
        9,
    )
    assert (made.spill, made.rings, made.pid, made.created_by) == (True, False, 77, "ann")
    assert (made.repositories, made.queues, made.channels) == (("a", "b"), ("review",), ("all", "team"))
    assert made.created_at == made.seen_at
    assert made.ended_at is None
    assert await registry.get(BOB, made.id) == made


@pytest.mark.parametrize(("carrier", "attempts"), [("tmux", 5), ("channel", 5), ("opencode", 10), ("webhook", 8)])
async def test_attempts_are_the_carriers_where_nothing_is_said(mail: Mail, carrier: str, attempts: int) -> None:
    # T31
    made = await mail.office.registry.attach(ADMIN, NewEndpoint(CarrierKind(carrier), {}, f"{carrier}:x"))
    assert (made.max_attempts, made.ack_mode) == (attempts, "injected")


async def test_a_sessions_endpoint_has_its_name(mail: Mail) -> None:
    plugin = Principal("plugin", speaks_as=("ses_*",))
    new = NewEndpoint(CarrierKind.OPENCODE, {"session": "ses_1"}, "opencode:ses_1")
    made = await mail.office.registry.attach(plugin, new)
    assert (made.name, made.mailbox) == ("ses_1", "ses_1")
    with pytest.raises(Forbidden):
        await mail.office.registry.attach(ANN, new)


BAD: list[tuple[dict[str, Any], str, type[Exception]]] = [
    ({"name": "a/b"}, "name", Invalid),
    ({"ack_mode": "never"}, "ack_mode", Invalid),
    ({"max_attempts": 10}, "delivery_max_attempts", Invalid),
    ({"max_attempts": 0}, "delivery_max_attempts", Invalid),
    ({"queues": ("UP",)}, "queues", Invalid),
    ({"channels": ("a b",)}, "channels", Invalid),
    ({"repositories": ("a\nb",)}, "repositories", Invalid),
    ({"repositories": ("r",) * 101}, "repositories", Invalid),
    ({"pid": 0}, "pid", Invalid),
    ({"address": {"a": "x" * 5000}}, "address", TooLarge),
    ({"name": "root"}, "name", Forbidden),
]


@pytest.mark.parametrize(("change", "field", "kind"), BAD, ids=lambda value: str(value)[:30])
async def test_what_is_wrong_with_an_endpoint_is_named(
    mail: Mail, change: dict[str, Any], field: str, kind: type[Exception]
) -> None:
    new: dict[str, Any] = {"carrier": CarrierKind.TMUX, "address": {}, "target_key": "tmux:1", **change}
    with pytest.raises(kind) as refused:
        await mail.office.registry.attach(ANN, NewEndpoint(**new))
    assert getattr(refused.value, "field", None) == field
    assert await mail.count("endpoints") == 0


async def test_the_next_one_at_a_place_ends_what_stood_there(mail: Mail) -> None:
    # T9
    registry = mail.office.registry
    first = await mail.pane(1, name="bob", repositories=("repo",))
    second = await mail.pane(1, name="bob", repositories=("repo",))
    assert (await registry.get(ADMIN, first.id)).ended_at is not None
    assert await registry.find(ADMIN, EndpointFilter(target_repo="repo")) == [second]
    assert await mail.bench.rows("select distinct endpoint_id from attachments") == [(second.id,)]
    assert [one.id for one in await registry.find(ADMIN, EndpointFilter(ended=True))] == [first.id, second.id]


async def test_an_endpoint_listens_to_no_queue_that_its_principal_may_not_use(mail: Mail) -> None:
    mal, registry = Principal("mal", queues=("open*",)), mail.office.registry
    standing = await mail.pane(1, by=mal, queues=("open", "open/2"))
    for queues in (("secret",), ("open", "secret")):
        with pytest.raises(NotFound) as refused:
            await mail.pane(1, by=mal, queues=queues)
        assert refused.value.field == "queues"
        assert "secret" in refused.value.message
    assert await registry.find(ADMIN, EndpointFilter()) == [standing]


async def test_a_place_is_taken_from_nobody_else(mail: Mail) -> None:
    registry = mail.office.registry
    first = await mail.pane(1, by=BOB, name="bob", repositories=("repo",))
    with pytest.raises(Forbidden) as refused:
        await mail.pane(1, by=Principal("mal"), name="mal", repositories=("repo",))
    assert refused.value.field == "address"
    assert await registry.find(ADMIN, EndpointFilter(target_repo="repo")) == [first]
    # Who may detach it may: the same token, whoever speaks as it, and an admin.
    for who, name in ((BOB, "bob"), (Principal("team", speaks_as=("b*",)), "team"), (ADMIN, "lee")):
        made = await mail.pane(1, by=who, name=name, repositories=("repo",))
        assert await registry.find(ADMIN, EndpointFilter(target_repo="repo")) == [made]


async def test_a_session_is_attached_by_who_may_speak_as_it(mail: Mail) -> None:
    plugin, registry = Principal("plugin", speaks_as=("ses_*",)), mail.office.registry
    new = NewEndpoint(CarrierKind.OPENCODE, {"session": "ses_a"}, "opencode:ses_a", name="mal")
    with pytest.raises(Forbidden) as refused:
        await registry.attach(Principal("mal"), new)
    assert refused.value.field == "address.session"
    assert await mail.count("endpoints") == 0
    for _ in range(2):
        made = await registry.attach(plugin, replace(new, name="plugin"))
    assert await registry.find(ADMIN, EndpointFilter()) == [made]


async def test_dead_letters_of_all_queues_come_to_nobodys_endpoint_by_who_may_not_use_them(mail: Mail) -> None:
    mal, registry = Principal("mal", queues=("open",)), mail.office.registry
    made = await mail.pane(1, name="mal")
    for subscriber in ("mal", made.id):
        with pytest.raises(Forbidden) as refused:
            await registry.subscribe(mal, "dead-letters", subscriber)
        assert refused.value.field == "subscriber"
    await registry.subscribe(mal, "team", "mal")
    await registry.subscribe(Principal("mal"), "dead-letters", "mal")
    assert [channel.name for channel in await registry.channels(ADMIN)] == ["dead-letters", "team"]


async def test_many_at_one_place_at_once_leave_one(mail: Mail) -> None:
    made: list[Any] = await gather(*[mail.pane(1, repositories=("repo",)) for _ in range(12)])
    standing = await mail.office.registry.find(ADMIN, EndpointFilter())
    assert len(standing) == 1
    assert standing[0].repositories == ("repo",)
    assert all(isinstance(one, Endpoint) for one in made), made
    assert await mail.count("attachments") == 1


async def test_an_endpoint_lives_while_it_is_seen(mail: Mail) -> None:
    # RULINGS 35
    registry, policy = mail.office.registry, Policy()
    made = [await registry.attach(ADMIN, NewEndpoint(kind, {}, f"{kind}:x")) for kind in CarrierKind]
    watched = {CarrierKind.TMUX, CarrierKind.CHANNEL}
    for move, signs in ((44_000, False), (2_000, False), (0, True)):
        mail.bench.move(move)
        if signs:
            await registry.touch([one.id for one in made])
        now = (await mail.bench.store.read("clock"))[0][0]
        live = await registry.find(ADMIN, EndpointFilter(live=True))
        silent = await registry.find(ADMIN, EndpointFilter(live=False))
        kinds = {one.carrier for one in live}
        assert kinds == (set(CarrierKind) - watched if move == 2_000 else set(CarrierKind))
        assert {one.carrier for one in silent} == set(CarrierKind) - kinds
        assert all(is_live(one, now, policy) for one in live)
        assert not any(is_live(one, now, policy) for one in silent)
        assert await registry.living(made) == {one.id for one in live}
    await registry.end(made[0].id)
    ended = await registry.get(ADMIN, made[0].id)
    assert not is_live(ended, ended.created_at, policy)
    assert ended.id not in await registry.living(made)


async def test_a_heartbeat_is_its_owners_and_ends_with_it(mail: Mail) -> None:
    registry = mail.office.registry
    pane = await mail.pane(1, by=ANN)
    mail.bench.move(1000)
    beat = await registry.heartbeat(ANN, pane.id)
    assert 1000 <= beat.seen_at - pane.seen_at < 60_000
    named = await mail.pane(2, name="bob")
    assert (await registry.heartbeat(BOB, named.id)).id == named.id
    for verb in (registry.heartbeat, registry.detach):
        for id_ in (pane.id, "ep_x", "td_1"):
            with pytest.raises(NotFound):
                await verb(BOB, id_)
    ended = await registry.detach(ANN, pane.id)
    assert ended.ended_at is not None
    assert await registry.detach(ANN, pane.id) == ended
    with pytest.raises(Conflict):
        await registry.heartbeat(ANN, pane.id)
    await registry.touch([pane.id])
    assert (await registry.get(ANN, pane.id)).seen_at == beat.seen_at
    with pytest.raises(NotFound):
        await mail.send(to=pane.id)


async def test_find_by_what_they_are_attached_to(mail: Mail) -> None:
    # T38
    find = mail.office.registry.find
    one = await mail.pane(1, name="bob", repositories=("r", "s"), queues=("q",))
    two = await mail.pane(2, repositories=("r",), channels=("c",))
    for asked, found in (
        (EndpointFilter(target_repo="r"), [one, two]),
        (EndpointFilter(target_repo="s"), [one]),
        (EndpointFilter(queue="q"), [one]),
        (EndpointFilter(channel="c"), [two]),
        (EndpointFilter(name="bob"), [one]),
        (EndpointFilter(target_repo="r", channel="c"), [two]),
        (EndpointFilter(target_repo="none"), []),
    ):
        assert await find(ANN, asked) == found, asked
    with pytest.raises(Invalid) as refused:
        await find(ANN, EndpointFilter(queue="\x00"))
    assert refused.value.field == "queue"


async def test_sessions_names_and_endpoints_subscribe(mail: Mail) -> None:
    registry = mail.office.registry
    pane = await mail.pane(1, name="bob")
    plugin = Principal("plugin", speaks_as=("ses_*",))
    session = await registry.subscribe(plugin, "team", "ses_1")
    assert await registry.subscribe(plugin, "team", "ses_1") == session
    await registry.subscribe(plugin, "other", "ses_1")
    await registry.subscribe(BOB, "team", "bob")
    await registry.subscribe(ADMIN, "team", pane.id)
    await registry.subscribe(ANN, "team", "ann")
    team, other = sorted(await registry.channels(ANN), key=lambda one: one.name, reverse=True)
    (_, session_id), *_ = session.subscribers
    assert team.subscribers[:2] == (("bob", pane.id), ("ses_1", session_id))
    assert [mailbox for mailbox, _ in team.subscribers] == ["bob", "ses_1", "ann"]
    assert other == Channel("other", (("ses_1", session_id),))
    for who, subscriber in ((ANN, "ses_1"), (ANN, "bob"), (BOB, "root")):
        with pytest.raises(Forbidden):
            await registry.subscribe(who, "team", subscriber)
    with pytest.raises(NotFound):
        await registry.subscribe(ANN, "team", pane.id)
    with pytest.raises(Invalid):
        await registry.subscribe(ANN, "Team", "ann")
    with pytest.raises(Invalid):
        await registry.subscribe(ADMIN, "team", "a b")


async def test_unsubscribing_ends_what_was_there_for_that_alone(mail: Mail) -> None:
    registry = mail.office.registry
    pane = await mail.pane(1, name="bob", channels=("team",))
    for channel in ("team", "other"):
        await registry.subscribe(ADMIN, channel, "ses_1")
    await registry.unsubscribe(ADMIN, "team", "ses_1")
    left = await registry.unsubscribe(ADMIN, "team", "bob")
    assert left == await registry.unsubscribe(ADMIN, "team", "bob") == Channel("team", ())
    assert (await registry.get(ADMIN, pane.id)).ended_at is None
    assert len(await registry.find(ADMIN, EndpointFilter())) == 2
    await registry.unsubscribe(ADMIN, "other", "ses_1")
    assert await registry.find(ADMIN, EndpointFilter()) == [await registry.get(ADMIN, pane.id)]
    again = await registry.subscribe(ADMIN, "team", "ses_1")
    assert len(again.subscribers) == 1


async def test_several_of_a_name_are_subscribed_by_id(mail: Mail) -> None:
    # T12
    panes = [await mail.pane(n, name="bob") for n in (1, 2)]
    with pytest.raises(Ambiguous):
        await mail.office.registry.subscribe(ADMIN, "team", "bob")
    for pane in panes:
        await mail.office.registry.subscribe(BOB, "team", pane.id)
    sent = await mail.send(channel="team")
    assert sent.posted is not None
    assert [one.endpoint_id for one in sent.posted.deliveries] == [pane.id for pane in panes]


async def test_a_claim_of_a_worker_is_its_seats(mail: Mail) -> None:
    pane = await mail.pane(1, name="ann")
    other = await mail.pane(2, name="tom")
    await mail.bench.create(title="fix it")
    (held,) = await mail.bench.claim(ADMIN, worker="ann")
    await mail.bench.create()
    (loose,) = await mail.bench.claim(ADMIN, worker="gus")
    seen = {one.name: (one.endpoint_id, one.todo_id) for one in await mail.office.registry.who(ADMIN)}
    assert seen == {"ann": (pane.id, held.id), "tom": (other.id, None), "root/gus": (None, loose.id)}


async def test_subscribing_the_same_at_once_makes_one_endpoint(mail: Mail) -> None:
    answers: list[Any] = await gather(*[mail.office.registry.subscribe(ADMIN, "team", "ses_1") for _ in range(12)])
    assert len({one for one in answers if isinstance(one, Channel)}) == 1, answers
    assert len(answers[0].subscribers) == 1
    assert await mail.count("endpoints") == 1


async def test_who_works_here(mail: Mail) -> None:
    pane = await mail.pane(1, name="ann", queues=("inbox",))
    await mail.bench.create("secret")
    mail.bench.move(1000)
    held = await mail.bench.claimed(ANN, title="fix it")
    mail.bench.move(1000)
    loose = await mail.bench.claimed(BOB, queue="secret")
    asker = Principal("eve", queues=("inbox",))
    seen = {one.name: one for one in await mail.office.registry.who(ADMIN)}
    assert [*seen] == ["bob", "ann"]
    assert (seen["ann"].endpoint_id, seen["ann"].todo_id, seen["ann"].todo_title) == (pane.id, held.id, "fix it")
    assert (seen["ann"].live, seen["ann"].queues, seen["ann"].last_seen) == (True, ("inbox",), held.updated_at)
    assert (seen["bob"].endpoint_id, seen["bob"].todo_id) == (None, loose.id)
    assert [one.name for one in await mail.office.registry.who(asker)] == ["ann"]
    assert {(one.directory, one.branch) for one in seen.values()} == {(None, None)}
    mail.bench.move(46_000)
    assert not {one.name: one for one in await mail.office.registry.who(ADMIN)}["ann"].live


async def test_a_revoked_token_takes_its_endpoints_along(mail: Mail) -> None:
    # RULINGS 17
    tokens = mail.office.tokens
    _, secret = await tokens.create(ADMIN, "ann", speaks_as=["ses_*"])
    ann = await tokens.authenticate(secret)
    assert ann.may_speak_as("ses_1")
    hers, other = await mail.pane(1, by=ann, repositories=("repo",)), await mail.pane(2, repositories=("repo",))
    await tokens.revoke(ADMIN, "ann")
    assert await mail.office.registry.find(ADMIN, EndpointFilter(target_repo="repo")) == [other]
    assert (await mail.office.registry.get(ADMIN, hers.id)).ended_at is not None
    assert only(await mail.wake()).endpoint_id == other.id
