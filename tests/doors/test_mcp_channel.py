"""A channel on stdio: what comes for the agent is pushed to its client, and its tools work from where it sits."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from postroom.carriers.courier import Courier
from postroom.doors.cli.main import build
from postroom.doors.cli.seat import seat_of
from postroom.doors.mcp.channel import ChannelLine, Handshake, Keeper, _left, notification
from postroom.doors.mcp.channel_seat import Seat, SeatedPost
from postroom.doors.mcp.channel_words import INSTRUCTIONS
from postroom.doors.mcp.greeting import greet
from postroom.doors.mcp.stdio import daemon
from postroom.endpoint import CarrierKind, EndpointFilter, NewEndpoint
from postroom.errors import NotFound, Unavailable
from postroom.limits import MINUTE
from postroom.mail_client import ClientPost
from postroom.message import Delivery, NewMessage
from postroom.model import NewTodo
from postroom.store.sqlite import SqliteEngine
from tests.doors.command import leave
from tests.doors.http_rig import ROOT, Rig
from tests.doors.mcp_rig import good, loopback
from tests.doors.test_mcp_stdio import INITIALIZE, INITIALIZED, Process, call, modern, parameters, process
from tests.processes import until


class Place:
    """A daemon in small, with a courier that carries to channels, and processes that sit at it."""

    def __init__(self, rig: Rig, url: str) -> None:
        self.rig = rig
        self.office = rig.office
        self.url = url

    def arguments(self, who: str = "root", **seat: Any) -> dict[str, Any]:
        """What a process is started with."""
        return {"url": self.url, "token": self.rig.secrets[who], "channel": {"name": "claude", **seat}}

    async def seated(self, name: str = "claude", but: str = "") -> Any:
        """The endpoint of this name, once there is one whose process waits."""

        async def there() -> Any:
            found = await self.office.registry.find(ROOT, EndpointFilter(name=name))
            waiting = [one for one in found if one.id != but and one.reach in self.rig.channel.reaches]
            return waiting[0] if waiting else None

        return await until(there, f"{name} is there")

    def move(self, ms: int) -> None:
        """Let so much time pass."""
        engine = self.office.engine
        assert isinstance(engine, SqliteEngine)
        engine.skew += ms

    async def send(self, payload: str = "hello", **more: Any) -> str:
        """A message for claude."""
        return (await self.office.post.send(ROOT, NewMessage(payload, to="claude", **more))).id

    async def delivery(self, id_: str) -> Delivery:
        """Its delivery."""
        (one,) = (await self.office.post.get(ROOT, id_)).deliveries
        return one

    async def state(self, id_: str, state: str) -> Delivery:
        """Its delivery, once it is in this state."""

        async def come() -> Delivery | None:
            one = await self.delivery(id_)
            return one if one.state == state else None

        found: Delivery = await until(come, f"{id_} is {state}")
        return found


@pytest.fixture
async def place(rig: Rig) -> AsyncIterator[Place]:
    courier = Courier(rig.office.dispatch, {rig.channel.kind: rig.channel}, rig.office.wake)
    running = asyncio.create_task(courier.run())
    async with loopback(rig.app) as url:
        yield Place(rig, url)
        rig.channel.hang_up()
    await courier.close()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def seat(place: Place, **more: Any) -> AsyncIterator[Process]:
    """A process whose client makes the handshake as Claude Code does: where discovery is answered, it takes no push."""
    async with process(**place.arguments(**more)) as server:
        server.send({**modern(0, "server/discover"), "id": "probe-1"})
        refusal = await server.read()
        assert (refusal["id"], refusal["error"]["code"]) == ("probe-1", -32601)
        assert "begin with initialize" in refusal["error"]["message"]
        server.send(INITIALIZE)
        answer = (await server.read())["result"]
        assert answer["capabilities"]["experimental"] == {"claude/channel": {}}
        assert answer["instructions"] == INSTRUCTIONS
        server.send(INITIALIZED)
        yield server


async def push(server: Process) -> dict[str, Any]:
    """The next line, which must be a push: its parameters."""
    line = await server.read()
    assert line["method"] == "notifications/claude/channel"
    assert "id" not in line
    params: dict[str, Any] = line["params"]
    assert set(params) == {"content", "meta"}
    assert all(isinstance(value, str) and name.isidentifier() for name, value in params["meta"].items())
    return params


async def tool(server: Process, number: int, name: str, **arguments: Any) -> dict[str, Any]:
    """A call's structured answer."""
    server.send(call(number, name, **arguments))
    answer = await server.read()
    assert answer["id"] == number
    structured: dict[str, Any] = answer["result"]["structuredContent"]
    return structured


async def test_what_comes_is_pushed_and_its_tools_settle_it(place: Place) -> None:
    async with seat(place, directory="/home/ann", host="here") as server:
        endpoint = await place.seated()
        assert endpoint.address["directory"] == "/home/ann"
        first = await place.send("one")
        shown = await push(server)
        assert shown["meta"] == {"message_id": first, "sender": "root", "kind": "chat", "priority": "normal"}
        assert shown["content"].endswith("]\none")
        assert (await place.state(first, "pending")).delivered_at is None
        # Its acknowledgement, without a word of who it is.
        assert (await tool(server, 1, "ack_message", id=first))["message"]["deliveries"][0]["state"] == "acknowledged"
        # Read in its own inbox, which it need not name.
        second = await place.send("two")
        assert (await push(server))["meta"]["message_id"] == second

        async def letters() -> list[str]:
            return [one["id"] for one in (await tool(server, 2, "swarm_read", since=first))["messages"]]

        assert await until(letters, "it stands in the inbox") == [second]
        await place.state(second, "injected")
        # Answered, from its own name: whoever answers has read.
        third = await place.send("three?")
        await push(server)
        answer = await tool(server, 3, "send_message", to="root", payload="three!", reply_to=third)
        assert (await place.office.post.get(ROOT, answer["id"])).message.sender == "claude"
        await place.state(third, "acknowledged")
        server.stdin.close()
        assert await server.status() == 0
        assert (await place.office.registry.get(ROOT, endpoint.id)).ended_at is not None


async def test_a_ring_is_repeated_while_nobody_claims_and_stops_when_somebody_does(place: Place) -> None:
    doorbell, queues = place.office.doorbell, ["inbox"]
    async with seat(place, queues=queues) as server:
        endpoint = await place.seated()
        todo = (await place.rig.create())["id"]
        assert await doorbell.once() == 1
        ring = await push(server)
        assert {name: ring["meta"][name] for name in ("kind", "queue", "todo_id")} == {
            "kind": "queue.ring",
            "queue": "inbox",
            "todo_id": todo,
        }
        assert await place.office.doorbell.once() == 0

        async def settled() -> bool:
            return (await place.delivery(ring["meta"]["message_id"])).doubtful

        await until(settled, "the push is settled")
        place.move(5 * MINUTE)
        await place.office.registry.touch([endpoint.id])
        assert await doorbell.once() == 1
        again = await push(server)
        assert again["meta"]["message_id"] != ring["meta"]["message_id"]
        claimed = await tool(server, 1, "claim_next", queues=queues, wait_s=0)
        assert claimed["todos"][0]["owner"] == "root/claude"
        await doorbell.turn()
        last = await place.state(again["meta"]["message_id"], "failed")
        assert last.reason == "cancelled"
        place.move(20 * MINUTE)
        await place.office.registry.touch([endpoint.id])
        assert await doorbell.once() == 0


async def test_a_daemon_that_forgot_it_is_told_anew(place: Place) -> None:
    async with seat(place, host="here") as server:
        endpoint = await place.seated()
        await place.office.registry.end(endpoint.id)
        # Its wait is over; the next one says that the endpoint has ended.
        place.rig.channel._seats[endpoint.id].waiting.set_result(None)  # type: ignore[union-attr]
        again = await place.seated(but=endpoint.id)
        assert again.ended_at is None
        sent = await place.send()
        assert (await push(server))["meta"]["message_id"] == sent
        server.process.send_signal(signal.SIGTERM)
        assert await server.status() == 0
        assert (await place.office.registry.get(ROOT, again.id)).ended_at is not None


async def test_a_program_calls_tools_through_it_and_an_agents_token_has_its_own_name(place: Place) -> None:
    arguments = place.arguments("bob", name="folder", derived=True)
    # It knows both eras, and is led to the older one.
    async with Client(parameters(**arguments)) as client:
        assert (client.protocol_version, client.instructions) == ("2025-11-25", INSTRUCTIONS)
        endpoint = await place.seated("bob")
        assert (endpoint.name, endpoint.created_by) == ("bob", "bob")
        assert await place.office.registry.find(ROOT, EndpointFilter(name="folder")) == []
        (me,) = (await good(client, "who"))["who"]
        assert (me["name"], me["carrier"], me["live"]) == ("bob", "channel", True)
        made = await good(client, "create_for", queue="inbox", title="t")
        (todo,) = (await good(client, "claim_next", queues=["inbox"], wait_s=0))["todos"]
        assert (todo["id"], todo["owner"]) == (made["todo"]["id"], "bob/folder")


async def test_without_the_handshake_the_tools_work_and_it_says_what_is_missing(place: Place) -> None:
    async with process(**place.arguments()) as server:
        server.send(modern(2, "tools/list"))
        assert len((await server.read())["result"]["tools"]) == 13
        server.send(modern(3, "server/discover"))
        assert (await server.read())["error"]["code"] == -32601
        assert await place.office.registry.find(ROOT, EndpointFilter()) == []
        server.stdin.close()
        assert await server.status() == 0
        assert "did not make the initialize handshake: nothing can be pushed to it" in (await server.rest())[1]


async def test_further_sessions_of_a_folder_have_names_of_their_own(place: Place) -> None:
    other = NewEndpoint(CarrierKind.CHANNEL, {"pid": os.getppid(), "host": "here"}, "channel:", "process:", name="shop")
    await place.office.registry.attach(ROOT, other)
    dial = daemon(place.url, place.rig.secrets["root"])

    async def nothing(_: str) -> None:
        raise AssertionError("nothing comes")

    async def name(seat: Seat) -> tuple[str | None, int]:
        line = ChannelLine(dial, None, seat)
        made = await Keeper(line, nothing, asyncio.Event())._attach()
        await line.hang_up()
        found = await place.office.registry.find(ROOT, EndpointFilter(name=made.name))
        return made.name, len(found)

    derived = Seat("shop", derived=True, host="here")
    assert await name(derived) == ("shop-2", 1)
    # What this very process attached before, and has no answer of, ends.
    assert await name(derived) == ("shop-2", 1)
    assert await name(Seat("shop", host="here")) == ("shop", 2)


async def test_sessions_of_one_token_have_names_that_begin_with_the_tokens(place: Place) -> None:
    _, secret = await place.office.tokens.create(ROOT, "claude-1", speaks_as=["claude-1-*"])
    dial = daemon(place.url, secret)

    async def nothing(_: str) -> None:
        raise AssertionError("nothing comes")

    seen = []
    for folder in ("shop", "blog"):
        line = ChannelLine(dial, None, Seat(folder, derived=True, host="here"))
        made = await Keeper(line, nothing, asyncio.Event())._attach()
        todo = await place.office.todos.create(ROOT, NewTodo("inbox", folder, assignee=f"claude-1/{made.name}"))
        (held,) = await line.desk().claim_next(["inbox"], worker=line._worker)
        await line.hang_up()
        assert held.id == todo.todo.id
        seen.append((made.name, held.owner))
    assert seen == [(f"claude-1-{one}", f"claude-1/claude-1-{one}") for one in ("shop", "blog")]


# Its parts.


def test_the_instructions_are_short_and_say_what_a_push_is() -> None:
    assert len(INSTRUCTIONS) <= 1200
    for word in ("grants no authority", "ack_message", "send_message", "claim_next", "lease_id", "swarm_read"):
        assert word in INSTRUCTIONS


def test_a_push_is_one_line() -> None:
    line = notification("a\nb\u2028c", {"kind": "chat"})
    assert line.count("\n") == 1
    assert line.endswith("\n")


def test_only_the_handshake_is_promised_pushes() -> None:
    hello = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    hello += b'"clientInfo":{"name":"c","version":"1"}}}'
    plain, pushing = greet(hello), greet(hello, channel=True)
    assert plain is not None
    assert pushing is not None
    assert b"claude/channel" not in plain[1]
    assert b'"experimental":{"claude/channel":{}}' in pushing[1]


async def test_the_handshake_is_known_by_its_last_word() -> None:
    async def lines() -> AsyncIterator[str]:
        for line in (
            "no json",
            '{"method": "server/discover", "id": 7}',
            '{"method": "initialize", "id": 1}',
            "[]",
            '{"method": "notifications/initialized"}',
        ):
            yield line

    said: list[str] = []

    async def say(line: str) -> None:
        said.append(line)

    handshake = Handshake(lines(), say)
    seen = [(line, handshake.made.is_set()) async for line in handshake]
    assert [made for _, made in seen] == [False, False, False, True]
    assert [json.loads(line)["id"] for line in said] == [7]


def test_what_a_killed_process_left_is_known_by_its_number() -> None:
    here = Seat("a", host="here")
    ended = os.fork()
    if ended == 0:
        os._exit(0)
    os.waitpid(ended, 0)
    assert _left({"pid": ended, "host": "here"}, here)
    assert _left({"pid": os.getpid(), "host": "here"}, here)
    assert not _left({"pid": os.getppid(), "host": "here"}, here)
    assert not _left({"pid": ended, "host": "there"}, here)
    assert not _left({"pid": ended}, Seat("a"))
    assert not _left({"host": "here"}, here)


async def test_an_ack_that_is_not_for_the_seat_goes_as_it_would_without_one() -> None:
    asked: list[Any] = []

    async def calls(method: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        asked.append(body)
        if len(asked) == 1:
            raise NotFound("msg_1 has no delivery to 'claude'", field="endpoint")
        raise Unavailable("so far")

    post = SeatedPost(ClientPost(calls), "claude")
    with pytest.raises(Unavailable):
        await post.ack("msg_1")
    assert asked == [b'{"endpoint":"claude"}', b"{}"]


@contextmanager
def _in(folder: Any) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--name", "x"), "go with --channel"),
        (("--queue", "inbox"), "go with --channel"),
        (("--no-rings",), "go with --channel"),
        (("--channel", "--name", "a b"), "--name 'a b' is no name"),
        (("--channel", "--agent", "a/b"), "--agent 'a/b' is no name"),
        (("--channel", "--queue", "A"), "--queue 'A' is no queue name"),
        (("--channel", "--subscribe", "-"), "--subscribe '-' is no queue name"),
        (("--channel", "--repo", "a\nb"), "--repo is expected to be one line"),
        (("--channel", "--repo", "a", "--no-repo"), "exclude each other"),
        (("--channel", "--ack", "never"), "--ack"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave("mcp", *words) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_the_folder_names_who_sits_in_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, Any] = {"name": None, "agent": None, "queues": (), "channels": (), "repositories": ()}
    nothing |= {"no_repository": False, "no_rings": False, "ack": None}
    monkeypatch.setenv("GITA_PROJECT_HOME", str(tmp_path))
    monkeypatch.delenv("POSTROOM_AGENT", raising=False)
    folder = tmp_path / "my repo (old)"
    (folder / ".git").mkdir(parents=True)
    with _in(folder):
        made = seat_of(**nothing)
        assert (made["name"], made["derived"], made["repositories"]) == ("my-repo-old", True, ())
        (tmp_path / "gita").mkdir()
        (tmp_path / "gita" / "repos.csv").write_text(f"{folder},shop,,\n")
        made = seat_of(**nothing)
        assert (made["name"], made["derived"], made["repositories"]) == ("shop", True, ("shop",))
        assert seat_of(**{**nothing, "no_repository": True})["repositories"] == ()
        monkeypatch.setenv("POSTROOM_AGENT", "ann")
        assert (seat_of(**nothing)["name"], seat_of(**nothing)["derived"]) == ("ann", False)
        assert seat_of(**{**nothing, "agent": "bob"})["name"] == "bob"
        assert seat_of(**{**nothing, "agent": "bob", "name": "cid"})["name"] == "cid"


def test_the_page_names_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "claude-code.md").read_text("utf-8")
    rows = page.split("\n| option |", 1)[1].split("\n\n", 1)[0]
    named = set(re.findall(r"--[a-z-]+", rows))
    known = {option for parameter in build("mcp").commands["mcp"].params for option in parameter.opts}
    assert known <= named
    assert '"args": ["mcp", "--channel", "--name", "ann", "--queue", "review"]' in page
