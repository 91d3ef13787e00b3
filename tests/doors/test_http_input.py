"""Bad input over HTTP: refused with its field, never a fault of ours, and nothing is stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from postroom.doors.http import body as bodies
from postroom.doors.http.route import ONE, SMALL
from tests.doors.http_rig import HOST, Rig, Wire, ask, get, pieces, post, refusal

GOOD = {"queue": "inbox", "title": "work"}
TODO = "td_00000000-0000-7000-8000-000000000000"
EVENT = "ev_00000000-0000-7000-8000-000000000000"


def text(**more: Any) -> bytes:
    """A new todo's body with these fields besides."""
    return json.dumps({**GOOD, **more}).encode()


def raw(field: str) -> bytes:
    """A new todo's body with this JSON text in it."""
    return f'{{"queue":"inbox","title":"work",{field}}}'.encode()


CREATES: list[tuple[str, bytes, str]] = [
    ("empty", b"", "queue"),
    ("no JSON", b"{", "body"),
    ("no object", b"[]", "body"),
    ("null", b"null", "body"),
    ("text", b'"x"', "body"),
    ("not UTF-8", b'{"queue":"\xff"}', "body"),
    ("byte order mark of UTF-16", b"\xff\xfe{\x00}\x00", "body"),
    ("two values", b"{}{}", "body"),
    ("missing title", b'{"queue":"inbox"}', "title"),
    ("unknown field", text(colour="red"), "colour"),
    ("key twice", raw('"priority":1,"priority":2'), "priority"),
    ("key twice within", raw('"payload":{"a":[{"b":1,"b":2}]}'), "b"),
    ("NaN", raw('"payload":NaN'), "body"),
    ("Infinity", raw('"payload":[-Infinity]'), "body"),
    ("float beyond", raw('"payload":1e999'), "body"),
    ("huge integer", raw('"payload":1' + "0" * 500), "body"),
    ("huge priority", raw('"priority":1' + "0" * 300), "priority"),
    ("huge delay", raw('"delay_s":1' + "0" * 399), "delay_s"),
    ("large delay", raw('"delay_s":1e300'), "delay_s"),
    ("negative delay", text(delay_s=-1), "delay_s"),
    ("too deep", raw('"payload":' + "[" * 65 + "]" * 65), "body"),
    ("far too deep", b"[" * 60_000, "body"),
    ("NUL in title", text(title="a\x00b"), "title"),
    ("surrogate in title", raw('"kind":"\\ud800"'), "kind"),
    ("surrogate in payload", raw('"payload":{"a":["\\udfff"]}'), "payload.a[0]"),
    ("NUL in payload's key", raw('"payload":{"\\u0000":1}'), "payload"),
    ("surrogate as a field", b'{"\\ud800":1}', "body"),
    ("blank title", text(title=" \n "), "title"),
    ("number for text", text(title=5), "title"),
    ("text for number", text(priority="5"), "priority"),
    ("float for whole number", text(priority=1.5), "priority"),
    ("true for number", text(priority=True), "priority"),
    ("true for seconds", text(delay_s=True), "delay_s"),
    ("priority over", text(priority=101), "priority"),
    ("attempts under", text(max_attempts=0), "max_attempts"),
    ("attempts over", text(max_attempts=101), "max_attempts"),
    ("queue upper case", text(queue="Inbox"), "queue"),
    ("queue of another shape", text(queue="../x"), "queue"),
    ("queue with a line end", text(queue="inbox\n"), "queue"),
    ("queue too long", text(queue="q" * 129), "queue"),
    ("kind of another shape", text(kind="a b"), "kind"),
    ("assignee with two slashes", text(assignee="a/b/c"), "assignee"),
    ("empty key", text(idempotency_key=""), "idempotency_key"),
    ("key with NUL", text(idempotency_key="\x00"), "idempotency_key"),
    ("key too long", text(idempotency_key="k" * 257), "idempotency_key"),
    ("no time", text(available_at="tomorrow"), "available_at"),
    ("time without zone", text(available_at="2090-01-01T00:00:00"), "available_at"),
    ("time before all", text(available_at="0001-01-01T00:00:00+23:59"), "available_at"),
    ("time as number", text(available_at=1), "available_at"),
    ("delay and time", text(delay_s=1, available_at="2090-01-01T00:00:00Z"), "available_at"),
]


@pytest.mark.parametrize(("body", "field"), [case[1:] for case in CREATES], ids=[case[0] for case in CREATES])
async def test_a_bad_todo_is_refused_by_its_field(rig: Rig, body: bytes, field: str) -> None:
    error = refusal(await ask(rig, "ann", "POST", "/v1/todos", body), 400, "invalid")
    assert error["field"] == field
    assert (await get(rig, "root", "/v1/todos"))["todos"] == []


async def test_what_is_just_within_bounds_is_taken(rig: Rig) -> None:
    deep = "[" * 62 + "]" * 62
    body = raw(
        f'"payload":{deep},"priority":-100,"max_attempts":100,"delay_s":0,"kind":null,"idempotency_key":"{"k" * 256}"'
    )
    assert (await post(rig, "ann", "/v1/todos", body, 201))["todo"]["priority"] == -100
    title = "ü" * 500
    assert (await post(rig, "ann", "/v1/todos", text(title=title), 201))["todo"]["title"] == title
    assert (await post(rig, "ann", "/v1/todos", text(), 201, **{"content-type": "text/plain"}))["created"] is True


async def test_a_bad_item_is_named_by_its_place(rig: Rig) -> None:
    for item, field in (
        ({**GOOD, "priority": "x"}, "todos[3].priority"),
        ({**GOOD, "colour": 1}, "todos[3].colour"),
        ({**GOOD, "delay_s": 1e300}, "todos[3].delay_s"),
        ({**GOOD, "available_at": "x"}, "todos[3].available_at"),
        (5, "todos[3]"),
    ):
        answer = await ask(rig, "ann", "POST", "/v1/todos/batch", {"todos": [GOOD, GOOD, GOOD, item]})
        assert refusal(answer, 400, "invalid")["field"] == field
    refusal(await ask(rig, "ann", "POST", "/v1/todos/batch", {"todos": []}), 400, "invalid")
    refusal(await ask(rig, "ann", "POST", "/v1/todos/batch", {"todos": [GOOD] * 1001}), 400, "invalid")
    assert (await get(rig, "root", "/v1/todos"))["todos"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": -1}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": 10**50}, "limit"),
        ({"ttl_s": 0.5}, "ttl_s"),
        ({"ttl_s": 86401}, "ttl_s"),
        ({"wait_s": -1}, "wait_s"),
        ({"wait_s": 51}, "wait_s"),
        ({"wait_s": "5"}, "wait_s"),
        ({"queues": []}, "queues"),
        ({"queues": "inbox"}, "queues"),
        ({"queues": ["inbox", 5]}, "queues[1]"),
        ({"queues": ["a"] * 101}, "queues"),
        ({"worker": "a/b"}, "worker"),
        ({"worker": ""}, "worker"),
        ({"claim_key": "\x00"}, "claim_key"),
        ({"who": "me"}, "who"),
    ],
)
async def test_a_bad_claim_is_refused_by_its_field(rig: Rig, body: dict[str, Any], field: str) -> None:
    todo = await rig.create()
    assert refusal(await ask(rig, "ann", "POST", "/v1/todos/claim", body), 400, "invalid")["field"] == field
    assert (await get(rig, "root", f"/v1/todos/{todo['id']}"))["todo"]["state"] == "pending"


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("complete", {}, "lease_id"),
        ("complete", {"lease_id": None}, "lease_id"),
        ("complete", {"lease_id": ""}, "lease_id"),
        ("complete", {"lease_id": "ls_\x00"}, "lease_id"),
        ("complete", b'{"lease_id":"\\ud800"}', "lease_id"),
        ("complete", {"lease_id": "l" * 129}, "lease_id"),
        ("complete", {"lease_id": "ls_1", "note": "x"}, "note"),
        ("heartbeat", {"lease_id": "ls_1", "ttl_s": 0}, "ttl_s"),
        ("fail", {"lease_id": "ls_1", "retry": None}, "retry"),
        ("fail", {"lease_id": "ls_1", "retry": "yes"}, "retry"),
        ("fail", {"lease_id": "ls_1", "retry_in_s": -1}, "retry_in_s"),
        ("fail", {"lease_id": "ls_1", "error": {"a": 1}}, "error"),
        ("release", {"lease_id": "ls_1", "delay_s": 1e18}, "delay_s"),
    ],
)
async def test_a_bad_ending_is_refused_by_its_field(rig: Rig, verb: str, body: Any, field: str) -> None:
    todo = await rig.claimed()
    answer = await ask(rig, "ann", "POST", f"/v1/todos/{todo['id']}/{verb}", body)
    assert refusal(answer, 400, "invalid")["field"] == field
    assert (await get(rig, "root", f"/v1/todos/{todo['id']}"))["todo"]["state"] == "claimed"


async def test_bad_outcomes_are_named_by_their_place(rig: Rig) -> None:
    good = {"id": TODO, "verb": "complete", "lease_id": "ls_1"}
    for items, field in (
        ([good, {**good, "verb": "finish"}], "items[1].verb"),
        ([good, {**good, "retry_in_s": 1e300}], "items[1].retry_in_s"),
        ([{**good, "colour": 1}], "items[0].colour"),
        ([good] * 201, "items"),
    ):
        answer = await ask(rig, "ann", "POST", "/v1/todos/outcomes", {"items": items})
        assert refusal(answer, 400, "invalid")["field"] == field
    nested = await ask(rig, "ann", "POST", "/v1/todos/outcomes", {"items": [], "claim": {"limit": "x"}})
    assert refusal(nested, 400, "invalid")["field"] == "claim.limit"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=-1", "limit"),
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=1.0", "limit"),
        ("limit=", "limit"),
        ("limit=-99999999999999999999999", "limit"),
        ("limit=" + "9" * 500, "limit"),
        ("limit=1&limit=2", "limit"),
        ("cursor=c", "cursor"),
        ("cursor=td_1", "cursor"),
        ("cursor=cffffffffffffffffffffffff", "cursor"),
        ("cursor=%00", "cursor"),
        ("state=open", "state"),
        ("state=", "state"),
        ("queue=A", "queue"),
        ("assignee=a/b/c", "assignee"),
        ("colour=red", "colour"),
        ("%FF=1", "query"),
        ("queue=%FF", "query"),
        ("&".join(f"a{n}=1" for n in range(60)), "query"),
    ],
)
async def test_a_bad_query_is_refused_by_its_name(rig: Rig, query: str, field: str) -> None:
    assert refusal(await ask(rig, "ann", "GET", f"/v1/todos?{query}"), 400, "invalid")["field"] == field


async def test_a_limit_over_the_most_is_the_most(rig: Rig) -> None:
    await post(rig, "ann", "/v1/todos/batch", {"todos": [GOOD] * 201})
    for limit in (200, 201, 5000, 10**30):
        assert len((await get(rig, "ann", f"/v1/todos?limit={limit}"))["todos"]) == 200
    assert len((await get(rig, "ann", "/v1/todos"))["todos"]) == 50


async def test_queries_are_refused_where_none_is_taken_and_text_is_checked(rig: Rig) -> None:
    for method, path in (("GET", "/v1/queues"), ("GET", f"/v1/todos/{TODO}"), ("POST", "/v1/todos/claim")):
        assert refusal(await ask(rig, "ann", method, f"{path}?a=1"), 400, "invalid")["field"] == "query"
    assert refusal(await ask(rig, "ann", "GET", "/v1/events?source=%00"), 400, "invalid")["field"] == "source"
    assert refusal(await ask(rig, "ann", "GET", "/v1/events?state=x"), 400, "invalid")["field"] == "state"
    assert (await ask(rig, None, "GET", "/health?now=1")).status_code == 200


# S12
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/todos/{}", None),
        ("PATCH", "/v1/todos/{}", {"title": "x"}),
        ("POST", "/v1/todos/{}/claim", {}),
        ("POST", "/v1/todos/{}/heartbeat", {"lease_id": "ls_1"}),
        ("POST", "/v1/todos/{}/complete", {"lease_id": "ls_1"}),
        ("POST", "/v1/todos/{}/fail", {"lease_id": "ls_1"}),
        ("POST", "/v1/todos/{}/release", {"lease_id": "ls_1"}),
        ("POST", "/v1/todos/{}/retry", {}),
        ("POST", "/v1/todos/{}/cancel", {}),
    ],
)
@pytest.mark.parametrize("id_", [TODO, EVENT, TODO.upper(), "td_1", "1", "%00", "%ED%A0%80", "..", "a" * 3000])
async def test_an_id_of_nothing_is_not_found(rig: Rig, method: str, path: str, body: Any, id_: str) -> None:
    # A client makes `..` shorter by itself; a server may still be sent it.
    wire = Wire(rig.app, method, path.format(id_).replace("%00", "\x00").replace("%ED%A0%80", "\ufffd"), {})
    wire.scope["headers"] = [(b"host", b"localhost"), (b"authorization", f"Bearer {rig.secrets['ann']}".encode())]
    wire.body(json.dumps(body).encode() if body is not None else b"")
    await wire.run()
    assert wire.status == 404, wire.sent
    assert wire.answer["error"]["code"] == "not_found"


async def test_other_things_that_are_not_there(rig: Rig) -> None:
    for path in (
        f"/v1/events/{EVENT}",
        f"/v1/events/{TODO}",
        f"/v1/events/{EVENT}/raw",
        f"/v1/trace/{TODO}",
        "/v1/trace/x",
        "/v1/nothing",
        "/v1/",
        "/v1/todos/",
        "/v1/todos/x/y/z",
    ):
        refusal(await ask(rig, "ann", "GET", path), 404, "not_found")
    for path in ("/", "/v1", "/v2/todos", "/mcp"):
        refusal(await ask(rig, None, "GET", path), 404, "not_found")
    for id_ in ("tk_00000000-0000-7000-8000-000000000000", "nobody", "a%20b", "%00"):
        refusal(await ask(rig, "root", "POST", f"/v1/tokens/{id_}/revoke"), 404, "not_found")


async def test_a_wrong_method_names_the_right_ones(rig: Rig) -> None:
    for method, path, allowed in (
        ("PUT", "/v1/todos", "GET, HEAD, POST"),
        ("GET", "/v1/todos/claim", "POST"),
        ("DELETE", f"/v1/todos/{TODO}", "GET, HEAD, PATCH"),
        ("POST", "/health", "GET, HEAD"),
        ("OPTIONS", "/v1/queues", "GET, HEAD"),
    ):
        answer = await ask(rig, "ann", method, path)
        refusal(answer, 405, "invalid")
        assert answer.headers["allow"] == allowed


async def test_head_has_the_headers_alone(rig: Rig) -> None:
    answer = await ask(rig, "ann", "HEAD", "/v1/todos")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) > 2


async def test_a_body_over_its_size_is_refused_before_it_is_held(rig: Rig) -> None:
    told = await ask(rig, "ann", "POST", "/v1/todos/claim", b" " * (SMALL + 1))
    assert refusal(told, 413, "too_large")["field"] == "body"
    async with rig.client("ann") as client:
        streamed = await client.post("/v1/todos", content=pieces(*[b" " * 65536] * 200))
    refusal(streamed, 413, "too_large")

    wire = Wire(rig.app, "POST", "/v1/todos", {"host": "localhost", "authorization": f"Bearer {rig.secrets['ann']}"})
    for _ in range(100):
        wire.body(b" " * 65536, more=True)
    await wire.run()
    assert wire.status == 413
    assert wire.asked <= ONE // 65536 + 1

    lying = Wire(
        rig.app,
        "POST",
        "/v1/todos",
        {"host": "localhost", "authorization": f"Bearer {rig.secrets['ann']}", "content-length": "9" * 30},
    )
    await lying.run()
    assert (lying.status, lying.asked) == (413, 0)


async def test_a_payload_over_1_mib_is_too_large_and_one_below_is_kept(rig: Rig) -> None:
    error = refusal(await ask(rig, "ann", "POST", "/v1/todos", text(payload="x" * 1024 * 1024)), 413, "too_large")
    assert error["field"] == "payload"
    refusal(await ask(rig, "ann", "POST", "/v1/todos", text(title="t" * 501)), 413, "too_large")
    kept = await rig.create(payload="x" * (1024 * 1024 - 2))
    assert kept["payload_bytes"] == 1024 * 1024
    # A body over 1 MiB is parsed beside the loop, and is as strict there.
    big = raw('"payload":"' + "x" * (1024 * 1024) + '","payload":1')
    assert refusal(await ask(rig, "ann", "POST", "/v1/todos", big), 400, "invalid")["field"] == "payload"


async def test_an_encoded_body_is_refused(rig: Rig) -> None:
    answer = await ask(rig, "ann", "POST", "/v1/todos", text(), **{"content-encoding": "gzip"})
    assert "Content-Encoding" in refusal(answer, 415, "invalid")["message"]


async def test_a_body_that_never_comes_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "READ_SECONDS", 0.01)
    wire = Wire(rig.app, "POST", "/v1/todos", {"host": "localhost", "authorization": f"Bearer {rig.secrets['ann']}"})
    wire.body(b'{"queue":', more=True)
    await wire.run()
    assert wire.status == 408
    assert (b"connection", b"close") in wire.sent[0]["headers"]


async def test_a_body_cut_off_in_the_middle_does_nothing(rig: Rig) -> None:
    wire = Wire(rig.app, "POST", "/v1/todos", {"host": "localhost", "authorization": f"Bearer {rig.secrets['ann']}"})
    wire.body(text(), more=True)
    wire.leave()
    await wire.run()
    assert wire.sent == []
    assert (await get(rig, "root", "/v1/todos"))["todos"] == []


@pytest.mark.parametrize("key", ["", " ", "a b", "k" * 257, "\xe9"])
async def test_a_bad_request_key_is_refused(rig: Rig, key: str) -> None:
    async with rig.client("ann") as client:
        headers = [(b"idempotency-key", key.encode("latin-1"))]
        answer = await client.post(f"{HOST}/v1/todos", content=text(), headers=headers)
    assert refusal(answer, 400, "invalid")["field"] == "Idempotency-Key"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": 86401}, "lease_s"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight": 10**30}, "max_in_flight"),
        ({"backoff_s": -1}, "backoff_s"),
        ({"backoff_s": 100, "backoff_cap_s": 10}, "backoff_cap_s"),
        ({"keep_done_s": 1}, "keep_done_s"),
        ({"paused": "yes"}, "paused"),
        ({"name": "other"}, "name"),
    ],
)
async def test_a_bad_setting_is_refused_by_its_name(rig: Rig, body: dict[str, Any], field: str) -> None:
    assert refusal(await ask(rig, "root", "PUT", "/v1/queues/inbox", body), 400, "invalid")["field"] == field


async def test_a_queue_that_can_have_no_name_is_refused(rig: Rig) -> None:
    for name in ("A", "%00", "a%20b", "q" * 129):
        assert refusal(await ask(rig, "root", "PUT", f"/v1/queues/{name}", {}), 400, "invalid")["field"] == "name"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "new", "role": "king"}, "role"),
        ({"name": "new", "queues": []}, "queues"),
        ({"name": "new", "queues": ["A"]}, "queues"),
        ({"name": "new", "queues": "*"}, "queues"),
        ({"name": "new", "secret": "tk_x"}, "secret"),
    ],
)
async def test_a_bad_token_is_refused_by_its_field(rig: Rig, body: dict[str, Any], field: str) -> None:
    assert refusal(await ask(rig, "root", "POST", "/v1/tokens", body), 400, "invalid")["field"] == field
