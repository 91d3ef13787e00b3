"""Messages into panes of a real tmux: how long a look takes, how soon a text is there, and fifty panes at once."""

from __future__ import annotations

import asyncio
import shlex
import statistics
import time

from tests.processes import until
from tests.terminals.rig import HERE, Reader, Terminals, bash, endpoint, parcel

from bench.table import Table
from postroom.carriers.carrier import Standing
from postroom.carriers.tmux import TmuxCarrier
from postroom.carriers.tmux_write import Step
from postroom.endpoint import Endpoint
from postroom.message import Written

PANES = 50


async def _free(carrier: TmuxCarrier, to: Endpoint) -> None:
    """Wait until the pane takes a message; a shell that only says so with its prompt is shown Enter."""

    async def free() -> bool:
        return (await carrier.look(parcel(to, "x"))).standing is Standing.FREE

    await until(free, "a free pane")


def _enter(terminals: Terminals, reader: Reader) -> None:
    terminals.tmux("send-keys", "-t", reader.pane, "Enter")


async def _looks(carrier: TmuxCarrier, to: Endpoint, count: int) -> list[float]:
    """Milliseconds of a look: the pane's identity, who is in front, and its screen."""
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        await carrier.look(parcel(to, "x"))
        times.append((time.perf_counter() - started) * 1000)
    return times


async def _probes(carrier: TmuxCarrier, to: Endpoint, count: int) -> list[float]:
    """Milliseconds of a probe: whether the pane is there, and the same."""
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        await carrier.live(to)
        times.append((time.perf_counter() - started) * 1000)
    return times


async def _texts(carrier: TmuxCarrier, to: Endpoint, steps: dict[Step, float], count: int) -> list[float]:
    """Milliseconds from the call of write to its text in an idle pane, before the pause that its submission waits."""
    times: list[float] = []
    for n in range(count):
        await _free(carrier, to)
        started = time.perf_counter()
        assert (await carrier.write(parcel(to, f"message {n}\nin two lines"))).outcome is Written.WRITTEN
        times.append((steps[Step.PASTED] - started) * 1000)
    return times


async def _fifty(carrier: TmuxCarrier, terminals: Terminals) -> float:
    """Seconds in which fifty panes of one session get a message each, all at once."""
    command = ["bash", "--rcfile", str(HERE / "shell.rc"), "-i"]
    panes = [terminals.open(command, {"READ_LOG": "/dev/null"}, "fifty")]
    for _ in range(PANES - 1):
        panes.append(
            terminals.tmux(
                "new-window",
                "-d",
                "-P",
                "-F",
                "#{pane_id}",
                "-t",
                "fifty:",
                "-e",
                "READ_LOG=/dev/null",
                shlex.join(command),
            )
        )
    readers = [Reader(terminals, pane, terminals.folder / "none.nul") for pane in panes]
    places = [endpoint(carrier, reader) for reader in readers]
    for reader, to in zip(readers, places, strict=True):
        terminals.shows(reader.pane, "bash$")
        await carrier.live(to)
        _enter(terminals, reader)
    for to in places:
        await _free(carrier, to)
    started = time.perf_counter()
    written = await asyncio.gather(*(carrier.write(parcel(to, "to all\nof you")) for to in places))
    assert all(one.outcome is Written.WRITTEN for one in written), written
    return time.perf_counter() - started


async def run(table: Table, scale: float) -> None:
    """Print the section."""
    table.section("terminals: messages into tmux panes")
    terminals, steps = Terminals(), dict[Step, float]()
    carrier = TmuxCarrier(
        private=terminals.folder / "private", at_step=lambda step: steps.__setitem__(step, time.perf_counter())
    )
    try:
        reader = bash(terminals)
        to = endpoint(carrier, reader)
        await carrier.live(to)
        _enter(terminals, reader)
        await _free(carrier, to)
        probes, looks = await _probes(carrier, to, int(1000 * scale)), await _looks(carrier, to, int(1000 * scale))
        table.at_most("probe, p50", statistics.median(probes), 1, "ms")
        table.plain("look with the screen, p50", f"{statistics.median(looks):10.2f} ms")
        texts = await _texts(carrier, to, steps, max(int(100 * scale), 20))
        table.at_most("write → text on an idle pane, p50", statistics.median(texts), 30, "ms")
        table.plain(f"{PANES} panes at once, submitted and confirmed", f"{await _fifty(carrier, terminals):10.2f} s")
    finally:
        await carrier.close()
        terminals.close()
