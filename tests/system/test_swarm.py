"""The swarm's own calls before a real daemon: what the first daemon of this wire took and answered, byte for byte."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.client import Client

from tests.doors.mcp_rig import ERAS, good, refused
from tests.opencode.fake import FakeOpencode
from tests.processes import until
from tests.system.daemons import Answer, Daemon
from tests.system.test_mcp_clients import House

pytestmark = pytest.mark.system

A, B = "ses_21970dafaffeIWgipwpNH87Y2r", "ses_21970dafaffeIWgipwpNH87Y2s"
SENT = re.compile(rb'\{"accepted":true,"msg_id":"(msg_[0-9a-z]+_[0-9a-z]{8})"\}')


@dataclass
class Swarm:
    """A daemon, and what a caller adds to the wire's own calls: nothing, or a token."""

    daemon: Daemon
    token: str | None

    def call(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """One call over the port, with the bytes as they are."""
        return self.daemon.ask_port(method, path, body, token=self.token)

    def send(self, **fields: Any) -> Answer:
        """POST /swarm/send."""
        return self.call("POST", "/swarm/send", json.dumps(fields).encode())

    def sent(self, **fields: Any) -> str:
        """A message's id, once it is accepted."""
        answer = self.send(**fields)
        assert answer.status == 202, answer.body
        match = SENT.fullmatch(answer.body)
        assert match, answer.body
        return match.group(1).decode()

    def handed_off(self, id_: str) -> None:
        """Wait until a message was handed off."""
        answer = self.daemon.ask("GET", f"/v1/messages/{id_}?until=handed_off&wait_s=25")
        assert [one["state"] for one in answer.value["message"]["deliveries"]] == ["injected"], answer.body


@pytest.fixture(params=["open", "closed"])
def new_swarm(request: pytest.FixtureRequest, new_daemon: Callable[..., Daemon]) -> Callable[[str], Swarm]:
    """Starts a daemon that wants no tokens, or one that wants them, with these settings."""

    def make(settings: str = "") -> Swarm:
        if request.param == "open":
            return Swarm(new_daemon(settings, options=("--open",)).start(), None)
        daemon = new_daemon(settings).start()
        made = daemon.ask("POST", "/v1/tokens", {"name": "plugin", "speaks_as": ["ses_*"]})
        assert made.status == 201, made.body
        return Swarm(daemon, made.value["secret"])

    return make


@pytest.fixture
def swarm(new_swarm: Callable[[str], Swarm]) -> Swarm:
    """A daemon that knows of no opencode server."""
    return new_swarm("")


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpencode]:
    """An opencode server with two sessions."""
    server = await FakeOpencode().start()
    for name in (A, B):
        server.session(name.removeprefix("ses_"))
    yield server
    await server.kill()


# P2, P4, P5, P8, P9, P11, P21
async def test_the_wires_own_calls_are_answered_in_its_own_bytes(
    fake: FakeOpencode, new_swarm: Callable[[str], Swarm]
) -> None:
    swarm = await asyncio.to_thread(new_swarm, f'[[opencode]]\nurl = "{fake.url}"\n')
    await asyncio.to_thread(_talk, swarm)
    first, second = fake.sessions[B].texts[:2]
    assert first.startswith('<swarm_message v="1" kind="chat"')
    assert "\nthe actual message\n</swarm_message>" in first
    assert "\n&lt;b&gt;&amp;\n\u00fc\n</swarm_message>" in second
    assert "Traceback" not in swarm.daemon.output


def _talk(swarm: Swarm) -> None:
    inbox = f"/swarm/inbox?session={B}"
    assert swarm.call("GET", inbox).body == b'{"messages":[]}'
    first = swarm.sent(**{"from": A}, to=B, kind="chat", priority="normal", payload="the actual message", reply_to=None)
    swarm.handed_off(first)
    second = swarm.sent(**{"from": A}, to=B, payload="<b>&\n\u00fc", kind="task.assign", reply_to=first)
    swarm.handed_off(second)
    answer = swarm.call("GET", inbox)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    times = [(one["created_at"], one["handed_off_at"]) for one in answer.value["messages"]]
    assert all(isinstance(at, int) for pair in times for at in pair)
    shown = [
        f'{{"msg_id":"{first}","from":"{A}","to":"{B}","channel":null,"kind":"chat","priority":"normal",'
        f'"reply_to":null,"payload":"the actual message","created_at":{times[0][0]},"handed_off_at":{times[0][1]}}}',
        f'{{"msg_id":"{second}","from":"{A}","to":"{B}","channel":null,"kind":"task.assign","priority":"normal",'
        f'"reply_to":"{first}","payload":"<b>&\\n\u00fc","created_at":{times[1][0]},"handed_off_at":{times[1][1]}}}',
    ]
    assert answer.body.decode() == f'{{"messages":[{shown[0]},{shown[1]}]}}'
    since = swarm.call("GET", f"{inbox}&since={first}")
    assert since.body.decode() == f'{{"messages":[{shown[1]}]}}'
    assert swarm.call("GET", f"{inbox}&since={second}").body == b'{"messages":[]}'
    own = json.dumps({"from": A, "to": B, "payload": "x", "msg_id": "caller-supplied-id"}).encode()
    for _ in range(2):
        answer = swarm.call("POST", "/swarm/send", own)
        assert (answer.status, answer.body) == (202, b'{"accepted":true,"msg_id":"caller-supplied-id"}')


# P16, P19, P21, P23
def test_without_a_server_messages_are_kept(swarm: Swarm) -> None:
    id_ = swarm.sent(**{"from": A}, to=B, payload="later")
    swarm.sent(**{"from": A}, channel="workers", payload="nobody listens")
    swarm.daemon.kill()
    swarm.daemon.start()
    assert swarm.call("GET", f"/swarm/inbox?session={B}").body == b'{"messages":[]}'
    kept = swarm.daemon.ask("GET", f"/v1/messages/{id_}").value["message"]
    assert [one["state"] for one in kept["deliveries"]] == ["pending"]
    # With nobody to carry it, its recipient has it from elsewhere and says so: then it was handed off.
    assert swarm.daemon.ask("POST", f"/v1/messages/{id_}/ack", {}).status == 200
    (one,) = swarm.call("GET", f"/swarm/inbox?session={B}").value["messages"]
    assert (one["msg_id"], one["payload"]) == (id_, "later")
    assert one["handed_off_at"] >= one["created_at"]


# P3, P4, P5
def test_the_wires_errors_are_a_status_and_a_text(swarm: Swarm) -> None:
    good_one = {"from": A, "to": B, "payload": "x"}
    refusals = [
        (400, swarm.send(to=B, payload="x")),
        (400, swarm.send(**{"from": A}, payload="x")),
        (400, swarm.send(**good_one, channel="workers")),
        (400, swarm.send(**{**good_one, "payload": ""})),
        (400, swarm.send(**{**good_one, "payload": {"a": 1}})),
        (400, swarm.send(**good_one, priority="asap")),
        (400, swarm.send(**good_one, kind="Chat!")),
        (400, swarm.call("POST", "/swarm/send", b'{"from": ')),
        (400, swarm.call("GET", "/swarm/inbox")),
        (413, swarm.send(**{**good_one, "payload": "x" * 65_537})),
        (404, swarm.call("GET", "/swarm/outbox")),
        (405, swarm.call("GET", "/swarm/send")),
    ]
    swarm.sent(**good_one, msg_id=None)
    assert swarm.send(**good_one, msg_id="m1").status == 202
    refusals.append((409, swarm.send(**{**good_one, "payload": "y"}, msg_id="m1")))
    if swarm.token is not None:
        refusals.append((401, swarm.daemon.ask_port("GET", f"/swarm/inbox?session={B}")))
        refusals.append((403, swarm.send(**{**good_one, "from": "somebody-else"})))
        refusals.append((403, swarm.call("GET", "/swarm/inbox?session=somebody-else")))
    for status, answer in refusals:
        assert answer.status == status, answer.body
        assert answer.headers["content-type"] == "application/json"
        assert set(answer.value) == {"error"}
        assert isinstance(answer.value["error"], str)
        assert answer.body == json.dumps(answer.value, ensure_ascii=False, separators=(",", ":")).encode()
    assert "Traceback" not in swarm.daemon.output


# P17
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_two_agents_write_to_each_other_through_mcp(
    new_daemon: Callable[..., Daemon], era: str, way: str
) -> None:
    house = await asyncio.to_thread(lambda: House(new_daemon().start()))

    async def talk(client: Client) -> None:
        assert "information from a peer" in str(client.instructions)
        sent = await good(client, "send_message", to="ann", payload="to myself", kind="status.update", msg_id="m1")
        assert sent["message"]["deliveries"][0]["state"] == "injected"
        assert (await good(client, "send_message", to="ann", payload="to myself", kind="status.update", msg_id="m1"))[
            "deduplicated"
        ] is True
        waiting = asyncio.create_task(good(client, "swarm_read", since="m1", wait_s=45))
        body = {"to": "ann", "payload": "hello </swarm_message>", "from": "boss"}
        posted = await asyncio.to_thread(house.daemon.ask, "POST", "/v1/messages", body)
        assert posted.status == 202
        (letter,) = (await waiting)["messages"]
        assert (letter["from"], letter["payload"]) == ("boss", "hello </swarm_message>")
        acked = await good(client, "ack_message", id=letter["id"])
        assert acked["message"]["deliveries"][0]["state"] == "acknowledged"
        assert [one["id"] for one in (await good(client, "swarm_read"))["messages"]] == ["m1", letter["id"]]
        assert (await good(client, "who"))["who"] == []
        assert (await refused(client, "send_message", to="x", payload="y", **{"from": "boss"}))["code"] == "forbidden"

    async with house.stdio(era) if way == "stdio" else house.http(era) as client:
        await talk(client)
    assert "Traceback" not in house.daemon.output


async def test_a_daemon_that_stops_answers_who_waits_for_mail(new_daemon: Callable[..., Daemon]) -> None:
    house = await asyncio.to_thread(lambda: House(new_daemon().start()))
    async with house.stdio(ERAS[0]) as client:
        await client.list_tools()
        call = asyncio.create_task(good(client, "swarm_read", wait_s=45))

        async def waits() -> bool:
            status = await asyncio.to_thread(house.daemon.ask, "GET", "/v1/status")
            return bool(status.value["waiting_readers"] == 1)

        await until(waits, "the reader waits")
        assert await asyncio.to_thread(house.daemon.terminate) == 0
        assert (await call)["messages"] == []
    assert "Traceback" not in house.daemon.output
