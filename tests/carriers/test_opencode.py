"""The opencode carrier against a fake server in all its quirks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from postroom.carriers import opencode, opencode_places
from postroom.carriers.carrier import FREE, Standing, Turn, Writing
from postroom.carriers.envelope import of_parcel, parse
from postroom.carriers.opencode import OpencodeCarrier
from postroom.carriers.opencode_server import OpencodeServer
from postroom.carriers.opencode_transcript import id_for, mark_of
from postroom.endpoint import CarrierKind, Endpoint
from postroom.errors import Invalid
from postroom.message import Parcel, Priority, Written
from tests.carriers.parcels import parcel
from tests.opencode.fake import FakeOpencode
from tests.processes import until

NewFake = Callable[..., Awaitable[FakeOpencode]]


class Seconds:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def carrying(
    *fakes: FakeOpencode, events: bool = False, clock: Seconds | None = None
) -> AsyncIterator[OpencodeCarrier]:
    """A carrier to these servers; with events, once it reads those of each."""
    servers = [OpencodeServer(fake.url, fake.password) for fake in fakes]
    carrier = OpencodeCarrier(servers) if clock is None else OpencodeCarrier(servers, clock)
    running = asyncio.create_task(carrier.run()) if events else None
    try:
        if events:
            await until(lambda: all(server["connected"] for server in carrier.status()["servers"]), "events arrive")
        yield carrier
    finally:
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await carrier.close()


async def ended(carrier: OpencodeCarrier, sent: Parcel) -> Turn:
    """What the turn of a parcel came to."""

    async def over() -> Turn | None:
        turn = (await carrier.progress(sent)).turn
        return turn if turn in {Turn.ANSWERED, Turn.LOST} else None

    found = await until(over, "the turn is over")
    assert isinstance(found, Turn)
    return found


# Where sessions live.


async def test_the_directory_is_looked_up_kept_for_five_minutes_and_always_sent(fake: FakeOpencode) -> None:  # P15, P22
    fake.session("a", "/home/a")
    clock = Seconds()
    async with carrying(fake, clock=clock) as carrier:
        for number in range(3):
            assert (await carrier.write(parcel("ses_a", str(number)))).outcome is Written.WRITTEN
        assert fake.calls["GET ses_a"] == 1
        clock.now += opencode_places.KEEP_SECONDS - 1
        await carrier.write(parcel("ses_a"))
        assert fake.calls["GET ses_a"] == 1
        clock.now += 2
        await carrier.write(parcel("ses_a"))
        assert fake.calls["GET ses_a"] == 2
        assert set(fake.headers) == {"/home/a"}


async def test_a_404_drops_the_place_and_it_is_looked_up_anew(new_fake: NewFake) -> None:  # P15
    old, new = await new_fake(), await new_fake()
    old.session("a", "/home/old")
    async with carrying(old, new) as carrier:
        assert (await carrier.write(parcel("ses_a"))).outcome is Written.WRITTEN
        del old.sessions["ses_a"]
        moved = new.session("a", "/home/new")
        assert (await carrier.write(parcel("ses_a", "again"))).outcome is Written.WRITTEN
        assert len(moved.texts) == 1
        assert new.headers == ["/home/new"]


async def test_a_session_is_looked_up_where_it_lives_and_a_hanging_server_is_not_waited_for(
    new_fake: NewFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencode, "LOOK_SECONDS", 600.0)
    hung, other, home = await new_fake(), await new_fake(), await new_fake()
    hung.hanging.add("*")
    session = home.session("a")
    async with carrying(hung, other, home) as carrier:
        async with asyncio.timeout(30):
            assert await carrier.look(parcel("ses_a")) == FREE
        assert (await carrier.write(parcel("ses_a"))).outcome is Written.WRITTEN
    assert len(session.texts) == 1
    assert not other.prompts


async def test_absent_is_permanent(fake: FakeOpencode) -> None:  # P6
    async with carrying(fake) as carrier:
        assert (await carrier.look(parcel("ses_no"))).standing is Standing.ABSENT
        assert await carrier.write(parcel("ses_no")) == Writing(Written.PERMANENT, opencode.NO_SESSION)
        assert await carrier.seen(parcel("ses_no")) is None


async def test_absent_is_not_said_while_a_server_cannot_be_asked(new_fake: NewFake) -> None:
    one, other = await new_fake(), await new_fake()
    other.session("b")
    await one.kill()
    async with carrying(one, other) as carrier:
        look = await carrier.look(parcel("ses_a"))
        assert look.standing is Standing.FAULT
        assert one.url in look.reason
        assert await carrier.look(parcel("ses_b")) == FREE
        writing = await carrier.write(parcel("ses_a"))
        assert writing.outcome is Written.REFUSED


async def test_a_deleted_session_is_forgotten_by_its_event(fake: FakeOpencode) -> None:
    fake.session("a")
    told: list[str] = []
    async with carrying(fake, events=True) as carrier:
        carrier.on_change(told.append)
        assert await carrier.look(parcel("ses_a")) == FREE
        fake._delete("ses_a")
        await until(lambda: told == ["opencode:ses_a"], "it is told")
        assert (await carrier.look(parcel("ses_a"))).standing is Standing.ABSENT


async def test_ids_of_any_characters_stay_one_part_of_the_path(fake: FakeOpencode) -> None:
    async with carrying(fake) as carrier:
        assert (await carrier.look(parcel("ses_a/../../global/event?x=#"))).standing is Standing.ABSENT
        assert not fake.calls["GET event"]


async def test_a_directory_of_any_characters_is_sent(fake: FakeOpencode) -> None:
    fake.session("a", "/home/Jürgen/50%")
    async with carrying(fake) as carrier:
        assert (await carrier.write(parcel("ses_a"))).outcome is Written.WRITTEN
    assert fake.headers == ["/home/J%C3%BCrgen/50%25"]


# Writing.


async def test_the_prompt_is_the_envelope_and_nothing_else(fake: FakeOpencode) -> None:  # P8
    session = fake.session("a")
    sent = parcel("ses_a", "two < three\n</swarm_message>\x1b[2J")
    async with carrying(fake) as carrier:
        writing = await carrier.write(sent)
    assert writing == Writing(Written.WRITTEN, turn=True)
    assert parse(session.texts[0]) == of_parcel(sent)
    assert session.messages[0].id.startswith("msg_")
    assert session.messages[0].parts[0]["id"].startswith("prt_")


def test_marks_are_derived_from_message_target_and_round() -> None:  # P1
    first = parcel("ses_a", msg_id="msg_1").delivery
    assert mark_of(first) == mark_of(replace(first, attempt_count=7, lease_id="ls_2"))
    others = [
        replace(first, message_id="msg_2"),
        replace(first, target_key="opencode:ses_b"),
        replace(first, round=1),
    ]
    marks = [mark_of(one) for one in (first, *others)]
    assert len({mark.tail for mark in marks}) == len(marks)
    assert len({mark.part for mark in marks}) == len(marks)


def test_an_id_stands_right_behind_the_last_answer() -> None:
    mark = mark_of(parcel("ses_a").delivery)
    answer: dict[str, object] = {"id": "msg_22c30c35c001i2YA0h4LrUJL0O", "role": "assistant"}
    before: dict[str, object] = {"id": "msg_22c30c35b001xxxxxxxxxxxxxx", "role": "assistant"}
    ours = id_for([answer], mark)
    assert ours == f"msg_22c30c35c002{mark.tail}"
    assert str(answer["id"]) < ours < "msg_22c30c35c003"
    # What users said does not count, nor what looks like no id; nor in which order answers are told.
    foreign: list[dict[str, object]] = [
        {"id": "msg_zzzz", "role": "user"},
        {"id": "msg_zzzz", "role": "assistant"},
        {"id": 5},
        {},
    ]
    assert id_for([answer, before, *foreign], mark) == ours
    assert id_for([], mark) == f"msg_000000000001{mark.tail}"
    # One that is there already keeps its id, whatever was answered since.
    assert (
        id_for([{"id": "msg_000000000001" + mark.tail, "role": "user"}, answer], mark) == f"msg_000000000001{mark.tail}"
    )


async def test_a_repeat_is_one_message_and_one_turn(fake: FakeOpencode) -> None:  # P1
    session = fake.session("a")
    sent = parcel("ses_a")
    async with carrying(fake) as carrier:
        for _ in range(3):
            assert (await carrier.write(sent)).outcome is Written.WRITTEN
        assert await ended(carrier, sent) is Turn.ANSWERED
        await carrier.write(sent)
    assert len(session.texts) == 1
    assert len(session.messages[0].parts) == 1
    assert len(fake.turns) == 1


async def test_one_message_to_two_sessions_has_two_ids(fake: FakeOpencode) -> None:
    one, other = fake.session("a"), fake.session("b")
    async with carrying(fake) as carrier:
        for session in ("ses_a", "ses_b"):
            await carrier.write(parcel(session, msg_id="msg_1"))
    assert len(one.texts) == len(other.texts) == 1


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Written.REFUSED),
        (401, Written.REFUSED),
        (429, Written.REFUSED),
        (500, Written.REFUSED),
        (502, Written.UNKNOWN),
        (503, Written.REFUSED),
        (504, Written.UNKNOWN),
    ],
)
async def test_refusals(fake: FakeOpencode, status: int, outcome: Written) -> None:  # P6
    fake.session("a")
    fake.refuse.append(status)
    async with carrying(fake) as carrier:
        writing = await carrier.write(parcel("ses_a"))
        assert writing.outcome is outcome
        assert writing.reason is not None
        assert str(status) in writing.reason
        assert "ordered by the test" in writing.reason
        assert not carrier.status()["turns_awaited"]


async def test_a_session_that_is_there_and_takes_no_prompt_is_refused_not_absent(fake: FakeOpencode) -> None:
    fake.session("a")
    fake.refuse += [404, 404]
    async with carrying(fake) as carrier:
        assert (await carrier.write(parcel("ses_a"))).outcome is Written.REFUSED


async def test_a_server_that_is_down_is_refused_since_nothing_was_sent(fake: FakeOpencode) -> None:
    fake.session("a")
    async with carrying(fake) as carrier:
        assert await carrier.look(parcel("ses_a")) == FREE
        await fake.kill()
        assert (await carrier.write(parcel("ses_a"))).outcome is Written.REFUSED
        assert (await carrier.look(parcel("ses_a"))).standing is Standing.FAULT


async def test_a_lost_answer_is_looked_for(fake: FakeOpencode) -> None:
    session = fake.session("a")
    fake.lose_answers = 1
    async with carrying(fake) as carrier:
        assert await carrier.write(parcel("ses_a")) == Writing(Written.WRITTEN, turn=True)
        assert len(session.texts) == 1
        fake.lose_answers, fake.silent = 1, {"ses_a"}
        assert (await carrier.write(parcel("ses_a"))).outcome is Written.REFUSED


async def test_a_server_that_hangs_is_unknown_within_the_deadline(
    fake: FakeOpencode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencode, "WRITE_SECONDS", 0.05)
    fake.session("a")
    fake.hanging.add("ses_a")
    async with carrying(fake) as carrier:
        assert await carrier.look(parcel("ses_a")) == FREE
        assert (await carrier.write(parcel("ses_a"))).outcome is Written.UNKNOWN
        fake.hanging = {"*"}
        monkeypatch.setattr(opencode, "LOOK_SECONDS", 0.2)
        assert (await carrier.look(parcel("ses_a"))).standing is Standing.FAULT
        assert await carrier.seen(parcel("ses_a")) is None
        assert (await carrier.progress(parcel("ses_a"))).turn is Turn.UNKNOWN


async def test_the_password_is_sent_and_never_shown(new_fake: NewFake) -> None:
    fake = await new_fake("s3cret")
    fake.session("a")
    async with carrying(fake, events=True) as carrier:
        assert (await carrier.write(parcel("ses_a"))).outcome is Written.WRITTEN
        assert "s3cret" not in str(carrier.status())
    assert "s3cret" not in repr(OpencodeServer(fake.url, fake.password))
    assert OpencodeServer("http://u:pw@127.0.0.1:1/x/").shown == "http://127.0.0.1:1/x"


async def test_a_wrong_password_is_a_fault_that_says_so(new_fake: NewFake) -> None:
    fake = await new_fake("s3cret")
    fake.session("a")
    carrier = OpencodeCarrier([OpencodeServer(fake.url, "wrong")])
    look = await carrier.look(parcel("ses_a"))
    await carrier.close()
    assert look.standing is Standing.FAULT
    assert "401" in look.reason


# Busy and free.


@pytest.mark.parametrize("events", [True, False])
async def test_a_session_at_work_is_busy_and_urgent_does_not_wait(fake: FakeOpencode, events: bool) -> None:  # P1
    fake.session("a", "/home/a")
    fake.hold()
    async with carrying(fake, events=events) as carrier:
        assert await carrier.look(parcel("ses_a")) == FREE
        await carrier.write(parcel("ses_a"))

        async def busy() -> bool:
            return (await carrier.look(parcel("ses_a"))).standing is Standing.BUSY

        await until(busy, "it is busy")
        assert await carrier.look(parcel("ses_a", priority=Priority.URGENT)) == FREE
        fake.release()

        async def free() -> bool:
            return not await busy()

        await until(free, "it is free")


async def test_events_spare_the_looks(fake: FakeOpencode) -> None:
    for number in range(20):
        fake.session(f"a{number}")
    async with carrying(fake, events=True) as carrier:
        for _ in range(3):
            for number in range(20):
                assert await carrier.look(parcel(f"ses_a{number}")) == FREE
    assert fake.calls["GET status"] == 1


async def test_a_stream_that_ends_is_opened_again_and_what_it_told_is_not_trusted(fake: FakeOpencode) -> None:
    fake.session("a")
    async with carrying(fake, events=True) as carrier:
        assert await carrier.look(parcel("ses_a")) == FREE
        fake.drop_streams()
        await until(lambda: fake.calls["GET event"] >= 2 and carrier.status()["servers"][0]["connected"], "it is back")
        before = fake.calls["GET status"]
        assert await carrier.look(parcel("ses_a")) == FREE
        assert fake.calls["GET status"] == before + 1


async def test_a_server_that_was_restarted_is_found_again(fake: FakeOpencode) -> None:
    fake.session("a")
    async with carrying(fake, events=True) as carrier:
        assert await carrier.look(parcel("ses_a")) == FREE
        await fake.kill()
        await until(lambda: not carrier.status()["servers"][0]["connected"], "its end is seen")
        await fake.start()
        await until(lambda: carrier.status()["servers"][0]["connected"], "it is found again")
        assert (await carrier.write(parcel("ses_a"))).outcome is Written.WRITTEN


async def test_going_idle_is_told(fake: FakeOpencode) -> None:  # P12
    fake.session("a")
    told: list[str] = []
    async with carrying(fake, events=True) as carrier:
        carrier.on_change(told.append)
        await carrier.write(parcel("ses_a"))
        await until(lambda: told == ["opencode:ses_a"], "it is told")
        assert fake.turns


async def test_nonsense_among_the_events_is_passed_over(fake: FakeOpencode) -> None:
    fake.session("a")
    told: list[str] = []
    nonsense: list[object] = [
        None,
        1,
        [],
        {},
        {"payload": 1},
        {"payload": {"type": "session.idle", "properties": None}},
        {"payload": {"type": "session.status", "properties": {"sessionID": 5, "status": 7}}},
        {"payload": {"type": "session.status", "properties": {"sessionID": "ses_a", "status": {"type": 7}}}},
        {"payload": {"type": "message.updated", "properties": {"info": [1]}}},
        {"payload": {"type": "message.updated", "properties": {"info": {"role": "assistant", "parentID": "x"}}}},
        {"payload": {"type": "session.deleted", "properties": {"info": {}}}},
        {"payload": {"type": {}, "properties": {}}},
    ]
    async with carrying(fake, events=True) as carrier:
        carrier.on_change(told.append)
        for queue in fake._streams:
            for event in nonsense:
                fake._send(event)  # type: ignore[arg-type]
            queue.put_nowait("data: {not json\n\n: a comment\n\nevent: x\n\n")
        await carrier.write(parcel("ses_a"))
        await until(lambda: told == ["opencode:ses_a"], "the stream goes on")
        assert fake.calls["GET event"] == 1


# Turns.


@pytest.mark.parametrize("events", [True, False])
async def test_a_turn_is_watched_to_its_end(fake: FakeOpencode, events: bool) -> None:  # P1
    fake.session("a")
    fake.hold()
    async with carrying(fake, events=events) as carrier:
        sent = parcel("ses_a")
        await carrier.write(sent)
        # The very first look comes in the moment when the server shows nothing of the turn yet.
        for _ in range(3):
            progress = await carrier.progress(sent)
            assert (progress.turn, progress.seen) == (Turn.WORKING, True)
            await asyncio.sleep(0)
        fake.release()
        assert await ended(carrier, sent) is Turn.ANSWERED
        assert not carrier.status()["turns_awaited"]


async def test_turn_after_turn_is_answered_once(fake: FakeOpencode) -> None:
    fake.session("a")
    async with carrying(fake) as carrier:
        for number in range(5):
            sent = parcel("ses_a", str(number))
            await carrier.write(sent)
            assert await ended(carrier, sent) is Turn.ANSWERED
    assert len(fake.turns) == 5
    assert fake.prefills == 0


async def test_another_process_can_watch_the_turn(fake: FakeOpencode) -> None:
    fake.session("a")
    sent = parcel("ses_a")
    async with carrying(fake) as carrier:
        await carrier.write(sent)
    await until(lambda: fake.turns, "it is answered")
    async with carrying(fake) as carrier:
        assert (await carrier.progress(sent)).turn is Turn.ANSWERED


async def test_a_turn_that_ends_in_an_error_is_answered_and_says_so(fake: FakeOpencode) -> None:
    fake.session("a")
    fake.fail_turns = True
    sent = parcel("ses_a")
    async with carrying(fake, events=True) as carrier:
        await carrier.write(sent)
        await until(lambda: fake.turns, "it ended")
        progress = await until(lambda: _over(carrier, sent), "the end is seen")
    assert progress.turn is Turn.ANSWERED
    assert "APIError" in progress.reason


async def _over(carrier: OpencodeCarrier, sent: Parcel) -> object:
    progress = await carrier.progress(sent)
    return progress if progress.turn is not Turn.WORKING else None


async def test_merged_prompts_are_answered_together(fake: FakeOpencode) -> None:
    fake.session("a")
    fake.hold()
    async with carrying(fake) as carrier:
        sent = [parcel("ses_a", str(number), priority=Priority.URGENT) for number in range(3)]
        for one in sent:
            await carrier.write(one)
            await until(lambda: fake.sessions["ses_a"].running, "a turn runs")
        fake.release()
        for one in sent:
            assert await ended(carrier, one) is Turn.ANSWERED


@pytest.mark.parametrize("events", [True, False])
async def test_accepted_and_never_shown_is_lost(fake: FakeOpencode, events: bool) -> None:
    fake.session("a")
    fake.silent.add("ses_a")
    clock = Seconds()
    async with carrying(fake, events=events, clock=clock) as carrier:
        sent = parcel("ses_a")
        assert (await carrier.write(sent)).outcome is Written.WRITTEN
        assert (await carrier.progress(sent)).turn is Turn.WORKING
        clock.now += opencode.LOST_SECONDS + 0.1
        progress = await carrier.progress(sent)
        assert (progress.turn, progress.seen) == (Turn.LOST, False)


async def test_stored_and_never_answered_is_lost(fake: FakeOpencode) -> None:
    fake.session("a")
    fake.mute.add("ses_a")
    clock = Seconds()
    async with carrying(fake, clock=clock) as carrier:
        sent = parcel("ses_a")
        await carrier.write(sent)
        clock.now += opencode.LOST_SECONDS + 0.1
        progress = await carrier.progress(sent)
        assert (progress.turn, progress.seen) == (Turn.LOST, True)


async def test_a_turn_of_a_killed_server_is_lost(fake: FakeOpencode) -> None:
    fake.session("a")
    fake.hold()
    clock = Seconds()
    async with carrying(fake, clock=clock) as carrier:
        sent = parcel("ses_a")
        await carrier.write(sent)
        await until(lambda: fake.sessions["ses_a"].running, "it runs")
        await fake.kill()
        assert (await carrier.progress(sent)).turn is Turn.UNKNOWN
        await fake.start()
        clock.now += opencode.LOST_SECONDS + 0.1
        progress = await carrier.progress(sent)
        assert (progress.turn, progress.seen) == (Turn.LOST, True)


async def test_busy_then_idle_ends_an_aborted_turn_at_once(fake: FakeOpencode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencode, "LOST_SECONDS", 600.0)
    fake.session("a")
    fake.hold()
    async with carrying(fake, events=True) as carrier:
        sent = parcel("ses_a")
        await carrier.write(sent)
        await until(lambda: fake.sessions["ses_a"].running, "it runs")
        told: list[str] = []
        carrier.on_change(told.append)
        await fake._abort("ses_a")
        await until(lambda: told, "its end is told")
        assert await ended(carrier, sent) is Turn.LOST


async def test_a_turn_in_a_deleted_session_is_lost(fake: FakeOpencode) -> None:
    fake.session("a")
    async with carrying(fake) as carrier:
        sent = parcel("ses_a")
        await carrier.write(sent)
        fake._delete("ses_a")
        assert await ended(carrier, sent) is Turn.LOST


async def test_seen(fake: FakeOpencode) -> None:
    fake.session("a")
    sent = parcel("ses_a")
    async with carrying(fake) as carrier:
        assert await carrier.seen(sent) is False
        await carrier.write(sent)
        assert await carrier.seen(sent) is True
        next_round = replace(sent, delivery=replace(sent.delivery, round=1))
        assert await carrier.seen(next_round) is False


# Servers with the swarm's two routes alone.


async def test_a_basic_server_begins_no_turns_and_says_so(new_fake: NewFake) -> None:  # P1
    fake = await new_fake(basic=True)
    session = fake.session("a", "/home/a")
    async with carrying(fake) as carrier:
        for number in range(3):
            assert await carrier.look(parcel("ses_a")) == FREE
            assert await carrier.write(parcel("ses_a", str(number))) == Writing(Written.WRITTEN, turn=False)
        assert await carrier.seen(parcel("ses_a")) is None
        (server,) = carrier.status()["servers"]
        assert server["basic"]
        assert server["missing_routes"] == ["message", "status"]
        assert (await carrier.look(parcel("ses_no"))).standing is Standing.ABSENT
    assert len(session.texts) == 3
    assert set(fake.headers) == {"/home/a"}


async def test_a_basic_server_is_known_by_its_events_too(new_fake: NewFake) -> None:
    fake = await new_fake(basic=True)
    carrier = OpencodeCarrier([OpencodeServer(fake.url)])
    running = asyncio.create_task(carrier.run())
    await until(lambda: carrier.status()["servers"][0]["basic"], "it is known")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await carrier.close()


@pytest.mark.parametrize("route", ["event", "status", "message"])
async def test_a_server_without_one_of_the_routes(fake: FakeOpencode, route: str) -> None:
    fake.session("a")
    fake.missing.add(route)
    async with carrying(fake) as carrier:
        sent = parcel("ses_a")
        assert await carrier.look(sent) == FREE
        writing = await carrier.write(sent)
        assert writing.outcome is Written.WRITTEN
        if writing.turn:
            assert await ended(carrier, sent) is (Turn.ANSWERED if route == "event" else Turn.LOST)


# Endpoints.


def test_check_address() -> None:
    carrier = OpencodeCarrier([OpencodeServer("http://127.0.0.1:1")])
    assert carrier.check_address({"session": "ses_a1"}) == ({"session": "ses_a1"}, "opencode:ses_a1", "any")
    for address, field in (
        ({}, "address.session"),
        ({"session": 5}, "address.session"),
        ({"session": "msg_1"}, "address.session"),
        ({"session": "ses_" + "x" * 200}, "address.session"),
        ({"session": "ses_a", "url": "http://x"}, "address.url"),
    ):
        with pytest.raises(Invalid) as failed:
            carrier.check_address(address)
        assert failed.value.field == field


async def test_live(new_fake: NewFake) -> None:
    fake, other = await new_fake(), await new_fake()
    fake.session("a")
    async with carrying(fake, other) as carrier:
        assert await carrier.live(_endpoint("ses_a")) is True
        assert await carrier.live(_endpoint("ses_no")) is False
        await other.kill()
        assert await carrier.live(_endpoint("ses_no")) is None


def _endpoint(session: str) -> Endpoint:
    return Endpoint(
        seq=1,
        id="ep_1",
        name=None,
        carrier=CarrierKind.OPENCODE,
        address_json="{}",
        target_key=f"opencode:{session}",
        reach="any",
        ack_mode="injected",
        max_attempts=10,
        spill=False,
        rings=True,
        pid=None,
        created_by="root",
        created_at=1,
        seen_at=1,
        ended_at=None,
    )
