"""The courier: one loop a daemon that wakes a lane for each target with something to carry (DESIGN §6, RULINGS 22-27).

Admission and the carriers' events wake it at once; the sweep finds what no hint told of. It outlives a database that
is away and carriers that break.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from postroom.carriers.carrier import Arrives, Carrier
from postroom.carriers.lane import NO_CARRIER, Carried, Lane
from postroom.carriers.slots import Slots
from postroom.endpoint import ANY_REACH, CarrierKind
from postroom.errors import Unavailable
from postroom.services.dispatch import DispatchService
from postroom.services.wake import Wake

SWEEP_SECONDS = 5.0
SWEEP_SECONDS_DEAF = 1.0
"""The same where no hints of other processes arrive."""
PAGE = 500
AT_WORK = 32
"""How many lanes work at a time; those that rest, and those whose target hangs, are not counted."""
CLOSE_SECONDS = 5.0
"""How long a write that is under way may still take once the courier stops."""
RUN_AGAIN = 1.0

log = logging.getLogger("postroom.courier")


class Courier:
    """Carries what is admitted; `listening` says whether hints of other daemons arrive."""

    def __init__(
        self,
        dispatch: DispatchService,
        carriers: Mapping[CarrierKind, Carrier],
        wake: Wake,
        *,
        listening: Callable[[], bool] = lambda: True,
        at_work: int = AT_WORK,
    ) -> None:
        self._dispatch = dispatch
        self._carriers = dict(carriers)
        self._listening = listening
        self._slots = Slots(at_work)
        self._lanes: dict[str, Lane] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._carrying: list[asyncio.Task[None]] = []
        self._outcomes: Counter[str] = Counter()
        self._look_around = asyncio.Event()
        self._running = False
        self._closing = False
        self.away: str | None = None
        """Why the last sweep could not reach the database, None when it could."""
        wake.listen_post(self._hear)
        for carrier in self._carriers.values():
            carrier.on_change(self._change)
            if isinstance(carrier, Arrives):
                carrier.on_arrival(self._hear)

    @property
    def reaches(self) -> tuple[str, ...]:
        """The reaches of everything that can be carried from here."""
        found = {reach for carrier in self._carriers.values() for reach in carrier.reaches}
        return tuple(sorted(found | {ANY_REACH}))

    async def run(self) -> None:
        """Carry until cancelled or closed; a database that is away is tried again at the next turn."""
        self._running = True
        self._carrying = [asyncio.create_task(self._keep(carrier)) for carrier in self._carriers.values()]
        try:
            while not self._closing:
                self._look_around.clear()
                try:
                    await self._sweep()
                    self.away = None
                except Unavailable as error:
                    self.away = error.message
                    log.warning("the courier's sweep is put off: %s", error.message)
                except Exception:
                    log.exception("the courier's sweep failed and will be tried again")
                try:
                    async with asyncio.timeout(SWEEP_SECONDS if self._listening() else SWEEP_SECONDS_DEAF):
                        await self._look_around.wait()
                except TimeoutError:
                    pass
        finally:
            self._running = False

    async def _keep(self, carrier: Carrier) -> None:
        while True:
            try:
                await carrier.run()
                return
            except Exception:
                log.exception("the %s carrier broke and is started again", carrier.kind)
                await asyncio.sleep(RUN_AGAIN)

    async def _sweep(self) -> None:
        """Every turn that is on is watched, and every target with something to carry has a lane."""
        reaches = self.reaches
        for turn in await self._dispatch.turns(reaches, PAGE):
            if turn.delivery.carrier in self._carriers:
                lane = self._open(turn.target.key)
                if lane is not None:
                    lane.watch(turn)
        after = ""
        while not self._closing:
            page = await self._dispatch.ready_targets(reaches, PAGE, after)
            for key in page:
                lane = self._open(key)
                if lane is not None and not lane.stranded:
                    lane.ring()
            if len(page) < PAGE:
                return
            after = page[-1]

    def _hear(self, key: str | None) -> None:
        if not self._running:
            return
        if key is None:
            self._look_around.set()
            return
        lane = self._open(key)
        if lane is not None:
            lane.ring()

    def _change(self, key: str) -> None:
        lane = self._lanes.get(key)
        if lane is not None:
            lane.changed()

    def _open(self, key: str) -> Lane | None:
        """The target's lane, at work or begun now; None for what needs no carrying."""
        lane = self._lanes.get(key)
        if lane is not None or self._closing:
            return lane
        try:
            kind = CarrierKind(key.partition(":")[0])
        except ValueError:
            return None
        if kind is CarrierKind.INBOX:
            return None
        lane = Lane(key, self._carriers.get(kind), self._dispatch, self._slots, self._told)
        self._lanes[key] = lane
        self._tasks[key] = asyncio.create_task(self._work(lane))
        return lane

    async def _work(self, lane: Lane) -> None:
        try:
            await lane.run()
        finally:
            del self._lanes[lane.key], self._tasks[lane.key]

    def _told(self, carried: Carried) -> None:
        self._outcomes[carried.outcome.value] += 1

    def status(self) -> Mapping[str, Any]:
        """What an operator wants to know: its carriers as they see themselves, its lanes, and what writes came to."""
        missing = sorted({kind.value for kind in (CarrierKind.OPENCODE,) if kind not in self._carriers})
        return {
            "running": self._running,
            "problem": self.away,
            "lanes": len(self._lanes),
            "writing": sum(lane.holding for lane in self._lanes.values()),
            "outcomes": dict(self._outcomes),
            "carriers": {kind.value: dict(carrier.status()) for kind, carrier in self._carriers.items()},
            "without_carrier": dict.fromkeys(missing, f"messages wait, deferred as {NO_CARRIER}"),
        }

    async def close(self) -> None:
        """Stop: what is being written is settled within a deadline, or handed back; then the carriers are let go."""
        self._closing = True
        self._look_around.set()
        for key, lane in list(self._lanes.items()):
            lane.closing = True
            lane.ring()
            if not lane.holding:
                self._tasks[key].cancel()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        for carrier in self._carriers.values():
            await carrier.close()
