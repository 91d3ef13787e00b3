"""8 KiB of many lines into real programs in real panes: whole, once, submitted once."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from postroom.carriers.carrier import Standing
from postroom.carriers.tmux import TmuxCarrier
from postroom.endpoint import Endpoint
from postroom.message import Parcel, Written
from tests.processes import until
from tests.terminals.rig import READERS, Reader, Terminals, endpoint, parcel

RUNS = int(os.environ.get("POSTROOM_TERMINAL_RUNS", "3"))
_LINE = "line {n}: żółć, 漢字, 😀 and 'single', \"double\", $HOME, `id`, $(id), back\\slash, !{n} !! ; # {n}\n"


def long_text(bytes_: int, mark: int) -> str:
    """Text of exactly so many bytes of UTF-8, in many lines."""
    text = f"{mark}\n" + "".join(_LINE.format(n=n) for n in range(bytes_ // len(_LINE) + 1))
    cut = text.encode()[:bytes_].decode("utf-8", "ignore")
    return cut.rstrip("\n") + "." * (bytes_ - len(cut.rstrip("\n").encode()))


async def ready(carrier: TmuxCarrier, reader: Reader, to: Endpoint) -> Parcel:
    """Wait until the reader takes messages; one that only says with its prompt that it takes pastes is shown Enter."""
    asked = parcel(to, "are you there?")
    look = await carrier.look(asked)
    if "press Enter" in look.reason:
        reader.terminals.tmux("send-keys", "-t", reader.pane, "Enter")

    async def free() -> bool:
        return (await carrier.look(asked)).standing is Standing.FREE

    await until(free, "a pane that takes messages")
    return asked


def submitted_more(reader: Reader, than: int) -> Callable[[], bool]:
    """The condition that more was submitted to the reader than so many texts."""
    return lambda: len(reader.submitted()) > than


@pytest.mark.parametrize("kind", READERS)
async def test_whole_once_and_submitted_once(
    kind: str, terminals: Terminals, carrier: TmuxCarrier
) -> None:  # I1, I22, I30
    reader = READERS[kind](terminals)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    before = len(reader.submitted())
    for run in range(RUNS):
        text = long_text(8192, run)
        assert len(text.encode()) == 8192
        sent = parcel(to, text, id=f"msg_run_{run}")

        async def free(sent: Parcel = sent) -> bool:
            return (await carrier.look(sent)).standing is Standing.FREE

        await until(free, "the reader to be free again")
        assert (await carrier.write(sent)).outcome is Written.WRITTEN
        await until(submitted_more(reader, before + run), "a submission")
        *_, header, shown = [*reader.submitted()[-1].split("\n", 1)]
        assert header.startswith(f"[postroom msg_run_{run}: chat from planner; ")
        assert shown == text
        assert await carrier.seen(sent)
    assert len(reader.submitted()) == before + RUNS
    assert not [fact for fact in reader.facts() if "ran" in fact or "control" in fact]  # I16, I18
    assert terminals.buffers() == []
    print(f"{kind}: {RUNS} of {RUNS} whole, once, submitted once")
