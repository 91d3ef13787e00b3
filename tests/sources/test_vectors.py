"""Each sender's signature against vectors from elsewhere: published ones, and ones made with the openssl command and kept."""

from __future__ import annotations

import hashlib

import pytest

from tests.sources.signing import NOW, Pairs, accepted, one, refused

BODY = '{"action":"create","type":"Issue","data":{"title":"déjà vu 👋"},"webhookTimestamp":1700000000000}'.encode()
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
FORGE = {"secret": "the-forge-secret-0123456789"}
FORGE_MAC = b"e0ac233de70199b42d340e2fcc1f0fe4d40c6de98e9ed801d37ef7c5755533da"


def lines(**values: str | bytes) -> Pairs:
    """Header lines; an underscore stands for a hyphen."""
    return [
        (name.replace("_", "-").encode(), value.encode() if isinstance(value, str) else value)
        for name, value in values.items()
    ]


PUBLISHED = [
    pytest.param(
        "github",
        "It's a Secret to Everybody",
        lines(x_hub_signature_256="sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"),
        b"Hello, World!",
        NOW,
        id="github",
    ),
    pytest.param(
        "slack",
        "8f742231b10e8888abcd99yyyzzz85a5",
        lines(
            content_type="application/x-www-form-urlencoded",
            x_slack_signature="v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
            x_slack_request_timestamp="1531420618",
        ),
        SLACK_BODY,
        1531420618_000,
        id="slack",
    ),
    pytest.param(
        "standard",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        lines(
            webhook_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
            webhook_timestamp="1614265330",
            webhook_signature="v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        ),
        b'{"test": 2432232314}',
        1614265330_000,
        id="standard-webhooks",
    ),
    pytest.param(
        "standard",
        "whsec_plJ3nmyCDGBKInavdOK15jsl",
        lines(
            svix_id="msg_loFOjxBNrRLzqYUf",
            svix_timestamp="1731705121",
            svix_signature="v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
        ),
        b'{"event_type":"ping","data":{"success":true}}',
        1731705121_000,
        id="svix",
    ),
]

# openssl dgst -sha256 -hmac SECRET -r FILE; where a time or id is signed, it was put before the file with a full stop.
FROZEN = [
    pytest.param("gitea", FORGE["secret"], lines(x_gitea_signature=FORGE_MAC), id="gitea"),
    pytest.param("forgejo", FORGE["secret"], lines(x_forgejo_signature=FORGE_MAC), id="forgejo"),
    pytest.param("forgejo", FORGE["secret"], lines(x_gitea_signature=FORGE_MAC), id="older-forgejo"),
    pytest.param(
        "linear",
        "linear_wh_0123456789abcdef",
        lines(linear_signature="bc0bbc842d18d9869c2d77106f6fb1d73c2022fb31621873e5dccd63c783c3ed"),
        id="linear",
    ),
    pytest.param(
        "sentry",
        "sentry-client-secret-0123456789abcdef",
        lines(sentry_hook_signature="b66a8b34f58bd17fafa77425eccaf5e0ce358a01b4b20c8eebe030dc72495601"),
        id="sentry",
    ),
    pytest.param(
        "pagerduty",
        "pagerduty-secret-0123456789abcdef",
        lines(
            x_pagerduty_signature=f"v1={'0' * 64},v1=444afc8be4ed4d5728e5ae0cf2df783f4bdf16eb4e44129057d750d069f0d93d"
        ),
        id="pagerduty",
    ),
    pytest.param(
        "stripe",
        "whsec_c3RyaXBlIGtleXMgYXJlIHRha2VuIGxpdGVyYWxseQ",
        lines(
            stripe_signature="t=1700000000,v1=fcfc156e595dbc19e644e40db18c16a647ddee9c0aecb2ac4a02c2c005f1a81d,v0=00"
        ),
        id="stripe",
    ),
    pytest.param(
        "gitlab",
        "whsec_R0lUTEFCLXNpZ25pbmctdG9rZW4tb2YtMzItYnl0ZXMhIQ==",
        lines(
            webhook_id="f5e5f430-f57b-4e6e-9fac-d9128cd7232f",
            webhook_timestamp="1700000000",
            webhook_signature="v1,jVR47Ewg4ytcCfCAB2I2SyLkvK/XBH+UFE2i96oGdh0=",
        ),
        id="gitlab",
    ),
]


@pytest.mark.parametrize(("provider", "secret", "headers", "body", "now_ms"), PUBLISHED)
def test_published_vectors(provider: str, secret: str, headers: Pairs, body: bytes, now_ms: int) -> None:
    source = one({"name": "s", "provider": provider, "secrets": ["anotherSecretOfThatSender0123456", secret]})
    got = accepted(source, headers, body, now_ms)
    assert got.verification == "hmac-sha256:secrets[1]"
    assert got.digest == hashlib.sha256(body).hexdigest()
    assert refused(source, headers, body + b" ", now_ms)


@pytest.mark.parametrize(("provider", "secret", "headers"), FROZEN)
def test_vectors_made_with_openssl(provider: str, secret: str, headers: Pairs) -> None:
    source = one({"name": "s", "provider": provider, "secrets": [secret]})
    assert accepted(source, headers, BODY).verification == "hmac-sha256:secrets[0]"
    assert refused(source, headers, BODY[:-1] + b"\n")


def test_a_template_with_sha512_and_base64() -> None:
    table = {
        "name": "s",
        "provider": "generic",
        "secrets": ["a-generic-secret-0123456789"],
        "algorithm": "sha512",
        "encoding": "base64",
        "signed": "{id}.{timestamp}.{body}",
        "id_header": "X-Delivery",
        "timestamp_header": "X-Time",
    }
    mac = "Zo6VA5zocUNQOg5LDolsR1ofqhz/18MyYShA2wjwkLax9Wr0P6hVMnGL6MkWcABcIJ5qwfMVS/jVJs0iOMt1Iw=="
    headers = lines(x_signature=mac, x_delivery="d-7", x_time="1700000000")
    got = accepted(one(table), headers, BODY)
    assert (got.verification, got.delivery_key, got.signed_key) == ("hmac-sha512:secrets[0]", "d-7", True)
