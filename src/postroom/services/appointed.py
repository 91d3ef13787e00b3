"""Appointed endpoints: those that the daemon's settings name, kept as the settings say, by however many daemons.

Several daemons on one PostgreSQL may have the same settings, or each its own. Nothing is changed where what stands is
what the settings say; what none of them names any more is ended once no daemon gives a sign of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from postroom.delivery import attempts_of
from postroom.endpoint import CarrierKind, Endpoint, NewEndpoint
from postroom.errors import Unavailable
from postroom.ids import Ids, Prefix
from postroom.services import tellings
from postroom.services.notice import SENDER
from postroom.services.registry import MAX_ADDRESS_BYTES, RIVALS
from postroom.services.wake import Wake
from postroom.store.endpoints import EndpointTable
from postroom.store.engine import Duplicate, Engine, Tx
from postroom.store.statements import Dialect
from postroom.text import store_json

LOOK_AGAIN = 60.0
"""When (seconds) it is looked again for what nobody names any more: by then a daemon that names it has given a sign."""

log = logging.getLogger("postroom")


class Appointments:
    """The endpoints of one carrier that the settings name, each with a name; only what was made here is ended here."""

    def __init__(
        self,
        engine: Engine,
        table: EndpointTable,
        wake: Wake,
        ids: Ids,
        carrier: CarrierKind,
        wanted: Sequence[NewEndpoint],
    ) -> None:
        self._engine = engine
        self._table = table
        self._wake = wake
        self._ids = ids
        self._carrier = carrier
        self._wanted = tuple(sorted(wanted, key=lambda new: new.target_key))

    async def run(self) -> None:
        """Look once more after a while; what cannot be looked at then is looked at by the next start."""
        await asyncio.sleep(LOOK_AGAIN)
        try:
            await self.settle()
        except Unavailable as error:
            log.warning("the endpoints of the settings cannot be looked at: %s", error.message)

    async def settle(self) -> None:
        """As it was -> every endpoint that the settings name stands as they say, and those that nobody names are ended."""
        for _ in range(RIVALS):
            try:
                made, ended = await self._engine.transact(self._settle)
            except Duplicate:
                # Another daemon was first: what it made is most likely what is wanted here.
                continue
            for one in made:
                log.info("%s %s of the settings is endpoint %s", self._carrier, one.name, one.id)
                self._wake.told(tellings.endpoint_attached, one)
                self._wake.arrived(one.queues, one.id)
            self._wake.told(tellings.endpoints_ended, ended)
            for one in ended:
                log.info("endpoint %s has ended: the settings no longer name %s %s", one.id, self._carrier, one.name)
            return
        raise Unavailable("the endpoints of the settings keep changing")

    async def _settle(self, tx: Tx) -> tuple[list[Endpoint], list[Endpoint]]:
        standing = {one.target_key: (one, kept) for one, kept in await self._table.appointed(tx, self._carrier)}
        made: list[Endpoint] = []
        for new in self._wanted:
            there, _ = standing.pop(new.target_key, (None, False))
            if there is not None and _same(there, new):
                await self._table.touch(tx, [there.id])
                continue
            if there is not None:
                # This one alone, and not whatever another daemon may have made there since.
                await self._table.end(tx, there.id)
            id_ = self._ids.new(Prefix.ENDPOINT)
            address = store_json(dict(new.address), "address", MAX_ADDRESS_BYTES)
            await self._table.insert(tx, id_, new, new.name, address, attempts_of(new.carrier), SENDER)
            endpoint = await self._table.get(tx, id_)
            if endpoint is not None:
                made.append(endpoint)
        # An SQLite file is one daemon's alone: who gave the last sign was this one, before it was started anew.
        alone = self._engine.dialect is Dialect.SQLITE
        ended = [one for one, kept in standing.values() if alone or not kept]
        for one in ended:
            await self._table.end(tx, one.id)
        return made, ended


def _same(there: Endpoint, new: NewEndpoint) -> bool:
    """Whether an endpoint is what the settings say."""
    return (
        (there.name, there.reach, there.rings, there.ack_mode) == (new.name, new.reach, new.rings, new.ack_mode)
        and dict(there.address) == dict(new.address)
        and sorted(there.queues) == sorted(new.queues)
        and sorted(there.channels) == sorted(new.channels)
    )
