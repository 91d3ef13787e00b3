"""Schemes against published vectors, RFC vectors, rotation, forged requests and hostile headers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.sources.headers import Headers
from postroom.sources.scheme import Hmac, Rejected, Secret, Token, Unsigned, Verified, bearer
from tests.sources.signing import NOW, SECRET, github, github_headers, hex_of, refused

GITHUB = Hmac("x-hub-signature-256", prefix="sha256=")


def secrets(*values: str | bytes) -> tuple[Secret, ...]:
    return tuple(
        Secret(value.encode() if isinstance(value, str) else value, f"s{number}") for number, value in enumerate(values)
    )


def headers(**values: str) -> Headers:
    return Headers([(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in values.items()])


def test_github_vector() -> None:
    given_ = headers(x_hub_signature_256="sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
    assert GITHUB.verify(secrets(SECRET), given_, b"Hello, World!", NOW) == Verified("s0", "hmac-sha256", "2023-11-14")


def test_slack_vector() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    slack = Hmac(
        "x-slack-signature",
        prefix="v0=",
        signed="v0:{timestamp}:{body}",
        timestamp_header="x-slack-request-timestamp",
    )
    given_ = headers(
        x_slack_signature="v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        x_slack_request_timestamp="1531420618",
    )
    got = slack.verify(secrets("8f742231b10e8888abcd99yyyzzz85a5"), given_, body, 1531420618_000)
    assert got == Verified("s0", "hmac-sha256", "1531420618", timed=True)


@pytest.mark.parametrize(
    ("secret", "id_", "stamp", "body", "signature"),
    [
        (
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            b'{"test": 2432232314}',
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        ),
        (
            "plJ3nmyCDGBKInavdOK15jsl",
            "msg_loFOjxBNrRLzqYUf",
            "1731705121",
            b'{"event_type":"ping","data":{"success":true}}',
            "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
        ),
    ],
)
def test_standard_webhooks_vectors(secret: str, id_: str, stamp: str, body: bytes, signature: str) -> None:
    """The scheme can say what Standard Webhooks asks, lists of signatures and rotation among it."""
    standard = Hmac(
        "webhook-signature",
        prefix="v1,",
        encoding="base64",
        signed="{id}.{timestamp}.{body}",
        separator=" ",
        timestamp_header="webhook-timestamp",
        id_header="webhook-id",
    )
    known = secrets(b"another key of that sender", base64.b64decode(secret))
    for sent in (signature, f"v1a,bm90IG91cnM=  v1,AAAA {signature}", f"v1,{'é' * 9} {signature}"):
        given_ = headers(webhook_signature=sent, webhook_timestamp=stamp, webhook_id=id_)
        assert standard.verify(known, given_, body, int(stamp) * 1000) == Verified(
            "s1", "hmac-sha256", stamp, id=id_, timed=True
        )
    lines = Headers(
        [
            (b"Webhook-Signature", b"v1,AAAA"),
            (b"webhook-signature", signature.encode()),
            (b"webhook-timestamp", stamp.encode()),
            (b"webhook-id", id_.encode()),
            (b"webhook-id", b"msg_other"),
        ]
    )
    assert isinstance(standard.verify(known, lines, body, int(stamp) * 1000), Rejected)


@pytest.mark.parametrize(
    ("key", "data", "digest"),
    [
        (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        (b"\xaa" * 20, b"\xdd" * 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
        (
            b"\xaa" * 131,
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        ),
    ],
)
def test_rfc_4231(key: bytes, data: bytes, digest: str) -> None:
    scheme = Hmac("x-signature")
    assert isinstance(scheme.verify(secrets(key), headers(x_signature=digest), data, NOW), Verified)


def test_agrees_with_openssl(tmp_path: Path) -> None:
    body = "déjà vu 👋\r\n".encode() + bytes(range(256))
    file = tmp_path / "body"
    file.write_bytes(body)
    for algorithm in ("sha256", "sha512", "sha384", "sha1"):
        told = subprocess.run(
            ["openssl", "dgst", f"-{algorithm}", "-hmac", "a shared secret", "-r", str(file)],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout.split()[0]
        scheme = Hmac("x-signature", algorithm=algorithm)
        for sent in (told, told.upper()):
            got = scheme.verify(secrets("a shared secret"), headers(x_signature=sent), body, NOW)
            assert isinstance(got, Verified)


# A mutation of any one byte of what is sent


def _mutate(raw: bytes, place: int, change: int) -> bytes:
    place %= len(raw)
    return raw[:place] + bytes([raw[place] ^ change]) + raw[place + 1 :]


@given(st.binary(min_size=1, max_size=200), st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_of_the_body_is_refused(body: bytes, place: int, change: int) -> None:
    assert "no secret" in refused(github(), github_headers(body), _mutate(body, place, change))


@given(st.binary(max_size=50), st.integers(0, 70), st.integers(1, 255))
def test_any_changed_byte_of_the_signature_is_refused(body: bytes, place: int, change: int) -> None:
    sent = _mutate(b"sha256=" + hex_of(body), place, change)
    pairs = [(name, sent if name == b"x-hub-signature-256" else value) for name, value in github_headers(body)]
    assert refused(github(), pairs, body)


@given(
    st.sampled_from(["signature", "timestamp", "id", "body"]),
    st.binary(min_size=1, max_size=50),
    st.integers(0, 10_000),
    st.integers(1, 255),
)
def test_any_changed_byte_of_a_signed_template_is_refused(what: str, body: bytes, place: int, change: int) -> None:
    scheme = Hmac(
        "x-signature",
        encoding="base64",
        signed="{id}.{timestamp}.{body}",
        timestamp_header="x-time",
        id_header="x-id",
    )
    sent = {"timestamp": b"1700000000", "id": b"d-7", "body": body}
    digest = hmac.digest(SECRET.encode(), b".".join((sent["id"], sent["timestamp"], body)), "sha256")
    sent["signature"] = base64.b64encode(digest)

    def verify() -> Verified | Rejected:
        pairs = [(b"x-signature", sent["signature"]), (b"x-time", sent["timestamp"]), (b"x-id", sent["id"])]
        return scheme.verify(secrets(SECRET), Headers(pairs), sent["body"], NOW)

    assert isinstance(verify(), Verified)
    sent[what] = _mutate(sent[what], place, change)
    assert isinstance(verify(), Rejected)


@given(st.lists(st.tuples(st.sampled_from([b"x-hub-signature-256", b"x-github-delivery"]), st.binary(max_size=80))))
def test_hostile_headers_are_refused_and_never_raise(pairs: list[tuple[bytes, bytes]]) -> None:
    assert refused(github(), pairs, b"{}")


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_hostile_timestamps_are_refused_and_never_raise(stamp: bytes, signature: bytes, id_: bytes) -> None:
    scheme = Hmac(
        "x-signature", signed="{timestamp}.{id}.{body}", timestamp_header="x-time", id_header="x-id", separator=","
    )
    lines = Headers([(b"x-signature", signature), (b"x-time", stamp), (b"x-id", id_)])
    assert isinstance(scheme.verify(secrets(SECRET), lines, b"", NOW), Rejected)


@pytest.mark.parametrize(
    "sent",
    ["", "sha256=", "sha256", "garbage", "sha1=" + "0" * 40, "sha256=" + "é" * 64, "sha256=" + "0" * 63, "\x00", "ÿ"],
)
def test_malformed_signatures_are_refused(sent: str) -> None:
    assert refused(github(), github_headers(b"{}", x_hub_signature_256=sent), b"{}")


def test_a_non_ascii_byte_in_the_signature_is_a_refusal() -> None:
    pairs = [(b"x-hub-signature-256", b"sha256=\xff" + hex_of(b"{}")[1:])]
    assert "no secret" in refused(github(), pairs, b"{}")


def test_repeated_lines_count_once_and_differing_ones_are_refused() -> None:
    body = b'{"a":1}'
    pairs = github_headers(body)
    assert not isinstance(github().receive(pairs + pairs, body, NOW), Rejected)
    for name in (b"x-hub-signature-256", b"X-GitHub-Delivery", b"X-GitHub-Event"):
        assert "differ" in refused(github(), [*pairs, (name, b"sha256=other")], body)
    merged = [(name, value + b", " + value if b"signature" in name else value) for name, value in pairs]
    assert refused(github(), merged, body)


# Rotation


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_secret_is_tried_and_the_one_that_matched_is_told(count: int) -> None:
    known = secrets(*(f"secret number {number} of many" for number in range(count)))
    for number, secret in enumerate(known):
        sent = hmac.new(secret.value, b"body", hashlib.sha256).hexdigest()
        got = GITHUB.verify(known, headers(x_hub_signature_256=f"sha256={sent}"), b"body", NOW)
        assert isinstance(got, Verified)
        assert got.label == f"s{number}"


def test_every_signature_in_a_list_is_tried() -> None:
    scheme = Hmac("x-pagerduty-signature", prefix="v1=", separator=",")
    good = hex_of(b"body").decode()
    for sent in (f"v1={good}", f"v1={'0' * 64},v1={good}", f"v2={good}, v1={good}", f",,v1={good},"):
        assert isinstance(
            scheme.verify(secrets("old", SECRET), headers(x_pagerduty_signature=sent), b"body", NOW), Verified
        )
    assert isinstance(
        scheme.verify(secrets(SECRET), headers(x_pagerduty_signature=f"v2={good}"), b"body", NOW), Rejected
    )


def test_no_secret_verifies_nothing() -> None:
    sent = hmac.new(b"", b"body", hashlib.sha256).hexdigest()
    assert isinstance(GITHUB.verify((), headers(x_hub_signature_256=f"sha256={sent}"), b"body", NOW), Rejected)


# The window


@pytest.mark.parametrize("unit", [1, 1000])
@pytest.mark.parametrize(("age_s", "fresh"), [(0, True), (300, True), (-300, True), (301, False), (-301, False)])
def test_the_window_reaches_both_ways(unit: int, age_s: int, fresh: bool) -> None:
    scheme = Hmac("x-signature", signed="{timestamp}.{body}", timestamp_header="x-time")
    stamp = str((NOW // 1000 - age_s) * unit)
    sent = hex_of(stamp.encode() + b".body").decode()
    got = scheme.verify(secrets(SECRET), headers(x_signature=sent, x_time=stamp), b"body", NOW)
    assert isinstance(got, Verified) == fresh


@pytest.mark.parametrize(
    "stamp", ["", "now", "1e9", "+1700000000", "1_700_000_000", "-1", "٣", "9" * 17, "1700000000.5"]
)
def test_what_is_no_whole_number_of_seconds_is_refused(stamp: str) -> None:
    scheme = Hmac("x-signature", signed="{timestamp}.{body}", timestamp_header="x-time")
    raw = stamp.encode()
    lines = Headers([(b"x-signature", hex_of(raw + b".body")), (b"x-time", raw)])
    assert isinstance(scheme.verify(secrets(SECRET), lines, b"body", NOW), Rejected)


def test_two_timestamps_are_refused_and_a_body_cannot_name_the_fields() -> None:
    scheme = Hmac("x-signature", signed="{timestamp}.{body}", timestamp_header="x-time")
    body = b"{timestamp}{body}{id}"
    sent = hex_of(b"1700000000." + body)
    lines = [(b"x-signature", sent), (b"x-time", b"1700000000")]
    assert isinstance(scheme.verify(secrets(SECRET), Headers(lines), body, NOW), Verified)
    assert isinstance(
        scheme.verify(secrets(SECRET), Headers([*lines, (b"x-time", b"1700000001")]), body, NOW), Rejected
    )


# Tokens


@pytest.mark.parametrize(
    ("sent", "good"),
    [
        (f"Bearer {SECRET}", True),
        (f"bearer  {SECRET} ", True),
        (f"Bearer {SECRET}x", False),
        (SECRET, False),
        ("Bearer ", False),
        ("Bearer", False),
        ("", False),
        (f"Basic {SECRET}", False),
        ("Bearer é", False),
    ],
)
def test_bearer(sent: str, good: bool) -> None:
    got = bearer().verify(secrets("other", SECRET), headers(authorization=sent), b"", NOW)
    assert got == (Verified("s1", "bearer", "2023-11-14", sealed=False) if good else got)
    assert isinstance(got, Verified) == good


def test_token_header() -> None:
    scheme = Token("x-gitlab-token")
    assert scheme.names == ("x-gitlab-token",)
    assert isinstance(scheme.verify(secrets(SECRET), headers(x_gitlab_token=SECRET), b"", NOW), Verified)
    both = Headers([(b"x-gitlab-token", SECRET.encode()), (b"x-gitlab-token", b"other")])
    assert isinstance(scheme.verify(secrets(SECRET), both, b"", NOW), Rejected)
    assert isinstance(scheme.verify(secrets(SECRET), headers(), b"", NOW), Rejected)


def test_unsigned_says_so() -> None:
    assert Unsigned().verify((), headers(), b"", NOW) == Verified("nobody", "none", "2023-11-14", sealed=False)


def test_a_secret_is_not_in_a_repr() -> None:
    assert SECRET not in repr(secrets(SECRET))
    assert SECRET not in repr(github())
