"""The hooks' door and senders that want something of their own: a text in the answer, a token in the address."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from postroom.doors.hooks import HooksDoor
from postroom.event import Event, Incoming, Received
from postroom.sources.roster import Roster
from postroom.sources.samples import sample
from postroom.sources.settings import Sources, build_sources
from postroom.sources.table import SENDERS
from tests.doors.http_rig import Wire
from tests.sources.signing import Pairs, sent, source_of

NOW = 1_700_000_000_000
SECRET = "It's a Secret to Everybody"


class Keeping:
    """An intake that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[Incoming] = []

    async def receive(self, delivery: Incoming, _: Any) -> Received:
        """Take in, and tell of an event without todos."""
        self.got.append(delivery)
        values: dict[str, Any] = dict.fromkeys(Event.__slots__) | {"id": "ev_1"}
        return Received(Event(**values), len(self.got) > 1, ())


def door(intake: Keeping, **more: Any) -> tuple[HooksDoor, Any]:
    table = {"name": "s", "secrets": [SECRET], "queue": "inbox", **more}
    sources = build_sources([{key: value for key, value in table.items() if value is not None}], {}, Path())
    return HooksDoor(Roster(sources), intake, lambda: None, lambda: NOW), sources.by_name["s"]


async def posted(app: HooksDoor, path: str, body: bytes, headers: dict[str, str]) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as client:
        return await client.post(path, content=body, headers=headers)


@pytest.mark.parametrize(("kind", "text"), [("url_verification", None), ("command", ""), ("app_mention", None)])
async def test_slack_is_answered_with_the_text_it_wants(kind: str, text: str | None) -> None:
    intake = Keeping()
    app, source = door(intake, provider="slack")
    made = sample("slack", kind, NOW, source.secrets[0], "d-1")
    for _ in range(2):
        answer = await posted(app, "/hooks/s", made.body, dict(made.headers))
        if kind == "app_mention":
            assert answer.status_code == 202
            assert answer.json()["event_id"] == "ev_1"
            continue
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.text == (intake.got[0].answer if text is None else text)
    forged = await posted(app, "/hooks/s", made.body, {**dict(made.headers), "x-slack-signature": "v0=00"})
    assert forged.status_code == 401
    assert len(intake.got) == 2


async def test_a_token_in_the_address_is_neither_kept_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    intake = Keeping()
    app, _ = door(intake, provider="generic", query_token="token")
    good = await posted(app, f"/hooks/s?token={quote(SECRET)}", b'{"title":"x"}', {})
    assert good.status_code == 202
    for query in ("", "?token=wrong", f"?token={quote(SECRET)}&token=two", f"?other={quote(SECRET)}"):
        assert (await posted(app, f"/hooks/s{query}", b"{}", {})).status_code == 401
    assert len(intake.got) == 1
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("postroom")]
    for shown in (SECRET, quote(SECRET)):
        assert shown not in str(intake.got)
        assert all(shown not in message for message in ours)


@pytest.mark.parametrize("provider", SENDERS)
async def test_two_headers_that_differ_are_refused_whoever_sends(provider: str) -> None:
    source = source_of(provider)
    pairs, body = sent(provider)
    intake = Keeping()
    app = HooksDoor(Roster(Sources({"s": source})), intake, lambda: None, lambda: NOW)

    async def answered(lines: Pairs) -> int | None:
        wire = Wire(app, "POST", "/hooks/s", {})
        wire.scope["headers"] = lines
        wire.body(body)
        await wire.run()
        return wire.status

    named = {name for name, _ in pairs}
    told = {*source.sender.id_headers, *source.sender.once, *source.sender.scheme.names}
    mine = [name.encode() for name in told if name.encode() in named]
    assert mine
    for name in mine:
        value = next(value for key, value in pairs if key == name)
        good = await answered([*pairs, (name, value)])
        # A list of signatures may stand on several lines; anything else may not say two things.
        twice = await answered([*pairs, (name, b"v1=00" if name.endswith(b"signature") else b"another")])
        lists = provider in {"standard", "gitlab", "stripe", "pagerduty"} and name.endswith(b"signature")
        assert (good, twice) == (202, 202 if lists else 401), name
    assert {delivery.body for delivery in intake.got} == {body}
