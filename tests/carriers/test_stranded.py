"""Targets that nobody here carries to: they are said to wait, and further messages for them cost nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from postroom.carriers import lane
from postroom.carriers import pauses as resting
from tests.carriers.rig import PostRig
from tests.processes import until


async def test_further_messages_that_nobody_carries_are_not_looked_at(
    rig: PostRig, monkeypatch: pytest.MonkeyPatch
) -> None:  # P16
    monkeypatch.setattr(resting, "STRANDED", (600.0, 600.0))
    looks: list[str] = []
    next_due = rig.dispatch.next_due

    async def counted(target_key: str, reaches: Sequence[str] | None = None) -> int | None:
        looks.append(target_key)
        return await next_due(target_key, reaches)

    monkeypatch.setattr(rig.dispatch, "next_due", counted)
    rig.courier()
    await rig.admit("ses_a")
    await until(lambda: looks == ["opencode:ses_a"], "the first one is looked at")
    for _ in range(20):
        await rig.admit("ses_a")
    await rig.admit("ses_b")
    await until(lambda: "opencode:ses_b" in looks, "another target is looked at")
    assert looks == ["opencode:ses_a", "opencode:ses_b"]


async def test_they_are_said_to_wait_once_others_were_waited_for(rig: PostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "STRANDED", (0.01, 600.0))
    rig.courier()
    id_ = await rig.admit("ses_a")

    async def said() -> bool:
        return (await rig.delivery(id_)).deferred_reason == lane.NO_CARRIER

    await until(said, "it is said that nobody carries it")
