"""`postroom demo ci`: a failed check wakes the agent that is open, which claims it through MCP; then the trace."""

from __future__ import annotations

import time
from typing import Final

from postroom.demos.panes import Panes, tmux_missing
from postroom.demos.proof import Proof, ring_of, rings_of, tell_pane, times
from postroom.demos.stage import Failed, Stage
from postroom.sources.samples import sample
from postroom.sources.scheme import Secret

TITLE: Final = "the failed check woke the agent that was open, and was done once"
DEADLINE_S: Final = 60.0
QUEUE: Final = "ci"
KIND: Final = "check_run.completed"
DELIVERY: Final = "5f0c8a3e-4d1f-11ef-9b7a-2f6f2c1d9e40"
SETTINGS: Final = f"""\
[[source]]
name = "github"
provider = "github"
secrets_file = "webhook-secret"
queue = "{QUEUE}"
preset = "github"
"""


def play(stage: Stage) -> bool:
    """The whole story; whether every number came out. Raises Failed where there is no tmux."""
    missing = tmux_missing()
    if missing is not None:
        raise Failed(f"this demo plays in a tmux pane, and {missing}")
    stage.settle(SETTINGS)
    panes = Panes(stage)
    stage.start_daemon()
    token = stage.token("ann")
    ann = panes.open("ann", token, "--queue", QUEUE)
    stage.say(f"agent ann ({ann.pid}) sits in tmux pane {ann.id} and waits at its prompt")
    stage.say("  " + panes.attach(ann, token, "--queue", QUEUE))
    stage.hold("ann.works")

    secret = Secret(stage.secret.encode(), "webhook-secret")
    made = sample("github", KIND, time.time_ns() // 1_000_000, secret, DELIVERY)
    stage.say(f"posting one signed GitHub delivery ({len(made.body)} bytes, {KIND}: a check has failed)")
    status, answer = stage.post("github", made.body, dict(made.headers))
    stage.say(f"  the answer is {status}, {len(answer.get('todos', ()))} todo was made")
    stage.say(f"  ann's pane is rung: {ring_of(stage, panes, ann)}")
    found = panes.shows(ann, r"claimed (td_\S+), attempt \d", "ann claims")
    todo_id = found[1]
    todo = stage.ask("GET", f"/v1/todos/{todo_id}")["todo"]
    stage.say(f"  ann claimed it through MCP: {todo['title']}")
    stage.release("ann.works")
    panes.shows(ann, rf"completed {todo_id}", "ann completes it")
    stage.say(f"  ann completed {todo_id}")
    # She asks once more, and finds nothing.
    stage.wait(lambda: panes.times(ann, f"claim_next(queues=['{QUEUE}'],") == 2, "ann asks for more")
    panes.rests(ann)

    tell_pane(stage, panes, ann)
    stage.say(f"postroom trace {todo_id}:")
    stage.say("\n".join(f"  {row}" for row in stage.run(("trace", todo_id)).split("\n")))

    events = stage.ask("GET", "/v1/events")["events"]
    todos = stage.ask("GET", "/v1/todos")["todos"]
    todo = stage.ask("GET", f"/v1/todos/{todo_id}")["todo"]
    rings = rings_of(stage.ask("GET", f"/v1/trace/{todo_id}")["steps"])
    shown = panes.times(ann, "queue.ring from postroom")
    proof = Proof()
    deliveries = events[0]["deliveries"] if events else 0
    proof.add(f"{deliveries} delivery", deliveries == 1)
    proof.add(f"{len(events)} event", len(events) == 1)
    proof.add(f"{len(todos)} todo", [one["id"] for one in todos] == [todo_id])
    proof.add(f"{rings} ring, {times(shown)} on the pane", (rings, shown) == (1, 1))
    proof.add(f"{todo['attempt']} claim", todo["attempt"] == 1)
    proof.add("1 completion", todo["state"] == "done" and todo["owner"] == "ann")
    return proof.tell(stage.say)
