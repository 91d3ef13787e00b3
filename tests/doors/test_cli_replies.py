"""`postroom send --wait-reply`, `postroom message reply`, `postroom todo assign`: what is asked, said, and left with."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.doors.cli import reply
from tests.doors import fake_daemon
from tests.doors.command import leave
from tests.doors.fake_daemon import TODO, FakeDaemon, todo
from tests.doors.fake_post import MESSAGE, SESSION, delivery, message, sent
from tests.processes import wait_until

Output = pytest.CaptureFixture[str]
REPLY = f"/v1/messages/{MESSAGE}/reply"
ASK = ("send", "--to", SESSION, "x", "--wait-reply")


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDaemon]:
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_ann")
    monkeypatch.delenv("OPENCODE_SESSION_ID", raising=False)
    with fake_daemon.running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        fake.answer("POST", "/v1/messages", sent(), 202)
        yield fake


def seen(answer: dict[str, Any] | None = None, *, in_vain: bool = False) -> dict[str, Any]:
    """What the daemon says of an answer."""
    return {"reply": answer, "message": message(delivery()), "in_vain": in_vain}


ANSWER = message(delivery("injected"), id="msg_back", sender="bob", reply_to=MESSAGE, payload="yes\n\x1b[2Jindeed")


def test_the_answer_is_printed_after_the_id(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("GET", REPLY, seen(ANSWER))
    assert leave(*ASK) == 0
    assert 49 <= float(daemon.last.query["wait_s"]) <= 50
    assert capsys.readouterr().out == (
        f"{MESSAGE} pending to {SESSION}\n"
        f"msg_back from bob chat re {MESSAGE} 2026-01-31T12:00:00Z\n"
        "  yes\n  \N{REPLACEMENT CHARACTER}[2Jindeed\n"
    )
    assert leave(*ASK, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["id"], told["outcome"], told["reply"]["payload"]) == (MESSAGE, "answered", ANSWER["payload"])
    assert leave("message", "reply", MESSAGE) == 0
    assert daemon.last.query == {}
    assert capsys.readouterr().out.startswith("msg_back from bob")


def test_no_answer_in_time_is_exit_4_with_the_way_to_ask_again(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("GET", REPLY, seen())
    assert leave(*ASK, "--deadline", "0.02") == 4
    taken = capsys.readouterr()
    assert taken.out == f"{MESSAGE} pending to {SESSION}\n"
    assert taken.err == f"no answer yet; wait again: postroom message reply {MESSAGE} --wait 50s\n"
    assert leave("message", "reply", MESSAGE, "--json") == 4
    assert json.loads(capsys.readouterr().out)["outcome"] == "under_way"
    asked = len(daemon.asked)
    assert leave("message", "reply", MESSAGE) == 4
    assert len(daemon.asked) == asked + 1


def test_what_nobody_can_answer_is_exit_1(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("GET", REPLY, {**seen(in_vain=True), "message": message(channel="team", addressed=None)})
    assert leave(*ASK) == 1
    taken = capsys.readouterr()
    assert f"{MESSAGE} for nobody to #team\n" in taken.out
    assert taken.err == "nobody can answer it: it came to nobody\n"


@pytest.mark.parametrize("answer", [None, (503, {"error": {"code": "unavailable", "message": "it is starting"}})])
def test_it_waits_on_beyond_one_wait_and_a_daemon_that_comes_back(
    daemon: FakeDaemon, capsys: Output, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(reply, "PAUSE_S", 0.01)
    daemon.answers["GET", REPLY] = answer

    def come_back() -> None:
        wait_until(lambda: len(daemon.asked) >= 2, "the verb has looked once")
        daemon.answer("GET", REPLY, seen())
        wait_until(lambda: len(daemon.asked) >= 4, "and again")
        daemon.answer("GET", REPLY, seen(ANSWER))

    meanwhile = threading.Thread(target=come_back)
    meanwhile.start()
    try:
        assert leave(*ASK, "--deadline", "60") == 0
    finally:
        meanwhile.join(30)
    assert "msg_back from bob" in capsys.readouterr().out


def test_a_daemon_that_stays_away_is_exit_3_after_the_id(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answers["GET", REPLY] = None
    assert leave(*ASK, "--deadline", "0.1", "--json") == 3
    taken = capsys.readouterr()
    assert json.loads(taken.out)["id"] == MESSAGE
    assert json.loads(taken.err)["error"]["code"] == "unreachable"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*ASK, "--wait", "handed_off"), "not both"),
        (("send", "--to", SESSION, "x", "--deadline", "5"), "say what is waited for"),
        ((*ASK, "--deadline", "soon"), "--deadline"),
        (("message", "reply", ""), "empty id"),
        (("message", "reply"), "ID"),
        (("message", "reply", MESSAGE, "--wait", "long"), "--wait"),
        (("todo", "assign", TODO), "NAME or --nobody"),
        (("todo", "assign", TODO, "bob", "--nobody"), "NAME or --nobody"),
        (("todo", "assign", "", "bob"), "empty id"),
    ],
)
def test_words_that_do_not_fit_are_usage(daemon: FakeDaemon, capsys: Output, words: tuple[str, ...], said: str) -> None:
    assert leave(*words) == 2
    assert said in capsys.readouterr().err
    assert daemon.asked == []


def test_a_refusal_is_told_and_waits_for_nothing(daemon: FakeDaemon, capsys: Output) -> None:
    words = "ann has sent as many messages as [post] rate_per_minute = 600 allows; send again in 3 s"
    daemon.refuse("POST", "/v1/messages", 429, "rate_limited", words, field="from", retry_after_s=3)
    assert leave(*ASK) == 1
    assert f"error: rate_limited: {words} (from)\n" in capsys.readouterr().err
    assert len(daemon.asked) == 1


def test_work_is_given_to_somebody_and_taken_back(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", "/v1/todos", {"todo": todo(assignee="bob"), "created": True}, 201)
    assert leave("todo", "add", "review", "Read it", "--for", "bob") == 0
    assert daemon.last.body == {"queue": "review", "title": "Read it", "assignee": "bob"}
    assert capsys.readouterr().out == f"{TODO} pending in review for bob\n"
    daemon.answer("PATCH", f"/v1/todos/{TODO}", {"todo": todo(assignee="cid")})
    assert leave("todo", "assign", TODO, "cid", "--request-id", "r-1") == 0
    assert (daemon.last.body, daemon.last.headers["idempotency-key"]) == ({"assignee": "cid"}, "r-1")
    assert capsys.readouterr().out == f"{TODO} pending for cid\n"
    daemon.answer("PATCH", f"/v1/todos/{TODO}", {"todo": todo()})
    assert leave("todo", "assign", TODO, "--nobody") == 0
    assert daemon.last.body == {"assignee": None}
    assert capsys.readouterr().out == f"{TODO} pending\n"
    daemon.refuse("PATCH", f"/v1/todos/{TODO}", 403, "forbidden", "only an admin or its creator")
    assert leave("todo", "assign", TODO, "eve") == 1
