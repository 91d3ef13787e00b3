"""Happenings: whoever listens hears, after its commit, what this process did; a hint, without resume (RULINGS 32).

What other daemons on the same database do arrives as hints alone: `queue.changed`, `mailbox.changed`, and `lagged` when
hints may have been missed. Nobody listening costs a transition one look at an empty list.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final, Self

from postroom import limits, postage
from postroom.errors import Invalid, RateLimited, Unavailable
from postroom.happening import KINDS, LAGGED, WHATS, Happening, HappeningFilter, fits
from postroom.model import Principal
from postroom.services.tellings import Told
from postroom.services.wake import Wake
from postroom.services.watch import Watch

BUFFER: Final = 256
"""How many happenings wait for one who reads slowly; what comes beyond them is one `lagged`."""
MOST_LISTENERS: Final = 200
KEPT_FOR_ADMINS: Final = 40
"""How many of these places only admins take: who looks for what is wrong must hear of it."""
MOST_EACH: Final = 32
"""How many places the holders of one agent's token take together."""
MOST_NAMED: Final = 50
"""How many queues, mailboxes or kinds one filter may name."""

log = logging.getLogger("postroom.happenings")


class Listener:
    """One who listens: what it may see and wants, and what waits until it is read, one by one or all there is."""

    def __init__(self, principal: Principal, wanted: HappeningFilter) -> None:
        self._principal = principal
        self._wanted = wanted
        self._waiting: deque[Happening] = deque()
        self._more = asyncio.Event()
        self._closed = False

    def of(self, principal: Principal) -> bool:
        """Whether this principal listens."""
        return self._principal.name == principal.name

    def offer(self, told: Told) -> None:
        """Let it wait to be read, when this is one who may see and wants it."""
        shown = shown_to(self._principal, self._wanted, told)
        if shown is None:
            return
        if len(self._waiting) < BUFFER:
            self._waiting.append(shown)
            self._more.set()
        else:
            self.lag(shown.at)

    def lag(self, at: int) -> None:
        """Something will not be told: one `lagged` stands for it, and for all that follows until it is read."""
        if not self._waiting or self._waiting[-1].what != LAGGED:
            self._waiting.append(lagged(at))
            self._more.set()

    def close(self) -> None:
        """Let it read what waits, and then end."""
        self._closed = True
        self._more.set()

    def __aiter__(self) -> Self:
        """What happens, from the beginning of its listening to the end of all listening."""
        return self

    async def __anext__(self) -> Happening:
        """The next one, once there is one."""
        if not await self._any():
            raise StopAsyncIteration
        return self._waiting.popleft()

    async def some(self) -> list[Happening]:
        """All that wait, once there are any; none when all listening is over. Giving it up loses nothing."""
        if not await self._any():
            return []
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    async def _any(self) -> bool:
        while not self._waiting:
            if self._closed:
                return False
            self._more.clear()
            await self._more.wait()
        return True


class Happenings:
    """Everybody who listens; `clock` gives ms UTC where a transition's own rows tell no time."""

    def __init__(self, wake: Wake, watch: Watch, clock: Callable[[], int]) -> None:
        self._wake = wake
        self._watch = watch
        self._clock = clock
        self._listeners: set[Listener] = set()
        self._closed = False

    @property
    def listening(self) -> int:
        """How many listen now."""
        return len(self._listeners)

    def subscribe(
        self, principal: Principal, wanted: HappeningFilter | None = None
    ) -> AbstractAsyncContextManager[Listener]:
        """Listen while inside: what happens from now on, of what the principal may see and the filter wants.

        One who reads too slowly is told so by one `lagged`, and by nothing else of what was lost. Raises Invalid naming
        the filter's field, RateLimited when this agent listens too often, and Unavailable when too many others do, or
        nobody may any more.
        """
        return self._subscribe(principal, check_happening_filter(wanted or HappeningFilter()))

    @asynccontextmanager
    async def _subscribe(self, principal: Principal, wanted: HappeningFilter) -> AsyncIterator[Listener]:
        if self._closed:
            raise Unavailable("the store is stopping: nobody listens any more")
        self._check_place(principal)
        listener = Listener(principal, wanted)
        if not self._listeners:
            self._wake.hear(self._hear, self._missed)
        self._listeners.add(listener)
        try:
            with ExitStack() as watched:
                # What another daemon puts there is found by the look that goes on while somebody watches.
                mailboxes = [mailbox for mailbox in wanted.mailboxes if principal.may_speak_as(mailbox)]
                for mailbox in mailboxes:
                    watched.enter_context(self._watch.mailbox(mailbox))
                await self._watch.begin(mailboxes)
                yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._wake.hear(None, None)

    def _check_place(self, principal: Principal) -> None:
        most = MOST_LISTENERS if principal.admin else MOST_LISTENERS - KEPT_FOR_ADMINS
        if not principal.admin and sum(one.of(principal) for one in self._listeners) >= MOST_EACH:
            raise RateLimited(f"{principal.name} listens {MOST_EACH} times already, which is the most for one token")
        if len(self._listeners) >= most:
            whose = "" if principal.admin else ", besides those kept for admins"
            raise Unavailable(f"{len(self._listeners)} listen already, which is the most{whose}; try again later")

    def _hear(self, telling: Callable[[int], Iterable[Told]]) -> None:
        try:
            for told in telling(self._clock()):
                for listener in self._listeners:
                    listener.offer(told)
        except Exception:
            # What happened has happened, and its caller is answered: only those who listen miss something.
            log.exception("a happening could not be told")
            self._missed()

    def _missed(self) -> None:
        now = self._clock()
        for listener in self._listeners:
            listener.lag(now)

    def close(self) -> None:
        """Let everybody read what waits, and nobody listen any more."""
        self._closed = True
        for listener in self._listeners:
            listener.close()


def lagged(at: int) -> Happening:
    """What stands for all that was not told."""
    return Happening(at, LAGGED, "", words="some happenings were not told: look again at what you want to know")


def shown_to(principal: Principal, wanted: HappeningFilter, told: Told) -> Happening | None:
    """The happening as this principal may see it, when it may and the filter wants it; of several queues or mailboxes it
    shows one that both allow, and none where that leaves several."""
    shown = told.happening
    if told.queue_alone:
        # By far the most of what is told.
        return shown if fits(wanted, shown) and principal.may_use(told.queues[0]) else None
    queues = [queue for queue in told.queues if principal.may_use(queue)]
    mailboxes = [name for name in told.mailboxes if principal.may_speak_as(name)]
    if not (principal.admin or queues or mailboxes or _concerned(principal, told)):
        return None
    if not mailboxes and _concerned(principal, told):
        # Who sent it sees whom it went to, as its receipts do.
        mailboxes = list(told.mailboxes)
    if shown.queue is None and queues:
        shown = replace(shown, queue=_one(queues, wanted.queues))
    if shown.mailbox is None and mailboxes:
        shown = replace(shown, mailbox=_one(mailboxes, wanted.mailboxes))
    return shown if fits(wanted, shown) else None


def _concerned(principal: Principal, told: Told) -> bool:
    return principal.name in told.creators or any(map(principal.may_speak_as, told.speakers))


def _one(names: list[str], wanted: tuple[str, ...]) -> str | None:
    left = [name for name in names if name in wanted] if wanted else names
    return left[0] if len(left) == 1 or (wanted and left) else None


def check_happening_filter(wanted: HappeningFilter) -> HappeningFilter:
    """The filter itself when it can be asked for. Raises Invalid naming the field."""
    for names, field in ((wanted.queues, "queue"), (wanted.mailboxes, "mailbox"), (wanted.whats, "what")):
        if len(names) > MOST_NAMED:
            raise Invalid(f"{field} is given {len(names)} times; expected at most {MOST_NAMED}", field=field)
    for queue in wanted.queues:
        limits.check_queue(queue)
    for mailbox in wanted.mailboxes:
        postage.check_party(mailbox, "mailbox")
    for what in wanted.whats:
        if what not in KINDS and what not in WHATS:
            raise Invalid(
                f"what {what[:40]!r} is expected to be one of {', '.join(KINDS)}, or one of their happenings, as {WHATS[0]}",
                field="what",
            )
    if wanted.id is not None:
        postage.check_line(wanted.id, "id", 128)
    return wanted
