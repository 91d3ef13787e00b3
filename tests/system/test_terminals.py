"""As a new user would: two panes of a real tmux, each attached in its shell, a message from one to the other, and an ack."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_until
from tests.system.daemons import Daemon, command
from tests.system.reference_client import Client, wake
from tests.system.registry import Gita
from tests.terminals.rig import Terminals

pytestmark = pytest.mark.system

NewDaemon = Callable[..., Daemon]


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    server = Terminals()
    yield server
    server.close()


@pytest.fixture
def gita(tmp_path: Path) -> Gita:
    made = Gita(tmp_path)
    made.repository("alpha")
    return made


@pytest.fixture
def served(new_daemon: NewDaemon, gita: Gita, terminals: Terminals) -> Daemon:
    """A daemon whose terminal locks are this test's own."""
    return new_daemon(env={**gita.env, "XDG_RUNTIME_DIR": str(terminals.folder)}).start()


class Shell:
    """A bash in a pane of its own, where somebody types."""

    def __init__(self, terminals: Terminals, daemon: Daemon, folder: Path) -> None:
        self.terminals = terminals
        beside = str(Path(command()).parent)
        begins = terminals.folder / "shell.rc"
        # What is typed before a shell knows its window's size is drawn once more when it does, over what it has said.
        begins.write_text(
            f"PS1='bash$ '\nHISTFILE=\nPATH={shlex.quote(beside)}:$PATH\ncd {shlex.quote(str(folder))} && echo in\n"
        )
        bash = ["bash", "--rcfile", str(begins), "-i"]
        self.pane = terminals.open(bash, daemon.environment, size=(180, 50))
        self.shows(r"in\n+bash\$")

    def type(self, words: str) -> None:
        """Type a line, and Enter."""
        self.terminals.tmux("send-keys", "-t", self.pane, "-l", words)
        self.terminals.tmux("send-keys", "-t", self.pane, "Enter")

    def shows(self, pattern: str) -> re.Match[str]:
        """Wait until the pane shows this, and give what was found."""
        screen = ""

        def look() -> re.Match[str] | None:
            nonlocal screen
            screen = self.terminals.screen(self.pane, all_of_it=True)
            return re.search(pattern, screen)

        try:
            found = wait_until(look, f"{pattern!r} on the pane", 60)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows:\n{screen}") from None
        assert found is not None
        return found


def messages(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.ask("GET", "/v1/messages").value["messages"]
    return found


def _directories(daemon: Daemon) -> dict[str, str | None]:
    return {one["name"]: one["directory"] for one in daemon.ask("GET", "/v1/who").value["who"]}


# T34 # T42
def test_two_panes_a_message_and_its_acknowledgement(
    served: Daemon, terminals: Terminals, gita: Gita, tmp_path: Path
) -> None:
    ann = Shell(terminals, served, gita.home / "work" / "alpha")
    bob = Shell(terminals, served, tmp_path)
    ann.type("postroom attach --name ann")
    attached = ann.shows(r"(ep_\S+) attached: pane (%\d+) \(bash\) as ann for alpha\n")
    assert attached[2] == ann.pane
    bob.type("postroom attach --name bob --ack acknowledged --no-repo")
    bob.shows(r"ep_\S+ attached: pane %\d+ \(bash\) as bob\n")
    # It returned: the shell is free.
    ann.type("postroom send --to bob 'Is the build green?'")
    id_ = ann.shows(r"(msg_[a-z0-9]+_[0-9a-f]{8}) pending to bob")[1]

    # The message is on bob's pane, once, with who wrote it and the command that acknowledges it.
    bob.shows(r"Is the build green\?")
    acknowledge = bob.shows(r"acknowledge: (postroom ack \S+?)\]")[1]
    assert acknowledge == f"postroom ack {id_}"
    wait_until(lambda: messages(served)[0]["deliveries"][0]["state"] == "awaiting_ack", "it waits for the ack")
    bob.type(acknowledge)
    bob.shows(rf"{id_} acknowledged to bob")

    ann.type("postroom history")
    ann.shows(rf"{id_}\s+\S+\s+bob\s+acknowledged")
    (shown,) = messages(served)
    # Who sends from a pane is who is attached there, so that it can be answered.
    assert shown["from"] == "ann"
    (delivery,) = shown["deliveries"]
    assert (delivery["state"], delivery["attempts"], delivery["carrier"]) == ("acknowledged", 1, "tmux")
    assert terminals.screen(bob.pane, all_of_it=True).count("Is the build green?") == 1
    told = served.ask("GET", f"/v1/trace/{id_}").value["steps"]
    assert [step["what"] for step in told] == ["admitted", "handed off", "acknowledged"]
    folders = {"ann": os.path.realpath(gita.home / "work" / "alpha"), "bob": os.path.realpath(tmp_path)}
    wait_until(lambda: _directories(served) == folders, "who says where they sit")


# T10 # T11 # T32 # T44
def test_a_wake_reaches_the_pane_of_its_repository(served: Daemon, terminals: Terminals, gita: Gita) -> None:
    client = Client(str(served.socket))
    client.refused("unavailable", "send", **wake("alpha"))
    ann = Shell(terminals, served, gita.home / "work" / "alpha")
    # From outside, the working folder is the pane's.
    done = subprocess.run(
        [command(), "attach", "--pane", ann.pane, "--tmux-socket", terminals.socket, "--name", "ann"],
        env={**os.environ, **served.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.endswith("as ann for alpha\n"), done
    ann.type("")  # A shell says with its next prompt that it takes pastes.
    sent = client.done("send", **wake("alpha", body="Please look\nat the build; it's red"))
    ann.shows(r"at the build; it.*s red")
    wait_until(
        lambda: client.done("message", message_id=sent["message_id"])["message"]["state"] == "injected",
        "it is injected",
    )
    # Detached in its shell it is gone, and the next wake finds nobody.
    ann.type("postroom detach")
    ann.shows(rf"{sent['endpoint_id']} detached")
    client.refused("unavailable", "send", **wake("alpha", idempotency_key="lease-2"))


def test_what_is_no_pane_is_refused_by_name(served: Daemon, terminals: Terminals, tmp_path: Path) -> None:
    terminals.open(["sleep", "600"])

    def attach(*words: str) -> str:
        done = subprocess.run(
            [command(), "attach", "--no-repo", *words],
            env={**os.environ, **served.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1, done
        return done.stderr

    assert "there is no pane %999" in attach("--pane", "%999", "--tmux-socket", terminals.socket)
    assert "address.pane" in attach("--pane", "s1:0.0", "--tmux-socket", terminals.socket)
    assert "address.socket" in attach("--pane", "%0", "--tmux-socket", str(tmp_path / "none"))
    assert "address.agent" in attach("--pane", "%0", "--tmux-socket", terminals.socket, "--agent", "nobody")
    assert served.ask("GET", "/v1/endpoints").value["endpoints"] == []
