"""The write to a pane: loaded, pasted, submitted and confirmed under one lock, every step told in the pane's own option.

What stands in that option outlives this process, and tmux sets it in one go with what it tells of: a writer that died
is judged by it, so that a message is submitted once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.carriers.carrier import Look, Standing, Writing
from postroom.carriers.terminal_text import Envelope
from postroom.carriers.tmux_agent import Agent
from postroom.carriers.tmux_control import Block, ServerFault, ServerGone, quote, run
from postroom.carriers.tmux_look import (
    LOGGED,
    PASTED,
    SUBMITTED,
    Survey,
    Surveyor,
    asked,
    changed,
    note,
    picture,
    step_of,
)
from postroom.carriers.tmux_pane import LOG, MARK, Place, Probe
from postroom.carriers.tmux_private import PrivateFolder
from postroom.carriers.tmux_screen import Screen
from postroom.carriers.tmux_server import TmuxServer, Watch, guarded
from postroom.errors import Unavailable
from postroom.message import Written

WRITE_S: Final = 18.0
LOCK_S: Final = 4.0
REST_S: Final = 1.5
SHOWN_S: Final = 2.0
HOLD_S: Final = 6.0
AGAIN_S: Final = 0.8
ENTERS: Final = 3
_POLL_S: Final = 0.03


class Step(StrEnum):
    """How far a write came."""

    LOCKED = "locked"
    LOADED = "loaded"
    PASTED = "pasted"
    SUBMITTED = "submitted"
    CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True)
class Letter:
    """One message for one pane. entry: `id/round`. envelope_for: what it is put there as, by who is in front."""

    server: TmuxServer
    watch: Watch
    place: Place
    entry: str
    envelope_for: Callable[[Agent], Envelope]


class Writer:
    """Writes letters, one at a time to a pane. token: a fresh name for a buffer. at_step: told of each step."""

    def __init__(
        self,
        surveyor: Surveyor,
        private: PrivateFolder,
        token: Callable[[], str],
        at_step: Callable[[Step], None],
        clock: Callable[[], float],
    ) -> None:
        self._surveyor = surveyor
        self._private = private
        self._token = token
        self._at_step = at_step
        self._clock = clock

    async def write(self, letter: Letter) -> Writing:
        """Not there -> pasted and submitted, once; 18 s at most. A fault before the paste leaves the pane as it was."""
        reached: list[Step] = []
        try:
            async with asyncio.timeout(WRITE_S):
                return await self._write(letter, reached)
        except (TimeoutError, ServerGone, ServerFault, Unavailable) as error:
            why = "the write took too long" if isinstance(error, TimeoutError) else str(error)
            if Step.PASTED in reached:
                return Writing(Written.UNKNOWN, f"it was pasted, and then: {why}")
            return Writing(Written.BUSY if isinstance(error, ServerGone) else Written.REFUSED, why)

    async def _write(self, letter: Letter, reached: list[Step]) -> Writing:
        async with self._private.lock(f"{letter.place.socket}:{letter.place.pane}", LOCK_S) as held:
            if not held:
                return Writing(Written.BUSY, "another process is writing to this pane")
            self._reach(reached, Step.LOCKED)
            survey = await self._survey(letter)
            probe, agent = survey.probe, survey.agent
            if probe is None or agent is None or survey.screen is None:
                return _not_now(survey.look)
            if not survey.resume and step_of(probe, letter.entry) == SUBMITTED:
                return Writing(Written.WRITTEN, "it was there already")
            if survey.look.standing is not Standing.FREE:
                return _not_now(survey.look)
            envelope = letter.envelope_for(agent)
            before = letter.watch.outputs
            if not survey.resume:
                refused = await self._paste(letter, probe, envelope, reached)
                if refused is not None:
                    return refused
                await letter.server.heard(letter.watch, before, SHOWN_S)
                await asyncio.sleep(agent.pause(envelope.lines))
            else:
                self._reach(reached, Step.PASTED)
            pressed = survey.resume and step_of(probe, letter.entry) == SUBMITTED
            return await self._submit(letter, agent, envelope, reached, pressed)

    async def _survey(self, letter: Letter) -> Survey:
        """A look under the lock, again while nothing but its last output keeps the pane from being free."""
        loop = asyncio.get_running_loop()
        end = loop.time() + REST_S
        while True:
            survey = await self._surveyor.survey(
                letter.server, letter.watch, letter.place, letter.entry, letter.envelope_for
            )
            if not survey.restless or loop.time() >= end:
                return survey
            await asyncio.sleep(max(letter.watch.heard + letter.watch.quiet_s - loop.time(), 0.001))

    async def _paste(self, letter: Letter, probe: Probe, envelope: Envelope, reached: list[Step]) -> Writing | None:
        """Free -> pasted, by tmux in one go with the note of it; anything else leaves the pane untouched."""
        server, watch, place = letter.server, letter.watch, letter.place
        name = f"postroom-{self._token()}"
        file = self._private.put(f"paste-{name}", envelope.text.encode())
        left = True
        try:
            try:
                loaded = await server.ask(watch, f"load-buffer -b {name} {quote(str(file))}")
            finally:
                file.unlink(missing_ok=True)
            if _failed(loaded):
                return Writing(Written.REFUSED, f"tmux did not load the message: {_failed(loaded)}")
            self._reach(reached, Step.LOADED)
            # From here on it may be there, whatever comes back.
            reached.append(Step.PASTED)
            pasted = await server.ask(
                watch,
                guarded(
                    place.pane,
                    _refused(place, probe, paste=True),
                    f"paste-buffer -p -d -b {name} -t {quote(place.pane)}",
                    self._note(place, probe, letter.entry, PASTED),
                ),
            )
            left = not _said(pasted, b"DONE")
            if not left:
                self._at_step(Step.PASTED)
                return None
            reached.remove(Step.PASTED)
            if _failed(pasted):
                return Writing(Written.REFUSED, f"tmux did not paste the message: {_failed(pasted)}")
            return Writing(Written.BUSY, "the pane changed just now")
        finally:
            if left:
                await _forget(letter, name)

    async def _submit(
        self, letter: Letter, agent: Agent, envelope: Envelope, reached: list[Step], pressed: bool
    ) -> Writing:
        """Pasted -> submitted, once the program shows the paste and nothing else waits for a key; else it is unknown.

        pressed: a writer that is no more sent the key already, and the program may only not have taken it yet.
        """
        loop = asyncio.get_running_loop()
        enters = 1 if pressed else 0
        end = loop.time() + HOLD_S
        shown = loop.time() + SHOWN_S
        why = "the program did not show it"
        if pressed:
            await self._sent(letter, agent, envelope, end)
        while loop.time() < end:
            probe, screen = await _look(letter)
            gone = changed(letter.place, probe)
            if probe is None or gone is not None:
                return Writing(Written.UNKNOWN, f"it was pasted, and then: {gone}")
            unsent = agent.unsent(screen, envelope)
            if enters and not unsent:
                self._reach(reached, Step.CONFIRMED)
                return Writing(Written.WRITTEN)
            hold = _hold(probe, agent, screen, unsent, late=loop.time() >= shown)
            if hold is not None or enters == ENTERS:
                why = hold or "its submit key was not taken"
                await asyncio.sleep(_POLL_S)
                continue
            answer = await letter.server.ask(
                letter.watch,
                guarded(
                    letter.place.pane,
                    _refused(letter.place, probe, paste=False),
                    f"send-keys -t {quote(letter.place.pane)} {agent.submit}",
                    self._note(letter.place, probe, letter.entry, SUBMITTED),
                ),
            )
            if _said(answer, b"DONE"):
                enters += 1
                if enters == 1:
                    self._reach(reached, Step.SUBMITTED)
                await self._sent(letter, agent, envelope, end)
            elif failed := _failed(answer):
                return Writing(Written.UNKNOWN, f"it was pasted, but not submitted: {failed}")
        return Writing(Written.UNKNOWN, f"it was pasted, but not submitted: {why}")

    async def _sent(self, letter: Letter, agent: Agent, envelope: Envelope, end: float) -> None:
        """Wait until the program took the key, or for so long that it can be pressed again."""
        loop = asyncio.get_running_loop()
        again = min(loop.time() + AGAIN_S, end - _POLL_S)
        while loop.time() < again:
            outputs = letter.watch.outputs
            probe, screen = await _look(letter)
            if probe is None or not agent.unsent(screen, envelope):
                return
            await letter.server.heard(letter.watch, outputs, _POLL_S)

    def _note(self, place: Place, probe: Probe, entry: str, step: str) -> str:
        """The command that notes how far the write of `id/round` came, newest last, the oldest forgotten."""
        others = [noted for noted in probe.log if not noted.startswith(f"{entry}/")]
        log = ",".join([*others[1 - LOGGED :], note(entry, step, self._clock())])
        return f"set-option -p -t {quote(place.pane)} {LOG} {quote(log)}"

    def _reach(self, reached: list[Step], step: Step) -> None:
        reached.append(step)
        self._at_step(step)


def _not_now(look: Look) -> Writing:
    return Writing(Written.REFUSED if look.standing is Standing.FAULT else Written.BUSY, look.reason)


def _hold(probe: Probe, agent: Agent, screen: Screen, unsent: bool, late: bool) -> str | None:
    """Why the submit key is not pressed now: it would go to something else, or the paste is not on the screen yet.

    A program without a known composer may show a paste in its own way: there it is only waited for, until `late`.
    """
    if probe.in_mode:
        return "the pane is in copy mode"
    if unsent:
        return None
    if agent.asks(screen):
        return asked(agent).reason
    return None if agent.composer is None and late else "the program does not show it"


def _refused(place: Place, probe: Probe, *, paste: bool) -> list[str]:
    """The formats that forbid a key or a paste, tested by tmux in one go with it."""
    refused = [
        "#{pane_dead}",
        "#{pane_in_mode}",
        "#{pane_input_off}",
        "#{pane_synchronized}",
        f"#{{!=:#{{pane_pid}},{place.pane_pid}}}",
        f"#{{!=:#{{{MARK}}},{place.mark}}}",
    ]
    if probe.command.replace("-", "").replace("_", "").isalnum() and probe.command.isascii():
        refused.append(f"#{{!=:#{{pane_current_command}},{probe.command}}}")
    if paste and probe.takes_paste is not None:
        refused.append("#{!=:#{bracket_paste_flag},1}")
    return refused


async def _look(letter: Letter) -> tuple[Probe | None, Screen]:
    return await picture(letter.server, letter.watch, letter.place)


async def _forget(letter: Letter, name: str) -> None:
    """A buffer that may be left over -> deleted; where tmux does not answer it goes with the server."""
    server, client = letter.server, letter.watch.client
    if client is not None and not client.closed:
        client.tell(f"delete-buffer -b {name}")
        return
    with contextlib.suppress(ServerGone, ServerFault):
        await run(server.binary, server.socket, "delete-buffer", "-b", name)


def _said(blocks: list[Block], word: bytes) -> bool:
    return any(block.lines == (word,) and not block.failed for block in blocks)


def _failed(blocks: list[Block]) -> str | None:
    """tmux's own words for what failed; None where nothing did."""
    return next((block.text[:200] or "it gave no reason" for block in blocks if block.failed), None)
