"""JSON with comments, edited in place: exactly one member changes, and taking it away gives the bytes back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.doors.cli.clients.jsonc import MAX_DEPTH, NotJson, drop, find, merged, object_at, parse, put

ENTRY = {"type": "local", "command": ["/bin/postroom", "mcp"], "enabled": True}
PATH = ("mcp", "postroom")

# A document is a list of lines' worth of choices: what stands between its tokens is drawn as well.
KEYS = st.sampled_from(["a", "b", "mcp", "postroom", "é", 'q"', "//", "/*", ""])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.sampled_from(["// no", "/* no */", "{", "}", ",", "\\", '"']),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
GAPS = st.sampled_from(
    ["", "", "", " ", "\n", "\n  ", "\r\n\t", " /* c, } */ ", ' // it\'s, "one" }\n', "\n\n // x\n  "]
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """An object in JSON with comments, space and trailing commas wherever they may be."""

    def written(value: Any) -> str:
        if isinstance(value, dict):
            parts = [f"{json.dumps(key)}{draw(GAPS)}:{draw(GAPS)}{written(one)}" for key, one in value.items()]
            return bracketed("{", parts, "}")
        if isinstance(value, list):
            return bracketed("[", [written(one) for one in value], "]")
        return json.dumps(value, ensure_ascii=draw(st.booleans()))

    def bracketed(begin: str, parts: list[str], end: str) -> str:
        inside = ",".join(f"{draw(GAPS)}{part}{draw(GAPS)}" for part in parts)
        trailing = "," if draw(st.booleans()) and parts else ""
        return f"{begin}{inside}{trailing}{draw(GAPS)}{end}"

    value = draw(st.dictionaries(KEYS, VALUES, max_size=4))
    if draw(st.booleans()):
        value["mcp"] = draw(st.dictionaries(KEYS, VALUES, max_size=4))
    return draw(st.sampled_from(["", "\ufeff"])) + draw(GAPS) + written(value) + draw(GAPS)


def plain(text: str) -> Any:
    """What the standard library reads once comments and trailing commas are taken out."""
    token = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\r\n]*|/\*.*?\*/', re.DOTALL)
    bare = token.sub(lambda found: found[1] or " ", text.removeprefix("\ufeff"))
    ends = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
    return json.loads(ends.sub(lambda found: found[1] or "", bare))


def comments(text: str) -> list[str]:
    """The comments in order."""
    token = re.compile(r'"(?:[^"\\]|\\.)*"|(//[^\r\n]*|/\*.*?\*/)', re.DOTALL)
    return [found[1] for found in token.finditer(text) if found[1]]


def same(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other)


@given(documents(), VALUES)
@example('{"a": 1, // one\n"mcp": {} ,\n}', None)
@example('{"a": 1, // one\n"mcp": {} /* two */,\n}', None)
@example('{"a": 1, // one\n"mcp": {} // two\n,\n}', None)
@example('{"a": 1, // one\n"mcp": {}\n, "b": 2}', None)
@example('{"mcp": {} , "b": 2}', None)
def test_an_edit_changes_exactly_its_member(text: str, value: Any) -> None:
    before = plain(text)
    assert same(parse(text).data, before)
    if not isinstance(before.get("mcp", {}), dict):
        with pytest.raises(NotJson, match="expected an object as mcp"):
            put(text, PATH, value)
        with pytest.raises(NotJson, match="expected an object as mcp"):
            drop(text, PATH)
        return
    after = put(text, PATH, value)
    wanted = {**before, "mcp": {**before.get("mcp", {}), "postroom": value}}
    assert same(plain(after), wanted)
    assert put(after, PATH, value) == after
    assert same(find(after, PATH), value)
    there = "postroom" in before.get("mcp", {})
    if not there:
        assert comments(after) == comments(text)
        if before.get("mcp"):
            assert drop(after, PATH) == text
    gone = drop(after, PATH)
    left = {key: one for key, one in wanted["mcp"].items() if key != "postroom"}
    rest = plain(gone)
    if not left:  # the object stays where a comment is in it
        assert rest.pop("mcp", {}) == {}
        assert same(rest, {key: one for key, one in before.items() if key != "mcp"})
    else:
        assert same(rest, {**before, "mcp": left})
    assert drop(gone, PATH) == gone
    if not there:
        assert comments(gone) == comments(text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "mcp": {\n    "n": [\n      1\n    ]\n  }\n}\n'),
        ("{}", '{\n  "mcp": {\n    "n": [\n      1\n    ]\n  }\n}'),
        (
            '{\n    "a": 1 // one\n}\n',
            '{\n    "a": 1, // one\n    "mcp": {\n        "n": [\n            1\n        ]\n    }\n}\n',
        ),
        (
            '{\r\n\t"mcp": {\r\n\t\t"a": 1,\r\n\t},\r\n}',
            '{\r\n\t"mcp": {\r\n\t\t"a": 1,\r\n\t\t"n": [\r\n\t\t\t1\r\n\t\t],\r\n\t},\r\n}',
        ),
        ('{"a":1}', '{"a":1, "mcp": {"n": [1]}}'),
        ('{"mcp": {}}', '{"mcp": {"n": [1]}}'),
        ('{\n  "mcp": {"a": 1}\n}', '{\n  "mcp": {"a": 1, "n": [1]}\n}'),
        ('{\n  "mcp": {"n": [1 ]}\n}', '{\n  "mcp": {"n": [1 ]}\n}'),
        ('{\n  "mcp": {"n": [true]}\n}', '{\n  "mcp": {"n": [1]}\n}'),
    ],
)
def test_what_is_added_looks_as_its_neighbours_do(before: str, after: str) -> None:
    assert put(before, ("mcp", "n"), [1]) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{ // hi\n  "k": 1, "b": 2\n}', '{ // hi\n   "b": 2\n}'),
        ('{ // hi\n  "k": 1 }', "{ // hi\n   }"),
        ('{"a": 1, "k": 2, "b": 3}', '{"a": 1, "b": 3}'),
        ('{"k": 1, "a": 2}', '{"a": 2}'),
        ('{ "k": 1 }', "{}"),
        ('{\n  // why\n  "k": 1\n}', "{\n  // why\n}"),
        ('{\n  "a": 1,\n  "k": 2 // tail\n}', '{\n  "a": 1 // tail\n}'),
        ('{"a": 1}', '{"a": 1}'),
    ],
)
def test_what_is_taken_away_leaves_the_rest(before: str, after: str) -> None:
    assert drop(before, ("k",)) == after


def test_a_merge_keeps_what_it_does_not_know() -> None:
    text = '{"mcp": {"n": {"url": "x", /* mine */ "timeout": 5, "headers": {"A": "1", "B": "2"}, "old": 1}}}'
    after = merged(text, ("mcp", "n"), {"url": "y", "headers": {"A": "3"}}, ("old", "never"))
    assert after == '{"mcp": {"n": {"url": "y", /* mine */ "timeout": 5, "headers": {"A": "3", "B": "2"}}}}'
    assert merged(after, ("mcp", "n"), {"url": "y"}, ("old",)) == after
    assert object_at(text, ("mcp", "m")) is None
    assert object_at(" ", ("mcp", "m")) is None
    with pytest.raises(NotJson, match=r"expected an object as mcp\.n\.url"):
        object_at(text, ("mcp", "n", "url"))


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("[1]", (1, 1), "expected an object"),
        ('{"a": 1', (1, 8), "expected , or }"),
        ('{\n "a": 1 "b": 2}', (2, 9), "expected , or }"),
        ('{"a" 1}', (1, 6), "expected : after"),
        ('{"a": }', (1, 7), "expected a value"),
        ("{a: 1}", (1, 2), 'expected a key in "quotes"'),
        ('{"a": "x\ny"}', (1, 7), "expected a string"),
        ('{"a": 01}', (1, 8), "expected , or }"),
        ('{"a": NaN}', (1, 7), "expected a value"),
        ('{"a": 1} x', (1, 10), "expected the end"),
        ('{"a": 1 /* x}', (1, 9), "expected the comment to end"),
        ("// nothing", (1, 11), "expected a value"),
        ('{"mcp": [],\n"mcp": {}}', (2, 1), "expected one mcp"),
        ('{"mcp": {"n": 1,\n\n"n": 2}}', (3, 1), "expected one mcp.n"),
        ('{"mcp": 1}', (1, 9), "expected an object as mcp"),
        ("[" * (MAX_DEPTH + 9), (1, MAX_DEPTH + 2), "levels"),
        ('{"a": ' + "9" * 5000 + "}", (1, 7), "fewer digits"),
    ],
)
def test_what_is_broken_is_named_with_its_place(text: str, where: tuple[int, int], expected: str) -> None:
    with pytest.raises(NotJson, match=re.escape(expected)) as told:
        put(text, ("mcp", "n"), 1)
    assert (told.value.line, told.value.column) == where
    with pytest.raises(NotJson, match=re.escape(expected)) as told:
        drop(text, ("mcp", "n"))
    assert (told.value.line, told.value.column) == where


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{} // c", "no comments"), ('{"a": 1,}', "no comma before }"), ("/* */{}", "no comments")],
)
def test_plain_json_has_neither_comments_nor_trailing_commas(text: str, expected: str) -> None:
    assert parse(text).data in ({}, {"a": 1})
    with pytest.raises(NotJson, match=expected):
        parse(text, comments=False)
