"""opencode's own terminal program in a pane, attached to its real server with a stand-in model (marked `opencode`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.carriers.carrier import Standing
from postroom.carriers.tmux import TmuxCarrier
from postroom.message import Written
from tests.opencode.model import ModelServer
from tests.opencode.real import CURRENT, RealOpencode, program
from tests.processes import until
from tests.terminals.rig import Reader, Terminals, endpoint, parcel
from tests.terminals.test_whole import long_text

pytestmark = pytest.mark.opencode

SECONDS = 120.0


async def test_messages_into_opencodes_own_terminal(
    terminals: Terminals, carrier: TmuxCarrier, tmp_path: Path
) -> None:  # I3, I19, I24
    model = await ModelServer(think=1.0).start()
    opencode = RealOpencode(CURRENT, tmp_path, model)
    try:
        await opencode.start()
        folders = {f"XDG_{name.upper()}_HOME": str(tmp_path / f"tui-{name}") for name in ("config", "data", "state")}
        pane = terminals.open(
            ["sh", "-c", 'exec "$0" attach "$1"', str(program(CURRENT)), opencode.url],
            {"HOME": str(tmp_path / "home"), "OPENCODE_DISABLE_AUTOUPDATE": "1", **folders},
        )
        to = endpoint(carrier, Reader(terminals, pane, tmp_path / "none.jsonl"))
        assert to.address["agent"] == "opencode"

        async def free() -> bool:
            return (await carrier.look(parcel(to, "x"))).standing is Standing.FREE

        await until(free, "opencode waits for a prompt", SECONDS)
        terminals.tmux("send-keys", "-t", pane, "-l", "half a thought")

        async def typed() -> bool:
            return "typed and not sent" in (await carrier.look(parcel(to, "x"))).reason

        await until(typed, "the draft is seen", SECONDS)
        for _ in "half a thought":
            terminals.tmux("send-keys", "-t", pane, "BSpace")

        texts = ["hello there", long_text(8192, 1), "and once more"]
        for number, text in enumerate(texts):
            await until(free, "opencode waits for a prompt", SECONDS)
            sent = parcel(to, text)
            assert (await carrier.write(sent)).outcome is Written.WRITTEN
            assert await carrier.seen(sent) is True
            await until(lambda number=number: len(model.asked) > number, "the model is asked", SECONDS)  # type: ignore[misc]
            # Behind what is pasted opencode puts a blank.
            assert model.asked[number].text.rstrip(" ").endswith(f"]\n{text}")

            async def working(text: str = text) -> bool:
                return "is working" in (await carrier.look(parcel(to, text))).reason

            await until(working, "opencode is seen to work", SECONDS)
        await until(free, "the last answer", SECONDS)
        assert len(model.asked) == len(texts)
    finally:
        await opencode.close()
        await model.stop()
