"""`postroom source`, `rules`, `fire` and `event replay`: what each verb asks, what it writes, and what it prints."""

from __future__ import annotations

import io
import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.doors.cli.settings_file import SettingsFile
from postroom.errors import Conflict, Misconfigured
from tests.doors import fake_daemon
from tests.doors.command import child, leave
from tests.doors.fake_daemon import EVENT, TODO, FakeDaemon
from tests.doors.test_cli_nouns import event

Output = pytest.CaptureFixture[str]

RULE: dict[str, Any] = {"name": "bugs", "match": {"label": ["bug", "crash"]}, "queue": "bugs", "priority": 5}
RULES: dict[str, Any] = {
    "source": "github",
    "version": 3,
    "rules": [RULE],
    "settings": [{"name": "mention", "kind": "mention"}],
    "created_by": "ann",
    "created_at": "2026-01-31T12:00:00.000Z",
    "broken": None,
}
SETTINGS = """\
# Mine, and I like it so.
port = 7000  # here

[queue.inbox]
lease_s = 60"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("POSTROOM_CONFIG", raising=False)
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("POSTROOM_DATA", str(folder))
    monkeypatch.setenv("POSTROOM_TOKEN", "tk_ann")
    return folder


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, data: Path) -> Iterator[FakeDaemon]:
    with fake_daemon.running() as fake:
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        fake.answer("GET", "/v1/sources", sources(data))
        fake.answer("POST", "/v1/reload", sources(data))
        yield fake


def sources(data: Path, *names: str) -> dict[str, Any]:
    """What the daemon says of its sources."""
    shown = [
        {
            "name": name,
            "provider": "github",
            "queue": "inbox",
            "path": f"/hooks/{name}",
            "rules": 0,
            "ignore_authors": [],
            "insecure": False,
            "local": name == "home",
            "max_bytes": 5 * 1024 * 1024,
            "secrets": [f"{name}:1"],
            "matched": {"secret": f"{name}:1", "at": "2026-01-31T12:00:00.000Z"},
            "samples": ["push"],
        }
        for name in names
    ]
    places = {"settings_file": None, "data": str(data), "addresses": ["http://127.0.0.1:7373"]}
    return {"sources": shown, "warnings": ["short"], **places}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# Sources.


def test_source_list(daemon: FakeDaemon, data: Path, capsys: Output) -> None:
    daemon.answer("GET", "/v1/sources", sources(data, "github", "home"))
    assert leave("source", "list") == 0
    taken = capsys.readouterr()
    head, row, other = taken.out.splitlines()
    assert head.split() == ["NAME", "PROVIDER", "QUEUE", "ADDRESS", "UP", "TO", "SECRETS", "LATEST", "PROOF"]
    address = "http://127.0.0.1:7373/hooks/github"
    assert row.split()[:7] == ["github", "github", "inbox", address, "5", "MiB", "github:1"]
    assert "home:1; this machine alone" in other
    daemon.answer("GET", "/v1/sources", sources(data))
    assert leave("source", "list") == 0
    assert "postroom source add" in capsys.readouterr().err
    assert taken.err == "warning: short\n"


def test_source_add_keeps_the_file_and_shows_the_secret_once(daemon: FakeDaemon, data: Path, capsys: Output) -> None:
    file = data / "postroom.toml"
    file.write_text(SETTINGS)
    file.chmod(0o640)
    daemon.answer("POST", "/v1/reload", sources(data, "github"))
    assert leave("source", "add", "github", "--provider", "github", "--queue", "inbox", "--preset", "github") == 0
    text = file.read_text()
    assert text.startswith(SETTINGS + "\n\n[[source]]\n")
    (made,) = tomllib.loads(text)["source"]
    assert made == {
        "name": "github",
        "provider": "github",
        "queue": "inbox",
        "preset": "github",
        "secrets_file": "secrets/github",
    }
    assert (data / "postroom.toml.bak").read_text() == SETTINGS
    secret = (data / "secrets" / "github").read_text().strip()
    assert len(secret) == 64
    assert (mode(data / "secrets" / "github"), mode(data / "secrets"), mode(file)) == (0o600, 0o700, 0o640)
    taken = capsys.readouterr()
    assert f"secret    {secret}\n" in taken.out
    assert "address   http://127.0.0.1:7373/hooks/github\n" in taken.out
    assert taken.err == "the secret is shown only now\n"
    assert [(one.method, one.path) for one in daemon.asked] == [("GET", "/v1/sources"), ("POST", "/v1/reload")]
    assert leave("source", "add", "github", "--provider", "github") == 1
    assert file.read_text() == text


def test_source_add_makes_a_file_where_there_is_none(daemon: FakeDaemon, data: Path, capsys: Output) -> None:
    daemon.answer("POST", "/v1/reload", sources(data, "ci"))
    words = ("--provider", "generic", "--set", "scheme=token", "--set", "header=X-Token", "--set", "insecure=false")
    assert leave("source", "add", "ci", *words, "--json") == 0
    file = data / "postroom.toml"
    assert mode(file) == 0o600
    (made,) = tomllib.loads(file.read_text())["source"]
    assert (made["scheme"], made["header"], made["insecure"]) == ("token", "X-Token", False)
    told = json.loads(capsys.readouterr().out)["source"]
    assert told["secret"] == (data / "secrets" / "ci").read_text().strip()
    assert told["daemon"] == "reloaded"


def test_source_add_takes_a_secret_from_elsewhere(
    daemon: FakeDaemon, data: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "mine"
    secret.write_text("a-secret-of-my-own\n")
    secret.chmod(0o600)
    assert leave("source", "add", "a", "--provider", "github", "--secret-env", "HOOK_A", "--secret-env", "HOOK_B") == 0
    assert leave("source", "add", "b", "--provider", "slack", "--secret-file", str(secret)) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("8f742231b10e8888abcd99yyyzzz85a5\n"))
    assert leave("source", "add", "c", "--provider", "slack", "--secret-stdin") == 0
    assert leave("source", "add", "d", "--provider", "generic", "--set", "insecure=true") == 0
    a, b, c, d = tomllib.loads((data / "postroom.toml").read_text())["source"]
    assert a["secrets_env"] == ["HOOK_A", "HOOK_B"]
    assert b["secrets_file"] == str(secret)
    assert (data / c["secrets_file"]).read_text() == "8f742231b10e8888abcd99yyyzzz85a5\n"
    assert d["insecure"] is True
    taken = capsys.readouterr()
    assert "8f742231" not in taken.out + taken.err
    assert "secret is shown" not in taken.err
    assert taken.err.count("on this machine alone") == 1
    assert sorted(one.name for one in (data / "secrets").iterdir()) == ["c"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("x", "--provider", "nobody"), 1),
        (("X!", "--provider", "github"), 1),
        (("x", "--provider", "github", "--preset", "github"), 1),
        (("x", "--provider", "github", "--preset", "sentry", "--queue", "q"), 1),
        (("x", "--provider", "generic", "--set", "scheme=nope"), 1),
        (("x", "--provider", "github", "--set", "colour=red"), 1),
        (("x", "--provider", "github", "--set", "colour"), 2),
        (("x", "--provider", "slack"), 2),
        (("x", "--provider", "github", "--secret-env", "A", "--secret-file", "f"), 2),
        (("x", "--provider", "github", "--secret-file", "/nowhere"), 1),
        (("x",), 2),
    ],
)
def test_source_add_leaves_nothing_of_what_is_wrong(
    daemon: FakeDaemon, data: Path, words: tuple[str, ...], code: int
) -> None:
    assert leave("source", "add", *words) == code
    assert list(data.iterdir()) == []
    assert all(one.path != "/v1/reload" for one in daemon.asked)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--provider", "gitub"), "misconfigured: --provider: expected one of github, gitlab"),
        (("--provider", "github", "--preset", "nope"), "misconfigured: --preset: expected"),
        (("--provider", "github", "--secret-file", "/nowhere"), "misconfigured: --secret-file: cannot read /nowhere"),
    ],
)
def test_an_option_that_is_wrong_is_named_as_it_was_typed(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert leave("source", "add", "x", *words) == 1
    told = capsys.readouterr().err
    assert said in told
    assert "hint: Correct that option, then run this again: nothing was written." in told


@pytest.mark.parametrize("text", ["port = ", "source = []\n", '[source]\nname = "x"\n', "\xff"])
def test_a_file_that_cannot_take_it_is_never_overwritten(daemon: FakeDaemon, data: Path, text: str) -> None:
    file = data / "postroom.toml"
    file.write_bytes(text.encode("latin-1"))
    assert leave("source", "add", "x", "--provider", "github") == 1
    assert file.read_bytes() == text.encode("latin-1")
    assert [one.name for one in data.iterdir() if one.is_file()] == ["postroom.toml"]
    assert not (data / "secrets").exists() or list((data / "secrets").iterdir()) == []


def test_what_the_daemon_refuses_is_taken_back(daemon: FakeDaemon, data: Path, capsys: Output) -> None:
    file = data / "postroom.toml"
    file.write_text(SETTINGS)
    daemon.refuse("POST", "/v1/reload", 400, "invalid", "postroom.toml:7: no HOOK", field="source.x.secrets_env")
    assert leave("source", "add", "x", "--provider", "github", "--secret-env", "HOOK") == 1
    assert file.read_text() == SETTINGS
    assert "postroom.toml:7: no HOOK" in capsys.readouterr().err
    assert leave("source", "add", "x", "--provider", "github") == 1
    assert list((data / "secrets").iterdir()) == []


def test_without_a_daemon_the_file_waits_for_it(data: Path, capsys: Output) -> None:
    assert leave("source", "add", "x", "--provider", "github") == 0
    taken = capsys.readouterr()
    assert "no daemon runs here" in taken.err
    assert "address   /hooks/x\n" in taken.out
    assert tomllib.loads((data / "postroom.toml").read_text())["source"][0]["name"] == "x"


def test_a_secret_in_the_address_is_told_where_it_goes(daemon: FakeDaemon, capsys: Output) -> None:
    words = ("--provider", "generic", "--queue", "q", "--set", "query_token=key")
    assert leave("source", "add", "a", *words) == 0
    said = capsys.readouterr().err
    assert "?key=SECRET" in said
    assert "public = true" in said
    assert leave("source", "add", "b", *words, "--set", "public=true") == 0
    assert "public = true" not in capsys.readouterr().err


REST = '''\
# Mine, and I like it so.
port = 7000  # here

# The first.
[[source]]
name = "one"
provider = "generic"
insecure = true

# The second.
  [[ source ]]
name = "two"
provider = "generic"
signed = """
[[source]]
name = "no table"
"""
[[source.rules]]
queue = "b"

# The queue.
[queue.inbox]
lease_s = 60
'''


def test_a_source_is_removed_and_all_else_kept(daemon: FakeDaemon, data: Path, capsys: Output) -> None:
    file = data / "postroom.toml"
    file.write_text(REST)
    file.chmod(0o640)
    daemon.answer("POST", "/v1/reload", sources(data, "one"))
    assert leave("source", "remove", "two") == 0
    taken = capsys.readouterr()
    assert (taken.out, taken.err) == ("two is removed; what it sends is refused from now on\n", "")
    first, second = REST.index("  [[ source ]]"), REST.index("# The queue")
    assert file.read_text() == REST[:first] + "\n" + REST[second:]
    assert mode(file) == 0o640
    assert file.with_name("postroom.toml.bak").read_text() == REST
    daemon.answer("POST", "/v1/reload", sources(data))
    assert leave("source", "remove", "one", "--json") == 0
    shown = {"name": "one", "settings_file": str(file), "daemon": "reloaded"}
    assert json.loads(capsys.readouterr().out) == {"source": shown}
    assert tomllib.loads(file.read_text()) == {"port": 7000, "queue": {"inbox": {"lease_s": 60}}}
    assert [row for row in file.read_text().splitlines() if row.startswith("#")] == [
        "# Mine, and I like it so.",
        "# The first.",
        "# The second.",
        "# The queue.",
    ]


def test_a_source_that_cannot_be_removed_stays(daemon: FakeDaemon, data: Path, capsys: Output) -> None:
    file = data / "postroom.toml"
    inline = 'source = [{name = "one", provider = "generic", insecure = true}]\n'
    daemon.refuse("POST", "/v1/reload", 400, "invalid", "queue: expected a name")
    for text, name, said in (
        (REST, "one", "queue: expected a name"),
        (REST, "three", "has no source 'three'"),
        (inline, "one", "take it out by hand"),
    ):
        file.write_text(text)
        assert leave("source", "remove", name) == 1
        assert said in capsys.readouterr().err
        assert file.read_text() == text
    assert leave("source", "remove", "") == 2


def test_a_source_that_was_added_is_removed_again(daemon: FakeDaemon, data: Path, capsys: Output) -> None:
    daemon.answer("POST", "/v1/reload", sources(data, "gh"))
    assert leave("source", "add", "gh", "--provider", "github", "--queue", "inbox") == 0
    daemon.answer("POST", "/v1/reload", sources(data))
    capsys.readouterr()
    assert leave("source", "remove", "gh") == 0
    assert capsys.readouterr().err == f"its secrets stay in {data / 'secrets' / 'gh'}\n"
    assert (data / "postroom.toml").read_text() == ""


def test_reload_has_the_settings_read_again(daemon: FakeDaemon, data: Path, capsys: Output) -> None:
    daemon.answer("POST", "/v1/reload", {**sources(data, "gh"), "settings_file": "/x/postroom.toml"})
    assert leave("reload") == 0
    taken = capsys.readouterr()
    assert "http://127.0.0.1:7373/hooks/gh" in taken.out
    assert taken.err == "warning: short\nread from /x/postroom.toml\n"
    assert leave("reload", "--json") == 0
    assert json.loads(capsys.readouterr().out)["settings_file"] == "/x/postroom.toml"
    daemon.refuse("POST", "/v1/reload", 400, "invalid", "postroom.toml: line 3: queue: expected a name")
    assert leave("reload") == 1
    assert "line 3" in capsys.readouterr().err


def test_another_settings_file_is_told(daemon: FakeDaemon, data: Path, tmp_path: Path, capsys: Output) -> None:
    other = tmp_path / "elsewhere" / "other.toml"
    assert leave("source", "add", "x", "--provider", "github", "--config", str(other)) == 0
    assert tomllib.loads(other.read_text())["source"][0]["secrets_file"] == str(data / "secrets" / "x")
    assert f"start it again with --config {other}" in capsys.readouterr().err


def test_source_rotate_puts_the_new_secret_first(daemon: FakeDaemon, data: Path, capsys: Output) -> None:
    daemon.answer("POST", "/v1/reload", sources(data, "x"))
    assert leave("source", "add", "x", "--provider", "github") == 0
    path = data / "secrets" / "x"
    old = path.read_text().strip()
    capsys.readouterr()
    assert leave("source", "rotate", "x", "--json") == 0
    told = json.loads(capsys.readouterr().out)["source"]
    assert path.read_text() == f"{told['secret']}\n{old}\n"
    assert (told["secrets"], mode(path)) == (2, 0o600)
    daemon.refuse("POST", "/v1/reload", 400, "invalid", "no")
    assert leave("source", "rotate", "x", "--drop-old") == 1
    assert path.read_text() == f"{told['secret']}\n{old}\n"
    daemon.answer("POST", "/v1/reload", sources(data, "x"))
    assert leave("source", "rotate", "x", "--drop-old") == 0
    assert path.read_text() == f"{told['secret']}\n"
    assert leave("source", "rotate", "x", "--drop-old") == 1
    assert leave("source", "rotate", "nope") == 1
    assert leave("source", "add", "y", "--provider", "github", "--secret-env", "Y") == 0
    assert leave("source", "rotate", "y") == 1
    assert "secrets_env" in capsys.readouterr().err


def test_settings_are_appended_whatever_they_hold(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    awkward = {"name": "a", "note": 'quote " back \\ tab \t ünï', "list": ["x", "y"], "n": 5, "odd key": True}
    SettingsFile(path).add_source(awkward)
    file = SettingsFile(path)
    assert file.source("a") == awkward
    with pytest.raises(Conflict):
        file.add_source(awkward)
    with pytest.raises(Misconfigured):
        file.add_source({"name": "b", "note": "\x7f"})
    path.unlink()
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    SettingsFile(link).add_source(awkward)
    assert link.is_symlink()
    assert SettingsFile(path).source("a") == awkward
    assert sorted(os.listdir(tmp_path)) == ["link.toml", "x.toml"]


# Samples.


def fired(status: int = 202, answer: Any = None) -> dict[str, Any]:
    link = {"todo_id": TODO, "queue": "inbox", "rule": "default", "created": True}
    told = {"event_id": EVENT, "duplicate": False, "todos": [link]} if answer is None else answer
    return {"path": "/hooks/github", "bytes": 90, "status": status, "answer": told}


def test_fire_says_what_it_led_to(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", "/v1/sources/github/fire", fired())
    assert leave("fire", "github", "push") == 0
    assert daemon.last.body == {"kind": "push"}
    shown = capsys.readouterr().out
    assert "posted 90 bytes to /hooks/github: 202\n" in shown
    assert TODO in shown
    daemon.answer("POST", "/v1/sources/github/fire", fired(200, "challenge"))
    assert leave("fire", "github") == 0
    assert daemon.last.body == {}
    assert "200 challenge\n" in capsys.readouterr().out
    daemon.answer("POST", "/v1/sources/github/fire", fired(401, {"error": {"code": "u", "message": "not verified"}}))
    assert leave("fire", "github", "--json") == 1
    assert json.loads(capsys.readouterr().out)["status"] == 401
    assert leave("fire", "github") == 1
    assert "refused: not verified" in capsys.readouterr().err
    assert leave("fire", "") == 2


def test_source_test_looks_at_the_event(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", "/v1/sources/github/fire", fired())
    daemon.answer("GET", f"/v1/events/{EVENT}", {"event": event()})
    assert leave("source", "test", "github") == 0
    shown = capsys.readouterr().out
    assert "verified  hmac sha256\n" in shown
    assert "state     routed\n" in shown


# Rules.


def test_rules_list(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("GET", "/v1/sources/github/rules", {"rules": RULES})
    assert leave("rules", "list", "github") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "github has rules of its own in version 3, by ann"
    assert lines[2].split("  ")[0] == "0"
    assert "label bug, crash" in lines[2]
    assert "queue bugs, priority 5" in lines[2]
    assert lines[3].startswith("settings  mention")
    assert leave("rules", "list", "github", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"rules": RULES}
    empty = {**RULES, "version": 0, "rules": [], "settings": [], "created_by": None, "broken": "no\x1bqueue"}
    daemon.answer("GET", "/v1/sources/github/rules", {"rules": empty})
    assert leave("rules", "list", "github") == 0
    taken = capsys.readouterr()
    assert taken.out == "github has no rules of its own\n"
    assert "\x1b" not in taken.err


def test_rules_add_move_and_remove(daemon: FakeDaemon, tmp_path: Path, capsys: Output) -> None:
    for verb in ("add", "move", "remove"):
        daemon.answer("POST", f"/v1/sources/github/rules/{verb}", {"rules": RULES})
    words = ("--name", "bugs", "--label", "bug", "--label", "crash", "--queue", "bugs", "--priority", "5", "--at", "0")
    assert leave("rules", "add", "github", *words, "--delay", "5m", "--todo-kind", "fix", "--continue") == 0
    assert daemon.last.body == {"rule": {**RULE, "delay_s": 300, "kind": "fix", "continue": True}, "at": 0}
    assert "1 rule of its settings and preset follows" in capsys.readouterr().err
    assert leave("rules", "add", "github", "--author", "*[[]bot]", "--drop") == 0
    assert daemon.last.body == {"rule": {"match": {"author": ["*[[]bot]"]}, "drop": True}}
    file = tmp_path / "rule.json"
    file.write_text(json.dumps(RULE))
    assert leave("rules", "add", "github", "--rule", f"@{file}") == 0
    assert daemon.last.body == {"rule": RULE}
    assert leave("rules", "add", "github") == 2
    assert leave("rules", "add", "github", "--rule", "{}", "--drop") == 2
    assert leave("rules", "move", "github", "bugs", "2") == 0
    assert daemon.last.body == {"name": "bugs", "at": 2}
    assert leave("rules", "remove", "github", "bugs") == 0
    assert daemon.last.body == {"name": "bugs"}
    daemon.refuse("POST", "/v1/sources/github/rules/add", 400, "invalid", "no", field="rules[2].match.label")
    assert leave("rules", "add", "github", "--label", "x") == 1
    assert "(rules[2].match.label)" in capsys.readouterr().err


def test_rules_test(daemon: FakeDaemon, tmp_path: Path, capsys: Output) -> None:
    todo: dict[str, Any] = {
        "rule": "bugs",
        "queue": "bugs",
        "title": "x",
        "kind": "issues",
        "priority": 5,
        "assignee": None,
    }
    todo |= {"idempotency_key": "k", "max_attempts": None, "delay_s": None, "payload": {"number": 7}}
    trial: dict[str, Any] = {
        "kind": "issues",
        "action": "opened",
        "title": "x",
        "state": "routed",
        "reason": None,
        "todos": [todo],
    }
    trial |= {"trace": ["bugs: matched", "rest: \x1bno"], "rules_version": 3}
    daemon.answer("POST", "/v1/sources/github/rules/test", {"trial": trial})
    assert leave("rules", "test", "github", EVENT) == 0
    assert daemon.last.body == {"event_id": EVENT}
    shown = capsys.readouterr().out
    assert "would be       routed\n" in shown
    assert "asked          bugs: matched\n" in shown
    assert '"number": 7' in shown
    assert "\x1b" not in shown
    file = tmp_path / "body.json"
    file.write_text('{"a": 1}')
    assert leave("rules", "test", "github", str(file), "--kind", "issues", "--header", "X-A: b: c") == 0
    assert daemon.last.body == {"body": '{"a": 1}', "kind": "issues", "headers": {"X-A": "b: c"}}
    # A body alone does not tell its kind.
    trial["kind"] = "unknown"
    assert leave("rules", "test", "github", str(file)) == 0
    assert "--kind" in capsys.readouterr().err
    for words in ((EVENT, "--kind", "x"), ("/nowhere",), (str(file), "--header", "none")):
        assert leave("rules", "test", "github", *words) == 2


# Events.


def replayed(**error: Any) -> dict[str, Any]:
    if error:
        return {"event_id": EVENT, "error": error}
    return {"event_id": EVENT, "event": event(whole=False, todos=()), "repeated": False}


def test_event_replay_by_id_and_since(daemon: FakeDaemon, capsys: Output) -> None:
    daemon.answer("POST", "/v1/events/replay", {"results": [replayed()], "next_cursor": None})
    assert leave("event", "replay", EVENT, EVENT, "--request-id", "r1") == 0
    assert daemon.last.body == {"ids": [EVENT, EVENT]}
    assert daemon.last.headers["idempotency-key"] == "r1"
    assert EVENT in capsys.readouterr().out
    assert leave("event", "replay", "--since", "2026-01-31T12:00:00Z", "--source", "github", "--state", "held") == 0
    assert daemon.last.body == {"since": "2026-01-31T12:00:00Z", "source": "github", "state": "held"}
    assert leave("event", "replay", "--since", "2h") == 0
    assert daemon.last.body["since"].endswith("+00:00")
    failed = [replayed(code="conflict", message="gone")]
    daemon.answer("POST", "/v1/events/replay", {"results": failed, "next_cursor": None})
    assert leave("event", "replay", EVENT) == 1
    assert "conflict: gone" in capsys.readouterr().out
    for words in ((), (EVENT, "--since", "1h"), (EVENT, "--kind", "x"), ("--kind", "x"), ("--since", "soon")):
        assert leave("event", "replay", *words) == 2


def test_event_release_discard_and_list(daemon: FakeDaemon, capsys: Output) -> None:
    done = {"event": event(whole=False, todos=()), "repeated": False}
    daemon.answer("POST", f"/v1/events/{EVENT}/release", done)
    daemon.answer("POST", f"/v1/events/{EVENT}/discard", done)
    assert leave("event", "release", EVENT) == 0
    assert leave("event", "discard", EVENT, "--note", "a test") == 0
    assert daemon.last.body == {"note": "a test"}
    assert "state         routed\n" in capsys.readouterr().out
    daemon.refuse("POST", f"/v1/events/{EVENT}/release", 409, "conflict", "not held", state="routed")
    assert leave("event", "release", EVENT) == 1
    daemon.answer("GET", "/v1/events", {"events": [], "next_cursor": None})
    assert leave("event", "list", "--action", "opened", "--suspected", "--until", "2026-01-31T12:00:00Z") == 0
    assert daemon.last.query == {"action": "opened", "suspected_replay": "true", "until": "2026-01-31T12:00:00Z"}


def test_the_verbs_stay_light() -> None:
    program = (
        "import sys\n"
        "from postroom.doors.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "heavy = {'pydantic', 'httpx2', 'starlette', 'mcp', 'apsw', 'psycopg', 'rich', 'postroom.services.rules'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    for words in (("rules", "list", "x"), ("source", "list"), ("fire", "x"), ("event", "replay", "--since", "1h")):
        done = child(*words, url="http://127.0.0.1:9", program=program)
        assert done.stdout == "[]\n", (words, done)
