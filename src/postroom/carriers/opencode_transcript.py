"""A session's transcript: whether a message of ours stands there, under which id it may be put there, and its answers.

opencode tells by ids whether a message was answered: one that sorts before the answer that was there already is passed
over, and one that sorts after what is yet to come is answered twice. So ours stands right behind the last answer, and
the rest of it is derived: while nothing else was said, the same message has the same id, and a repeat is no message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from postroom.carriers.opencode_places import Place
from postroom.carriers.opencode_server import NO_ROUTE, Unreached, session_path
from postroom.message import Delivery

TAIL = 14
"""How many of an id's characters are derived from the message; those before say where it stands."""
FEW = 10
MANY = 100
"""How many of the newest messages are read: for what is going on, and for what may have been said a while ago."""

_ID = re.compile(r"msg_([0-9a-f]{12})")
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_UNFINISHED = frozenset({"tool-calls", "unknown"})

Info = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """What a message is known by at its target: the end of its id there, and the id of its part."""

    tail: str
    part: str


def mark_of(delivery: Delivery) -> Mark:
    """The mark of this message at this target in this round; ids are global on a server, so the target is part of it."""
    text = "\0".join((delivery.message_id, delivery.target_key, str(delivery.round)))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    number, tail = int.from_bytes(digest.digest()[:16], "big"), ""
    for _ in range(TAIL):
        number, digit = divmod(number, len(_DIGITS))
        tail += _DIGITS[digit]
    return Mark(tail, f"prt_{digest.hexdigest()[32:]}")


@dataclass(frozen=True, slots=True)
class Answered:
    """An assistant's message that is complete. final: nothing follows it in its turn; error: what it ended in."""

    parent: str
    final: bool
    error: str | None


def answer_in(info: Info) -> Answered | None:
    """What a message's own record says of an answer; None for a user's message, or one still being written."""
    if info.get("role") != "assistant" or not isinstance(info.get("parentID"), str):
        return None
    time, error = info.get("time"), info.get("error")
    if error is None and not (isinstance(time, Mapping) and time.get("completed")):
        return None
    said = error.get("name") if isinstance(error, Mapping) else error
    return Answered(info["parentID"], error is not None or info.get("finish") not in _UNFINISHED, said and str(said))


def find(infos: Sequence[Info], mark: Mark) -> int | None:
    """Where among these records the message stands that has this mark."""
    for index, info in enumerate(infos):
        if info.get("role") == "user" and str(info.get("id", "")).endswith(mark.tail):
            return index
    return None


def id_for(infos: Sequence[Info], mark: Mark) -> str:
    """The id to write under: the one it stands there with, else the next one behind the last answer."""
    index = find(infos, mark)
    if index is not None:
        return str(infos[index]["id"])
    places = [
        int(found.group(1), 16)
        for info in infos
        if info.get("role") == "assistant" and (found := _ID.match(str(info.get("id", ""))))
    ]
    return f"msg_{min(max(places, default=0) + 1, 2**48 - 1):012x}{mark.tail}"


async def read(place: Place, session: str, most: int, seconds: float) -> list[Info] | None:
    """The records of a session's newest messages, oldest first; None where the server shows none. Raises Unreached."""
    link = place.link
    path = session_path(session, f"/message?limit={most}")
    reply = await link.ask("GET", path, seconds=seconds, directory=place.directory)
    records = reply.value()
    if reply.status in NO_ROUTE or (reply.ok and not isinstance(records, list)):
        return None
    if not reply.ok:
        raise Unreached(f"{link.server.shown} does not show the transcript: {reply.words()}", sent=True)
    link.missing.pop("message", None)
    return [record["info"] for record in records if isinstance(record, dict) and isinstance(record.get("info"), dict)]


async def read_to_an_answer(place: Place, session: str, seconds: float) -> list[Info] | None:
    """The newest messages, as far back as the last answer may be. Raises Unreached."""
    infos = await read(place, session, FEW, seconds)
    if infos is not None and len(infos) >= FEW and not any(info.get("role") == "assistant" for info in infos):
        return await read(place, session, MANY, seconds)
    return infos
