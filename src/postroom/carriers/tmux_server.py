"""One tmux server as its panes are watched: a control client for each session that has some, joined anew when it is lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from postroom.carriers.tmux_control import Block, ControlClient, ServerFault, ServerGone, quote, run

FORGET_S: Final = 300.0
_MODE: Final = re.compile(rb"\\033\[\?([0-9;]+)([hl])|\\033c")
_LONGEST: Final = 32
_MOVING: Final = frozenset({b"%window-close", b"%unlinked-window-close", b"%layout-change", b"%sessions-changed"})


@dataclass(slots=True)
class Watch:
    """What was heard of one pane. paste: whether its program takes bracketed pastes, None while that was not heard.

    heard: the loop's time of its last output; outputs: how many there were. Both begin when the watch does: before
    that nobody listened.
    """

    pane: str
    keys: set[str] = field(default_factory=set)
    client: ControlClient | None = None
    paste: bool | None = None
    heard: float = 0.0
    outputs: int = 0
    quiet_s: float = 0.1
    asked: float = 0.0
    rest: bytes = b""
    timer: asyncio.TimerHandle | None = None
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class TmuxServer:
    """The server at one socket. tell: called with a target's key when its pane fell silent, moved or changed its mode.

    tied: what its clients are started with, see `leash`.
    """

    def __init__(self, binary: str, socket: str, tell: Callable[[str], None], tied: Sequence[str] = ()) -> None:
        self.binary = binary
        self.socket = socket
        self._tell = tell
        self._tied = tied
        self._clients: dict[str, ControlClient] = {}
        self._watches: dict[str, Watch] = {}
        self._joining = asyncio.Lock()
        self.fault: str | None = None

    @property
    def watches(self) -> Mapping[str, Watch]:
        """What is watched, by pane id."""
        return self._watches

    @property
    def sessions(self) -> list[str]:
        """The sessions that a control client is attached to."""
        return [name for name, client in self._clients.items() if not client.closed]

    def watch(self, pane: str, key: str) -> Watch:
        """Not watched -> watched for this target; its output is heard from the next `ask` on."""
        now = asyncio.get_running_loop().time()
        watch = self._watches.setdefault(pane, Watch(pane, heard=now))
        watch.keys.add(key)
        watch.asked = now
        return watch

    async def ask(self, watch: Watch, *commands: str) -> list[Block]:
        """The answers of tmux, over the pane's own session. Raises ServerGone and ServerFault; nothing is sent twice."""
        return await (await self.join(watch)).ask(*commands)

    async def join(self, watch: Watch) -> ControlClient:
        """The client that hears this pane, connected now if need be. Raises ServerGone and ServerFault."""
        if watch.client is not None and not watch.client.closed:
            return watch.client
        async with self._joining:
            if watch.client is not None and not watch.client.closed:
                return watch.client
            try:
                said = await run(
                    self.binary, self.socket, "display-message", "-p", "-t", watch.pane, "#{pane_id} #{session_id}"
                )
                found, _, session = said.strip().partition(" ")
                if found != watch.pane or not session:
                    raise ServerGone(f"there is no pane {watch.pane} on this tmux server")
                self._begin(watch)
                client = self._clients.get(session)
                if client is None or client.closed:
                    client = ControlClient(session, self._output, self._notice, self._ended)
                    self._clients[session] = client
                    await client.connect(self.binary, self.socket, self._tied)
            except ServerFault as fault:
                self.fault = fault.message
                raise
            self.fault = None
            watch.client = client
            return client

    def leave(self, watch: Watch) -> None:
        """The pane stands in another session now -> it is looked up anew at the next `ask`."""
        watch.client = None

    async def heard(self, watch: Watch, outputs: int, seconds: float) -> bool:
        """Whether the pane put out anything beyond its first `outputs`; waits that long for it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while watch.outputs <= outputs:
            waiter: asyncio.Future[None] = loop.create_future()
            watch.waiters.append(waiter)
            try:
                async with asyncio.timeout_at(end):
                    await waiter
            except TimeoutError:
                return False
        return True

    async def keep(self) -> None:
        """Watches without a client -> joined again; those nobody asks about any more, or whose pane is gone -> dropped."""
        now = asyncio.get_running_loop().time()
        for watch in list(self._watches.values()):
            if now - watch.asked > FORGET_S:
                await self.drop(watch.pane)
            elif watch.client is None or watch.client.closed:
                try:
                    await self.join(watch)
                except ServerGone:
                    await self.drop(watch.pane)
                except ServerFault:
                    continue
                self._told(watch)

    async def drop(self, pane: str) -> None:
        """Watched -> not; a client that no watch needs is let go."""
        watch = self._watches.pop(pane, None)
        if watch is not None and watch.timer is not None:
            watch.timer.cancel()
        # Not while one is being connected: the watch that it is for does not hold it yet.
        async with self._joining:
            needed = {watch.client for watch in self._watches.values()}
            for session, client in list(self._clients.items()):
                if client not in needed:
                    del self._clients[session]
                    client.close()

    async def close(self) -> None:
        """Every client -> closed."""
        await asyncio.gather(*(client.end() for client in self._clients.values()))
        for pane in list(self._watches):
            await self.drop(pane)

    def _begin(self, watch: Watch) -> None:
        """Not heard for a while -> to be heard: what was known of it may no longer be so."""
        watch.paste = None
        watch.rest = b""
        watch.heard = asyncio.get_running_loop().time()

    def _output(self, pane: bytes, data: bytes) -> None:
        watch = self._watches.get(pane.decode("ascii", "replace"))
        if watch is None:
            return
        loop = asyncio.get_running_loop()
        watch.heard = loop.time()
        watch.outputs += 1
        joined = watch.rest + data
        if b"2004" in joined or b"\\033c" in joined:
            for found in _MODE.finditer(joined):
                if found[1] is None:
                    watch.paste = False
                elif b"2004" in found[1].split(b";"):
                    watch.paste = found[2] == b"h"
        watch.rest = joined[-_LONGEST:]
        for waiter in watch.waiters:
            if not waiter.done():
                waiter.set_result(None)
        watch.waiters.clear()
        if watch.timer is None:
            watch.timer = loop.call_later(watch.quiet_s, self._silent, watch)

    def _silent(self, watch: Watch) -> None:
        loop = asyncio.get_running_loop()
        left = watch.heard + watch.quiet_s - loop.time()
        if left > 0:
            watch.timer = loop.call_later(left, self._silent, watch)
            return
        watch.timer = None
        self._told(watch)

    def _notice(self, words: Sequence[bytes]) -> None:
        if words[0] == b"%pane-mode-changed" and len(words) > 1:
            watch = self._watches.get(words[1].decode("ascii", "replace"))
            if watch is not None:
                self._told(watch)
        elif words[0] in _MOVING:
            for watch in list(self._watches.values()):
                self._told(watch)

    def _ended(self, client: ControlClient) -> None:
        for watch in list(self._watches.values()):
            if watch.client is client:
                watch.client = None
                self._told(watch)

    def _told(self, watch: Watch) -> None:
        for key in watch.keys:
            self._tell(key)


def guarded(pane: str, refused: Sequence[str], *commands: str) -> str:
    """One command that the server carries out whole: `SKIP` where any of these formats is true, else the commands, `DONE`.

    Nothing comes between the test and what it guards: a paste into a pane that died meanwhile ends some tmux servers.
    """
    test = refused[0]
    for format_ in refused[1:]:
        test = f"#{{||:{test},{format_}}}"
    then = " ; ".join([*commands, "display-message -p DONE"])
    return f"if-shell -F -t {quote(pane)} {quote(test)} {quote('display-message -p SKIP')} {quote(then)}"
