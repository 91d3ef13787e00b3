"""The vendors' own libraries as judges: generated requests, right ones and wrong ones, over which both must say the same.

Some of them raise where a request is malformed; here that is a refusal. Left out is what they are known to take and
Postroom is not: Base64 with rubbish in it, times that are no whole numbers, Stripe's times from far in the future.
"""

from __future__ import annotations

import base64
import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gidgethub.sansio import validate_event
from slack_sdk.signature import Clock, SignatureVerifier
from standardwebhooks import Webhook

from postroom.sources.headers import Headers
from postroom.sources.scheme import Secret, Verified
from postroom.sources.standard import PREFIX, key_of
from tests.sources.signing import source_of

_LETTERS: Final = ("abc XYZ09_", '{}[]":,.=&%\\', "éßñ", "Ж漢字", "👋🐦", "\n\t\r")


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it reaches a receiver that knows `secret`, at a time in seconds."""

    secret: str
    headers: Mapping[str, str]
    body: str
    now_s: int


@dataclass(frozen=True, slots=True)
class Judge:
    """A vendor's library: makes the headers of a body, and says whether a request is genuine."""

    provider: str
    secret: Callable[[random.Random], str]
    sign: Callable[[str, str, int, str], dict[str, str]]
    judge: Callable[[Request], object]
    signature: str
    stamp: str | None = None
    apart_s: tuple[int, ...] = (0, 1, -1, 250, -250, 400, -400)
    frozen_clock: bool = True


def compare(judge: Judge, cases: int, dice: random.Random) -> Counter[str]:
    """Draw requests and hold both verdicts together: how many were accepted and refused. Fails at the first difference."""
    scheme = source_of(judge.provider).sender.scheme
    told: Counter[str] = Counter()
    for number in range(cases):
        wanted, request = _drawn(judge, dice, f"msg_{number}")
        theirs = _accepts(judge, request)
        key = key_of(request.secret) if request.secret.startswith(PREFIX) and judge.provider == "standard" else b""
        secrets = [Secret(b"another secret of that sender", "old"), Secret(request.secret.encode(), "s", key)]
        lines = Headers([(name.encode(), value.encode()) for name, value in request.headers.items()])
        got = scheme.verify(secrets, lines, request.body.encode(), request.now_s * 1000)
        ours = isinstance(got, Verified)
        assert ours == theirs, (judge.provider, wanted, request, got)
        told["accepted" if ours else "refused"] += 1
    return told


def _accepts(judge: Judge, request: Request) -> bool:
    with contextlib.suppress(Exception):
        return judge.judge(request) is not False
    return False


def _drawn(judge: Judge, dice: random.Random, id_: str) -> tuple[str, Request]:
    """A signed request, and in half of the cases what was done to it."""
    now = dice.randrange(1_000_000_000, 2_000_000_000) if judge.frozen_clock else int(time.time())
    secret, body = judge.secret(dice), _text(dice, 0)
    apart = dice.choice(judge.apart_s) if dice.random() < 0.3 else 0
    headers = judge.sign(secret, body, now - apart, id_)
    request = Request(secret, headers, body, now)
    change = dice.choice(_CHANGES) if dice.random() < 0.5 else None
    if change is None:
        return f"{apart} s apart", request
    return change.__name__, change(judge, request, dice)


def _text(dice: random.Random, least: int) -> str:
    return "".join(dice.choice(dice.choice(_LETTERS)) for _ in range(dice.randrange(least, 40)))


# What is done to a request.


def other_body(_: Judge, request: Request, dice: random.Random) -> Request:
    place = dice.randrange(len(request.body) + 1)
    body = request.body[:place] + _text(dice, 1) + request.body[place + dice.randrange(2) :]
    return Request(request.secret, request.headers, body, request.now_s)


def other_secret(judge: Judge, request: Request, dice: random.Random) -> Request:
    return Request(judge.secret(dice), request.headers, request.body, request.now_s)


def other_time(judge: Judge, request: Request, dice: random.Random) -> Request:
    value = dice.choice([str(request.now_s + dice.choice([1, -2, 30])), "", "now", "1e9x", "-"])
    if judge.stamp is not None:
        return _with(request, judge.stamp, value)
    inside = re.sub(r"\bt=\d+", f"t={value}", request.headers[judge.signature])
    return _with(request, judge.signature, inside)


def other_signature(judge: Judge, request: Request, dice: random.Random) -> Request:
    before, text, after = _parted(request.headers[judge.signature])
    if text.endswith("="):
        raw = bytearray(base64.b64decode(text))
        raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
        text = base64.b64encode(raw).decode()
    else:
        place = dice.randrange(len(text))
        text = text[:place] + dice.choice("0123456789abcdef".replace(text[place], "")) + text[place + 1 :]
    return _with(request, judge.signature, before + text + after)


def cut_signature(judge: Judge, request: Request, dice: random.Random) -> Request:
    before, text, after = _parted(request.headers[judge.signature])
    return _with(request, judge.signature, before + text[: dice.randrange(len(text) - 4)] + after)


def no_signature(judge: Judge, request: Request, dice: random.Random) -> Request:
    return _with(request, judge.signature, dice.choice(["", "garbage", "=", ",", "é" * 64, "sha256=", "v1=", "v1,"]))


def other_version(judge: Judge, request: Request, _: random.Random) -> Request:
    value = request.headers[judge.signature]
    for known, other in (("v1,", "v9,"), ("v1=", "v9="), ("v0=", "v9="), ("sha256=", "sha512=")):
        if known in value:
            return _with(request, judge.signature, value.replace(known, other))
    raise AssertionError(value)


def several_signatures(judge: Judge, request: Request, dice: random.Random) -> Request:
    """As while a secret is changed: another's signature before or after the right one, where a header may list them."""
    value = request.headers[judge.signature]
    stamp = request.now_s
    other = judge.sign(judge.secret(dice), request.body, stamp, "msg_0")[judge.signature]
    match judge.provider:
        case "standard":
            both = [value, other, "v1a,bm90IG91cnM="]
            dice.shuffle(both)
            return _with(request, judge.signature, " ".join(both))
        case "stripe":
            parts = [*value.split(","), other.split(",")[1], "v0=00"]
            dice.shuffle(parts)
            return _with(request, judge.signature, ",".join(parts))
        case _:
            return _with(request, judge.signature, dice.choice([f"{value},{other}", f"{value} {other}"]))


def _parted(value: str) -> tuple[str, str, str]:
    """What stands before the digest, and the digest."""
    for mark in ("v1,", "v1=", "v0=", "sha256="):
        before, found, text = value.partition(mark)
        if found:
            return before + found, text, ""
    raise AssertionError(value)


def _with(request: Request, name: str, value: str) -> Request:
    return Request(request.secret, {**request.headers, name: value}, request.body, request.now_s)


_CHANGES: Final = (
    other_body,
    other_secret,
    other_time,
    other_signature,
    cut_signature,
    no_signature,
    other_version,
    several_signatures,
    None,
)

# The judges.


class _At(Clock):
    """A clock that stands."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return float(self.seconds)


def _hex_secret(dice: random.Random) -> str:
    return dice.randbytes(dice.randrange(8, 40)).hex()


def _standard_secret(dice: random.Random) -> str:
    return PREFIX + base64.b64encode(dice.randbytes(dice.randrange(24, 65))).decode()


def standard(webhook: Any = Webhook, family: str = "webhook", **options: Any) -> Judge:
    """Standard Webhooks' library, or another with the same two methods; its clock is the host's."""

    def sign(secret: str, body: str, at_s: int, id_: str) -> dict[str, str]:
        made = webhook(secret).sign(id_, datetime.fromtimestamp(at_s, UTC), body)
        return {f"{family}-id": id_, f"{family}-timestamp": str(at_s), f"{family}-signature": made}

    def judge(request: Request) -> object:
        return webhook(request.secret).verify(request.body.encode(), dict(request.headers), **options)

    return Judge(
        "standard",
        _standard_secret,
        sign,
        judge,
        signature=f"{family}-signature",
        stamp=f"{family}-timestamp",
        apart_s=(0, 1, 250, -250, 400, -400),
        frozen_clock=False,
    )


def slack() -> Judge:
    """Slack's library, whose clock stands: the very edges of the window are drawn too."""

    def sign(secret: str, body: str, at_s: int, _: str) -> dict[str, str]:
        made = SignatureVerifier(secret).generate_signature(timestamp=str(at_s), body=body)
        assert made is not None
        return {"x-slack-request-timestamp": str(at_s), "x-slack-signature": made}

    def judge(request: Request) -> object:
        verifier = SignatureVerifier(request.secret, _At(request.now_s))
        return verifier.is_valid_request(request.body, request.headers)

    return Judge(
        "slack",
        _hex_secret,
        sign,
        judge,
        signature="x-slack-signature",
        stamp="x-slack-request-timestamp",
        apart_s=(0, 1, 299, -299, 300, -300, 301, -301),
    )


def github() -> Judge:
    """gidgethub, which Python people use for GitHub's; it verifies alone, and the signature is the published formula's."""
    from tests.sources.signing import hex_of

    def sign(secret: str, body: str, _: int, id_: str) -> dict[str, str]:
        made = f"sha256={hex_of(body.encode(), secret).decode()}"
        validate_event(body.encode(), signature=made, secret=secret)
        return {"x-hub-signature-256": made, "x-github-delivery": id_}

    def judge(request: Request) -> object:
        signature = request.headers["x-hub-signature-256"]
        validate_event(request.body.encode(), signature=signature, secret=request.secret)
        return True

    return Judge("github", _hex_secret, sign, judge, signature="x-hub-signature-256")
