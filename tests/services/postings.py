"""Deliveries for the tests of their later life: rows as admission makes them, put in past every service."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apsw
import psycopg

from postroom.delivery import attempts_of
from postroom.endpoint import ANY_REACH, CarrierKind
from postroom.message import AckMode, Delivery, Parcel, Priority
from postroom.model import Principal
from postroom.services.dispatch import DispatchService
from postroom.store.deliveries import delivery_of
from postroom.store.sqlite import SqliteEngine
from postroom.store.statements import Statements
from tests.offices import ADMIN, Bench

A, B, C = "opencode:ses_a", "opencode:ses_b", "opencode:ses_c"
ANY = (ANY_REACH,)
Insertion = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Posting:
    """One delivery to be made; `to` are more targets of the same message."""

    target: str = A
    priority: Priority = Priority.NORMAL
    ack_mode: AckMode = AckMode.INJECTED
    carrier: CarrierKind = CarrierKind.OPENCODE
    max_attempts: int | None = None
    reach: str = ANY_REACH
    mailbox: str | None = None
    ttl: int | None = None
    endpoint_id: str | None = None
    sender: str = "ses_s"
    created_by: str = "root"
    to: tuple[str, ...] = ()

    def mailbox_of(self, target: str) -> str:
        """Whose inbox shows it."""
        return self.mailbox or target.split(":", 1)[1]


def insertions(posting: Posting, message_id: str, delivery_ids: Sequence[str], now: int) -> list[Insertion]:
    """SQL with `?` that admits a message at this time: its row, its deliveries, and their targets."""
    targets = (posting.target, *posting.to)
    expires = None if posting.ttl is None else now + posting.ttl
    channel = "news" if posting.to else None
    addressed = None if posting.to else posting.mailbox_of(posting.target)
    made: list[Insertion] = [
        (
            "insert into messages (id, digest, sender, addressed, channel, kind, priority, payload, ack_mode, created_by, "
            "created_at, expires_at) values (?, 'd', ?, ?, ?, 'chat', ?, 'hello', ?, ?, ?, ?)",
            (
                message_id,
                posting.sender,
                addressed,
                channel,
                posting.priority.value,
                posting.ack_mode.value,
                posting.created_by,
                now,
                expires,
            ),
        )
    ]
    most = posting.max_attempts or attempts_of(posting.carrier)
    for target, id_ in zip(targets, delivery_ids, strict=True):
        made.append(
            (
                "insert into targets (target_key, carrier) values (?, ?) on conflict do nothing",
                (target, posting.carrier.value),
            )
        )
        made.append(
            (
                "insert into deliveries (id, message_id, target_key, carrier, endpoint_id, mailbox, reach, rank, ack_mode, "
                "max_attempts, expires_at, created_at, updated_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    id_,
                    message_id,
                    target,
                    posting.carrier.value,
                    posting.endpoint_id,
                    posting.mailbox_of(target),
                    posting.reach,
                    posting.priority.rank,
                    posting.ack_mode.value,
                    most,
                    expires,
                    now,
                    now,
                ),
            )
        )
    return made


def as_written(text: str) -> str:
    """The SQL for psycopg's own parameters."""
    return text.replace("%", "%%").replace("?", "%s")


class Postings:
    """Makes deliveries in a bench's store, and shows them as they are."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._numbers = itertools.count(1)

    @property
    def dispatch(self) -> DispatchService:
        """The courier's verbs."""
        return self.bench.office.dispatch

    async def now(self) -> int:
        """The database's time."""
        return int((await self.bench.store.read("clock"))[0][0])

    async def add(self, target: str = A, **more: Any) -> Delivery:
        """A message with a delivery to this target; `to` are more targets of it."""
        return (await self.add_many(target, **more))[0]

    async def add_many(self, target: str = A, **more: Any) -> list[Delivery]:
        """A message with its deliveries."""
        posting = Posting(target, **more)
        number = next(self._numbers)
        ids = [f"dl_{number:04}_{place}" for place in range(1 + len(posting.to))]
        await self.put(insertions(posting, f"msg_{number:04}", ids, await self.now()))
        return [await self.get(id_) for id_ in ids]

    async def fill(self, count: int, **more: Any) -> list[str]:
        """So many targets with a message each, put in at once: their keys."""
        now = await self.now()
        targets = [f"opencode:ses_{place:04}" for place in range(count)]
        made: list[Insertion] = []
        for target in targets:
            number = next(self._numbers)
            made += insertions(Posting(target, **more), f"msg_{number:04}", [f"dl_{number:04}_0"], now)
        await self.put(made)
        return targets

    async def put(self, made: Sequence[Insertion]) -> None:
        """Run insertions in one transaction beside the engine."""
        store = self.bench.store
        if isinstance(store, SqliteEngine):
            connection = apsw.Connection(str(store.path))
            connection.set_busy_timeout(5000)
            with contextlib.closing(connection), connection:
                for text, params in made:
                    connection.execute(text, params)
            return
        async with await psycopg.AsyncConnection.connect(store._url) as there, there.pipeline():
            for text, params in made:
                await there.execute(as_written(text).encode(), params)

    async def endpoint(self, id_: str, created_by: str, target: str, **more: Any) -> None:
        """A live endpoint at a target."""
        now = await self.now()
        values = {"carrier": "tmux", "address": '{"pane": "%1"}', "name": None} | more
        await self.bench.rows(
            "insert into endpoints (id, name, carrier, address, target_key, reach, ack_mode, max_attempts, created_by, "
            "created_at, seen_at) values (?, ?, ?, ?, ?, 'any', 'injected', 5, ?, ?, ?)",
            id_,
            values["name"],
            values["carrier"],
            values["address"],
            target,
            created_by,
            now,
            now,
        )

    async def get(self, delivery: Delivery | str) -> Delivery:
        """The delivery as it is now."""
        id_ = delivery if isinstance(delivery, str) else delivery.id
        text = Statements(self.bench.store.dialect).get("deliveries_of").steps[0]
        shown = text[text.index("select d.seq") :]
        (row,) = await self.bench.rows(f"with d as (select * from deliveries where id = ?) {shown}", id_)
        return delivery_of(row)

    async def lease(self, target: str = A, reaches: Sequence[str] = ANY) -> Parcel:
        """A parcel of this target, which must have one."""
        parcel = await self.dispatch.lease(target, reaches)
        assert parcel is not None, f"nothing of {target} was leased"
        return parcel

    async def receipt(self, delivery: Delivery, by: Principal = ADMIN) -> Delivery:
        """The delivery as its message's receipts show it after an acknowledgement."""
        posted = await self.bench.office.receipts.ack(by, delivery.message_id, delivery.target_key)
        return next(one for one in posted.deliveries if one.id == delivery.id)
