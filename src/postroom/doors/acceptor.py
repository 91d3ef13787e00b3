"""Acceptor: takes every connection that waits at a listening socket in one turn of the loop.

uvloop takes one connection a turn. Of many that come at once, each then gets a turn of its own, and with it a
transaction and a write to the disk of its own, where together they could share one (RULINGS 9).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

MOST = 64
"""How many connections are taken in one turn."""
PAUSE = 0.5
"""How long (seconds) none is taken after the system refused one, as it does when the process has too many open."""

log = logging.getLogger("postroom")


class Acceptor:
    """Serves the connections of a listening socket with the protocols that `make` makes, until it is closed."""

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        self._listener = listener
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._resting: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._resting = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(MOST):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Most likely there is no room for a further one; to try at once again would only burn the processor.
                log.warning("no connection is taken for %g s: %s", PAUSE, error.strerror)
                self._loop.remove_reader(self._listener)
                self._resting = self._loop.call_later(PAUSE, self._listen)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._begin(connection))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError:
            # It had gone before it could say anything.
            connection.close()

    def close(self) -> None:
        """Take no further connection; those that were taken go on."""
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Wait until every connection that was taken has its protocol."""
        if self._beginning:
            await asyncio.wait(self._beginning)
