"""The courier against the real opencode: the race that it ends, and turns one by one (marked `opencode`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from postroom.carriers import opencode as carrier_module
from postroom.carriers.envelope import parse
from postroom.carriers.opencode import OpencodeCarrier
from postroom.carriers.opencode_server import OpencodeServer
from postroom.errors import Invalid
from postroom.message import Priority
from postroom.store.sqlite import SqliteEngine
from tests.carriers.rig import PostRig
from tests.opencode.model import PREFILL, ModelServer
from tests.opencode.real import CURRENT, RACING, VERSIONS, RealOpencode
from tests.processes import until

pytestmark = pytest.mark.opencode

SECONDS = 120.0

NewOpencode = Callable[..., Awaitable[RealOpencode]]


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    """A model that refuses a conversation which ends with its own words."""
    made = await ModelServer(strict=True).start()
    yield made
    await made.stop()


@pytest.fixture
async def new_opencode(tmp_path: Path, model: ModelServer) -> AsyncIterator[NewOpencode]:
    """Starts real servers that end with the test."""
    made: list[RealOpencode] = []

    async def start(version: str, password: str | None = None) -> RealOpencode:
        folder = tmp_path / f"opencode{len(made)}"
        folder.mkdir()
        made.append(RealOpencode(version, folder, model, password))
        return await made[-1].start()

    yield start
    for one in made:
        await one.close()


@pytest.fixture
async def rig(tmp_path: Path, clock: Callable[[], int]) -> AsyncIterator[PostRig]:
    """One daemon's post on SQLite."""
    engine = SqliteEngine(tmp_path / "postroom.db", clock)
    await engine.open()
    made = PostRig(engine)
    yield made
    await made.close()
    await engine.close()


def carry(rig: PostRig, *servers: RealOpencode) -> OpencodeCarrier:
    """A carrier to these servers and its courier."""
    carrier = OpencodeCarrier([OpencodeServer(server.url, server.password) for server in servers])
    rig.courier(carrier)
    return carrier


async def story(server: RealOpencode, session: str) -> list[tuple[str, str | None]]:
    """The transcript as the ids of our messages, each with the error of its own answer, or `-` where it has none."""
    ours: dict[str, str] = {}
    told: dict[str, str | None] = {}
    for record in await server.messages(session):
        info = record["info"]
        if info["role"] != "user":
            continue
        try:
            id_ = parse("".join(part.get("text", "") for part in record["parts"])).msg_id
        except Invalid:
            continue
        ours[info["id"]] = id_
        told[id_] = "-"
    for parent, error in await server.answered(session):
        if parent in ours:
            told[ours[parent]] = error
    return list(told.items())


async def all_answered(server: RealOpencode, session: str, ids: list[str]) -> None:
    """Wait until each of these has its own answer, in this order."""

    async def done() -> bool:
        return await story(server, session) == [(id_, None) for id_ in ids]

    await until(done, "each message is answered in order", SECONDS)


async def race(server: RealOpencode, model: ModelServer) -> list[object]:
    """Prompts for one session from two directories, the later ones while the first is answered: the errors it ends in."""
    session = await server.session()
    text = f"[[session {session}]] hello"
    await server.prompt(session, text)
    await until(lambda: model.at_once[session], "the first turn runs", SECONDS)
    await asyncio.gather(*(server.prompt(session, text, server.folder / "elsewhere") for _ in range(3)))
    await until(lambda: model.peak[session] > 1, "a second turn runs beside it", SECONDS)
    await until(lambda: server.idle(session), "the turns end", SECONDS)
    return [record["info"].get("error") for record in await server.messages(session)]


async def test_direct_sends_race(new_opencode: NewOpencode, model: ModelServer) -> None:  # P1
    server = await new_opencode(RACING)
    model.think = 1.0
    said: list[object] = []
    # Once is enough; a few tries, since it is a race.
    for _ in range(5):
        said += await race(server, model)
        if model.prefills:
            break
    assert model.prefills
    assert any(PREFILL in str(error) for error in said)


@pytest.mark.parametrize("many", [4, 50])
async def test_through_the_courier_nothing_races(
    new_opencode: NewOpencode, model: ModelServer, rig: PostRig, many: int
) -> None:  # P1, P20
    server = await new_opencode(RACING)
    session = await server.session()
    carry(rig, server)
    ids = await asyncio.gather(*(rig.admit(session, f"message {number}") for number in range(many)))
    await rig.reach_state("injected", *ids, seconds=SECONDS)

    async def done() -> bool:
        found = await story(server, session)
        return sorted(found) == sorted((id_, None) for id_ in ids)

    await until(done, "each is answered", SECONDS)
    assert (model.peak[session], model.prefills) == (1, 0)
    assert len(model.asked) == many


@pytest.mark.parametrize("version", VERSIONS)
async def test_eight_messages_are_eight_turns_in_order_and_urgent_overtakes(
    new_opencode: NewOpencode, model: ModelServer, rig: PostRig, version: str
) -> None:  # P1
    server = await new_opencode(version)
    session = await server.session()
    carry(rig, server)
    ids = [await rig.admit(session, f"message {number}", tell=False) for number in range(8)]
    rig.wake.post([f"opencode:{session}"])
    await rig.reach_state("injected", *ids, seconds=SECONDS)
    await all_answered(server, session, ids)
    assert (model.peak[session], model.prefills, len(model.asked)) == (1, 0, 8)

    model.think = 1.0
    first, second = await rig.admit(session), await rig.admit(session)
    await rig.reach_state("injected", first, seconds=SECONDS)
    urgent = await rig.admit(session, priority=Priority.URGENT)
    await rig.reach_state("injected", urgent, seconds=SECONDS)
    assert (await rig.delivery(second)).attempt_count == 0
    model.think = 0.0
    await rig.reach_state("injected", second, seconds=SECONDS)
    assert [id_ for id_, _ in await story(server, session)] == [*ids, first, urgent, second]
    assert model.peak[session] == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_killed_between_write_and_settle_it_is_there_once(
    new_opencode: NewOpencode, model: ModelServer, rig: PostRig, version: str
) -> None:  # P1, P21
    server = await new_opencode(version)
    session = await server.session()
    settle, asked = rig.dispatch.settle, asyncio.Event()

    async def never(*given: object, **more: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    rig.dispatch.settle = never  # type: ignore[method-assign]
    carry(rig, server)
    first = await rig.admit(session)
    async with asyncio.timeout(SECONDS):
        await asked.wait()
    await rig.crash(rig.couriers[0])
    rig.dispatch.settle = settle  # type: ignore[method-assign]
    second = await rig.admit(session, tell=False)
    rig.store.skew += 30_001
    await rig.dispatch.sweep(100)
    rig.store.skew += 60_001
    carry(rig, server)
    await rig.reach_state("injected", first, second, seconds=SECONDS)
    await all_answered(server, session, [first, second])
    assert len(model.asked) == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_that_is_killed_in_a_turn(
    new_opencode: NewOpencode, model: ModelServer, rig: PostRig, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier_module, "LOST_SECONDS", 1.0)
    server = await new_opencode(version)
    session = await server.session()
    carry(rig, server)
    model.think = 600.0
    first = await rig.admit(session)
    await rig.reach_state("injected", first, seconds=SECONDS)
    await until(lambda: model.at_once[session], "the turn runs", SECONDS)
    server.kill()
    model.think = 0.0
    await server.start()
    second = await rig.admit(session)
    await rig.reach_state("injected", second, seconds=SECONDS)

    async def answered() -> bool:
        return (second, None) in await story(server, session)

    await until(answered, "the next is answered", SECONDS)
    assert (await rig.delivery(first)).answered_at is None


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_model_that_fails_ends_the_turn_and_one_that_stumbles_does_not(
    new_opencode: NewOpencode, model: ModelServer, rig: PostRig, version: str
) -> None:
    server = await new_opencode(version)
    session = await server.session()
    carry(rig, server)
    model.faults = [400, 500]
    ids = [await rig.admit(session) for _ in range(3)]
    await rig.reach_state("injected", *ids, seconds=SECONDS)

    async def done() -> bool:
        return await story(server, session) == [(ids[0], "APIError"), (ids[1], None), (ids[2], None)]

    await until(done, "the first failed, the others did not", SECONDS)

    async def noted() -> bool:
        return "APIError" in ((await rig.delivery(ids[0])).last_failure_reason or "")

    await until(noted, "the failure is noted")
    assert model.peak[session] == 1


async def test_a_password(new_opencode: NewOpencode, model: ModelServer, rig: PostRig) -> None:
    server = await new_opencode(CURRENT, "s3cret")
    session = await server.session()
    carrier = carry(rig, server)
    await until(lambda: carrier.status()["servers"][0]["connected"], "events arrive", SECONDS)
    id_ = await rig.admit(session)
    await rig.reach_state("injected", id_, seconds=SECONDS)
    await all_answered(server, session, [id_])


async def test_sessions_of_two_versions_side_by_side(new_opencode: NewOpencode, rig: PostRig) -> None:  # P22
    servers = [await new_opencode(version) for version in VERSIONS]
    carry(rig, *servers)
    for server in servers:
        session = await server.session()
        ids = [await rig.admit(session) for _ in range(2)]
        await rig.reach_state("injected", *ids, seconds=SECONDS)
        await all_answered(server, session, ids)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_session_that_is_no_more_and_one_that_never_was(
    new_opencode: NewOpencode, rig: PostRig, version: str
) -> None:  # P6
    server = await new_opencode(version)
    session = await server.session()
    carry(rig, server)
    await rig.reach_state("injected", await rig.admit(session), seconds=SECONDS)
    answer = await server._client.delete(f"{server.url}/session/{session}")
    assert answer.status_code == 200
    ids = [await rig.admit(session), await rig.admit("ses_neverwas")]
    await rig.reach_state("failed", *ids, seconds=SECONDS)
    assert {(await rig.delivery(id_)).reason for id_ in ids} == {"no_such_target"}
