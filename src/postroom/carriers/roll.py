"""The roll: endpoints whose places can be looked at are looked at in turn, so that who is gone is known (RULINGS 35).

A place that stands is a sign of life as good as a heartbeat. One that is gone ends its endpoint for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from postroom.carriers.carrier import Carrier
from postroom.endpoint import CarrierKind, Endpoint, EndpointFilter
from postroom.errors import PostroomError
from postroom.model import Principal, Role
from postroom.services.registry import Registry

CALL_SECONDS = 15.0
LOOK_SECONDS = 5.0
AT_ONCE = 16
CALLED = frozenset({CarrierKind.TMUX, CarrierKind.WEBHOOK})
"""Panes end without a word, and webhooks give no sign by themselves: those that are called are rung, the disabled not.
A session says so when it is written to; a channel's process beats for itself."""

_OPERATOR = Principal("postroom", Role.ADMIN)

log = logging.getLogger("postroom.courier")


class Roll:
    """Calls the endpoints that this daemon's carriers can look at; the others' heartbeats are their own."""

    def __init__(self, registry: Registry, carriers: Mapping[CarrierKind, Carrier]) -> None:
        self._registry = registry
        self._carriers = {kind: carrier for kind, carrier in carriers.items() if kind in CALLED}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Call each 15 s until cancelled; a database that is away is tried again at the next."""
        while True:
            try:
                await self.call()
            except PostroomError as error:
                log.warning("the endpoints cannot be called now: %s", error.message)
            except Exception:
                log.exception("calling the endpoints failed and will be tried again")
            await asyncio.sleep(CALL_SECONDS)

    async def call(self) -> None:
        """Standing -> seen now, gone -> ended; what cannot be told stays as it is."""
        if not self._carriers:
            return
        endpoints = [
            endpoint
            for endpoint in await self._registry.find(_OPERATOR, EndpointFilter())
            if endpoint.carrier in self._carriers and endpoint.reach in self._carriers[endpoint.carrier].reaches
        ]
        answers = await asyncio.gather(*(self._look(endpoint) for endpoint in endpoints))
        await self._registry.touch([one.id for one, there in zip(endpoints, answers, strict=True) if there])
        for endpoint, there in zip(endpoints, answers, strict=True):
            if there is False:
                log.info("endpoint %s is gone", endpoint.id)
                await self._registry.end(endpoint.id)

    async def _look(self, endpoint: Endpoint) -> bool | None:
        async with self._places:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    return await self._carriers[endpoint.carrier].live(endpoint)
            except TimeoutError:
                return None
            except Exception:
                log.exception("looking at endpoint %s failed", endpoint.id)
                return None
