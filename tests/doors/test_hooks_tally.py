"""What the hooks' door counts of each source's deliveries, for the operator alone."""

from __future__ import annotations

from typing import Any

from postroom.doors.tally import AFAR, WORDS, Tally
from postroom.ids import RandomIds
from tests.doors.http_rig import Rig, ask, post, refusal
from tests.doors.test_hooks import signed
from tests.sources.signing import SECRET

NOW = 1_769_860_800_000


def counts(rig: Rig, name: str) -> dict[str, Any]:
    """What is shown of a source."""
    shown: dict[str, Any] = rig.hooks.tally.shown()[name]
    return shown


async def test_what_is_taken_known_and_refused_is_counted(rig: Rig) -> None:
    assert rig.hooks.tally.shown() == {}
    body = b"{}"
    await post(rig, None, "/hooks/github", body, 202, **signed(body))
    await post(rig, None, "/hooks/github", body, 202, **signed(body))
    first = counts(rig, "github")
    assert (first["accepted"], first["duplicates"], first["refused"]) == (1, 1, {})
    assert first["last_at"] is not None
    assert first["last_refusal"] is None
    refusal(await ask(rig, None, "POST", "/hooks/github", body, **signed(body, "wrong")), 401, "unauthenticated")
    after = counts(rig, "github")
    assert (after["accepted"], after["refused"], after["last_at"]) == (1, {"proof": 1}, first["last_at"])
    assert after["last_refusal"] == "no secret of 1 made the signature in x-hub-signature-256"
    assert after["last_refused_at"] is not None


async def test_a_delivery_that_is_too_late_is_counted_as_the_clocks(rig: Rig) -> None:
    rig.tables = [{"name": "s", "provider": "slack", "secrets": [SECRET], "queue": "inbox"}]
    await rig.reload()
    made = rig.roster.sample("s", None, rig.now - 400_000, RandomIds())
    answer = await ask(rig, None, "POST", "/hooks/s", made.body, **dict(made.headers))
    refusal(answer, 401, "unauthenticated")
    shown = counts(rig, "s")
    assert shown["refused"] == {"clock": 1}
    assert shown["last_refusal"] == "x-slack-request-timestamp lies 400 s from now"


async def test_a_delivery_that_is_too_large_is_counted(rig: Rig) -> None:
    answer = await ask(rig, None, "POST", "/hooks/github", b"x" * (6 * 1024 * 1024))
    refusal(answer, 413, "too_large")
    assert counts(rig, "github")["refused"] == {"too_large": 1}


async def test_a_delivery_from_afar_is_counted(rig: Rig) -> None:
    rig.tables = [{"name": "here", "provider": "generic", "insecure": True, "queue": "inbox"}]
    await rig.reload()
    refusal(await ask(rig, None, "POST", "/hooks/here", b"{}", host="far.example"), 401, "unauthenticated")
    assert counts(rig, "here")["refused"] == {AFAR: 1}


async def test_what_no_source_has_is_not_counted(rig: Rig) -> None:
    for n in range(3):
        await ask(rig, None, "POST", f"/hooks/unknown-{n}", b"{}")
    assert rig.hooks.tally.shown() == {}


def test_the_words_of_a_refusal_are_bounded() -> None:
    tally = Tally()
    tally.refused("s", AFAR, "x" * 1000, NOW)
    assert len(tally.shown()["s"]["last_refusal"]) == WORDS
