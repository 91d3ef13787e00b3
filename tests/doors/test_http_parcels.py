"""Parcels over HTTP: the process that attached an endpoint is handed its messages, and nobody else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroom.carriers.courier import Courier
from postroom.store.sqlite import SqliteEngine
from tests.doors.http_rig import Rig, ask, get, post, refusal
from tests.doors.test_http_endpoints import attach
from tests.processes import until

NONE = "ep_00000000-0000-7000-8000-000000000000"


@pytest.fixture
async def there(rig: Rig) -> AsyncIterator[dict[str, Any]]:
    """Bob's channel, and a courier at work."""
    courier = Courier(rig.office.dispatch, {rig.channel.kind: rig.channel}, rig.office.wake)
    running = asyncio.create_task(courier.run())
    await until(lambda: courier.status()["running"], "the courier is at work")
    yield await attach(rig, carrier="channel", address={"pid": 7, "directory": "/home/bob", "host": "here"})
    await courier.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def place(endpoint: dict[str, Any], delivery: str = "") -> str:
    """Where its parcels are."""
    path = f"/v1/endpoints/{endpoint['id']}/parcels"
    return f"{path}/{delivery}" if delivery else path


async def test_a_message_goes_through_its_process(rig: Rig, there: dict[str, Any]) -> None:
    assert there["target"] == f"channel:{there['id']}"
    assert there["reach"] == f"process:{there['id']}"
    waiting = asyncio.create_task(get(rig, "bob", f"{place(there)}?wait_s=50"))
    sent = (await post(rig, "ann", "/v1/messages", {"to": "bob", "payload": "hello"}, 202))["id"]
    parcel = (await waiting)["parcel"]
    assert parcel["meta"] == {"message_id": sent, "sender": "ann", "kind": "chat", "priority": "normal"}
    assert parcel["content"].endswith("\nhello")
    told = await post(rig, "bob", place(there, parcel["delivery_id"]), {"outcome": "pushed"})
    assert told == {"delivery_id": parcel["delivery_id"], "outcome": "pushed"}

    async def shown() -> list[dict[str, Any]]:
        return list((await get(rig, "bob", "/v1/inbox"))["messages"])

    (letter,) = await until(shown, "it stands in the inbox")
    assert (letter["id"], letter["delivery"]["state"], letter["handed_off_at"]) == (sent, "pending", None)
    assert letter["delivery"]["may_have_been_written"] is True
    refusal(await ask(rig, "bob", "POST", place(there, parcel["delivery_id"]), {"outcome": "pushed"}), 409, "conflict")
    await post(rig, "bob", "/v1/inbox/read", {"since": sent})
    (read,) = await shown()
    assert (read["delivery"]["state"], read["read"]) == ("injected", True)
    assert read["handed_off_at"] == read["delivery"]["seen_at"]


async def test_nothing_there_is_no_error_and_a_sign_of_life(
    rig: Rig, engine: SqliteEngine, there: dict[str, Any]
) -> None:
    engine.skew += 60_000
    assert (await get(rig, "bob", f"/v1/endpoints/{there['id']}"))["endpoint"]["live"] is False
    assert await get(rig, "bob", f"{place(there)}?wait_s=0") == {"parcel": None}
    assert (await get(rig, "bob", f"/v1/endpoints/{there['id']}"))["endpoint"]["live"] is True


async def test_only_who_attached_it_is_handed_its_messages(rig: Rig, there: dict[str, Any]) -> None:
    for who in ("ann", "root"):
        assert refusal(await ask(rig, who, "GET", f"{place(there)}?wait_s=0"), 403, "forbidden")["field"] == "id"
    refusal(await ask(rig, None, "GET", place(there)), 401, "unauthenticated")


async def test_bad_input_is_refused_by_field(rig: Rig, there: dict[str, Any]) -> None:
    for query, field in (("wait_s=51", "wait_s"), ("wait_s=-1", "wait_s"), ("wait_s=x", "wait_s"), ("for=x", "for")):
        assert refusal(await ask(rig, "bob", "GET", f"{place(there)}?{query}"), 400, "invalid")["field"] == field
    refusal(await ask(rig, "bob", "GET", f"{place({'id': NONE})}?wait_s=0"), 404, "not_found")
    refusal(await ask(rig, "bob", "GET", f"{place({'id': 'ep_x'})}?wait_s=0"), 404, "not_found")
    for body, field in (({}, "outcome"), ({"outcome": 1}, "outcome"), ({"outcome": "written"}, "outcome")):
        assert refusal(await ask(rig, "bob", "POST", place(there, "dl_x"), body), 400, "invalid")["field"] == field
    body = {"outcome": "pushed", "lease_id": "ls_1"}
    assert refusal(await ask(rig, "bob", "POST", place(there, "dl_x"), body), 400, "invalid")["field"] == "lease_id"
    refusal(await ask(rig, "bob", "POST", place(there, "dl_x"), {"outcome": "pushed"}), 409, "conflict")
    for address, field in (({"pid": -1}, "address.pid"), ({"pane": "%1"}, "address")):
        new = {"carrier": "channel", "address": address}
        assert refusal(await ask(rig, "bob", "POST", "/v1/endpoints", new), 400, "invalid")["field"] == field


async def test_another_kind_of_endpoint_and_one_that_ended_have_no_parcels(rig: Rig, there: dict[str, Any]) -> None:
    inbox = await attach(rig, name="bob")
    refusal(await ask(rig, "bob", "GET", f"{place(inbox)}?wait_s=0"), 409, "conflict")
    assert (await ask(rig, "bob", "DELETE", f"/v1/endpoints/{there['id']}")).status_code == 200
    answer = await ask(rig, "bob", "GET", f"{place(there)}?wait_s=0")
    refusal(answer, 409, "conflict")
    assert answer.json()["error"]["state"] == "ended"
