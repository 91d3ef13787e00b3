"""The endpoints table: the places that take messages, and what they are attached to (DESIGN §6, RULINGS 29, 35)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from postroom.endpoint import CarrierKind, Endpoint, EndpointFilter, NewEndpoint
from postroom.store.engine import Tx

ENDPOINT_WIDTH = 17
"""How many columns of a row are the endpoint's; the last one holds what it is attached to."""
MOST = 1000
"""How many endpoints, subscribers or claims one answer holds."""

_CARRIERS = {carrier.value: carrier for carrier in CarrierKind}


class Attachment(StrEnum):
    """What an endpoint may be attached to."""

    REPOSITORY = "repository"
    QUEUE = "queue"
    CHANNEL = "channel"


@dataclass(frozen=True, slots=True)
class Occupation:
    """A claim as `who` tells of it: the owner, the todo, and when it last changed (ms UTC)."""

    owner: str
    todo_id: str
    title: str
    queue: str
    updated_at: int


def endpoint_of(row: Sequence[Any]) -> Endpoint:
    """The endpoint of a row's first columns."""
    fields: list[Any] = list(row[: ENDPOINT_WIDTH - 1])
    fields[3] = _CARRIERS[fields[3]]
    fields[9], fields[10] = bool(fields[9]), bool(fields[10])
    attached = row[ENDPOINT_WIDTH - 1]
    pairs = (json.loads(attached) if isinstance(attached, str) else attached) or ()
    fields += [tuple(name for what, name in pairs if what == kind) for kind in Attachment]
    return Endpoint(*fields)


def _by_age(rows: Sequence[Sequence[Any]]) -> list[Endpoint]:
    return sorted((endpoint_of(row) for row in rows), key=lambda endpoint: endpoint.seq)


class EndpointTable:
    """The statements over endpoints and their attachments; `silent` is how long (ms) a live one may give no sign."""

    def __init__(self, silent: int) -> None:
        self._silent = silent

    async def get(self, tx: Tx, id_: str) -> Endpoint | None:
        """The endpoint of this id, ended or not."""
        rows = await tx.rows("endpoint_get", id=id_)
        return endpoint_of(rows[0]) if rows else None

    async def living(self, tx: Tx, ids: Sequence[str]) -> frozenset[str]:
        """Which of these are live."""
        return frozenset(row[0] for row in await tx.rows("endpoints_live", ids=list(ids), silent=self._silent))

    async def standing(self, tx: Tx, target_key: str) -> Endpoint | None:
        """The endpoint that stands at this place and has not ended."""
        rows = await tx.rows("endpoint_standing", target_key=target_key)
        return endpoint_of(rows[0]) if rows else None

    async def named(self, tx: Tx, name: str) -> list[Endpoint]:
        """The live endpoints of this name, without what they are attached to."""
        rows = await tx.rows("endpoints_named", name=name, silent=self._silent, limit=MOST)
        return _by_age(rows)

    async def attached(self, tx: Tx, what: Attachment, name: str, *, live: bool) -> list[Endpoint]:
        """The endpoints attached to this, in the order of their coming: all that have not ended, or the live ones."""
        silent = self._silent if live else None
        rows = await tx.rows("endpoints_attached", what=what.value, name=name, silent=silent, limit=MOST)
        return _by_age(rows)

    async def appointed(self, tx: Tx, carrier: CarrierKind) -> list[tuple[Endpoint, bool]]:
        """The endpoints of this carrier that settings named, and whether some daemon has given a sign of each lately."""
        rows = await tx.rows("endpoints_appointed", carrier=carrier.value, silent=self._silent)
        return [(endpoint_of(row), bool(row[ENDPOINT_WIDTH])) for row in rows]

    async def find(self, tx: Tx, asked: EndpointFilter) -> list[Endpoint]:
        """The endpoints that fit, oldest first."""
        rows = await tx.rows(
            "endpoint_list",
            standing=None if asked.ended else 1,
            living=1 if asked.live is True else None,
            dead=1 if asked.live is False else None,
            name=asked.name,
            repository=asked.target_repo,
            queue=asked.queue,
            channel=asked.channel,
            silent=self._silent,
            limit=MOST,
        )
        return [endpoint_of(row) for row in rows]

    async def insert(
        self, tx: Tx, id_: str, new: NewEndpoint, name: str | None, address: str, attempts: int, created_by: str
    ) -> None:
        """Nothing -> an endpoint with its attachments; the engine's Duplicate when another stands at its place."""
        await tx.rows(
            "endpoint_insert",
            id=id_,
            name=name,
            carrier=new.carrier.value,
            address=address,
            target_key=new.target_key,
            reach=new.reach,
            ack_mode=new.ack_mode,
            max_attempts=attempts,
            spill=new.spill,
            rings=new.rings,
            pid=new.pid,
            created_by=created_by,
        )
        for what, names in (
            (Attachment.REPOSITORY, new.repositories),
            (Attachment.QUEUE, new.queues),
            (Attachment.CHANNEL, new.channels),
        ):
            if names:
                await self.attach(tx, id_, what, names)

    async def attach(self, tx: Tx, id_: str, what: Attachment, names: Sequence[str]) -> None:
        """Attach an endpoint to these; twice is the same."""
        await tx.rows("attachments_insert", id=id_, what=what.value, names=list(names))

    async def let_go(self, tx: Tx, id_: str, what: Attachment, name: str) -> None:
        """Attached -> not attached; twice is the same."""
        await tx.rows("attachment_remove", id=id_, what=what.value, name=name)

    async def end(self, tx: Tx, id_: str) -> bool:
        """Attached -> ended for ever; False when it had ended before."""
        return bool(await self._ended(tx, await tx.rows("endpoint_end", id=id_)))

    async def end_of(self, tx: Tx, name: str) -> list[str]:
        """End whatever this principal attached: the ids."""
        return await self._ended(tx, await tx.rows("endpoints_end_of", name=name))

    async def _ended(self, tx: Tx, rows: Sequence[Sequence[Any]]) -> list[str]:
        ids = [str(row[0]) for row in rows]
        if ids:
            await tx.rows("attachments_clear", ids=ids)
        return ids

    async def touch(self, tx: Tx, ids: Sequence[str]) -> frozenset[str]:
        """Standing -> seen now: the ids of those that have not ended."""
        return frozenset(row[0] for row in await tx.rows("endpoint_touch", ids=sorted(ids)))

    async def channels(self, tx: Tx, channel: str | None = None) -> list[tuple[str, str, str]]:
        """Channel, mailbox and endpoint of each subscription, by channel."""
        rows = await tx.rows("channel_list", channel=channel, limit=MOST)
        return [(row[0], row[1], row[2]) for row in sorted(rows, key=lambda one: (one[0], one[3]))]

    async def occupied(self, tx: Tx) -> list[Occupation]:
        """The claims there are, the last changed first."""
        return [Occupation(*row) for row in await tx.rows("occupied", limit=MOST)]
