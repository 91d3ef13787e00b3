"""The doorbell: work that waits in a queue wakes an endpoint that listens to it and has nothing to do (RULINGS 34).

A ring is a message, admitted in the transaction that decides it. It is a hint; the claim is the proof. Hints of work,
claims and new endpoints make a queue be looked at; what no hint tells of, such as claims through another daemon, a look
at every queue finds from time to time. A queue that nobody listens to costs one look at a set of names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from postroom.endpoint import CarrierKind, Endpoint
from postroom.errors import Unavailable
from postroom.ids import Ids
from postroom.limits import MINUTE
from postroom.message import AckMode, DeliveryState, NewMessage, Posted, Priority
from postroom.postage import RING_KIND
from postroom.services import tellings
from postroom.services.addresses import AddressBook
from postroom.services.notice import GRANTS_NOTHING, drafted
from postroom.services.ring_plan import STEPS, Call, News, Plan, make_plan
from postroom.services.wake import Wake
from postroom.store.admissions import AdmissionTable
from postroom.store.deliveries import DeliveryTable
from postroom.store.engine import Duplicate, Engine, Reader, Tx
from postroom.store.rings import COUNTED, PASSED_ON, RingTable

KIND: Final = RING_KIND
"""The kind of a message that is a ring; a failed one is no failure that an operator is shown."""
LIFE: Final = 5 * MINUTE
"""How long (ms) a ring is worth writing."""
LOOK_AGAIN = 5.0
"""How often (seconds) every queue is looked at that somebody listens to."""
LOOK_AGAIN_DEAF = 1.0
"""The same where no hints of other processes arrive."""
BREATH = 0.005
"""The least pause (seconds) between two turns: hints that come meanwhile are one."""
MOST_BREATH = 0.1
"""The longest: each turn in a row that found nothing to do doubles the pause, so that a burst of hints costs little."""
TRY_AGAIN = 1.0
RIVALS = 8
"""How often a queue is looked at again when what was found changed in the very moment."""
CLAIMED = "its queue's work was claimed, or is gone"

log = logging.getLogger("postroom.doorbell")


class _Again(Exception):
    """What was decided could not be done, since an endpoint had gone: undo everything, and look again."""


class Doorbell:
    """Rings for the queues that endpoints listen to; `clock` gives ms UTC, for the ids of messages alone.

    carries: whether this daemon, or another one, can carry to an endpoint.
    """

    def __init__(
        self,
        engine: Engine,
        table: RingTable,
        admissions: AdmissionTable,
        deliveries: DeliveryTable,
        book: AddressBook,
        wake: Wake,
        ids: Ids,
        clock: Callable[[], int],
        carries: Callable[[Endpoint], bool] = lambda endpoint: True,
    ) -> None:
        self._engine = engine
        self._table = table
        self._admissions = admissions
        self._deliveries = deliveries
        self._book = book
        self._wake = wake
        self._ids = ids
        self._clock = clock
        self._carries = carries
        self._reader = Reader(engine)
        self._listened: frozenset[str] = frozenset()
        self._news: dict[str, News] = {}
        self._told = asyncio.Event()
        self._open = False
        self._look_at_all = False
        self._did = False
        self._rung = 0
        self.away: str | None = None
        """Why the last turn could not reach the database, None when it could."""
        wake.listen(self._hear_of_work)
        wake.listen_claims(self._hear_of_claim)
        wake.listen_arrivals(self._hear_of_arrival)

    # What is heard.

    def _hear_of_work(self, queue: str | None) -> None:
        if queue is None:
            self._look_at_all = True
            self._told.set()
        elif queue in self._listened:
            self._note([queue])

    def _hear_of_claim(self, queues: frozenset[str], owner: str, at: int) -> None:
        if self._listened:
            self._note(queues & self._listened, claimed={owner: at})

    def _hear_of_arrival(self, queues: frozenset[str], endpoint_id: str) -> None:
        if self._open:
            self._listened |= queues
            self._note(queues, attached=frozenset({endpoint_id}))

    def _note(
        self,
        queues: Iterable[str],
        claimed: Mapping[str, int] | None = None,
        attached: frozenset[str] = frozenset(),
    ) -> None:
        for queue in queues:
            known = self._news.get(queue)
            if known is None:
                self._news[queue] = News(claimed or {}, attached)
            elif claimed or attached:
                both = {**known.claimed}
                for owner, at in (claimed or {}).items():
                    both[owner] = max(at, both.get(owner, at))
                self._news[queue] = News(both, known.attached | attached)
            self._told.set()

    # The loop.

    async def run(self) -> None:
        """Ring until cancelled; a database that is away is tried again."""
        loop = asyncio.get_running_loop()
        # What stands from before is looked at after a while, when carriers have seen which endpoints are still there.
        look_at = loop.time() + self._period()
        idle = 0
        while True:
            pause = TRY_AGAIN
            try:
                begun = loop.time()
                if not self._open:
                    await self._listen()
                if self._look_at_all or begun >= look_at:
                    await self._listen()
                    self._note(self._listened)
                    self._look_at_all = False
                    look_at = begun + self._period()
                await self.turn()
                self.away = None
                idle = 0 if self._did else idle + 1
                pause = min(BREATH * 2 ** min(idle, 10), MOST_BREATH)
            except Unavailable as error:
                self.away = error.message
                log.warning("the doorbell is put off: %s", error.message)
            except Exception:
                log.exception("the doorbell failed and will be tried again")
            await asyncio.sleep(pause)
            if not self._told.is_set():
                idle = 0
                try:
                    async with asyncio.timeout_at(look_at):
                        await self._told.wait()
                except TimeoutError:
                    pass

    def _period(self) -> float:
        return LOOK_AGAIN if self._engine.listening else LOOK_AGAIN_DEAF

    async def once(self) -> int:
        """Look at every queue that somebody listens to: how many rings were rung."""
        await self._listen()
        self._note(self._listened)
        return await self.turn()

    async def _listen(self) -> None:
        self._listened = await self._table.queues(self._reader)
        self._open = True

    async def turn(self) -> int:
        """Look at the queues of which something was heard: how many rings were rung. What fails is heard of again."""
        self._told.clear()
        self._did = False
        news, self._news = self._news, {}
        rung = 0
        fault: Exception | None = None
        try:
            for queue in list(news):
                try:
                    rung += await self._decide(queue, news[queue])
                except Unavailable:
                    raise
                except Exception as error:
                    # One queue's fault is not the others'.
                    fault = error
                    continue
                del news[queue]
        finally:
            for queue, left in news.items():
                self._note([queue], left.claimed, left.attached)
        if fault is not None:
            raise fault
        return rung

    # Rings.

    async def _decide(self, queue: str, news: News) -> int:
        """Do what there is to do for a queue, alone with it; nothing is locked or written when there is nothing to do."""
        for _ in range(RIVALS):
            if not await self._look(self._reader, queue, news):
                return 0

            async def operation(tx: Tx) -> tuple[list[Posted], dict[str, str]]:
                await self._table.lock(tx, queue)
                return await self._carry_out(tx, queue, await self._look(tx, queue, news))

            try:
                posted, recalled = await self._engine.transact(operation)
            except (Duplicate, _Again):
                continue
            self._tell(posted, recalled)
            self._did = True
            self._rung += len(posted)
            return len(posted)
        raise Unavailable(f"who listens to {queue} keeps changing")

    async def _look(self, tx: Tx, queue: str, news: News) -> Plan:
        work = await self._table.work(tx, queue)
        out, known = await self._table.rings(tx, queue)
        if not (known or news.claimed) and (work.closed or not (work.waiting or work.assigned)):
            return Plan()
        seats = [
            seat if self._carries(seat.endpoint) else replace(seat, carried=False)
            for seat in await self._table.seats(tx, queue)
        ]
        return make_plan(work, out, known, seats, news)

    async def _carry_out(self, tx: Tx, queue: str, plan: Plan) -> tuple[list[Posted], dict[str, str]]:
        recalled = {id_: CLAIMED for id_ in plan.recalled if await self._deliveries.cancel(tx, id_, CLAIMED)}
        for id_ in plan.passed_on:
            # Only what nobody is writing goes to another: a ring is written once.
            if not await self._deliveries.cancel(tx, id_, PASSED_ON):
                raise _Again
            recalled[id_] = PASSED_ON
        for endpoint_id in plan.answered:
            await self._table.answer(tx, queue, endpoint_id)
        if plan.ended:
            await self._table.end(tx, queue, plan.ended)
        if plan.forgotten:
            await self._table.forget(tx, queue, plan.forgotten)
        return [await self._ring(tx, queue, call) for call in plan.calls], recalled

    async def _ring(self, tx: Tx, queue: str, call: Call) -> Posted:
        new = ring_message(queue, call)
        draft = drafted(new, self._ids.message(self._clock()))
        posted = await self._admissions.admit(tx, draft, [self._book.at(call.seat.endpoint, new)])
        if posted is None or not await self._table.ring(
            tx, queue, call.seat.id, draft.id, call.old, STEPS[call.step], call.step, own=call.own
        ):
            raise _Again
        return posted

    def _tell(self, posted: Iterable[Posted], recalled: Mapping[str, str]) -> None:
        deliveries = [delivery for one in posted for delivery in one.deliveries]
        self._wake.post(one.target_key for one in deliveries if one.state is DeliveryState.PENDING)
        there = [one.mailbox for one in deliveries if one.carrier is CarrierKind.INBOX]
        self._wake.changed([*recalled, *(one.message_id for one in deliveries)], there)
        for id_, why in recalled.items():
            self._wake.told(tellings.recalled, [id_], why)
        self._wake.told(tellings.admitted, posted)

    def status(self) -> Mapping[str, Any]:
        """What an operator wants to know: how many queues are listened to, how many rings it rang, and what is wrong."""
        return {"queues": len(self._listened), "rung": self._rung, "problem": self.away}


def ring_message(queue: str, call: Call) -> NewMessage:
    """One line that says what waits where; no payload of any todo is in it, and no authority."""
    many = f"{COUNTED} or more" if call.count >= COUNTED else str(call.count)
    wait = "todo waits" if call.count == 1 else "todos wait"
    return NewMessage(
        f'{many} {wait} in queue {queue}. Claim with claim_next(queues=["{queue}"]). {GRANTS_NOTHING}',
        to=call.seat.id,
        kind=KIND,
        priority=Priority.LOW,
        ack_mode=AckMode.INJECTED,
        ttl_ms=LIFE,
        metadata={"queue": queue, "todo_id": call.todo_id, "count": call.count},
        correlation_id=call.todo_id,
    )
