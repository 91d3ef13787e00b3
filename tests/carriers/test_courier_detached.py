"""The courier and endpoints that end: what is for one of them is not written, whenever that happens."""

from __future__ import annotations

import pytest

from postroom.carriers import courier as courier_module
from postroom.carriers import lane
from postroom.carriers import pauses as resting
from postroom.carriers.carrier import Look
from postroom.message import Parcel
from tests.carriers.rig import BUSY, MemoryCarrier, PostRig
from tests.processes import until

KEY = "opencode:ses_a"


class Leaving(MemoryCarrier):
    """Ends an endpoint while the target is looked at: before the lease, or under it."""

    def __init__(self, rig: PostRig, look: int) -> None:
        super().__init__()
        self._rig, self._look = rig, look

    async def look(self, parcel: Parcel) -> Look:
        found = await super().look(parcel)
        if self.looked["ses_a"] == self._look:
            await self._rig.detached("ep_mia")
        return found


async def said(rig: PostRig, message: str) -> bool:
    """Whether it is told of the message, and of its target, that its endpoint has gone."""
    rows = await rig.rows("select busy_reason from targets where target_key = ?", (KEY,))
    return rows == [(lane.ENDPOINT_GONE,)] and (await rig.delivery(message)).deferred_reason == lane.ENDPOINT_GONE


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "BUSY", (0.01,))
    monkeypatch.setattr(courier_module, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(courier_module, "SWEEP_SECONDS_DEAF", 0.05)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("look", [1, 2])
async def test_what_its_endpoint_does_not_wait_for_is_not_written(rig: PostRig, look: int) -> None:
    id_ = await rig.admit("ses_a", tell=False)
    await rig.addressed(id_, "ep_mia", "mia")
    carrier = Leaving(rig, look)
    rig.courier(carrier)
    await until(lambda: said(rig, id_), "it is told that the endpoint has gone")
    # Others at that place do not wait for it, and it does not go with them.
    other = await rig.admit("ses_a")
    await rig.addressed(other, "ep_lee", "lee")
    rig.wake.post([KEY])
    await rig.reach_state("injected", other)
    await until(lambda: said(rig, id_), "it waits on")
    assert carrier.written["ses_a"] == [other]
    # The name is back.
    await rig.detached("ep_lee")
    await rig.addressed(await rig.admit("ses_a", tell=False), "ep_mia_2", "mia")
    await until(lambda: len(carrier.written["ses_a"]) == 3, "it goes to whoever has the name")
    assert carrier.written["ses_a"][1] == id_


@pytest.mark.usefixtures("quick")
async def test_what_waited_for_a_busy_target_is_not_written_once_its_endpoint_ended(rig: PostRig) -> None:
    id_ = await rig.admit("ses_a", tell=False)
    await rig.addressed(id_, "ep_mia", "mia")
    carrier = MemoryCarrier()
    carrier.standing["ses_a"] = BUSY
    rig.courier(carrier)
    await until(lambda: carrier.looked["ses_a"] > 1, "it waits for the target")
    await rig.detached("ep_mia")
    del carrier.standing["ses_a"]
    await until(lambda: said(rig, id_), "it is told that the endpoint has gone")
    assert carrier.written["ses_a"] == []
    assert (await rig.delivery(id_)).attempt_count == 0
