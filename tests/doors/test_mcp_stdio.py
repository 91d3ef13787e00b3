"""MCP over stdio: the process a client starts, before a daemon in small and before none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom import wire
from postroom.errors import Conflict, NotFound, PostroomError, Unauthenticated
from postroom.model import TodoState
from tests.doors.mcp_rig import ERAS, filled, good, loopback, refused, until
from tests.doors.memory_desk import MemoryDesk, Shelf

RUN = "import json, sys; from postroom.doors.mcp.stdio import run; raise SystemExit(run(**json.loads(sys.argv[1])))"
STATUS = {Conflict: 409, NotFound: 404, Unauthenticated: 401}
DEADLINE_S = 30


class Daemon:
    """The few routes of `/v1` that the tools need, over a desk in memory."""

    def __init__(self, shelf: Shelf, token: str = "tk_ann") -> None:
        self.shelf = shelf
        self.token = token
        self.app = Starlette(
            routes=[
                Route("/v1/todos", self.create, methods=["POST"]),
                Route("/v1/todos/claim", self.claim_next, methods=["POST"]),
                Route("/v1/todos/{id}", self.get),
                Route("/v1/todos/{id}/complete", self.complete, methods=["POST"]),
            ]
        )

    async def _answer(self, request: Request, verb: Callable[[MemoryDesk, Any], Awaitable[dict[str, Any]]]) -> Response:
        try:
            if request.headers.get("authorization") != f"Bearer {self.token}":
                raise Unauthenticated("the token is not known")
            given = json.loads(await request.body() or b"{}")
            return JSONResponse(await self._while_there(request, verb(MemoryDesk(self.shelf, "ann"), given)))
        except PostroomError as error:
            return JSONResponse({"error": error.as_dict()}, STATUS.get(type(error), 400))

    @staticmethod
    async def _while_there(request: Request, answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        work = asyncio.ensure_future(answer)
        gone = asyncio.ensure_future(request.receive())
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        for task in (work, gone):
            if not task.done():
                task.cancel()
        return await work

    async def create(self, request: Request) -> Response:
        async def verb(desk: MemoryDesk, given: Any) -> dict[str, Any]:
            made = await desk.create(**given)
            return {"todo": wire.todo_view(made.todo), "created": made.created}

        return await self._answer(request, verb)

    async def claim_next(self, request: Request) -> Response:
        async def verb(desk: MemoryDesk, given: Any) -> dict[str, Any]:
            return {"todos": [wire.todo_view(todo, lease=True) for todo in await desk.claim_next(**given)]}

        return await self._answer(request, verb)

    async def get(self, request: Request) -> Response:
        async def verb(desk: MemoryDesk, _: Any) -> dict[str, Any]:
            return {"todo": wire.todo_view(await desk.get(request.path_params["id"]), lease=True)}

        return await self._answer(request, verb)

    async def complete(self, request: Request) -> Response:
        async def verb(desk: MemoryDesk, given: Any) -> dict[str, Any]:
            ended = await desk.complete(request.path_params["id"], **given)
            return {"todo": wire.todo_view(ended.todo), "replayed": ended.replayed}

        return await self._answer(request, verb)


class Process:
    """A server process driven by raw lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    def send(self, message: object) -> None:
        """Write one line."""
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.stdin.write(text + b"\n")

    async def read(self) -> dict[str, Any]:
        """Read one line; it must be a message."""
        line = await asyncio.wait_for(self.stdout.readline(), DEADLINE_S)
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def rest(self) -> tuple[list[dict[str, Any]], str]:
        """What is still written until the end, and what was logged."""
        out, err = await asyncio.wait_for(asyncio.gather(self.stdout.read(), self.stderr.read()), DEADLINE_S)
        return [json.loads(line) for line in out.splitlines()], err.decode()

    async def status(self) -> int:
        """The exit status, once there is one."""
        return await asyncio.wait_for(self.process.wait(), DEADLINE_S)


@asynccontextmanager
async def process(**arguments: Any) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUN,
        json.dumps(arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    try:
        yield Process(started)
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.wait()


def parameters(**arguments: Any) -> StdioServerParameters:
    """How the SDK's client starts the process."""
    return StdioServerParameters(command=sys.executable, args=["-c", RUN, json.dumps(arguments)])


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def call(request_id: int, tool: str, **arguments: Any) -> dict[str, Any]:
    """A call in the older era."""
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def modern(request_id: int, method: str, **params: Any) -> dict[str, Any]:
    """A request of revision 2026-07-28."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": meta}}


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """A socket that nobody listens on."""
    return str(tmp_path / "none.sock")


# S23
@pytest.mark.parametrize("era", ERAS)
async def test_an_agent_claims_and_completes(era: str) -> None:
    shelf = Shelf()
    async with (
        loopback(Daemon(shelf).app) as url,
        Client(parameters(url=url, token="tk_ann", agent="desk-1"), mode=era) as client,
    ):
        assert client.protocol_version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[era]
        await good(client, "create_for", queue="inbox", title="t", payload={"a": None})
        (todo,) = (await good(client, "claim_next", queues=["inbox"]))["todos"]
        assert todo["owner"] == "ann/desk-1"
        assert todo["payload"] == {"a": None}
        assert (await good(client, "get_todo", id=todo["id"]))["todo"]["lease_id"] == todo["lease_id"]
        done = await good(client, "complete", id=todo["id"], lease_id=todo["lease_id"], result="fine")
        assert done["todo"]["state"] == "done"
        assert (await refused(client, "complete", id=todo["id"], lease_id="ls_other"))["code"] == "conflict"


async def test_without_a_daemon_the_tools_are_listed_and_calls_say_so(nowhere: str) -> None:
    async with Client(parameters(socket=nowhere)) as client:
        assert len((await client.list_tools()).tools) == 13
        error = await refused(client, "claim_next", wait_s=0)
        assert error["code"] == "unavailable"
        assert "postroom serve" in error["hint"]
        assert (await refused(client, "claim_next", wait_s="5"))["code"] == "invalid"


async def test_a_token_file_that_comes_or_changes_later_is_read_then(tmp_path: Path) -> None:
    file = tmp_path / "token"
    daemon = Daemon(Shelf())
    async with loopback(daemon.app) as url, Client(parameters(url=url, token_file=str(file))) as client:
        error = await refused(client, "claim_next", wait_s=0)
        assert error["code"] == "unauthenticated"
        assert str(file) in error["message"]
        file.write_text("tk_ann\n")
        assert (await good(client, "claim_next", wait_s=0))["todos"] == []
        daemon.token = "tk_new"
        assert (await refused(client, "claim_next", wait_s=0))["code"] == "unauthenticated"
        file.write_text("tk_new\n")
        assert (await good(client, "claim_next", wait_s=0))["todos"] == []


async def test_the_end_of_input_ends_it_cleanly(nowhere: str) -> None:
    async with process(socket=nowhere) as server:
        server.send(modern(1, "server/discover"))
        assert (await server.read())["result"]["supportedVersions"] == ["2026-07-28"]
        server.stdin.close()
        assert await server.status() == 0
        assert await server.rest() == ([], "")


async def test_input_that_ends_at_once_ends_it_cleanly(nowhere: str) -> None:
    async with process(socket=nowhere) as server:
        server.stdin.close()
        assert await server.status() == 0
        assert await server.rest() == ([], "")


async def test_requests_piped_in_are_answered_although_the_pipe_closes_behind_them() -> None:
    shelf = Shelf()
    ids = await filled(MemoryDesk(shelf), 3)
    async with loopback(Daemon(shelf).app) as url, process(url=url, token="tk_ann") as server:
        for message in (INITIALIZE, INITIALIZED, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}):
            server.send(message)
        for number in (2, 3, 4):
            server.send(call(number, "claim_next"))
        server.stdin.write(json.dumps(call(5, "get_todo", id=ids[0])).encode())
        server.stdin.close()
        answers, logged = await server.rest()
        assert logged == ""
        assert sorted(answer["id"] for answer in answers) == [0, 1, 2, 3, 4, 5]
        assert all("result" in answer for answer in answers)
        assert await server.status() == 0
    assert all(todo.state == TodoState.CLAIMED for todo in shelf.todos.values())


async def test_a_claim_that_waits_ends_with_the_input() -> None:
    shelf = Shelf()
    async with loopback(Daemon(shelf).app) as url, process(url=url, token="tk_ann") as server:
        for message in (INITIALIZE, INITIALIZED, call(1, "claim_next", wait_s=50)):
            server.send(message)
        await server.read()
        await until(lambda: shelf.waiting)
        server.stdin.close()
        assert await server.status() == 0
        await until(lambda: not shelf.waiting)
        assert shelf.cancelled == 1


async def test_a_signal_before_the_first_request_ends_it_cleanly(nowhere: str) -> None:
    code = "import os, signal; from postroom.doors.mcp import stdio\n"
    code += "first = stdio.first_line\n"
    code += "stdio.first_line = lambda fd: (os.write(2, b'reading\\n'), first(fd))[1]\n" + RUN
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        json.dumps({"socket": nowhere}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    server = Process(started)
    assert await asyncio.wait_for(server.stderr.readline(), DEADLINE_S) == b"reading\n"
    started.terminate()
    assert await server.status() == 0
    assert await server.rest() == ([], "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly_while_the_client_still_holds_the_pipes(number: signal.Signals) -> None:
    shelf = Shelf()
    async with loopback(Daemon(shelf).app) as url, process(url=url, token="tk_ann") as server:
        for message in (INITIALIZE, INITIALIZED, call(1, "claim_next", wait_s=50)):
            server.send(message)
        await server.read()
        await until(lambda: shelf.waiting)
        server.process.send_signal(number)
        assert await server.status() == 0
        await until(lambda: not shelf.waiting)
        assert (await server.rest())[1] == ""


async def test_a_call_given_up_by_the_client_gives_up_the_claim() -> None:
    shelf = Shelf()
    async with loopback(Daemon(shelf).app) as url, process(url=url, token="tk_ann") as server:
        for message in (INITIALIZE, INITIALIZED, call(1, "claim_next", wait_s=50)):
            server.send(message)
        await server.read()
        await until(lambda: shelf.waiting)
        server.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await until(lambda: not shelf.waiting)
        server.send({"jsonrpc": "2.0", "id": 2, "method": "ping"})
        assert await server.read() == {"jsonrpc": "2.0", "id": 2, "result": {}}


@pytest.mark.parametrize(
    "line", [b"nonsense", b"\xff\xfe\x00", b"[]", b"[" * 10_000, b"x" * (9 * 1024 * 1024), b'{"jsonrpc":"2.0"}']
)
async def test_lines_that_are_no_message_do_no_harm(nowhere: str, line: bytes) -> None:
    async with process(socket=nowhere) as server:
        server.send(INITIALIZE)
        await server.read()
        server.send(INITIALIZED)
        server.send(line)
        server.send(b"")
        server.send({"jsonrpc": "2.0", "id": 7, "method": "ping"})
        answer = await server.read()
        while answer.get("id") != 7:
            assert "error" in answer
            answer = await server.read()
        assert answer["result"] == {}


async def test_nothing_but_messages_is_on_stdout(nowhere: str) -> None:
    code = (
        "import asyncio, logging, sys\n"
        "from postroom.doors.mcp import stdio\n"
        "from tests.doors.memory_desk import MemoryDesk, Shelf\n"
        "class Loud(MemoryDesk):\n"
        "    post = None\n"
        "    async def get(self, id):\n"
        "        print('stray'); sys.stdout.flush(); logging.getLogger('x').warning('logged')\n"
        "        raise RuntimeError('broken')\n"
        "logging.basicConfig(stream=sys.stderr)\n"
        "raise SystemExit(asyncio.run(stdio.serve(lambda: Loud(Shelf()))))\n"
    )
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        cwd=Path(__file__).parents[2],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    server = Process(started)
    for message in (INITIALIZE, INITIALIZED, call(1, "get_todo", id="td_x")):
        server.send(message)
    server.stdin.close()
    answers, logged = await server.rest()
    assert [answer["id"] for answer in answers] == [0, 1]
    assert answers[1]["result"]["structuredContent"]["error"]["code"] == "internal"
    assert "stray" in logged
    assert "logged" in logged
    assert await server.status() == 0
