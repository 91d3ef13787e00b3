"""The courier's side of the post over a test's store, messages put straight into its tables, and a carrier in memory."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import apsw
import psycopg

from postroom.carriers.carrier import FREE, Carrier, Look, Progress, Standing, Turn, Writing
from postroom.carriers.courier import Courier
from postroom.carriers.opencode import OpencodeCarrier
from postroom.carriers.opencode_server import OpencodeServer
from postroom.delivery import Policy
from postroom.endpoint import ANY_REACH, CarrierKind, Endpoint
from postroom.ids import RandomIds
from postroom.message import Delivery, Parcel, Priority, Written
from postroom.services.dispatch import DispatchService
from postroom.services.wake import Wake
from postroom.store.deliveries import DeliveryTable
from postroom.store.engine import Reader
from postroom.store.sqlite import SqliteEngine
from postroom.store.sweeps import SweepTable
from postroom.store.targets import TargetTable
from tests.conftest import Store
from tests.opencode.fake import FakeOpencode
from tests.processes import until

POLICY = Policy()

# What the library logs when a server breaks a connection is no news in these tests.
logging.getLogger("httpx2").setLevel(logging.WARNING)


class PostRig:
    """One daemon's post: dispatch and wake over an engine. Rows are written and read past every guard."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.wake = Wake(store)
        self.dispatch = DispatchService(
            store,
            DeliveryTable(store.dialect, POLICY),
            TargetTable(POLICY),
            SweepTable(store.dialect),
            self.wake,
            RandomIds(),
        )
        self._numbers = itertools.count(1)
        self._couriers: list[tuple[Courier, asyncio.Task[None]]] = []
        self._beside: apsw.Connection | None = None
        self._there: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._lock = asyncio.Lock()

    def courier(self, *carriers: Carrier, at_work: int = 32) -> Courier:
        """A courier with these carriers, at work until the rig is closed."""
        made = Courier(
            self.dispatch,
            {carrier.kind: carrier for carrier in carriers},
            self.wake,
            listening=lambda: self.store.listening,
            at_work=at_work,
        )
        self._couriers.append((made, asyncio.create_task(made.run())))
        return made

    def opencode(self, *servers: FakeOpencode, at_work: int = 32) -> OpencodeCarrier:
        """An opencode carrier to these servers, and a courier that it works for."""
        carrier = OpencodeCarrier([OpencodeServer(server.url, server.password) for server in servers])
        self.courier(carrier, at_work=at_work)
        return carrier

    @property
    def couriers(self) -> list[Courier]:
        """Those at work, the oldest first."""
        return [courier for courier, _ in self._couriers]

    async def stop(self, courier: Courier) -> None:
        """Stop one courier in good order."""
        for made, task in list(self._couriers):
            if made is courier:
                self._couriers.remove((made, task))
                await made.close()
                await asyncio.gather(task, return_exceptions=True)

    async def crash(self, courier: Courier) -> None:
        """End one courier as a kill does: nothing is settled and nothing handed back."""
        for made, task in list(self._couriers):
            if made is courier:
                self._couriers.remove((made, task))
                tasks = [task, *made._tasks.values(), *made._carrying]
                made._closing = True
                for one in tasks:
                    one.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Stop every courier, and let go of the tables."""
        for courier, _ in list(self._couriers):
            await self.stop(courier)
        if self._beside is not None:
            self._beside.close()
            self._beside = None
        if self._there is not None:
            await self._there.close()
            self._there = None

    # The tables.

    async def admit(
        self,
        session: str,
        payload: str = "hello",
        priority: Priority = Priority.NORMAL,
        *,
        kind: CarrierKind = CarrierKind.OPENCODE,
        key: str | None = None,
        reach: str = ANY_REACH,
        attempts: int = 10,
        ack_mode: str = "injected",
        tell: bool = True,
    ) -> str:
        """A message with its one delivery, as an admission leaves them: its id."""
        target, id_ = key or f"{kind}:{session}", f"msg_{next(self._numbers):04d}"
        await self.rows(
            "insert into messages (id, digest, sender, addressed, kind, priority, payload, ack_mode, created_by, created_at)"
            " values (?, '', 'ses_sender', ?, 'chat', ?, ?, ?, 'root', 1)",
            (id_, session, priority.value, payload, ack_mode),
        )
        await self.rows(
            "insert into targets (target_key, carrier) values (?, ?) on conflict (target_key) do nothing",
            (target, kind.value),
        )
        await self.rows(
            "insert into deliveries (id, message_id, target_key, carrier, mailbox, reach, rank, ack_mode, max_attempts,"
            " created_at, updated_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 1)",
            (f"dl_{id_}", id_, target, kind.value, session, reach, priority.rank, ack_mode, attempts),
        )
        if tell:
            self.wake.post([target])
        return id_

    async def addressed(self, message: str, endpoint: str, name: str) -> None:
        """The message goes to this endpoint of its session, which is made where it is not there yet."""
        target = (await self.delivery(message)).target_key
        await self.rows(
            "insert into endpoints (id, name, carrier, address, target_key, reach, ack_mode, max_attempts, created_by,"
            " created_at, seen_at) values (?, ?, 'opencode', '{}', ?, 'any', 'injected', 5, 'root', 1, 1)"
            " on conflict (id) do nothing",
            (endpoint, name, target),
        )
        await self.rows("update deliveries set endpoint_id = ? where message_id = ?", (endpoint, message))

    async def detached(self, endpoint: str) -> None:
        """The endpoint has ended."""
        await self.rows("update endpoints set ended_at = 2 where id = ?", (endpoint,))

    async def rows(self, text: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run SQL on a connection beside the engine's own; parameters are written `?`."""
        if isinstance(self.store, SqliteEngine):
            if self._beside is None:
                self._beside = apsw.Connection(str(self.store.path))
                self._beside.set_busy_timeout(10_000)
            return self._beside.execute(text, tuple(params)).fetchall()
        async with self._lock:
            if self._there is None:
                self._there = await psycopg.AsyncConnection.connect(self.store._url, autocommit=True)
            cursor = await self._there.execute(text.replace("?", "%s").encode(), params)
            return await cursor.fetchall() if cursor.description else []

    async def delivery(self, message: str) -> Delivery:
        """The one delivery of a message, as it is now."""
        table = DeliveryTable(self.store.dialect, POLICY)
        (found,) = await table.of_messages(Reader(self.store), [message])
        return found

    async def tried(self, message: str, attempts: int) -> None:
        """Make so many attempts of a message already made: what it waits next is the longer."""
        await self.rows("update deliveries set attempt_count = ? where message_id = ?", (attempts, message))

    async def in_state(self, state: str, *messages: str) -> bool:
        """Whether all of these are in this state."""
        marks = ", ".join("?" for _ in messages)
        rows = await self.rows(
            f"select count(*) from deliveries where state = ? and message_id in ({marks})", (state, *messages)
        )
        return bool(rows[0][0] == len(messages))

    async def reach_state(self, state: str, *messages: str, seconds: float = 30.0) -> None:
        """Wait until all of these are in this state."""
        await until(lambda: self.in_state(state, *messages), f"{len(messages)} messages are {state}", seconds)

    async def turn_of(self, key: str) -> str | None:
        """The delivery whose turn is on at a target."""
        rows = await self.rows("select turn_delivery from targets where target_key = ?", (key,))
        return rows[0][0] if rows else None


class MemoryCarrier:
    """A carrier whose targets are lists; what it answers is ordered by the test, first come first served.

    looks, writes: answers to give next, by session, before the usual ones (free, written). hanging: sessions whose write
    never ends. overlap: the most writes at once by session.
    """

    def __init__(self, kind: CarrierKind = CarrierKind.OPENCODE, reaches: tuple[str, ...] = (ANY_REACH,)) -> None:
        self.kind = kind
        self.reaches = reaches
        self.written: dict[str, list[str]] = defaultdict(list)
        self.looks: dict[str, list[Look]] = defaultdict(list)
        self.standing: dict[str, Look] = {}
        self.writes: dict[str, list[Writing | Exception]] = defaultdict(list)
        self.standing_messages: set[str] = set()
        self.hanging: set[str] = set()
        self.turns: dict[str, Progress] = {}
        self.begins_turns = False
        self.looked: Counter[str] = Counter()
        self.asked_seen: list[str] = []
        self.at_once: Counter[str] = Counter()
        self.overlap: Counter[str] = Counter()
        self.closed = False
        self._never = asyncio.Event()
        self._calls: list[Callable[[str], None]] = []

    def check_address(self, address: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, str]:
        return address, f"{self.kind}:{address['session']}", ANY_REACH

    async def look(self, parcel: Parcel) -> Look:
        session = _session(parcel)
        self.looked[session] += 1
        await asyncio.sleep(0)
        if self.looks[session]:
            return self.looks[session].pop(0)
        return self.standing.get(session, FREE)

    async def write(self, parcel: Parcel) -> Writing:
        session = _session(parcel)
        self.at_once[session] += 1
        self.overlap[session] = max(self.overlap[session], self.at_once[session])
        try:
            await asyncio.sleep(0.001)
            if session in self.hanging:
                await self._never.wait()
            answer = self.writes[session].pop(0) if self.writes[session] else None
            if isinstance(answer, Exception):
                raise answer
            if answer is None or answer.outcome is Written.WRITTEN:
                self.written[session].append(parcel.message.id)
                self.standing_messages.add(parcel.message.id)
            return answer or Writing(Written.WRITTEN, turn=self.begins_turns)
        finally:
            self.at_once[session] -= 1

    async def seen(self, parcel: Parcel) -> bool | None:
        self.asked_seen.append(parcel.message.id)
        return parcel.message.id in self.standing_messages

    async def progress(self, parcel: Parcel) -> Progress:
        return self.turns.get(_session(parcel), Progress(Turn.ANSWERED, seen=True))

    async def live(self, endpoint: Endpoint) -> bool | None:
        return True

    def on_change(self, call: Callable[[str], None]) -> None:
        self._calls.append(call)

    def change(self, session: str) -> None:
        """Something happened at the session."""
        for call in self._calls:
            call(f"{self.kind}:{session}")

    def status(self) -> Mapping[str, Any]:
        return {"sessions": len(self.written)}

    async def run(self) -> None:
        await self._never.wait()

    async def close(self) -> None:
        self.closed = True


BUSY = Look(Standing.BUSY, "busy by order")
FAULT = Look(Standing.FAULT, "broken by order")
ABSENT = Look(Standing.ABSENT, "no such session")
GONE = Look(Standing.GONE, "the pane is a shell")


def _session(parcel: Parcel) -> str:
    return parcel.target.key.partition(":")[2]
