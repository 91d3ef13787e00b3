"""The installed plugin in a real opencode: what a model sends and reads there, before a real daemon (marked `opencode`)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroom.carriers.envelope import Envelope, parse
from postroom.errors import Invalid
from postroom.message import Priority
from tests.opencode.model import ModelServer
from tests.opencode.real import VERSIONS, RealOpencode
from tests.processes import Processes, until
from tests.system.daemons import Daemon, command

pytestmark = pytest.mark.opencode

SECONDS = 120.0
PLACE = Path(".opencode/plugin/postroom.js")


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call in a session's transcript, once it is over: its name, what it was given, and what it gave back."""

    tool: str
    given: dict[str, Any]
    gave: dict[str, Any]


@dataclass
class House:
    """A daemon, and an opencode whose project has the plugin as `postroom setup` puts it there."""

    daemon: Daemon
    opencode: RealOpencode
    model: ModelServer

    async def told(self, session: str) -> list[Envelope]:
        """The envelopes in a session's transcript."""
        found = []
        for record in await self.opencode.messages(session):
            if record["info"]["role"] == "user":
                try:
                    found.append(parse("".join(part.get("text", "") for part in record["parts"])))
                except Invalid:
                    continue
        return found

    async def called(self, session: str) -> list[Called]:
        """The session's tool calls that are over, in order."""
        parts = [part for record in await self.opencode.messages(session) for part in record["parts"]]
        states = [(part["tool"], part["state"]) for part in parts if part["type"] == "tool"]
        assert all(state["status"] != "error" for _, state in states), states
        return [
            Called(tool, state["input"], json.loads(state["output"]))
            for tool, state in states
            if state["status"] == "completed"
        ]

    async def hears(self, session: str, id_: str) -> Envelope:
        """The envelope of a message, once the session's transcript has it."""

        async def there() -> Envelope | None:
            return next((one for one in await self.told(session) if one.msg_id == id_), None)

        found: Envelope = await until(there, f"the session has {id_}", SECONDS)
        return found

    async def calls(self, session: str, number: int) -> Called:
        """The session's tool call of this number, from 1, once it is over."""

        async def over() -> Called | None:
            calls = await self.called(session)
            return calls[number - 1] if len(calls) >= number else None

        found: Called = await until(over, f"call {number} is over", SECONDS)
        return found

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What the daemon answers."""
        answer = await asyncio.to_thread(self.daemon.ask, method, path, body)
        assert answer.status < 300, answer.body
        return answer.value

    async def send(self, sender: str, to: str, payload: str) -> str:
        """A message sent past the plugin: its id."""
        return str((await self.ask("POST", "/v1/messages", {"from": sender, "to": to, "payload": payload}))["id"])


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder with a short name, since a socket's path may hold about 100 bytes."""
    made = Path(tempfile.mkdtemp(prefix="postroom-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(params=VERSIONS)
async def house(
    request: pytest.FixtureRequest, tmp_path: Path, folder: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[House]:
    for name in list(os.environ):
        if name.startswith("POSTROOM_"):
            monkeypatch.delenv(name)
    # Neither settings nor data of whoever runs the tests are looked at.
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    model = await ModelServer(strict=True).start()
    place = tmp_path / "opencode"
    place.mkdir()
    # Started once for its port: the daemon is told of it, and the plugin is read at the next start.
    opencode = await RealOpencode(request.param, place, model).start()
    opencode.kill()
    daemon = Daemon(processes, folder, f'[[opencode]]\nurl = "{opencode.url}"\n')
    await asyncio.to_thread(daemon.start)
    await asyncio.to_thread(install, daemon, place / "work")
    await opencode.start()
    yield House(daemon, opencode, model)
    await opencode.close()
    await model.stop()


def install(daemon: Daemon, project: Path) -> None:
    """Put the plugin there as its users do."""
    words = ("setup", "opencode", "--project", str(project), "--data", str(daemon.folder), "--write")
    done = subprocess.run([command(), *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (project / PLACE).is_file()


def call(tool: str, **args: Any) -> str:
    """A text that the model answers with this tool call."""
    return f"[[call {tool} {json.dumps(args)}]]"


# P17, P8, P21: each session speaks under its own id, and what one sends the other reads.
async def test_the_model_sends_and_reads(house: House) -> None:
    first, second = await house.opencode.session(), await house.opencode.session()
    body = {"to": second, "payload": "look at <b>this</b> & that", "msg_id": "mine.1", "kind": "task.assign"}
    await house.opencode.prompt(first, f"[[session {first}]] {call('swarm_send', **body, priority='low')}")
    sent = await house.calls(first, 1)
    assert sent == Called(
        "swarm_send",
        {**body, "priority": "low"},
        {
            "accepted": True,
            "msg_id": "mine.1",
            "deduplicated": False,
            "deliveries": [{"to": second, "state": "pending"}],
        },
    )
    assert {"swarm_send", "swarm_read"} <= set(house.model.asked[0].tools)
    heard = await house.hears(second, "mine.1")
    assert heard == Envelope("task.assign", first, "mine.1", body["payload"], to=second, priority=Priority.LOW)
    # It was sent with the token that speaks for sessions alone.
    message = (await house.ask("GET", "/v1/messages/mine.1"))["message"]
    assert message["created_by"].startswith("opencode-")

    # The other one is told to look into its inbox, which has both, and then to answer.
    asking = await house.send(first, second, call("swarm_read"))
    read = await house.calls(second, 1)
    assert read.tool == "swarm_read"
    (one, *_) = read.gave["messages"]
    assert (one["msg_id"], one["from"], one["payload"]) == ("mine.1", first, body["payload"])
    await house.send(first, second, call("swarm_read", since="mine.1"))
    since = await house.calls(second, 2)
    assert [one["msg_id"] for one in since.gave["messages"]][:1] == [asking]
    await house.send(first, second, call("swarm_send", to=first, payload="done", reply_to="mine.1", msg_id="mine.2"))
    assert (await house.calls(second, 3)).gave["accepted"] is True
    heard = await house.hears(first, "mine.2")
    assert (heard.sender, heard.to, heard.payload, heard.reply_to) == (second, first, "done", "mine.1")


# P3, P4, P17
async def test_the_model_is_told_what_is_wrong(house: House) -> None:
    session = await house.opencode.session()
    await house.opencode.prompt(session, f"[[session {session}]] {call('swarm_send', payload='to nobody')}")
    refused = (await house.calls(session, 1)).gave["error"]
    assert (refused["code"], refused["field"]) == ("invalid", "to")
    await until(lambda: house.opencode.idle(session), "the turn is over", SECONDS)
    await asyncio.to_thread(house.daemon.kill)
    await house.opencode.prompt(session, call("swarm_read"))
    away = (await house.calls(session, 2)).gave["error"]
    assert away["code"] == "unavailable"
    assert "postroom serve" in away["hint"]
