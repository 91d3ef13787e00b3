"""The vendors' own libraries: what we sign they accept, and what they sign we accept, over ten thousand cases."""

from __future__ import annotations

import base64
import random
from datetime import UTC, datetime

from slack_sdk.signature import Clock, SignatureVerifier
from standardwebhooks import Webhook

from postroom.sources.headers import Headers
from postroom.sources.options import Options
from postroom.sources.scheme import Secret, Verified
from postroom.sources.slack import make as make_slack
from postroom.sources.standard import PREFIX, Standard, key_of

CASES = 5000


class At(Clock):
    """A clock that stands."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def now(self) -> float:
        """The time it stands at."""
        return float(self.seconds)


def test_standard_webhooks_agrees() -> None:
    dice = random.Random(3)
    now = int(datetime.now(UTC).timestamp())
    scheme = Standard()
    for number in range(CASES):
        secret = PREFIX + drawn(dice)
        key = Secret(secret.encode(), "s", key_of(secret))
        body = "".join(
            chr(dice.choice([dice.randrange(32, 127), dice.randrange(0x400, 0x500), 0x1F44B])) for _ in range(9)
        )
        theirs = Webhook(secret).sign(f"msg_{number}", datetime.fromtimestamp(now, UTC), body)
        ours = dict(scheme.sign(key, body.encode(), now * 1000, f"msg_{number}").headers)
        assert ours["webhook-signature"] == theirs
        lines = Headers([(name.encode(), value.encode()) for name, value in ours.items()])
        assert isinstance(scheme.verify([key], lines, body.encode(), now * 1000), Verified)


def test_standard_webhooks_accepts_what_we_sign() -> None:
    now_ms = int(datetime.now(UTC).timestamp()) * 1000
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = '{"title":"déjà vu"}'
    signing = Standard().sign(Secret(secret.encode(), "s", key_of(secret)), body.encode(), now_ms, "msg_1")
    assert Webhook(secret).verify(body, dict(signing.headers)) == {"title": "déjà vu"}


def test_slack_agrees() -> None:
    dice = random.Random(4)
    scheme = make_slack(Options("slack", {})).scheme
    for _ in range(CASES):
        now = dice.randrange(1_000_000_000, 2_000_000_000)
        secret = dice.randbytes(16).hex()
        body = dice.randbytes(dice.randrange(60)).hex()
        key = Secret(secret.encode(), "s")
        headers = dict(scheme.sign(key, body.encode(), now * 1000, "d").headers)
        stamp, mac = headers["x-slack-request-timestamp"], headers["x-slack-signature"]
        apart = dice.choice([0, 299, -299, 400, -400])
        theirs = SignatureVerifier(secret, At(now + apart)).is_valid(body, stamp, mac)
        lines = Headers([(name.encode(), value.encode()) for name, value in headers.items()])
        ours = isinstance(scheme.verify([key], lines, body.encode(), (now + apart) * 1000), Verified)
        assert ours == theirs == (abs(apart) < 300)


def drawn(dice: random.Random) -> str:
    return base64.b64encode(dice.randbytes(dice.randrange(24, 65))).decode()
