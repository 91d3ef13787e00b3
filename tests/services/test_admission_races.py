"""Admission when many do it at once: one row, one first; and what was kept long enough goes, never what lives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.errors import Conflict
from postroom.limits import DAY
from postroom.message import AckMode, Admitted, NewMessage, Priority
from postroom.postage import KEEP_ADMISSIONS, KEEP_ENDPOINTS, KEEP_MESSAGES
from postroom.store.engine import Operation, T, Tx
from tests.conftest import Store
from tests.offices import ADMIN, BOB, Bench, gather
from tests.services.mailing import Mail, only


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


@pytest.fixture
async def second(mail: Mail, new_engine: Callable[[], Store]) -> AsyncIterator[Mail]:
    """Another daemon's office on the same database, where the engine allows one."""
    if mail.bench.store.dialect == "sqlite":
        yield mail
        return
    engine = new_engine()
    await engine.open()
    yield Mail(Bench(engine))
    await engine.close()


KEYS: list[dict[str, Any]] = [
    {"msg_id": "m1"},
    {"client_id": "c", "idempotency_key": "k"},
    {"msg_id": "m1", "client_id": "c", "idempotency_key": "k"},
]


@pytest.mark.parametrize("keys", KEYS, ids=["id", "key", "both"])
@pytest.mark.parametrize("to", ["ses_1", "bob"])
async def test_the_same_message_at_once_is_one(mail: Mail, second: Mail, keys: dict[str, Any], to: str) -> None:
    # P2 # T18 # T19
    answers: list[Any] = await gather(*[(mail, second)[n % 2].send(to=to, **keys) for n in range(20)])
    assert all(isinstance(one, Admitted) for one in answers), answers
    assert sum(not one.deduplicated for one in answers) == 1
    assert len({one.id for one in answers}) == 1
    assert len({only(one).id for one in answers}) == 1
    assert await mail.count("messages") == await mail.count("deliveries") == 1
    assert await mail.count("admissions") == len(keys) // 2 + len(keys) % 2
    assert await mail.bench.rows("select handoff_seq from mailboxes") == ([(1,)] if to == "bob" else [])


async def test_other_content_at_once_admits_one_of_them(mail: Mail, second: Mail) -> None:
    # T20
    for n in range(4):
        answers: list[Any] = await gather(
            *[(mail, second)[k % 2].send(f"payload {k % 3}", msg_id=f"m{n}") for k in range(12)]
        )
        first = [one for one in answers if isinstance(one, Admitted) and not one.deduplicated]
        assert len(first) == 1
        for k, one in enumerate(answers):
            assert isinstance(one, Admitted if k % 3 == _payload(first[0]) else Conflict), one


def _payload(admitted: Admitted) -> int:
    assert admitted.posted is not None
    return int(admitted.posted.message.payload[-1])


async def test_keys_in_any_order_are_never_half_taken(mail: Mail, second: Mail) -> None:
    # T18 # T20
    calls = [
        (mail, second)[n % 2].send(f"p{n % 2}", msg_id=f"m{n % 3}", client_id="c", idempotency_key=f"k{n % 4}")
        for n in range(24)
    ]
    answers: list[Any] = await gather(*calls)
    assert all(isinstance(one, Admitted | Conflict) for one in answers), answers
    rows = await mail.bench.rows("select message_id, digest from admissions")
    messages = dict(await mail.bench.rows("select id, digest from messages"))
    assert all(messages.get(id_) == digest for id_, digest in rows)
    assert sum(isinstance(one, Admitted) and not one.deduplicated for one in answers) == len(messages)


async def test_places_in_a_mailbox_are_given_once(mail: Mail, second: Mail) -> None:
    # RULINGS 32
    for name in ("bob", "ann"):
        await mail.office.registry.subscribe(ADMIN, "team", name)
    places: list[dict[str, Any]] = [{"channel": "team"} if n % 3 else {"to": "bob"} for n in range(30)]
    calls = [(mail, second)[n % 2].send(**place) for n, place in enumerate(places)]
    answers: list[Any] = await gather(*calls)
    assert all(isinstance(one, Admitted) for one in answers), answers
    for name, count in (("bob", 30), ("ann", 20)):
        given_out = await mail.bench.rows("select handoff_seq from deliveries where mailbox = ? order by 1", name)
        assert [place for (place,) in given_out] == list(range(1, count + 1))
    page = await mail.office.inbox.page(BOB, None, None, 100)
    assert [one.delivery.handoff_seq for one in page.letters] == list(range(1, 31))


async def test_a_readback_that_finds_nothing_begins_again(mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    # The key vanishes between the refusal and the look at who holds it: never not_found, never an empty answer.
    first = await mail.send(msg_id="m")
    store = mail.bench.store
    seen: list[str] = []
    real = store.transact

    class Vanishing:
        def __init__(self, tx: Tx) -> None:
            self._tx = tx

        async def rows(self, name: str, /, **params: object) -> list[tuple[Any, ...]]:
            rows = await self._tx.rows(name, **params)
            if name == "admission_known" and len(seen) < 2:
                seen.append(name)
                return rows if store.dialect == "sqlite" and len(seen) == 1 else []
            return rows

    async def transact(operation: Operation[T], *, heavy: bool = False, one: bool = False) -> T:
        return await real(lambda tx: operation(Vanishing(tx)), heavy=heavy, one=one)

    monkeypatch.setattr(store, "transact", transact)
    again = await mail.send(msg_id="m")
    assert len(seen) == 2
    assert (again.deduplicated, again.posted) == (True, first.posted)


async def test_what_ended_long_ago_goes_and_what_lives_stays(mail: Mail) -> None:
    # RULINGS 15
    pane = await mail.pane(1, name="pane")
    await mail.send(msg_id="done", to="bob")
    await mail.send(msg_id="waits")
    await mail.send(msg_id="unacked", to="bob", ack_mode=AckMode.ACKNOWLEDGED)
    await mail.send(msg_id="failed", to=pane.id)
    await mail.office.receipts.cancel(ADMIN, "failed")
    await mail.office.registry.subscribe(ADMIN, "team", "ses_2")
    await mail.office.registry.subscribe(ADMIN, "team", "eve")
    await mail.send(msg_id="partly", channel="team")
    await mail.send(msg_id="nobody", channel="empty")
    await mail.office.registry.detach(ADMIN, pane.id)
    sweep, move = mail.office.sweep, mail.bench.move

    async def kept() -> list[str]:
        assert (
            await mail.bench.rows("select id from deliveries where message_id not in (select id from messages)") == []
        )
        return [id_ for (id_,) in await mail.bench.rows("select id from messages order by seq")]

    everything = ["done", "waits", "unacked", "failed", "partly", "nobody"]
    move(KEEP_MESSAGES - DAY)
    await sweep.retention()
    assert await kept() == everything
    move(2 * DAY)
    await sweep.retention()
    assert await kept() == ["waits", "unacked", "partly"]
    # A late repeat is still a duplicate, and an inbox goes on after what is gone.
    assert (await mail.send(msg_id="done", to="bob")).deduplicated
    assert [one.message.id for one in (await mail.office.inbox.page(BOB, None, "done", None)).letters] == ["unacked"]
    move(KEEP_ENDPOINTS)
    await sweep.retention()
    assert await mail.bench.rows("select count(*) from endpoints where id = ?", pane.id) == [(0,)]
    assert await mail.count("endpoints") == 2
    await mail.send(msg_id="new", to="bob")
    assert only(await mail.send(msg_id="new", to="bob")).handoff_seq == 3
    move(KEEP_ADMISSIONS)
    await sweep.retention()
    assert await mail.count("admissions") == 0
    assert await kept() == ["waits", "unacked", "partly"]
    assert not (await mail.send(msg_id="done", to="bob")).deduplicated


async def test_the_swarms_own_table_reads_as_it_did(mail: Mail) -> None:
    # P2 # P6 # P23 # RULINGS 39
    columns = (
        "msg_id, from_session, to_session, channel, kind, priority, reply_to, payload, state, attempts, next_retry_at, "
        "created_at, updated_at, handed_off_at"
    )
    await mail.send(msg_id="a", sender="ses_9", reply_to=None, kind="chat")
    await mail.send(msg_id="b", to="ses_2", reply_to="a")
    await mail.send(msg_id="c", to="ses_3")
    handed = await mail.carry("opencode:ses_1")
    await mail.office.receipts.cancel(ADMIN, "c")
    rows = {row[0]: row for row in await mail.bench.rows(f"select {columns} from swarm_messages")}
    assert len(await mail.bench.rows("select * from swarm_messages")) == 3
    assert rows["a"][:9] == ("a", "ses_9", "ses_1", None, "chat", "normal", None, "hello", "handed_off")
    assert rows["a"][9:11] == (1, None)
    assert rows["a"][13] == handed.delivered_at
    assert rows["b"][6:10] == ("a", "hello", "queued", 0)
    assert rows["b"][10] == rows["b"][11] == rows["b"][12]
    assert rows["b"][13] is None
    assert (rows["c"][8], rows["c"][10], rows["c"][13]) == ("failed", None, None)


# What makes two messages the same, tried against a plain oracle.

CONTENT = st.fixed_dictionaries(
    {
        "payload": st.sampled_from(["hi", "ho"]),
        "kind": st.sampled_from(["chat", "x"]),
        "priority": st.sampled_from(list(Priority)),
        "sender": st.sampled_from([None, "ses_1"]),
        "place": st.sampled_from([{"to": "ses_1"}, {"to": "bob"}, {"channel": "c"}]),
        "correlation_id": st.sampled_from([None, "x"]),
        "ttl_ms": st.sampled_from([None, 60_000]),
    }
)
KEYED = st.fixed_dictionaries(
    {"msg_id": st.sampled_from([None, "a", "b"]), "client": st.sampled_from([None, ("c", "1"), ("c", "2"), ("d", "1")])}
)
COMPARED = ("payload", "kind", "priority", "sender", "place")


async def test_admission_follows_its_oracle(mail: Mail, new_engine: Callable[[], Store]) -> None:
    # T18 # T19 # T20
    runs: list[list[tuple[dict[str, Any], dict[str, Any]]]] = []

    @settings(max_examples=8, database=None)
    @given(st.lists(st.tuples(CONTENT, KEYED), min_size=3, max_size=14))
    def draw(steps: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        runs.append(steps)

    draw()
    for number, steps in enumerate(runs):
        known: dict[tuple[str, str], tuple[str, list[object]]] = {}
        for content, keyed in steps:
            client = keyed["client"]
            keys = [("", f"{number}:{keyed['msg_id']}")] if keyed["msg_id"] else []
            keys += [(client[0], f"{number}:{client[1]}")] if client else []
            new = NewMessage(
                payload=content["payload"],
                kind=content["kind"],
                priority=content["priority"],
                sender=content["sender"],
                correlation_id=content["correlation_id"],
                ttl_ms=content["ttl_ms"],
                msg_id=keys[0][1] if keyed["msg_id"] else None,
                client_id=client[0] if client else None,
                idempotency_key=keys[-1][1] if client else None,
                **content["place"],
            )
            same = [content[field] for field in COMPARED]
            found = [known[key] for key in keys if key in known]
            (answer,) = await gather(mail.office.post.send(ADMIN, new))
            if not found:
                assert isinstance(answer, Admitted)
                assert not answer.deduplicated
                known.update(dict.fromkeys(keys, (answer.id, same)))
                if not keyed["msg_id"]:
                    known["", answer.id] = (answer.id, same)
            elif any(one != (found[0][0], same) for one in found):
                assert isinstance(answer, Conflict), answer
            else:
                assert isinstance(answer, Admitted)
                assert (answer.deduplicated, answer.id) == (True, found[0][0])
