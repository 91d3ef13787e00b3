"""The HTTP door over an opened store: an app, tokens of several kinds, and clients that come in by each of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx2

from postroom.carriers.channel import ChannelCarrier
from postroom.carriers.whereabouts import Whereabouts
from postroom.doors.firing import Fired
from postroom.doors.hooks import HooksDoor
from postroom.doors.http.api import Api
from postroom.doors.http.app import build_app
from postroom.endpoint import ANY_REACH
from postroom.errors import Invalid, Misconfigured
from postroom.ids import RandomIds
from postroom.message import Written
from postroom.model import Principal, Role
from postroom.office import Office, compose
from postroom.sources.roster import Roster
from postroom.sources.settings import build_sources
from postroom.store.engine import Engine

ROOT = Principal("root", Role.ADMIN)
HOST = "http://127.0.0.1:7373"
GITHUB_SECRET = "It's a Secret to Everybody"
CI_TOKEN = "a-token-of-the-ci-server"

SOURCES: list[dict[str, Any]] = [
    {"name": "github", "provider": "github", "secrets": [GITHUB_SECRET], "queue": "inbox"},
    {"name": "ci", "provider": "generic", "scheme": "bearer", "secrets": [CI_TOKEN], "queue": "ci"},
]


class Rig:
    """An installation's services and its HTTP door; `reason` is why it is not ready, None when it is."""

    def __init__(self, engine: Engine, *, hosts: tuple[str, ...] = (), open_: bool = False, mcp: Any = None) -> None:
        self.roster = Roster(build_sources(SOURCES, {}, Path()))
        self.office: Office = compose(engine, roster=self.roster)
        self.channel = ChannelCarrier()
        whereabouts = Whereabouts([self.channel])
        self.reason: str | None = None
        self.now = 1_800_000_000_000
        self.hooks = HooksDoor(self.roster, self.office.intake, lambda: self.reason, lambda: self.now)
        self.app = build_app(
            Api(
                todos=self.office.todos,
                claims=self.office.claims,
                endings=self.office.endings,
                giving=self.office.giving,
                waiting=self.office.waiting,
                queues=self.office.queues,
                events=self.office.events,
                replays=self.office.replays,
                rulesets=self.office.rulesets,
                trials=self.office.trials,
                roster=self.roster,
                installation=self,
                tokens=self.office.tokens,
                trace=self.office.trace,
                desk_for=lambda principal: self.office.desk(principal, "api"),
                post=self.office.post,
                replies=self.office.replies,
                receipts=self.office.receipts,
                inbox=self.office.inbox,
                registry=self.office.registry,
                happenings=self.office.happenings,
                place=whereabouts,
                carries=whereabouts.carries,
                channel=self.channel,
                status=self._status,
                ready=lambda: self.reason,
                allowed_hosts=hosts,
                open_principal=Principal("admin", Role.ADMIN) if open_ else None,
                mcp=mcp,
                hooks=self.hooks,
            )
        )
        self.secrets: dict[str, str] = {}
        self.tables: list[dict[str, Any]] = SOURCES

    # Its place, as the door asks for it: `tables` is what the settings file names when it is read again.

    def places(self) -> dict[str, Any]:
        return {"settings_file": "/data/postroom.toml", "data": "/data", "addresses": [HOST]}

    async def reload(self) -> None:
        try:
            self.roster.swap(build_sources(self.tables, {}, Path()))
        except Misconfigured as error:
            raise Invalid(f"postroom.toml:1: {error.message}", field=error.field) from None

    async def fire(self, name: str, kind: str | None) -> Fired:
        sample = self.roster.sample(name, kind, self.now, RandomIds())
        async with self.client(None) as client:
            path = f"/hooks/{name}"
            answer = await client.post(path, content=sample.body, headers=dict(sample.headers))
            return Fired(path, len(sample.body), answer.status_code, answer.content)

    async def _status(self, principal: Principal) -> dict[str, Any]:
        return {"version": "0", "asked_by": principal.name}

    async def fill(self) -> Self:
        """Make the tokens: `root` is admin; `ann` and `bob` use every queue, `eve` only those of `lab/`.

        `ann` speaks as every session besides her own name.
        """
        for name, role, queues, speaks_as in (
            ("root", "admin", ("*",), ()),
            ("ann", "agent", ("*",), ("ses_*",)),
            ("bob", "agent", ("*",), ()),
            ("eve", "agent", ("lab/*",), ()),
        ):
            _, self.secrets[name] = await self.office.tokens.create(ROOT, name, role, queues, speaks_as)
        return self

    def client(self, who: str | None = "root", **headers: str) -> httpx2.AsyncClient:
        """A client with the token of `who`, or without any."""
        if who is not None:
            headers.setdefault("authorization", f"Bearer {self.secrets[who]}")
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url=HOST, headers=headers)

    async def create(self, queue: str = "inbox", title: str = "work", by: str = "root", **more: Any) -> dict[str, Any]:
        """A new todo, as the door shows it."""
        return dict((await post(self, by, "/v1/todos", {"queue": queue, "title": title, **more}, 201))["todo"])

    async def claimed(self, by: str = "ann", queue: str = "inbox", **more: Any) -> dict[str, Any]:
        """A new todo that `by` has claimed, with its lease id."""
        todo = await self.create(queue, **more)
        return dict((await post(self, by, f"/v1/todos/{todo['id']}/claim", {}))["todo"])


async def ask(rig: Rig, who: str | None, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
    """One request; a body that is no bytes goes as JSON."""
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    async with rig.client(who) as client:
        return await client.request(method, path, content=content, headers=headers)


async def post(rig: Rig, who: str | None, path: str, body: Any, status: int = 200, **headers: str) -> dict[str, Any]:
    """A POST that must be answered with this status: its JSON."""
    answer = await ask(rig, who, "POST", path, body, **headers)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def get(rig: Rig, who: str | None, path: str, status: int = 200) -> dict[str, Any]:
    """A GET that must be answered with this status: its JSON."""
    answer = await ask(rig, who, "GET", path)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def refusal(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The error of an answer that must be one, in the one shape that errors have."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert error["code"] == code
    assert error["message"]
    return dict(error)


async def hand_off(rig: Rig, target: str) -> str:
    """Write what waits longest for a target, as its courier would: the message's id."""
    parcel = await rig.office.dispatch.lease(target, [ANY_REACH])
    assert parcel is not None, target
    settled = await rig.office.dispatch.settle(parcel, Written.WRITTEN)
    assert settled is not None
    return parcel.message.id


class Wire:
    """One raw ASGI request, whose every message the test decides."""

    def __init__(self, app: Any, method: str, path: str, headers: Mapping[str, str], **scope: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        self.asked = 0
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._app = app
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 7373),
            **scope,
        }

    def body(self, chunk: bytes, *, more: bool = False) -> None:
        """Send a piece of the body."""
        self._messages.put_nowait({"type": "http.request", "body": chunk, "more_body": more})

    def leave(self) -> None:
        """Go away."""
        self._messages.put_nowait({"type": "http.disconnect"})

    async def run(self) -> None:
        """Let the app answer."""

        async def receive() -> dict[str, Any]:
            self.asked += 1
            return await self._messages.get()

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        await self._app(self.scope, receive, send)

    @property
    def status(self) -> int | None:
        """The status that was answered, if any."""
        return self.sent[0]["status"] if self.sent else None

    @property
    def answer(self) -> Any:
        """The JSON that was answered."""
        return json.loads(self.sent[1]["body"])


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    """A body that arrives in pieces, without a length told before."""
    for chunk in chunks:
        yield chunk


async def until(true: Any, seconds: float = 10.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
