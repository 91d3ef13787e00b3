"""`postroom replay`: the messages of a protocol capture sent once more, each at most once however often it is replayed.

A replay is a client of the socket like any other, under a name of its own: what it sends is validated as any other
message is, and nothing but messages is sent (T49-T51).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from postroom.doors.cli.asking import REFUSED, UNREACHABLE, AsJson, Data, asking, usage
from postroom.doors.cli.table import line, note, print_json
from postroom.errors import Conflict, Invalid, PostroomError, Unavailable

CLIENT_ID: Final = "tamq-replay"
PROVENANCE: Final = "replay"
PROTOCOL: Final = "0.1"
ASK_S: Final = 30.0
MAX_LINE_BYTES: Final = 1024 * 1024

_CONTENT: Final = ("sender_repo", "target_repo", "body")
_CARRIED: Final = ("correlation_id", "metadata", *_CONTENT)


class Fate(StrEnum):
    """What became of an entry; `told` is what a dry run says instead of sending."""

    REPLAYED = "replayed"
    DEDUPLICATED = "deduplicated"
    REFUSED = "refused"
    SKIPPED = "skipped"
    TOLD = "would be sent"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a capture: its line, the request that sent it, and the id it was given, where it was."""

    number: int
    request: Mapping[str, Any]
    message_id: str | None
    left_out: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The original message's id, else the digest of what it says to whom; a replay in a capture is its original's."""
        earlier = self.request.get("idempotency_key")
        if self.request.get("client_id") == CLIENT_ID and isinstance(earlier, str):
            return earlier
        if self.message_id is not None:
            return self.message_id
        content = json.dumps([self.request.get(name) for name in _CONTENT], ensure_ascii=True, separators=(",", ":"))
        return f"sha256-{hashlib.sha256(content.encode()).hexdigest()}"

    def asked(self) -> dict[str, Any]:
        """The request that replays it, to whichever live endpoint the repository has now."""
        carried = {name: self.request[name] for name in _CARRIED if self.request.get(name) is not None}
        return {
            "op": "send",
            "protocol": PROTOCOL,
            "client_id": CLIENT_ID,
            "idempotency_key": self.key,
            "provenance": PROVENANCE,
            **carried,
        }


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A protocol capture: protocol.jsonl of a data folder.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    socket: Annotated[
        Path | None,
        typer.Option("--socket", metavar="PATH", help="The daemon's Unix socket; the data folder's by default."),
    ] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Send the messages of a protocol capture once more; what was replayed before stays the one message it became.

    The exit code is 1 when a message was refused.
    """
    try:
        entries = list(_read(file))
    except OSError as error:
        raise usage(f"{str(file)[:200]!r} cannot be read: {error.strerror}", "FILE") from None
    fates: Counter[Fate] = Counter()
    shown: list[dict[str, Any]] = []
    with asking(as_json, data) as daemon:
        path = str(socket.expanduser().absolute()) if socket is not None else daemon.address.socket
        if path is None and not dry_run:
            raise usage("a replay goes over the daemon's Unix socket, which POSTROOM_URL does not name", "--socket")
        for entry in entries:
            told = _one(entry, None if dry_run else path)
            fates[told.fate] += 1
            shown.append({"line": entry.number, "key": entry.key, **told.as_dict()})
            if not as_json:
                line(told.fate, f"line {entry.number}:", told.message_id or entry.key, told.why)
    if as_json:
        print_json({**{fate.name.lower(): fates[fate] for fate in Fate}, "messages": shown})
    else:
        note(", ".join(f"{fates[fate]} {fate}" for fate in Fate if fates[fate]) or "no message in the capture")
    if fates[Fate.REFUSED]:
        raise typer.Exit(REFUSED)


@dataclass(frozen=True, slots=True)
class _Told:
    fate: Fate
    message_id: str | None = None
    why: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"fate": self.fate.name.lower(), "message_id": self.message_id, "why": self.why}


def _one(entry: Entry, path: str | None) -> _Told:
    """An entry -> sent, known already, or refused; without a path only told."""
    from postroom.exchange import ask

    if "body" in entry.left_out:
        return _Told(Fate.SKIPPED, why="a secret was left out of its body")
    if path is None:
        return _Told(Fate.TOLD, why=f"to {entry.request.get('target_repo')}")
    asked = entry.asked()
    try:
        meant = entry.request.get("endpoint_id")
        if isinstance(meant, str):
            # Which of several was meant still counts while that one lives.
            wanted = {"op": "endpoints", "protocol": PROTOCOL, "live": True, "target_repo": asked.get("target_repo")}
            if any(one.get("endpoint_id") == meant for one in ask(path, wanted, ASK_S).get("endpoints", ())):
                asked["endpoint_id"] = meant
        try:
            answer = ask(path, asked, ASK_S)
        except Conflict as error:
            if error.field != "endpoint_id" or asked.pop("endpoint_id", None) is None:
                raise
            # An earlier replay went elsewhere while that one was silent, and stays there.
            answer = ask(path, asked, ASK_S)
    except Unavailable as error:
        if "reason" not in error.details and error.field is None:
            note(f"error: {error.code}: {error.message}")
            raise typer.Exit(UNREACHABLE) from None
        return _Told(Fate.REFUSED, why=f"{error.code}: {error.message}")
    except PostroomError as error:
        return _Told(Fate.REFUSED, why=f"{error.code}: {error.message}")
    fate = Fate.DEDUPLICATED if answer.get("deduplicated") else Fate.REPLAYED
    without = [name for name in _CARRIED if name in entry.left_out]
    why = f"a secret was left out of its {' and '.join(without)}" if without else None
    return _Told(fate, str(answer.get("message_id")), why)


def _read(file: Path) -> Iterator[Entry]:
    """The messages of a capture, or of a file of bare requests; whatever else stands in it is passed over."""
    from postroom.text import parse_json

    broken = 0
    with file.open("rb") as lines:
        for number, raw in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES), b""), 1):
            if not raw.strip():
                continue
            try:
                entry = parse_json(raw, "line")
            except Invalid:
                broken += 1
                continue
            found = _message(number, entry)
            if found is not None:
                yield found
    if broken:
        note(f"{broken} line{'s' if broken > 1 else ''} of {os.fspath(file)} passed over: no JSON")


def _message(number: int, entry: object) -> Entry | None:
    if not isinstance(entry, dict):
        return None
    request = entry.get("request", entry)
    if not isinstance(request, dict) or request.get("op") != "send":
        return None
    answer = entry.get("answer")
    id_ = answer.get("message_id") if isinstance(answer, dict) else None
    left_out = entry.get("left_out")
    return Entry(
        number,
        request,
        id_ if isinstance(id_, str) else None,
        tuple(map(str, left_out)) if isinstance(left_out, list) else (),
    )
