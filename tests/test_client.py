"""The client: where it finds a daemon, what it says on the wire, what it repeats, and whole journeys over sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from postroom import Client, Worker, wire
from postroom.address import find
from postroom.config import load_settings
from postroom.desk import ClaimNext
from postroom.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PostroomError,
    RateLimited,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from postroom.ids import Prefix, RandomIds
from postroom.model import NewTodo, OutcomeItem, Todo, TodoState, Verb
from tests.fakes import MemoryDesk

TD = RandomIds().new(Prefix.TODO)
EV = RandomIds().new(Prefix.EVENT)
LS = RandomIds().new(Prefix.LEASE)
STATUS = {"invalid": 400, "unauthenticated": 401, "forbidden": 403, "not_found": 404, "conflict": 409}
STATUS |= {"too_large": 413, "rate_limited": 429, "unavailable": 503, "internal": 500}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own, and nothing of the environment's."""
    for name in ("POSTROOM_URL", "POSTROOM_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))
    return tmp_path


async def a_todo(**fields: Any) -> Todo:
    desk = MemoryDesk()
    (todo,) = await desk.seed(1)
    return replace(todo, id=TD, **fields)


class Wire:
    """A transport that notes each request and gives the prepared answers in turn, the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx2.Response) else httpx2.Response(200, json=answer)

    def client(self, **settings: Any) -> Client:
        settings = {"url": "http://127.0.0.1:7373", "jitter": lambda: -0.5, "keys": lambda: "key-1", **settings}
        return Client(transport=httpx2.MockTransport(self), **settings)

    @property
    def body(self) -> Any:
        return json.loads(self.requests[-1].content)

    @property
    def line(self) -> str:
        request = self.requests[-1]
        return f"{request.method} {request.url.raw_path.decode()}"


def refusal(error: PostroomError, **headers: str) -> httpx2.Response:
    return httpx2.Response(STATUS[error.code], json={"error": error.as_dict()}, headers=headers)


def daemon(desk: MemoryDesk) -> Starlette:
    """The part of a daemon's `/v1` that a client needs, over a desk in memory."""

    def shown(todo: Todo) -> dict[str, Any]:
        return wire.todo_view(todo, lease=True)

    def answer(handler: Callable[[Request, dict[str, Any]], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> JSONResponse:
            body = json.loads(await request.body() or b"{}")
            try:
                return JSONResponse(await handler(request, body))
            except PostroomError as error:
                return JSONResponse({"error": error.as_dict()}, STATUS[error.code])

        return endpoint

    async def create(request: Request, body: dict[str, Any]) -> Any:
        made = await desk.create(**body, request_id=request.headers.get("idempotency-key"))
        return {"todo": shown(made.todo), "created": made.created, "replayed": made.replayed}

    async def batch(request: Request, body: dict[str, Any]) -> Any:
        made = await desk.create_many([NewTodo(**new) for new in body["todos"]])
        return {
            "results": [
                {"error": one.as_dict()}
                if isinstance(one, PostroomError)
                else {"todo": shown(one.todo), "created": one.created}
                for one in made
            ]
        }

    async def page(request: Request, body: dict[str, Any]) -> Any:
        asked: dict[str, Any] = {k: int(v) if k == "limit" else v for k, v in request.query_params.items()}
        found = await desk.list_todos(**asked)
        return {
            "todos": [wire.todo_view(todo, whole=False) for todo in found.todos],
            "next_cursor": found.next_cursor,
        }

    async def get(request: Request, body: dict[str, Any]) -> Any:
        return {"todo": wire.todo_view(await desk.get(request.path_params["id"]))}

    async def claim_next(request: Request, body: dict[str, Any]) -> Any:
        return {"todos": [shown(todo) for todo in await desk.claim_next(**body)]}

    async def one(request: Request, body: dict[str, Any]) -> Any:
        verb = request.path_params["verb"]
        done = await getattr(desk, verb)(request.path_params["id"], **body)
        if isinstance(done, Todo):
            return {"todo": shown(done)}
        return {"todo": shown(done.todo), "replayed": done.replayed}

    async def outcomes(request: Request, body: dict[str, Any]) -> Any:
        items = [
            OutcomeItem(
                item["id"],
                Verb(item["verb"]),
                item.get("lease_id"),
                item.get("result"),
                item.get("error"),
                item.get("retry", True),
                wire.seconds_ms(item.get("retry_in_s"), "retry_in_s"),
                item.get("note"),
                wire.seconds_ms(item.get("delay_s"), "delay_s"),
            )
            for item in body["items"]
        ]
        claim = ClaimNext(**body["claim"]) if "claim" in body else None
        results, todos = await desk.outcomes(items, claim)
        return {
            "results": [
                {"id": result.id, "error": result.error.as_dict()}
                if result.error
                else {"id": result.id, "state": str(result.state), "replayed": result.replayed}
                for result in results
            ],
            "todos": [shown(todo) for todo in todos],
        }

    return Starlette(
        routes=[
            Route("/v1/todos", answer(create), methods=["POST"]),
            Route("/v1/todos", answer(page), methods=["GET"]),
            Route("/v1/todos/batch", answer(batch), methods=["POST"]),
            Route("/v1/todos/claim", answer(claim_next), methods=["POST"]),
            Route("/v1/todos/outcomes", answer(outcomes), methods=["POST"]),
            Route("/v1/todos/{id}", answer(get), methods=["GET"]),
            Route("/v1/todos/{id}/{verb}", answer(one), methods=["POST"]),
        ]
    )


@asynccontextmanager
async def serving(desk: MemoryDesk, socket: Path | None = None) -> AsyncIterator[str]:
    """The daemon's address while it serves, on a port of its own or a Unix socket."""
    where: dict[str, Any] = {"port": 0} if socket is None else {"uds": str(socket)}
    server = uvicorn.Server(uvicorn.Config(daemon(desk), log_level="error", lifespan="off", **where))
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(20):
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        if socket is not None:
            yield f"unix://{socket}"
        else:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await task


class TestAddress:
    def test_default_is_the_data_folders_socket_and_admin_token(self, home: Path) -> None:
        (home / "admin-token").write_text("tk_admin\n")
        client = Client()
        assert client.address.socket == str(home / "postroom.sock")
        assert client.address.token == "tk_admin"
        assert "tk_admin" not in repr(client.address)
        assert str(client.address) == f"unix://{home}/postroom.sock"

    @pytest.mark.parametrize("named", ["~/data", "data"])
    def test_every_program_means_the_same_folder_by_a_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "admin-token").write_text("tk_admin\n")
        environ = {"POSTROOM_DATA": named}
        found = find(environ=environ)
        assert (found.socket, found.token) == (str(tmp_path / "data" / "postroom.sock"), "tk_admin")
        assert load_settings(environ=environ).data == tmp_path / "data"

    def test_environment_then_arguments(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (home / "admin-token").write_text("tk_admin\n")
        monkeypatch.setenv("POSTROOM_URL", "http://127.0.0.1:7000/")
        monkeypatch.setenv("POSTROOM_TOKEN", "tk_env")
        assert (Client().address.base, Client().address.token) == ("http://127.0.0.1:7000", "tk_env")
        given = Client("http://localhost:1", "tk_arg").address
        assert (given.base, given.token, given.socket) == ("http://localhost:1", "tk_arg", None)
        assert Client(socket="/run/p.sock").address.socket == "/run/p.sock"
        assert Client("unix:///run/q.sock").address.socket == "/run/q.sock"

    def test_without_a_token_file_there_is_no_token(self) -> None:
        assert Client().address.token is None

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "127.0.0.1:7373",
            "ftp://127.0.0.1",
            "http://",
            "http://127.0.0.1:99999",
            "http://[::1",
            "http://127.0.0.1/path",
            "http://127.0.0.1/?q=1",
            "http://user:secret@127.0.0.1/",
            "unix://relative.sock",
            "unix://",
        ],
    )
    def test_other_addresses_are_refused(self, url: str) -> None:
        with pytest.raises(Invalid) as caught:
            find(url, environ={})
        assert caught.value.field == "url"

    def test_url_and_socket_together_are_refused(self) -> None:
        with pytest.raises(Invalid) as caught:
            Client("http://127.0.0.1", socket="/x")
        assert caught.value.field == "socket"

    @pytest.mark.parametrize("url", ["http://10.0.0.1:7373", "http://example.org", "http://127.0.0.1.example.org"])
    def test_no_token_travels_in_the_clear(self, url: str) -> None:
        with pytest.raises(Invalid, match="in the clear"):
            find(url, "tk_x", environ={})
        with pytest.raises(Invalid, match="in the clear"):
            find(url, environ={"POSTROOM_TOKEN": "tk_x"})

    def test_this_machines_admin_token_stays_on_it(self, home: Path) -> None:
        (home / "admin-token").write_text("tk_admin\n")
        environ = {"POSTROOM_DATA": str(home)}
        assert find("https://example.org", environ=environ).token is None
        assert find("http://example.org", environ=environ).token is None
        assert find("https://example.org", "tk_x", environ=environ).token == "tk_x"

    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:7373", "http://127.9.9.9", "http://[::1]:7373", "http://localhost"]
    )
    def test_loopback_may_have_a_token(self, url: str) -> None:
        found = find(url, "tk_x", environ={})
        assert (found.base, found.token) == (url, "tk_x")

    def test_bad_settings_are_named(self) -> None:
        for settings, field in (({"timeout": 0}, "timeout"), ({"token": "tk_\n"}, "token")):
            with pytest.raises(Invalid) as caught:
                Client("http://127.0.0.1", **settings)
            assert caught.value.field == field


class TestWords:
    """Each verb's line and body on the wire."""

    async def test_create(self) -> None:
        web = Wire({"todo": wire.todo_view(await a_todo()), "created": True})
        async with web.client(token="tk_1") as client:
            made = await client.create("work", "title")
            assert web.line == "POST /v1/todos"
            assert web.body == {"queue": "work", "title": "title"}
            assert web.requests[-1].headers["authorization"] == "Bearer tk_1"
            assert "idempotency-key" not in web.requests[-1].headers
            assert (made.todo.id, made.created, made.replayed) == (TD, True, False)
            await client.create(
                "work",
                "title",
                kind="k",
                payload={"a": [1, None, "é"]},
                priority=-3,
                assignee="bob/1",
                idempotency_key="i",
                max_attempts=2,
                delay_s=1.5,
                request_id="r 1",
            )
            assert web.requests[-1].headers["idempotency-key"] == "r 1"
            assert web.body == {
                "queue": "work",
                "title": "title",
                "kind": "k",
                "payload": {"a": [1, None, "é"]},
                "priority": -3,
                "assignee": "bob/1",
                "idempotency_key": "i",
                "max_attempts": 2,
                "delay_s": 1.5,
            }
            await client.create("work", "t", available_at=datetime(2030, 1, 2, 5, tzinfo=timezone(timedelta(hours=2))))
            assert web.body["available_at"] == "2030-01-02T03:00:00.000Z"

    async def test_create_many(self) -> None:
        view = wire.todo_view(await a_todo())
        web = Wire({"results": [{"todo": view, "created": False}, {"error": {"code": "invalid", "message": "m"}}]})
        async with web.client() as client:
            news = [NewTodo("a", "t", delay_ms=1500), NewTodo("b", "u", payload=0, available_at=0)]
            first, second = await client.create_many(news, request_id="r")
        assert web.line == "POST /v1/todos/batch"
        assert web.body == {
            "todos": [
                {"queue": "a", "title": "t", "delay_s": 1.5},
                {"queue": "b", "title": "u", "payload": 0, "available_at": "1970-01-01T00:00:00.000Z"},
            ]
        }
        assert not isinstance(first, PostroomError)
        assert not first.created
        assert isinstance(second, Invalid)

    async def test_get_and_list(self) -> None:
        todo = await a_todo()
        web = Wire({"todo": wire.todo_view(todo)}, {"todos": [wire.todo_view(todo, whole=False)], "next_cursor": "c9"})
        async with web.client() as client:
            assert await client.get(TD) == replace(todo, seq=0)
            assert web.line == f"GET /v1/todos/{TD}"
            page = await client.list_todos(queue="a/b", state="parked", assignee="x", cursor="c1", limit=5)
            assert web.line == "GET /v1/todos?queue=a%2Fb&state=parked&assignee=x&cursor=c1&limit=5"
            assert (page.todos[0].id, page.next_cursor) == (TD, "c9")
            await client.list_todos()
            assert web.line == "GET /v1/todos"

    async def test_claims(self) -> None:
        view = wire.todo_view(await a_todo(lease_id=LS), lease=True)
        web = Wire({"todos": [view]}, {"todos": []}, {"todo": view})
        async with web.client() as client:
            (todo,) = await client.claim_next()
            assert todo.lease_id == LS
            assert web.line == "POST /v1/todos/claim"
            assert web.body == {"limit": 1, "claim_key": "key-1"}
            assert await client.claim_next(("a", "b"), ttl_s=9, limit=3, wait_s=2, claim_key="k", worker="w") == []
            assert web.body == {
                "queues": ["a", "b"],
                "ttl_s": 9,
                "limit": 3,
                "wait_s": 2,
                "claim_key": "k",
                "worker": "w",
            }
            assert (await client.claim(TD, ttl_s=1, worker="w")).lease_id == LS
            assert web.line == f"POST /v1/todos/{TD}/claim"
            assert web.body == {"ttl_s": 1, "claim_key": "key-1", "worker": "w"}

    async def test_each_call_has_a_claim_key_of_its_own(self) -> None:
        web = Wire({"todos": []})
        async with Client("http://127.0.0.1", transport=httpx2.MockTransport(web)) as client:
            await client.claim_next()
            await client.claim_next()
        keys = {json.loads(request.content)["claim_key"] for request in web.requests}
        assert len(keys) == 2
        assert all(re.fullmatch(r"[\w-]{16}", key) for key in keys)

    async def test_endings(self) -> None:
        web = Wire({"todo": wire.todo_view(await a_todo()), "replayed": True})
        async with web.client() as client:
            assert (await client.complete(TD, LS, result={"a": "b"})).replayed
            assert web.line == f"POST /v1/todos/{TD}/complete"
            assert web.body == {"lease_id": LS, "result": {"a": "b"}}
            await client.complete(TD, LS)
            assert web.body == {"lease_id": LS}
            await client.complete(TD, result=False)
            assert web.body == {"result": False}
            await client.fail(TD, LS, error="e", result=[1], retry=False, retry_in_s=2.5)
            assert web.line == f"POST /v1/todos/{TD}/fail"
            assert web.body == {"lease_id": LS, "error": "e", "retry": False, "retry_in_s": 2.5, "result": [1]}
            await client.fail(TD, LS)
            assert web.body == {"lease_id": LS}
            await client.release(TD, LS, note="n", delay_s=0.5)
            assert web.line == f"POST /v1/todos/{TD}/release"
            assert web.body == {"lease_id": LS, "note": "n", "delay_s": 0.5}
            await client.heartbeat(TD, LS, ttl_s=60)
            assert web.line == f"POST /v1/todos/{TD}/heartbeat"
            assert web.body == {"lease_id": LS, "ttl_s": 60}

    async def test_outcomes(self) -> None:
        view = wire.todo_view(await a_todo(lease_id=LS), lease=True)
        web = Wire(
            {
                "results": [
                    {"id": TD, "state": "done", "replayed": True},
                    {"id": TD, "error": {"code": "conflict", "message": "gone", "state": "pending"}},
                ],
                "todos": [view],
            }
        )
        items = [
            OutcomeItem(TD, Verb.COMPLETE, LS, result="r"),
            OutcomeItem(TD, Verb.FAIL, LS, error="e", retry=False, retry_in_ms=1500),
            OutcomeItem(TD, Verb.RELEASE, LS, note="n", delay_ms=2000),
        ]
        async with web.client() as client:
            results, todos = await client.outcomes(items, ClaimNext(["q"], 5, 7, "w"))
        assert web.line == "POST /v1/todos/outcomes"
        assert web.body == {
            "items": [
                {"id": TD, "verb": "complete", "lease_id": LS, "result": "r"},
                {"id": TD, "verb": "fail", "lease_id": LS, "error": "e", "retry": False, "retry_in_s": 1.5},
                {"id": TD, "verb": "release", "lease_id": LS, "note": "n", "delay_s": 2.0},
            ],
            "claim": {"queues": ["q"], "ttl_s": 5, "limit": 7, "worker": "w"},
        }
        assert (results[0].state, results[0].replayed) == (TodoState.DONE, True)
        assert isinstance(results[1].error, Conflict)
        assert results[1].error.details == {"state": "pending"}
        assert todos[0].lease_id == LS

    async def test_outcomes_too_much_for_one_body_go_in_several(self) -> None:
        def answer(request: httpx2.Request) -> httpx2.Response:
            web.requests.append(request)
            items = json.loads(request.content)["items"]
            results = [{"id": item["id"], "state": "done"} for item in items]
            return httpx2.Response(200, json={"results": results, "todos": []})

        web = Wire({})
        ids = [RandomIds().new(Prefix.TODO) for _ in range(12)]
        items = [OutcomeItem(td, Verb.COMPLETE, LS, result="x" * 900_000) for td in ids]
        async with Client("http://127.0.0.1", transport=httpx2.MockTransport(answer)) as client:
            results, _ = await client.outcomes(items, ClaimNext(["q"]))
        assert [result.id for result in results] == ids
        bodies = [json.loads(request.content) for request in web.requests]
        assert [len(body["items"]) for body in bodies] == [4, 4, 4]
        assert ["claim" in body for body in bodies] == [False, False, True]
        assert all(len(request.content) < 5 * 1024 * 1024 for request in web.requests)

    async def test_operators_verbs(self) -> None:
        web = Wire({"todo": wire.todo_view(await a_todo())})
        async with web.client() as client:
            await client.retry(TD, request_id="r1")
            assert (web.line, web.body) == (f"POST /v1/todos/{TD}/retry", {})
            assert web.requests[-1].headers["idempotency-key"] == "r1"
            await client.cancel(TD, reason="why")
            assert (web.line, web.body) == (f"POST /v1/todos/{TD}/cancel", {"reason": "why"})
            await client.update(TD, title="t", priority=0)
            assert (web.line, web.body) == (f"PATCH /v1/todos/{TD}", {"title": "t", "priority": 0})
            await client.update(TD, payload=None, assignee=None, available_at=None)
            assert web.body == {"payload": None, "assignee": None, "available_at": None}
            await client.update(TD, available_at=datetime(2030, 1, 1, tzinfo=UTC))
            assert web.body == {"available_at": "2030-01-01T00:00:00.000Z"}

    async def test_beyond_the_desk(self) -> None:
        web = Wire({"anything": 1})
        async with web.client() as client:
            assert await client.queues() == {"anything": 1}
            assert web.line == "GET /v1/queues"
            await client.put_queue("a/b", paused=True, lease_s=None)
            assert (web.line, web.body) == ("PUT /v1/queues/a%2Fb", {"paused": True, "lease_s": None})
            await client.event(EV)
            assert web.line == f"GET /v1/events/{EV}"
            await client.trace(TD)
            assert web.line == f"GET /v1/trace/{TD}"
            await client.trace("a/../b")
            assert web.line == "GET /v1/trace/a%2F..%2Fb"
            for call in (client.trace(".."), client.event(TD), client.get(EV), client.get("../queues")):
                with pytest.raises(NotFound):
                    await call


class TestBadInput:
    @pytest.mark.parametrize(
        ("asked", "field"),
        [
            ({"payload": float("nan")}, "payload"),
            ({"payload": {"a": ["\x00"]}}, "payload.a[0]"),
            ({"payload": {1: 2}}, "payload"),
            ({"payload": object()}, "payload"),
            ({"title": "\ud800"}, "title"),
            ({"delay_s": float("inf")}, "delay_s"),
            ({"available_at": datetime(2030, 1, 1)}, "available_at"),
            ({"request_id": "\n"}, "request_id"),
            ({"request_id": "é"}, "request_id"),
        ],
    )
    async def test_names_the_field_and_sends_nothing(self, asked: dict[str, Any], field: str) -> None:
        web = Wire({})
        async with web.client() as client:
            with pytest.raises(Invalid) as caught:
                await client.create(**{"queue": "q", "title": "t", **asked})
        assert caught.value.field == field
        assert web.requests == []

    async def test_queues_given_as_text(self) -> None:
        async with Wire({}).client() as client:
            with pytest.raises(Invalid):
                await client.claim_next("work")

    async def test_an_ending_is_never_refused_for_what_it_says(self) -> None:
        web = Wire({"todo": wire.todo_view(await a_todo()), "replayed": False})
        async with web.client() as client:
            await client.complete(TD, LS, result={"x": float("nan"), "y": "\x00\ud800", "z": {1, 2}})
            assert web.body["result"] == {"x": "nan", "y": "\ufffd\ufffd", "z": "{1, 2}"}
            await client.complete(TD, LS, result="x" * 3_000_000)
            assert web.body["result"]["truncated"] is True
            assert len(web.requests[-1].content) < 1_100_000
            await client.fail(TD, LS, error="\x00\ud800" + "x" * 3_000_000)
            assert web.body["error"].startswith("\ufffd\ufffdxxx")
            assert len(web.body["error"].encode()) <= 2048
            await client.release(TD, LS, note="\ud800")
            assert web.body["note"] == "\ufffd"


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [
            Invalid("bad", field="title"),
            Unauthenticated("who"),
            Forbidden("no"),
            NotFound("none"),
            Conflict("held", state="claimed", owner="x"),
            TooLarge("big"),
            RateLimited("slow"),
            Unavailable("down"),
            PostroomError("oops"),
        ],
    )
    async def test_each_of_the_family_comes_back_as_itself(self, error: PostroomError) -> None:
        web = Wire(refusal(error))
        async with web.client() as client:
            with pytest.raises(type(error)) as caught:
                await client.create("q", "t")
        assert type(caught.value) is type(error)
        assert caught.value.as_dict() == error.as_dict()
        assert len(web.requests) == 1

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (401, Unauthenticated),
            (403, Forbidden),
            (404, NotFound),
            (418, PostroomError),
            (302, PostroomError),
            (500, Unavailable),
            (502, Unavailable),
            (504, Unavailable),
        ],
    )
    async def test_answers_that_are_not_postrooms(self, status: int, kind: type[PostroomError]) -> None:
        web = Wire(httpx2.Response(status, text="<html>"))
        async with web.client() as client:
            with pytest.raises(PostroomError) as caught:
                await client.create("q", "t")
        assert type(caught.value) is kind
        assert str(status) in str(caught.value)

    @pytest.mark.parametrize("text", ["", "<html>", "[]", '{"error": 1'])
    async def test_a_good_status_with_nonsense(self, text: str) -> None:
        async with Wire(httpx2.Response(200, text=text)).client() as client:
            with pytest.raises(Unavailable, match="not Postroom"):
                await client.get(TD)

    async def test_a_closed_client(self, home: Path) -> None:
        client = Client()
        await client.aclose()
        with pytest.raises(Unavailable):
            await client.get(TD)


BROKEN = httpx2.ReadError("reset")


class TestRepeating:
    async def answers(self) -> Any:
        view = wire.todo_view(await a_todo(), lease=True)
        return {"todo": view, "todos": [view], "created": True, "replayed": False, "results": [], "next_cursor": None}

    @pytest.mark.parametrize("fault", [BROKEN, httpx2.RemoteProtocolError("cut"), refusal(Unavailable("down"))])
    @pytest.mark.parametrize(
        "call",
        [
            lambda client: client.get(TD),
            lambda client: client.list_todos(),
            lambda client: client.claim_next(["q"]),
            lambda client: client.claim(TD),
            lambda client: client.heartbeat(TD, LS),
            lambda client: client.complete(TD, LS),
            lambda client: client.fail(TD, LS),
            lambda client: client.release(TD, LS),
            lambda client: client.outcomes([OutcomeItem(TD, Verb.COMPLETE, LS)]),
            lambda client: client.create("q", "t", idempotency_key="i"),
            lambda client: client.create("q", "t", request_id="r"),
            lambda client: client.create_many([NewTodo("q", "t")], request_id="r"),
            lambda client: client.create_many([NewTodo("q", "t", idempotency_key="i")]),
            lambda client: client.retry(TD, request_id="r"),
            lambda client: client.queues(),
        ],
    )
    async def test_what_is_harmless_is_repeated_word_for_word(self, call: Any, fault: Any) -> None:
        web = Wire(fault, fault, await self.answers())
        async with web.client() as client:
            await call(client)
        assert len(web.requests) == 3
        assert len({(request.content, str(request.url)) for request in web.requests}) == 1
        assert len({request.headers.get("idempotency-key") for request in web.requests}) == 1

    @pytest.mark.parametrize(
        "call",
        [
            lambda client: client.create("q", "t"),
            lambda client: client.create_many([NewTodo("q", "t"), NewTodo("q", "t", idempotency_key="i")]),
            lambda client: client.complete(TD),
            lambda client: client.fail(TD),
            lambda client: client.release(TD),
            lambda client: client.outcomes([OutcomeItem(TD, Verb.COMPLETE, None)]),
            lambda client: client.outcomes([], ClaimNext(["q"])),
            lambda client: client.retry(TD),
            lambda client: client.cancel(TD),
            lambda client: client.update(TD, title="t"),
        ],
    )
    async def test_what_might_happen_twice_is_not(self, call: Any) -> None:
        web = Wire(BROKEN, await self.answers())
        async with web.client() as client:
            with pytest.raises(Unavailable, match="reset"):
                await call(client)
        assert len(web.requests) == 1

    async def test_what_was_never_sent_is_always_tried_again(self) -> None:
        web = Wire(httpx2.ConnectError("refused"), httpx2.ConnectTimeout("slow"), await self.answers())
        async with web.client() as client:
            await client.create("q", "t")
        assert len(web.requests) == 3

    async def test_few_times_only(self) -> None:
        web = Wire(BROKEN)
        async with web.client() as client:
            with pytest.raises(Unavailable):
                await client.get(TD)
        assert len(web.requests) == 4

    async def test_outcomes_are_repeated_without_their_claim(self) -> None:
        web = Wire(BROKEN, BROKEN, {"results": [{"id": TD, "state": "done", "replayed": True}], "todos": []})
        async with web.client() as client:
            (result,), todos = await client.outcomes([OutcomeItem(TD, Verb.COMPLETE, LS)], ClaimNext(["q"]))
        assert result.replayed
        assert todos == []
        assert ["claim" in json.loads(request.content) for request in web.requests] == [True, False, False]

    async def test_not_beyond_the_deadline(self) -> None:
        web = Wire(refusal(Unavailable("down"), **{"retry-after": "3600"}))
        async with web.client(timeout=60) as client:
            with pytest.raises(Unavailable, match="down"):
                await client.get(TD)
        assert len(web.requests) == 1


class TestOverSockets:
    @pytest.fixture(params=["port", "socket"])
    async def place(self, request: pytest.FixtureRequest, home: Path) -> AsyncIterator[tuple[MemoryDesk, str]]:
        desk = MemoryDesk()
        async with serving(desk, home / "postroom.sock" if request.param == "socket" else None) as url:
            yield desk, url

    async def test_a_todos_whole_life(self, place: tuple[MemoryDesk, str]) -> None:
        desk, url = place
        async with Client(url) as client:
            made = await client.create("work", "one", payload={"a": 1}, request_id="r")
            assert (await client.create("work", "one", payload={"a": 1}, request_id="r")).replayed
            (todo,) = await client.claim_next(["work"], ttl_s=60, worker="w")
            assert (todo.id, todo.owner, todo.payload, todo.attempt) == (made.todo.id, "me/w", {"a": 1}, 1)
            assert todo.lease_expires_at == desk.clock.now + 60_000
            assert (await client.heartbeat(todo.id, todo.lease_id, ttl_s=90)).lease_expires_at == (
                desk.clock.now + 90_000
            )
            released = await client.release(todo.id, todo.lease_id, note="later")
            assert (released.todo.state, released.todo.attempt) == (TodoState.PENDING, 0)
            assert (await client.release(todo.id, todo.lease_id)).replayed
            again = await client.claim(todo.id)
            assert again.history[0].note == "later"
            with pytest.raises(Conflict) as caught:
                await client.complete(todo.id, todo.lease_id)
            assert caught.value.details["state"] == "claimed"
            done = await client.complete(todo.id, again.lease_id, result=[1])
            assert done.todo.result == [1]
            assert (await client.get(todo.id)).state is TodoState.DONE
            page = await client.list_todos(state="done", limit=1)
            assert [found.id for found in page.todos] == [todo.id]
            batch = await client.create_many([NewTodo("work", "a"), NewTodo("Bad", "b")])
            assert [type(one).__name__ for one in batch] == ["Created", "Invalid"]

    async def test_a_waiting_claim_gets_what_comes(self, place: tuple[MemoryDesk, str]) -> None:
        desk, url = place
        async with Client(url, timeout=5) as client, asyncio.timeout(20):
            claim = asyncio.create_task(client.claim_next(["work"], wait_s=40))
            while not desk.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await client.create("work", "late")
            assert [todo.title for todo in await claim] == ["late"]

    async def test_a_worker_over_a_client(self, place: tuple[MemoryDesk, str]) -> None:
        desk, url = place
        await desk.seed(200)

        async def handler(todo: Todo) -> Any:
            return todo.payload["n"]

        async with Client(url) as client:
            stats = await Worker(client, ["work"], handler, name="w").run(drain=True)
        assert (stats.claimed, stats.completed, stats.lost) == (200, 200, 0)
        assert [todo.result for todo in desk.todos.values()] == list(range(200))

    async def test_found_by_the_data_folder(self, home: Path) -> None:
        desk = MemoryDesk()
        (todo,) = await desk.seed(1)
        async with serving(desk, home / "postroom.sock"), Client() as client:
            assert (await client.get(todo.id)).title == todo.title

    async def test_no_daemon_there(self, home: Path) -> None:
        for where in ({"socket": home / "none.sock"}, {"socket": "/" + "x" * 200}, {"url": "http://127.0.0.1:1"}):
            async with Client(**where) as client:
                with pytest.raises(Unavailable, match="no daemon answers"):
                    await client.create("q", "t")

    async def test_proxies_of_the_environment_are_not_asked(
        self, place: tuple[MemoryDesk, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        _, url = place
        async with Client(url) as client:
            assert (await client.create("work", "t")).created

    @pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"])
    async def test_a_server_that_hangs_is_left_at_the_deadline(self, said: bytes) -> None:
        hanging = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            await hanging.wait()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}", timeout=0.2) as client:
            with pytest.raises(Unavailable, match="did not answer in time"):
                await client.get(TD)
        hanging.set()
        server.close()
        await server.wait_closed()

    async def test_a_connection_that_breaks_after_the_work_was_done(self) -> None:
        """The first answer is cut off; the claim and its ending come back as they were made."""
        desk = MemoryDesk()
        await desk.seed(2)
        async with serving(desk) as url:
            port = int(url.rsplit(":", 1)[1])
            cuts = [True]

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                there, to = await asyncio.open_connection("127.0.0.1", port)
                try:
                    while data := await reader.read(65536):
                        to.write(data)
                        answer = await there.read(65536)
                        if cuts and b"\r\n\r\n" in answer:
                            cuts.pop()
                            break
                        writer.write(answer)
                finally:
                    to.close()
                    writer.close()

            server = await asyncio.start_server(relay, "127.0.0.1", 0)
            own = server.sockets[0].getsockname()[1]
            async with Client(f"http://127.0.0.1:{own}") as client:
                (todo,) = await client.claim_next(["work"])
                assert desk.states().count(TodoState.CLAIMED) == 1
                cuts.append(True)
                assert (await client.complete(todo.id, todo.lease_id)).replayed
            server.close()
            await server.wait_closed()
        assert desk.states() == [TodoState.DONE, TodoState.PENDING]
