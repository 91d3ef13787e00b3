"""Work and words handed on by the commands alone, in a daemon with an allow-list and a rate.

Work is given, released with a note, assigned to another and done, and everybody hears of it; a question waits for its
answer.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.processes import wait_until
from tests.system.daemons import Daemon, command

pytestmark = pytest.mark.system

SETTINGS = """\
[post]
rate_per_minute = 1
[[post.allow]]
from = ["bob", "cid"]
to = ["admin", "#team"]
"""


class Person:
    """Somebody at the command line, with a token of their own, or the operator."""

    def __init__(self, daemon: Daemon, name: str | None = None) -> None:
        self._place = {"POSTROOM_DATA": str(daemon.folder)}
        if name is not None:
            secret = daemon.ask("POST", "/v1/tokens", {"name": name}).value["secret"]
            self._place = {"POSTROOM_URL": daemon.url, "POSTROOM_TOKEN": str(secret)}

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """A command, running."""
        return subprocess.Popen(
            [command(), *words],
            env={**os.environ, **self._place},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def says(self, *words: str, code: int = 0) -> str:
        """All that a command prints, which has to end with this code."""
        process = self.begin(*words)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == code, out
        return out


def hears(daemon: Daemon, name: str, words: str) -> list[Mapping[str, Any]]:
    """What is in an inbox, once something of it has these words."""

    def there() -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = daemon.ask("GET", f"/v1/inbox?for={name}").value["messages"]
        return found if any(words in one["payload"] for one in found) else []

    return wait_until(there, f"{name} hears {words!r}")


def test_work_and_words_are_handed_on(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon(SETTINGS).start()
    operator, bob, cid = Person(daemon), Person(daemon, "bob"), Person(daemon, "cid")

    (todo,) = re.findall(r"td_\S+", operator.says("todo", "add", "review", "Read it", "--for", "bob"))
    (told,) = hears(daemon, "bob", f'Todo {todo} "Read it" in queue review waits for bob, given by admin.')
    assert (told["from"], told["kind"]) == ("postroom", "task.assign")
    bob.says("todo", "claim", todo)
    assert f"{todo} pending for bob" in bob.says("todo", "release", todo, "--note", "needs a larger machine")
    assert "forbidden" in cid.says("todo", "assign", todo, "cid", code=1)
    assert f"{todo} pending for cid" in operator.says("todo", "assign", todo, "cid")
    hears(daemon, "cid", "waits for cid, given by admin")
    assert "needs a larger machine" in cid.says("todo", "next", "review")
    cid.says("todo", "complete", todo)
    hears(daemon, "admin", f"given to cid, is done, by cid. Its result: get_todo({todo})")

    asking = operator.begin("send", "--to", "bob", "--msg-id", "q1", "All well?", "--wait-reply")
    hears(daemon, "bob", "All well?")
    bob.says("send", "--to", "admin", "--reply-to", "q1", "Quite.")
    out, _ = asking.communicate(timeout=60)
    assert asking.returncode == 0, out
    assert re.search(r"msg_\S+ from bob chat re q1 \S+\n  Quite\.\n", out), out
    assert "Quite." in operator.says("message", "reply", "q1")

    refused = cid.says("send", "--to", "bob", "psst", code=1)
    assert "forbidden: cid may not write to bob: [post] allow lets it write to admin, #team (--to)\n" in refused

    def too_many() -> bool:
        return (
            "rate_limited: bob has sent as many messages"
            in bob.begin("send", "--channel", "team", "x").communicate(timeout=60)[0]
        )

    wait_until(too_many, "the rate is kept")
