"""`postroom send`, `message`, `ack`, `retry`, `inbox`, `channel`, `endpoints`, `who`: what is asked, and what is said."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom import postage
from postroom.doors.cli import payload
from postroom.endpoint import CarrierKind
from tests.doors import fake_daemon, fake_post
from tests.doors.command import child, leave
from tests.doors.fake_daemon import NOON, FakeDaemon
from tests.doors.fake_post import ENDPOINT, MESSAGE, SESSION, delivery, letter, message, sent
from tests.doors.test_cli_connection import PROBE
from tests.processes import wait_until

Output = pytest.CaptureFixture[str]
ONE = f"/v1/messages/{MESSAGE}"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDaemon]:
    monkeypatch.setenv("POSTROOM_DATA", str(tmp_path))
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_ann")
    for name in ("OPENCODE_SESSION_ID", "TMUX", "TMUX_PANE"):
        monkeypatch.delenv(name, raising=False)
    with fake_daemon.running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        yield fake


def give_stdin(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))


def test_send_says_what_was_given_and_no_more(daemon: FakeDaemon, capsys: Output) -> None:  # P18
    daemon.answer("POST", "/v1/messages", sent(), 202)
    assert leave("send", "--to", SESSION, "hello") == 0
    assert daemon.last.body == {"to": SESSION, "payload": "hello"}
    assert "idempotency-key" not in daemon.last.headers
    taken = capsys.readouterr()
    assert taken.out == f"{MESSAGE} pending to {SESSION}\n"
    assert taken.err == ""

    daemon.answer("POST", "/v1/messages", sent(deduplicated=True), 202)
    words = ["--from", "ses_writer", "--kind", "task.assign", "--priority", "urgent", "--reply-to", "msg_1"]
    words += ["--msg-id", "my-id", "--ack", "acknowledged", "--ttl", "2h", "--request-id", "r-1"]
    assert leave("send", "--to", SESSION, *words, "--", "--hello") == 0
    assert daemon.last.body == {
        "to": SESSION,
        "from": "ses_writer",
        "payload": "--hello",
        "kind": "task.assign",
        "priority": "urgent",
        "reply_to": "msg_1",
        "msg_id": "my-id",
        "ack_mode": "acknowledged",
        "ttl_s": 7200,
    }
    assert daemon.last.headers["idempotency-key"] == "r-1"
    assert capsys.readouterr().out == f"{MESSAGE} pending to {SESSION} (was there already)\n"

    assert leave("send", "--channel", "team", "x", "--json") == 0
    assert daemon.last.body == {"channel": "team", "payload": "x"}
    assert json.loads(capsys.readouterr().out) == sent(deduplicated=True)

    daemon.answer("POST", "/v1/messages", {"id": "old", "message": None, "deduplicated": True}, 202)
    assert leave("send", "--to", SESSION, "--msg-id", "old", "x") == 0
    assert capsys.readouterr().out == "old was sent before, and is kept no longer\n"


def test_a_session_speaks_as_itself(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:  # P18
    monkeypatch.setenv("OPENCODE_SESSION_ID", "ses_mine")
    daemon.answer("POST", "/v1/messages", sent(), 202)
    daemon.answer("GET", "/v1/inbox", fake_post.inbox())
    assert leave("send", "--to", SESSION, "x") == 0
    assert daemon.last.body["from"] == "ses_mine"
    assert leave("send", "--to", SESSION, "--from", "ann", "x") == 0
    assert daemon.last.body["from"] == "ann"
    assert leave("inbox") == 0
    assert daemon.last.query == {"for": "ses_mine"}


def test_the_body_comes_from_a_file_or_stdin_unchanged(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    daemon.answer("POST", "/v1/messages", sent(), 202)
    text = "two\nlines \x1b[31m, an \N{PILE OF POO}, and an end\n"
    (tmp_path / "body").write_text(text)
    assert leave("send", "--to", SESSION, "--file", f"{tmp_path}/body") == 0
    assert daemon.last.body["payload"] == text
    for words in (("-",), ("--file", "-")):
        give_stdin(monkeypatch, text.encode())
        assert leave("send", "--to", SESSION, *words) == 0
        assert daemon.last.body["payload"] == text
    give_stdin(monkeypatch, b"x" * 64 * 1024)
    assert leave("send", "--to", SESSION, "-") == 0
    assert len(daemon.last.body["payload"]) == 64 * 1024


def test_a_body_that_cannot_be_sent_is_refused_here(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Output
) -> None:
    give_stdin(monkeypatch, b"x" * (64 * 1024 + 1))
    assert leave("send", "--to", SESSION, "-") == 1
    assert "error: too_large: payload has more than 65536 bytes" in capsys.readouterr().err
    (tmp_path / "big").write_bytes(b"x" * (64 * 1024 + 1))
    assert leave("send", "--to", SESSION, "--file", f"{tmp_path}/big", "--json") == 1
    assert json.loads(capsys.readouterr().err)["error"]["field"] == "payload"
    assert leave("send", "--to", SESSION, "\N{LATIN SMALL LETTER E WITH ACUTE}" * (32 * 1024 + 1)) == 1
    give_stdin(monkeypatch, b"caf\xe9")
    capsys.readouterr()
    assert leave("send", "--to", SESSION, "-") == 1
    assert "error: invalid: payload is not UTF-8 text: byte 3" in capsys.readouterr().err
    assert daemon.asked == []


@pytest.mark.parametrize(
    "words",
    [
        ("x",),
        ("--to", "a", "--channel", "b", "x"),
        ("--to", "a"),
        ("--to", "a", "x", "--file", "f"),
        ("--to", "a", "--file", "/no/such/file"),
        ("--to", "a", "--priority", "high", "x"),
        ("--to", "a", "--ack", "maybe", "x"),
        ("--to", "a", "--wait", "read", "x"),
        ("--to", "a", "--deadline", "5s", "x"),
        ("--to", "a", "--wait", "handed_off", "--deadline", "soon", "x"),
        ("--to", "a", "--ttl", "long", "x"),
        ("--to", "a", "x", "y"),
    ],
)
def test_send_usage(daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    assert leave("send", *words) == 2
    assert daemon.asked == []


@pytest.mark.parametrize(
    ("status", "code", "field"),
    [(400, "invalid", "--kind"), (403, "forbidden", "from"), (404, "not_found", "--to"), (409, "conflict", "msg_id")],
)
def test_a_refused_message_names_its_field(
    daemon: FakeDaemon, capsys: Output, status: int, code: str, field: str
) -> None:  # P4
    daemon.refuse("POST", "/v1/messages", status, code, "it says why", field=field.removeprefix("--"))
    assert leave("send", "--to", SESSION, "--kind", "No", "x", "--wait", "handed_off") == 1
    taken = capsys.readouterr()
    assert taken.out == ""
    assert f"error: {code}: it says why ({field})\n" in taken.err
    assert len(daemon.asked) == 1


def test_the_limit_is_the_posts() -> None:
    assert payload.MAX_PAYLOAD_BYTES == postage.MAX_PAYLOAD_BYTES


FAILED = delivery("failed", reason="no_such_target", last_failure_reason="no session ses_reader")


@pytest.mark.parametrize(
    ("until", "deliveries", "code"),
    [
        ("handed_off", (delivery("injected"),), 0),
        ("handed_off", (delivery("awaiting_ack"), delivery("acknowledged")), 0),
        ("acknowledged", (delivery("acknowledged"),), 0),
        ("handed_off", (FAILED,), 1),
        ("handed_off", (delivery("injected"), FAILED), 1),
        ("acknowledged", (delivery("failed", reason="ack_timeout"),), 1),
        ("handed_off", (delivery(),), 4),
        ("acknowledged", (delivery("injected"),), 4),
        ("acknowledged", (delivery("acknowledged"), delivery("awaiting_ack")), 4),
    ],
)
def test_wait_leaves_with_the_outcome(
    daemon: FakeDaemon, capsys: Output, until: str, deliveries: tuple[Any, ...], code: int
) -> None:
    daemon.answer("POST", "/v1/messages", sent(), 202)
    daemon.answer("GET", ONE, {"message": message(*deliveries)})
    words = ("send", "--to", SESSION, "x", "--wait", until, "--deadline", "0.05")
    assert leave(*words) == code
    taken = capsys.readouterr()
    first, second = taken.out.splitlines()
    assert first == f"{MESSAGE} pending to {SESSION}"
    assert second.startswith(f"{MESSAGE} ")
    assert daemon.last.query["until"] == until
    if FAILED in deliveries:
        assert f"{SESSION}: no_such_target, no session ses_reader".replace(", ", ": ") in taken.err
    assert ("postroom message show" in taken.err) == (code == 4)
    if code == 4:
        stands = "still on its way" if until == "handed_off" else second.removeprefix(f"{MESSAGE} ").split(" to ")[0]
        assert f"not {until} by the deadline; it is {stands}: " in taken.err

    assert leave(*words, "--json") == code
    told = json.loads(capsys.readouterr().out)
    assert told["outcome"] == {0: until, 1: "failed", 4: "under_way"}[code]
    assert told["id"] == MESSAGE
    assert told["message"]["deliveries"] == message(*deliveries)["deliveries"]


def test_wait_for_what_is_so_already_asks_no_more(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", "/v1/messages", sent(delivery("injected")), 202)
    assert leave("send", "--to", "ann", "x", "--wait", "handed_off") == 0
    assert len(daemon.asked) == 1
    shown = message(channel="team", addressed=None)
    daemon.answer("POST", "/v1/messages", {"id": MESSAGE, "message": shown, "deduplicated": False}, 202)
    assert leave("send", "--channel", "team", "x", "--wait", "handed_off") == 1
    taken = capsys.readouterr()
    assert f"{MESSAGE} for nobody to #team\n" in taken.out
    assert taken.err == "nobody is subscribed to team\n"


@pytest.mark.parametrize("answer", [None, (503, {"error": {"code": "unavailable", "message": "it is starting"}})])
def test_wait_outlives_a_daemon_that_comes_back(daemon: FakeDaemon, capsys: Output, answer: Any) -> None:
    daemon.answer("POST", "/v1/messages", sent(), 202)
    daemon.answers["GET", ONE] = answer

    def come_back() -> None:
        wait_until(lambda: len(daemon.asked) >= 2, "the verb has looked once")
        daemon.answer("GET", ONE, {"message": message(delivery("injected"))})

    meanwhile = threading.Thread(target=come_back)
    meanwhile.start()
    try:
        assert leave("send", "--to", SESSION, "x", "--wait", "handed_off", "--deadline", "60") == 0
    finally:
        meanwhile.join(30)
    assert f"{MESSAGE} injected to {SESSION}\n" in capsys.readouterr().out


def test_wait_for_a_daemon_that_stays_away_is_exit_3_after_the_id(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", "/v1/messages", sent(), 202)
    daemon.answers["GET", ONE] = None
    assert leave("send", "--to", SESSION, "x", "--wait", "handed_off", "--deadline", "0.1", "--json") == 3
    taken = capsys.readouterr()
    assert json.loads(taken.out)["id"] == MESSAGE
    assert json.loads(taken.err)["error"]["code"] == "unreachable"


def test_message_show_and_list(daemon: FakeDaemon, capsys: Output) -> None:  # P23
    busy = delivery(
        deferred_reason="a turn is on", attempt_count=2, last_failure_reason="HTTP 500", next_attempt_at=NOON
    )
    lost = delivery("failed", reason="unconfirmed", doubtful=True, mailbox="ses_other")
    shown = message(busy, lost, payload="one\ntwo\x1b[31m", reply_to="msg_0")
    daemon.answer("GET", ONE, {"message": shown})
    assert leave("message", "show", MESSAGE) == 0
    out = capsys.readouterr().out
    assert "state       1 pending, 1 failed\n" in out
    assert "reply_to    msg_0\n" in out
    assert "payload:\n  one\n  two\N{REPLACEMENT CHARACTER}[31m\n" in out
    assert "waits: a turn is on; HTTP 500; again at 2026-01-31T12:00:00Z" in out
    assert "unconfirmed; it may have been written" in out
    assert "2/10" in out
    assert leave("message", "show", MESSAGE, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"message": shown}

    daemon.answer("GET", "/v1/messages", {"messages": [shown, message(channel="team")], "next_cursor": "c"})
    filters = ("--from", "ses_writer", "--to", SESSION, "--channel", "team", "--state", "failed", "--kind", "chat")
    assert leave("message", "list", *filters, "--reply-to", "msg_0", "--limit", "9") == 0
    assert daemon.last.query == {
        "from": "ses_writer",
        "to": SESSION,
        "channel": "team",
        "state": "failed",
        "kind": "chat",
        "reply_to": "msg_0",
        "limit": "9",
    }
    taken = capsys.readouterr()
    assert "\x1b" not in taken.out
    assert taken.out.splitlines()[2].split()[2] == "#team"
    assert taken.err == "more: --cursor c\n"


def test_ack_retry_and_cancel(daemon: FakeDaemon, capsys: Output) -> None:
    for name in ("ack", "retry", "cancel"):
        daemon.answer("POST", f"{ONE}/{name}", {"message": message(delivery("acknowledged"))})
    assert leave("ack", MESSAGE) == 0
    assert daemon.last.body == {}
    assert capsys.readouterr().out == f"{MESSAGE} acknowledged to {SESSION}\n"
    assert leave("ack", MESSAGE, "--endpoint", ENDPOINT) == 0
    assert daemon.last.body == {"endpoint": ENDPOINT}
    for words in (("retry",), ("message", "retry")):
        assert leave(*words, MESSAGE, "--endpoint", "reader", "--request-id", "k") == 0
        assert daemon.last.path == f"{ONE}/retry"
        assert daemon.last.body == {"endpoint": "reader"}
        assert daemon.last.headers["idempotency-key"] == "k"
    assert leave("message", "cancel", MESSAGE, "--reason", "no more") == 0
    assert daemon.last.body == {"reason": "no more"}
    daemon.refuse("POST", f"{ONE}/ack", 409, "conflict", "two deliveries", state="pending")
    assert leave("ack", MESSAGE) == 1
    assert leave("ack", "") == 2
    assert leave("retry", "") == 2


# T42
def test_ack_in_a_pane_means_the_delivery_to_that_pane(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Output
) -> None:
    server = tmp_path / "tmux:0"
    server.touch()
    (tmp_path / "link").symlink_to(server)
    targets = [f"tmux:{server}:{pid}:100:{pane}" for pid, pane in ((76, "%3"), (77, "%31"), (77, "%3"))]
    panes = [
        delivery("injected", carrier=CarrierKind.TMUX, target_key=target, endpoint_id=f"ep_{number}")
        for number, target in enumerate(targets)
    ]
    daemon.answer("GET", ONE, {"message": message(delivery(), *panes, channel="team")})
    daemon.answer("POST", f"{ONE}/ack", {"message": message(delivery("acknowledged"))})
    monkeypatch.setenv("TMUX", f"{tmp_path}/link,77,0")
    for pane, meant in (("%3", {"endpoint": "ep_2"}), ("%31", {"endpoint": "ep_1"}), ("%4", {}), ("", {})):
        monkeypatch.setenv("TMUX_PANE", pane)
        assert leave("ack", MESSAGE) == 0
        assert daemon.last.body == meant, pane
    # What is said goes before where it is said.
    monkeypatch.setenv("TMUX_PANE", "%3")
    assert leave("ack", MESSAGE, "--endpoint", "reader") == 0
    assert daemon.last.body == {"endpoint": "reader"}
    capsys.readouterr()
    daemon.refuse("GET", ONE, 404, "not_found", "there is no message")
    assert leave("ack", MESSAGE) == 1
    assert "error: not_found: there is no message" in capsys.readouterr().err


def test_an_id_is_one_segment_of_the_path(daemon: FakeDaemon) -> None:
    assert leave("message", "show", "../queues?x") == 1
    assert daemon.last.path == "/v1/messages/..%2Fqueues%3Fx"


def test_inbox_shows_letters_and_where_to_go_on(daemon: FakeDaemon, capsys: Output) -> None:  # P11
    letters = (
        letter(1, read=True),
        letter(2, channel="team", addressed=None, payload="two\nlines\x1b[2J", reply_to="msg_1", priority="urgent"),
    )
    daemon.answer("GET", "/v1/inbox", fake_post.inbox(*letters, unread=1))
    assert leave("inbox", "--for", SESSION, "--since", "msg_0", "--limit", "5", "--wait", "1.5s") == 0
    assert daemon.last.query == {"for": SESSION, "since": "msg_0", "limit": "5", "wait_s": "1.5"}
    taken = capsys.readouterr()
    assert taken.out == (
        "msg_1 from ses_writer chat 2026-01-31T12:00:00Z\n  hello\n\n"
        "msg_2 from ses_writer #team chat urgent re msg_1 2026-01-31T12:00:00Z (new)\n"
        "  two\n  lines\N{REPLACEMENT CHARACTER}[2J\n"
    )
    assert taken.err == f"2 messages for {SESSION}, 1 unread\nmore: --since s.9\n"
    assert leave("inbox", "--json") == 0
    assert daemon.last.query == {}
    assert json.loads(capsys.readouterr().out) == fake_post.inbox(*letters, unread=1)

    daemon.answer("GET", "/v1/inbox", fake_post.inbox(mailbox="ann"))
    assert leave("inbox") == 0
    assert capsys.readouterr().err == "no messages for ann, 0 unread\n"
    assert leave("inbox", "--since", "a", "--unread") == 2


def test_inbox_marks_what_it_showed(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("GET", "/v1/inbox", fake_post.inbox(letter(1), unread=1))
    daemon.answer("POST", "/v1/inbox/read", fake_post.inbox())
    assert leave("inbox", "--mark-read") == 0
    assert daemon.last.body == {"for": SESSION, "since": "s.9"}
    assert "0 unread" in capsys.readouterr().err
    daemon.answer("GET", "/v1/inbox", fake_post.inbox())
    assert leave("inbox", "--mark-read") == 0
    assert daemon.last.method == "GET"


def test_inbox_unread_leaves_out_what_was_read(daemon: FakeDaemon, capsys: Output) -> None:
    letters = [letter(1, read=True), letter(2), letter(3)]
    daemon.answer("GET", "/v1/inbox", fake_post.inbox(*letters, unread=2))
    assert leave("inbox", "--unread", "--json") == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["messages"]] == ["msg_2", "msg_3"]
    daemon.answer("POST", "/v1/inbox/read", fake_post.inbox(unread=1))
    assert leave("inbox", "--unread", "--limit", "1", "--mark-read", "--json") == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["messages"]] == ["msg_2"]
    assert daemon.last.body == {"for": SESSION, "since": "msg_2"}

    daemon.answer("GET", "/v1/inbox", fake_post.inbox(place="s.3"))
    assert leave("inbox", "--unread", "--wait", "0.1s") == 0
    waits = [one.query for one in daemon.asked if "wait_s" in one.query]
    assert waits[0] == {"limit": "50", "wait_s": "0.1", "since": "s.3"}
    assert capsys.readouterr().out == ""


def test_channels(daemon: FakeDaemon, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    team = {"name": "team/a", "subscribers": [{"mailbox": SESSION, "endpoint_id": ENDPOINT}]}
    path = f"/v1/channels/team%2Fa/subscribers/{SESSION}"
    daemon.answer("PUT", path, {"channel": team})
    daemon.answer("DELETE", path, {"channel": {"name": "team/a", "subscribers": []}})
    daemon.answer("GET", "/v1/channels", {"channels": [team]})
    assert leave("channel", "subscribe", "team/a", SESSION) == 0
    assert daemon.last.body == {}
    assert capsys.readouterr().out == f"#team/a: {SESSION}\n"
    assert leave("channel", "unsubscribe", "team/a", SESSION) == 0
    assert capsys.readouterr().out == "#team/a: nobody is subscribed\n"
    assert leave("channel", "list") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["#team/a", SESSION]
    assert leave("channel", "subscribe", "team/a") == 2
    assert leave("channel", "subscribe", "", SESSION) == 2
    monkeypatch.setenv("OPENCODE_SESSION_ID", SESSION)
    assert leave("channel", "subscribe", "team/a") == 0
    assert daemon.last.path == path


def test_endpoints_and_who(daemon: FakeDaemon, capsys: Output) -> None:
    views = [fake_post.endpoint(), fake_post.endpoint(live=None, name=None), fake_post.endpoint(ended_at=NOON)]
    daemon.answer("GET", "/v1/endpoints", {"endpoints": views})
    assert leave("endpoints", "--live") == 0
    assert daemon.last.query == {"live": "true"}
    rows = [row.split() for row in capsys.readouterr().out.splitlines()[1:]]
    assert rows[0][:6] == [ENDPOINT, "reader", "tmux", "live", "tmux:s:1:2:%1", "team"]
    assert [row[3] for row in rows] == ["live", "-", "ended"]
    assert leave("endpoints", "--ended", "--name", "reader", "--channel", "team", "--queue", "q", "--repo", "a/b") == 0
    assert daemon.last.query == {
        "ended": "true",
        "name": "reader",
        "channel": "team",
        "queue": "q",
        "target_repo": "a/b",
    }

    capsys.readouterr()
    daemon.answer("GET", "/v1/who", {"who": [fake_post.occupant(), fake_post.occupant(todo_id=None, directory=None)]})
    assert leave("who") == 0
    out = capsys.readouterr().out
    assert "/src (main)" in out
    assert "td_1 Read it\N{REPLACEMENT CHARACTER}" in out
    assert leave("who", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["who"]) == 2


def test_a_token_may_speak_as_others(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", "/v1/tokens", {"token": fake_daemon.token(), "secret": "tk_secret"}, 201)
    assert leave("token", "create", "ann", "--speaks-as", "ses_*", "--speaks-as", "bob") == 0
    assert daemon.last.body == {"name": "ann", "role": "agent", "speaks_as": ["ses_*", "bob"]}
    daemon.answer("GET", "/v1/tokens", {"tokens": [{**fake_daemon.token(), "speaks_as": ["ses_*"]}]})
    capsys.readouterr()
    assert leave("token", "list") == 0
    assert "ses_*" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("send", "--to", SESSION, "x", "--wait", "handed_off"), 0),
        (("send", "--to", SESSION, "x" * (64 * 1024 + 1)), 1),
        (("message", "show", MESSAGE), 0),
        (("message", "list"), 0),
        (("message", "reply", MESSAGE), 4),
        (("inbox", "--unread"), 0),
        (("channel", "list"), 0),
        (("endpoints",), 0),
        (("who",), 0),
        (("ack", "no"), 1),
        (("setup", "opencode", "--print"), 0),
    ],
)
def test_verbs_stay_light(daemon: FakeDaemon, words: tuple[str, ...], code: int) -> None:
    daemon.answer("POST", "/v1/messages", sent(delivery("injected")), 202)
    daemon.answer("GET", ONE, {"message": message(delivery("injected"))})
    daemon.answer("GET", f"{ONE}/reply", {"reply": None, "message": message(delivery()), "in_vain": False})
    daemon.answer("GET", "/v1/messages", {"messages": [message(delivery())], "next_cursor": None})
    daemon.answer("GET", "/v1/inbox", fake_post.inbox(letter(1)))
    daemon.answer("GET", "/v1/channels", {"channels": []})
    daemon.answer("GET", "/v1/endpoints", {"endpoints": [fake_post.endpoint()]})
    daemon.answer("GET", "/v1/who", {"who": [fake_post.occupant()]})
    done = child(*words, url=daemon.url, program=PROBE)
    assert done.returncode == code, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_completion_knows_the_verbs_of_the_post() -> None:
    def completed(line: str) -> list[str]:
        count = str(len(line.split(" ")) - 1)
        return child(_POSTROOM_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=count).stdout.split()

    assert completed("postroom mess") == ["message"]
    assert completed("postroom message ") == ["show", "list", "reply", "cancel", "retry"]
    assert completed("postroom send --wait ") == ["handed_off", "acknowledged"]


def test_the_short_list_of_verbs_is_the_whole_one(capsys: Output) -> None:
    from postroom.doors.cli.main import build

    assert leave("--help") == 0
    short = capsys.readouterr().out
    with pytest.raises(SystemExit):
        build()(args=["--help"], prog_name="postroom")
    assert capsys.readouterr().out == short
