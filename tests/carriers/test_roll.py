"""The roll: places that stand are seen, places that are gone end for ever, and what cannot be told stays as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from postroom.carriers import roll
from postroom.carriers.carrier import Carrier
from postroom.carriers.roll import Roll
from postroom.carriers.table import make_carriers
from postroom.endpoint import CarrierKind, Endpoint, NewEndpoint
from postroom.errors import Unavailable
from postroom.store.sqlite import SqliteEngine
from tests.offices import ADMIN, Bench
from tests.processes import until

HERE = "host:here:0"


class Places:
    """A carrier whose places a test decides: there, gone, not to be told, hanging, or broken."""

    kind = CarrierKind.TMUX
    reaches = (HERE,)

    def __init__(self) -> None:
        self.there: dict[str, Any] = {}
        self.asked: list[str] = []

    async def live(self, endpoint: Endpoint) -> bool | None:
        self.asked.append(endpoint.target_key)
        answer = self.there.get(endpoint.target_key)
        if isinstance(answer, Exception):
            raise answer
        if answer == "hangs":
            await asyncio.Event().wait()
        assert answer is None or isinstance(answer, bool)
        return answer


@pytest.fixture
async def bench(tmp_path: Path, clock: Callable[[], int]) -> AsyncIterator[Bench]:
    engine = SqliteEngine(tmp_path / "postroom.db", clock)
    await engine.open()
    yield Bench(engine)
    await engine.close()


@pytest.fixture
def places() -> Places:
    return Places()


def called(bench: Bench, places: Places) -> Roll:
    return Roll(bench.office.registry, {CarrierKind.TMUX: cast("Carrier", places)})


async def pane(bench: Bench, number: int, reach: str = HERE, kind: CarrierKind = CarrierKind.TMUX) -> Endpoint:
    new = NewEndpoint(kind, {"pane": f"%{number}"}, f"{kind}:%{number}", reach=reach, repositories=("alpha",))
    return await bench.office.registry.attach(ADMIN, new)


async def now(bench: Bench, endpoint: Endpoint) -> tuple[bool, bool]:
    """Whether it is live, and whether it has ended."""
    found = await bench.office.registry.get(ADMIN, endpoint.id)
    return bool(await bench.office.registry.living([found])), found.ended_at is not None


async def test_each_answer_means_what_it_says(bench: Bench, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    # T9 # T11
    monkeypatch.setattr(roll, "LOOK_SECONDS", 0.05)
    answers: list[Any] = [True, False, None, "hangs", RuntimeError("broken")]
    endpoints = [await pane(bench, n) for n in range(len(answers))]
    places.there = {one.target_key: answer for one, answer in zip(endpoints, answers, strict=True)}
    bench.move(46_000)
    assert [await now(bench, one) for one in endpoints] == [(False, False)] * 5
    await called(bench, places).call()
    assert [await now(bench, one) for one in endpoints] == [
        (True, False),
        (False, True),
        (False, False),
        (False, False),
        (False, False),
    ]
    # What is gone is never called again, and lives no more even if its place comes back.
    places.asked.clear()
    places.there[endpoints[1].target_key] = True
    await called(bench, places).call()
    assert endpoints[1].target_key not in places.asked
    assert len(places.asked) == 4
    assert await now(bench, endpoints[1]) == (False, True)


async def test_only_what_can_be_looked_at_from_here_is_called(bench: Bench, places: Places) -> None:
    await pane(bench, 1, reach="host:elsewhere:0")
    await pane(bench, 2, kind=CarrierKind.OPENCODE, reach="any")
    mine = await pane(bench, 3)
    await called(bench, places).call()
    assert places.asked == [mine.target_key]
    await Roll(bench.office.registry, {}).call()
    assert places.asked == [mine.target_key]


async def test_many_are_called_a_few_at_a_time(bench: Bench, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = 0, 0
    endpoints = [await pane(bench, n) for n in range(40)]

    async def live(endpoint: Endpoint) -> bool:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return True

    monkeypatch.setattr(places, "live", live)
    bench.move(46_000)
    await called(bench, places).call()
    assert 1 < most <= roll.AT_ONCE
    assert all([await now(bench, one) == (True, False) for one in endpoints])


async def test_it_goes_on_while_the_database_is_away(
    bench: Bench, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll, "CALL_SECONDS", 0.01)
    endpoint = await pane(bench, 1)
    places.there[endpoint.target_key] = True
    faults: list[Exception] = [Unavailable("the database is away"), RuntimeError("broken")]
    find = bench.office.registry.find

    async def finds(*arguments: Any) -> Any:
        if faults:
            raise faults.pop()
        return await find(*arguments)

    monkeypatch.setattr(bench.office.registry, "find", finds)
    running = asyncio.create_task(called(bench, places).run())
    await until(lambda: len(places.asked) > 2, "it calls again and again")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not faults


def test_terminals_are_carried_where_tmux_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert CarrierKind.TMUX not in make_carriers()
    (tmp_path / "mine.toml").write_text('title = "my own"\nprocesses = ["mine"]\nquiet_ms = 1\nenter_ms = 1\n')
    carrier = make_carriers(agents=tmp_path)[CarrierKind.TMUX]
    assert {"mine", "shell", "claude"} <= set(carrier.status()["agents"])
    assert CarrierKind.TMUX in make_carriers(agents=tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(make_carriers(agents=tmp_path)) == {CarrierKind.CHANNEL}
