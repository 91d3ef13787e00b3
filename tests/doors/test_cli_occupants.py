"""Names: several who have one are told apart, nobody who has one is said, and an endpoint's id is shown as its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.endpoint import CarrierKind
from tests.doors import fake_daemon
from tests.doors.command import leave
from tests.doors.fake_daemon import FakeDaemon
from tests.doors.fake_post import MESSAGE, delivery, message, occupant, sent

Output = pytest.CaptureFixture[str]
ONE, TWO, THREE = (f"ep_01890000-0000-7000-8000-00000000000{n}" for n in (1, 2, 3))
SAID = "2 live endpoints are named ann; send to the id of one"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDaemon]:
    monkeypatch.delenv("TMUX_PANE", raising=False)
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_ann")
    with fake_daemon.running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        yield fake


@pytest.mark.parametrize(
    ("words", "method", "path"),
    [
        (("send", "--to", "ann", "hi"), "POST", "/v1/messages"),
        (("channel", "subscribe", "team", "ann"), "PUT", "/v1/channels/team/subscribers/ann"),
        (("ack", "msg_1"), "POST", "/v1/messages/msg_1/ack"),
    ],
)
def test_those_who_may_be_meant_are_told_with_their_places(
    daemon: FakeDaemon, capsys: Output, words: tuple[str, ...], method: str, path: str
) -> None:
    daemon.refuse(method, path, 409, "ambiguous_endpoint", SAID, field="to", endpoints=[ONE, TWO, THREE])
    sits = [
        occupant(name="ann", endpoint_id=ONE, directory="/src\x1b[2J"),
        occupant(name="ann", endpoint_id=TWO, carrier="inbox", directory=None),
    ]
    daemon.answer("GET", "/v1/who", {"who": sits})
    assert leave(*words) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(f"error: ambiguous_endpoint: {SAID}")
    assert told[1:] == [
        f"  {ONE}  ann  tmux  /src\N{REPLACEMENT CHARACTER}[2J (main)",
        f"  {TWO}  ann  inbox",
        f"  {THREE}",
        "hint: Name one of the endpoints.",
    ]
    # Where nobody can be asked for the places the ids are told all the same; programs find them in the error.
    daemon.refuse("GET", "/v1/who", 503, "unavailable", "away")
    assert leave(*words) == 1
    assert capsys.readouterr().err.splitlines()[1:4] == [f"  {ONE}", f"  {TWO}", f"  {THREE}"]
    assert leave(*words, "--json") == 1
    assert json.loads(capsys.readouterr().err)["error"]["endpoints"] == [ONE, TWO, THREE]


def test_very_many_are_told_in_part(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.refuse("POST", "/v1/messages", 409, "ambiguous_endpoint", SAID, endpoints=[f"ep_{n}" for n in range(50)])
    assert leave("send", "--to", "ann", "hi") == 1
    told = capsys.readouterr().err.splitlines()
    assert told[20:22] == ["  ep_19", "  and 30 more: postroom endpoints --live"]


def test_who_tells_namesakes_apart(daemon: FakeDaemon, capsys: Output) -> None:
    both = [
        occupant(name="ann", endpoint_id=ONE, directory=None),
        occupant(name="ann", endpoint_id=TWO, directory=None),
    ]
    daemon.answer("GET", "/v1/who", {"who": both})
    assert leave("who") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["NAME", "ID", "BY"]
    assert [row.split()[1] for row in rows] == [ONE, TWO]
    daemon.answer("GET", "/v1/who", {"who": [both[0], occupant(name="bob", endpoint_id=None)]})
    assert leave("who") == 0
    assert "ep_" not in capsys.readouterr().out


def test_an_inbox_that_nobody_sits_at_is_said(daemon: FakeDaemon, capsys: Output) -> None:
    waits = delivery("injected", carrier=CarrierKind.INBOX, endpoint_id=None, mailbox="bobb")
    daemon.answer("POST", "/v1/messages", sent(waits, addressed="bobb"), 202)
    assert leave("send", "--to", "bobb", "hi") == 0
    taken = capsys.readouterr()
    assert taken.out == f"{MESSAGE} injected to bobb\n"
    assert taken.err == "nobody named bobb is attached: it waits in the inbox of that name until it is read\n"
    assert leave("send", "--to", "bobb", "hi", "--json") == 0
    assert capsys.readouterr().err == ""
    there = delivery("injected", carrier=CarrierKind.INBOX, endpoint_id=ONE, mailbox="bob")
    for answer in (
        sent(there, addressed="bob"),
        sent(delivery("injected"), addressed="ses_1"),
        sent(waits, addressed="bobb", deduplicated=True),
        sent(waits, addressed=None, channel="team"),
    ):
        daemon.answer("POST", "/v1/messages", answer, 202)
        assert leave("send", "--to", "bob", "hi") == 0
        assert capsys.readouterr().err == ""


def test_what_went_to_an_endpoint_is_listed_by_its_name(daemon: FakeDaemon, capsys: Output) -> None:
    rung = message(delivery("injected", endpoint_id=ONE, mailbox="reviewer"), addressed=ONE)
    nameless = message(delivery("injected", endpoint_id=TWO, mailbox=TWO), addressed=TWO)
    daemon.answer("GET", "/v1/messages", {"messages": [rung, nameless], "next_cursor": None})
    for words in (("history",), ("message", "list")):
        assert leave(*words) == 0
        _, first, second = capsys.readouterr().out.splitlines()
        assert first.split()[2] == "reviewer"
        assert second.split()[2] == TWO
