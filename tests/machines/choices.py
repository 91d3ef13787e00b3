"""What a step of a state machine may be asked with: few values, so that steps meet each other."""

from __future__ import annotations

from hypothesis import strategies as st

from postroom.limits import MINUTE
from postroom.model import NewTodo, Principal, Role, Verb

QUEUES = ("a", "b", "c/x")
ROOT = Principal("root", Role.ADMIN)
PEOPLE = (ROOT, Principal("ann"), Principal("bob", speaks_as=("w1",)), Principal("eve", queues=("a",)))

who = st.sampled_from(PEOPLE)
queue = st.sampled_from(QUEUES)
place = st.integers(0, 7)
ttl = st.sampled_from([None, None, MINUTE, 2 * MINUTE])
delay = st.sampled_from([None, None, 0, MINUTE, 3 * MINUTE])
claim_key = st.sampled_from([None, None, None, "c1", "c2"])
assignee = st.sampled_from([None, None, None, "ann", "ann/w1", "bob", "w1"])
worker = st.sampled_from([None, "w1"])
limit = st.sampled_from([1, 1, 2, 3, 20])
queues = st.sampled_from([("a",), ("b", "a"), QUEUES, QUEUES, None])
lease = st.sampled_from(["now", "now", "now", "now", "none", "before", "wrong"])
new_todo = st.builds(
    NewTodo,
    queue=queue,
    title=st.sampled_from(["t1", "t2"]),
    payload=st.sampled_from([None, {"n": 1}]),
    priority=st.sampled_from([0, 0, -5, 7]),
    assignee=assignee,
    idempotency_key=st.sampled_from([None, None, "k1", "k2"]),
    max_attempts=st.sampled_from([None, 1, 2]),
    delay_ms=st.sampled_from([None, None, None, 0, MINUTE]),
)
verb = st.sampled_from(list(Verb))
ending = st.fixed_dictionaries(
    {
        "place": place,
        "verb": verb,
        "lease": lease,
        "retry": st.sampled_from([True, True, True, False]),
        "retry_in_ms": st.sampled_from([None, None, 0, MINUTE]),
        "delay_ms": st.sampled_from([None, None, 0, MINUTE]),
        "words": st.sampled_from([None, "said"]),
    }
)
