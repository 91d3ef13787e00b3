"""What a worker has in hand: todos claimed and not begun, those in work, and endings not yet told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from postroom.limits import DEFAULT_LEASE, MAX_CLAIM, MAX_OUTCOMES
from postroom.model import OutcomeItem, Todo, Verb
from postroom.text import clean_json

CLAIM_AHEAD: Final = 20
AHEAD_S: Final = 0.5

_PLAIN: Final = frozenset({type(None), bool, int, float, str})


@dataclass(slots=True)
class Stats:
    """What a worker has done: claims taken, endings the desk confirmed, and claims or endings that were lost."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0


class Held:
    """A todo in hand, from its claim until its ending is confirmed; `item` is the ending once there is one."""

    __slots__ = ("beat_at", "deadline", "interrupted", "item", "lease_s", "lost", "plain", "task", "todo")

    def __init__(self, todo: Todo, lease_s: float, beat_at: float, deadline: float) -> None:
        self.todo = todo
        self.lease_s = lease_s
        self.beat_at = beat_at
        self.deadline = deadline
        self.task: asyncio.Task[None] | None = None
        self.item: OutcomeItem | None = None
        self.lost = False
        self.interrupted = False
        self.plain = False


class Hand:
    """The books of one run of a worker. Its size is bounded: no more is claimed than there is room for.

    `held` are the todos without an ending, `ready` those of them not begun, `outbox` the endings to be flushed and
    `flying` how many are on their way. `polling` says that a claim waits for work, `dry` that the last one came back
    empty, `closing` that nothing more is begun.
    """

    def __init__(self, stats: Stats, concurrency: int, prefetch: int | None, lease_s: float | None) -> None:
        self.stats = stats
        self.held: dict[str, Held] = {}
        self.ready: deque[Held] = deque()
        self.outbox: deque[Held] = deque()
        self.flying = 0
        self.polling = False
        self.dry = True
        self.closing = False
        self.shortest_lease = lease_s or DEFAULT_LEASE / 1000
        self.shorter = asyncio.Event()
        self.changed = asyncio.Event()
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._lease_s = lease_s
        self._pace: float | None = None
        self._resting: deque[asyncio.Future[None]] = deque()
        self._bell: asyncio.Future[None] | None = None

    @property
    def told(self) -> bool:
        """Whether every ending has been flushed."""
        return not self.outbox and not self.flying

    @property
    def empty(self) -> bool:
        """Whether nothing is in hand."""
        return not self.held and not self.outbox and not self.flying

    def took(self, seconds: float) -> None:
        """Note how long a handler took."""
        pace = self._pace
        self._pace = seconds if pace is None else pace + (seconds - pace) * 0.1

    async def rest(self) -> None:
        """Wait until something was claimed; another slot may have taken it by then."""
        rest: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(rest)
        await rest

    async def ending(self, within_s: float | None = None) -> None:
        """Wait for the bell: the first ending, or with `within_s` that long for more, but not when no more can come."""
        loop = asyncio.get_running_loop()
        self._bell = loop.create_future()
        alarm = None if within_s is None else loop.call_later(within_s, self._ring)
        try:
            await self._bell
        finally:
            self._bell = None
            if alarm is not None:
                alarm.cancel()

    def room(self, leaving: int = 0) -> int:
        """How many todos to claim now: none while enough are ready, else what fits when `leaving` endings are told."""
        if self._prefetch is not None:
            ahead = self._prefetch
        elif self._pace is None:
            ahead = 0
        else:
            ahead = min(CLAIM_AHEAD, int(self._concurrency * AHEAD_S / max(self._pace, 1e-6)))
        if self.closing or len(self.ready) > ahead // 2:
            return 0
        inside = len(self.held) + len(self.outbox) + self.flying - min(leaving, MAX_OUTCOMES)
        return max(0, min(self._concurrency + ahead - inside, MAX_CLAIM))

    def adopt(self, todos: Sequence[Todo], since: float, beat_now: bool = False) -> None:
        """Take claimed todos in hand; `since` is a time at which their leases had begun at the earliest."""
        shortest = self.shortest_lease
        for todo in todos:
            lease_s = self._lease_s
            if lease_s is None:
                # Both times are the store's own: only their distance is used, never its clock.
                begun, end = todo.claimed_at, todo.lease_expires_at
                lease_s = max((end - begun) / 1000, 0.1) if begun is not None and end is not None else shortest
            beat_at = since if beat_now else since + lease_s / 4
            held = Held(todo, lease_s, beat_at, since + lease_s * 0.9)
            former = self.held.get(todo.id)
            if former is not None:
                if former.todo.lease_id == todo.lease_id:
                    continue
                self.lose(former)
            self.held[todo.id] = held
            self.ready.append(held)
            self.stats.claimed += 1
            if lease_s < self.shortest_lease:
                self.shortest_lease = lease_s
                self.shorter.set()
        if self.closing:
            self.give_back()
            return
        for _ in range(min(len(todos), len(self._resting))):
            rest = self._resting.popleft()
            if not rest.done():
                rest.set_result(None)

    def end(
        self,
        held: Held,
        verb: Verb,
        *,
        result: Any = None,
        error: str | None = None,
        retry: bool = True,
        retry_in_ms: int | None = None,
        note: str | None = None,
        delay_ms: int | None = None,
    ) -> None:
        """In hand -> in the outbox with its ending; of a todo no longer in hand it is dropped."""
        todo = held.todo
        if self.held.get(todo.id) is not held:
            return
        del self.held[todo.id]
        if type(result) not in _PLAIN:
            # A copy, for the handler may keep the object and change it before the flush.
            try:
                result = clean_json(result)
            except Exception as fault:
                result, verb, error = None, Verb.FAIL, f"its result is no JSON: {type(fault).__name__}"
        held.item = OutcomeItem(todo.id, verb, todo.lease_id, result, error, retry, retry_in_ms, note, delay_ms)
        self.outbox.append(held)
        waiting = len(self.outbox)
        if self._bell is not None and (waiting == 1 or not self.held or waiting >= MAX_OUTCOMES):
            self._ring()
        if self.closing:
            self.changed.set()

    def give_back(self) -> None:
        """Ready -> in the outbox, to be released: nothing more is begun."""
        while self.ready:
            self.end(self.ready.popleft(), Verb.RELEASE, note="the worker stopped before it began")

    def confirmed(self, held: Held) -> None:
        """Told -> counted by its verb."""
        verb = None if held.item is None else held.item.verb
        if verb is Verb.COMPLETE:
            self.stats.completed += 1
        elif verb is Verb.FAIL:
            self.stats.failed += 1
        else:
            self.stats.released += 1

    def batch(self) -> dict[str, Held]:
        """Up to 200 endings, at most one a todo; a second one of a todo waits for the next flush."""
        batch: dict[str, Held] = {}
        later: list[Held] = []
        while self.outbox and len(batch) < MAX_OUTCOMES:
            held = self.outbox.popleft()
            if batch.setdefault(held.todo.id, held) is not held:
                later.append(held)
        self.outbox.extendleft(reversed(later))
        return batch

    def lose(self, held: Held) -> bool:
        """In hand -> lost: its handler is cancelled and its ending dropped. False when it was not in hand."""
        if self.held.get(held.todo.id) is not held:
            return False
        del self.held[held.todo.id]
        held.lost = True
        self.stats.lost += 1
        if held.task is not None:
            held.task.cancel()
        else:
            self.ready.remove(held)
        self.changed.set()
        return True

    async def until(self, done: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until `done`, looked at after each change, `seconds` at most; whether it came to be."""
        try:
            async with asyncio.timeout(seconds):
                while not done():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)
