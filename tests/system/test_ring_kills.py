"""Two daemons on one PostgreSQL, killed around each ring: whoever dies when, a todo is rung for once, written once.

RING_KILLS=whole in the environment has the full measure; RING_SEED has the same random choices again.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx2
import psycopg
import pytest

from postroom.carriers.envelope import parse
from tests.opencode.fake import FakeOpencode
from tests.processes import Processes, until
from tests.system.daemons import Daemon

pytestmark = pytest.mark.system

ROUNDS = 60 if os.environ.get("RING_KILLS") == "whole" else 5
SESSIONS = 3
QUEUE = "review"
SETTLE_S = 60.0
MOMENTS = (0.0, 0.002, 0.005, 0.008, 0.012, 0.02, 0.04)
"""How long (seconds) after the todo's creation a daemon is killed: around the ring's decision, write and settlement."""


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpencode]:
    server = await FakeOpencode().start()
    yield server
    await server.kill()


class Desk:
    """Asks whichever daemon is there, until one answers."""

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        self._clients = [
            httpx2.AsyncClient(
                transport=httpx2.AsyncHTTPTransport(uds=str(daemon.socket)), base_url="http://postroom", timeout=30.0
            )
            for daemon in daemons
        ]

    async def ask(self, method: str, path: str, body: Any = None, *, first: int = 0, key: str | None = None) -> Any:
        """The answer's value; a request that may have been lost is asked again under its key."""
        headers = {} if key is None else {"Idempotency-Key": key}
        async with asyncio.timeout(SETTLE_S):
            while True:
                try:
                    client = self._clients[first % len(self._clients)]
                    answer = await client.request(method, path, json=body, headers=headers)
                except httpx2.TransportError:
                    first += 1
                else:
                    if answer.status_code != 503:
                        assert answer.status_code < 300, answer.text
                        return answer.json()
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


def rings_of(fake: FakeOpencode) -> Counter[str]:
    """How often each ring stands in a transcript."""
    return Counter(parse(text).msg_id for session in fake.sessions.values() for text in session.texts)


async def test_a_todo_is_rung_for_once_whichever_daemon_dies_when(
    new_daemon: Callable[..., Daemon],
    postgres_url: str,
    processes: Processes,
    fake: FakeOpencode,
    record_property: Callable[[str, object], None],
) -> None:
    began = time.monotonic()
    seed = int(os.environ.get("RING_SEED") or secrets.randbelow(1 << 32))
    print(f"RING_SEED={seed}")
    chance = random.Random(seed)
    told = f'[[opencode]]\nurl = "{fake.url}"\n[post]\nlease_s = 5\nunknown_s = 1\n'
    first = await asyncio.to_thread(new_daemon(told, database=postgres_url).start)
    (first.folder / "second").mkdir()
    second = Daemon(processes, first.folder / "second", told, database=postgres_url)
    await asyncio.to_thread(second.start)
    daemons = (first, second)
    desk = Desk(daemons)
    for number in range(SESSIONS):
        place = {"carrier": "opencode", "address": {"session": fake.session(f"r{number}").id}, "queues": [QUEUE]}
        await desk.ask("POST", "/v1/endpoints", place)

    async def kill(daemon: Daemon) -> None:
        await asyncio.sleep(chance.choice(MOMENTS))
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)

    async def rings(todo: str) -> list[Mapping[str, Any]]:
        found = (await desk.ask("GET", "/v1/messages?kind=queue.ring&limit=200"))["messages"]
        return [one for one in found if one["correlation_id"] == todo]

    async def nothing_is_out() -> bool:
        async with await psycopg.AsyncConnection.connect(postgres_url) as there:
            found = await (await there.execute("select count(*) from rings where message_id is not null")).fetchone()
        return found == (0,)

    written: set[str] = set()
    for turn in range(ROUNDS):
        body = {"queue": QUEUE, "title": f"work {turn}"}
        asked = desk.ask("POST", "/v1/todos", body, first=chance.randrange(2), key=f"round-{turn}")
        (answer, _) = await asyncio.gather(asked, kill(chance.choice(daemons)))
        todo = answer["todo"]["id"]

        async def rung(todo: str = todo) -> bool:
            return any(one["deliveries"][0]["state"] == "injected" for one in await rings(todo))

        await until(rung, f"a ring for {todo} is written", SETTLE_S)
        (ring,) = await rings(todo)
        written.add(ring["id"])
        claimed = await desk.ask("POST", "/v1/todos/claim", {"queues": [QUEUE], "claim_key": f"round-{turn}"})
        (held,) = claimed["todos"]
        assert held["id"] == todo
        await desk.ask("POST", f"/v1/todos/{todo}/complete", {"lease_id": held["lease_id"]})
        # A daemon that dies at once after a claim leaves it to the other one's next look that the queue was empty.
        await until(nothing_is_out, "the ring has ended", SETTLE_S)
    await desk.close()
    assert rings_of(fake) == dict.fromkeys(written, 1)
    assert [session.id for session in fake.sessions.values() if session.overlaps] == []
    prompted = Counter(parse(prompt.text).msg_id for prompt in fake.prompts)
    record_property(
        "counted",
        f"postgres: kills={ROUNDS} rings={len(written)} written twice=0 prompted again="
        f"{sum(prompted.values()) - len(written)} in {time.monotonic() - began:.0f} s",
    )
