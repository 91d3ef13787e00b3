"""A writer killed at each step: the message is on the pane once, or it is found there and not written again."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from pathlib import Path

import pytest

from postroom.carriers.carrier import Standing
from postroom.carriers.tmux import TmuxCarrier
from postroom.carriers.tmux_write import Step
from postroom.message import Parcel, Written
from tests.processes import Processes, until
from tests.terminals.rig import READERS, Terminals, endpoint, parcel
from tests.terminals.test_whole import long_text, ready, submitted_more

RUNS = int(os.environ.get("POSTROOM_TERMINAL_KILLS", "1"))
TOP = Path(__file__).parents[2]


async def killed(letter: Parcel, step: Step, terminals: Terminals, processes: Processes, folder: Path) -> None:
    """Have another process write the message, and end by its own hand when the step is done."""
    (folder / "parcel").write_bytes(pickle.dumps(letter))
    courier = processes.start(
        *(sys.executable, "-m", "tests.terminals.courier", str(terminals.folder / "private"), str(step)),
        str(folder / "parcel"),
        cwd=TOP,
    )
    assert await asyncio.to_thread(courier.wait, 60) == -9, processes.output(courier)


@pytest.mark.parametrize("kind", ["agent", "bash"])
async def test_killed_at_each_step(
    kind: str, terminals: Terminals, carrier: TmuxCarrier, processes: Processes, tmp_path: Path
) -> None:  # I20, T48
    reader = READERS[kind](terminals)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    before = len(reader.submitted())
    sent = 0
    for run in range(RUNS):
        for step in Step:
            letter = parcel(to, long_text(4000, run), id=f"msg_killed_{run}_{step}")

            async def free(letter: object = letter) -> bool:
                return (await carrier.look(letter)).standing is Standing.FREE  # type: ignore[arg-type]

            await until(free, "a free pane")
            await killed(letter, step, terminals, processes, tmp_path)
            sent += 1

            await until(free, "a pane that is free for the next attempt")
            seen = await carrier.seen(letter)
            if step is not Step.SUBMITTED:  # Its key was sent, and the program may have taken it or not.
                assert seen is (step is Step.CONFIRMED), step
            if not seen:
                written = await carrier.write(letter)
                assert written.outcome is Written.WRITTEN, (step, written)
            await until(submitted_more(reader, before + sent - 1), f"the message of {step}")
            assert await carrier.seen(letter) is True
            assert reader.submitted()[-1] == f"{reader.submitted()[-1].splitlines()[0]}\n{letter.message.payload}"
            assert [letter.message.id in one for one in reader.submitted()].count(True) == 1, step
    assert len(reader.submitted()) == before + sent
    assert not [fact for fact in reader.facts() if "ran" in fact or "control" in fact]


async def test_a_key_that_was_not_taken_yet_is_not_sent_again(
    terminals: Terminals, carrier: TmuxCarrier, processes: Processes, tmp_path: Path
) -> None:  # I20, T48
    reader = READERS["agent"](terminals)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    before = len(reader.submitted())
    letter = parcel(to, long_text(4000, 1), id="msg_held")
    await killed(letter, Step.PASTED, terminals, processes, tmp_path)

    async def shown() -> bool:
        return (await carrier.look(letter)).standing is Standing.FREE

    await until(shown, "a paste that only has to be submitted")
    reader.order("deaf")
    await killed(letter, Step.SUBMITTED, terminals, processes, tmp_path)
    await until(shown, "a pane that is free for the next attempt")
    assert await carrier.seen(letter) is False

    def hears(step: Step) -> None:
        if step is Step.PASTED:
            reader.order("hear")

    after = TmuxCarrier(private=terminals.folder / "private", reach="host:test:0", at_step=hears)
    try:
        assert (await after.write(letter)).outcome is Written.WRITTEN
    finally:
        await after.close()
    await until(submitted_more(reader, before), "the message")
    assert await carrier.seen(letter) is True
    assert [fact["submitted"] for fact in reader.facts() if "submitted" in fact][before:] == reader.submitted()[before:]
    assert [letter.message.id in one for one in reader.submitted()[before:]] == [True]


async def test_nothing_is_left_behind_by_a_killed_writer(
    terminals: Terminals, carrier: TmuxCarrier, processes: Processes, tmp_path: Path
) -> None:  # I32
    reader = READERS["agent"](terminals)
    to = endpoint(carrier, reader)
    letter = await ready(carrier, reader, to)
    await carrier.close()
    await killed(letter, Step.PASTED, terminals, processes, tmp_path)
    await until(lambda: terminals.tmux("list-clients") == "", "the end of the killed writer's client")
    terminals.end_server()
    assert not terminals.runs
