"""`postroom todo next --wait` and `postroom inbox --wait`: they outlive a daemon that goes away and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.doors.cli import waiting
from postroom.doors.cli.reply import PAUSE_S
from tests.doors import fake_daemon, fake_post
from tests.doors.command import leave
from tests.doors.fake_daemon import TODO, FakeDaemon
from tests.doors.fake_post import letter

Output = pytest.CaptureFixture[str]
Call = tuple[str, str]
Answer = tuple[int, Any] | None

CLAIM, INBOX = ("POST", "/v1/todos/claim"), ("GET", "/v1/inbox")
VERBS = {
    "todo": (("todo", "next"), CLAIM),
    "inbox": (("inbox", "--for", "ann"), INBOX),
    "unread": (("inbox", "--for", "ann", "--unread"), INBOX),
}
NOTHING: dict[Call, Answer] = {CLAIM: (200, {"todos": []}), INBOX: (200, fake_post.inbox())}
SOMETHING: dict[Call, Answer] = {
    CLAIM: (200, {"todos": [fake_daemon.claimed()]}),
    INBOX: (200, fake_post.inbox(letter(1), unread=1)),
}
BROKEN: Answer = None
STOPPING: Answer = (503, {"error": {"code": "unavailable", "message": "the daemon is stopping"}})

every_verb = pytest.mark.parametrize(("words", "call"), VERBS.values(), ids=VERBS)


class Clock:
    """A time that goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Story(dict[Call, Answer]):
    """What one call is answered with, one after the other, and the last of them for ever."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self._answers = list(answers)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDaemon]:
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_ann")
    monkeypatch.setattr(waiting, "time", Clock())
    with fake_daemon.running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        yield fake


@every_verb
def test_it_goes_on_for_the_rest_of_its_time(
    daemon: FakeDaemon, capsys: Output, words: tuple[str, ...], call: Call
) -> None:
    nothing = NOTHING[call]
    daemon.answers = Story(nothing, nothing, BROKEN, BROKEN, STOPPING, nothing, SOMETHING[call])
    assert leave(*words, "--wait", "40s", "--json") == 0
    taken = capsys.readouterr()
    assert (TODO if call == CLAIM else "msg_1") in taken.out
    assert taken.err.count("waiting for the daemon") == 1
    waits = [asked for one in daemon.asked if "wait_s" in (asked := one.body or one.query)]
    left = [float(one["wait_s"]) for one in waits]
    assert left == [40 - PAUSE_S * number for number in range(len(left))]
    if call == CLAIM:
        assert len({one["claim_key"] for one in waits}) == 1, "a claim whose answer was lost is found again"


@every_verb
@pytest.mark.parametrize(("answer", "code", "said"), [(BROKEN, 3, "unreachable"), (STOPPING, 1, "unavailable")])
def test_a_daemon_that_is_away_at_the_end_is_not_called_nothing(
    daemon: FakeDaemon, capsys: Output, words: tuple[str, ...], call: Call, answer: Answer, code: int, said: str
) -> None:
    daemon.answers = Story(NOTHING[call], NOTHING[call], answer)
    assert leave(*words, "--wait", "3s", "--json") == code
    taken = capsys.readouterr()
    assert taken.out == ""
    assert json.loads(taken.err.splitlines()[-1])["error"]["code"] == said
    assert len(daemon.asked) < 12


@every_verb
def test_nothing_at_the_end_is_nothing(daemon: FakeDaemon, words: tuple[str, ...], call: Call) -> None:
    daemon.answers = Story(NOTHING[call], NOTHING[call], BROKEN, NOTHING[call])
    assert leave(*words, "--wait", "3s") == 0


@every_verb
def test_nobody_there_at_the_beginning_is_told_at_once(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], call: Call
) -> None:
    daemon.answers = Story(STOPPING)
    assert leave(*words, "--wait", "40s") == 1
    assert len(daemon.asked) == 1
    monkeypatch.setenv("POSTROOM_URL", "http://127.0.0.1:1")
    assert leave(*words, "--wait", "40s") == 3
