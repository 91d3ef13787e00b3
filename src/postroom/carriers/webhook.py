"""The carrier to webhooks: Standard Webhooks out, for those who have no session, no pane and no inbox to look into.

Only the settings name where it goes: no message, no agent and no door can make a daemon call an address. A receiver is
always free, unless it asked to be left alone or failed for so long that it is disabled; that is said and costs nobody
an attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import postroom
from postroom.carriers.carrier import FREE, Look, Progress, Standing, Turn, Writing
from postroom.carriers.guarded import WRITE_SHARE, lease_seconds
from postroom.carriers.webhook_body import event_body, event_id, signatures
from postroom.carriers.webhook_health import Health
from postroom.carriers.webhook_place import BY_SETTINGS, WebhookPlace
from postroom.carriers.webhook_wire import Answer, NotSent, Unanswered, WebhookWire, wait_of
from postroom.endpoint import CarrierKind, Endpoint
from postroom.errors import Invalid
from postroom.message import Parcel, Written

GONE = 410
ASKS_TO_WAIT = frozenset({429, 502, 503, 504})
"""What a Retry-After is heard with."""
SLACK = 0.9
"""Of what a lease leaves for a write: the rest is for saying how it went."""

log = logging.getLogger("postroom.courier")


class WebhookCarrier:
    """Calls the webhooks of the settings; `clock` gives ms UTC."""

    kind = CarrierKind.WEBHOOK

    def __init__(
        self, places: Sequence[WebhookPlace], clock: Callable[[], int], wire: WebhookWire | None = None
    ) -> None:
        self._places = {place.target_key: place for place in places}
        self._health = {place.target_key: Health() for place in places}
        self._clock = clock
        self._wire = wire or WebhookWire()

    @property
    def reaches(self) -> tuple[str, ...]:
        """Those of the webhooks that the settings name."""
        return tuple(place.reach for place in self._places.values())

    def check_address(self, address: Mapping[str, Any]) -> NoReturn:
        """Nobody attaches a webhook by its address. Raises Invalid."""
        raise Invalid(BY_SETTINGS, field="carrier")

    async def look(self, parcel: Parcel) -> Look:
        """Free, or why nothing is sent there for now."""
        health = self._health.get(parcel.target.key)
        if health is None:
            return Look(Standing.GONE, "the settings do not name it")
        closed = health.closed(self._clock())
        return FREE if closed is None else Look(Standing.BUSY, closed)

    async def write(self, parcel: Parcel) -> Writing:
        """One POST; what came of it counts for the next ones."""
        key = parcel.target.key
        place, health = self._places[key], self._health[key]
        id_, now = event_id(parcel), self._clock()
        body = event_body(parcel, place.max_payload)
        headers = (
            f"user-agent: postroom/{postroom.__version__}\r\nwebhook-id: {id_}\r\nwebhook-timestamp: {now // 1000}\r\n"
            f"webhook-signature: {signatures(place.keys, id_, now // 1000, body)}\r\n"
        )
        seconds = min(place.timeout_s, SLACK * WRITE_SHARE * lease_seconds(parcel))
        try:
            writing = _writing(await self._post(place, health, headers, body, seconds))
        except NotSent as error:
            writing = Writing(Written.REFUSED, str(error))
        except Unanswered as error:
            writing = Writing(Written.UNKNOWN, str(error))
        self._count(place, health, writing)
        return writing

    async def _post(self, place: WebhookPlace, health: Health, headers: str, body: bytes, seconds: float) -> Answer:
        answer = await self._wire.post(place, headers, body, seconds)
        if answer.status in ASKS_TO_WAIT:
            wait = wait_of(answer, self._clock())
            if wait is not None:
                health.asked_to_wait(self._clock(), wait)
        return answer

    def _count(self, place: WebhookPlace, health: Health, writing: Writing) -> None:
        if writing.outcome is Written.WRITTEN:
            if health.succeeded():
                log.info("webhook %s answers again and is enabled", place.name)
        elif health.failed(self._clock(), writing.reason or "", gone=writing.outcome is Written.PERMANENT):
            log.warning("webhook %s is %s", place.name, health.closed(self._clock()))

    async def seen(self, parcel: Parcel) -> bool | None:
        """Nobody can look there; the receiver knows a repeat by its id."""
        return None

    async def progress(self, parcel: Parcel) -> Progress:
        """No write here begins a turn."""
        return Progress(Turn.UNKNOWN)

    async def live(self, endpoint: Endpoint) -> bool | None:
        """True while it is called; a disabled one, or one of another daemon's, gives no sign and does not end."""
        health = self._health.get(endpoint.target_key)
        return True if health is not None and not health.disabled else None

    def on_change(self, call: Callable[[str], None]) -> None:
        """Nothing happens there that would be heard of: a pause is over by the clock alone."""

    def status(self) -> Mapping[str, Any]:
        """Of each webhook where it is called, and how it does."""
        now = self._clock()
        return {
            place.name: {"url": place.shown, **self._health[key].status(now)} for key, place in self._places.items()
        }

    async def run(self) -> None:
        """There is nothing to keep going."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is held between two requests."""


def _writing(answer: Answer) -> Writing:
    status = answer.status
    if 200 <= status < 300:
        return Writing(Written.WRITTEN)
    if status == GONE:
        return Writing(Written.PERMANENT, "HTTP 410: the receiver says that it is gone for good")
    if 300 <= status < 400:
        return Writing(Written.REFUSED, f"HTTP {status}: a redirect, which is not followed")
    return Writing(Written.REFUSED, f"HTTP {status}")
