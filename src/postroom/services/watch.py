"""The watch: who waits for a message's receipt, or for something new in an inbox, and is told when to look again.

This process's changes arrive as hints; what other daemons change is found by one look a second for all who wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from postroom.errors import Unavailable
from postroom.services import tellings
from postroom.services.wake import Wake
from postroom.store.engine import Engine, Reader
from postroom.store.mailboxes import MailboxTable
from postroom.store.statements import Dialect

LOOK_AGAIN = 1.0
"""How often (seconds) it is looked for what no hint told of."""

log = logging.getLogger("postroom.watch")


class Watcher:
    """One who waits; `clear` comes before each look, so that no change between look and sleep is missed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._event = asyncio.Event()

    def clear(self) -> None:
        """What was told so far will have been seen by the look that follows."""
        self._event.clear()

    def tell(self) -> None:
        """Look again."""
        self._event.set()

    async def changed(self, deadline: float) -> bool:
        """Wait until it is worth a look, True; or until `deadline` (the loop's time) or the end of all waiting, False."""
        if self._watch.closed:
            return False
        try:
            async with asyncio.timeout_at(deadline):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Watch:
    """Everybody who waits, by message and by mailbox."""

    def __init__(self, engine: Engine, mailboxes: MailboxTable, wake: Wake) -> None:
        self._engine = engine
        self._mailboxes = mailboxes
        self._wake = wake
        self._reader = Reader(engine)
        self._by_message: dict[str, set[Watcher]] = {}
        self._by_mailbox: dict[str, set[Watcher]] = {}
        self._places: dict[str, int] = {}
        self._looking: asyncio.Task[None] | None = None
        self.closed = False
        wake.listen_changes(self._hear)

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return sum(map(len, (*self._by_message.values(), *self._by_mailbox.values())))

    @contextmanager
    def message(self, id_: str) -> Iterator[Watcher]:
        """Be told when this message's deliveries may have changed."""
        with self._among(self._by_message, id_) as watcher:
            yield watcher

    @contextmanager
    def mailbox(self, name: str) -> Iterator[Watcher]:
        """Be told when this mailbox may show something new."""
        with self._among(self._by_mailbox, name) as watcher:
            yield watcher

    async def begin(self, names: Iterable[str]) -> None:
        """Learn where these mailboxes stand, while they are watched: what another daemon changes from now on is told."""
        asked = list(names)
        if asked and self._engine.dialect is Dialect.POSTGRES:
            found = await self._mailboxes.places(self._reader, asked)
            for name in asked:
                self._places.setdefault(name, found.get(name, 0))

    @contextmanager
    def _among(self, places: dict[str, set[Watcher]], key: str) -> Iterator[Watcher]:
        watcher = Watcher(self)
        places.setdefault(key, set()).add(watcher)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        try:
            yield watcher
        finally:
            there = places[key]
            there.discard(watcher)
            if not there:
                del places[key]
                self._places.pop(key, None)
            if not self.waiting and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def _hear(self, ids: frozenset[str], mailboxes: frozenset[str]) -> None:
        for keys, places in ((ids, self._by_message), (mailboxes, self._by_mailbox)):
            if places:
                for key in keys:
                    for watcher in places.get(key, ()):
                        watcher.tell()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            for watchers in self._by_message.values():
                for watcher in watchers:
                    watcher.tell()
            try:
                await self._look_at_mailboxes()
            except Unavailable as error:
                log.warning("inboxes cannot be looked at now: %s", error.message)
            except Exception:
                log.exception("looking at inboxes failed and will be tried again")

    async def _look_at_mailboxes(self) -> None:
        if not self._by_mailbox:
            return
        for name, place in (await self._mailboxes.places(self._reader, self._by_mailbox)).items():
            if self._places.get(name) != place:
                # The first look after a wait's begin tells it once for nothing.
                if name in self._places and self._engine.dialect is Dialect.POSTGRES:
                    self._wake.told(tellings.mailbox_changed, name)
                self._places[name] = place
                for watcher in self._by_mailbox.get(name, ()):
                    watcher.tell()

    async def close(self) -> None:
        """Let everybody who waits go with what there is, and nobody wait any more."""
        self.closed = True
        for watchers in (*self._by_message.values(), *self._by_mailbox.values()):
            for watcher in watchers:
                watcher.tell()
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
