"""Daemons killed while they carry: each message is in its session's transcript once, and no session gets two at a time.

POST_KILLS=whole in the environment has the full measure: a hundred kills between a write and its settlement, and five
thousand messages to two hundred sessions by two daemons. POST_SEED has the same random choices again.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from postroom.carriers.envelope import parse
from postroom.delivery import LAPSED
from tests.opencode.fake import FakeOpencode
from tests.opencode.wire import Answer, Request
from tests.postgres import PostgresServer
from tests.processes import Processes, until
from tests.system.daemons import Daemon

pytestmark = [pytest.mark.system, pytest.mark.slow]

WHOLE = os.environ.get("POST_KILLS") == "whole"
SETTLE_S = 120.0
SEND_S = 60.0

Count = Callable[[str, object], None]


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it: kills, sessions, messages, and who sends at a time."""

    kills: int
    sessions: int
    messages: int = 0
    senders: int = 8


BETWEEN = Size(kills=100, sessions=8) if WHOLE else Size(kills=5, sessions=20)
TOGETHER = Size(kills=25, sessions=200, messages=5000) if WHOLE else Size(kills=4, sessions=40, messages=600)


class Stalling(FakeOpencode):
    """A server that takes the prompts of some sessions, and keeps the answer to itself while who asked is there."""

    def __init__(self) -> None:
        super().__init__()
        self.asker_gone = asyncio.Event()
        self.stalled: set[str] = set()
        self.taken: set[str] = set()
        self.took: Callable[[str], None] = lambda session: None
        """Called with each session whose prompt is answered in the next moment."""

    async def _prompt(self, request: Request, id_: str) -> Answer:
        answer = await super()._prompt(request, id_)
        if answer.status == 204 and id_ in self.stalled:
            self.stalled.discard(id_)
            self.taken.add(id_)
            await self.asker_gone.wait()
        self.took(id_)
        return answer


class Mail:
    """Who sends to the daemons, over their sockets, until each message is surely admitted."""

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        self.daemons = daemons
        self.sent: dict[str, str] = {}
        """The session that each admitted message was sent to."""
        self._clients = [
            httpx2.AsyncClient(
                transport=httpx2.AsyncHTTPTransport(uds=str(daemon.socket)), base_url="http://postroom", timeout=30.0
            )
            for daemon in daemons
        ]

    async def send(self, id_: str, session: str, priority: str = "normal", place: int = 0) -> None:
        """Send until it is admitted: a daemon that was killed may have admitted it before, which is the same."""
        body = {"from": "ses_sender", "to": session, "payload": id_, "msg_id": id_, "priority": priority}
        async with asyncio.timeout(SEND_S):
            while True:
                try:
                    answer = await self._clients[place % len(self._clients)].post("/v1/messages", json=body)
                except httpx2.TransportError:
                    await asyncio.sleep(0.02)
                    place += 1
                    continue
                if answer.status_code == 202:
                    self.sent[id_] = session
                    return
                assert answer.status_code == 503, answer.text
                await asyncio.sleep(0.02)

    async def all(self, **query: str) -> list[dict[str, Any]]:
        """Every message that there is, as the first daemon shows it."""
        found: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            answer = await self._clients[0].get("/v1/messages", params={"limit": "200", **query, **cursor})
            assert answer.status_code == 200, answer.text
            page = answer.json()
            found += page["messages"]
            if page["next_cursor"] is None:
                return found
            cursor = {"cursor": page["next_cursor"]}

    async def carried(self) -> dict[str, dict[str, Any]]:
        """The only delivery of each message, once none waits any more."""

        async def nothing_waits() -> bool:
            answer = await self._clients[0].get("/v1/messages", params={"state": "pending", "limit": "1"})
            await asyncio.sleep(0.2)
            return answer.status_code == 200 and not answer.json()["messages"]

        await until(nothing_waits, "everything is carried", SETTLE_S)
        return {one["id"]: one["deliveries"][0] for one in await self.all()}

    async def close(self) -> None:
        """Let go of the connections."""
        for client in self._clients:
            await client.aclose()


def transcript(fake: FakeOpencode, session: str) -> list[str]:
    """The ids of the messages that a session was told, in order."""
    return [parse(text).msg_id for text in fake.sessions[session].texts]


def check(mail: Mail, fake: FakeOpencode, deliveries: dict[str, dict[str, Any]]) -> Counter[str]:
    """Everything that was admitted stands in its own session's transcript once: how often each was prompted."""
    assert deliveries.keys() == mail.sent.keys()
    assert {one["state"] for one in deliveries.values()} == {"injected"}
    shown = {session: transcript(fake, session) for session in fake.sessions}
    where = [(id_, session) for session, ids in shown.items() for id_ in ids]
    assert sorted(where) == sorted(mail.sent.items())
    # No session was ever prompted while it was at work, or twice at once.
    assert [session.id for session in fake.sessions.values() if session.overlaps] == []
    assert max(fake.peak_turns.values()) == max(fake.peak_calls.values()) == 1
    return Counter(parse(prompt.text).msg_id for prompt in fake.prompts)


@pytest.fixture
def chance() -> random.Random:
    """Randomness whose seed is told; POST_SEED in the environment has the same choices again."""
    seed = int(os.environ.get("POST_SEED") or secrets.randbelow(1 << 32))
    print(f"POST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
async def fake() -> AsyncIterator[Stalling]:
    """A server whose turns take no time."""
    server = Stalling()
    await server.start()
    yield server
    await server.kill()


def settings(fake: FakeOpencode, lease_s: int) -> str:
    """What a daemon is told: where the sessions are, and to look soon for what may have been written."""
    return f'[[opencode]]\nurl = "{fake.url}"\n[post]\nlease_s = {lease_s}\nunknown_s = 1\n'


async def kill_between(daemon: Daemon, mail: Mail, fake: Stalling, turn: int, chance: random.Random) -> list[str]:
    """Kill the daemon while it has written to some sessions and settled none of it: the ids of those messages.

    To one more session the answer goes out, and the kill falls at some moment of the settlement.
    """
    names = [f"k{turn}n{number}" for number in range(BETWEEN.sessions)]
    first = [fake.session(name).id for name in names]
    fake.stalled |= set(first)
    fake.asker_gone.clear()
    await asyncio.gather(*(mail.send(f"{name}.1", f"ses_{name}") for name in names))
    await until(lambda: fake.taken >= set(first), "every session has its prompt", SETTLE_S)
    # These wait behind what is being written.
    await asyncio.gather(*(mail.send(f"{name}.2", f"ses_{name}") for name in names[::2]))
    last = fake.session(f"k{turn}last").id
    answered = asyncio.Event()
    fake.took = lambda session: answered.set() if session == last else None
    sending = asyncio.create_task(mail.send(f"k{turn}last.1", last))
    await answered.wait()
    await asyncio.sleep(chance.choice((0.0, 0.001, 0.002, 0.004)))
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(daemon.process.wait, 10)
    fake.asker_gone.set()
    await asyncio.to_thread(daemon.start)
    await sending
    return [f"{name}.1" for name in names]


# P1, P20, P21, T29: a restart loses nothing and repeats nothing.
async def test_a_daemon_killed_between_write_and_settlement(
    new_daemon: Callable[..., Daemon], fake: Stalling, chance: random.Random, record_property: Count
) -> None:
    began = time.monotonic()
    daemon = await asyncio.to_thread(new_daemon(settings(fake, 30)).start)
    mail = Mail([daemon])
    caught: list[str] = []
    for turn in range(BETWEEN.kills):
        caught += await kill_between(daemon, mail, fake, turn, chance)
    deliveries = await mail.carried()
    prompts = check(mail, fake, deliveries)
    await mail.close()
    # Each of these was under its lease when the daemon was killed, and was found where it had been written.
    assert all(deliveries[id_]["last_failure_reason"] == LAPSED for id_ in caught)
    assert all(deliveries[id_]["attempts"] > 1 for id_ in caught)
    again = sum(prompts.values()) - len(prompts)
    assert again == 0
    record_property(
        "counted",
        f"sqlite: kills={BETWEEN.kills} killed between write and settlement={len(caught)} messages={len(prompts)} "
        f"written twice={again} in {time.monotonic() - began:.0f} s",
    )


async def kill_now_and_then(
    daemons: Sequence[Daemon], database: PostgresServer, chance: random.Random, over: asyncio.Event
) -> None:
    """Kill one daemon after the other at random moments, and the database once; each is started again."""

    def kill(turn: int) -> None:
        if turn == TOGETHER.kills // 2:
            database.kill_immediate()
            database.start()
            return
        daemon = chance.choice(daemons)
        daemon.kill()
        daemon.start()

    for turn in range(TOGETHER.kills):
        await asyncio.sleep(chance.random())
        await asyncio.to_thread(kill, turn)
    over.set()


async def send_all(mail: Mail, chance: random.Random, over: asyncio.Event) -> dict[str, list[tuple[str, str]]]:
    """Send to every session, each message once the one before it is admitted, as long as daemons are killed: what was
    sent to each session in order, with the priority."""
    sessions = [f"ses_t{number}" for number in range(TOGETHER.sessions)]
    sent: dict[str, list[tuple[str, str]]] = {session: [] for session in sessions}
    each = TOGETHER.messages // TOGETHER.sessions

    async def sender(number: int) -> None:
        mine = sessions[number :: TOGETHER.senders]
        for turn in range(each):
            for session in mine:
                id_, priority = f"{session[4:]}.{turn}", chance.choice(("normal", "normal", "low"))
                await mail.send(id_, session, priority, place=chance.randrange(2))
                sent[session].append((id_, priority))
            # The last ones are sent when everybody was killed as often as is wanted.
            if turn == each - 2:
                await over.wait()

    await asyncio.gather(*(sender(number) for number in range(TOGETHER.senders)))
    return sent


# P1, P12, P20, P21, T29: one in flight, in order, nothing lost; two daemons share the database.
async def test_two_daemons_killed_at_random(
    new_daemon: Callable[..., Daemon],
    private_postgres: PostgresServer,
    processes: Processes,
    fake: Stalling,
    chance: random.Random,
    record_property: Count,
) -> None:
    began = time.monotonic()
    fake.think = 0.01
    for number in range(TOGETHER.sessions):
        fake.session(f"t{number}")
    told = settings(fake, 8)
    first = await asyncio.to_thread(new_daemon(told, database=private_postgres.url).start)
    (first.folder / "second").mkdir()
    second = Daemon(processes, first.folder / "second", told, database=private_postgres.url)
    await asyncio.to_thread(second.start)
    mail, over = Mail([first, second]), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill_now_and_then([first, second], private_postgres, chance, over))
        sending = tasks.create_task(send_all(mail, chance, over))
    deliveries = await mail.carried()
    prompts = check(mail, fake, deliveries)
    await mail.close()
    failed = {id_ for id_, one in deliveries.items() if one["last_failure_reason"] is not None}
    for session, sent in sending.result().items():
        ids = transcript(fake, session)
        for priority in ("normal", "low"):
            expected = [id_ for id_, given in sent if given == priority and id_ not in failed]
            assert [id_ for id_ in ids if id_ in set(expected)] == expected, f"{session}: out of order"
    again = sum(prompts.values()) - len(prompts)
    record_property(
        "counted",
        f"postgres: kills={TOGETHER.kills} sessions={TOGETHER.sessions} messages={len(prompts)} "
        f"with a failed attempt={len(failed)} prompted again={again} lost=0 two at once=0 "
        f"in {time.monotonic() - began:.0f} s",
    )
