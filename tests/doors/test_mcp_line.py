"""The line of a stdio process to its daemon: who it is, what it hears, and what is owed when the input ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from postroom.client import Client
from postroom.doors.mcp import stdio
from postroom.doors.mcp.pipes import Output, Traffic
from postroom.doors.mcp.stdio import agent_of, daemon
from postroom.errors import Invalid, PostroomError, Unauthenticated, Unavailable
from postroom.happening import LAGGED, Happening, HappeningFilter


def test_the_agent_is_named_by_the_caller_or_by_the_environment() -> None:
    named = {"POSTROOM_AGENT": "w1"}
    assert agent_of("w2", named) == "w2"
    assert agent_of(None, named) == "w1"
    assert agent_of(None, {}) is None
    assert agent_of(None, {"POSTROOM_AGENT": ""}) is None
    for given, environ, field in (("a/b", named, "--agent"), (None, {"POSTROOM_AGENT": "a b"}, "POSTROOM_AGENT")):
        with pytest.raises(Invalid, match="is no name") as caught:
            agent_of(given, environ)
        assert caught.value.field == field


@dataclass
class Asked:
    """A request as a middleware is shown it."""

    method: str
    request_id: int = 1
    params: dict[str, object] | None = None


async def test_a_stream_that_is_listened_to_is_not_waited_for_at_the_end_of_input() -> None:
    async def never(_: object) -> None:
        await asyncio.Event().wait()

    traffic = Traffic()
    listening = asyncio.create_task(traffic(cast(Any, Asked("subscriptions/listen")), never))
    await asyncio.sleep(0)
    # An hour of grace: it is over at once, for the end of a stream is its only answer.
    await asyncio.wait_for(traffic.settled(3600), 10)
    reading = asyncio.create_task(traffic(cast(Any, Asked("resources/read")), never))
    await asyncio.sleep(0)
    settling = asyncio.create_task(traffic.settled(3600))
    await asyncio.wait([settling], timeout=0.05)
    assert not settling.done()
    for task in (listening, reading, settling):
        task.cancel()
    await asyncio.gather(listening, reading, settling, return_exceptions=True)


async def test_a_notice_is_no_answer_to_what_is_still_owed_at_the_end_of_input(tmp_path: Path) -> None:
    async def never(_: object) -> None:
        await asyncio.Event().wait()

    traffic = Traffic()
    with (tmp_path / "out").open("wb") as file:
        output = Output(file.fileno(), traffic.answered)
        reading = asyncio.create_task(traffic(cast(Any, Asked("resources/read")), never))
        await asyncio.sleep(0)
        notice = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "queue://q"}}
        await output.write(json.dumps(notice) + "\n")
        settling = asyncio.create_task(traffic.settled(3600))
        await asyncio.wait([settling], timeout=0.05)
        assert not settling.done()
        # What an answer says may be called as a request's own words are.
        await output.write(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"method": "ping"}}) + "\n")
        await asyncio.wait_for(settling, 10)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert len((tmp_path / "out").read_bytes().splitlines()) == 2


class Telling:
    """What a dialled desk tells: as many as there are, and then a fault."""

    def __init__(self, items: int = 0, fault: PostroomError | None = None) -> None:
        self.items = items
        self.fault = fault
        self.closed = False
        self.post = None

    async def stream(self, _: HappeningFilter) -> AsyncIterator[Happening]:
        for n in range(self.items):
            yield Happening(n, LAGGED, "")
        if self.fault is None:
            await asyncio.Event().wait()
        else:
            raise self.fault

    async def aclose(self) -> None:
        self.closed = True


def line_to(*dialled: Telling) -> stdio.Line:
    """A line that reaches these, one after the other."""
    left = iter(dialled)
    return stdio.Line(lambda: cast(Any, next(left)), None)


async def test_who_hears_goes_on_hearing_with_the_next_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "REDIAL_S", 0.0)
    revoked = Unauthenticated("the token is not known")
    dialled = [Telling(0, revoked), Telling(2, revoked), Telling(0, revoked), Telling(0, revoked), Telling(2)]
    line = line_to(*dialled)
    async with line.hear(HappeningFilter()) as items:
        heard = aiter(items)
        # The first says that the daemon tells from now on, and is no news; after a break it is.
        assert [(await anext(heard)).at for _ in range(3)] == [1, 0, 1]
    assert all(one.closed for one in dialled[:4])
    await line.hang_up()


@pytest.mark.parametrize(
    ("telling", "kind"),
    [
        (Telling(0, Invalid("queue 'X' is no queue name", field="queue")), Invalid),
        (Telling(0, Unavailable("200 listen already")), Unavailable),
        (Telling(), Unavailable),
    ],
)
async def test_what_the_daemon_refuses_to_tell_is_told(
    monkeypatch: pytest.MonkeyPatch, telling: Telling, kind: type[PostroomError]
) -> None:
    monkeypatch.setattr(stdio, "HEAR_DEADLINE_S", 0.01)
    with pytest.raises(kind):
        async with line_to(telling).hear(HappeningFilter()):
            raise AssertionError("it was let in")


def test_a_token_file_below_the_home_is_found_by_its_short_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "token").write_text("tk_ann\n")
    desk = daemon("http://127.0.0.1:1", token_file="~/token")()
    assert isinstance(desk, Client)
    assert desk.address.token == "tk_ann"
