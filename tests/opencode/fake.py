"""A stand-in for `opencode serve`: its routes, and the quirks that a carrier has to live with.

A turn answers every message of its session that has no answer yet, so prompts sent to a session at work are merged;
status tells only of the sessions of one directory, and a moment late; every event comes twice; message ids are global,
and a message whose id sorts before the last answer's is passed over.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from tests.opencode.wire import Answer, Cut, Request, WireServer

GAP_SECONDS = 0.01
"""How long after a prompt was accepted the session is shown as idle still."""
NOT_FOUND = {"name": "NotFoundError", "data": {"message": "not found"}}
EVENTS = frozenset({"event", "status", "message"})


@dataclass(slots=True)
class FakeMessage:
    """A message of a transcript, as its record is shown."""

    id: str
    role: str
    parts: list[dict[str, Any]] = field(default_factory=list)
    parent: str | None = None
    created: float = 0.0
    completed: float | None = None
    finish: str | None = None
    error: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self.parts)


@dataclass(slots=True)
class FakeSession:
    """A session, with what the server saw of it: `overlaps` counts the prompts that came while it was at work."""

    id: str
    directory: str
    messages: list[FakeMessage] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    state: str = "idle"
    running: int = 0
    overlaps: int = 0

    @property
    def texts(self) -> list[str]:
        """What users said, in order."""
        return [message.text for message in self.messages if message.role == "user"]

    @property
    def at_work(self) -> bool:
        """Whether a turn runs, or is about to."""
        return self.task is not None and not self.task.done()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One call of prompt_async as it came in."""

    session: str
    message: str | None
    text: str
    directory: str | None


class FakeOpencode:
    """The server. Switches are plain attributes; a test sets them at any time.

    think: seconds that a turn takes; `hold` set: turns wait until it is cleared with `release()`.
    hanging: sessions whose prompts are never answered (`*`: every call of the server). lose_answers: so many prompts
    are taken, and the connection cut instead of an answer. refuse: statuses that the next prompts are answered with.
    silent: sessions whose prompts are accepted and dropped. mute: sessions whose prompts are stored and not answered.
    missing: of the routes event, status and message those that answer 404. racing: a prompt with another directory
    than the turn's begins a turn beside it, as old servers do.
    """

    def __init__(self, password: str | None = None, *, basic: bool = False, directory: str = "/home/fake") -> None:
        self.password = password
        self.directory = directory
        self.think = 0.0
        self.hanging: set[str] = set()
        self.lose_answers = 0
        self.refuse: list[int] = []
        self.silent: set[str] = set()
        self.mute: set[str] = set()
        self.missing: set[str] = set(EVENTS) if basic else set()
        self.racing = False
        self.fail_turns = False
        self.sessions: dict[str, FakeSession] = {}
        self.prompts: list[Prompt] = []
        self.calls: Counter[str] = Counter()
        self.headers: list[str | None] = []
        self.in_flight: Counter[str] = Counter()
        self.peak_calls: Counter[str] = Counter()
        self.peak_turns: Counter[str] = Counter()
        self.turns: list[tuple[str, ...]] = []
        """Each turn that ended: the ids of the messages that it answered."""
        self.prefills = 0
        """How many turns went on behind their answer, since the message that they answered has an id behind it."""
        self._go = asyncio.Event()
        self._go.set()
        self._never = asyncio.Event()
        self._numbers = itertools.count(1)
        self._everywhere: dict[str, tuple[FakeSession, FakeMessage]] = {}
        self._streams: set[asyncio.Queue[str]] = set()
        self._beside: dict[str, list[asyncio.Task[None]]] = defaultdict(list)
        self._wire = WireServer(self._handle)

    @property
    def url(self) -> str:
        return self._wire.url

    @property
    def listeners(self) -> int:
        """How many event streams are open."""
        return len(self._streams)

    async def start(self) -> FakeOpencode:
        """Stopped -> listening, on the port it had before."""
        await self._wire.start()
        return self

    async def kill(self) -> None:
        """Listening -> gone: turns end where they are, their answers never complete, and no start goes on."""
        await self._wire.stop()
        tasks = [session.task for session in self.sessions.values() if session.task is not None]
        tasks += [task for beside in self._beside.values() for task in beside]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in self.sessions.values():
            session.task, session.state, session.running = None, "idle", 0
        self._streams.clear()
        self.in_flight.clear()

    def session(self, name: str = "a", directory: str | None = None) -> FakeSession:
        """A new session."""
        id_ = f"ses_{name}"
        made = self.sessions[id_] = FakeSession(id_, directory or self.directory)
        return made

    def hold(self) -> None:
        """Turns that run now or begin later wait for `release`."""
        self._go.clear()

    def release(self) -> None:
        """Turns go on."""
        self._go.set()

    def drop_streams(self) -> None:
        """Every event stream ends; whoever reads has to come again."""
        for queue in list(self._streams):
            queue.put_nowait("")

    # The routes.

    async def _handle(self, request: Request) -> Answer:
        self.calls[f"{request.method} {request.parts[-1]}"] += 1
        if "*" in self.hanging:
            await self._never.wait()
        if not self._may(request):
            return Answer(401, {"name": "UnauthorizedError"})
        match (request.method, *request.parts):
            case ("GET", "global", "health"):
                return Answer(value={"healthy": True, "version": "0.0.0"})
            case ("GET", "global", "event") if "event" not in self.missing:
                return Answer(stream=self._events(), content_type="text/event-stream")
            case ("GET", "session", "status") if "status" not in self.missing:
                return self._status(request)
            case ("GET", "session", "status"):
                return Answer(404, NOT_FOUND)
            case ("GET", "session", id_):
                return self._shown(id_)
            case ("POST", "session", id_, "prompt_async"):
                return await self._prompted(request, id_)
            case ("GET", "session", id_, "message") if "message" not in self.missing:
                return self._transcript(id_, request)
            case ("GET", "session", id_, "message", message) if "message" not in self.missing:
                return self._message(id_, message)
            case ("POST", "session", id_, "abort"):
                return await self._abort(id_)
            case ("DELETE", "session", id_):
                return self._delete(id_)
            case ("POST", "session"):
                made = self.session(f"n{next(self._numbers)}", request.headers.get("x-opencode-directory"))
                return Answer(value={"id": made.id, "directory": made.directory})
            case _:
                return Answer(404, "Not Found", content_type="text/plain")

    def _may(self, request: Request) -> bool:
        if self.password is None:
            return True
        proof = base64.b64encode(f"opencode:{self.password}".encode()).decode()
        return request.headers.get("authorization") == f"Basic {proof}"

    def _status(self, request: Request) -> Answer:
        directory = request.headers.get("x-opencode-directory", self.directory)
        shown = {
            session.id: {"type": session.state}
            for session in self.sessions.values()
            if session.directory == directory and session.state != "idle"
        }
        return Answer(value=shown)

    def _shown(self, id_: str) -> Answer:
        if id_ in self.sessions:
            return Answer(value={"id": id_, "directory": self.sessions[id_].directory, "title": "a session"})
        if not id_.startswith("ses_"):
            return Answer(500, {"name": "UnknownError"})
        return Answer(404, NOT_FOUND)

    async def _prompted(self, request: Request, id_: str) -> Answer:
        self.in_flight[id_] += 1
        self.peak_calls[id_] = max(self.peak_calls[id_], self.in_flight[id_])
        try:
            return await self._prompt(request, id_)
        finally:
            self.in_flight[id_] -= 1

    async def _prompt(self, request: Request, id_: str) -> Answer:
        if id_ in self.hanging:
            await self._never.wait()
        if self.refuse:
            return Answer(self.refuse.pop(0), {"name": "UnknownError", "data": {"message": "ordered by the test"}})
        session, body = self.sessions.get(id_), request.json()
        if session is None:
            return Answer(404, NOT_FOUND)
        parts = body.get("parts") if isinstance(body, dict) else None
        message = body.get("messageID") if isinstance(body, dict) else None
        if not isinstance(parts, list) or (message is not None and not str(message).startswith("msg")):
            return Answer(400, {"name": "BadRequest"})
        directory = request.headers.get("x-opencode-directory")
        self.headers.append(directory)
        # A call takes its time, so that two at once would be seen.
        await asyncio.sleep(0.002)
        text = "".join(part.get("text", "") for part in parts)
        self.prompts.append(Prompt(id_, message, text, directory))
        if id_ not in self.silent:
            self._take(session, message or f"msg_{next(self._numbers):012x}own00000000000", parts, directory)
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise Cut
        return Answer(204)

    def _take(self, session: FakeSession, message: str, parts: list[dict[str, Any]], directory: str | None) -> None:
        known = self._everywhere.get(message)
        if known is not None:
            # Whichever session it was sent to: the first one's message has the text too, unless it is the same part.
            there = {part.get("id") for part in known[1].parts}
            known[1].parts += [part for part in parts if part.get("id") is None or part["id"] not in there]
            return
        if session.at_work:
            session.overlaps += 1
        made = FakeMessage(message, "user", list(parts), created=_now())
        session.messages.append(made)
        self._everywhere[message] = (session, made)
        self._tell(session, "message.updated", info=_info(session, made))
        if session.id in self.mute:
            return
        elsewhere = self.racing and directory != session.directory
        if not session.at_work:
            session.task = asyncio.create_task(self._work(session))
        elif elsewhere:
            self._beside[session.id].append(asyncio.create_task(self._turn(session, [made])))

    def _transcript(self, id_: str, request: Request) -> Answer:
        session = self.sessions.get(id_)
        if session is None:
            return Answer(404, NOT_FOUND)
        limit = int(request.query.get("limit", "0"))
        return Answer(value=[_record(session, message) for message in session.messages[-limit:]])

    def _message(self, id_: str, message: str) -> Answer:
        session = self.sessions.get(id_)
        for found in session.messages if session else ():
            if session is not None and found.id == message:
                return Answer(value=_record(session, found))
        return Answer(404, NOT_FOUND)

    async def _abort(self, id_: str) -> Answer:
        session = self.sessions.get(id_)
        if session is not None and session.task is not None and session.at_work:
            session.task.cancel()
            await asyncio.gather(session.task, return_exceptions=True)
            session.state, session.running = "idle", 0
            self._tell(session, "session.error", error={"name": "MessageAbortedError"})
            for _ in range(2):
                self._tell_idle(session)
        return Answer(value=True)

    def _delete(self, id_: str) -> Answer:
        session = self.sessions.pop(id_, None)
        if session is not None:
            if session.task is not None:
                session.task.cancel()
            self._tell(session, "session.deleted", info={"id": id_, "directory": session.directory})
        return Answer(value=True)

    # Turns.

    async def _work(self, session: FakeSession) -> None:
        await asyncio.sleep(GAP_SECONDS)
        session.state = "busy"
        self._tell(session, "session.status", status={"type": "busy"})
        while waiting := self._unanswered(session):
            await self._turn(session, waiting)
        session.state = "idle"
        self._tell_idle(session)

    def _unanswered(self, session: FakeSession) -> list[FakeMessage]:
        covered = {id_ for turn in self.turns for id_ in turn}
        answered = max((one.id for one in session.messages if one.completed is not None), default="")
        return [one for one in session.messages if one.role == "user" and one.id not in covered and one.id > answered]

    async def _turn(self, session: FakeSession, waiting: list[FakeMessage]) -> None:
        session.running += 1
        self.peak_turns[session.id] = max(self.peak_turns[session.id], session.running)
        number = next(self._numbers)
        answer = FakeMessage(f"msg_{number:012x}answer00000000", "assistant", parent=waiting[-1].id, created=_now())
        session.messages.append(answer)
        self._tell(session, "message.updated", info=_info(session, answer))
        try:
            await asyncio.sleep(self.think)
            await self._go.wait()
        finally:
            session.running -= 1
        if self.fail_turns:
            answer.error = {"name": "APIError"}
        answer.completed, answer.finish = _now(), "stop"
        answer.parts = [{"id": f"prt_answer{number}", "type": "text", "text": "done"}]
        self.turns.append(tuple(one.id for one in waiting))
        self.prefills += waiting[-1].id > answer.id
        self._tell(session, "message.updated", info=_info(session, answer))

    # Events.

    def _tell_idle(self, session: FakeSession) -> None:
        self._tell(session, "session.status", status={"type": "idle"})
        self._tell(session, "session.idle")

    def _tell(self, session: FakeSession, kind: str, **properties: Any) -> None:
        payload = {
            "id": f"evt_{next(self._numbers)}",
            "type": kind,
            "properties": {"sessionID": session.id, **properties},
        }
        self._send({"directory": session.directory, "project": "p", "payload": payload})
        self._send({"directory": session.directory, "project": "p", "payload": {"type": "sync", "syncEvent": payload}})

    def _send(self, event: dict[str, Any]) -> None:
        text = f"data: {json.dumps(event)}\n\n"
        for queue in self._streams:
            queue.put_nowait(text)

    async def _events(self) -> AsyncGenerator[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._streams.add(queue)
        try:
            yield f"data: {json.dumps({'payload': {'type': 'server.connected', 'properties': {}}})}\n\n"
            while text := await queue.get():
                yield text
        finally:
            self._streams.discard(queue)


def _now() -> float:
    return asyncio.get_running_loop().time() * 1000


def _info(session: FakeSession, message: FakeMessage) -> dict[str, Any]:
    info: dict[str, Any] = {
        "id": message.id,
        "sessionID": session.id,
        "role": message.role,
        "time": {"created": message.created},
    }
    if message.parent is not None:
        info["parentID"] = message.parent
    if message.completed is not None:
        info["time"]["completed"] = message.completed
        info["finish"] = message.finish
    if message.error is not None:
        info["error"] = message.error
    return info


def _record(session: FakeSession, message: FakeMessage) -> dict[str, Any]:
    return {"info": _info(session, message), "parts": message.parts}
