"""The vendors' own libraries: over ten thousand generated requests each they say what we say, and take what we sign."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from gidgethub.sansio import validate_event
from slack_sdk.signature import SignatureVerifier
from standardwebhooks import Webhook

from postroom.sources.scheme import Secret
from tests.sources import oracles
from tests.sources.signing import SECRET, STANDARD_SECRET, source_of

CASES = 10_000
BODY = '{"title":"déjà vu 👋"}'


@pytest.mark.parametrize(
    "vendor",
    [lambda: oracles.standard(json_parse=False), oracles.slack, oracles.github],
    ids=["standardwebhooks", "slack_sdk", "gidgethub"],
)
def test_a_vendors_library_agrees(vendor: Callable[[], oracles.Judge]) -> None:
    # The seed is the run's own, which pytest prints: another run draws others.
    told = oracles.compare(vendor(), CASES, random.Random(random.getrandbits(64)))
    assert told.total() == CASES
    assert min(told["accepted"], told["refused"]) > CASES / 5


def signing(provider: str) -> dict[str, str]:
    """Our own signature over the body, now."""
    source = source_of(provider)
    secret = source.secrets[0]
    assert isinstance(secret, Secret)
    now_ms = int(datetime.now(UTC).timestamp()) * 1000
    return dict(source.sender.scheme.sign(secret, BODY.encode(), now_ms, "msg_1").headers)


def test_they_take_what_we_sign() -> None:
    assert Webhook(STANDARD_SECRET).verify(BODY, signing("standard")) == {"title": "déjà vu 👋"}
    assert SignatureVerifier(SECRET).is_valid_request(BODY, signing("slack"))
    validate_event(BODY.encode(), signature=signing("github")["x-hub-signature-256"], secret=SECRET)
