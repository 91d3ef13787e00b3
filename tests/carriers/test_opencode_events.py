"""The events of an opencode server: taken apart byte by byte, and what of them is believed."""

from __future__ import annotations

import json

import pytest

from postroom.carriers import opencode_events
from postroom.carriers.opencode_events import Events, EventStream
from postroom.carriers.opencode_server import OpencodeServer, ServerLink
from postroom.carriers.opencode_wire import Broken

TEXT = b': hello\n\ndata: {"a": 1}\n\nevent: x\r\ndata:one\r\ndata: two\r\nid: 7\r\n\r\n\n\ndata: \xc3\xa9\n\ndata: cut'
SAID = [b'{"a": 1}', b"one\ntwo", b"\xc3\xa9"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_stream_is_taken_apart_wherever_it_is_cut(size: int) -> None:
    said: list[bytes] = []
    events = Events(said.append)
    for start in range(0, len(TEXT), size):
        events.feed(TEXT[start : start + size])
    assert said == SAID


def test_an_event_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencode_events, "MAX_ANSWER", 100)
    events = Events(lambda data: None)
    for _ in range(50):
        events.feed(b"data: short\n\n")
    with pytest.raises(Broken):
        events.feed(b"data: " + b"x" * 101)
    events = Events(lambda data: None)
    with pytest.raises(Broken):
        for _ in range(50):
            events.feed(b"data: a line that goes on\n")


class Stream:
    """An event stream whose server is the test, with the clock in its hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.changed: list[str] = []
        self.events = EventStream(
            ServerLink(OpencodeServer("http://127.0.0.1:1")), self.changed.append, lambda: self.now
        )
        self._feed = self.events._head(200, "text/event-stream")

    def at_work(self, session: str) -> bool:
        """Whether a session is believed to be at work."""
        return self.events.pulses[session].busy

    def say(self, kind: str, **properties: object) -> None:
        """One event, a moment later."""
        self.now += 1
        assert self._feed is not None
        self._feed(b"data: " + json.dumps({"payload": {"type": kind, "properties": properties}}).encode() + b"\n\n")


def test_who_was_at_work_before_the_events_were_listened_to_is_not_believed() -> None:
    stream = Stream()
    asked_at = stream.now
    # Nobody listens yet: the end of this work would not be told.
    stream.events.cover("/work", ["ses_a"], asked_at)
    assert (stream.events.pulses, stream.events.covered) == ({}, set())
    stream.say("server.connected")
    assert stream.events.live
    # Asked before, answered after.
    stream.events.cover("/work", ["ses_a"], asked_at)
    assert (stream.events.pulses, stream.events.covered) == ({}, set())
    stream.now += 1
    stream.events.cover("/work", ["ses_a"], stream.now)
    assert stream.at_work("ses_a")
    stream.say("session.status", sessionID="ses_a", status={"type": "idle"})
    assert not stream.at_work("ses_a")
    # An answer that was on its way meanwhile is older than the event.
    stream.events.cover("/work", ["ses_a"], stream.now - 1)
    assert not stream.at_work("ses_a")
    assert stream.changed == ["ses_a"]


def test_events_that_nothing_is_learned_from_are_passed_over() -> None:
    stream = Stream()
    stream.say("server.connected")
    stream.say("message.part.updated", part={"sessionID": "ses_a", "text": "session.idle"})
    assert stream.events.pulses == {}
    stream.say("session.idle", sessionID="ses_a")
    assert stream.changed == ["ses_a"]
