"""The oracle of the post: deliveries and targets as dictionaries, moved by the pure functions of a delivery's life."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from postroom import delivery as life
from postroom.delivery import Policy
from postroom.errors import Ambiguous, Conflict
from postroom.message import Delivery, DeliveryState, Target, Written


class PostOracle:
    """What the store must hold. Time stands still but when it is moved, so that every time in it is known."""

    def __init__(self, policy: Policy, now: int) -> None:
        self.policy = policy
        self.now = now
        self.deliveries: dict[str, Delivery] = {}
        self.targets: dict[str, Target] = {}
        self.places: dict[str, int] = {}
        self.reads: dict[str, int] = {}

    # Looking.

    def at(self, key: str) -> list[Delivery]:
        """The deliveries of a target, in the order of their admission."""
        return sorted((one for one in self.deliveries.values() if one.target_key == key), key=lambda one: one.seq)

    def holder(self, key: str) -> Delivery | None:
        """The delivery that is leased at a target; there is one at the most."""
        held = [one for one in self.at(key) if one.lease_id is not None]
        assert len(held) <= 1, f"{key} is held twice"
        return held[0] if held else None

    def head(self, key: str, reaches: Sequence[str]) -> Delivery | None:
        """What a lease would take, when no lease of this target is live."""
        target = self.targets.get(key)
        holder = self.holder(key)
        if target is None or (target.not_before or 0) > self.now:
            return None
        if holder is not None and (holder.lease_expires_at or 0) > self.now:
            return None
        fitting = [
            one
            for one in self.at(key)
            if life.ready(one, self.now) and one.reach in reaches and (target.turn_delivery is None or one.rank == 0)
        ]
        return min(fitting, key=lambda one: (one.rank, one.seq), default=None)

    def ready(self, reaches: Sequence[str]) -> list[str]:
        """Targets with something to carry."""
        return sorted(key for key in self.targets if self.head(key, reaches) is not None)

    def next_due(self, key: str, reaches: Sequence[str] | None) -> int | None:
        """When something of a target may be carried."""
        if key not in self.targets:
            return None
        target, holder = self.targets[key], self.holder(key)
        least = max(target.not_before or 0, 0 if holder is None else holder.lease_expires_at or 0)
        over = 0 if target.turn_since is None else target.turn_since + self.policy.turn_most
        dues = [
            max(least, one.next_attempt_at or 0, over if one.rank > 0 else 0)
            for one in self.at(key)
            if one.state is DeliveryState.PENDING
            and one.lease_id is None
            and (one.expires_at is None or one.expires_at > self.now)
            and (reaches is None or one.reach in reaches)
        ]
        return max(min(dues) - self.now, 0) if dues else None

    def turns(self, reaches: Sequence[str]) -> set[str]:
        """The deliveries whose turns are on, within reach."""
        on = [target.turn_delivery for target in self.targets.values() if target.turn_delivery is not None]
        return {id_ for id_ in on if self.deliveries[id_].reach in reaches}

    # Moving.

    def put(self, one: Delivery) -> None:
        """The delivery as it is now."""
        self.deliveries[one.id] = one

    def lease(self, key: str, reaches: Sequence[str], lease_id: str) -> Delivery | None:
        """Settle what has lapsed there, and lease what comes first."""
        holder = self.holder(key)
        if holder is not None and (holder.lease_expires_at or 0) <= self.now and key in self.targets:
            self.put(life.lapse(holder, self.now, self.policy))
        found = self.head(key, reaches)
        if found is None:
            return None
        leased = life.lease(found, self.now, lease_id, self.policy)
        self.put(leased)
        return leased

    def _place(self, before: Delivery, after: Callable[[int], Delivery]) -> Delivery:
        place = self.places.get(before.mailbox, 0) + 1
        moved = after(place)
        if before.handoff_seq is None and moved.handoff_seq is not None:
            self.places[before.mailbox] = place
        self.put(moved)
        return moved

    def settle(
        self, held: Delivery, outcome: Written, reason: str | None, turn: bool, *, once: bool = False
    ) -> Delivery | None:
        """What a write came to; nothing when the lease is another's."""
        one, lease_id = self.deliveries[held.id], held.lease_id
        assert lease_id is not None
        if one.lease_id != lease_id:
            return None
        settled = self._place(
            one, lambda place: life.settle(one, self.now, lease_id, outcome, reason, place, self.policy, once=once)
        )
        if outcome is Written.WRITTEN:
            target = replace(self.targets[one.target_key], busy_reason=None, busy_since=None)
            if turn:
                target = replace(target, turn_delivery=one.id, turn_since=self.now)
            self.targets[one.target_key] = target
        return settled

    def read(self, mailbox: str, place: int) -> None:
        """A mailbox was read up to a place: what was pushed there since the last one has arrived."""
        before = self.reads.get(mailbox, 0)
        for one in list(self.deliveries.values()):
            if one.mailbox == mailbox and before < (one.handoff_seq or 0) <= place:
                self.put(life.read(one, self.now, self.policy))
        self.reads[mailbox] = max(before, min(place, self.places.get(mailbox, 0)))

    def ack(self, one: Delivery) -> Delivery:
        """Acknowledge."""
        return self._place(one, lambda place: life.ack(one, self.now, place))

    def cancel(self, some: Iterable[Delivery], why: str) -> None:
        """Cancel what can be; Conflict when nothing can."""
        cancelled = []
        for one in some:
            try:
                cancelled.append(life.cancel(one, self.now, why))
            except Conflict:
                continue
        if not cancelled:
            raise Conflict("nothing is under way")
        for one in cancelled:
            self.put(one)

    def defer(self, key: str, reason: str | None) -> None:
        """Why nothing is tried; the time is that of the reason's change."""
        if key in self.targets and self.targets[key].busy_reason != reason:
            since = None if reason is None else self.now
            self.targets[key] = replace(self.targets[key], busy_reason=reason, busy_since=since)

    def pause(self, key: str, ms: int) -> None:
        """Nothing for a while."""
        if key in self.targets:
            self.targets[key] = replace(self.targets[key], not_before=self.now + ms if ms > 0 else None)

    def end_turn(self, key: str, id_: str, answered: bool, reason: str | None) -> bool:
        """The turn is over, when it is this one's."""
        if key not in self.targets or self.targets[key].turn_delivery != id_:
            return False
        self.targets[key] = replace(self.targets[key], turn_delivery=None, turn_since=None)
        self.put(life.end_turn(self.deliveries[id_], self.now, answered=answered, reason=reason))
        return True

    def sweep(self) -> tuple[int, int, int, int]:
        """What falls due by itself: how many lapsed, were overdue, expired; and turns that took too long."""
        counts = [0, 0, 0, 0]
        moves: tuple[Callable[[Delivery], Delivery], ...] = (
            lambda one: life.lapse(one, self.now, self.policy),
            lambda one: life.overdue(one, self.now),
            lambda one: life.expire(one, self.now),
        )
        for kind, move in enumerate(moves):
            for one in list(self.deliveries.values()):
                try:
                    self.put(move(one))
                except Conflict:
                    continue
                counts[kind] += 1
        for key, target in self.targets.items():
            if target.turn_since is not None and target.turn_since <= self.now - self.policy.turn_most:
                self.targets[key] = replace(target, turn_delivery=None, turn_since=None)
                counts[3] += 1
        return counts[0], counts[1], counts[2], counts[3]

    def lapse_all(self) -> int:
        """Every lease is over at once."""
        held = [one for one in self.deliveries.values() if one.lease_id is not None]
        for one in held:
            self.put(life.lapse(replace(one, lease_expires_at=self.now), self.now, self.policy))
        return len(held)

    def retriable(self, some: Sequence[Delivery], name: str) -> Delivery:
        """The delivery that a retry without a name means; Conflict when several could be."""
        failed = [one for one in some if one.state is DeliveryState.FAILED]
        for found in ([one for one in some if one.mailbox == name], some, failed):
            if len(found) == 1:
                return found[0]
        raise Ambiguous("ambiguous")
