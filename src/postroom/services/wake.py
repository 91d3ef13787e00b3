"""Wake: who is told that there may be something to do; a hint, never proof (RULINGS 13).

Queues wake those who wait for work, targets wake the courier, and what changed of a message wakes those who wait for
its receipt or look into an inbox; claims and new endpoints are told to the doorbell; every transition is told to whoever
listens to what happens. Other processes hear of queues and targets; the rest they find by looking again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec

from postroom.services import tellings
from postroom.services.tellings import Told
from postroom.store.engine import Engine

P = ParamSpec("P")

Listener = Callable[[str | None], None]
ChangeListener = Callable[[frozenset[str], frozenset[str]], None]
ClaimListener = Callable[[frozenset[str], str, int], None]
ArrivalListener = Callable[[frozenset[str], str], None]
Telling = Callable[[int], Iterable[Told]]
"""What makes of the time now (ms UTC) what there is to tell."""

_POST = "@"
"""What a hint begins with that names a target of the post: no queue's name does."""


class Wake:
    """Tells this process's listeners at once, and other processes through the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listeners: list[Listener] = []
        self._post_listeners: list[Listener] = []
        self._change_listeners: list[ChangeListener] = []
        self._claim_listeners: list[ClaimListener] = []
        self._arrival_listeners: list[ArrivalListener] = []
        self._hears: Callable[[Telling], None] | None = None
        self._misses: Callable[[], None] | None = None
        engine.on_hint(self._tell)
        engine.on_news(self._news)

    def listen(self, listener: Listener) -> None:
        """Call this with each queue that may have work, and with None when any may."""
        self._listeners.append(listener)

    def listen_post(self, listener: Listener) -> None:
        """Call this with the key of each target that may have something to carry, and with None when any may."""
        self._post_listeners.append(listener)

    def listen_changes(self, listener: ChangeListener) -> None:
        """Call this with the ids of messages that changed in this process, and the mailboxes that got something new."""
        self._change_listeners.append(listener)

    def listen_claims(self, listener: ClaimListener) -> None:
        """Call this with the queues of each claim in this process, its owner, and when it was (ms UTC)."""
        self._claim_listeners.append(listener)

    def listen_arrivals(self, listener: ArrivalListener) -> None:
        """Call this with the queues of each endpoint that comes to listen to some in this process, and its id."""
        self._arrival_listeners.append(listener)

    def hear(self, told: Callable[[Telling], None] | None, missed: Callable[[], None] | None) -> None:
        """Call `told` with each transition of this process, and `missed` when those of others may have gone unheard; one
        alone may ask for it, and None ends it."""
        self._hears, self._misses = told, missed

    def work(self, queues: Iterable[str]) -> None:
        """Tell everybody, after the commit, that these queues may have work or a free place."""
        for queue in set(queues):
            self._tell(queue)
            self._engine.hint(queue)

    def post(self, target_keys: Iterable[str]) -> None:
        """Tell every courier, after the commit, that these targets may have something to carry."""
        for key in set(target_keys):
            self._tell(_POST + key)
            self._engine.hint(_POST + key)

    def changed(self, message_ids: Iterable[str], mailboxes: Iterable[str] = ()) -> None:
        """Tell this process, after the commit, that these messages or what these mailboxes show changed."""
        ids, names = frozenset(message_ids), frozenset(mailboxes)
        if ids or names:
            for listener in self._change_listeners:
                listener(ids, names)

    def claimed(self, queues: Iterable[str], owner: str, at: int) -> None:
        """Tell this process, after the commit, that this owner claimed from these queues, at this time of the database's."""
        names = frozenset(queues)
        if names:
            for listener in self._claim_listeners:
                listener(names, owner, at)

    def arrived(self, queues: Iterable[str], endpoint_id: str) -> None:
        """Tell this process, after the commit, that this endpoint came and may be rung for these queues."""
        names = frozenset(queues)
        if names:
            for listener in self._arrival_listeners:
                listener(names, endpoint_id)

    @property
    def heard(self) -> bool:
        """Whether anybody listens to what happens."""
        return self._hears is not None

    def told(
        self, telling: Callable[Concatenate[int, P], Iterable[Told]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Tell, after the commit, what happened, to whoever listens; nothing is made of it while nobody does."""
        if self._hears is not None:
            self._hears(lambda now: telling(now, *args, **kwargs))

    def _news(self, name: str | None) -> None:
        """Another process hinted at a queue or a target; None when hints may have been missed."""
        if name is None:
            if self._misses is not None:
                self._misses()
        elif not name.startswith(_POST):
            self.told(tellings.queue_changed, name, None)

    def _tell(self, name: str | None) -> None:
        if name is None or not name.startswith(_POST):
            for listener in self._listeners:
                listener(name)
        if name is None or name.startswith(_POST):
            key = None if name is None else name.removeprefix(_POST)
            for listener in self._post_listeners:
                listener(key)
