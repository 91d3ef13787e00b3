"""Text and JSON at the edge: what is refused, with which words, and what is only cleaned or cut."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import Invalid, TooLarge
from postroom.text import (
    MAX_DEPTH,
    check_json,
    check_text,
    clean,
    clean_escapes,
    clean_json,
    cut,
    dump_json,
    parse_json,
    printable,
    result_json,
    store_json,
    too_deep,
)

MIB = 1024 * 1024

# Any text at all, lone surrogates and NUL included.
wild_text = st.text(st.characters(categories=None, exclude_categories=()))
scalars = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | wild_text
wild_json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(wild_text, inner, max_size=4), max_leaves=20
)
good_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
good_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | good_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(good_text, inner, max_size=4),
    max_leaves=20,
)


def nested(levels: int) -> list[Any]:
    """A list in a list, `levels` deep; one level is the empty list."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def depth(value: object) -> int:
    """How many brackets are open at the innermost place."""
    match value:
        case dict():
            return 1 + max((depth(inner) for inner in value.values()), default=0)
        case list():
            return 1 + max((depth(inner) for inner in value), default=0)
        case _:
            return 0


def refusal(raw: bytes | str) -> Invalid:
    with pytest.raises(Invalid) as refused:
        parse_json(raw, "payload")
    return refused.value


# Cleaning and cutting.


@given(wild_text)
def test_cleaned_text_is_storable_and_good_text_is_left_alone(text: str) -> None:
    cleaned = clean(text)
    assert "\x00" not in cleaned
    assert cleaned.encode().decode() == cleaned
    assert len(cleaned) == len(text)
    assert clean(cleaned) == cleaned


@given(good_text)
def test_storable_text_passes(text: str) -> None:
    assert clean(text) == text
    assert check_text(text, "title") is text


@pytest.mark.parametrize(("bad", "what"), [("ab\x00c", "a NUL character"), ("ab\ud800c", "a lone surrogate")])
def test_unstorable_text_is_refused_with_its_place(bad: str, what: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_text(bad, "title")
    assert refused.value.field == "title"
    assert refused.value.message == f"title holds {what} at position 2; expected plain Unicode text"


@given(wild_text, st.integers(3, 40))
def test_cut_text_fits_and_says_that_it_was_cut(text: str, limit: int) -> None:
    short = cut(text, limit)
    assert len(short.encode()) <= limit
    if len(clean(text).encode()) <= limit:
        assert short == clean(text)
    else:
        assert short.endswith("…")
        assert clean(text).startswith(short.removesuffix("…"))


def test_a_cut_never_splits_a_character() -> None:
    assert cut("ééééé", 8) == "éé…"
    assert cut("🙂🙂🙂", 11) == "🙂🙂…"
    assert cut("a" * 10, 10) == "a" * 10


@pytest.mark.parametrize(
    "attack",
    ["\x1b[2J", "\x07", "\x9b31m", "a\rb", "\u202edekcah", "\u2066x\u2069", "\x7f", "\x00", "\ud800", "\u200f"],
)
def test_nothing_that_steers_a_terminal_is_printable(attack: str) -> None:
    shown = printable(f"before {attack} after")
    assert "�" in shown
    assert not set(shown) & set("\x00\x07\x1b\r\x7f\x9b\u200f\u202e\u2066\u2069\ud800")


def test_printable_text_stays_on_one_line() -> None:
    assert printable("one\ntwo\tthree – vier 五 🙂") == "one two three – vier 五 🙂"


# Reading JSON.


@given(good_json)
def test_json_is_read_back_as_written(value: object) -> None:
    text = dump_json(value)
    assert parse_json(text) == value
    assert parse_json(text.encode()) == value
    assert parse_json(json.dumps(value, indent=1)) == value


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"[1,]", "is not valid JSON"),
        (b"{'a': 1}", "is not valid JSON"),
        (b"[1] [2]", "is not valid JSON"),
        (b'"a\nb"', "is not valid JSON"),
        (b"\xef\xbb\xbf{}", "is not valid JSON"),
        (b"NaN", "holds NaN; expected finite numbers"),
        (b"[Infinity]", "holds Infinity; expected finite numbers"),
        (b'{"a": -Infinity}', "holds -Infinity; expected finite numbers"),
        (b"1e999", "holds 1e999, which is no finite number"),
        (b"[-1e999]", "holds -1e999, which is no finite number"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b'"\xed\xa0\x80"', "is not UTF-8 text"),
        ('"\ud800"', "is not UTF-8 text"),
        (b"1" * 401, "holds an integer of 401 digits"),
        (b"[" + b"9" * 100_000 + b"]", "holds an integer of 100000 digits"),
        (b"[" * 65 + b"]" * 65, "nests deeper than 64 levels"),
        (b"[" * 1_000_000, "nests deeper than 64 levels"),
        (b'{"a":' * 1_000_000, "nests deeper than 64 levels"),
    ],
)
def test_what_is_no_strict_json_is_refused_naming_the_field(raw: bytes | str, words: str) -> None:
    error = refusal(raw)
    assert error.code == "invalid"
    assert error.field == "payload"
    assert error.message.startswith("payload")
    assert words in error.message
    assert len(error.message) < 300


def test_a_key_that_stands_twice_is_named() -> None:
    error = refusal(b'{"a": {"kind": 1, "kind": 2}}')
    assert error.field == "kind"
    assert "has the key 'kind' twice" in error.message
    assert refusal(b'{"a": 1, "\\u0061": 2}').field == "a"


def test_a_key_that_stands_twice_is_named_in_storable_text() -> None:
    error = refusal(b'{"\\ud800": 1, "\\ud800": 2}')
    json.dumps(error.as_dict(), ensure_ascii=False).encode()


def test_big_integers_and_long_fractions_are_kept() -> None:
    assert parse_json("9" * 400) == int("9" * 400)
    assert parse_json("0.1") == 0.1
    assert parse_json("12345678901234567890") == 12345678901234567890


def test_escapes_of_what_a_database_cannot_hold_are_read_and_left_to_the_next_check() -> None:
    assert parse_json(b'"\\u0000"') == "\x00"
    assert parse_json(b'"\\ud800"') == "\ud800"
    assert parse_json(b'"\\ud83d\\ude42"') == "🙂"


# Depth.


def test_sixty_four_levels_are_the_most() -> None:
    assert parse_json(dump_json(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    assert not too_deep(dump_json(nested(MAX_DEPTH)).encode())
    assert too_deep(dump_json(nested(MAX_DEPTH + 1)).encode())


@given(good_json, st.integers(0, 70))
def test_depth_is_that_of_the_value_whatever_its_strings_hold(value: object, wrapped: int) -> None:
    for _ in range(wrapped):
        value = {'[{"\\': value} if wrapped % 2 else [value, "]}"]
    assert too_deep(dump_json(value).encode()) == (depth(value) > MAX_DEPTH)


@pytest.mark.parametrize(
    "raw",
    [
        b'"' + b"[" * 100 + b'"',
        b'{"a\\"' + b"[" * 100 + b'": 1}',
        b'"\\\\" ' + b"[]" * 100,
        b'["' + b'\\"[' * 100 + b'"]',
        b'"' + b"[" * 100,
    ],
)
def test_brackets_inside_strings_do_not_count(raw: bytes) -> None:
    assert not too_deep(raw)


def test_a_body_of_quotes_is_judged_in_one_pass() -> None:
    # A scanner that went back at each unclosed string would look at half a million million bytes here.
    assert not too_deep(b'"\\' * (MIB // 2))
    assert not too_deep(b'"' + b"a" * MIB)


# Values for the store.


@given(good_json)
def test_good_values_are_stored_as_they_are(value: object) -> None:
    text = store_json(value, "payload", MIB)
    assert json.loads(text) == value
    assert clean_json(value) == value


@pytest.mark.parametrize(
    ("value", "field", "words"),
    [
        ({"a": ["x", "\x00"]}, "payload.a[1]", "a NUL character"),
        ({"a": {"b": "\udfff"}}, "payload.a.b", "a lone surrogate"),
        ({"\x00": 1}, "payload", "a NUL character"),
        ([math.nan], "payload[0]", "is nan; expected a finite number"),
        ({"x": math.inf}, "payload.x", "is inf; expected a finite number"),
        ({1: "a"}, "payload", "has the key 1; expected text"),
        ({"a": {1, 2}}, "payload.a", "is a set; expected a JSON value"),
        ([b"raw"], "payload[0]", "is a bytes; expected a JSON value"),
        ([object()], "payload[0]", "is a object; expected a JSON value"),
        ({"n": 10**400}, "payload.n", "is too large an integer"),
        (nested(MAX_DEPTH + 2), "payload", "nests deeper than 64 levels"),
    ],
)
def test_values_that_no_database_takes_are_refused_with_their_place(value: object, field: str, words: str) -> None:
    with pytest.raises(Invalid) as refused:
        store_json(value, "payload", MIB)
    assert refused.value.field == field
    assert words in refused.value.message


def test_a_value_that_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.extend([ring, ring])
    with pytest.raises(Invalid, match="nests deeper"):
        check_json(ring, "payload")


@pytest.mark.parametrize(("value", "size"), [("a" * 98, 100), ("é" * 49, 100), ([1] * 49, 99)])
def test_size_is_counted_in_bytes_of_json(value: object, size: int) -> None:
    assert len(store_json(value, "payload", size).encode()) == size
    with pytest.raises(TooLarge) as refused:
        store_json(value, "payload", size - 1)
    assert refused.value.field == "payload"
    assert refused.value.message == f"payload is {size} bytes of JSON; the most is {size - 1}"


@given(wild_json)
def test_cleaned_values_can_always_be_stored(value: object) -> None:
    check_json(clean_json(value), "body")


def test_cleaning_cuts_what_is_too_deep_and_names_what_is_no_number() -> None:
    assert clean_json({"a": [math.nan, math.inf], 1: "\x00"}) == {"a": ["nan", "inf"], "1": "�"}
    assert depth(clean_json(nested(200))) <= MAX_DEPTH + 1


@given(wild_json, st.integers(64, 400))
def test_a_result_is_never_refused_and_always_fits(value: object, limit: int) -> None:  # S8
    text = result_json(value, limit)
    assert len(text.encode()) <= limit
    stored = json.loads(text)
    check_json(stored, "result")


def test_a_result_that_is_too_large_says_so_and_shows_its_beginning() -> None:
    kept = json.loads(result_json({"log": "x" * (2 * MIB)}, MIB))
    assert kept["truncated"] is True
    assert kept["bytes"] == 2 * MIB + len('{"log":""}')
    assert kept["text"].startswith('{"log":"xxx')


@pytest.mark.parametrize("value", [{"a": object}, {("x", 1): 2}, [b"raw"], {1, 2}, "\ud800\x00", math.nan])
def test_a_result_of_any_python_value_is_stored_somehow(value: object) -> None:
    check_json(json.loads(result_json(value, MIB)), "result")


@given(wild_json)
def test_escapes_are_cleaned_in_the_text_as_in_the_value(value: object) -> None:
    def cleaned(item: object) -> object:
        match item:
            case str():
                return clean(item)
            case dict():
                return {clean(key): cleaned(inner) for key, inner in item.items()}
            case list():
                return [cleaned(inner) for inner in item]
        return item

    text = json.dumps(value)
    assert json.dumps(json.loads(clean_escapes(text))) == json.dumps(cleaned(json.loads(text)))


@given(st.lists(st.sampled_from(['"[', "\\\\", '\\"', "[", "{", '"', "]]", "a"]), max_size=60), st.integers(1, 9))
def test_depth_does_not_hang_on_where_a_text_is_parted(pieces: list[str], part: int) -> None:
    string = json.dumps("".join(pieces))
    for levels, deep in ((MAX_DEPTH - 1, False), (MAX_DEPTH, True)):
        raw = f"{'[' * levels}[{string},{string}]{']' * levels}".encode()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("postroom.text._PART_BYTES", part)
            assert too_deep(raw) is deep
