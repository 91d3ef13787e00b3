"""Endpoints and channels over HTTP: attached, kept alive, subscribed, detached, and told of."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.http_rig import Rig, ask, get, post, refusal

NONE = "ep_00000000-0000-7000-8000-000000000000"


async def attach(rig: Rig, by: str = "bob", **fields: Any) -> dict[str, Any]:
    """An endpoint that `by` attached, an inbox of the name unless the fields say otherwise."""
    body = {"carrier": "inbox", "address": {}, "name": by, **fields}
    return dict((await post(rig, by, "/v1/endpoints", body, 201))["endpoint"])


async def ids(rig: Rig, query: str = "", by: str = "root") -> list[str]:
    """The ids of the endpoints that fit."""
    return [one["id"] for one in (await get(rig, by, f"/v1/endpoints?{query}"))["endpoints"]]


async def test_every_field_of_an_endpoint_is_kept(rig: Rig) -> None:
    made = await attach(
        rig,
        "root",
        carrier="opencode",
        address={"session": "ses_a"},
        name="builder",
        repositories=["org/app", "org/lib"],
        queues=["review"],
        channels=["ops"],
        ack_mode="acknowledged",
        delivery_max_attempts=3,
        spill=True,
        rings=False,
        pid=4242,
    )
    assert (made["target"], made["reach"], made["address"]) == ("opencode:ses_a", "any", {"session": "ses_a"})
    assert (made["name"], made["mailbox"], made["carrier"]) == ("builder", "builder", "opencode")
    assert sorted(made["repositories"]) == ["org/app", "org/lib"]
    assert (made["queues"], made["channels"]) == (["review"], ["ops"])
    assert (made["ack_mode"], made["delivery_max_attempts"], made["pid"]) == ("acknowledged", 3, 4242)
    assert (made["spill"], made["rings"], made["created_by"], made["ended_at"]) == (True, False, "root", None)
    assert (await get(rig, "ann", f"/v1/endpoints/{made['id']}"))["endpoint"] == made


async def test_it_is_said_where_nothing_carries(rig: Rig) -> None:
    asked = {"carrier": "opencode", "address": {"session": "ses_a"}}
    async with rig.client("root") as client:
        answer = (await client.post("/v1/endpoints", json=asked)).json()
        assert "no [[opencode]] is in the settings" in answer["note"]
        inbox = (await client.post("/v1/endpoints", json={"carrier": "inbox", "address": {}, "name": "ann"})).json()
        assert set(inbox) == {"endpoint"}


async def test_a_queue_that_is_not_the_tokens_is_refused_as_everywhere(rig: Rig) -> None:
    async with rig.client("eve") as client:
        asked = {"carrier": "inbox", "address": {}, "name": "eve", "queues": ["lab/1", "secret"]}
        refused = await client.post("/v1/endpoints", json=asked)
        create = await client.post("/v1/todos", json={"queue": "secret", "title": "x"})
    assert refused.status_code == create.status_code == 404
    assert refused.json()["error"] == {**create.json()["error"], "field": "queues"}
    assert await ids(rig) == []


async def test_a_new_one_at_the_same_place_ends_the_old_one(rig: Rig) -> None:
    old, new = await attach(rig), await attach(rig)
    assert await ids(rig) == [new["id"]]
    assert await ids(rig, "ended=true") == [old["id"], new["id"]]
    ended = (await get(rig, "bob", f"/v1/endpoints/{old['id']}"))["endpoint"]
    assert ended["ended_at"]
    assert ended["live"] is False
    refusal(await ask(rig, "bob", "POST", f"/v1/endpoints/{old['id']}/heartbeat", {}), 409, "conflict")


async def test_endpoints_are_found_by_what_they_are_attached_to(rig: Rig) -> None:
    one = await attach(rig, "bob", repositories=["org/app"], channels=["ops"])
    two = await attach(rig, "eve", queues=["lab/x"])
    assert await ids(rig) == [one["id"], two["id"]]
    assert await ids(rig, "target_repo=org/app") == [one["id"]]
    assert await ids(rig, "channel=ops") == [one["id"]]
    assert await ids(rig, "queue=lab/x") == [two["id"]]
    assert await ids(rig, "name=eve") == [two["id"]]
    assert await ids(rig, "live=true") == [one["id"], two["id"]]
    assert await ids(rig, "live=false") == []


async def test_an_endpoint_lives_by_its_owner(rig: Rig) -> None:
    made = await attach(rig)
    path = f"/v1/endpoints/{made['id']}"
    beat = (await post(rig, "bob", f"{path}/heartbeat", {}))["endpoint"]
    assert beat["seen_at"] >= made["seen_at"]
    for method, where in (("POST", f"{path}/heartbeat"), ("DELETE", path)):
        answer = await ask(rig, "eve", method, where, {} if method == "POST" else None)
        assert answer.status_code in {403, 404}
    gone = await ask(rig, "bob", "DELETE", path)
    assert gone.status_code == 200
    assert gone.json()["endpoint"]["ended_at"]
    assert await ids(rig) == []


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
@pytest.mark.parametrize("id_", [NONE, "nonsense", "ep_%00", "%ff"])
async def test_what_is_no_endpoint_is_not_found(rig: Rig, method: str, id_: str) -> None:
    path = f"/v1/endpoints/{id_}{'/heartbeat' if method == 'POST' else ''}"
    refusal(await ask(rig, "root", method, path, {} if method == "POST" else None), 404, "not_found")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"carrier": "pigeon"}, "carrier"),
        ({"carrier": "tmux", "address": {"pane": "%1"}}, "carrier"),
        ({"carrier": 5}, "carrier"),
        ({"address": {"session": "ses_a"}}, "address"),
        ({"address": None}, "address"),
        ({"name": None}, "name"),
        ({"name": "a b"}, "name"),
        ({"carrier": "opencode"}, "address.session"),
        ({"carrier": "opencode", "address": {"session": 5}}, "address.session"),
        ({"carrier": "opencode", "address": {"session": "a"}}, "address.session"),
        ({"carrier": "opencode", "address": {"session": "ses_ x"}}, "address.session"),
        ({"carrier": "opencode", "address": {"session": "ses_a", "x": 1}}, "address"),
        ({"repositories": "org/app"}, "repositories"),
        ({"repositories": [""]}, "repositories"),
        ({"repositories": ["a\x1bb"]}, "repositories"),
        ({"repositories": ["r"] * 101}, "repositories"),
        ({"queues": ["Q!"]}, "queues"),
        ({"channels": ["C!"]}, "channels"),
        ({"ack_mode": "maybe"}, "ack_mode"),
        ({"delivery_max_attempts": 0}, "delivery_max_attempts"),
        ({"delivery_max_attempts": 10}, "delivery_max_attempts"),
        ({"delivery_max_attempts": "5"}, "delivery_max_attempts"),
        ({"pid": 0}, "pid"),
        ({"spill": "yes"}, "spill"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_a_bad_endpoint_is_refused_by_its_field(rig: Rig, fields: dict[str, Any], field: str) -> None:
    body = {"carrier": "inbox", "address": {}, "name": "bob", **fields}
    assert refusal(await ask(rig, "bob", "POST", "/v1/endpoints", body), 400, "invalid")["field"] == field
    assert await ids(rig, "ended=true") == []


@pytest.mark.parametrize("query", ["live=1", "live=True", "ended=yes", "queue=Q!", "name=a%20b", "colour=red"])
async def test_a_bad_question_is_refused_by_its_field(rig: Rig, query: str) -> None:
    answer = await ask(rig, "root", "GET", f"/v1/endpoints?{query}")
    assert refusal(answer, 400, "invalid")["field"] == query.partition("=")[0]


# P19
async def test_a_channel_has_those_who_subscribed(rig: Rig) -> None:
    path = "/v1/channels/team%2Fops/subscribers"
    for _ in range(2):
        channel = (await post_to(rig, "bob", "PUT", f"{path}/bob"))["channel"]
        assert channel["name"] == "team/ops"
        assert [one["mailbox"] for one in channel["subscribers"]] == ["bob"]
    await post_to(rig, "ann", "PUT", "/v1/channels/team/ops/subscribers/ses_x")
    (channel,) = (await get(rig, "root", "/v1/channels"))["channels"]
    assert sorted(one["mailbox"] for one in channel["subscribers"]) == ["bob", "ses_x"]
    assert all(one["endpoint_id"].startswith("ep_") for one in channel["subscribers"])
    body = {"channel": "team/ops", "payload": "hello"}
    sent = (await post(rig, "root", "/v1/messages", body, 202))["message"]
    assert sorted(one["mailbox"] for one in sent["deliveries"]) == ["bob", "ses_x"]
    for _ in range(2):
        channel = (await post_to(rig, "bob", "DELETE", f"{path}/bob"))["channel"]
        assert [one["mailbox"] for one in channel["subscribers"]] == ["ses_x"]


async def post_to(rig: Rig, who: str, method: str, path: str) -> dict[str, Any]:
    """A call that must succeed: its JSON."""
    answer = await ask(rig, who, method, path, {} if method == "PUT" else None)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize(
    ("path", "field"),
    [("Ops/subscribers/bob", "name"), ("ops/subscribers/b%20b", "subscriber"), ("ops/subscribers/%00", "subscriber")],
)
async def test_a_bad_subscription_is_refused_by_its_field(rig: Rig, path: str, field: str) -> None:
    for method in ("PUT", "DELETE"):
        answer = await ask(rig, "root", method, f"/v1/channels/{path}", {} if method == "PUT" else None)
        assert refusal(answer, 400, "invalid")["field"] == field


async def test_nobody_subscribes_another(rig: Rig) -> None:
    answer = await ask(rig, "eve", "PUT", "/v1/channels/ops/subscribers/bob", {})
    refusal(answer, 403, "forbidden")
    answer = await ask(rig, "root", "PUT", f"/v1/channels/ops/subscribers/{NONE}", {})
    refusal(answer, 404, "not_found")


async def test_who_tells_who_works_here(rig: Rig) -> None:
    made = await attach(rig, "bob", repositories=["org/app"], queues=["inbox"], channels=["ops"])
    todo = await rig.claimed("bob", title="mend the door")
    found = {one["name"]: one for one in (await get(rig, "ann", "/v1/who"))["who"]}
    bob = found["bob"]
    assert (bob["endpoint_id"], bob["carrier"], bob["live"]) == (made["id"], "inbox", True)
    assert (bob["repositories"], bob["queues"], bob["channels"]) == (["org/app"], ["inbox"], ["ops"])
    assert (bob["todo_id"], bob["todo_title"]) == (todo["id"], "mend the door")
    assert bob["last_seen"]
