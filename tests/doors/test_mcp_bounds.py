"""No answer of a tool is longer than its bound, and one that was cut says how to get the rest, which then is the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom import mail_wire, wire
from postroom.doors.mcp import mail_results, results
from postroom.doors.mcp.results import FIELDS, MAX_RESULT_BYTES, bounded, claimed, error_result, part, size_of, text_of
from postroom.errors import Conflict, Invalid, NotFound
from postroom.message import Letter, Posted, Reply
from postroom.model import Attempt, Outcome, Todo, TodoState
from postroom.post import Occupant
from postroom.text import dump_json
from tests.doors import fake_daemon, fake_post
from tests.doors.mcp_rig import at_desk, good, new_desk

PLAIN = replace(wire.todo_of(fake_daemon.todo()), payload_json=None, payload_bytes=0)
few = settings(max_examples=25)
"""Each example is large, and what bounds it has no rare corners."""

# One byte, two as JSON, six as JSON, two and four in UTF-8.
LETTERS = st.sampled_from(["a", '"', "\x01", "é", "😀"])


def words(most: int) -> st.SearchStrategy[str]:
    """Texts up to so many characters, now and then that long."""
    lengths = st.one_of(st.integers(0, 40), st.integers(0, most), st.just(most))
    return st.builds(lambda letter, length, end: (letter * length)[: most - 1] + end, LETTERS, lengths, LETTERS)


def values(most: int) -> st.SearchStrategy[Any]:
    """JSON values up to about so many characters."""
    return st.one_of(
        st.none(),
        words(most),
        st.builds(lambda text, n: {"n": n, "of": [text]}, words(most), st.integers(-5, 2**53 - 1)),
    )


@st.composite
def todos(draw: st.DrawFn) -> Todo:
    """A todo in any state of fullness."""
    payload, result = draw(values(30_000)), draw(values(30_000))
    note = draw(st.one_of(st.none(), words(1000)))
    count = draw(st.sampled_from([0, 1, 3, 50]))
    text = None if payload is None else dump_json(payload)
    return replace(
        PLAIN,
        title=draw(words(500)),
        kind="k" * draw(st.integers(0, 128)),
        queue="q" * draw(st.integers(1, 128)),
        idempotency_key=draw(st.one_of(st.none(), words(256))),
        error=draw(st.one_of(st.none(), words(16_000))),
        state=TodoState.CLAIMED,
        owner="a" * 64 + "/" + "b" * 64,
        lease_id=fake_daemon.LEASE,
        payload_json=text,
        payload_bytes=len((text or "").encode()),
        result_json=None if result is None else dump_json(result),
        history=tuple(Attempt("ann", n, n + 1, Outcome.FAILED, note) for n in range(count)),
    )


def all_of(text: str, offset: int) -> str:
    """What the parts from an offset on come to, each within the bound."""
    read = ""
    following: int | None = offset
    while following is not None:
        told = part(text, following, id=fake_daemon.TODO, field="payload")
        assert size_of({"part": told}) <= MAX_RESULT_BYTES
        assert told["length"] == len(text)
        assert told["text"] or following == len(text)
        read, following = read + told["text"], told["next_offset"]
    return read


def check_todo(shown: dict[str, Any], todo: Todo) -> None:
    """What is marked as cut is cut, what is not is whole; and `rest` leads to all of it."""
    whole = wire.todo_view(todo, lease=True)
    cut = {name for name in FIELDS if shown[name] != whole[name]}
    rest: dict[str, int] = shown.get("rest", {})
    assert ("whole" in shown) == ("rest" in shown) == bool(rest)
    assert cut <= set(rest)
    for name in ("payload", "result", "history"):
        assert shown.get(f"{name}_truncated", False) == (name in rest)
    assert set(shown.get("cut", ())) == set(rest) - {"payload", "result", "history"}
    for name, offset in rest.items():
        text = text_of(todo, name)
        if name == "history":
            assert offset == 0
            assert json.loads(all_of(text, 0)) == whole["history"]
        else:
            assert len(shown[name]) == offset + 1
            assert shown[name][:-1] + all_of(text, offset) == text


@few
@given(todos())
def test_a_whole_todo_fits_and_its_rest_is_the_rest(todo: Todo) -> None:
    shown = results.whole(todo, lease=True)
    assert size_of({"todo": shown}) <= MAX_RESULT_BYTES
    check_todo(shown, todo)
    assert size_of(results.line(todo)) <= MAX_RESULT_BYTES // 2


@few
@given(st.lists(todos(), min_size=1, max_size=10))
def test_a_claim_of_several_fits_and_what_the_small_leave_the_large_take(several: list[Todo]) -> None:
    shown = claimed(several)
    assert size_of({"todos": shown}) <= MAX_RESULT_BYTES
    assert len(shown) == len(several)
    for one, todo in zip(shown, several, strict=True):
        assert one["id"] == todo.id
        assert one["lease_id"] == todo.lease_id
        check_todo(one, todo)


def test_a_small_todo_beside_a_large_one_is_not_cut() -> None:
    large = replace(PLAIN, payload_json=dump_json("x" * 100_000))
    small = replace(PLAIN, payload_json=dump_json("y" * 1000))
    first, *others = claimed([large, *[small] * 5])
    assert all(one["payload"] == "y" * 1000 and "rest" not in one for one in others)
    assert first["rest"]["payload"] > 10_000


@few
@given(words(20_000), words(3000), st.one_of(st.none(), words(300)))
def test_an_error_fits_and_keeps_what_it_is(message: str, detail: str, field: str | None) -> None:
    error = Conflict(message, field=field, because=[detail] * 10)
    told = error_result(error)
    assert size_of(told) <= MAX_RESULT_BYTES
    assert told["error"]["code"] == "conflict"
    assert told["error"]["hint"] == error.advice
    assert ("cut" in told["error"]) == (told["error"]["message"] != message or "because" not in told["error"])


def letter(number: int, payload: str) -> Letter:
    """A letter that says this."""
    return fake_post.letter(number, payload=payload)


@few
@given(st.lists(words(64 * 1024), min_size=1, max_size=8))
def test_letters_fit_and_a_cut_one_leads_to_its_rest(payloads: list[str]) -> None:
    letters = [letter(n, payload) for n, payload in enumerate(payloads)]
    for shown, at in (
        (mail_results.letters_that_fit(letters), 0),
        (mail_results.newest_that_fit(letters, MAX_RESULT_BYTES - 1024), -1),
    ):
        assert size_of({"messages": shown, "next_since": "s.9", "unread": 5, "mailbox": "m" * 128}) <= MAX_RESULT_BYTES
        assert shown
        assert shown[at]["id"] == letters[at].message.id
        for one in shown:
            payload = payloads[int(one["id"].removeprefix("msg_"))]
            assert ("rest" in one) == ("whole" in one) == ("payload_truncated" in one) == (one["payload"] != payload)
            if "rest" in one:
                assert one["payload"][:-1] + all_of(payload, one["rest"]) == payload


@few
@given(st.integers(0, 400), words(500))
def test_a_receipt_with_many_deliveries_fits_and_leads_to_all(count: int, reason: str) -> None:
    deliveries = tuple(
        fake_post.delivery("failed", mailbox=f"m{n}", reason="exhausted", last_failure_reason=reason)
        for n in range(count)
    )
    message = replace(letter(1, "hello").message, id="m" * 128, sender="s" * 128, addressed="t" * 128)
    posted = Posted(message, deliveries)
    shown = mail_results.receipt(posted)
    assert size_of({"id": "m" * 128, "deduplicated": False, "message": shown}) <= MAX_RESULT_BYTES
    answer = Posted(replace(message, id="a" * 128, payload=reason * 200), ())
    replied = mail_results.replied(Reply(posted, answer))
    assert size_of({"id": "m" * 128, "deduplicated": False, **replied}) <= MAX_RESULT_BYTES
    assert ("rest" in replied["reply"]) == (replied["reply"]["payload"] != answer.message.payload)
    left = count - len(shown["deliveries"])
    assert shown.get("deliveries_left_out", 0) == left
    assert ("whole" in shown) == (left > 0)
    if left:
        text = ""
        offset: int | None = 0
        while offset is not None:
            told = mail_results.part_of(posted, "deliveries", offset)
            text, offset = text + told["text"], told["next_offset"]
        assert [one["mailbox"] for one in json.loads(text)] == [f"m{n}" for n in range(count)]


@few
@given(st.integers(1, 60), st.integers(0, 100), words(256))
def test_who_fits_however_much_there_is_to_tell_of_each(count: int, repositories: int, name: str) -> None:
    there = [
        Occupant(
            name=f"o{n}",
            carrier="tmux",
            endpoint_id=fake_post.ENDPOINT,
            live=True,
            repositories=tuple(f"{n}/{name}" for n in range(repositories)),
            queues=("q" * 128,) * repositories,
            channels=("c" * 128,) * repositories,
            directory="/" * 1000,
            branch="b" * 200,
            todo_id=None,
            todo_title=None,
            last_seen=None,
        )
        for n in range(count)
    ]
    seen: list[str] = []
    while len(seen) < count:
        shown = mail_results.occupants_that_fit(there[len(seen) :])
        assert shown
        assert size_of({"who": shown, "left_out": 60, "next_offset": 60}) <= MAX_RESULT_BYTES
        for one in shown:
            assert ("cut" in one) == ("whole" in one) == (len(one.get("repositories", ())) < repositories)
        seen += [one["name"] for one in shown]
    assert seen == [one.name for one in there]
    text = ""
    offset: int | None = 0
    while offset is not None:
        told = mail_results.occupants_part(there, "o0", offset)
        text, offset = text + told["text"], told["next_offset"]
    assert json.loads(text) == [mail_wire.occupant_view(there[0])]
    with pytest.raises(NotFound):
        mail_results.occupants_part(there, "nobody", 0)


@few
@given(
    st.dictionaries(
        st.sampled_from(["todo", "todos", "text"]),
        st.recursive(
            words(20_000), lambda inner: st.lists(inner, max_size=40) | st.dictionaries(words(20), inner), max_leaves=30
        ),
        max_size=3,
    )
)
def test_the_last_net_holds_whatever_a_tool_answers(answer: dict[str, Any]) -> None:
    shown, text = bounded(answer, "a_tool")
    assert len(text.encode()) <= MAX_RESULT_BYTES
    assert json.loads(text) == shown
    fits = size_of(answer) <= MAX_RESULT_BYTES
    assert (shown is answer) == fits
    if not fits:
        assert shown["cut"]
        assert "a_tool" in shown["whole"]


def test_a_part_begins_within_the_text() -> None:
    assert part("abc", 3, id="x") == {"id": "x", "offset": 3, "text": "", "next_offset": None, "length": 3}
    with pytest.raises(Invalid, match="expected 0 to 3") as caught:
        part("abc", 4, id="x")
    assert caught.value.field == "offset"


async def test_the_fullest_todo_is_read_through_to_its_end_by_the_tools_alone() -> None:
    desk = new_desk()
    payload = {"body": 'quote " and \\ ' * 55_000, "n": 2**64}
    result = ["\x01é😀" * 85_000]
    made = await desk.create("q", "t", payload=payload)
    notes = [Attempt("agent", n, n, Outcome.FAILED, f"{n} " + "é" * 1000) for n in range(50)]
    desk.add_history(made.todo.id, notes)
    async with at_desk(desk) as client:
        (todo,) = (await good(client, "claim_next"))["todos"]
        await good(client, "complete", id=todo["id"], lease_id=todo["lease_id"], result=result)
        shown = (await good(client, "get_todo", id=todo["id"]))["todo"]
        assert set(shown["rest"]) == {"payload", "result", "history"}
        read: dict[str, str] = {}
        for field, offset in shown["rest"].items():
            text = "" if field == "history" else shown[field][:-1]
            following: int | None = offset
            while following is not None:
                asked = await good(client, "get_todo", id=todo["id"], field=field, offset=following)
                text, following = text + asked["part"]["text"], asked["part"]["next_offset"]
            read[field] = text
    assert json.loads(read["payload"]) == payload
    assert json.loads(read["result"]) == result
    assert [entry["note"] for entry in json.loads(read["history"])] == [one.note for one in notes]
