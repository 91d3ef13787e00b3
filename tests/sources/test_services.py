"""Slack, Stripe, Linear, Sentry, PagerDuty, Standard Webhooks and the generic sender: handshakes, kinds, ids and facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from postroom.errors import Misconfigured
from postroom.event import EventState, Incoming
from postroom.services.rules import decide
from postroom.sources.headers import Headers
from postroom.sources.scheme import Rejected, Verified
from postroom.sources.settings import build_sources
from postroom.sources.source import Source
from tests.sources.signing import (
    NOW,
    SECRET,
    STANDARD_SECRET,
    Pairs,
    accepted,
    hex_of,
    one,
    sent,
    source_of,
    with_header,
)


def told(source: Source, value: Any, **headers: str) -> Incoming:
    """What a source makes of a body of one's own."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    signing = source.sender.scheme.sign(source.secrets[0], body, NOW, "d-1")
    lines = dict(signing.headers) | {name.replace("_", "-"): text for name, text in headers.items()}
    return accepted(source, [(name.encode(), text.encode()) for name, text in lines.items()], body)


def ruled(got: Incoming, *logins: str) -> list[str]:
    """The rules of the provider's preset that make todos of a delivery."""
    rules = source_of(got.provider, preset=got.provider, logins=list(logins) or None).rules
    return [todo.rule for todo in decide(got, rules, "inbox").todos]


# Slack


def test_slacks_challenge_is_answered_once_it_is_proved() -> None:
    source = source_of("slack", preset="slack")
    got = told(source, {"type": "url_verification", "token": "t", "challenge": "3eZbrw1aB"})
    assert (got.answer, got.unparsed) == ("3eZbrw1aB", None)
    assert decide(got, source.rules, "inbox").state == EventState.IGNORED
    body = b'{"type":"url_verification","challenge":"x"}'
    assert isinstance(source.receive([(b"x-slack-signature", b"v0=00")], body, NOW), Rejected)
    for challenge in (None, "", 3, ["x"], "x" * 2000):
        assert told(source, {"type": "url_verification", "challenge": challenge}).answer is None


def test_retries_of_slack_collapse_whatever_they_say_of_themselves() -> None:
    pairs, body = sent("slack", "app_mention")
    source = source_of("slack")
    first = accepted(source, pairs, body)
    retry, again = sent("slack", "app_mention", now_ms=NOW + 60_000)
    second = accepted(source, [*retry, (b"X-Slack-Retry-Num", b"1"), (b"X-Slack-Retry-Reason", b"http_timeout")], again)
    assert second.delivery_key == first.delivery_key


def event(**more: Any) -> dict[str, Any]:
    head = {"channel": "C1", "user": "U1", "text": "hello\nthere", "ts": "1.2"}
    return {"type": "event_callback", "event_id": "Ev1", "event": {**head, **more}}


@pytest.mark.parametrize(
    ("more", "kind", "action", "rules"),
    [
        ({"type": "app_mention"}, "app_mention", "posted", ["app-mention"]),
        ({"type": "app_mention", "bot_id": "B1"}, "app_mention", "bot_message", []),
        ({"type": "message", "channel_type": "im"}, "message.im", "posted", ["direct-message"]),
        (
            {"type": "message", "channel_type": "im", "subtype": "file_share"},
            "message.im",
            "file_share",
            ["direct-message"],
        ),
        ({"type": "message", "channel_type": "im", "subtype": "message_changed"}, "message.im", "message_changed", []),
        ({"type": "message", "channel_type": "channel"}, "message.channels", "posted", []),
        ({"type": "reaction_added", "reaction": "eyes"}, "reaction_added", None, []),
    ],
)
def test_events_of_slack(more: dict[str, Any], kind: str, action: str | None, rules: list[str]) -> None:
    got = told(source_of("slack"), event(**more))
    assert (got.kind, got.action, got.delivery_key, got.facts.title) == (kind, action, "Ev1", "hello")
    assert (got.facts.repository, got.facts.author) == ("C1", "U1")
    assert ruled(got) == rules


def test_forms_of_slack() -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    fields = {"command": "/todo", "text": "fix it", "user_id": "U1", "channel_id": "C1", "trigger_id": "1.2.3"}
    got = told(source_of("slack"), urlencode(fields).encode(), **form)
    assert (got.kind, got.action, got.title, got.delivery_key) == ("command", "/todo", "slack: /todo fix it", "1.2.3")
    assert (got.data, got.answer) == (fields, "")
    press = {"type": "block_actions", "trigger_id": "4.5", "actions": [{"action_id": "go", "value": "yes"}]}
    got = told(source_of("slack"), urlencode({"payload": json.dumps(press)}).encode(), **form)
    assert (got.kind, got.action, got.facts.outcome, got.answer) == ("block_actions", "go", "yes", "")
    check = told(source_of("slack"), b"ssl_check=1&token=x", **form)
    assert (check.answer, check.ignored is not None) == ("", True)
    assert told(source_of("slack"), b"command=%2Fa&command=%2Fb", **form).unparsed


# Stripe


@pytest.mark.parametrize(
    "line",
    ["v1={mac}", "t=1700000000", "t=1700000000,v0={mac}", "t=1700000000,t=1700000001,v1={mac}", "t=,v1={mac}", "{mac}"],
)
def test_a_header_of_stripe_that_lacks_something_is_refused(line: str) -> None:
    value = line.format(mac=hex_of(b"1700000000.{}").decode()).encode()
    assert isinstance(source_of("stripe").receive([(b"stripe-signature", value)], b"{}", NOW), Rejected)


def test_stripes_key_is_the_text_as_it_is_shown() -> None:
    source = one({"name": "s", "provider": "stripe", "secrets": [STANDARD_SECRET]})
    line = b"t=1700000000, v1=" + hex_of(b"1700000000.{}", STANDARD_SECRET)
    assert not isinstance(source.receive([(b"stripe-signature", line)], b"{}", NOW), Rejected)


def test_an_event_of_stripe() -> None:
    got = told(source_of("stripe"), {"id": "evt_1", "type": "invoice.paid", "livemode": False, "account": "acct_1"})
    assert (got.kind, got.delivery_key, got.facts.labels) == ("invoice.paid", "evt_1", ("test",))
    assert got.facts.url == "https://dashboard.stripe.com/test/events/evt_1"


# Linear


def test_the_time_in_linears_body_counts_and_may_be_missing() -> None:
    source = source_of("linear")

    def at(stamp: Any) -> Incoming | Rejected:
        body = json.dumps({"type": "Issue", "action": "create", "webhookTimestamp": stamp}).encode()
        return source.receive([(b"linear-signature", hex_of(body))], body, NOW)

    assert isinstance(at(NOW - 301_000), Rejected)
    assert isinstance(at(NOW + 301_000), Rejected)
    for stamp in (NOW, NOW - 299_000, None, "soon", 1 << 80):
        assert isinstance(at(stamp), Incoming)


def test_an_old_delivery_can_still_be_read_again() -> None:
    pairs, body = sent("linear")
    source = source_of("linear")
    later = Headers(pairs)
    assert isinstance(source.receive(pairs, body, NOW + 10**9), Rejected)
    proof = source.verify(later, body, NOW)
    assert isinstance(proof, Verified)
    assert source.read(later, body, proof).kind == "Issue"


def test_linear_tells_whom_an_issue_went_to() -> None:
    issue = {"id": "i1", "identifier": "ENG-4", "number": 4, "title": "It broke", "assignee": {"name": "my-bot"}}
    base = {"type": "Issue", "actor": {"name": "ann"}}
    got = told(source_of("linear"), {"action": "update", "data": issue, "updatedFrom": {"assigneeId": None}, **base})
    assert (got.title, got.facts.repository) == ("ENG-4: It broke", "ENG")
    assert (got.facts.changed, got.facts.target) == (("assignee",), "my-bot")
    assert ruled(got, "My-Bot") == ["issue-assigned"]
    assert ruled(got, "ann") == []
    got = told(source_of("linear"), {"action": "update", "data": issue, "updatedFrom": {"title": "x"}, **base})
    assert (got.facts.changed, got.facts.target, ruled(got)) == (("title",), None, [])
    assert ruled(told(source_of("linear"), {"action": "create", "data": issue, **base}), "ann") == ["issue-created"]


# Sentry and PagerDuty


def test_sentrys_issue_and_its_alert_are_one_todo() -> None:
    source = source_of("sentry", preset="sentry")
    issue = {"action": "created", "data": {"issue": {"id": "5", "title": "E", "project": {"slug": "shop"}}}}
    alert = {"action": "triggered", "data": {"event": {"issue_id": "5", "title": "E", "project": 1}}}
    made = [
        decide(told(source, value, sentry_hook_resource=kind, request_id=kind), source.rules, "inbox").todos[0].new
        for kind, value in (("issue", issue), ("event_alert", alert))
    ]
    assert {new.idempotency_key for new in made} == {"sentry:5:issue"}
    got = told(source, {"action": "resolved", "data": {}}, sentry_hook_resource="metric_alert")
    assert ruled(got) == []
    got = told(source, {"action": "created", "data": {}}, sentry_hook_resource="installation")
    assert decide(got, source.rules, "inbox").state == EventState.IGNORED


def test_pagerdutys_incidents() -> None:
    data = {"id": "Q1", "type": "incident", "number": 3, "title": "Down", "service": {"summary": "Shop"}}
    data["assignees"] = [{"summary": "Ann"}, {"summary": "Bob"}]
    got = told(source_of("pagerduty"), {"event": {"id": "01", "event_type": "incident.triggered", "data": data}})
    assert (got.kind, got.action, got.delivery_key, got.title) == ("incident", "triggered", "01", "Shop #3: Down")
    assert got.facts.targets == ("Ann", "Bob")
    assert ruled(got) == ["incident-triggered"]
    note = {"id": "N", "type": "incident_note", "incident": {"id": "Q1", "summary": "Down"}, "content": "x"}
    got = told(source_of("pagerduty"), {"event": {"id": "02", "event_type": "incident.annotated", "data": note}})
    assert (got.action, got.facts.item, ruled(got)) == ("annotated", "Q1", [])


# Standard Webhooks


def test_svixs_names_count_where_the_others_are_not_there() -> None:
    pairs, body = sent("standard")
    source = source_of("standard")
    svix = [(name.replace(b"webhook-", b"svix-"), value) for name, value in pairs]
    assert accepted(source, svix, body).delivery_key == "d-1"
    # An id that is not signed must not stand for the one that is.
    assert accepted(source, [*svix, (b"webhook-id", b"forged")], body).delivery_key == "d-1"
    mixed = [pair for pair in pairs if pair[0] != b"webhook-signature"]
    assert isinstance(source.receive([*mixed, (b"webhook-signature", b"v1,AAAA"), *svix], body, NOW), Rejected)


@pytest.mark.parametrize(
    ("secret", "says"),
    [
        ("whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "public key"),
        ("whsec_not base64 at all", "base64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2L-LaSw", "base64"),
        ("whsec_A", "base64"),
        ("whsec_", "no key"),
        ("v1,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "begins like a signature"),
        (" whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "blanks"),
    ],
)
def test_a_secret_that_cannot_be_one_is_refused_without_being_shown(secret: str, says: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        one({"name": "s", "provider": "standard", "secrets": [secret]})
    assert says in caught.value.message
    assert caught.value.field == "source.s.secrets"
    assert "MfKQ" not in caught.value.message


def test_a_short_key_is_warned_of() -> None:
    table = {"name": "s", "provider": "standard", "secrets": ["whsec_plJ3nmyCDGBKInavdOK15jsl"]}
    assert "24 random bytes" in build_sources([table], {}, Path()).warnings[0]
    table["secrets"] = [STANDARD_SECRET]
    assert build_sources([table], {}, Path()).warnings == ()


# Generic: a token in the address, and an id in the body


def test_a_token_in_the_address_is_proof_only_where_it_was_asked_for() -> None:
    source = one({"name": "ci", "provider": "generic", "secrets": [SECRET], "query_token": "token"})
    query = urlencode({"a": "1", "token": SECRET}).encode()
    got = source.receive([], b"{}", NOW, query)
    assert isinstance(got, Incoming)
    assert (got.verification, got.signed_key) == ("query:secrets[0]", False)
    assert SECRET not in str((got.headers, got.title, got.data, got.delivery_key))
    for other in (b"", b"token=", b"token=wrong", query + b"&token=x", b"TOKEN=" + query[10:], b"%ff=%zz&token"):
        refusal = source.receive([], b"{}", NOW, other)
        assert isinstance(refusal, Rejected)
        assert SECRET not in refusal.reason
    assert isinstance(source.receive([(b"authorization", f"Bearer {SECRET}".encode())], b"{}", NOW), Rejected)
    for table in ({}, {"scheme": "bearer"}):
        plain = one({"name": "ci", "provider": "generic", "secrets": [SECRET], **table})
        assert isinstance(plain.receive([], b"{}", NOW, query), Rejected)


def test_a_token_in_the_address_beside_a_header() -> None:
    table = {"name": "ci", "provider": "generic", "secrets": [SECRET], "scheme": "bearer", "query_token": "t"}
    source = one(table)
    bearer: Pairs = [(b"authorization", f"Bearer {SECRET}".encode())]
    assert accepted(source, bearer, b"{}").verification == "bearer:secrets[0]"
    assert isinstance(source.receive(bearer, b"{}", NOW, b"t=wrong"), Rejected)
    assert isinstance(source.receive([], b"{}", NOW, b"t=" + SECRET.replace(" ", "+").encode()), Incoming)


@pytest.mark.parametrize(
    ("pointer", "value", "key"),
    [
        ("/id", {"id": "x"}, "x"),
        ("/a/1/b~1c~0d", {"a": [{}, {"b/c~d": 12345678901234567890}]}, "12345678901234567890"),
        ("/id", {"id": True}, "h-1"),
        ("/id", {"id": ""}, "h-1"),
        ("/a/9", {"a": [1]}, "h-1"),
        ("/a/-1", {"a": [1]}, "h-1"),
        ("/a/b", [1], "h-1"),
    ],
)
def test_an_id_in_the_body_by_pointer(pointer: str, value: Any, key: str) -> None:
    source = one({"name": "ci", "provider": "generic", "secrets": [SECRET], "id_pointer": pointer, "id_header": "X-Id"})
    got = told(source, value, x_id="h-1")
    assert (got.delivery_key, got.signed_key) == (key, key != "h-1")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"id_pointer": "id"}, "id_pointer"),
        ({"id_pointer": "/a~2"}, "id_pointer"),
        ({"query_token": "a b"}, "query_token"),
        ({"query_token": "token", "scheme": "hmac"}, "query_token"),
        ({"scheme": "query"}, "query_token"),
        ({"query_token": SECRET}, "query_token"),
    ],
)
def test_wrong_options_are_named(table: dict[str, Any], key: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        one({"name": "ci", "provider": "generic", "secrets": [SECRET], **table})
    assert caught.value.field == f"source.ci.{key}"


def test_a_body_of_another_sender_changes_no_proof() -> None:
    pairs, body = sent("stripe")
    assert isinstance(source_of("linear").receive(pairs, body, NOW), Rejected)
    assert isinstance(source_of("stripe").receive(with_header(pairs, "stripe-signature", None), body, NOW), Rejected)
