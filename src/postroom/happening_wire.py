"""Happenings on the wire: server-sent events, each a JSON object, and how a client reads them back as they come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from postroom.errors import Invalid
from postroom.happening import Happening, HappeningFilter
from postroom.text import dump_json
from postroom.wire import read_time, show_time

PATH: Final = "/stream"
MEDIA: Final = "text/event-stream"
RETRY_S: Final = 2.0
"""How soon a client whose stream broke comes again."""
QUIET_S: Final = 15.0
"""A stream of which nothing was heard for three times as long is broken: it says at least this often that it lives."""
BEGIN: Final = f"retry: {RETRY_S * 1000:.0f}\n\n".encode()
ALIVE: Final = b": still there\n\n"
MOST_LINE_BYTES: Final = 64 * 1024


def happening_view(happening: Happening) -> dict[str, Any]:
    """A happening; `at` is RFC 3339."""
    return {
        "at": show_time(happening.at),
        "what": happening.what,
        "id": happening.id,
        "queue": happening.queue,
        "mailbox": happening.mailbox,
        "who": happening.who,
        "words": happening.words,
        "about": list(happening.about),
    }


def happening_of(view: Mapping[str, Any]) -> Happening:
    """The happening of a view; what is not known is passed over. Raises KeyError, TypeError or Invalid for no happening."""
    queue, mailbox, who = (None if view.get(name) is None else str(view[name]) for name in ("queue", "mailbox", "who"))
    words, about = str(view.get("words") or ""), tuple(map(str, view.get("about") or ()))
    return Happening(read_time(view["at"], "at"), str(view["what"]), str(view["id"]), queue, mailbox, who, words, about)


def shown_event(happening: Happening) -> bytes:
    """One event of the stream: `event: WHAT`, `data: JSON`, and an empty line."""
    text = dump_json(happening_view(happening)).encode("utf-8", "replace")
    return b"event: %b\ndata: %b\n\n" % (happening.what.encode(), text)


def query_pairs(wanted: HappeningFilter) -> list[tuple[str, str]]:
    """The filter as the query that `GET /stream` takes."""
    pairs = [("queue", one) for one in wanted.queues]
    pairs += [("mailbox", one) for one in wanted.mailboxes]
    pairs += [("what", one) for one in wanted.whats]
    return pairs if wanted.id is None else [*pairs, ("id", wanted.id)]


class EventReader:
    """The bytes of a stream, in whatever pieces they come -> its happenings. Comments and other events are passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterable[Happening]:
        """The happenings that this piece completes. Raises ValueError for what is no stream of ours."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MOST_LINE_BYTES:
            raise ValueError("a line without an end")
        found: list[Happening] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif not line.strip() and self._data:
                found.append(_read(b"\n".join(self._data)))
                self._data.clear()
        return found


def _read(text: bytes) -> Happening:
    try:
        return happening_of(json.loads(text))
    except (KeyError, TypeError, AttributeError, RecursionError, Invalid) as error:
        raise ValueError(f"{text[:80]!r} is no happening") from error
