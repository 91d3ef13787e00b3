"""Every sender alike: what it signs cannot be changed, what is hostile is refused, what is odd is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import Invalid
from postroom.event import EventState
from postroom.services.rules import decide
from postroom.sources.samples import kinds, sample
from postroom.sources.scheme import Rejected, Secret
from postroom.sources.table import SENDERS
from postroom.text import check_json
from tests.sources.signing import (
    NOW,
    SECRET,
    Pairs,
    accepted,
    one,
    refused,
    secret_for,
    sent,
    source_of,
    with_header,
)

PROVIDERS = tuple(SENDERS)
SAMPLES = tuple((provider, kind) for provider in PROVIDERS for kind in kinds(provider))
SOURCES = {provider: source_of(provider) for provider in PROVIDERS}
PROOF = {
    "github": ("x-hub-signature-256",),
    "gitlab": ("webhook-signature", "webhook-timestamp", "webhook-id"),
    "gitea": ("x-gitea-signature",),
    "forgejo": ("x-forgejo-signature",),
    "slack": ("x-slack-signature", "x-slack-request-timestamp"),
    "stripe": ("stripe-signature",),
    "linear": ("linear-signature",),
    "sentry": ("sentry-hook-signature",),
    "pagerduty": ("x-pagerduty-signature",),
    "standard": ("webhook-signature", "webhook-timestamp", "webhook-id"),
    "generic": ("x-signature",),
}
TIMED = ("gitlab", "slack", "stripe", "linear", "standard")


def changed(raw: bytes, place: int, change: int) -> bytes:
    place %= len(raw)
    return raw[:place] + bytes([raw[place] ^ change]) + raw[place + 1 :]


def value_of(pairs: Pairs, name: str) -> bytes:
    return next(value for key, value in pairs if key == name.encode())


def signed(provider: str, body: bytes, **more: str) -> Pairs:
    """A body of one's own, signed as the provider signs."""
    source = SOURCES[provider]
    signing = source.sender.scheme.sign(source.secrets[0], body, NOW, "d-1")
    lines = dict(signing.headers) | {name.replace("_", "-"): value for name, value in more.items()}
    return [(name.encode(), value.encode("latin-1")) for name, value in lines.items()]


@pytest.mark.parametrize(("provider", "kind"), SAMPLES)
def test_a_sample_is_accepted_and_read(provider: str, kind: str) -> None:
    pairs, body = sent(provider, kind)
    got = accepted(SOURCES[provider], pairs, body)
    assert got.unparsed is None
    assert got.verification == "hmac-sha256:secrets[0]"
    assert ".".join(part for part in (got.kind, got.action) if part).startswith(kind.split(".", maxsplit=1)[0])
    assert got.delivery_key
    check_json([got.data, got.title, got.kind, got.action, got.facts.words(), list(got.headers)], "delivery")
    assert secret_for(provider) not in str(got.headers)
    state = EventState.IGNORED if got.ignored else EventState.ROUTED
    assert decide(got, (), "inbox").state == state


@given(st.sampled_from(SAMPLES), st.integers(0, 100_000), st.integers(1, 255))
def test_a_changed_byte_of_the_body_is_refused(which: tuple[str, str], place: int, change: int) -> None:
    pairs, body = sent(*which)
    assert refused(SOURCES[which[0]], pairs, changed(body, place, change))


@given(st.sampled_from(SAMPLES), st.integers(0, 10), st.integers(0, 1000), st.integers(1, 255))
def test_a_changed_byte_of_signature_time_or_id_is_refused(
    which: tuple[str, str], header: int, place: int, change: int
) -> None:
    pairs, body = sent(*which)
    name = PROOF[which[0]][header % len(PROOF[which[0]])]
    assert refused(SOURCES[which[0]], with_header(pairs, name, changed(value_of(pairs, name), place, change)), body)


@given(st.sampled_from(PROVIDERS), st.data())
def test_hostile_headers_are_refused_and_never_raise(provider: str, data: st.DataObject) -> None:
    names = [*PROOF[provider], *SOURCES[provider].sender.id_headers, "content-type", "authorization", "x-gitlab-token"]
    pairs = data.draw(st.lists(st.tuples(st.sampled_from([name.encode() for name in names]), st.binary(max_size=60))))
    assert refused(SOURCES[provider], pairs, b"{}")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "value", [b"", b"\xff" * 64, "é".encode() * 40, b"v1,a,b", b"v1,", b"=,=,=", b"t=,v1=", b" , "]
)
def test_a_malformed_signature_is_a_refusal(provider: str, value: bytes) -> None:
    pairs, body = sent(provider)
    for name in PROOF[provider]:
        assert refused(SOURCES[provider], with_header(pairs, name, value), body)
        assert refused(SOURCES[provider], with_header(pairs, name, None), body)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_repeated_lines_that_differ_are_refused_and_equal_ones_count_once(provider: str) -> None:
    pairs, body = sent(provider)
    assert accepted(SOURCES[provider], pairs + pairs, body)
    for name in (*PROOF[provider][1:], *SOURCES[provider].sender.id_headers[:1]):
        assert refused(SOURCES[provider], [*pairs, (name.encode(), b"1700000001")], body)


def test_lines_that_a_proxy_has_joined_are_a_list_still() -> None:
    for provider, header, other in (
        ("standard", "webhook-signature", b"v1,AAAA"),
        ("gitlab", "webhook-signature", b"v1,AAAA"),
        ("stripe", "stripe-signature", b"v1=00"),
        ("pagerduty", "x-pagerduty-signature", b"v1=00"),
    ):
        pairs, body = sent(provider)
        good = value_of(pairs, header)
        for joined in (good + b", " + other, other + b", " + good, b", ".join([other, good, other])):
            assert accepted(SOURCES[provider], with_header(pairs, header, joined), body)
        assert refused(SOURCES[provider], with_header(pairs, header, other + b", " + other), body)


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name not in {"standard", "gitlab", "pagerduty"}])
def test_every_secret_is_tried(provider: str) -> None:
    pairs, body = sent(provider)
    source = source_of(provider, secrets=["the secret before this one", SECRET, "the secret after this one"])
    assert accepted(source, pairs, body).verification == "hmac-sha256:secrets[1]"
    assert refused(source_of(provider, secrets=["the secret before this one"]), pairs, body)


@pytest.mark.parametrize(
    ("provider", "header", "join"),
    [
        ("standard", "webhook-signature", b" "),
        ("gitlab", "webhook-signature", b" "),
        ("pagerduty", "x-pagerduty-signature", b","),
        ("stripe", "stripe-signature", b","),
    ],
)
def test_every_signature_of_a_list_is_tried(provider: str, header: str, join: bytes) -> None:
    pairs, body = sent(provider)
    good = value_of(pairs, header)
    bad = {"stripe": b"v1=00,v0=11", "pagerduty": b"v1=00,v2=11"}.get(provider, b"v1,AAAA v1a,AAAA v2,AAAA  junk")
    for line in (bad + join + good, good + join + bad):
        assert accepted(SOURCES[provider], with_header(pairs, header, line), body)
    assert accepted(SOURCES[provider], [(header.encode(), bad), *pairs], body)
    assert refused(SOURCES[provider], with_header(pairs, header, bad), body)


@pytest.mark.parametrize("provider", TIMED)
@pytest.mark.parametrize(("age_s", "good"), [(0, True), (299, True), (-299, True), (302, False), (-302, False)])
def test_the_window_reaches_both_ways(provider: str, age_s: int, good: bool) -> None:
    pairs, body = sent(provider)
    got = SOURCES[provider].receive(pairs, body, NOW + age_s * 1000)
    assert isinstance(got, Rejected) != good
    wide = source_of(provider, tolerance_s=900)
    assert not isinstance(wide.receive(pairs, body, NOW + age_s * 1000), Rejected)


# Bodies and headers that others fell over; every one of them is genuine and must be kept as it came.


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        ('{"a":1}'.encode("utf-16"), "UTF-8"),
        (b'{"a":"\xe9"}', "UTF-8"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":1e999}', "finite"),
        (b'{"a":1,"a":2}', "twice"),
        (b"[" * 100_000, "deeper"),
        (b'{"a":', "JSON"),
    ],
)
def test_what_is_signed_but_unreadable_is_kept(provider: str, body: bytes, why: str) -> None:
    got = accepted(SOURCES[provider], signed(provider, body), body)
    assert got.unparsed is not None
    assert why in got.unparsed
    assert got.body == body
    assert got.answer is None
    check_json([got.unparsed, got.title, got.kind], "delivery")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"type":"t","event":{"event_type":"a.b"},"x":"\\u001B[0m"}',
        '{"type":"t","event":{"event_type":"a.b"},"x":"👩‍👩‍👧 שלום"}'.encode(),
        b'{ "type" : "t" ,\r\n"event":{"event_type":"a.b"}, "n":12345678901234567890 }\n',
        b'{"type":"t","event":{"event_type":"a.b"},"x":"a\\u0000b\\ud800"}',
    ],
)
def test_only_the_received_bytes_count(provider: str, body: bytes) -> None:
    for charset in ("", "; charset=utf-16", "; charset=no-such", "; charset=\xff"):
        got = accepted(SOURCES[provider], signed(provider, body, content_type=f"application/json{charset}"), body)
        assert got.unparsed is None
        assert got.body == body
        check_json(got.data, "data")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("body", [b"[1,2]", b'"text"', b"null", b"3"])
def test_what_is_no_object_raises_nowhere(provider: str, body: bytes) -> None:
    got = accepted(SOURCES[provider], signed(provider, body), body)
    assert (got.unparsed is None) == (provider in {"generic", "standard"})


def test_nothing_is_parsed_before_it_is_proved() -> None:
    for provider in PROVIDERS:
        pairs, _ = sent(provider)
        assert refused(SOURCES[provider], pairs, b"{" * 100_000)


KEYS = ["type", "action", "event", "data", "object_kind", "object_attributes", "changes", "labels", "assignees", "user"]
KEYS += ["reviewers", "merge_request", "issue", "commits", "project", "updatedFrom", "actor", "notification", "service"]
KEYS += [
    "event_type",
    "channel",
    "message",
    "actions",
    "view",
    "command",
    "payload",
    "challenge",
    "review",
    "id",
    "text",
]
KEYS += [
    "pull_request",
    "comment",
    "repository",
    "sender",
    "state",
    "team",
    "title",
    "number",
    "object",
    "status",
    "url",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=20,
)


@given(st.sampled_from(PROVIDERS), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=10), st.text(max_size=9))
def test_any_object_can_be_read_and_decided(provider: str, value: dict[str, Any], kind: str) -> None:
    for name in ("object_kind", "type", "event_type"):
        if name in value and value[name] is None:
            value[name] = kind
    body = json.dumps(value).encode()
    pairs = signed(provider, body, x_gitlab_event="Issue Hook", x_github_event="issues", x_gitea_event="issues")
    pairs = [pair for pair in pairs if provider != "github" or b"gitea" not in pair[0]]
    got = accepted(SOURCES[provider], pairs, body)
    assert len(got.title) <= 500
    check_json([got.data, got.title, got.kind, got.action, got.delivery_key, got.answer, got.facts.words()], "delivery")
    preset = None if provider in {"standard", "generic", "stripe"} else provider
    assert decide(got, source_of(provider, preset=preset).rules, "inbox").state != EventState.HELD


# Keys


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_retry_has_the_key_of_the_first_and_another_event_has_another(provider: str) -> None:
    def key(id_: str, now_ms: int) -> str:
        pairs, body = sent(provider, id_=id_, now_ms=now_ms)
        return accepted(SOURCES[provider], pairs, body, now_ms).delivery_key

    assert key("d-1", NOW) == key("d-1", NOW + 60_000)
    assert key("d-1", NOW) != key("d-2", NOW)


@pytest.mark.parametrize(
    ("provider", "signed_key"),
    [
        ("github", False),
        ("gitea", False),
        ("linear", False),
        ("sentry", False),
        ("generic", False),
        ("gitlab", True),
        ("slack", True),
        ("stripe", True),
        ("pagerduty", True),
        ("standard", True),
    ],
)
def test_a_key_that_anybody_could_change_is_told_apart(provider: str, signed_key: bool) -> None:
    pairs, body = sent(provider)
    assert accepted(SOURCES[provider], pairs, body).signed_key == signed_key
    header = SOURCES[provider].sender.id_headers[:1]
    if header and not signed_key:
        forged = accepted(SOURCES[provider], with_header(pairs, header[0], b"forged"), body)
        assert (forged.delivery_key, forged.signed_key) == ("forged", False)
        assert forged.digest == accepted(SOURCES[provider], pairs, body).digest


def test_without_an_id_the_key_is_a_digest_and_never_missing() -> None:
    for provider in PROVIDERS:
        if provider not in {"standard", "gitlab"}:
            body = b'{"type":"t"}'
            got = accepted(SOURCES[provider], signed(provider, body), body)
            assert got.delivery_key.startswith("sha256:"), provider
            assert got.signed_key == (provider in {"slack", "stripe"})


# Samples


def test_a_sample_of_an_insecure_source_bears_no_proof() -> None:
    source = one({"name": "ci", "provider": "linear", "insecure": True})
    made = sample("linear", None, NOW, None, "d-1", source.sender)
    assert "linear-signature" not in dict(made.headers)
    assert accepted(source, [(key.encode(), value.encode()) for key, value in made.headers], made.body).kind == "Issue"


def test_a_sample_follows_the_options_of_its_source() -> None:
    table = {
        "name": "ci",
        "provider": "generic",
        "secrets": [SECRET],
        "header": "X-Sig",
        "prefix": "v1=",
        "algorithm": "sha512",
        "signed": "{timestamp}:{body}",
        "timestamp_header": "X-Time",
        "id_header": "X-Id",
    }
    source = one(table)
    made = sample("generic", "build", NOW, source.secrets[0], "d-9", source.sender)
    pairs = [(key.encode(), value.encode()) for key, value in made.headers]
    assert accepted(source, pairs, made.body).delivery_key == "d-9"


def test_a_sample_in_clear() -> None:
    for table in ({"scheme": "bearer"}, {"scheme": "token", "header": "X-Tok"}, {"query_token": "token"}):
        source = one({"name": "ci", "provider": "generic", "secrets": [SECRET], **table})
        made = sample("generic", None, NOW, source.secrets[0], "d-9", source.sender)
        pairs = [(key.encode(), value.encode()) for key, value in made.headers]
        assert not isinstance(source.receive(pairs, made.body, NOW, made.query.encode()), Rejected)


def test_what_there_is_no_sample_of_is_named() -> None:
    with pytest.raises(Invalid, match=r"issues\.opened"):
        sample("github", "nope", NOW, Secret(b"x", "x"), "d")
    with pytest.raises(Invalid, match="github, gitlab"):
        kinds("nope")
