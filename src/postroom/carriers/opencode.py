"""The opencode carrier: messages into sessions as prompts, one turn at a time (DESIGN §6, RULINGS 23-27).

A session is named by its id alone; its server and directory are looked up. A message is known in the transcript by a
mark derived from message, target and round, so that a server takes a repeat for what it has already.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from postroom.carriers.carrier import FREE, Look, Progress, Standing, Turn, Writing
from postroom.carriers.envelope import of_parcel, render
from postroom.carriers.opencode_events import EventStream
from postroom.carriers.opencode_places import Absent, Hidden, Place, Places
from postroom.carriers.opencode_server import NO_ROUTE, OpencodeServer, Reply, ServerLink, Unreached, session_path
from postroom.carriers.opencode_transcript import (
    FEW,
    MANY,
    TAIL,
    Answered,
    Info,
    Mark,
    answer_in,
    find,
    id_for,
    mark_of,
    read,
    read_to_an_answer,
)
from postroom.endpoint import ANY_REACH, CarrierKind, Endpoint
from postroom.errors import Invalid
from postroom.message import Parcel, Priority, Written

LOOK_SECONDS = 4.0
WRITE_SECONDS = 10.0
LOST_SECONDS = 5.0
"""How long a session may be idle after a hand-off without an answer before its turn counts as lost (RULINGS 23)."""

GAP_SECONDS = 0.5
"""How long after a hand-off a session's being idle says nothing about its turn."""
ASK_AGAIN_SECONDS = 60.0
"""How soon a server is asked again for a route that it did not have."""

NO_SESSION = "no opencode server has this session"
AT_WORK = "the session is at work"

_SESSION = re.compile(r"ses_[A-Za-z0-9]{1,124}")
_PREFIX = f"{CarrierKind.OPENCODE}:"
_GATEWAY = frozenset({502, 504})


def target_key(session: str) -> str:
    """The canonical name of a session as a target."""
    return _PREFIX + session


def session_of(key: str) -> str:
    """The session that a target's key names."""
    return key.removeprefix(_PREFIX)


@dataclass(slots=True)
class _Prompt:
    """A prompt whose answer is awaited: when it was handed over, and what was seen of it since."""

    at: float
    seen: bool = False
    answers: list[Answered] = field(default_factory=list)


class OpencodeCarrier:
    """Carries to the sessions of some opencode servers; `clock` gives seconds that only grow."""

    def __init__(self, servers: Sequence[OpencodeServer], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._links = [ServerLink(server) for server in servers]
        self._places = Places(self._links, clock)
        self._listeners: list[Callable[[str], None]] = []
        self._streams = {id(link): EventStream(link, self._changed, clock) for link in self._links}
        for stream in self._streams.values():
            stream.gone = self._places.drop
        self._prompts: dict[str, _Prompt] = {}

    @property
    def kind(self) -> CarrierKind:
        """Which deliveries it carries."""
        return CarrierKind.OPENCODE

    @property
    def reaches(self) -> tuple[str, ...]:
        """Any daemon reaches a session by HTTP."""
        return (ANY_REACH,)

    def check_address(self, address: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, str]:
        """`{"session": "ses_…"}` -> itself, its target key and reach. Raises Invalid by field."""
        for name in address:
            if name != "session":
                raise Invalid(f"address has {name[:64]!r}; expected session alone", field=f"address.{name[:64]}")
        session = address.get("session")
        if not isinstance(session, str) or not _SESSION.fullmatch(session):
            raise Invalid("address.session is expected to be the id of a session, ses_…", field="address.session")
        return {"session": session}, target_key(session), ANY_REACH

    async def directory(self, endpoint: Endpoint) -> str | None:
        """The session's directory as its server has it."""
        found = await self._places.find(session_of(endpoint.target_key), LOOK_SECONDS)
        return found.directory if isinstance(found, Place) else None

    async def look(self, parcel: Parcel) -> Look:
        """Whether the session is there, and at work; urgent messages do not wait for it."""
        session = session_of(parcel.target.key)
        found = await self._places.find(session, LOOK_SECONDS)
        match found:
            case Absent():
                return Look(Standing.ABSENT, NO_SESSION)
            case Hidden():
                return Look(Standing.FAULT, found.reason)
            case Place():
                pass
            case _:
                assert_never(found)
        if parcel.message.priority is Priority.URGENT:
            return FREE
        try:
            busy = await self._at_work(found, session, trust_events=True)
        except Unreached as error:
            return Look(Standing.FAULT, error.reason)
        return Look(Standing.BUSY, AT_WORK) if busy else FREE

    async def _at_work(self, place: Place, session: str, *, trust_events: bool) -> bool | None:
        """Whether a turn runs in the session; None where the server cannot tell. Raises Unreached."""
        link = place.link
        stream = self._streams[id(link)]
        if trust_events and stream.live:
            pulse = stream.pulses.get(session)
            if pulse is not None or place.directory in stream.covered:
                return pulse is not None and pulse.busy
        asked_at = self._clock()
        if "status" in link.missing and asked_at - link.missing["status"] < ASK_AGAIN_SECONDS:
            return None
        reply = await link.ask("GET", "/session/status", seconds=LOOK_SECONDS, directory=place.directory)
        states = reply.value()
        page = reply.ok and not isinstance(states, Mapping)
        # A server without events may take the route for a session's, and fail over its name.
        if reply.status in NO_ROUTE or page or (reply.status in {400, 500} and "event" in link.missing):
            link.missing["status"] = asked_at
            return None
        if not reply.ok:
            raise Unreached(f"{link.server.shown} does not tell who is at work: {reply.words()}", sent=True)
        link.missing.pop("status", None)
        busy = {name for name, state in states.items() if not isinstance(state, Mapping) or state.get("type") != "idle"}
        stream.cover(place.directory, busy, asked_at)
        return session in busy

    async def write(self, parcel: Parcel) -> Writing:
        """Prompt the session with the envelope; written is a 2xx, and a turn begins where turns can be watched."""
        writing = await self._write(parcel)
        if not writing.turn:
            self._forget(mark_of(parcel.delivery))
        return writing

    async def _write(self, parcel: Parcel) -> Writing:
        session = session_of(parcel.target.key)
        deadline = self._clock() + WRITE_SECONDS
        shown = ""
        for _ in range(2):
            found = await self._places.find(session, LOOK_SECONDS)
            match found:
                case Absent():
                    return Writing(Written.PERMANENT, NO_SESSION)
                case Hidden():
                    return Writing(Written.REFUSED, found.reason)
                case Place():
                    shown = found.link.server.shown
                case _:
                    assert_never(found)
            reply = await self._prompt(found, session, parcel, max(deadline - self._clock(), 1.0))
            if isinstance(reply, Writing):
                return reply
            if reply.status != 404:
                return _outcome(found, reply)
            # Nothing was taken. The place may be an old one: it is looked up anew, once.
            self._places.drop(session)
        return Writing(Written.REFUSED, f"{shown} has the session and takes no prompt for it")

    async def _prompt(self, place: Place, session: str, parcel: Parcel, seconds: float) -> Reply | Writing:
        link, mark = place.link, mark_of(parcel.delivery)
        part = {"type": "text", "text": render(of_parcel(parcel))}
        body: dict[str, Any] = {"parts": [part]}
        try:
            infos = await self._newest(place, session)
        except Unreached as error:
            return Writing(Written.REFUSED, error.reason)
        if infos is not None:
            part["id"], body["messageID"] = mark.part, id_for(infos, mark)
        self._await(place, mark)
        path = session_path(session, "/prompt_async")
        try:
            reply = await link.ask("POST", path, seconds=seconds, directory=place.directory, body=body)
        except Unreached as error:
            if not error.sent:
                return Writing(Written.REFUSED, error.reason)
            if error.broken and infos is not None:
                return await self._after_a_break(place, session, mark, error.reason)
            return Writing(Written.UNKNOWN, error.reason)
        if reply.ok and infos is None:
            # The session is there, so it is the route to its messages that is not.
            link.missing["message"] = self._clock()
        return reply

    async def _newest(self, place: Place, session: str) -> Sequence[Info] | None:
        """The transcript's end, as the prompt's id needs it; None where the server shows none."""
        asked_at = place.link.missing.get("message")
        if asked_at is not None and self._clock() - asked_at < ASK_AGAIN_SECONDS:
            return None
        return await read_to_an_answer(place, session, LOOK_SECONDS)

    async def _after_a_break(self, place: Place, session: str, mark: Mark, reason: str) -> Writing:
        """The connection ended under a prompt: the transcript tells, and the mark makes a repeat harmless."""
        there = await self._stands(place, session, mark)
        if there is None:
            return Writing(Written.UNKNOWN, reason)
        return Writing(Written.WRITTEN, turn=not place.link.basic) if there else Writing(Written.REFUSED, reason)

    async def seen(self, parcel: Parcel) -> bool | None:
        """Whether the session's transcript has the message of this round; None where that cannot be told."""
        session = session_of(parcel.target.key)
        found = await self._places.find(session, LOOK_SECONDS)
        if not isinstance(found, Place):
            return None
        return await self._stands(found, session, mark_of(parcel.delivery))

    async def _stands(self, place: Place, session: str, mark: Mark) -> bool | None:
        try:
            infos = await read(place, session, MANY, LOOK_SECONDS)
        except Unreached:
            return None
        return None if infos is None else find(infos, mark) is not None

    async def progress(self, parcel: Parcel) -> Progress:
        """What became of the turn: from the events where they told, else from the session's own record."""
        session, mark = session_of(parcel.target.key), mark_of(parcel.delivery)
        found = await self._places.find(session, LOOK_SECONDS)
        match found:
            case Absent():
                self._forget(mark)
                return Progress(Turn.LOST, reason=NO_SESSION)
            case Hidden():
                return Progress(Turn.UNKNOWN, reason=found.reason)
            case Place():
                pass
            case _:
                assert_never(found)
        prompt = self._await(found, mark)
        progress = _ended(prompt.answers)
        if progress is None:
            try:
                progress = await self._read_back(found, session, mark, prompt)
            except Unreached as error:
                progress = Progress(Turn.UNKNOWN, prompt.seen, error.reason)
        if progress.turn in {Turn.ANSWERED, Turn.LOST}:
            self._forget(mark)
        return progress

    async def _read_back(self, place: Place, session: str, mark: Mark, prompt: _Prompt) -> Progress:
        busy = await self._at_work(place, session, trust_events=False)
        infos = await read(place, session, FEW, LOOK_SECONDS)
        if infos is None:
            # Either the session is gone, which the next look-up tells, or the server shows no transcripts.
            self._places.drop(session)
            if isinstance(await self._places.find(session, LOOK_SECONDS), Place):
                place.link.missing["message"] = self._clock()
                return Progress(Turn.LOST, prompt.seen, f"{place.link.server.shown} shows no transcript")
            return Progress(Turn.UNKNOWN, prompt.seen, f"{place.link.server.shown} has the session no more")
        if not prompt.seen:
            prompt.seen = find(infos, mark) is not None or bool(await self._stands(place, session, mark))
        answers = [answer for info in infos if (answer := answer_in(info)) is not None]
        ended = _ended([answer for answer in answers if answer.parent[-TAIL:] == mark.tail])
        if ended is not None:
            return ended
        if busy:
            return Progress(Turn.WORKING, prompt.seen)
        return self._idle(place, session, mark, prompt, infos)

    def _idle(self, place: Place, session: str, mark: Mark, prompt: _Prompt, infos: Sequence[Info]) -> Progress:
        """A session that is not at work and shows no full answer: merged into a later one, not begun yet, or lost."""
        index = find(infos, mark)
        for info in reversed(infos[index + 1 :] if index is not None else ()):
            answer = answer_in(info)
            if answer is not None and answer.final:
                return Progress(Turn.ANSWERED, True)
        pulse = self._streams[id(place.link)].pulses.get(session)
        # The events of the turn before may still be on their way when a prompt is written.
        began = prompt.at + GAP_SECONDS < self._clock()
        over = began and pulse is not None and not pulse.busy and prompt.at < pulse.busy_at <= pulse.idle_at
        if not over and self._clock() - max(prompt.at, pulse.idle_at if pulse else 0.0) < LOST_SECONDS:
            return Progress(Turn.WORKING, prompt.seen)
        if prompt.seen:
            return Progress(Turn.LOST, True, "the session took the message and is idle without an answer")
        return Progress(Turn.LOST, False, "the server accepted the message and the session does not show it")

    def _await(self, place: Place, mark: Mark) -> _Prompt:
        """The prompt's record, begun now when there is none; its answers come in by the events too."""
        prompt = self._prompts.get(mark.tail)
        if prompt is None:
            prompt = self._prompts[mark.tail] = _Prompt(self._clock())
        self._streams[id(place.link)].awaited.setdefault(mark.tail, prompt.answers)
        return prompt

    def _forget(self, mark: Mark) -> None:
        self._prompts.pop(mark.tail, None)
        for stream in self._streams.values():
            stream.awaited.pop(mark.tail, None)

    async def live(self, endpoint: Endpoint) -> bool | None:
        """Whether the session is there; None when a server that may have it does not answer."""
        found = await self._places.find(session_of(endpoint.target_key), LOOK_SECONDS)
        match found:
            case Place():
                return True
            case Absent():
                return False
            case Hidden():
                return None
            case _:
                assert_never(found)

    def on_change(self, call: Callable[[str], None]) -> None:
        """Call this with the key of each session that went idle or was deleted."""
        self._listeners.append(call)

    def _changed(self, session: str) -> None:
        for call in self._listeners:
            call(target_key(session))

    def status(self) -> Mapping[str, Any]:
        """Its servers: whether their events arrive, whether they are basic and why, and what went wrong last."""
        return {
            "servers": [
                {
                    "url": link.server.shown,
                    "connected": self._streams[id(link)].live,
                    "basic": link.basic,
                    "missing_routes": sorted(link.missing),
                    "problem": link.problem,
                }
                for link in self._links
            ],
            "known_sessions": len(self._places),
            "turns_awaited": len(self._prompts),
        }

    async def run(self) -> None:
        """Read every server's events until cancelled."""
        streams = [asyncio.ensure_future(stream.run()) for stream in self._streams.values()]
        try:
            await asyncio.gather(*streams)
        finally:
            for task in streams:
                task.cancel()
            await asyncio.gather(*streams, return_exceptions=True)

    async def close(self) -> None:
        """Let go of every connection."""
        for link in self._links:
            await link.close()


def _ended(answers: Sequence[Answered]) -> Progress | None:
    """The end of a turn whose last answer is among these."""
    for answer in answers:
        if answer.final:
            reason = None if answer.error is None else f"the turn ended in {answer.error}"
            return Progress(Turn.ANSWERED, True, reason)
    return None


def _outcome(place: Place, reply: Reply) -> Writing:
    if reply.ok:
        return Writing(Written.WRITTEN, turn=not place.link.basic)
    words = f"{place.link.server.shown} refused the prompt: {reply.words()}"
    return Writing(Written.UNKNOWN if reply.status in _GATEWAY else Written.REFUSED, words)
