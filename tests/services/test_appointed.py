"""Appointed endpoints: what the settings name stands as they say, whichever of several daemons starts when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroom.endpoint import CarrierKind, Endpoint, EndpointFilter, NewEndpoint
from postroom.errors import Unavailable
from postroom.message import Written
from postroom.services import appointed
from tests.conftest import Store
from tests.offices import ADMIN, Bench, gather
from tests.services.mailing import Mail, appointments, only

SILENT = 46_000


def hook(name: str = "ops", url: str = "https://example.com/a", **more: Any) -> NewEndpoint:
    more.setdefault("queues", ("review",))
    return NewEndpoint(CarrierKind.WEBHOOK, {"url": url}, f"webhook:{name}", reach=f"webhook:{name}", name=name, **more)


async def standing(bench: Bench) -> list[Endpoint]:
    return await bench.office.registry.find(ADMIN, EndpointFilter())


async def test_what_the_settings_name_is_attached_and_stays_the_same(bench: Bench) -> None:
    wanted = [hook(channels=("dead-letters", "team"), queues=("review", "build"))]
    await appointments(bench, wanted).settle()
    (one,) = await standing(bench)
    assert (one.name, one.carrier, one.created_by, one.max_attempts) == ("ops", CarrierKind.WEBHOOK, "postroom", 8)
    assert (one.target_key, one.reach, dict(one.address)) == (
        "webhook:ops",
        "webhook:ops",
        {"url": "https://example.com/a"},
    )
    assert (one.queues, one.channels) == (("build", "review"), ("dead-letters", "team"))
    await appointments(bench, wanted).settle()
    (again,) = await standing(bench)
    assert again.id == one.id
    delivery = only(await Mail(bench).send("hello", to="ops"))
    assert (delivery.target_key, delivery.reach, delivery.max_attempts) == ("webhook:ops", "webhook:ops", 8)


@pytest.mark.parametrize(
    "change",
    [{"url": "https://example.com/b"}, {"queues": ("build",)}, {"channels": ("team",)}, {"queues": ()}],
    ids=lambda change: next(iter(change)),
)
async def test_another_setting_is_another_endpoint_at_the_same_place(bench: Bench, change: dict[str, Any]) -> None:
    await appointments(bench, [hook()]).settle()
    (old,) = await standing(bench)
    delivery = only(await Mail(bench).send("waits", to="ops"))
    await appointments(bench, [hook(**change)]).settle()
    (new,) = await standing(bench)
    assert new.id != old.id
    parcel = await bench.office.dispatch.lease("webhook:ops", ["webhook:ops"])
    assert parcel is not None, "what waited is carried on"
    assert parcel.delivery.id == delivery.id


async def test_what_is_no_longer_named_ends_and_nothing_else_does(bench: Bench) -> None:
    await Mail(bench).pane(1, name="pane")
    await appointments(bench, [hook(), hook("other")]).settle()
    bench.move(SILENT)
    await appointments(bench, [hook("other")]).settle()
    assert sorted(str(one.name) for one in await standing(bench)) == ["other", "pane"]
    bench.move(SILENT)
    await appointments(bench, []).settle()
    assert [one.name for one in await standing(bench)] == ["pane"]


async def test_another_daemons_webhook_stays_while_it_gives_signs(bench: Bench) -> None:
    """On SQLite there is no other daemon: what the one daemon no longer names ends at once."""
    await appointments(bench, [hook("theirs")]).settle()
    (theirs,) = await standing(bench)
    await appointments(bench, [hook("ours")]).settle()
    left = sorted(str(one.name) for one in await standing(bench))
    if bench.store.dialect == "sqlite":
        assert left == ["ours"]
        return
    assert left == ["ours", "theirs"]
    bench.move(SILENT)
    await bench.office.registry.touch([theirs.id])
    await appointments(bench, [hook("ours")]).settle()
    assert sorted(str(one.name) for one in await standing(bench)) == ["ours", "theirs"]
    bench.move(SILENT)
    await appointments(bench, [hook("ours")]).settle()
    assert [one.name for one in await standing(bench)] == ["ours"]


async def test_several_daemons_that_start_at_once_make_one(bench: Bench, new_engine: Callable[[], Store]) -> None:
    engine = new_engine() if bench.store.dialect == "postgres" else None
    if engine is not None:
        await engine.open()
    other = Bench(engine or bench.store)
    for url in ("https://example.com/a", "https://example.com/b"):
        wanted = [hook(url=url), hook("more", url=url)]
        assert (
            await gather(*[appointments(one, wanted).settle() for one in (bench, other) for _ in range(3)])
            == [None] * 6
        )
        assert sorted(str(one.name) for one in await standing(bench)) == ["more", "ops"]
        assert {str(dict(one.address)["url"]) for one in await standing(bench)} == {url}
    if engine is not None:
        await engine.close()


async def test_what_another_daemon_made_in_the_very_moment_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    late = appointments(bench, [hook()])
    look = late._table.appointed
    seen: list[int] = []

    async def before(*args: Any) -> Any:
        seen.append(1)
        if len(seen) == 1:
            return []  # As it was before the other one's commit.
        return await look(*args)

    await appointments(bench, [hook()]).settle()
    (first,) = await standing(bench)
    monkeypatch.setattr(late._table, "appointed", before)
    await late.settle()
    assert [one.id for one in await standing(bench)] == [first.id]
    assert len(seen) == 2


async def test_it_is_looked_again_once_and_a_database_that_is_away_is_no_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appointed, "LOOK_AGAIN", 0.01)
    made = appointments(bench, [hook()])
    await made.run()
    assert [one.name for one in await standing(bench)] == ["ops"]

    async def away(*_: Any, **__: Any) -> None:
        raise Unavailable("it is away")

    monkeypatch.setattr(bench.store, "transact", away)
    await made.run()


async def test_a_new_one_is_rung_for_what_waits(bench: Bench) -> None:
    bell = bench.office.doorbell
    await bench.create("review")
    await bell.once()
    await appointments(bench, [hook()]).settle()
    assert await bell.turn() == 1
    rows = await bench.rows("select target_key, kind from deliveries d join messages m on m.id = d.message_id")
    assert rows == [("webhook:ops", "queue.ring")]


async def test_what_it_failed_to_take_does_not_keep_it_from_being_rung(bench: Bench) -> None:
    await appointments(bench, [hook()]).settle()
    await Mail(bench).send("hello", to="ops")
    await Mail(bench).carry("webhook:ops", Written.REFUSED, reach="webhook:ops")
    await Mail(bench).send("another", to="ops")
    await bench.create("review")
    assert await bench.office.doorbell.once() == 1


async def test_one_that_gives_no_sign_is_not_rung_and_keeps_its_messages(bench: Bench) -> None:
    bell = bench.office.doorbell
    await appointments(bench, [hook()]).settle()
    bench.move(SILENT)
    await bench.create("review")
    assert await bell.once() == 0
    assert only(await Mail(bench).send("hello", to="ops")).target_key == "webhook:ops"
    (one,) = await standing(bench)
    await bench.office.registry.touch([one.id])
    assert await bell.once() == 1
