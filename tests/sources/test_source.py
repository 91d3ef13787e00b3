"""Sources: what becomes of bodies and headers once a request is proved, however odd they are."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.event import AS_IT_CAME
from postroom.text import check_json
from tests.sources.signing import NOW, PAYLOADS, SECRET, Pairs, accepted, github, github_headers, hex_of, one, refused

GENERIC = {"name": "ci", "provider": "generic", "secrets": [SECRET], "queue": "inbox"}


def signed(body: bytes, **more: str) -> Pairs:
    pairs = [(b"X-Signature", hex_of(body))]
    return pairs + [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in more.items()]


def test_a_delivery_of_githubs() -> None:
    body = (PAYLOADS / "issues.opened.json").read_bytes()
    got = accepted(github(), github_headers(body, id_="72d3162e-cc78-11e3-81ab-4c9367dc0958"), body)
    assert (got.source, got.provider, got.kind, got.action) == ("gh", "github", "issues", "opened")
    assert got.title == "Codertocat/Hello-World#1: Spelling error in the README file"
    assert got.delivery_key == "72d3162e-cc78-11e3-81ab-4c9367dc0958"
    assert got.verification == "hmac-sha256:secrets[0]"
    assert got.body is body
    assert got.data == json.loads(body)
    assert got.facts.repository == "Codertocat/Hello-World"
    assert got.facts.number == 1
    assert got.facts.author == "Codertocat"
    assert got.facts.labels == ("bug",)
    assert got.facts.url == "https://github.com/Codertocat/Hello-World/issues/1"
    assert got.unparsed is None
    assert got.ignored is None


def test_ping_is_a_handshake() -> None:
    body = (PAYLOADS / "ping.json").read_bytes()
    got = accepted(github(), github_headers(body, "ping"), body)
    assert got.ignored is not None
    assert got.unparsed is None


# Bodies that others fell over


@pytest.mark.parametrize(
    "body",
    [
        b'{"esc":"\\u001B[0m","action":"opened"}',
        '{"action":"opened","title":"👩‍👩‍👧 שלום"}'.encode(),
        b'{ "action" : "opened" ,\r\n "b":1.0 }\n',
        b'{"z":1,"action":"opened","a":2}',
    ],
)
def test_only_the_received_bytes_are_hashed(body: bytes) -> None:
    got = accepted(github(), github_headers(body), body)
    assert got.action == "opened"
    assert got.body == body


def test_nothing_is_parsed_before_it_is_proved() -> None:
    reason = refused(github(), [(b"x-hub-signature-256", b"sha256=" + b"0" * 64)], b"{" * 100_000)
    assert "no secret" in reason


def test_a_form_is_proved_raw_and_read_from_its_payload() -> None:
    value = {"action": "opened", "issue": {"number": 7, "title": "a & b = c"}}
    body = ("payload=" + quote_plus(json.dumps(value))).encode()
    form = {"content_type": "application/x-www-form-urlencoded; charset=utf-8"}
    got = accepted(github(), github_headers(body, **form), body)
    assert got.data == value
    assert got.title == "github#7: a & b = c"
    for bad in (b"payload=%7B%7D&payload=%7B%7D", b"other=1", b"payload=%7B", b"payload=%ff", b"a=1&" * 2000 + b"a=1"):
        got = accepted(github(), github_headers(bad, **form), bad)
        assert got.unparsed
        assert got.data is None


def test_a_byte_order_mark_is_proved_and_then_passed_over() -> None:
    body = b'\xef\xbb\xbf{"action":"opened"}'
    assert accepted(github(), github_headers(body), body).action == "opened"
    form = b"\xef\xbb\xbfpayload=%7B%22action%22%3A%22opened%22%7D"
    headers = github_headers(form, content_type="application/x-www-form-urlencoded")
    assert accepted(github(), headers, form).action == "opened"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "empty"),
        (b" \r\n", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        ('{"a":1}'.encode("utf-16"), "UTF-8"),
        ('{"a":1}'.encode("utf-16-le"), "JSON"),
        ('{"a":"é"}'.encode("latin-1"), "UTF-8"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":1e999}', "finite"),
        (b'{"a":1,"a":2}', "twice"),
        (b"[" * 65 + b"]" * 65, "deeper"),
        (b'{"a":' * 100_000, "deeper"),
        (b'{"a":', "JSON"),
        (b"hello", "JSON"),
        (b"9" * 5000, "digits"),
        (b"[1,2]", "object"),
        (b'"text"', "object"),
        (b"null", "object"),
    ],
)
def test_what_cannot_be_read_is_kept_and_says_why(body: bytes, why: str) -> None:
    got = accepted(github(), github_headers(body), body)
    assert got.unparsed is not None
    assert why in got.unparsed
    assert got.body == body
    assert got.kind == "issues"
    check_json([got.unparsed, got.title, got.data], "delivery")


@pytest.mark.parametrize("charset", ["utf-16", "no-such-charset", "latin-1", '"', "\xff"])
def test_the_charset_that_is_claimed_changes_nothing(charset: str) -> None:
    body = '{"action":"opened","t":"é"}'.encode()
    got = accepted(github(), github_headers(body, content_type=f"application/json; charset={charset}"), body)
    assert got.data == {"action": "opened", "t": "é"}


def test_nul_and_lone_surrogates_are_cleaned_in_the_copy_alone() -> None:
    body = b'{"action":"a\\u0000b","\\ud800":["\\udc00x"],"issue":{"number":1,"title":"t\\u0000\\u001b[31m"}}'
    got = accepted(github(), github_headers(body), body)
    assert got.body == body
    assert got.data == {"action": "a�b", "�": ["�x"], "issue": {"number": 1, "title": "t�\x1b[31m"}}
    assert got.title == "github#1: t��[31m"
    check_json([got.data, got.title, got.action, got.facts.words()], "delivery")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = ["action", "repository", "sender", "issue", "pull_request", "comment", "check_run", "labels", "label", "ref"]


@given(
    st.sampled_from(["issues", "check_run", "push", "status", "ping", "", "é\x00"]),
    st.dictionaries(st.sampled_from(KEYS), JSON),
)
def test_any_json_object_can_be_read(kind: str, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    got = accepted(github(), github_headers(body, kind), body)
    assert got.kind
    assert got.title
    assert len(got.title) <= 500
    check_json([got.data, got.title, got.kind, got.action, got.delivery_key, got.facts.words(), list(got.headers)], "d")


@given(st.binary(max_size=200), st.sampled_from(["application/json", "application/x-www-form-urlencoded", "", "é"]))
def test_any_bytes_can_be_read(body: bytes, content_type: str) -> None:
    for source, headers in (
        (github(), github_headers(body, content_type=content_type)),
        (one(GENERIC), signed(body, content_type=content_type)),
    ):
        got = accepted(source, headers, body)
        assert (got.data is None) or got.unparsed is None or "object" in got.unparsed
        check_json([got.data, got.title, got.unparsed, got.facts.words()], "delivery")


BODIES = st.one_of(
    st.binary(max_size=50),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3).map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"payload=%7B%22a%22%3A1%7D", b"a=1&b=", b'{"a":"\\u0000"}', b'{"a":"\xc3\xa9"}', b"[1e2]"]),
)


@given(
    BODIES,
    st.sampled_from([b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf", b" \r\n"]),
    st.sampled_from(["application/json", "application/x-www-form-urlencoded", "", "text/plain; charset=utf-16"]),
    st.sampled_from(["github", "generic"]),
)
def test_what_was_read_once_is_read_the_same_from_what_is_stored(
    body: bytes, before: bytes, content_type: str, sender: str
) -> None:
    whole = before + body
    if sender == "github":
        got = accepted(github(), github_headers(whole, content_type=content_type), whole)
    else:
        got = accepted(one(GENERIC), signed(whole, content_type=content_type), whole)
    if got.body_json is not None:
        # A database gives the body as text.
        text = got.body.decode("utf-8") if got.body_json == AS_IT_CAME else got.body_json
        assert json.loads(text) == got.data


def test_huge_texts_are_cut() -> None:
    body = json.dumps({"action": "x" * 10_000, "issue": {"number": 1, "title": "é" * 100_000}}).encode()
    got = accepted(github(), github_headers(body, "k" * 5000), body)
    assert len(got.title) == 500
    assert got.action is not None
    assert len(got.action) <= 128
    assert len(got.kind) <= 128
    assert got.facts.title is not None
    assert len(got.facts.title.encode()) <= 2048


# Keys


def test_the_key_is_the_delivery_id_and_long_or_odd_ids_stay_apart() -> None:
    def key(id_: str) -> str:
        return accepted(github(), github_headers(b"{}", id_=id_), b"{}").delivery_key

    odd = ["a" * 256, "a" * 257, "a" * 258, "a\x01", "a\x02", "a\ufffd".encode().decode("latin-1"), "é", "a b"]
    keys = [key(id_) for id_ in odd]
    assert len(set(keys)) == len(odd)
    assert all(0 < len(found.encode()) <= 256 for found in keys)
    check_json(keys, "keys")
    assert key("  d1\t") == "d1"


def test_without_an_id_equal_bodies_are_one_event_for_a_day_only() -> None:
    source = one(GENERIC)
    day = 24 * 3600 * 1000
    first, again, later = (accepted(source, signed(b"{}"), b"{}", NOW + add).delivery_key for add in (0, 1000, day))
    assert first == again
    assert first != later
    assert first.startswith("sha256:44136fa3")
    assert accepted(github(), [*github_headers(b"{}", id_="")], b"{}").delivery_key == first


def test_without_an_id_the_signed_time_tells_events_apart() -> None:
    source = one({**GENERIC, "signed": "{timestamp}.{body}", "timestamp_header": "X-Time"})
    keys = set()
    for stamp in (b"1700000000", b"1700000001", b"1700000000"):
        headers = [(b"x-signature", hex_of(stamp + b".{}")), (b"x-time", stamp)]
        keys.add(accepted(source, headers, b"{}").delivery_key)
    assert len(keys) == 2


def test_generic_ids_come_from_the_named_header_then_from_the_usual_ones() -> None:
    source = one({**GENERIC, "id_header": "X-Delivery"})
    usual = {"idempotency_key": "i1", "x_idempotency_key": "i2"}
    assert accepted(source, signed(b"{}", x_delivery="d1", **usual), b"{}").delivery_key == "d1"
    assert accepted(source, signed(b"{}", **usual), b"{}").delivery_key == "i1"
    assert accepted(source, signed(b"{}", x_idempotency_key="i2"), b"{}").delivery_key == "i2"
    twice = [*signed(b"{}", x_delivery="d1"), (b"X-DELIVERY", b"d2")]
    assert "x-delivery" in refused(source, twice, b"{}")


# Generic bodies


def test_generic_reads_plain_names_and_any_value() -> None:
    body = json.dumps(
        {
            "kind": "deploy",
            "action": "finished",
            "repository": "acme/shop",
            "number": 4,
            "title": "Deploy 4",
            "author": "ann",
            "labels": ["prod", 1],
            "branch": "main",
            "status": "failure",
        }
    ).encode()
    got = accepted(one(GENERIC), signed(body), body)
    assert (got.kind, got.action, got.title) == ("deploy", "finished", "acme/shop#4: Deploy 4")
    assert (got.facts.author, got.facts.labels, got.facts.outcome) == ("ann", ("prod",), "failure")
    assert accepted(one(GENERIC), signed(b"[1]", x_event="nightly"), b"[1]").title == "nightly"
    assert accepted(one(GENERIC), signed(b"3"), b"3").unparsed is None


def test_generic_takes_json_that_curl_calls_a_form_and_forms() -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    assert accepted(one(GENERIC), signed(b'{"a":1}', **form), b'{"a":1}').data == {"a": 1}
    body = b"kind=build&title=It+broke&x="
    got = accepted(one(GENERIC), signed(body, **form), body)
    assert got.data == {"kind": "build", "title": "It broke", "x": ""}
    assert got.kind == "build"


# Redaction


def test_headers_are_kept_without_their_secrets() -> None:
    source = one({**GENERIC, "scheme": "token", "header": "X-Pass"})
    names = [
        "X-Pass",
        "Authorization",
        "Proxy-Authorization",
        "Cookie",
        "X-Gitlab-Token",
        "X-Hub-Signature-256",
        "X-Api-Key",
        "X-My-Secret",
    ]
    headers = [(name.encode(), SECRET.encode() if name == "X-Pass" else b"hush hush") for name in names]
    headers += [(b"User-Agent", b"curl\x01\xff"), (b"Referer", b"http://x/?t=" + SECRET.encode())]
    got = dict(accepted(source, headers, b"{}").headers)
    assert {name for name, value in got.items() if value == "[redacted]"} == {*map(str.lower, names), "referer"}
    assert got["user-agent"] == "curl\x01ÿ"
    assert SECRET not in str(got)
    check_json(list(got.items()), "headers")


def test_many_and_long_headers_are_cut() -> None:
    body = b"{}"
    headers = [*github_headers(body), *((f"x-{number}".encode(), b"v" * 9000) for number in range(500))]
    kept = accepted(github(), headers, body).headers
    assert len(kept) == 100
    assert all(len(value.encode()) <= 1024 for _, value in kept)
