"""Todos over HTTP: created, claimed, ended and steered, with the answers that a client goes by."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.http_rig import Rig, ask, get, post, refusal


# S2, S3
async def test_a_key_that_lives_gives_its_todo_again(rig: Rig) -> None:
    body = {"queue": "inbox", "title": "once", "idempotency_key": "k", "payload": {"n": 1}}
    first = await post(rig, "ann", "/v1/todos", body, 201)
    again = await post(rig, "ann", "/v1/todos", body, 200)
    assert first["created"] is True
    assert again["created"] is False
    assert again["todo"]["id"] == first["todo"]["id"]
    assert again["todo"]["payload"] == {"n": 1}
    assert first["todo"]["created_by"] == "ann"
    assert first["todo"]["source"] == "api"


# S13
async def test_every_field_of_a_new_todo_is_kept(rig: Rig) -> None:
    todo = await rig.create(
        "review/main",
        "look at this",
        kind="pull_request",
        payload=[1, None, "ü"],
        priority=-7,
        assignee="bob/left",
        idempotency_key="pr-1",
        max_attempts=9,
        available_at="2090-01-02T03:04:05.678Z",
    )
    kept = (await get(rig, "root", f"/v1/todos/{todo['id']}"))["todo"]
    assert kept == {**todo, "history": []}
    assert (kept["priority"], kept["assignee"], kept["max_attempts"]) == (-7, "bob/left", 9)
    assert kept["available_at"] == "2090-01-02T03:04:05.678Z"
    assert kept["payload"] == [1, None, "ü"]


# S4, S7, S8, S25
async def test_a_todo_is_claimed_kept_alive_and_completed(rig: Rig) -> None:
    made = await rig.create(payload={"a": 1})
    claimed = (await post(rig, "ann", "/v1/todos/claim", {"queues": ["inbox"], "worker": "w1", "ttl_s": 60}))["todos"]
    assert [todo["id"] for todo in claimed] == [made["id"]]
    todo = claimed[0]
    assert (todo["state"], todo["owner"], todo["attempt"], todo["payload"]) == ("claimed", "ann/w1", 1, {"a": 1})
    beat = await post(rig, "ann", f"/v1/todos/{todo['id']}/heartbeat", {"lease_id": todo["lease_id"], "ttl_s": 900})
    assert beat["todo"]["lease_expires_at"] > todo["lease_expires_at"]
    done = await post(
        rig, "ann", f"/v1/todos/{todo['id']}/complete", {"lease_id": todo["lease_id"], "result": {"ok": True}}
    )
    assert (done["todo"]["state"], done["todo"]["result"], done["replayed"]) == ("done", {"ok": True}, False)
    assert await post(rig, "ann", "/v1/todos/claim", {}) == {"todos": []}


# S22
@pytest.mark.parametrize(
    ("verb", "more"),
    [("complete", {"result": 1}), ("fail", {"error": "no"}), ("release", {"note": "not mine"})],
)
async def test_the_same_ending_again_is_replayed(rig: Rig, verb: str, more: dict[str, Any]) -> None:
    todo = await rig.claimed()
    body = {"lease_id": todo["lease_id"], **more}
    first = await post(rig, "ann", f"/v1/todos/{todo['id']}/{verb}", body)
    again = await post(rig, "ann", f"/v1/todos/{todo['id']}/{verb}", body)
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert again["todo"] == first["todo"]
    other = "release" if verb != "release" else "complete"
    answer = await ask(rig, "ann", "POST", f"/v1/todos/{todo['id']}/{other}", {"lease_id": todo["lease_id"]})
    refusal(answer, 409, "conflict")


# S12, S22
async def test_a_stale_lease_is_a_conflict_that_tells_where_it_stands(rig: Rig) -> None:
    todo = await rig.claimed()
    await post(rig, "ann", f"/v1/todos/{todo['id']}/release", {"lease_id": todo["lease_id"]})
    newer = (await post(rig, "ann", f"/v1/todos/{todo['id']}/claim", {}))["todo"]
    for verb in ("complete", "fail", "heartbeat"):
        answer = await ask(rig, "ann", "POST", f"/v1/todos/{todo['id']}/{verb}", {"lease_id": todo["lease_id"]})
        error = refusal(answer, 409, "conflict")
        assert error["state"] == "claimed"
        assert error["owner"] == "ann"
        assert error["lease_expires_at"] == newer["lease_expires_at"]


# S9
async def test_a_failed_attempt_is_parked_and_a_refused_one_is_dead(rig: Rig) -> None:
    todo = await rig.claimed()
    path = f"/v1/todos/{todo['id']}/fail"
    failed = await post(rig, "ann", path, {"lease_id": todo["lease_id"], "error": "try later", "retry_in_s": 3600})
    assert failed["todo"]["state"] == "failed"
    assert failed["todo"]["next_retry_at"] is not None
    assert "history" not in failed["todo"]
    whole = (await get(rig, "ann", f"/v1/todos/{todo['id']}"))["todo"]
    assert [(entry["outcome"], entry["note"]) for entry in whole["history"]] == [("failed", "try later")]
    other = await rig.claimed()
    dead = await post(rig, "ann", f"/v1/todos/{other['id']}/fail", {"lease_id": other["lease_id"], "retry": False})
    assert (dead["todo"]["next_retry_at"], dead["todo"]["reason"]) == (None, "refused")
    assert [todo["id"] for todo in (await get(rig, "ann", "/v1/todos?state=parked"))["todos"]] == [todo["id"]]
    assert [todo["id"] for todo in (await get(rig, "ann", "/v1/todos?state=dead"))["todos"]] == [other["id"]]


# S8, S9, S24
async def test_the_words_of_an_ending_are_cleaned_and_never_refused(rig: Rig) -> None:
    todo = await rig.claimed()
    body = rb'{"lease_id": "%s", "error": "a\u0000b\ud800c", "result": {"x\u0000": "\udfff"}}'
    answer = await post(rig, "ann", f"/v1/todos/{todo['id']}/fail", body % todo["lease_id"].encode())
    assert answer["todo"]["error"] == "a\ufffdb\ufffdc"
    assert answer["todo"]["result"] == {"x\ufffd": "\ufffd"}
    released = await rig.claimed()
    body = rb'{"lease_id": "%s", "note": "\u0000"}' % released["lease_id"].encode()
    await post(rig, "ann", f"/v1/todos/{released['id']}/release", body)
    again = (await post(rig, "bob", f"/v1/todos/{released['id']}/claim", {}))["todo"]
    assert [(entry["outcome"], entry["note"]) for entry in again["history"]] == [("released", "\ufffd")]


async def test_many_are_created_together_each_with_its_own_answer(rig: Rig) -> None:
    todos = [{"queue": "lab/a", "title": "one"}, {"queue": "inbox", "title": "two"}, {"queue": "lab/b", "title": " "}]
    results = (await post(rig, "eve", "/v1/todos/batch", {"todos": todos}))["results"]
    assert results[0]["created"] is True
    assert (results[1]["error"]["code"], results[1]["error"]["field"]) == ("not_found", "todos[1].queue")
    assert (results[2]["error"]["code"], results[2]["error"]["field"]) == ("invalid", "todos[2].title")


async def test_endings_go_together_and_claim_besides(rig: Rig) -> None:
    one, two = await rig.claimed(), await rig.claimed()
    fresh = await rig.create(title="next")
    answer = await post(
        rig,
        "ann",
        "/v1/todos/outcomes",
        {
            "items": [
                {"id": one["id"], "verb": "complete", "lease_id": one["lease_id"], "result": 1},
                {"id": two["id"], "verb": "fail", "lease_id": "ls_other"},
                {"id": "ev_nothing", "verb": "release", "lease_id": "ls_other"},
            ],
            "claim": {"queues": ["inbox"], "limit": 5, "worker": "w"},
        },
    )
    first, second, third = answer["results"]
    assert first == {"id": one["id"], "state": "done", "replayed": False}
    assert (second["id"], second["error"]["code"]) == (two["id"], "conflict")
    assert third["error"]["code"] == "not_found"
    assert [(todo["id"], todo["owner"]) for todo in answer["todos"]] == [(fresh["id"], "ann/w")]
    assert answer["todos"][0]["lease_id"].startswith("ls_")
    assert await post(rig, "ann", "/v1/todos/outcomes", {"items": []}) == {"results": [], "todos": []}


async def test_a_request_key_makes_each_steering_verb_safe_to_repeat(rig: Rig) -> None:
    body = {"queue": "inbox", "title": "keyed"}
    key = {"idempotency-key": "create-1"}
    first = await post(rig, "ann", "/v1/todos", body, 201, **key)
    again = await post(rig, "ann", "/v1/todos", body, 200, **key)
    assert again == {**first, "replayed": True}
    other = await ask(rig, "ann", "POST", "/v1/todos", {**body, "title": "other"}, **key)
    assert refusal(other, 409, "conflict")["field"] == "request_id"
    # Another's key is another key.
    assert (await post(rig, "bob", "/v1/todos", body, 201, **key))["todo"]["id"] != first["todo"]["id"]

    batch = {"todos": [body, body]}
    made = (await post(rig, "ann", "/v1/todos/batch", batch, 200, **{"idempotency-key": "b"}))["results"]
    repeated = (await post(rig, "ann", "/v1/todos/batch", batch, 200, **{"idempotency-key": "b"}))["results"]
    assert [one["todo"]["id"] for one in repeated] == [one["todo"]["id"] for one in made]

    path = f"/v1/todos/{first['todo']['id']}"
    cancelled = await post(rig, "ann", f"{path}/cancel", {"reason": "no"}, 200, **{"idempotency-key": "c"})
    assert await post(rig, "ann", f"{path}/cancel", {"reason": "no"}, 200, **{"idempotency-key": "c"}) == cancelled
    refusal(await ask(rig, "ann", "POST", f"{path}/cancel", {"reason": "no"}), 409, "conflict")
    await post(rig, "ann", f"{path}/retry", b"", 200, **{"idempotency-key": "r"})
    await post(rig, "ann", f"{path}/retry", {}, 200, **{"idempotency-key": "r"})
    refusal(await ask(rig, "ann", "POST", f"{path}/retry"), 409, "conflict")
    for _ in range(2):
        changed = await ask(rig, "ann", "PATCH", path, {"title": "new"}, **{"idempotency-key": "u"})
        assert changed.json()["todo"]["title"] == "new"


async def test_an_update_changes_what_is_given_and_null_clears(rig: Rig) -> None:
    todo = await rig.create(
        payload={"a": 1}, assignee="bob", priority=5, available_at="2090-01-01T00:00:00.000Z", by="ann"
    )
    path = f"/v1/todos/{todo['id']}"
    kept = {name: todo[name] for name in ("title", "payload", "assignee", "priority", "available_at")}

    async def patched(body: dict[str, Any]) -> dict[str, Any]:
        answer = await ask(rig, "ann", "PATCH", path, body)
        assert answer.status_code == 200, answer.text
        return {name: answer.json()["todo"][name] for name in kept}

    assert await patched({}) == kept
    kept["title"] = "other"
    assert await patched({"title": "other"}) == kept
    kept |= {"assignee": None, "available_at": None}
    assert await patched({"assignee": None, "available_at": None}) == kept
    kept |= {"payload": None, "priority": 0}
    assert await patched({"payload": None, "priority": 0}) == kept
    for field in ("title", "priority"):
        error = refusal(await ask(rig, "ann", "PATCH", path, {field: None}), 400, "invalid")
        assert error["field"] == field


# S26
async def test_only_the_creator_and_admins_steer(rig: Rig) -> None:
    todo = await rig.create(by="ann")
    path = f"/v1/todos/{todo['id']}"
    refusal(await ask(rig, "bob", "POST", f"{path}/cancel"), 403, "forbidden")
    refusal(await ask(rig, "bob", "PATCH", path, {"title": "mine"}), 403, "forbidden")
    await post(rig, "root", f"{path}/cancel", {})
    refusal(await ask(rig, "bob", "POST", f"{path}/retry"), 403, "forbidden")
    assert (await post(rig, "ann", f"{path}/retry", {}))["todo"]["state"] == "pending"


async def test_pages_are_newest_first_without_payloads(rig: Rig) -> None:
    made = [(await rig.create(title=f"t{n}", payload={"n": n}))["id"] for n in range(5)]
    page = await get(rig, "ann", "/v1/todos?limit=2&queue=inbox")
    assert [todo["id"] for todo in page["todos"]] == made[:2:-1]
    assert "payload" not in page["todos"][0]
    assert page["todos"][0]["payload_bytes"] == len('{"n":4}')
    seen = [todo["id"] for todo in page["todos"]]
    while page["next_cursor"]:
        page = await get(rig, "ann", f"/v1/todos?limit=2&cursor={page['next_cursor']}")
        seen += [todo["id"] for todo in page["todos"]]
    assert seen == made[::-1]
    assert len((await get(rig, "ann", "/v1/todos?limit=5000"))["todos"]) == 5


async def test_a_claim_key_gives_the_same_claim_again(rig: Rig) -> None:
    await rig.create()
    await rig.create()
    body = {"claim_key": "c1", "limit": 2}
    first = await post(rig, "ann", "/v1/todos/claim", body)
    assert len(first["todos"]) == 2
    again = await post(rig, "ann", "/v1/todos/claim", body)
    assert {todo["lease_id"] for todo in again["todos"]} == {todo["lease_id"] for todo in first["todos"]}
    assert len(again["todos"]) == 2
