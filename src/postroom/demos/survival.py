"""`postroom demo`: a GitHub delivery wakes the agent in a pane, agent and daemon are killed at work, and it is done once."""

from __future__ import annotations

import concurrent.futures
import hashlib
import hmac
from importlib.resources import files
from typing import Any, Final

from postroom.demos.panes import Pane, Panes, tmux_missing
from postroom.demos.proof import Proof, ring_of, rings_of, tell_trace
from postroom.demos.stage import Failed, Process, Stage

TITLE: Final = "nothing was lost, nothing was done twice"
DEADLINE_S: Final = 60.0
DELIVERIES: Final = 20
OPEN: Final = "carol"
OTHERS: Final = ("alice", "bob")
LEASE_S: Final = 3
QUEUE: Final = "triage"
SETTINGS: Final = f"""\
[[source]]
name = "github"
provider = "github"
secrets_file = "webhook-secret"
queue = "{QUEUE}"
preset = "github"

[queue.{QUEUE}]
lease_s = {LEASE_S}
"""


def play(stage: Stage) -> bool:
    """The whole story; whether every number came out. Without tmux the pane is left out, and that is said."""
    return _Survival(stage).play()


class _Survival:
    """Carol sits in a pane, and is the first to work; without tmux she asks for work as the others do."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._missing = tmux_missing()
        self._agents: dict[str, Process] = {}
        self._panes: Panes | None = None
        self._pane: Pane | None = None

    def play(self) -> bool:
        stage = self._stage
        stage.settle(SETTINGS)
        self._panes = Panes(stage) if self._missing is None else None
        stage.start_daemon()
        tokens = {name: stage.token(name) for name in (*OTHERS, OPEN)}
        askers = OTHERS if self._missing is None else (*OTHERS, OPEN)
        for name in OTHERS if self._missing is None else ():
            stage.hold(f"{name}.asks")
        for name in askers:
            words = ("-m", "postroom.demos.asker", name, str(stage.folder), str(tokens[name]), QUEUE)
            self._agents[name] = stage.start(name, words)
        if self._panes is not None:
            stage.hold(f"{OPEN}.works")
            self._pane = self._panes.open(OPEN, tokens[OPEN], "--queue", QUEUE)
            stage.say(f"agent {OPEN} ({self._pane.pid}) sits in tmux pane {self._pane.id} and waits at its prompt")
            stage.say("  " + self._panes.attach(self._pane, tokens[OPEN], "--queue", QUEUE))
        else:
            stage.say(f"left out: the agent that sits in a pane and is rung there; {self._missing}")
        self._deliver()
        if self._pane is None:
            self._say_who_asks()
        holder, todo_id = self._rung() if self._pane is not None else self._asked()
        self._kill(holder)
        stage.kill(stage.daemon, "the daemon")
        stage.start_daemon()
        if self._pane is not None:
            for name in self._agents:
                stage.release(f"{name}.asks")
            self._say_who_asks()
        stage.say(f"waiting for the lease to lapse ({LEASE_S} s); the other agents keep asking")
        heir = self._completed()
        return self._prove(todo_id, holder, heir)

    def _say_who_asks(self) -> None:
        for name, process in self._agents.items():
            self._stage.say(f"agent {name} ({process.pid}) asks for work through MCP")

    def _deliver(self) -> None:
        stage = self._stage
        body = (files("postroom") / "samples" / "github.issues.opened.json").read_bytes()
        headers = {
            "Content-Type": "application/json",
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
            "X-Hub-Signature-256": "sha256=" + hmac.new(stage.secret.encode(), body, hashlib.sha256).hexdigest(),
        }

        def post(_: int) -> tuple[int, bool]:
            status, answer = stage.post("github", body, headers)
            return status, bool(answer.get("duplicate"))

        stage.say(f"posting one signed GitHub delivery {DELIVERIES} times at once ({len(body)} bytes, issues.opened)")
        with concurrent.futures.ThreadPoolExecutor(DELIVERIES) as pool:
            answers = list(pool.map(post, range(DELIVERIES)))
        accepted = sum(status == 202 for status, _ in answers)
        stage.say(f"  {accepted} answers 202, {sum(duplicate for _, duplicate in answers)} of them say duplicate")

    # Who works first.

    def _rung(self) -> tuple[str, str]:
        """The pane is rung, and its agent claims."""
        assert self._panes is not None
        assert self._pane is not None
        stage = self._stage
        stage.say(f"  {OPEN}'s pane is rung: {ring_of(stage, self._panes, self._pane)}")
        found = self._panes.shows(self._pane, r"claimed (td_\S+), attempt (\d)", f"{OPEN} claims")
        stage.say(f"  {OPEN} claimed {found[1]}, attempt {found[2]}, and works on it")
        return OPEN, found[1]

    def _asked(self) -> tuple[str, str]:
        """Whoever asks first claims."""
        while True:
            name, words = self._heard()
            if words[0] == "claimed":
                self._stage.say(f"  {name} claimed {words[1]}, attempt {words[2]}, and works on it")
                return name, words[1]

    def _kill(self, holder: str) -> None:
        who = f"{holder}, who holds the todo"
        if self._panes is not None and self._pane is not None:
            self._panes.kill(self._pane, who)
        else:
            self._stage.kill(self._agents.pop(holder), who)

    def _completed(self) -> str:
        while True:
            name, words = self._heard()
            if words[0] == "claimed":
                self._stage.say(f"  {name} claimed {words[1]}, attempt {words[2]}; it reads that {words[3]}")
            elif words[0] == "completed":
                self._stage.say(f"  {name} completed {words[1]}")
                return name

    def _heard(self) -> tuple[str, list[str]]:
        """The next line an agent says, and who says it."""
        process, line = self._stage.line(list(self._agents.values()))
        name = next(name for name, one in self._agents.items() if one is process)
        if not line:
            raise Failed(f"agent {name} ended:\n" + self._stage.log(name))
        return name, line.rstrip("\n").split("\t")

    def _prove(self, todo_id: str, holder: str, heir: str) -> bool:
        ask = self._stage.ask
        events = ask("GET", "/v1/events")["events"]
        todos = ask("GET", "/v1/todos")["todos"]
        todo: dict[str, Any] = ask("GET", f"/v1/todos/{todo_id}")["todo"]
        lapsed = [entry["owner"] for entry in todo["history"] if entry["outcome"] == "lapsed"]
        deliveries = events[0]["deliveries"] if events else 0
        proof = Proof()
        proof.add(f"{deliveries} deliveries", deliveries == DELIVERIES)
        proof.add(f"{len(events)} event", len(events) == 1)
        proof.add(f"{len(todos)} todo", len(todos) == 1 and todos[0]["id"] == todo_id)
        steps = ask("GET", f"/v1/trace/{todo_id}")["steps"]
        if self._pane is not None:
            rings = rings_of(steps)
            proof.add(f"{rings} ring", rings == 1)
        proof.add(f"{todo['attempt']} attempts", todo["attempt"] == 2 and lapsed == [holder])
        proof.add("1 completion", todo["state"] == "done" and todo["owner"] == heir)
        proved = proof.tell(self._stage.say)
        tell_trace(self._stage, steps)
        if self._missing is not None:
            self._stage.say(f"not shown: the agent in a pane; {self._missing}")
        return proved
