"""The terminal carrier: messages into tmux panes, each only where its program surely takes it, and submitted once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from postroom.carriers.carrier import Look, Progress, Standing, Turn, Writing
from postroom.carriers.terminal_text import Envelope, body, envelope, needs_file
from postroom.carriers.tmux_agent import GENERIC, Agent, Agents, load_agents
from postroom.carriers.tmux_control import ServerFault, ServerGone, leash, quote
from postroom.carriers.tmux_look import (
    PASTED,
    Surveyor,
    all_noted,
    ask_pane,
    capture,
    changed,
    in_front,
    screen_of,
    stands_there,
    step_of,
)
from postroom.carriers.tmux_pane import Front, Place, find_place, front_of, place_of
from postroom.carriers.tmux_private import PrivateFolder, private_folder
from postroom.carriers.tmux_server import TmuxServer, Watch
from postroom.carriers.tmux_write import Letter, Step, Writer
from postroom.endpoint import CarrierKind, Endpoint
from postroom.errors import Invalid, Unavailable
from postroom.message import Parcel, Written

KEEP_S: Final = 1.0
LISTEN_S: Final = 5.0
SWEEP_S: Final = 3600.0
LIVE_S: Final = 8.0
_MACHINE_IDS: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))

log = logging.getLogger("postroom.courier")


def host_reach() -> str:
    """The reach of what only a daemon of this user on this machine can carry (RULINGS 31)."""
    for file in _MACHINE_IDS:
        with contextlib.suppress(OSError):
            found = file.read_text("ascii", "replace").strip()
            if found:
                return f"host:{found}:{os.geteuid()}"
    return f"host:{platform.node() or 'unnamed'}:{os.geteuid()}"


class TmuxCarrier:
    """Every pane of this user's tmux servers. See Carrier; a shell gets a message quoted, so that it runs nothing of it.

    agents: the rules for the programs in panes. private: where locks and spilled letters are. at_step: told of each step
    of each write that is done. clock: seconds, to tell what was written a moment ago.
    """

    def __init__(
        self,
        *,
        agents: Agents | None = None,
        private: Path | None = None,
        reach: str | None = None,
        binary: str | None = None,
        token: Callable[[], str] = lambda: secrets.token_hex(12),
        at_step: Callable[[Step], None] = lambda step: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._agents = agents or load_agents()
        self._private = PrivateFolder(private or private_folder())
        self._reach = reach or host_reach()
        self._installed = binary or shutil.which("tmux")
        self._binary = self._installed or "tmux"
        self._tied = leash()
        self._token = token
        self._surveyor = Surveyor(self._agents, clock)
        self._writer = Writer(self._surveyor, self._private, token, at_step, clock)
        self._servers: dict[str, TmuxServer] = {}
        self._calls: list[Callable[[str], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._joining: set[asyncio.Task[None]] = set()
        self._fault: str | None = None

    @property
    def kind(self) -> CarrierKind:
        """tmux."""
        return CarrierKind.TMUX

    @property
    def reaches(self) -> tuple[str, ...]:
        """This user's panes on this machine."""
        return (self._reach,)

    def check_address(self, address: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, str]:
        """`{socket, pane, agent?, caller?}` -> the attached pane's identity, its target key and reach; 5 s at most.

        The pane is marked, by an option of its own. Raises Invalid by field, Unavailable when tmux does not answer.
        """
        place, front = find_place(self._binary, address, self._agents.by_name, self._token, self._stands)
        if place.agent is None:
            known = self._agents.known(front)
            place = replace(place, agent=None if known.quoted or known.shell else known.name)
        self._listen_to(place)
        return place.as_address(), place.key, self._reach

    def _stands(self, front: Front) -> bool:
        """Whether a program waits for its user, and is none that only starts others: it has rules of its own."""
        known = self._agents.known(front)
        return known.name != GENERIC and (known.shell or not known.quoted)

    def _listen_to(self, place: Place) -> None:
        """Before the attachment is answered: what a shell says of pastes it says with the prompt that follows on it."""
        if self._loop is None:
            return
        try:
            inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            inside = False
        if inside:
            self._expect(place)
            return
        heard = asyncio.run_coroutine_threadsafe(self._hear(place), self._loop)
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            heard.result(LISTEN_S)

    async def _hear(self, place: Place) -> None:
        server = self._server(place.socket)
        await self._join(server, server.watch(place.pane, place.key))

    async def look(self, parcel: Parcel) -> Look:
        """Whether the pane is still the one that was attached, and its program takes a message now."""
        try:
            letter = self._letter(parcel)
            survey = await self._surveyor.survey(
                letter.server, letter.watch, letter.place, letter.entry, letter.envelope_for
            )
        except (ServerFault, Unavailable) as fault:
            return Look(Standing.FAULT, fault.message)
        except Invalid as invalid:
            return Look(Standing.ABSENT, invalid.message)
        if survey.look.standing is Standing.GONE and survey.agent is None:
            await letter.server.drop(letter.place.pane)
        return survey.look

    async def write(self, parcel: Parcel) -> Writing:
        """Paste the message and submit it, under the pane's lock and after a look of its own; 18 s at most."""
        try:
            letter = self._letter(parcel)
            if needs_file(parcel):
                self._private.put(self._file(parcel).name, body(parcel.message.payload).encode())
        except Unavailable as fault:
            return Writing(Written.REFUSED, fault.message)
        except Invalid as invalid:
            return Writing(Written.PERMANENT, invalid.message)
        return await self._writer.write(letter)

    async def seen(self, parcel: Parcel) -> bool | None:
        """Whether this round was submitted to the pane, by the pane's own option, and else by what stands in it.

        A paste that lies there unsent is False: the write that follows finds it and submits it.
        """
        try:
            letter = self._letter(parcel)
            place = letter.place
            everything = f"capture-pane -p -J -S - -t {quote(place.pane)}"
            probe, (lines, all_lines) = await ask_pane(letter.server, letter.watch, place, capture(place), everything)
            if probe is None or changed(place, probe) is not None:
                return None
            step = step_of(probe, letter.entry)
            if step is None and all_noted(probe, parcel.delivery.created_at / 1000):
                return False
            agent = self._surveyor.agent_of(place, probe)
            if step is not None and agent.unsent(screen_of(probe, lines), letter.envelope_for(agent)):
                return False
            if step is not None and step != PASTED:
                return True
        except (ServerGone, ServerFault, Unavailable, Invalid):
            return None
        return True if stands_there(all_lines, letter.envelope_for(agent)) else None

    async def progress(self, parcel: Parcel) -> Progress:
        """A pane shows no turns: no write of this carrier begins one."""
        return Progress(Turn.UNKNOWN)

    async def live(self, endpoint: Endpoint) -> bool | None:
        """Whether the pane is there and the same one; None too where its program has ended and a shell is back.

        What else stands in front of the program, an editor or a pager, covers it and goes again.
        """
        try:
            place = place_of(endpoint.address)
            if not os.path.exists(place.socket):
                return False
            server = self._server(place.socket)
            watch = server.watch(place.pane, place.key)
            async with asyncio.timeout(LIVE_S):
                probe, _ = await ask_pane(server, watch, place)
        except ServerGone:
            return False
        except (ServerFault, Unavailable, Invalid, TimeoutError):
            return None
        if probe is None or changed(place, probe) is not None:
            await server.drop(place.pane)
            return False
        front = front_of(place.pane_pid, probe.command)
        covered = in_front(self._agents, place, front, self._agents.known(front))
        return None if covered is not None and covered.standing is Standing.GONE else True

    async def directory(self, endpoint: Endpoint) -> str | None:
        """Where the pane's program is, by tmux; None when it is no longer the pane that was attached."""
        try:
            place = place_of(endpoint.address)
            if not os.path.exists(place.socket):
                return None
            server = self._server(place.socket)
            where = f"display-message -p -t {quote(place.pane)} {quote('#{pane_current_path}')}"
            async with asyncio.timeout(LIVE_S):
                probe, (lines,) = await ask_pane(server, server.watch(place.pane, place.key), place, where)
        except (ServerGone, ServerFault, Unavailable, Invalid, TimeoutError):
            return None
        if probe is None or changed(place, probe) is not None or not lines:
            return None
        return lines[0].decode("utf-8", "replace") or None

    def on_change(self, call: Callable[[str], None]) -> None:
        """Call this when a pane fell silent, moved, or left or entered a mode; a hint."""
        self._calls.append(call)

    def status(self) -> Mapping[str, Any]:
        """Whether tmux is there, and each server with its sessions, its watched panes and what is wrong with it."""
        return {
            "tmux": self._installed or "not installed",
            "reach": self._reach,
            "agents": sorted(name for name in self._agents.by_name if name != GENERIC),
            "servers": [
                {
                    "socket": server.socket,
                    "sessions": server.sessions,
                    "panes": {
                        watch.pane: {None: "unknown", True: "on", False: "off"}[watch.paste]
                        for watch in server.watches.values()
                    },
                    "fault": server.fault,
                }
                for server in self._servers.values()
            ],
        }

    async def run(self) -> None:
        """Watch what is attached, join what was lost, and clear away old letters, until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            swept = -SWEEP_S
            while True:
                now = self._loop.time()
                if now - swept >= SWEEP_S:
                    swept = now
                    await self._sweep()
                for server in list(self._servers.values()):
                    await server.keep()
                await asyncio.sleep(KEEP_S)
        finally:
            self._loop = None

    async def _sweep(self) -> None:
        """Old letters -> cleared away; a folder that is not this user's alone is told of once."""
        fault = None
        try:
            await asyncio.to_thread(self._private.sweep)
        except Unavailable as unavailable:
            fault = unavailable.message
            if fault != self._fault:
                log.error("nothing can be written to panes: %s", fault)
        self._fault = fault

    async def close(self) -> None:
        """Leave every tmux server."""
        for joining in list(self._joining):
            joining.cancel()
        for server in list(self._servers.values()):
            await server.close()
        self._servers.clear()

    def _server(self, socket: str) -> TmuxServer:
        server = self._servers.get(socket)
        if server is None:
            server = self._servers[socket] = TmuxServer(self._binary, socket, self._tell, self._tied)
        return server

    def _expect(self, place: Place) -> None:
        """Attached -> watched from now on."""
        hearing = asyncio.get_running_loop().create_task(self._hear(place))
        self._joining.add(hearing)
        hearing.add_done_callback(self._joining.discard)

    async def _join(self, server: TmuxServer, watch: Watch) -> None:
        with contextlib.suppress(ServerGone, ServerFault):
            await server.join(watch)

    def _tell(self, key: str) -> None:
        for call in self._calls:
            call(key)

    def _letter(self, parcel: Parcel) -> Letter:
        """The parcel with the pane it goes to. Raises Unavailable and Invalid."""
        if self._installed is None:
            raise Unavailable("tmux is not installed here, or not on the path")
        if parcel.endpoint is None:
            raise Invalid("a terminal is reached through its endpoint, and this delivery has none", field="to")
        place = place_of(parcel.endpoint.address)
        server = self._server(place.socket)
        file = str(self._file(parcel)) if needs_file(parcel) else None

        def envelope_for(agent: Agent) -> Envelope:
            return envelope(parcel, quoted=agent.quoted, file=file)

        entry = f"{parcel.message.id}/{parcel.delivery.round}"
        return Letter(server, server.watch(place.pane, place.key), place, entry, envelope_for)

    def _file(self, parcel: Parcel) -> Path:
        """Where a body is spilled to: the same for each write of a round."""
        name = hashlib.sha256(f"{parcel.message.id}/{parcel.delivery.round}".encode()).hexdigest()[:24]
        return self._private.path(f"letter-{name}.txt")
