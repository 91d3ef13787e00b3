"""Attaching: a place in its carrier's own words becomes an endpoint, the same way from every door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from postroom.endpoint import CarrierKind, Endpoint, NewEndpoint
from postroom.errors import Invalid
from postroom.message import AckMode
from postroom.model import Principal
from postroom.services.registry import Registry

Place = Callable[[CarrierKind, Mapping[str, Any], str | None], tuple[Mapping[str, Any], str, str]]
"""(carrier, address, the endpoint's name) -> the address as it is stored, its target key and its reach."""


async def attach(
    registry: Registry,
    place: Place,
    principal: Principal,
    carrier: str,
    address: Mapping[str, Any],
    *,
    name: str | None = None,
    repositories: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
    channels: Sequence[str] | None = None,
    ack_mode: str | None = None,
    max_attempts: int | None = None,
    spill: bool = False,
    rings: bool = True,
    pid: int | None = None,
) -> Endpoint:
    """Nothing -> a live endpoint; what stood at the same place ends. Raises Invalid by field, Forbidden, Unavailable."""
    if carrier not in CarrierKind.__members__.values():
        raise Invalid(f"carrier {carrier[:40]!r} is expected to be one of {', '.join(CarrierKind)}", field="carrier")
    kind = CarrierKind(carrier)
    # A carrier may ask its own server where that is, and that takes its time.
    stored, target_key, reach = await asyncio.to_thread(place, kind, address, name)
    new = NewEndpoint(
        carrier=kind,
        address=stored,
        target_key=target_key,
        reach=reach,
        name=name,
        repositories=tuple(repositories or ()),
        queues=tuple(queues or ()),
        channels=tuple(channels or ()),
        ack_mode=AckMode.INJECTED if ack_mode is None else ack_mode,
        max_attempts=max_attempts,
        spill=spill,
        rings=rings,
        pid=pid,
    )
    return await registry.attach(principal, new)
