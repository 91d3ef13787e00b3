"""The channel carrier: processes come to this daemon and wait, and are handed one message at a time (RULINGS 31).

A process pushes what it is handed to the agent behind it, and cannot know whether that agent saw it. So a push is
unknown until the message is acknowledged or read in its inbox. A process counts as there while it waits, and for a
moment between two waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from postroom.carriers.carrier import FREE, Look, Progress, Standing, Turn, Writing
from postroom.carriers.channel_note import Note, note_of
from postroom.carriers.lane import OUT_OF_REACH
from postroom.endpoint import CarrierKind, Endpoint
from postroom.errors import Conflict, Forbidden, Invalid, Unavailable
from postroom.message import Parcel, Written
from postroom.postage import check_line
from postroom.text import cut, printable

GRACE_SECONDS: Final = 2.0
"""How long a process counts as there after a wait of its own has ended."""
ANSWER_SECONDS: Final = 10.0
"""How long a process may take to say what came of a message."""
BEAT_SECONDS: Final = 5.0
"""A wait that begins so soon after another one is no new sign of life."""

MAX_REASON_BYTES: Final = 250

PUSHED: Final = "pushed to the agent's channel; not read or acknowledged yet"
LEFT: Final = "the process went away before it said whether it pushed the message"
SILENT: Final = "the process did not say in time whether it pushed the message"
TAKEN: Final = "another message is being handed to the process"


class Outcome(StrEnum):
    """What a process says of a message: pushed to its agent, or not for now."""

    PUSHED = "pushed"
    REFUSED = "refused"


@dataclass(slots=True)
class _Errand:
    """A message on its way through a process, until its answer."""

    note: Note
    answer: asyncio.Future[Writing]
    handed: bool = False


@dataclass(slots=True)
class _Seat:
    """A process that is there."""

    endpoint_id: str
    holder: str
    waiting: asyncio.Future[Note | None] | None = None
    errand: _Errand | None = None
    leaving: asyncio.TimerHandle | None = None
    beaten_at: float = field(default=float("-inf"))

    def hand_over(self) -> None:
        """Give the process what is there for it, when it waits."""
        errand, waiting = self.errand, self.waiting
        if errand is not None and not errand.handed and waiting is not None and not waiting.done():
            errand.handed = True
            waiting.set_result(errand.note)


class ChannelCarrier:
    """Carries to the processes that wait here. `grace` and `answer` are seconds."""

    def __init__(self, *, grace: float = GRACE_SECONDS, answer: float = ANSWER_SECONDS) -> None:
        self._grace = grace
        self._answer = answer
        self._seats: dict[str, _Seat] = {}
        self._changes: list[Callable[[str], None]] = []
        self._arrivals: list[Callable[[str], None]] = []
        self._closed = False
        self._pushed = 0

    # The process's side.

    async def wait(self, endpoint_id: str, holder: str, seconds: float) -> Note | None:
        """Not there, or between two waits -> there, until a message comes or the time is up; None when none came.

        A later wait of the same endpoint ends this one. Raises Unavailable once the daemon stops.
        """
        if self._closed:
            raise Unavailable("the daemon is stopping")
        seat = self._seats.get(endpoint_id)
        new = seat is None
        if seat is None:
            seat = self._seats[endpoint_id] = _Seat(endpoint_id, holder)
        seat.holder = holder
        if seat.leaving is not None:
            seat.leaving.cancel()
            seat.leaving = None
        if seat.waiting is not None and not seat.waiting.done():
            seat.waiting.set_result(None)
        waiting: asyncio.Future[Note | None] = asyncio.get_running_loop().create_future()
        seat.waiting = waiting
        seat.hand_over()
        if new:
            for call in self._arrivals:
                call(f"{self.kind}:{endpoint_id}")
        try:
            await asyncio.wait({waiting}, timeout=seconds)
            return waiting.result() if waiting.done() else None
        except asyncio.CancelledError:
            # Its client went away: what it was handed in this very moment never left.
            if waiting.done() and (note := waiting.result()) is not None:
                errand = seat.errand
                if errand is not None and errand.note is note:
                    errand.handed = False
            raise
        finally:
            if seat.waiting is waiting:
                seat.waiting = None
                seat.leaving = asyncio.get_running_loop().call_later(self._grace, self._leave, seat)

    def answer(
        self, endpoint_id: str, holder: str, delivery_id: str, outcome: str, reason: str | None = None
    ) -> Outcome:
        """Handed over -> answered, whatever the reason says. Raises Conflict for a message that is not out, and Invalid."""
        if outcome not in Outcome.__members__.values():
            raise Invalid(f"outcome {outcome[:40]!r} is expected to be one of {', '.join(Outcome)}", field="outcome")
        seat = self._seats.get(endpoint_id)
        errand = None if seat is None else seat.errand
        if seat is not None and seat.holder != holder:
            raise Forbidden(f"{endpoint_id} was attached by another than {holder}", field="id")
        if errand is None or errand.note.delivery_id != delivery_id or not errand.handed or errand.answer.done():
            raise Conflict(f"{delivery_id[:64]} is not out at {endpoint_id}: it was settled before", state="not_out")
        if outcome == Outcome.PUSHED:
            self._pushed += 1
            errand.answer.set_result(Writing(Written.UNKNOWN, PUSHED, pushed=True))
        else:
            errand.answer.set_result(Writing(Written.REFUSED, _line(reason) or "the process did not take it"))
        return Outcome(outcome)

    def beats(self, endpoint_id: str) -> bool:
        """Whether a wait that begins now is to be noted as a sign of life; once in a few seconds it is."""
        now = asyncio.get_running_loop().time()
        seat = self._seats.get(endpoint_id)
        if seat is None:
            return True
        if now - seat.beaten_at < BEAT_SECONDS:
            return False
        seat.beaten_at = now
        return True

    def _leave(self, seat: _Seat) -> None:
        if self._seats.get(seat.endpoint_id) is seat:
            del self._seats[seat.endpoint_id]
        errand = seat.errand
        if errand is not None and not errand.answer.done():
            gone = Writing(Written.UNKNOWN, LEFT) if errand.handed else Writing(Written.BUSY, OUT_OF_REACH)
            errand.answer.set_result(gone)
        for call in self._changes:
            call(f"{self.kind}:{seat.endpoint_id}")

    def hang_up(self) -> None:
        """Every wait -> over with nothing, and no new one: the daemon stops."""
        self._closed = True
        for seat in self._seats.values():
            if seat.waiting is not None and not seat.waiting.done():
                seat.waiting.set_result(None)

    # The courier's side.

    @property
    def kind(self) -> CarrierKind:
        """Which deliveries it carries."""
        return CarrierKind.CHANNEL

    @property
    def reaches(self) -> tuple[str, ...]:
        """The processes that are there now."""
        return tuple(f"process:{endpoint_id}" for endpoint_id in self._seats)

    def check_address(self, address: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, str]:
        """`pid`, `directory` and `host` of the process, each left out at will; target and reach follow from its id."""
        for key, value in address.items():
            match key:
                case "pid":
                    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
                        raise Invalid("address.pid is expected to be a process's number", field="address.pid")
                case "directory" | "host":
                    if not isinstance(value, str):
                        raise Invalid(f"address.{key} is expected to be text", field=f"address.{key}")
                    check_line(value, f"address.{key}", 1024)
                case _:
                    raise Invalid(f"address has {key[:64]!r}; expected pid, directory and host alone", field="address")
        return dict(address), f"{self.kind}:", "process:"

    async def look(self, parcel: Parcel) -> Look:
        """Free while the process is there and has nothing in hand."""
        seat = self._seat(parcel)
        if seat is None:
            return Look(Standing.BUSY, OUT_OF_REACH)
        return FREE if seat.errand is None else Look(Standing.BUSY, TAKEN)

    async def write(self, parcel: Parcel) -> Writing:
        """Hand the message to its process, and wait for what came of it."""
        seat = self._seat(parcel)
        if seat is None or seat.errand is not None:
            return Writing(Written.BUSY, OUT_OF_REACH if seat is None else TAKEN)
        errand = seat.errand = _Errand(note_of(parcel), asyncio.get_running_loop().create_future())
        try:
            seat.hand_over()
            await asyncio.wait({errand.answer}, timeout=self._answer)
            if errand.answer.done():
                return errand.answer.result()
            return Writing(Written.UNKNOWN, SILENT) if errand.handed else Writing(Written.BUSY, OUT_OF_REACH)
        finally:
            seat.errand = None

    async def seen(self, parcel: Parcel) -> bool | None:
        """Whether it was read in its inbox meanwhile; whether it was seen otherwise, nobody knows."""
        return True if parcel.delivery.seen_at is not None else None

    async def progress(self, parcel: Parcel) -> Progress:
        """A push begins no turn."""
        return Progress(Turn.ANSWERED, seen=True)

    async def live(self, endpoint: Endpoint) -> bool | None:
        """Whether its process is there; one that is not may be at another daemon."""
        return True if endpoint.id in self._seats else None

    async def directory(self, endpoint: Endpoint) -> str | None:
        """The folder that the process said it was started in."""
        found = endpoint.address.get("directory")
        return found if isinstance(found, str) else None

    def on_change(self, call: Callable[[str], None]) -> None:
        """Call this with a target's key when its process has left."""
        self._changes.append(call)

    def on_arrival(self, call: Callable[[str], None]) -> None:
        """Call this with a target's key when its process has come."""
        self._arrivals.append(call)

    def status(self) -> Mapping[str, Any]:
        """How many processes are there, and how many messages were pushed."""
        return {"processes": len(self._seats), "pushed": self._pushed}

    async def run(self) -> None:
        """Nothing is to be kept going: those who wait keep themselves."""

    async def close(self) -> None:
        """Let go of every process."""
        self.hang_up()
        for seat in self._seats.values():
            if seat.leaving is not None:
                seat.leaving.cancel()
        self._seats.clear()

    def _seat(self, parcel: Parcel) -> _Seat | None:
        return self._seats.get(parcel.target.key.partition(":")[2])


def _line(reason: str | None) -> str:
    return cut(printable(" ".join((reason or "").split())), MAX_REASON_BYTES)
