"""The pure lifecycle by table: which verb leads where from which state, and what it leaves of the todo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import lifecycle
from postroom.errors import Conflict
from postroom.limits import DAY, HOUR, MAX_HISTORY, MINUTE, SECOND
from postroom.model import Attempt, Outcome, Reason, Todo, TodoChange, TodoState

NOW: Final = 1_800_000_000_000
OWNER: Final = "ada/w1"
LEASE: Final = "ls_1"
OLD: Final = Attempt("bob", NOW - HOUR, NOW - HOUR + 1, Outcome.FAILED, "first try")

PENDING: Final = Todo(
    seq=7,
    id="td_7",
    queue="inbox",
    source="api",
    kind="",
    title="Answer the letter",
    event_id=None,
    idempotency_key="letter-7",
    assignee=None,
    state=TodoState.PENDING,
    owner=None,
    lease_id=None,
    lease_expires_at=None,
    claim_key=None,
    attempt=1,
    max_attempts=3,
    priority=0,
    available_at=None,
    next_retry_at=None,
    reason=None,
    error="first try",
    created_by="eve",
    created_at=NOW - DAY,
    updated_at=NOW - HOUR,
    claimed_at=None,
    completed_at=None,
    payload_bytes=2,
    payload_json="{}",
    result_json=None,
    history=(OLD,),
)
CLAIMED: Final = replace(
    PENDING,
    state=TodoState.CLAIMED,
    owner=OWNER,
    lease_id=LEASE,
    lease_expires_at=NOW + MINUTE,
    claim_key="k",
    attempt=2,
    claimed_at=NOW - MINUTE,
)
PARKED: Final = replace(PENDING, state=TodoState.FAILED, attempt=2, next_retry_at=NOW + MINUTE)
DEAD: Final = replace(
    PENDING, state=TodoState.FAILED, attempt=3, reason=Reason.EXHAUSTED, completed_at=NOW - 1, result_json='"no"'
)
DONE: Final = replace(
    CLAIMED, state=TodoState.DONE, lease_expires_at=None, claim_key=None, error=None, completed_at=NOW, result_json="1"
)

STATES: Final[dict[str, Todo]] = {
    "pending": PENDING,
    "pending later": replace(PENDING, available_at=NOW + 1),
    "pending now due": replace(PENDING, available_at=NOW),
    "pending, assigned": replace(PENDING, assignee="bob"),
    "claimed": CLAIMED,
    "claimed, lapsed": replace(CLAIMED, lease_expires_at=NOW),
    "claimed, last try": replace(CLAIMED, attempt=3),
    "claimed, lapsed, last try": replace(CLAIMED, attempt=3, lease_expires_at=NOW),
    "claimed by another": replace(CLAIMED, owner="bob"),
    "claimed under another lease": replace(CLAIMED, lease_id="ls_2"),
    "parked": PARKED,
    "parked, due": replace(PARKED, next_retry_at=NOW),
    "dead, exhausted": DEAD,
    "dead, refused": replace(DEAD, attempt=1, reason=Reason.REFUSED),
    "cancelled": replace(DEAD, attempt=0, reason=Reason.CANCELLED),
    "done": DONE,
}

VERBS: Final[dict[str, Callable[[Todo], Todo]]] = {
    "claim": lambda todo: lifecycle.claim(todo, NOW, OWNER, MINUTE, "ls_new", "key"),
    "heartbeat": lambda todo: lifecycle.heartbeat(todo, NOW, OWNER, HOUR, LEASE),
    "complete": lambda todo: lifecycle.complete(todo, NOW, OWNER, LEASE, '"ok"'),
    "fail": lambda todo: lifecycle.fail(todo, NOW, OWNER, LEASE, "broke", 30 * SECOND),
    "refuse": lambda todo: lifecycle.fail(todo, NOW, OWNER, LEASE, "no", 30 * SECOND, retry=False),
    "release": lambda todo: lifecycle.release(todo, NOW, OWNER, LEASE, "later"),
    "reap": lambda todo: lifecycle.reap(todo, NOW),
    "due": lambda todo: lifecycle.due(todo, NOW),
    "retry": lambda todo: lifecycle.retry(todo, NOW),
    "cancel": lambda todo: lifecycle.cancel(todo, NOW, "not wanted"),
    "update": lambda todo: lifecycle.update(todo, NOW, TodoChange(title="Other"), None),
}

# From each state, where each verb leads; a verb that is not named is a Conflict there. S1, S4-S11, S22-S26
HELD: Final = {
    "heartbeat": "claimed",
    "complete": "done",
    "fail": "parked",
    "refuse": "dead",
    "release": "pending",
    "cancel": "cancelled",
}
WAITING: Final = {"claim": "claimed", "cancel": "cancelled", "update": "pending"}
TABLE: Final[dict[str, dict[str, str]]] = {
    "pending": WAITING,
    "pending later": {"cancel": "cancelled", "update": "pending"},
    "pending now due": WAITING,
    "pending, assigned": {"cancel": "cancelled", "update": "pending"},
    "claimed": HELD,
    "claimed, lapsed": {**HELD, "claim": "claimed", "reap": "pending"},
    "claimed, last try": {**HELD, "fail": "dead"},
    "claimed, lapsed, last try": {**HELD, "fail": "dead", "reap": "dead"},
    "claimed by another": {"cancel": "cancelled"},
    "claimed under another lease": {"cancel": "cancelled"},
    "parked": {"retry": "pending", "cancel": "cancelled"},
    "parked, due": {"claim": "claimed", "due": "pending", "retry": "pending", "cancel": "cancelled"},
    "dead, exhausted": {"retry": "pending"},
    "dead, refused": {"retry": "pending"},
    "cancelled": {"retry": "pending"},
    "done": {},
}


def place(todo: Todo) -> str:
    """The word for where a todo stands, parked, dead and cancelled told apart."""
    if todo.parked:
        return "parked"
    if todo.state == TodoState.FAILED:
        return "dead" if todo.dead else "cancelled"
    return str(todo.state)


def check_sound(todo: Todo) -> None:
    """What holds of every todo, in the words of the tables' own constraints."""
    claimed, done = todo.state == TodoState.CLAIMED, todo.state == TodoState.DONE
    final = done or (todo.state == TodoState.FAILED and todo.next_retry_at is None)
    assert claimed == (todo.lease_expires_at is not None)
    assert (todo.owner is not None) == (todo.lease_id is not None) == (todo.claimed_at is not None) == (claimed or done)
    assert final == (todo.completed_at is not None)
    assert (todo.reason is not None) == (final and not done)
    assert todo.next_retry_at is None or todo.state == TodoState.FAILED
    assert todo.available_at is None or todo.state == TodoState.PENDING
    assert todo.claim_key is None or claimed
    assert 0 <= todo.attempt <= todo.max_attempts
    assert len(todo.history) <= MAX_HISTORY
    assert todo.live == (not final)
    assert (todo.parked, todo.dead).count(True) <= (todo.state == TodoState.FAILED)


def changed(before: Todo, after: Todo) -> set[str]:
    """The names of the fields in which two todos differ."""
    return {field.name for field in fields(Todo) if getattr(before, field.name) != getattr(after, field.name)}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", STATES)
def test_each_verb_leads_where_the_table_says(state: str, verb: str) -> None:  # S1 S4 S6 S7 S8 S9 S10 S11 S22 S24 S26
    before = STATES[state]
    expected = TABLE[state].get(verb)
    if expected is None:
        with pytest.raises(Conflict) as refused:
            VERBS[verb](before)
        assert before.id in refused.value.message
        assert str(before.state) in refused.value.message
        return
    after = VERBS[verb](before)
    assert place(after) == expected
    assert after.updated_at == NOW
    check_sound(after)
    kept = {"seq", "id", "queue", "source", "kind", "event_id", "idempotency_key", "created_by", "created_at"}
    assert not changed(before, after) & kept


def test_the_table_knows_every_state_and_its_states_are_sound() -> None:
    assert TABLE.keys() == STATES.keys()
    for todo in STATES.values():
        check_sound(todo)


# What each transition leaves behind.


def test_a_claim_sets_owner_lease_and_attempt() -> None:  # S4
    after = VERBS["claim"](STATES["pending now due"])
    assert (after.owner, after.lease_id, after.claim_key) == (OWNER, "ls_new", "key")
    assert (after.claimed_at, after.lease_expires_at) == (NOW, NOW + MINUTE)
    assert after.attempt == PENDING.attempt + 1
    assert after.available_at is None
    assert after.history == PENDING.history


def test_a_claim_of_a_lapsed_one_enters_the_attempt_that_lapsed() -> None:  # S5 S22
    before = STATES["claimed, lapsed"]
    after = VERBS["claim"](before)
    assert after.attempt == before.attempt + 1
    assert after.history == (Attempt(OWNER, CLAIMED.claimed_at, NOW, Outcome.LAPSED, None), OLD)


def test_a_parked_one_may_be_claimed_without_waiting_for_the_sweep() -> None:  # S10
    after = VERBS["claim"](STATES["parked, due"])
    assert after.next_retry_at is None
    assert after.error == "first try"


@pytest.mark.parametrize("state", ["pending", "parked, due", "claimed, lapsed"])
def test_one_whose_attempts_are_spent_is_never_handed_out(state: str) -> None:  # S9
    spent = replace(STATES[state], attempt=3)
    assert lifecycle.spent(spent)
    assert not lifecycle.claimable(spent, NOW, OWNER)


@pytest.mark.parametrize(
    ("assignee", "owner", "may"),
    [
        (None, "ada", True),
        ("ada", "ada", True),
        ("ada", "ada/w1", True),
        ("ada/w1", "ada/w1", True),
        ("ada/w1", "ada/w2", False),
        ("ada/w1", "ada", False),
        ("ada", "adam", False),
        ("bob", "ada", False),
    ],
)
def test_an_assigned_todo_is_for_its_assignee(assignee: str | None, owner: str, may: bool) -> None:  # S6
    todo = replace(PENDING, assignee=assignee)
    assert lifecycle.assigned_to(todo, owner) is may
    assert lifecycle.claimable(todo, NOW, owner) is may


@pytest.mark.parametrize(("assignee", "may"), [("w1", True), ("ada", True), ("ada/w1", True), ("w2", False)])
def test_an_assigned_todo_is_for_whoever_is_called_so(assignee: str, may: bool) -> None:  # S6
    todo = replace(PENDING, assignee=assignee)
    assert lifecycle.claimable(todo, NOW, "ada/w1", "w1") is may
    assert lifecycle.claimable(todo, NOW, "ada/w1") is (may and assignee != "w1")
    assert lifecycle.claim(replace(todo, assignee="w1"), NOW, "ada/w1", MINUTE, "ls", called="w1").owner == "ada/w1"


@pytest.mark.parametrize(
    ("holder", "asking", "lease", "held"),
    [
        ("ada/w1", "ada/w1", LEASE, True),
        ("ada/w1", "ada/w1", None, True),
        ("ada/w1", "ada", LEASE, True),
        ("ada/w1", "ada/w2", None, False),
        ("ada/w1", "ada/w1", "ls_2", False),
        ("ada/w1", "ad", None, False),
        ("ada", "ada/w1", None, False),
        ("adam", "ada", None, False),
    ],
)
def test_a_todo_is_held_by_owner_and_lease(holder: str, asking: str, lease: str | None, held: bool) -> None:  # S7 S8
    assert lifecycle.held_by(replace(CLAIMED, owner=holder), asking, lease) is held


def test_the_guard_is_the_holder_and_not_the_clock() -> None:  # S22
    late = replace(CLAIMED, lease_expires_at=NOW - DAY)
    assert lifecycle.complete(late, NOW, OWNER, LEASE, None).state == TodoState.DONE
    taken = lifecycle.claim(late, NOW, "bob", MINUTE, "ls_2")
    with pytest.raises(Conflict):
        lifecycle.complete(taken, NOW, OWNER, LEASE, None)


def test_a_stale_lease_is_refused_though_the_owner_is_the_same() -> None:  # S22
    again = lifecycle.claim(STATES["claimed, lapsed"], NOW, OWNER, MINUTE, "ls_2")
    for verb in ("heartbeat", "complete", "fail", "refuse", "release"):
        with pytest.raises(Conflict):
            VERBS[verb](again)


@pytest.mark.parametrize(("ttl", "until"), [(HOUR, NOW + HOUR), (MINUTE, NOW + MINUTE), (SECOND, NOW + MINUTE)])
def test_a_heartbeat_never_shortens_a_lease(ttl: int, until: int) -> None:  # S7 S25
    after = lifecycle.heartbeat(CLAIMED, NOW, OWNER, ttl, LEASE)
    assert after.lease_expires_at == until
    assert changed(CLAIMED, after) <= {"lease_expires_at", "updated_at"}


def test_a_heartbeat_revives_a_lapsed_lease_that_nobody_took() -> None:  # S25
    after = VERBS["heartbeat"](STATES["claimed, lapsed"])
    assert after.lease_expires_at == NOW + HOUR
    assert not lifecycle.claimable(after, NOW, "bob")


def test_a_completion_keeps_its_receipt() -> None:  # S8
    after = VERBS["complete"](CLAIMED)
    assert (after.owner, after.lease_id, after.claimed_at) == (OWNER, LEASE, CLAIMED.claimed_at)
    assert (after.result_json, after.error, after.completed_at) == ('"ok"', None, NOW)
    assert after.history == CLAIMED.history
    assert not after.live


def test_a_failure_parks_until_its_delay_is_over() -> None:  # S9
    after = VERBS["fail"](CLAIMED)
    assert (after.next_retry_at, after.reason, after.error) == (NOW + 30 * SECOND, None, "broke")
    assert after.attempt == CLAIMED.attempt
    assert after.live, "a parked todo keeps its key"  # S3
    assert after.history[0] == Attempt(OWNER, CLAIMED.claimed_at, NOW, Outcome.FAILED, "broke")


@pytest.mark.parametrize(
    ("state", "verb", "reason"),
    [
        ("claimed, last try", "fail", Reason.EXHAUSTED),
        ("claimed", "refuse", Reason.REFUSED),
        ("claimed, last try", "refuse", Reason.REFUSED),
        ("claimed, lapsed, last try", "reap", Reason.EXHAUSTED),
    ],
)
def test_a_dead_letter_has_a_reason_and_frees_its_key(state: str, verb: str, reason: Reason) -> None:  # S3 S9 S11
    after = VERBS[verb](STATES[state])
    assert after.dead
    assert not after.live
    assert (after.reason, after.next_retry_at, after.completed_at) == (reason, None, NOW)
    assert after.error


def test_a_release_gives_the_attempt_back() -> None:  # S24
    after = VERBS["release"](CLAIMED)
    assert after.attempt == CLAIMED.attempt - 1
    assert after.available_at is None
    assert lifecycle.claimable(after, NOW, "bob")
    assert after.history[0] == Attempt(OWNER, CLAIMED.claimed_at, NOW, Outcome.RELEASED, "later")


def test_a_release_may_wait() -> None:  # S24
    after = lifecycle.release(CLAIMED, NOW, OWNER, LEASE, None, delay_ms=MINUTE)
    assert after.available_at == NOW + MINUTE
    assert not lifecycle.claimable(after, NOW + MINUTE - 1, "bob")
    assert lifecycle.claimable(after, NOW + MINUTE, "bob")


def test_a_lapsed_lease_costs_its_attempt_and_names_who_died() -> None:  # S11
    after = VERBS["reap"](STATES["claimed, lapsed"])
    assert after.attempt == CLAIMED.attempt
    assert after.history[0] == Attempt(OWNER, CLAIMED.claimed_at, NOW, Outcome.LAPSED, None)
    dead = VERBS["reap"](STATES["claimed, lapsed, last try"])
    assert dead.error == f"the lease of {OWNER} lapsed"


@pytest.mark.parametrize("state", ["parked", "dead, exhausted", "dead, refused", "cancelled"])
def test_a_retry_begins_anew_and_keeps_the_history(state: str) -> None:  # S26
    after = VERBS["retry"](STATES[state])
    assert after.attempt == 0
    assert (after.reason, after.error, after.result_json, after.next_retry_at, after.completed_at) == (None,) * 5
    assert after.history == (OLD,)
    assert lifecycle.claimable(after, NOW, OWNER)


def test_a_cancellation_stands_in_the_history_and_is_no_dead_letter() -> None:
    after = VERBS["cancel"](CLAIMED)
    assert (after.reason, after.error, after.completed_at) == (Reason.CANCELLED, "not wanted", NOW)
    assert not after.dead
    assert after.history[0] == Attempt(OWNER, CLAIMED.claimed_at, NOW, Outcome.CANCELLED, "not wanted")
    unclaimed = VERBS["cancel"](PENDING)
    assert unclaimed.history[0] == Attempt(None, None, NOW, Outcome.CANCELLED, "not wanted")


def test_an_update_changes_what_was_given_and_nothing_else() -> None:
    before = replace(PENDING, assignee="bob", available_at=NOW + 1)
    nothing = lifecycle.update(before, NOW, TodoChange(), None)
    assert changed(before, nothing) == {"updated_at"}
    change = TodoChange(title="Other", priority=5, payload_given=True, assignee_given=True, available_at_given=True)
    after = lifecycle.update(before, NOW, change, None)
    assert (after.title, after.priority, after.payload_json) == ("Other", 5, None)
    assert (after.assignee, after.available_at) == (None, None)


def test_history_keeps_the_newest_fifty() -> None:
    todo = replace(PENDING, max_attempts=100, attempt=0, history=())
    for number in range(60):
        held = lifecycle.claim(todo, NOW + number, OWNER, MINUTE, f"ls_{number}")
        todo = lifecycle.release(held, NOW + number, OWNER, f"ls_{number}", str(number))
    assert [entry.note for entry in todo.history] == [str(number) for number in range(59, 9, -1)]


# Any life at all.

steps = st.lists(st.tuples(st.sampled_from(sorted(VERBS)), st.sampled_from([0, 1, 31 * SECOND, HOUR])), max_size=40)


def moved(todo: Todo, verb: str, now: int, number: int) -> Todo:
    """The todo after a verb by its own holder, which only its state can refuse."""
    lease = todo.lease_id
    match verb:
        case "claim":
            return lifecycle.claim(todo, now, OWNER, MINUTE, f"ls_{number}")
        case "heartbeat":
            return lifecycle.heartbeat(todo, now, OWNER, MINUTE, lease)
        case "complete":
            return lifecycle.complete(todo, now, OWNER, lease, None)
        case "fail":
            return lifecycle.fail(todo, now, OWNER, lease, "broke", lifecycle.backoff(todo.attempt))
        case "refuse":
            return lifecycle.fail(todo, now, OWNER, lease, "no", 0, retry=False)
        case "release":
            return lifecycle.release(todo, now, OWNER, lease, None)
        case "reap":
            return lifecycle.reap(todo, now)
        case "due":
            return lifecycle.due(todo, now)
        case "retry":
            return lifecycle.retry(todo, now)
        case "cancel":
            return lifecycle.cancel(todo, now, None)
        case _:
            return lifecycle.update(todo, now, TodoChange(priority=number), None)


@given(steps, st.integers(1, 4))
def test_every_life_stays_sound(life: list[tuple[str, int]], max_attempts: int) -> None:  # S1
    todo = replace(PENDING, attempt=0, max_attempts=max_attempts, history=(), error=None)
    now = NOW
    for number, (verb, wait) in enumerate(life):
        now += wait
        try:
            after = moved(todo, verb, now, number)
        except Conflict:
            continue
        check_sound(after)
        assert todo.state != TodoState.DONE, "done is the end"
        assert after.attempt - todo.attempt == {"claim": 1, "release": -1, "retry": -todo.attempt}.get(verb, 0)
        todo = after
