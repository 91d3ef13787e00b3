"""`postroom replay` against a served socket: what is replayed again is told as such, wherever the first replay went."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from postroom.doors.cli import replay
from postroom.doors.cli.replay import Fate
from postroom.doors.socket.capture import LEFT_OUT
from tests.doors.socket_rig import SocketRig

SILENT = 46_000


async def replayed(door: SocketRig, capture: Path) -> list[tuple[Fate, str | None]]:
    """What becomes of a capture's messages, and which messages they are."""
    entries = list(replay._read(capture))
    told = [await asyncio.to_thread(replay._one, entry, str(door.path)) for entry in entries]
    return [(one.fate, one.message_id) for one in told]


async def captured(door: SocketRig, tmp_path: Path, **fields: Any) -> Path:
    """A capture of one message that was sent."""
    await door.send(**fields)
    capture = tmp_path / "capture.jsonl"
    capture.write_bytes(door.capture.path.read_bytes())
    return capture


# T47 # T50
@pytest.mark.parametrize("injected", [False, True])
async def test_one_that_went_elsewhere_while_its_endpoint_was_silent_is_still_known(
    door: SocketRig, tmp_path: Path, injected: bool
) -> None:
    meant = await door.pane(1, "alpha")
    capture = await captured(door, tmp_path, endpoint_id=meant)
    door.bench.move(SILENT)
    other = await door.pane(2, "alpha")
    ((fate, id_),) = await replayed(door, capture)
    assert fate is Fate.REPLAYED
    if injected:
        await door.carry(2)
    await door.done("heartbeat", endpoint_id=meant)
    assert await replayed(door, capture) == [(Fate.DEDUPLICATED, id_)]
    shown = (await door.done("message", message_id=id_))["message"]
    assert (shown["endpoint_id"], shown["state"]) == (other, "injected" if injected else "pending")


# T49
async def test_what_lost_a_secret_is_told(door: SocketRig, tmp_path: Path) -> None:
    await door.pane(1, "alpha")
    capture = await captured(door, tmp_path, metadata={"token": "12345-67890", "tokens_used": 5})
    ((fate, id_),) = await replayed(door, capture)
    assert fate is Fate.REPLAYED
    shown = (await door.done("message", message_id=id_))["message"]
    assert shown["metadata"] == {"token": LEFT_OUT, "tokens_used": 5}
    (entry,) = replay._read(capture)
    again = await asyncio.to_thread(replay._one, entry, str(door.path))
    assert (again.fate, again.why) == (Fate.DEDUPLICATED, "a secret was left out of its metadata")
    capture = await captured(door, tmp_path, idempotency_key="other", body=f"use ghs_{'a' * 36}")
    assert [fate for fate, _ in await replayed(door, capture)][-1] is Fate.SKIPPED


# T20
async def test_a_key_that_was_used_for_another_message_is_refused(door: SocketRig, tmp_path: Path) -> None:
    meant = await door.pane(1, "alpha")
    capture = await captured(door, tmp_path, endpoint_id=meant)
    assert [fate for fate, _ in await replayed(door, capture)] == [Fate.REPLAYED]
    capture.write_text(capture.read_text().replace("failing", "green"))
    assert await replayed(door, capture) == [(Fate.REFUSED, None)]
