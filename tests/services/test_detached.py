"""Detached: what waits for an endpoint that has ended waits on for its name, and goes to nobody else at that place."""

from __future__ import annotations

import pytest

from postroom.carriers.lane import ENDPOINT_GONE
from postroom.endpoint import ANY_REACH, CarrierKind, Endpoint, EndpointFilter, NewEndpoint
from postroom.message import DeliveryState
from postroom.model import Principal
from tests.offices import ADMIN, ANN, BOB, Bench
from tests.services.bells import Bell
from tests.services.mailing import Mail, only

REACHES = (ANY_REACH,)


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


async def waits(mail: Mail, message: str, endpoint: Endpoint) -> bool:
    """Whether it waits for somebody who has left, and nothing of the place may be carried."""
    dispatch = mail.office.dispatch
    (delivery,) = (await mail.office.post.get(ADMIN, message)).deliveries
    assert await dispatch.bereft(endpoint.target_key) is (delivery.deferred_reason == ENDPOINT_GONE)
    if delivery.deferred_reason is None:
        return False
    assert (delivery.state, delivery.attempt_count) == (DeliveryState.PENDING, 0)
    assert delivery.deferred_since == (await mail.office.registry.get(ADMIN, endpoint.id)).ended_at
    assert await dispatch.head(endpoint.target_key, REACHES) is None
    assert await dispatch.lease(endpoint.target_key, REACHES) is None
    assert await dispatch.ready_targets(REACHES, 10) == []
    assert await dispatch.next_due(endpoint.target_key) is None
    return True


async def test_what_waits_for_who_was_detached_is_carried_when_the_name_is_back(mail: Mail) -> None:
    mia = await mail.pane(1, name="mia")
    sent = await mail.send(to="mia")
    assert not await waits(mail, sent.id, mia)
    await mail.office.registry.detach(ADMIN, mia.id)
    assert await waits(mail, sent.id, mia)

    lee = await mail.pane(1, name="lee")
    assert await waits(mail, sent.id, mia)
    for_lee = await mail.send(to="lee")
    assert (await mail.carry(lee.target_key)).id == only(for_lee).id
    assert await waits(mail, sent.id, mia)

    await mail.pane(1, name="mia")
    assert not await waits(mail, sent.id, mia)
    assert (await mail.carry(mia.target_key)).id == only(sent).id


@pytest.mark.parametrize("name", ["mia", None])
async def test_what_waited_for_a_name_goes_to_the_place_as_it_is_attached_now(mail: Mail, name: str | None) -> None:
    first = await mail.pane(1, name=name, repositories=("repo",))
    sent = await mail.wake()
    await mail.office.registry.detach(ADMIN, first.id)
    address = {"pane": "%1", "pane_pid": 2}
    new = NewEndpoint(CarrierKind.TMUX, address, first.target_key, name=name, repositories=("repo",), spill=True)
    again = await mail.office.registry.attach(ADMIN, new)
    for parcel in (
        await mail.office.dispatch.head(again.target_key, REACHES),
        await mail.office.dispatch.lease(again.target_key, REACHES),
    ):
        assert parcel is not None
        assert parcel.delivery.id == only(sent).id
        assert parcel.endpoint == again


async def test_one_without_a_name_goes_by_who_attached_it(mail: Mail) -> None:
    first = await mail.pane(1, by=ANN, repositories=("repo",))
    sent = await mail.wake()
    await mail.office.registry.detach(ANN, first.id)
    await mail.pane(1, by=BOB, repositories=("repo",))
    assert await waits(mail, sent.id, first)
    await mail.pane(1, repositories=("repo",))
    assert await waits(mail, sent.id, first)
    for standing in await mail.office.registry.find(ADMIN, EndpointFilter()):
        await mail.office.registry.detach(ADMIN, standing.id)
    again = await mail.pane(1, by=ANN, repositories=("repo",))
    assert not await waits(mail, sent.id, first)
    assert (await mail.carry(again.target_key)).id == only(sent).id


async def test_a_session_of_its_own_name_needs_no_endpoint(mail: Mail) -> None:
    plugin = Principal("plugin", speaks_as=("ses_*",))
    new = NewEndpoint(CarrierKind.OPENCODE, {"session": "ses_1"}, "opencode:ses_1", name="plugin")
    made = await mail.office.registry.attach(plugin, new)
    by_name, by_session = await mail.send(to="plugin"), await mail.send(to="ses_1")
    await mail.office.registry.detach(plugin, made.id)
    assert (await mail.carry(made.target_key)).id == only(by_session).id
    (left,) = (await mail.office.post.get(ADMIN, by_name.id)).deliveries
    assert left.deferred_reason == ENDPOINT_GONE


async def test_one_that_ended_under_the_lease_is_told_before_the_write(mail: Mail) -> None:
    mia = await mail.pane(1, name="mia")
    await mail.send(to="mia")
    parcel = await mail.office.dispatch.lease(mia.target_key, REACHES)
    assert parcel is not None
    assert await mail.office.dispatch.attached(parcel)
    await mail.office.registry.detach(ADMIN, mia.id)
    assert not await mail.office.dispatch.attached(parcel)
    await mail.pane(1, name="lee")
    assert not await mail.office.dispatch.attached(parcel)
    await mail.pane(1, name="mia")
    assert await mail.office.dispatch.attached(parcel)


async def test_who_came_after_is_idle_whatever_waits_for_who_left(bench: Bench) -> None:
    bell = Bell(bench)
    mia = await bell.mail.pane(7, name="mia")
    await bell.mail.send(to="mia")
    await bell.office.registry.detach(ADMIN, mia.id)
    lee = await bell.mail.pane(7, name="lee", queues=("review",))
    await bell.work()
    assert await bell.look() == 1
    assert await bell.rung() == [lee.id]
