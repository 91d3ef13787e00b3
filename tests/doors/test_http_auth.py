"""Who may ask what over HTTP: tokens, places, roles, and what is shown to whom."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.model import Principal
from postroom.store.sqlite import SqliteEngine
from tests.doors.http_rig import Rig, Wire, ask, get, post, refusal

ADMIN_ROUTES = [
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("POST", "/v1/tokens/ann/revoke"),
    ("PUT", "/v1/queues/inbox"),
]


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Bearer tk_wrong", "Basic dTpw", "tk_x", "Bearer tk_" + "x" * 500, "Bearer \xe9"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/todos"),
        ("POST", "/v1/todos/claim"),
        ("GET", "/v1/openapi.json"),
        ("GET", "/v1/x"),
        ("POST", "/mcp"),
    ],
)
async def test_without_a_valid_token_nothing_is_told(
    engine: SqliteEngine, given: str | None, method: str, path: str
) -> None:
    reached: list[Any] = []

    async def mcp(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope)

    rig = await Rig(engine, mcp=mcp).fill()
    headers = {} if given is None else {b"authorization": given.encode("latin-1")}
    async with rig.client(None) as client:
        answer = await client.request(method, path, headers=headers)
    refusal(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert reached == []


async def test_two_authorizations_are_none(rig: Rig) -> None:
    async with rig.client(None) as client:
        pair = [("authorization", f"Bearer {rig.secrets['ann']}"), ("authorization", f"Bearer {rig.secrets['root']}")]
        refusal(await client.get("/v1/todos", headers=pair), 401, "unauthenticated")


async def test_the_scheme_is_read_in_any_case(rig: Rig) -> None:
    answer = await ask(rig, None, "GET", "/v1/todos", authorization=f"bEARER {rig.secrets['ann']}")
    assert answer.status_code == 200


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
async def test_an_agent_may_not_do_what_admins_do(rig: Rig, method: str, path: str) -> None:
    refusal(await ask(rig, "ann", method, path, {"name": "new"} if path == "/v1/tokens" else {}), 403, "forbidden")


# S5
async def test_another_queue_is_as_if_it_were_not_there(rig: Rig) -> None:
    todo = await rig.claimed("ann")
    path = f"/v1/todos/{todo['id']}"
    lease = {"lease_id": todo["lease_id"]}
    for method, place, body in (
        ("GET", path, None),
        ("PATCH", path, {"title": "x"}),
        ("POST", f"{path}/claim", {}),
        ("POST", f"{path}/complete", lease),
        ("POST", f"{path}/heartbeat", lease),
        ("POST", f"{path}/cancel", {}),
        ("GET", f"/v1/trace/{todo['id']}", None),
        ("POST", "/v1/todos", {"queue": "inbox", "title": "x"}),
        ("POST", "/v1/todos/claim", {"queues": ["inbox"]}),
        ("POST", "/v1/todos/outcomes", {"items": [], "claim": {"queues": ["inbox"]}}),
        ("GET", "/v1/todos?queue=inbox", None),
    ):
        refusal(await ask(rig, "eve", method, place, body), 404, "not_found")
    assert await get(rig, "eve", "/v1/todos") == {"todos": [], "next_cursor": None}
    assert await get(rig, "eve", "/v1/queues") == {"queues": []}
    assert await post(rig, "eve", "/v1/todos/claim", {}) == {"todos": []}
    mine = await rig.create("lab/a", by="eve")
    assert [one["id"] for one in (await get(rig, "eve", "/v1/todos"))["todos"]] == [mine["id"]]


async def test_a_lease_id_is_shown_to_its_holder_alone(rig: Rig) -> None:
    todo = await rig.claimed("ann")
    path = f"/v1/todos/{todo['id']}"
    assert (await get(rig, "ann", path))["todo"]["lease_id"] == todo["lease_id"]
    for other in ("bob", "root"):
        assert todo["lease_id"] not in (await ask(rig, other, "GET", path)).text
    for who in ("ann", "root"):
        for place in ("/v1/todos", f"/v1/trace/{todo['id']}"):
            assert "lease_id" not in (await ask(rig, who, "GET", place)).text
            assert todo["lease_id"] not in (await ask(rig, who, "GET", place)).text
    again = await ask(rig, "bob", "POST", f"{path}/complete", {"lease_id": todo["lease_id"]})
    refusal(again, 409, "conflict")
    cancelled = await ask(rig, "root", "POST", f"{path}/cancel")
    assert todo["lease_id"] not in cancelled.text


async def test_a_token_is_made_used_and_revoked(rig: Rig) -> None:
    made = await post(rig, "root", "/v1/tokens", {"name": "new", "queues": ["lab/*", "inbox"]}, 201)
    assert made["token"]["role"] == "agent"
    assert made["token"]["queues"] == ["lab/*", "inbox"]
    assert made["secret"].startswith("tk_")
    refusal(await ask(rig, "root", "POST", "/v1/tokens", {"name": "new"}), 409, "conflict")
    rig.secrets["new"] = made["secret"]
    todo = await rig.claimed("new")
    listed = await ask(rig, "root", "GET", "/v1/tokens")
    assert made["secret"] not in listed.text
    assert {token["name"] for token in listed.json()["tokens"]} == {"root", "ann", "bob", "eve", "new"}
    revoked = await post(rig, "root", f"/v1/tokens/{made['token']['id']}/revoke", {})
    assert revoked["token"]["revoked_at"] is not None
    refusal(await ask(rig, "new", "GET", "/v1/todos"), 401, "unauthenticated")
    assert (await get(rig, "root", f"/v1/todos/{todo['id']}"))["todo"]["state"] == "pending"
    refusal(await ask(rig, "root", "POST", f"/v1/tokens/{made['token']['id']}/revoke"), 404, "not_found")
    assert (await post(rig, "root", "/v1/tokens/bob/revoke", b""))["token"]["name"] == "bob"


HOSTS = [
    ("localhost", 200),
    ("LocalHost:7373", 200),
    ("127.0.0.1:1", 200),
    ("127.8.8.8", 200),
    ("[::1]:7373", 200),
    ("[::1]", 200),
    ("post.example", 200),
    ("post.example:443", 200),
    ("other.example:8443", 200),
    ("other.example", 403),
    ("evil.example", 403),
    ("localhost.evil.example", 403),
    ("127.0.0.1.evil.example", 403),
    ("127.0.0.1:80@evil.example", 403),
    ("192.168.1.5:7373", 403),
    ("0.0.0.0:7373", 403),
    ("[2001:db8::1]", 403),
    ("", 403),
    (":7373", 403),
]


@pytest.mark.parametrize(("host", "status"), HOSTS)
async def test_a_host_is_loopback_or_allowed(engine: SqliteEngine, host: str, status: int) -> None:
    rig = await Rig(engine, hosts=("post.example", "Other.example:8443")).fill()
    for path in ("/v1/todos", "/ready"):
        wire = Wire(rig.app, "GET", path, {"host": host, "authorization": f"Bearer {rig.secrets['ann']}"})
        wire.body(b"")
        await wire.run()
        assert wire.status == status
    for path in ("/health",):
        wire = Wire(rig.app, "GET", path, {"host": host})
        await wire.run()
        assert wire.status == 200


async def test_a_missing_or_second_host_is_refused(rig: Rig) -> None:
    token = (b"authorization", f"Bearer {rig.secrets['ann']}".encode())
    for hosts in ([], [(b"host", b"localhost"), (b"host", b"evil.example")]):
        wire = Wire(rig.app, "GET", "/v1/todos", {})
        wire.scope["headers"] = [token, *hosts]
        await wire.run()
        assert wire.status == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:7373", 200),
        ("https://127.0.0.1:7373", 200),
        ("http://127.0.0.1:3000", 403),
        ("http://localhost:7373", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("file://127.0.0.1:7373", 403),
        ("https://post.example", 200),
    ],
)
async def test_a_foreign_origin_is_refused(engine: SqliteEngine, origin: str, status: int) -> None:
    rig = await Rig(engine, hosts=("post.example",), open_=True).fill()
    for path in ("/v1/todos",):
        answer = await ask(rig, None, "GET", path, origin=origin)
        assert answer.status_code == status


async def test_open_lets_in_who_has_no_token_but_no_wrong_one(engine: SqliteEngine) -> None:
    rig = await Rig(engine, open_=True).fill()
    assert (await ask(rig, None, "GET", "/v1/tokens")).status_code == 200
    refusal(await ask(rig, "ann", "GET", "/v1/tokens"), 403, "forbidden")
    refusal(await ask(rig, None, "GET", "/v1/todos", authorization="Bearer tk_wrong"), 401, "unauthenticated")


async def test_the_sockets_own_user_is_admin_and_a_token_says_otherwise(rig: Rig) -> None:
    there = {"client": None, "server": ("/run/postroom.sock", None)}
    wire = Wire(rig.app, "GET", "/v1/tokens", {"host": "anything"}, **there)
    await wire.run()
    assert wire.status == 200
    wire = Wire(rig.app, "GET", "/v1/tokens", {"authorization": f"Bearer {rig.secrets['ann']}"}, **there)
    await wire.run()
    assert wire.status == 403
    # A connection whose peer has just gone has no address either, but it has a port.
    for scope in ({"client": None}, {"server": ("127.0.0.1", None)}, {"client": None, "server": None}):
        wire = Wire(rig.app, "GET", "/v1/tokens", {"host": "localhost"}, **scope)
        await wire.run()
        assert wire.status == 401


async def test_mcp_gets_who_asks(engine: SqliteEngine) -> None:
    seen: list[Principal] = []

    async def mcp(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["state"]["principal"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    rig = await Rig(engine, mcp=mcp).fill()
    assert (await ask(rig, "ann", "POST", "/mcp", {})).status_code == 204
    assert [principal.name for principal in seen] == ["ann"]
    refusal(await ask(rig, "ann", "POST", "/mcp/", {}), 404, "not_found")
    refusal(await ask(rig, "ann", "POST", "/mcp", {}, host="evil.example"), 403, "forbidden")


async def test_a_token_says_whom_it_speaks_as(rig: Rig) -> None:
    body = {"name": "plugin", "speaks_as": ["ses_*", "builder", "a@b:c/d"]}
    made = await post(rig, "root", "/v1/tokens", body, 201)
    assert made["token"]["speaks_as"] == body["speaks_as"]
    plain = await post(rig, "root", "/v1/tokens", {"name": "plain"}, 201)
    assert plain["token"]["speaks_as"] == []
    listed = {one["name"]: one["speaks_as"] for one in (await get(rig, "root", "/v1/tokens"))["tokens"]}
    assert listed["plugin"] == body["speaks_as"]
    rig.secrets |= {"plugin": made["secret"], "plain": plain["secret"]}
    for who, sender, status in (
        ("plugin", "ses_x", 202),
        ("plugin", "builder", 202),
        ("plugin", "plugin", 202),
        ("plugin", "builder2", 403),
        ("plain", "ses_x", 403),
        ("plain", "plain", 202),
    ):
        answer = await ask(rig, who, "POST", "/v1/messages", {"from": sender, "to": "bob", "payload": "x"})
        assert answer.status_code == status, (who, sender, answer.text)
    for bad in ([""], ["a b"], [5], "ses_*", ["["], ["x" * 129], ["a"] * 101):
        answer = await ask(rig, "root", "POST", "/v1/tokens", {"name": "other", "speaks_as": bad})
        assert refusal(answer, 400, "invalid")["field"].startswith("speaks_as")
