"""The post against its oracle: every verb of couriers, recipients and senders in any order, and couriers that race."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from postroom import delivery as life
from postroom.delivery import Policy
from postroom.endpoint import CarrierKind
from postroom.errors import Conflict, PostroomError
from postroom.limits import MINUTE, SECOND
from postroom.message import AckMode, Delivery, DeliveryState, Parcel, Priority, Target, Written
from postroom.postage import RING_KIND
from postroom.services.inbox import show_since
from tests.machines.post_ground import START, PostGround
from tests.machines.post_oracle import PostOracle
from tests.offices import ADMIN
from tests.services.postings import Posting, insertions

T = TypeVar("T")
POLICY = Policy()
CARRIERS = {
    "opencode:ses_a": CarrierKind.OPENCODE,
    "opencode:ses_b": CarrierKind.OPENCODE,
    "tmux:x": CarrierKind.TMUX,
    "channel:ep_a": CarrierKind.CHANNEL,
}
KEYS = tuple(CARRIERS)
PUSHED = "channel:ep_a"
MOST_LIVE = 7
"""Live deliveries of one target: of more than eight that fell due, which one comes first is not said."""
REACHES = (("any",), ("any", "host:x"), ("host:x",))

target = st.sampled_from(KEYS)
reaches = st.sampled_from(REACHES)
place = st.integers(0, 9)
outcome = st.sampled_from([*Written, Written.WRITTEN, Written.WRITTEN])
words = st.sampled_from(["said", None])
posting = st.builds(
    Posting,
    target=target,
    priority=st.sampled_from([*Priority, Priority.NORMAL]),
    ack_mode=st.sampled_from(AckMode),
    max_attempts=st.sampled_from([1, 2, 3, 10]),
    reach=st.sampled_from(["any", "any", "any", "host:x"]),
    mailbox=st.sampled_from([None, "shared"]),
    ttl=st.sampled_from([None, None, 10 * SECOND, MINUTE]),
)


class PostMachine(RuleBasedStateMachine):
    """Store and oracle side by side; `ground` says on which engine."""

    ground: PostGround

    def __init__(self) -> None:
        super().__init__()
        self.ground.empty()
        self.office = self.ground.offices[0]
        self.oracle = PostOracle(POLICY, START)
        self.messages: list[str] = []
        self.parcels: list[Delivery] = []

    def _do(self, call: Coroutine[Any, Any, T], expected: type[PostroomError] | None = None) -> T | None:
        answer: T | None = None
        refused: PostroomError | None = None
        try:
            answer = self.ground.run(call)
        except PostroomError as error:
            refused = error
        assert (None if refused is None else type(refused)) is expected, f"{refused or answer!r}, not {expected}"
        return answer

    @invariant()
    def rows_are_the_oracles(self) -> None:
        """Every row, every turn and every place is what the arithmetic says; no target is held twice."""
        deliveries, targets, places = self.ground.look()
        for id_, one in deliveries.items():
            assert one == self.oracle.deliveries[id_]
        assert set(deliveries) == set(self.oracle.deliveries)
        assert targets == self.oracle.targets
        assert places == self.oracle.places
        for key in targets:
            self.oracle.holder(key)

    def _same(self, shown: Delivery) -> None:
        assert replace(shown, deferred_reason=None, deferred_since=None) == self.oracle.deliveries[shown.id]
        target = self.oracle.targets[shown.target_key]
        waits = (target.busy_reason, target.busy_since) if shown.state is DeliveryState.PENDING else (None, None)
        assert (shown.deferred_reason, shown.deferred_since) == waits

    # Admission.

    @rule(news=st.lists(st.tuples(posting, st.sampled_from([(), (), (), KEYS[:2]])), min_size=1, max_size=4))
    def admit(self, news: list[tuple[Posting, tuple[str, ...]]]) -> None:
        for new, fan_out in news:
            self._admit(new, fan_out)

    def _admit(self, new: Posting, fan_out: tuple[str, ...]) -> None:
        new = replace(new, carrier=CARRIERS[new.target], to=tuple(key for key in fan_out if key != new.target))
        keys = (new.target, *new.to)
        if any(sum(one.live for one in self.oracle.at(key)) >= MOST_LIVE for key in keys):
            return
        number = len(self.messages)
        ids = [f"dl_{number:04}_{at}" for at in range(len(keys))]
        message_id = f"msg_{number:04}"
        self.messages.append(message_id)
        self.ground.put(insertions(new, message_id, ids, self.oracle.now))
        made = self.ground.look()[0]
        for key, id_ in zip(keys, ids, strict=True):
            self.oracle.put(made[id_])
            self.oracle.targets.setdefault(key, Target(key, new.carrier))

    # The courier.

    @rule(key=target, within=reaches)
    def look(self, key: str, within: tuple[str, ...]) -> None:
        dispatch = self.office.dispatch
        head, expected = self._do(dispatch.head(key, within)), self.oracle.head(key, within)
        assert (head and head.delivery.id) == (expected and expected.id)
        ready = self.oracle.ready(within)
        assert self._do(dispatch.ready_targets(within, 10)) == ready
        assert self._do(dispatch.ready_targets(within, 1)) == ready[:1]
        assert self._do(dispatch.ready_targets(within, 10, after=key)) == [one for one in ready if one > key]
        assert self._do(dispatch.next_due(key, within)) == self.oracle.next_due(key, within)
        assert self._do(dispatch.next_due(key)) == self.oracle.next_due(key, None)
        turns = self._do(dispatch.turns(within, 10))
        assert turns is not None
        assert {turn.delivery.id for turn in turns} == self.oracle.turns(within)

    def _leased(self, key: str, within: tuple[str, ...], parcel: Parcel | None) -> Delivery | None:
        lease_id = "none" if parcel is None else parcel.delivery.lease_id
        assert lease_id is not None
        expected = self.oracle.lease(key, within, lease_id)
        assert (parcel and parcel.delivery.id) == (expected and expected.id)
        if parcel is not None:
            self._same(parcel.delivery)
            assert parcel.target == self.oracle.targets[key]
            assert parcel.message.id == parcel.delivery.message_id
            self.parcels.append(parcel.delivery)
        return expected

    @rule(key=target, within=reaches)
    def lease(self, key: str, within: tuple[str, ...]) -> None:
        self._leased(key, within, self._do(self.office.dispatch.lease(key, within)))

    @rule(key=target, what=outcome, turn=st.booleans())
    def carry(self, key: str, what: Written, turn: bool) -> None:
        held = self._leased(key, ("any",), self._do(self.office.dispatch.lease(key, ("any",))))
        if held is not None:
            self._settle(held, what, "said", turn)

    @rule(new=posting, kind=st.sampled_from([RING_KIND, "chat"]), seen=st.sampled_from([False, False, True]))
    def push(self, new: Posting, kind: str, seen: bool) -> None:
        """A write that a channel cannot vouch for, of a message read before it was settled, or not."""
        if self.oracle.head(PUSHED, ("any",)) is None:
            self._admit(replace(new, target=PUSHED, reach="any"), ())
        held = self._leased(PUSHED, ("any",), self._do(self.office.dispatch.lease(PUSHED, ("any",))))
        if held is not None:
            if seen:
                self._read(held.mailbox, 0)
            self._settle(held, Written.UNKNOWN, "pushed", False, kind)

    @rule(key=target)
    def couriers_race(self, key: str) -> None:
        async def race() -> list[Parcel]:
            calls = [office.dispatch.lease(key, ("any",)) for office in self.ground.offices]
            return [parcel for parcel in await asyncio.gather(*calls) if parcel is not None]

        won = self._do(race())
        assert won is not None
        assert len(won) <= 1
        self._leased(key, ("any",), won[0] if won else None)

    @precondition(lambda self: self.parcels)
    @rule(at=place, what=outcome, why=words, turn=st.booleans())
    def settle(self, at: int, what: Written, why: str | None, turn: bool) -> None:
        held = self.parcels[-1 - at % len(self.parcels)]
        self._settle(held, what, why, turn)

    @rule(key=target, what=outcome, turn=st.booleans())
    def settle_what_is_held(self, key: str, what: Written, turn: bool) -> None:
        holder = self.oracle.holder(key)
        if holder is not None:
            self._settle(next(one for one in self.parcels if one.lease_id == holder.lease_id), what, "said", turn)

    def _settle(self, held: Delivery, what: Written, why: str | None, turn: bool, kind: str = "chat") -> None:
        target = self.oracle.targets[held.target_key]
        message = self.office.dispatch.settle(_parcel(held, target, kind), what, why, turn=turn)
        settled, expected = self._do(message), self.oracle.settle(held, what, why, turn, once=kind == RING_KIND)
        assert (settled is None) == (expected is None)
        if settled is not None:
            self._same(settled)

    @rule(key=target, why=st.sampled_from(["busy", "gone", None]))
    def defer(self, key: str, why: str | None) -> None:
        self._do(self.office.dispatch.defer(key, why))
        self.oracle.defer(key, why)

    @rule(key=target, ms=st.sampled_from([0, 0, 500, 5 * SECOND]))
    def pause(self, key: str, ms: int) -> None:
        self._do(self.office.dispatch.pause(key, ms))
        self.oracle.pause(key, ms)

    @rule(key=target, at=place, answered=st.booleans(), why=words)
    def end_turn(self, key: str, at: int, answered: bool, why: str | None) -> None:
        there = self.oracle.targets.get(key)
        if there is not None and there.turn_delivery is not None and at:
            id_ = there.turn_delivery
        else:
            id_ = self._some(at).id if self.oracle.deliveries else "dl_never"
        ended = self._do(self.office.dispatch.end_turn(key, id_, answered=answered, reason=why))
        assert ended == self.oracle.end_turn(key, id_, answered, why)

    def _some(self, at: int, fits: Callable[[Delivery], bool] | None = None) -> Delivery:
        """One of the deliveries; mostly one that fits, when there is one."""
        some = list(self.oracle.deliveries.values())
        fitting = [one for one in some if fits is not None and fits(one)]
        return fitting[-1 - at % len(fitting)] if fitting and at % 4 else some[-1 - at % len(some)]

    @precondition(lambda self: self.oracle.deliveries)
    @rule(at=place)
    def note_seen(self, at: int) -> None:
        one = self._some(at)
        self._do(self.office.dispatch.note_seen(one.id))
        self.oracle.put(life.see(one, self.oracle.now))

    @rule()
    def start_again(self) -> None:
        lapsed = self._do(self.office.dispatch.lapse_all())
        assert lapsed == (self.oracle.lapse_all() if self.ground.one_process else 0)

    # Recipients and senders.

    @precondition(lambda self: self.oracle.deliveries)
    @rule(at=place)
    def ack(self, at: int) -> None:
        self._ack(self._some(at, lambda one: one.state is not DeliveryState.ACKNOWLEDGED))

    @rule(key=target)
    def ack_what_is_held(self, key: str) -> None:
        holder = self.oracle.holder(key)
        if holder is not None:
            self._ack(holder)

    def _ack(self, one: Delivery) -> None:
        posted = self._do(self.office.receipts.ack(ADMIN, one.message_id, one.target_key))
        self.oracle.ack(one)
        assert posted is not None
        for shown in posted.deliveries:
            self._same(shown)

    def _steer(self, step: Callable[[], None], call: Coroutine[Any, Any, Any]) -> None:
        try:
            step()
        except Conflict as refusal:
            self._do(call, type(refusal))
            return
        posted = self._do(call)
        assert posted is not None
        for shown in posted.deliveries:
            self._same(shown)

    @precondition(lambda self: self.oracle.deliveries)
    @rule(at=place, named=st.booleans())
    def retry(self, at: int, named: bool) -> None:
        one = self._some(at, lambda one: one.state is DeliveryState.FAILED)
        some = [other for other in self.oracle.deliveries.values() if other.message_id == one.message_id]

        def step() -> None:
            chosen = one if named else self.oracle.retriable(some, ADMIN.name)
            self.oracle.put(life.retry(chosen, self.oracle.now))

        self._steer(step, self.office.receipts.retry(ADMIN, one.message_id, one.target_key if named else None))

    @precondition(lambda self: self.oracle.deliveries)
    @rule(at=place)
    def cancel(self, at: int) -> None:
        message_id = self._some(at, lambda one: one.live).message_id
        some = [one for one in self.oracle.deliveries.values() if one.message_id == message_id]
        call = self.office.receipts.cancel(ADMIN, message_id)
        self._steer(lambda: self.oracle.cancel(some, "cancelled by root"), call)

    @rule(mailbox=st.sampled_from(["ep_a", "ep_a", "shared", "ses_a"]), back=st.sampled_from([0, 0, 1]))
    def read(self, mailbox: str, back: int) -> None:
        self._read(mailbox, back)

    def _read(self, mailbox: str, back: int) -> None:
        place = max(self.oracle.places.get(mailbox, 0) - back, 0)
        self._do(self.office.inbox.mark_read(ADMIN, mailbox, show_since(place)))
        self.oracle.read(mailbox, place)

    # What happens by itself.

    @rule(ms=st.sampled_from([999, SECOND, 5 * SECOND, 30 * SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, 121 * MINUTE]))
    def time_passes(self, ms: int) -> None:
        self.ground.move(ms)
        self.oracle.now += ms

    @rule()
    def sweep(self) -> None:
        swept = self._do(self.office.dispatch.sweep(3))
        assert swept is not None
        assert (swept.lapsed, swept.overdue, swept.expired, swept.turns) == self.oracle.sweep()


def _parcel(held: Delivery, target: Target, kind: str) -> Any:
    """As much of a parcel as a settlement looks at."""
    message = type("Said", (), {"kind": kind})()
    return type("Held", (), {"delivery": held, "target": target, "message": message, "endpoint": None})()
