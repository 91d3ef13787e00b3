"""How things stand over HTTP: health, readiness, queues, events, traces, faults, and claims that wait."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from postroom.errors import RateLimited, Unavailable
from tests.doors.http_rig import Rig, Wire, ask, get, post, refusal, until


async def test_health_and_readiness(rig: Rig) -> None:
    assert (await get(rig, None, "/health"))["status"] == "ok"
    assert await get(rig, None, "/ready") == {"status": "ready"}
    rig.reason = "the database is away"
    assert (await get(rig, None, "/health"))["status"] == "ok"
    for path in ("/ready", "/v1/todos"):
        answer = await ask(rig, "ann", "GET", path)
        assert "the database is away" in refusal(answer, 503, "unavailable")["message"]
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_fault_is_told_to_the_log_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("the secret is hunter2")

    monkeypatch.setattr(rig.office.todos, "page", broken)
    with caplog.at_level(logging.ERROR, "postroom.http"):
        answer = await ask(rig, "ann", "GET", "/v1/todos")
    refusal(answer, 500, "internal")
    assert "hunter2" not in answer.text
    assert "hunter2" in caplog.text


@pytest.mark.parametrize(("error", "status"), [(Unavailable("the disk is full"), 503), (RateLimited("slower"), 429)])
async def test_what_passes_says_when_to_come_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(rig.office.todos, "create", refused)
    answer = await ask(rig, "ann", "POST", "/v1/todos", {"queue": "inbox", "title": "x"})
    assert answer.status_code == status
    assert int(answer.headers["retry-after"]) >= 1


async def test_answers_are_kept_by_no_cache(rig: Rig) -> None:
    answer = await ask(rig, "ann", "GET", "/v1/todos")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_queue_is_set_bit_by_bit_and_null_is_the_default_again(rig: Rig) -> None:
    first = await ask(rig, "root", "PUT", "/v1/queues/team%2Freview", {"lease_s": 1800, "max_in_flight": 4})
    assert first.json()["queue"]["lease_s"] == 1800
    second = (await ask(rig, "root", "PUT", "/v1/queues/team/review", {"paused": True, "backoff_s": 1.5})).json()[
        "queue"
    ]
    assert (second["name"], second["lease_s"], second["max_in_flight"]) == ("team/review", 1800, 4)
    assert (second["paused"], second["backoff_s"]) == (True, 1.5)
    cleared = (await ask(rig, "root", "PUT", "/v1/queues/team/review", {"paused": None, "lease_s": None})).json()[
        "queue"
    ]
    assert (cleared["paused"], cleared["lease_s"], cleared["max_in_flight"]) == (False, None, 4)
    await rig.create("team/review")
    (queue,) = (await get(rig, "ann", "/v1/queues"))["queues"]
    assert (queue["name"], queue["pending"], queue["claimed"], queue["max_in_flight"]) == ("team/review", 1, 0, 4)
    assert queue["oldest_pending_age_s"] >= 0


async def test_status_is_asked_for_the_caller(rig: Rig) -> None:
    assert (await get(rig, "ann", "/v1/status"))["asked_by"] == "ann"


# S27
async def test_an_event_is_listed_read_and_traced(rig: Rig) -> None:
    body = b'{"kind": "build",  "title": "red"}'
    headers = {"authorization": "Bearer a-token-of-the-ci-server", "idempotency-key": "d1"}
    told = await post(rig, None, "/hooks/ci", body, 202, **headers)
    path = f"/v1/events/{told['event_id']}"
    (listed,) = (await get(rig, "ann", "/v1/events?source=ci&kind=build&state=routed"))["events"]
    assert listed["id"] == told["event_id"]
    assert listed["todos"] == told["todos"]
    assert "body" not in listed
    event = (await get(rig, "ann", path))["event"]
    assert event["body"] == {"kind": "build", "title": "red"}
    assert "a-token-of-the-ci-server" not in json.dumps(event)
    raw = await ask(rig, "ann", "GET", f"{path}/raw")
    assert raw.content == body
    assert raw.headers["content-type"] == "application/octet-stream"
    for id_ in (told["event_id"], told["todos"][0]["todo_id"]):
        steps = [step["what"] for step in (await get(rig, "ann", f"/v1/trace/{id_}"))["steps"]]
        assert steps[:3] == ["received", "verified", "routed"]
    assert (await get(rig, "ann", "/v1/events?source=other")) == {"events": [], "next_cursor": None}
    # Another's queue: neither the event nor what it led to.
    for place in (path, f"{path}/raw", f"/v1/trace/{told['event_id']}"):
        refusal(await ask(rig, "eve", "GET", place), 404, "not_found")
    assert (await get(rig, "eve", "/v1/events"))["events"] == []


async def test_a_message_is_traced_by_whom_it_concerns(rig: Rig) -> None:
    sent = await post(rig, "ann", "/v1/messages", {"to": "bob", "payload": "the words themselves"}, 202)
    told = await get(rig, "ann", f"/v1/trace/{sent['id']}")
    assert [(step["what"], step["detail"]) for step in told["steps"]] == [
        ("admitted", "chat from ann to bob"),
        ("handed off", "to bob by inbox"),
    ]
    assert "the words themselves" not in json.dumps(told)
    refusal(await ask(rig, "eve", "GET", f"/v1/trace/{sent['id']}"), 404, "not_found")


# S18
async def test_a_waiting_claim_is_served_when_work_comes(rig: Rig) -> None:
    waiting = asyncio.create_task(post(rig, "ann", "/v1/todos/claim", {"queues": ["inbox"], "wait_s": 30}))
    await until(lambda: rig.office.waiting.waiting == 1)
    made = await rig.create()
    async with asyncio.timeout(10):
        assert [todo["id"] for todo in (await waiting)["todos"]] == [made["id"]]


async def test_a_claim_that_waited_for_nothing_is_empty(rig: Rig) -> None:
    assert await post(rig, "ann", "/v1/todos/claim", {"wait_s": 0.01}) == {"todos": []}


# S18
async def test_nothing_is_claimed_for_one_that_has_gone(rig: Rig) -> None:
    headers = {"host": "localhost", "authorization": f"Bearer {rig.secrets['ann']}"}
    wire = Wire(rig.app, "POST", "/v1/todos/claim", headers)
    wire.body(b'{"queues": ["inbox"], "wait_s": 50}')
    asking = asyncio.create_task(wire.run())
    await until(lambda: rig.office.waiting.waiting == 1)
    wire.leave()
    async with asyncio.timeout(10):
        await asking
    assert wire.sent == []
    assert rig.office.waiting.waiting == 0
    made = await rig.create()
    kept = (await get(rig, "root", f"/v1/todos/{made['id']}"))["todo"]
    assert (kept["state"], kept["attempt"]) == ("pending", 0)


# S18, S24
async def test_what_was_claimed_for_one_that_left_at_that_moment_goes_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await rig.create()
    headers = {"host": "localhost", "authorization": f"Bearer {rig.secrets['ann']}"}
    wire = Wire(rig.app, "POST", "/v1/todos/claim", headers)
    wire.body(b'{"queues": ["inbox"], "wait_s": 50}')
    claim = rig.office.waiting.claim_next

    async def served_as_it_leaves(*given: Any) -> Any:
        todos = await claim(*given)
        asked = wire.asked
        wire.leave()
        await until(lambda: wire.asked >= asked)
        return todos

    monkeypatch.setattr(rig.office.waiting, "claim_next", served_as_it_leaves)
    async with asyncio.timeout(10):
        await wire.run()
    todo = await rig.office.todos.get((await rig.office.tokens.authenticate(rig.secrets["root"])), made["id"])
    if wire.sent:
        assert (todo.state, wire.status) == ("claimed", 200)
    else:
        assert (todo.state, todo.attempt) == ("pending", 0)
