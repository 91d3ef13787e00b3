"""The hooks' door: what a sender is answered, and what is kept of it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest

from postroom.doors.http import body as bodies
from postroom.errors import Unavailable
from postroom.sources.source import MAX_BYTES
from tests.doors.http_rig import CI_TOKEN, GITHUB_SECRET, Rig, Wire, ask, get, pieces, post, refusal

PAYLOADS = Path(__file__).parent.parent / "payloads" / "github"


def signed(body: bytes, secret: str = GITHUB_SECRET, delivery: str = "d-1", event: str = "issues") -> dict[str, str]:
    """The headers of a GitHub delivery."""
    proof = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        "x-hub-signature-256": f"sha256={proof}",
        "x-github-delivery": delivery,
        "x-github-event": event,
        "content-type": "application/json",
    }


async def events(rig: Rig) -> list[dict[str, Any]]:
    """Every event that is stored."""
    return list((await get(rig, "root", "/v1/events"))["events"])


async def test_a_real_delivery_becomes_an_event_and_a_todo(rig: Rig) -> None:
    body = (PAYLOADS / "issues.opened.json").read_bytes()
    told = await post(rig, None, "/hooks/github", body, 202, **signed(body))
    assert told["duplicate"] is False
    (link,) = told["todos"]
    assert (link["queue"], link["created"]) == ("inbox", True)
    todo = (await get(rig, "ann", f"/v1/todos/{link['todo_id']}"))["todo"]
    assert (todo["event_id"], todo["source"], todo["created_by"]) == (told["event_id"], "github", "source:github")
    again = await post(rig, None, "/hooks/github", body, 202, **signed(body))
    assert again == {**told, "duplicate": True}
    (event,) = await events(rig)
    assert event["deliveries"] == 2


async def test_the_same_delivery_many_times_at_once_is_one_event(rig: Rig) -> None:
    body = (PAYLOADS / "issues.opened.json").read_bytes()
    answers = await asyncio.gather(*(post(rig, None, "/hooks/github", body, 202, **signed(body)) for _ in range(20)))
    assert {answer["event_id"] for answer in answers} == {answers[0]["event_id"]}
    assert sorted(answer["duplicate"] for answer in answers) == [False] + [True] * 19
    assert len((await get(rig, "root", "/v1/todos"))["todos"]) == 1


async def test_a_ping_is_recorded_and_makes_no_work(rig: Rig) -> None:
    body = (PAYLOADS / "ping.json").read_bytes()
    told = await post(rig, None, "/hooks/github", body, 202, **signed(body, event="ping"))
    assert told["todos"] == []
    (event,) = await events(rig)
    assert (event["id"], event["state"]) == (told["event_id"], "ignored")


async def test_what_is_signed_but_no_json_is_kept(rig: Rig) -> None:
    body = b'{"action": \xff'
    told = await post(rig, None, "/hooks/github", body, 202, **signed(body))
    assert told["todos"] == []
    (event,) = await events(rig)
    assert event["state"] == "unparsed"
    assert (await ask(rig, "root", "GET", f"/v1/events/{told['event_id']}/raw")).content == body


async def test_every_refusal_of_a_signature_looks_alike(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    body = b"{}"
    good = signed(body)
    wrong: list[dict[str, str]] = [
        signed(body, "another secret"),
        signed(b"{ }"),
        {**good, "x-hub-signature-256": ""},
        {**good, "x-hub-signature-256": "sha256=zz"},
        {**good, "x-hub-signature-256": "sha1=" + "0" * 40},
        {key: value for key, value in good.items() if key != "x-hub-signature-256"},
    ]
    with caplog.at_level(logging.WARNING, "postroom.hooks"):
        answers = [await ask(rig, None, "POST", "/hooks/github", body, **headers) for headers in wrong]
        answers.append(await ask(rig, None, "POST", "/hooks/ci", b"[", authorization="Bearer wrong"))
    for answer in answers:
        refusal(answer, 401, "unauthenticated")
        assert answer.content == answers[0].content
    assert len(caplog.records) == len(answers)
    assert GITHUB_SECRET not in caplog.text
    assert CI_TOKEN not in caplog.text
    assert await events(rig) == []


async def test_a_delivery_needs_no_token_and_comes_by_any_host(rig: Rig) -> None:
    body = b'{"title":"x"}'
    headers = {"host": "hooks.example", "origin": "https://evil.example"}
    await post(rig, None, "/hooks/ci", body, 202, authorization=f"Bearer {CI_TOKEN}", **headers)


@pytest.mark.parametrize("path", ["/hooks/other", "/hooks/", "/hooks/github/", "/hooks/github/x", "/hooks/%00"])
async def test_an_unknown_source_is_not_found(rig: Rig, path: str) -> None:
    refusal(await ask(rig, None, "POST", path, b"{}", **signed(b"{}")), 404, "not_found")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_a_source_takes_post_alone(rig: Rig, method: str) -> None:
    answer = await ask(rig, None, method, "/hooks/github")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


async def test_a_body_over_the_cap_is_refused_while_it_arrives(rig: Rig) -> None:
    wire = Wire(rig.app, "POST", "/hooks/github", {})
    for _ in range(200):
        wire.body(b"x" * 65536, more=True)
    await wire.run()
    assert wire.status == 413
    assert wire.asked <= MAX_BYTES // 65536 + 1
    told = Wire(rig.app, "POST", "/hooks/github", {"content-length": str(MAX_BYTES + 1)})
    await told.run()
    assert (told.status, told.asked) == (413, 0)
    body = json.dumps({"title": "x" * (MAX_BYTES - 50)}).encode()
    await post(rig, None, "/hooks/github", body, 202, **signed(body))


async def test_a_body_in_pieces_is_proved_whole(rig: Rig) -> None:
    body = (PAYLOADS / "push.json").read_bytes()
    async with rig.client(None) as client:
        chunks = [body[at : at + 1000] for at in range(0, len(body), 1000)]
        answer = await client.post("/hooks/github", content=pieces(*chunks), headers=signed(body, event="push"))
    assert answer.status_code == 202


async def test_a_delivery_cut_off_in_the_middle_stores_nothing(rig: Rig) -> None:
    body = b"{}"
    wire = Wire(rig.app, "POST", "/hooks/github", signed(body))
    wire.body(body, more=True)
    wire.leave()
    await wire.run()
    assert wire.sent == []
    assert await events(rig) == []


async def test_a_slow_body_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "READ_SECONDS", 0.01)
    wire = Wire(rig.app, "POST", "/hooks/github", signed(b"{}"))
    wire.body(b"{", more=True)
    await wire.run()
    assert wire.status == 408
    assert await events(rig) == []


async def test_while_nothing_can_be_stored_the_sender_is_asked_to_come_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise Unavailable("postgresql://secret@host is away")

    rig.reason = "starting"
    early = await ask(rig, None, "POST", "/hooks/github", b"{}", **signed(b"{}"))
    rig.reason = None
    monkeypatch.setattr(rig.office.intake, "receive", away)
    late = await ask(rig, None, "POST", "/hooks/github", b"{}", **signed(b"{}"))
    for answer in (early, late):
        refusal(answer, 503, "unavailable")
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_fault_is_told_to_the_log_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("the secret is hunter2")

    monkeypatch.setattr(rig.office.intake, "receive", broken)
    answer = await ask(rig, None, "POST", "/hooks/github", b"{}", **signed(b"{}"))
    refusal(answer, 500, "internal")
    assert "hunter2" not in answer.text
    assert "hunter2" in caplog.text


async def test_alone_it_has_health_and_nothing_else(rig: Rig) -> None:
    transport = httpx2.ASGITransport(rig.hooks)
    async with httpx2.AsyncClient(transport=transport, base_url="http://hooks.example") as client:
        assert (await client.get("/health")).json()["status"] == "ok"
        refusal(await client.post("/health"), 405, "invalid")
        for path in ("/v1/todos", "/ready", "/mcp", "/"):
            refusal(await client.get(path), 404, "not_found")
        assert (await client.post("/hooks/github", content=b"{}", headers=signed(b"{}"))).status_code == 202
