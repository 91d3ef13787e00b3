"""The parts joined up, in a real opencode (marked `opencode`): a webhook rings a session, its model claims, does the work
and completes it through the tools that `postroom setup` gave it, and tells an agent in a tmux pane, who acknowledges.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroom.demos.curtain import Curtain
from postroom.demos.panes import Pane, Panes
from postroom.demos.stage import Stage
from tests.opencode.model import ModelServer
from tests.opencode.real import CURRENT, RealOpencode
from tests.opencode.wire import Answer
from tests.processes import Processes, until
from tests.sources.signing import SECRET
from tests.system.daemons import Daemon, command

pytestmark = pytest.mark.opencode

SECONDS = 120.0
QUEUE = "inbox"
SETTINGS = """\
[[source]]
name = "github"
provider = "github"
secrets_file = "webhook-secret"
preset = "github"
queue = "{queue}"

[[opencode]]
url = "{url}"

"""
READER = "bob"
BEFORE = ["received", "verified", "decided", "routed", "created"]
SAMPLE = Path(__file__).parents[2] / "src" / "postroom" / "samples" / "github.issues.opened.json"
LOOKED_AT = re.compile(r" ring (seen|answered) ")
PAGE = Path(__file__).parents[2] / "docs" / "joined.md"


class Worker(ModelServer):
    """A model that, rung, claims, completes what it got, and tells the reader; each step from the last tool's result."""

    async def _asked(self, body: dict[str, Any], session: str, texts: list[tuple[str, str]]) -> Answer:
        last = max((place for place, (role, _) in enumerate(texts) if role == "user"), default=-1)
        if last < 0 or "claim_next(" not in texts[last][1]:
            return await super()._asked(body, session, texts)
        results = [text for role, text in texts[last:] if role == "tool"]
        match len(results):
            case 0:
                return self._call(body, "claim_next", queues=[QUEUE], wait_s=0)
            case 1:
                todo = json.loads(results[0])["todos"][0]
                done = {"summary": "the spelling is mended"}
                return self._call(body, "complete", id=todo["id"], lease_id=todo["lease_id"], result=done)
            case 2:
                todo = json.loads(results[1])["todo"]
                said = f"{todo['title']}: done, please look at it"
                return self._call(body, "send_message", to=READER, payload=said, correlation_id=todo["id"])
            case _:
                return self._answer(body, "The work is done, and bob knows.", None)

    def _call(self, body: dict[str, Any], tool: str, **arguments: Any) -> Answer:
        offered = {str(one.get("function", {}).get("name")) for one in body.get("tools") or ()}
        name = f"postroom_{tool}"
        assert name in offered, offered
        return self._answer(body, "", (name, json.dumps(arguments)))


@dataclass(frozen=True, slots=True)
class House:
    """A daemon, an opencode that was set up for it with a token of this name, and an agent in a pane."""

    daemon: Daemon
    opencode: RealOpencode
    name: str
    panes: Panes
    reader: Pane

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """What the daemon answers."""
        answer = await asyncio.to_thread(self.daemon.ask, method, path, body, **more)
        assert answer.status < 300, answer.body
        return answer.value


def run(daemon: Daemon, *words: str) -> str:
    done = subprocess.run(
        [command(), *words, "--data", str(daemon.folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder with a short name, since a socket's path may hold about 100 bytes."""
    made = Path(tempfile.mkdtemp(prefix="postroom-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
async def house(
    tmp_path: Path, folder: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[House]:
    for variable in list(os.environ):
        if variable.startswith("POSTROOM_"):
            monkeypatch.delenv(variable)
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    model = await Worker(strict=True).start()
    place = tmp_path / "opencode"
    place.mkdir()
    # Started once for its port: the daemon is told of it, and what setup writes is read at the next start.
    opencode = await RealOpencode(CURRENT, place, model).start()
    opencode.kill()
    stage = Stage(folder, print, Curtain(), SECONDS)
    stage.secret = SECRET
    stage.settle(SETTINGS.format(queue=QUEUE, url=opencode.url))
    panes = Panes(stage)
    daemon = Daemon(processes, folder, env={"XDG_RUNTIME_DIR": str(folder)})
    await asyncio.to_thread(daemon.start)
    name = await asyncio.to_thread(set_up, daemon, place / "work")
    await opencode.start()
    token = await asyncio.to_thread(stage.token, READER)
    reader = await asyncio.to_thread(panes.open, READER, token)
    await asyncio.to_thread(panes.attach, reader, token, "--ack", "acknowledged")
    yield House(daemon, opencode, name, panes, reader)
    await asyncio.to_thread(stage.close)
    await opencode.close()
    await model.stop()


def set_up(daemon: Daemon, project: Path) -> str:
    """Set the project up as its users do: the name of the token that was made for opencode."""
    told = json.loads(run(daemon, "setup", "opencode", "--project", str(project), "--write", "--json"))
    entry = json.loads((project / "opencode.json").read_text("utf-8"))["mcp"]["postroom"]
    assert entry["command"][1] == "mcp"
    (name,) = re.findall(r"^token: (opencode-[0-9a-f]{4}), which ", "\n".join(told["done"]), re.MULTILINE)
    return str(name)


def steps(trace: str) -> list[str]:
    """What happened in a trace as it is printed, in its order; when a turn was looked at is nothing of it."""
    found = [line.split(None, 1)[1] for line in trace.strip().splitlines()[1:] if not LOOKED_AT.search(line)]
    return [re.split(r"\s{2,}", line)[0] for line in found]


def plain(trace: str) -> list[str]:
    """A trace's lines without what differs from run to run; in the order of their words, since some share a moment."""
    for pattern, word in (
        (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
        (r"\b(td|ev|dl|ep|msg|ses)_[A-Za-z0-9_-]+", r"\1_"),
        (r"\bopencode-[0-9a-f]{4}\b", "opencode-"),
        (r" +", " "),
    ):
        trace = re.sub(pattern, word, trace)
    lines = [line.strip() for line in trace.strip().splitlines()]
    return sorted(line for line in lines if not LOOKED_AT.search(line))


def printed(verb: str) -> list[str]:
    """What the page shows below each use of a verb."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [rest for first, _, rest in (block.partition("\n") for block in blocks) if first.startswith(f"$ {verb} ")]


# P8, P14, T34, S22
async def test_a_webhook_comes_to_an_agent_that_does_it_and_tells_another(house: House) -> None:
    session = await house.opencode.session()
    attached = await asyncio.to_thread(run, house.daemon, "attach", "--session", session, "--queue", QUEUE)
    assert f"session {session} as {house.name}" in attached

    received = await asyncio.to_thread(house.daemon.deliver, SAMPLE.read_bytes())
    assert received.status == 202, received.body
    todo: str = received.value["todos"][0]["todo_id"]

    async def told() -> dict[str, Any] | None:
        found = [one for one in (await house.ask("GET", "/v1/messages"))["messages"] if one["to"] == READER]
        return next((one for one in found if one["deliveries"][0]["state"] == "acknowledged"), None)

    message: dict[str, Any] = await until(told, "the reader acknowledges", SECONDS)

    async def over() -> bool:
        story = (await house.ask("GET", f"/v1/trace/{todo}"))["steps"]
        return any(step["what"] == "ring answered" for step in story)

    await until(over, "the turn is over", SECONDS)

    # One story of the work, and of the message about it, as anybody may read it.
    work = await asyncio.to_thread(run, house.daemon, "trace", todo)
    transcript = await house.opencode.messages(session)
    # What the page shows, to be taken from here.
    print(transcript[0]["parts"][0]["text"], work, *house.panes.screen(house.reader), sep="\n")
    told_of = [f"message {what}" for what in ("admitted", "handed off", "acknowledged")]
    assert steps(work) == [*BEFORE, "rung", "ring handed off", "claimed", "done", *told_of]
    assert message["from"] == house.name
    assert message["deliveries"][0]["carrier"] == "tmux"
    assert await asyncio.to_thread(house.panes.times, house.reader, f"[postroom {message['id']}: ") == 1
    calls = [part["tool"] for one in transcript for part in one["parts"] if "tool" in part]
    assert calls == ["postroom_claim_next", "postroom_complete", "postroom_send_message"]
    # The page shows them so.
    assert [plain(shown) for shown in printed("postroom trace")] == [plain(work)]
