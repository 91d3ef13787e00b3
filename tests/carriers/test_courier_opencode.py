"""The courier and the opencode carrier together, against fake servers: turns, urgency, faults and several servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from postroom.carriers import courier as courier_module
from postroom.carriers import opencode
from postroom.carriers.envelope import parse
from postroom.message import Cause, Priority
from tests.carriers.rig import PostRig
from tests.opencode.fake import FakeOpencode, FakeSession
from tests.processes import until

NewFake = Callable[..., Awaitable[FakeOpencode]]


def order(session: FakeSession) -> list[str]:
    """The ids of the messages that a session was sent, in order."""
    return [parse(text).msg_id for text in session.texts]


async def test_eight_messages_are_eight_turns_in_order(rig: PostRig, fake: FakeOpencode) -> None:  # P1, P20
    session = fake.session("a", "/home/a")
    fake.think = 0.005
    rig.opencode(fake)
    ids = [await rig.admit("ses_a", f"message {number}") for number in range(8)]
    await rig.reach_state("injected", *ids)
    await until(lambda: len(fake.turns) == 8, "each is answered")
    assert order(session) == ids
    assert [len(turn) for turn in fake.turns] == [1] * 8
    assert (session.overlaps, fake.peak_turns["ses_a"], fake.peak_calls["ses_a"], fake.prefills) == (0, 1, 1, 0)
    assert set(fake.headers) == {"/home/a"}

    async def answered() -> bool:
        return (await rig.delivery(ids[-1])).answered_at is not None

    await until(answered, "the last answer is noted")
    for id_ in ids:
        found = await rig.delivery(id_)
        assert found.delivered_at is not None
        assert found.answered_at is not None
        assert found.attempt_count == 1


@pytest.mark.parametrize("many", [4, 50])
async def test_concurrent_sends_never_overlap(rig: PostRig, fake: FakeOpencode, many: int) -> None:  # P1, P20
    session = fake.session("a")
    fake.racing = True
    rig.opencode(fake)
    ids = await asyncio.gather(*(rig.admit("ses_a") for _ in range(many)))
    await rig.reach_state("injected", *ids, seconds=60)
    assert sorted(order(session)) == sorted(ids)
    assert (session.overlaps, fake.peak_turns["ses_a"], fake.peak_calls["ses_a"]) == (0, 1, 1)


async def test_the_same_sends_made_directly_do_overlap(fake: FakeOpencode) -> None:  # P20
    from postroom.carriers.opencode_server import OpencodeServer, ServerLink

    session = fake.session("a", "/home/a")
    fake.racing = True
    fake.hold()
    link = ServerLink(OpencodeServer(fake.url))

    async def send(directory: str) -> None:
        body = {"parts": [{"type": "text", "text": "x"}]}
        reply = await link.ask("POST", "/session/ses_a/prompt_async", seconds=30, directory=directory, body=body)
        assert reply.status == 204

    await asyncio.gather(*(send(f"/home/{place}") for place in "abcd"))
    await until(lambda: session.running > 1, "turns run beside each other")
    fake.release()
    await link.close()
    assert session.overlaps == 3


async def test_urgent_overtakes_and_does_not_wait_for_the_turn(rig: PostRig, fake: FakeOpencode) -> None:
    session = fake.session("a")
    fake.hold()
    rig.opencode(fake)
    first, second = await rig.admit("ses_a"), await rig.admit("ses_a")
    await rig.reach_state("injected", first)
    await until(lambda: session.running, "its turn runs")
    urgent = await rig.admit("ses_a", priority=Priority.URGENT)
    await rig.reach_state("injected", urgent)
    assert (await rig.delivery(second)).attempt_count == 0
    fake.release()
    await rig.reach_state("injected", second)
    assert order(session) == [first, urgent, second]
    assert session.overlaps == 1


async def test_a_user_who_types_is_waited_for(rig: PostRig, fake: FakeOpencode) -> None:  # P1
    session = fake.session("a")
    fake.hold()
    fake._take(session, "msg_000000000000user", [{"id": "prt_1", "type": "text", "text": "typed"}], session.directory)
    await until(lambda: session.state == "busy", "the session is at work")
    rig.opencode(fake)
    id_ = await rig.admit("ses_a")

    async def deferred() -> bool:
        return (await rig.delivery(id_)).deferred_reason == opencode.AT_WORK

    await until(deferred, "it waits")
    assert (await rig.delivery(id_)).attempt_count == 0
    fake.release()
    await rig.reach_state("injected", id_)
    assert session.overlaps == 0


async def test_a_turn_that_never_begins_holds_the_next_for_a_moment_only(
    rig: PostRig, fake: FakeOpencode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencode, "LOST_SECONDS", 0.2)
    fake.session("a")
    fake.silent.add("ses_a")
    rig.opencode(fake)
    first, second = await rig.admit("ses_a"), await rig.admit("ses_a")
    await rig.reach_state("injected", first, second)
    lost = await rig.delivery(first)
    assert (lost.seen_at, lost.answered_at) == (None, None)
    assert "does not show it" in (lost.last_failure_reason or "")


@pytest.mark.parametrize("events", [True, False])
async def test_a_basic_server_gets_one_call_at_a_time(rig: PostRig, new_fake: NewFake, events: bool) -> None:  # P1
    fake = await new_fake(basic=True)
    if events:
        fake.missing.discard("event")
    session = fake.session("a", "/home/a")
    carrier = rig.opencode(fake)
    ids = [await rig.admit("ses_a") for _ in range(6)]
    await rig.reach_state("injected", *ids)
    assert order(session) == ids
    assert fake.peak_calls["ses_a"] == 1
    assert carrier.status()["servers"][0]["basic"]
    assert await rig.turn_of("opencode:ses_a") is None


async def test_a_server_that_is_down_costs_attempts_and_what_waits_goes_when_it_is_back(
    rig: PostRig, fake: FakeOpencode
) -> None:  # P6, P13
    session = fake.session("a")
    await fake.kill()
    rig.opencode(fake)
    ids = [await rig.admit("ses_a") for _ in range(2)]

    async def tried() -> bool:
        return "cannot be reached" in ((await rig.delivery(ids[0])).last_failure_reason or "")

    await until(tried, "it was tried")
    assert (await rig.delivery(ids[0])).attempt_count > 0
    await fake.start()
    await rig.reach_state("injected", *ids)
    assert sorted(order(session)) == sorted(ids)


async def test_a_server_that_is_killed_in_a_turn_and_started_again(
    rig: PostRig, fake: FakeOpencode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencode, "LOST_SECONDS", 0.3)
    session = fake.session("a")
    fake.hold()
    rig.opencode(fake)
    first, second = await rig.admit("ses_a"), await rig.admit("ses_a")
    await until(lambda: session.running, "the turn runs")
    await rig.reach_state("injected", first)
    await fake.kill()
    fake.release()
    await fake.start()
    await rig.reach_state("injected", second)
    assert order(session) == [first, second]
    assert (await rig.delivery(first)).answered_at is None


async def test_sessions_of_several_servers_while_one_hangs(
    rig: PostRig, new_fake: NewFake, monkeypatch: pytest.MonkeyPatch
) -> None:  # P12, P22
    monkeypatch.setattr(courier_module, "CLOSE_SECONDS", 0.1)
    servers = [await new_fake() for _ in range(3)]
    sessions = [fake.session(f"{place}x{number}") for place, fake in enumerate(servers) for number in range(15)]
    servers[0].hanging.add("*")
    rig.opencode(*servers, at_work=4)
    ids = {session.id: await rig.admit(session.id) for session in sessions}
    await rig.reach_state("injected", *(ids[session.id] for session in sessions[15:]))
    assert all(order(session) == [ids[session.id]] for session in sessions[15:])
    assert not servers[0].prompts
    await rig.close()


async def test_one_session_that_hangs_holds_no_other_of_its_server(
    rig: PostRig, fake: FakeOpencode, monkeypatch: pytest.MonkeyPatch
) -> None:  # P12
    monkeypatch.setattr(courier_module, "CLOSE_SECONDS", 0.1)
    sessions = [fake.session(f"{number}") for number in range(40)]
    fake.hanging.add("ses_0")
    rig.opencode(fake, at_work=2)
    ids = {session.id: await rig.admit(session.id) for session in sessions}
    await rig.reach_state("injected", *(ids[session.id] for session in sessions[1:]))
    assert (await rig.delivery(ids["ses_0"])).state == "pending"
    await rig.close()


async def test_a_session_that_is_no_more_fails_its_messages_at_once(rig: PostRig, fake: FakeOpencode) -> None:  # P6
    fake.session("a")
    rig.opencode(fake)
    first = await rig.admit("ses_a")
    await rig.reach_state("injected", first)
    fake._delete("ses_a")
    second, third = await rig.admit("ses_a"), await rig.admit("ses_never")
    await rig.reach_state("failed", second, third)
    for id_ in (second, third):
        found = await rig.delivery(id_)
        assert (found.reason, found.last_failure_reason) == (Cause.NO_SUCH_TARGET, opencode.NO_SESSION)


async def test_an_answer_that_was_lost_is_no_second_message(rig: PostRig, fake: FakeOpencode) -> None:  # P1
    session = fake.session("a")
    fake.lose_answers = 1
    rig.opencode(fake)
    ids = [await rig.admit("ses_a") for _ in range(3)]
    await rig.reach_state("injected", *ids)
    assert order(session) == ids


async def test_events_that_stop_coming_cost_time_only(rig: PostRig, fake: FakeOpencode) -> None:
    session = fake.session("a")
    fake.missing.add("event")
    fake.hold()
    rig.opencode(fake)
    ids = [await rig.admit("ses_a") for _ in range(3)]
    await rig.reach_state("injected", ids[0])
    fake.missing.discard("event")
    fake.release()
    await rig.reach_state("injected", *ids)
    assert order(session) == ids
