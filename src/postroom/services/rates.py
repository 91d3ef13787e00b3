"""Rates: how many messages a sender may send, so that a loop that runs away is stopped before it buries anybody.

One bucket for each token and sender, in this daemon's memory: a minute's worth may be sent at once, and it fills again
evenly. Admins have none: the operator, relays and the socket send as they like.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from postroom.errors import RateLimited
from postroom.limits import MINUTE
from postroom.model import Principal

MOST_BUCKETS: Final = 10_000
"""How many senders are remembered; of more, those that sent last."""

Key = tuple[str, str]


class Bucket:
    """What one sender may still send at a time (ms). Whole numbers all through: nothing is lost to rounding.

    A message costs 60,000 and each millisecond brings `per_minute`, up to a minute's worth.
    """

    def __init__(self, per_minute: int, now: int) -> None:
        self._per_minute = per_minute
        self._level = self._full = per_minute * MINUTE
        self._at = now

    def take(self, now: int) -> int:
        """A message's worth less, 0; or nothing, and for how many ms there will not be one."""
        if now > self._at:
            self._level = min(self._full, self._level + (now - self._at) * self._per_minute)
            self._at = now
        missing = MINUTE - self._level
        if missing > 0:
            return -(-missing // self._per_minute)
        self._level -= MINUTE
        return 0

    def give_back(self) -> None:
        """A message's worth more, for one that was not sent after all."""
        self._level = min(self._full, self._level + MINUTE)


@dataclass(slots=True)
class Fare:
    """What is to be paid for one message: `refusal` when it cannot, `due` once it was admitted as a new one."""

    refusal: RateLimited | None = None
    due: bool = False


class Rates:
    """The buckets; `per_minute` of 0 counts nothing, `clock` gives seconds that never go back."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[Key, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    @contextmanager
    def one(self, principal: Principal, sender: str) -> Iterator[Fare]:
        """The fare of one message, taken at once and given back unless it is due at the end."""
        if self._per_minute == 0 or principal.admin:
            yield Fare()
            return
        bucket = self._bucket((principal.name, sender))
        wait = bucket.take(self._now())
        if wait:
            yield Fare(self._refusal(principal, sender, wait))
            return
        fare = Fare()
        try:
            yield fare
        finally:
            if not fare.due:
                bucket.give_back()

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _bucket(self, key: Key) -> Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MOST_BUCKETS:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = Bucket(self._per_minute, self._now())
        else:
            self._buckets.move_to_end(key)
        return bucket

    def _refusal(self, principal: Principal, sender: str, wait: int) -> RateLimited:
        seconds = -(-wait // 1000)
        who = sender if sender == principal.name else f"{sender} (token {principal.name})"
        return RateLimited(
            f"{who} has sent as many messages as [post] rate_per_minute = {self._per_minute} allows; "
            f"send again in {seconds} s",
            field="from",
            retry_after_s=seconds,
        )
