"""Wake: who is told that a queue may have work; a hint, never proof (RULINGS 13)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from postroom.store.engine import Engine

Listener = Callable[[str | None], None]


class Wake:
    """Tells this process's listeners at once, and other processes through the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listeners: list[Listener] = []
        engine.on_hint(self._tell)

    def listen(self, listener: Listener) -> None:
        """Call this with each queue that may have work, and with None when any may."""
        self._listeners.append(listener)

    def work(self, queues: Iterable[str]) -> None:
        """Tell everybody, after the commit, that these queues may have work or a free place."""
        for queue in set(queues):
            self._tell(queue)
            self._engine.hint(queue)

    def _tell(self, queue: str | None) -> None:
        for listener in self._listeners:
            listener(queue)
