"""Skimming: dense bodies are read near their top, checked to their end, and never cost many times their size."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import Invalid
from postroom.sources import skim
from postroom.sources.skim import FROM_BYTES, MAX_ITEMS, is_dense, skim_json
from postroom.text import MAX_DEPTH, clean_escapes, parse_json
from tests.sources.signing import accepted, github, github_headers

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("abé\\\"'", max_size=2), inner, max_size=5),
)
SPACING = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])


def dense(item: str, before: str = "[", after: str = "]", size: int = 2 * FROM_BYTES) -> bytes:
    """A body that is full of one small value."""
    return (before + ",".join([item] * (size // (len(item) + 1))) + after).encode()


def read(raw: bytes, how: Any) -> Any:
    """The value, or that it was refused."""
    try:
        return how(raw)
    except Invalid:
        return Invalid


@pytest.fixture
def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many values are read as a text of any size can hold."""
    monkeypatch.setattr(skim, "_BYTES_A_READ_VALUE", 1)


@pytest.fixture
def sparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each list one value is read, so that nearly everything is passed over."""
    monkeypatch.setattr(skim, "_BYTES_A_READ_VALUE", 8)
    monkeypatch.setattr(skim, "MAX_ITEMS", 1)


@given(VALUES, SPACING, st.booleans())
def test_what_is_not_cut_is_read_as_by_the_parser(value: object, spacing: tuple[str, str], plain: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skim, "_BYTES_A_READ_VALUE", 1)
        raw = (" " + json.dumps(value, separators=spacing, ensure_ascii=plain) + "\n ").encode()
        assert skim_json(raw) == parse_json(raw)


@given(VALUES, st.data(), st.sampled_from([1, 8, 1000]), st.sampled_from([0, 1, 1000]))
def test_it_takes_what_the_parser_takes_and_nothing_else(
    value: object, data: st.DataObject, bytes_a_value: int, items: int
) -> None:
    text = json.dumps(value, separators=(", ", ":"))
    at = data.draw(st.integers(0, len(text)))
    inserted = data.draw(
        st.sampled_from(["", ",", "]", "}", "[", "{", '"', ":", "\\", "0", "-", ".", "e", "\x01", "n"])
    )
    text = text[:at] + inserted + text[at + data.draw(st.integers(0, 2)) :]
    parsed = read(text.encode(), parse_json)
    try:
        twice = parsed is Invalid and json.loads(text) is not Invalid
    except ValueError:
        twice = False
    if twice:  # Keys that stand twice are looked for in what is read alone.
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skim, "_BYTES_A_READ_VALUE", bytes_a_value)
        patch.setattr(skim, "MAX_ITEMS", items)
        assert (read(text.encode(), skim_json) is Invalid) == (parsed is Invalid), text


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("1e999", "finite"),
        ("-1" + "0" * 350 + ".5e10", "finite"),
        ("9" * 401, "digits"),
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, "deeper"),
        ("NaN", "JSON"),
        ("01", "JSON"),
        ('"\\x"', "JSON"),
        ('"\t"', "JSON"),
        ("{1:2}", "JSON"),
        ("[1,]", "JSON"),
        ('{"a":1,}', "JSON"),
        ("tru", "JSON"),
    ],
)
@pytest.mark.usefixtures("sparing")
def test_what_is_passed_over_is_checked(item: str, words: str) -> None:
    for before, after in (("[0,0,", "]"), ("[0,0,[0,", ",0],0]"), ('[0,0,{"a":', "}]")):
        with pytest.raises(Invalid) as refused:
            skim_json(f"{before}{item}{after}".encode(), "payload")
        assert words in refused.value.message
        assert refused.value.field == "payload"
    deepest = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert skim_json(f"[0,{deepest},0]".encode()) == [0]


@pytest.mark.usefixtures("generous")
def test_a_key_that_stands_twice_in_what_is_read_is_refused() -> None:
    with pytest.raises(Invalid, match="'a' twice"):
        skim_json(b'{"a":1,"b":{},"a":2}')


@pytest.mark.parametrize("raw", [b"\xff", b"", b" ", b"[", b'{"a"', b"[1] 2", b'["a', b'"\xed\xa0\x80"'])
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(Invalid):
        skim_json(raw)


def test_ordinary_bodies_are_not_dense() -> None:
    commits = json.dumps([{"id": "a" * 40, "message": "A commit of ordinary length", "author": {"name": "Ann"}}] * 5000)
    assert len(commits) > FROM_BYTES
    assert not is_dense(commits.encode())
    assert not is_dense(dense("{}", size=FROM_BYTES // 2))
    for item in ("{}", "[]", '"ab"', "1.5", '{"a":1}'):
        assert is_dense(dense(item))


@pytest.mark.parametrize("item", ["{}", "[]", "[[],[]]", '{"a":1}', '"ab"', "1.5", '{"a":[{"b":"cd"}]}'])
def test_a_dense_body_costs_few_times_its_size(item: str) -> None:
    body = dense(item, '{"action":"opened","items":[', '],"issue":{"number":7,"title":"late"}}')
    source, headers = github(), github_headers(body)
    tracemalloc.start()
    try:
        got = source.receive(headers, body, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not hasattr(got, "reason"), got
    assert peak < 8 * len(body)


def test_the_facts_of_a_dense_body_are_read_and_its_text_is_kept() -> None:
    body = dense("{}", '{"action":"opened","items":[', '],"issue":{"number":7,"title":"late"}}')
    got = accepted(github(), github_headers(body), body)
    assert (got.unparsed, got.action, got.facts.number, got.facts.title) == (None, "opened", 7, "late")
    assert got.data == json.loads(body)
    assert len(skim_json(body)["items"]) == MAX_ITEMS  # type: ignore[index]


def test_a_large_body_is_cleaned_as_text() -> None:
    for item in ('"a long enough text\\u0000 of its kind"', '"\\u0000"'):
        body = dense(item, '{"action":"a\\ud800b","items":[', "]}")
        got = accepted(github(), github_headers(body), body)
        assert got.action == "a�b"
        assert got.body == body
        assert got.body_json == clean_escapes(body.decode())
        assert got.data["items"][-1] == json.loads(item).replace("\x00", "�")
