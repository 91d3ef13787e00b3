"""`postroom demo duo`: a question and its answer between two agents in panes, one of them busy, the daemon killed between."""

from __future__ import annotations

from typing import Any, Final

from postroom.demos.panes import Pane, Panes, tmux_missing
from postroom.demos.proof import Proof, tell_pane, tell_trace, times
from postroom.demos.stage import Failed, Stage

TITLE: Final = "each message was put on its pane once, when its reader was free, and acknowledged"
DEADLINE_S: Final = 60.0
QUESTION: Final = "Which branch is the fix on?"
ANSWER: Final = "On fix/empty-cart, pushed a minute ago."


def play(stage: Stage) -> bool:
    """The whole story; whether every number came out. Raises Failed where there is no tmux."""
    missing = tmux_missing()
    if missing is not None:
        raise Failed(f"this demo plays in two tmux panes, and {missing}")
    return _Duo(stage).play()


class _Duo:
    """Ann asks, Bob is busy and answers later."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        stage.settle("")
        self._panes = Panes(stage)

    def play(self) -> bool:
        stage, panes = self._stage, self._panes
        stage.start_daemon()
        ann, bob = self._sit("ann"), self._sit("bob", "--answer", ANSWER)

        stage.hold("bob.works")
        stage.hold("bob.reads")
        stage.say("bob's user types: run the tests")
        panes.type(bob, "run the tests")
        panes.shows(bob, r"^\* Working…", "bob works")
        stage.say("  bob is busy")
        stage.say(f"ann's user types: ask bob: {QUESTION}")
        panes.type(ann, f"ask bob: {QUESTION}")
        sent = panes.shows(ann, r"(msg_\S+) (pending) to bob", "ann sends")
        question = sent[1]
        stage.say(f"  ann's pane: {sent[0]}")
        self._deferred(question)

        stage.kill(stage.daemon, "the daemon, with the message under way")
        stage.start_daemon()
        self._deferred(question)
        stage.say(f"  bob's pane shows it {times(panes.times(bob, _header(question)))}")

        stage.release("bob.works")
        stage.say("bob's work is done")
        self._comes_to(question, "awaiting_ack")
        stage.say(f"  bob's pane shows it {times(panes.times(bob, _header(question)))}; bob reads it")
        stage.release("bob.reads")
        self._comes_to(question, "acknowledged")
        answer = stage.wait(lambda: self._answer_to(question), "bob answers")
        assert answer is not None
        stage.say(f"bob answers ann with {answer}")
        self._comes_to(answer, "acknowledged")
        for pane in (ann, bob):
            panes.rests(pane)
        return self._prove(ann, bob, question, answer)

    def _sit(self, name: str, *options: str) -> Pane:
        token = self._stage.token(name)
        pane = self._panes.open(name, token, *options)
        self._stage.say(f"agent {name} ({pane.pid}) sits in tmux pane {pane.id} and waits at its prompt")
        self._stage.say("  " + self._panes.attach(pane, token, "--ack", "acknowledged"))
        return pane

    # Receipts.

    def _delivery(self, id_: str) -> dict[str, Any]:
        """The message's only delivery, as its receipt shows it."""
        deliveries = self._stage.ask("GET", f"/v1/messages/{id_}")["message"]["deliveries"]
        if len(deliveries) != 1:
            raise Failed(f"{id_} has {len(deliveries)} deliveries")
        found: dict[str, Any] = deliveries[0]
        return found

    def _deferred(self, id_: str) -> None:
        def look() -> str | None:
            one = self._delivery(id_)
            if one["state"] != "pending":
                raise Failed(f"{id_} is {one['state']}, and bob is busy")
            reason: str | None = one["deferred_reason"]
            return reason

        reason = self._stage.wait(look, f"{id_} waits for bob")
        self._stage.say(f"  receipt of {id_}: pending, deferred: {reason}")

    def _comes_to(self, id_: str, state: str) -> None:
        self._stage.wait(lambda: self._delivery(id_)["state"] == state, f"{id_} is {state}")
        self._stage.say(f"  receipt of {id_}: {state}")

    def _answer_to(self, id_: str) -> str | None:
        found = self._stage.ask("GET", "/v1/messages")["messages"]
        return next((str(one["id"]) for one in found if one["reply_to"] == id_), None)

    def _prove(self, ann: Pane, bob: Pane, question: str, answer: str) -> bool:
        ask, say = self._stage.ask, self._stage.say
        tell_pane(self._stage, self._panes, bob)
        say("postroom history:")
        say("\n".join(f"  {row}" for row in self._stage.run(("history",)).split("\n")))
        messages = ask("GET", "/v1/messages")["messages"]
        receipts = [self._delivery(id_) for id_ in (question, answer)]
        shown = [self._panes.times(bob, _header(question)), self._panes.times(ann, _header(answer))]
        acknowledged = sum(one["state"] == "acknowledged" for one in receipts)
        attempts = sum(one["attempts"] for one in receipts)
        proof = Proof()
        proof.add(f"{len(messages)} messages", {one["id"] for one in messages} == {question, answer})
        proof.add(f"{attempts} attempts", [one["attempts"] for one in receipts] == [1, 1])
        on_panes = (
            "each once on its pane" if shown == [1, 1] else f"on their panes {times(shown[0])}, {times(shown[1])}"
        )
        proof.add(on_panes, shown == [1, 1])
        proof.add(f"{acknowledged} acknowledgements", acknowledged == 2)
        proved = proof.tell(say)
        for id_ in (question, answer):
            tell_trace(self._stage, ask("GET", f"/v1/trace/{id_}")["steps"])
        return proved


def _header(id_: str) -> str:
    """How a message begins on a pane; the command that acknowledges it, and what an agent says of it, do not begin so."""
    return f"[postroom {id_}: "
