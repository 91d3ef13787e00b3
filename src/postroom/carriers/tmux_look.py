"""A look at a pane: whether it is still the one that was attached, who is in front, and whether a message may go there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from postroom.carriers.carrier import FREE, Look, Standing
from postroom.carriers.terminal_text import Envelope, squeeze
from postroom.carriers.tmux_agent import GENERIC, SHELL, Agent, Agents, Manner
from postroom.carriers.tmux_control import ServerGone, quote
from postroom.carriers.tmux_pane import FORMAT, PASTE, Front, Place, Probe, front_of, parse_probe
from postroom.carriers.tmux_screen import Screen, read_screen
from postroom.carriers.tmux_server import TmuxServer, Watch

PASTED: Final = "pasted"
SUBMITTED: Final = "submitted"
LOGGED: Final = 16
UNREAD_S: Final = 10
CLOCKS_S: Final = 5


@dataclass(frozen=True, slots=True)
class Survey:
    """What a look found. resume: this very message lies there pasted and unsent, and only has to be submitted.

    restless: it is not free for this alone, that its pane put something out a moment ago.
    """

    look: Look
    probe: Probe | None = None
    agent: Agent | None = None
    screen: Screen | None = None
    resume: bool = False
    restless: bool = False


def note(entry: str, step: str, now: float) -> str:
    """How the pane's own option tells how far the write of `entry` (`id/round`) came, and when (s)."""
    return f"{entry}/{step}/{int(now)}"


def step_of(probe: Probe, entry: str) -> str | None:
    """How far the write of `id/round` came, by what stands in the pane's own option; None where it was not begun."""
    for noted in reversed(probe.log):
        if noted.startswith(f"{entry}/"):
            return noted.split("/")[2]
    return None


def all_noted(probe: Probe, since: float) -> bool:
    """Whether the pane's option still tells of every write since then (s): it keeps the newest only."""
    oldest = probe.log[0].split("/") if probe.log else []
    told_from = int(oldest[3]) if len(oldest) == 4 and oldest[3].isdigit() else since
    return len(probe.log) < LOGGED or told_from < since - CLOCKS_S


def just_pasted(probe: Probe, now: float) -> bool:
    """Whether the newest write came to its paste a moment ago, and no further: its program may not have read it yet."""
    newest = probe.log[-1].split("/") if probe.log else []
    return len(newest) == 4 and newest[2] == PASTED and newest[3].isdigit() and 0 <= now - int(newest[3]) <= UNREAD_S


def changed(place: Place, probe: Probe | None) -> str | None:
    """Why this is no longer the pane that was attached, in plain words; None while it is."""
    if probe is None or probe.pane != place.pane:
        return f"the pane {place.pane} is closed"
    if (probe.server_pid, probe.server_start) != (str(place.server_pid), str(place.server_start)):
        return "the tmux server is another one: it was restarted"
    if probe.pane_pid != str(place.pane_pid):
        return f"something else was started in the pane {place.pane}"
    if probe.mark != place.mark:
        return f"the pane {place.pane} is no longer attached"
    return f"the program in the pane {place.pane} has ended" if probe.dead else None


async def ask_pane(
    server: TmuxServer, watch: Watch, place: Place, *further: str
) -> tuple[Probe | None, list[list[bytes]]]:
    """The pane as it is now, and the lines of each further command, of one moment. Raises ServerGone and ServerFault."""
    blocks = await server.ask(watch, f"display-message -p -t {quote(place.pane)} {quote(FORMAT)}", *further)
    probe = None if blocks[0].failed else parse_probe(blocks[0].text)
    if probe is not None and watch.client is not None and probe.session != watch.client.session:
        server.leave(watch)
    lines = [[] if block.failed else list(block.lines) for block in blocks[1:]]
    return probe, [*lines, *([] for _ in further[len(lines) :])]


async def picture(server: TmuxServer, watch: Watch, place: Place) -> tuple[Probe | None, Screen]:
    """The pane as it is now, with its screen. Raises ServerGone and ServerFault."""
    probe, (lines,) = await ask_pane(server, watch, place, capture(place))
    return probe, screen_of(probe, lines)


def screen_of(probe: Probe | None, lines: list[bytes]) -> Screen:
    """What the capture of a pane shows."""
    return read_screen(lines, (0, 0), 0) if probe is None else read_screen(lines, probe.cursor, probe.width)


def capture(place: Place) -> str:
    """The command that shows a pane's screen, with what is faint marked."""
    return f"capture-pane -p -e -t {quote(place.pane)}"


class Surveyor:
    """Looks at panes of any server by the rules of whoever is in front; changes nothing but what it remembers of them."""

    def __init__(self, agents: Agents, clock: Callable[[], float]) -> None:
        self._agents = agents
        self._clock = clock

    def rules(self, place: Place, known: Agent) -> Agent:
        """The rules that a place is read by: its own where its attachment named some, else those of who is in front."""
        return known if place.agent is None else self._agents.by_name.get(place.agent, known)

    def agent_of(self, place: Place, probe: Probe) -> Agent:
        """The rules for the pane as it is now."""
        return self.rules(place, self._agents.known(front_of(place.pane_pid, probe.command)))

    async def survey(
        self, server: TmuxServer, watch: Watch, place: Place, entry: str, envelope_for: Callable[[Agent], Envelope]
    ) -> Survey:
        """A look at the pane for the message that `entry` (`id/round`) names. Raises ServerFault."""
        try:
            probe, screen = await picture(server, watch, place)
        except ServerGone as gone:
            return Survey(Look(Standing.GONE, f"the pane is gone: {gone.message}"))
        why = changed(place, probe)
        if probe is None or why is not None:
            return Survey(Look(Standing.GONE, why or "the pane is closed"), probe)
        front = front_of(place.pane_pid, probe.command)
        agent = self._agents.known(front)
        refused = in_front(self._agents, place, front, agent)
        if refused is not None:
            return Survey(refused, probe, agent)
        agent = self.rules(place, agent)
        watch.quiet_s = agent.quiet / 1000
        resume = step_of(probe, entry) is not None and agent.unsent(screen, envelope_for(agent))
        look = state(probe, watch, agent, front)
        if look is None and not resume and agent.asks(screen):
            look = asked(agent)
        if look is not None:
            return Survey(look, probe, agent, screen)
        if not resume:
            look = manner(agent, screen)
            if look is None and just_pasted(probe, self._clock()):
                look = Look(Standing.BUSY, "what was pasted a moment ago does not show yet")
        now = asyncio.get_running_loop().time()
        if look is None and now - watch.heard < watch.quiet_s:
            return Survey(Look(Standing.BUSY, "something was put out a moment ago"), probe, agent, screen, resume, True)
        if look is None and watch.paste and probe.paste != front.paste_mark:
            (await server.join(watch)).tell(f"set-option -p -t {quote(place.pane)} {PASTE} {front.paste_mark}")
        return Survey(look or FREE, probe, agent, screen, resume)


def in_front(agents: Agents, place: Place, front: Front, agent: Agent) -> Look | None:
    """Why a message does not go to the program in front; None where it does.

    A pane attached while a shell was in front takes messages for every known program that is started in it. A shell that
    nothing can be quoted for gets none.
    """
    if agent.shell and not agent.quoted and place.agent in {None, SHELL}:
        return Look(
            Standing.BUSY,
            f"{front.name} would run it, and how to quote for it is not known: start an agent in it, or attach a pane "
            "with bash, zsh or fish in front",
        )
    if place.agent is None:
        return Look(Standing.BUSY, f"{front.name} is running in the pane") if agent.name == GENERIC else None
    if agent.shell and place.agent != SHELL:
        missed = place.program if place.agent == GENERIC else place.agent
        return Look(Standing.GONE, f"{missed} is not there: the pane is back at {front.name}")
    if place.program in front.names or (agent.name == place.agent and agent.name != GENERIC):
        return None
    return Look(Standing.BUSY, f"{front.name} is in front of {place.program}")


def state(probe: Probe, watch: Watch, agent: Agent, front: Front) -> Look | None:
    """What of the pane itself forbids a write now."""
    if probe.input_off:
        return Look(Standing.FAULT, "the pane's input is turned off")
    if probe.synchronized:
        return Look(Standing.FAULT, "the pane's window sends its input to all panes: turn synchronize-panes off")
    if probe.in_mode:
        return Look(Standing.BUSY, "the pane is in copy mode")
    takes = probe.takes_paste
    if takes is None:
        takes = watch.paste
    if takes is None:
        takes = agent.always or probe.paste == front.paste_mark
        if not takes:
            return Look(
                Standing.BUSY, f"{agent.title} was not yet seen to take pasted text: press Enter once in the pane"
            )
    return None if takes else Look(Standing.BUSY, f"{agent.title} takes no pasted text now")


def asked(agent: Agent) -> Look:
    """What a look comes to where a dialog is open."""
    return Look(Standing.BUSY, f"blocked: {agent.title} asks something that only its user answers")


def manner(agent: Agent, screen: Screen) -> Look | None:
    """What of the program's screen forbids a write now."""
    found = agent.manner(screen)
    match found:
        case Manner.WAITING:
            return None
        case Manner.DIALOG:
            return asked(agent)
        case Manner.WORKING:
            return Look(Standing.BUSY, f"{agent.title} is working")
        case Manner.STARTING:
            return Look(Standing.BUSY, f"{agent.title} is not ready yet")
        case Manner.DRAFT:
            return Look(Standing.BUSY, f"{agent.title} holds something that was typed and not sent")
        case _:
            assert_never(found)


def stands_there(lines: list[bytes], envelope: Envelope) -> bool:
    """Whether this round of the message begins somewhere in a pane's lines."""
    return envelope.beginning in squeeze(b"".join(lines).decode("utf-8", "replace"))
