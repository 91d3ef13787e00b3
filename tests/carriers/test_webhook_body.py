"""What a webhook is sent: the same bytes and id at each repeat, under a name that nobody else can give a message."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from postroom.carriers.webhook_body import event_body, event_id, event_type, signatures
from postroom.postage import MAX_PAYLOAD_BYTES
from tests.carriers.receiver import KEY, OLD_KEY, secret, to_webhook

WHOLE = MAX_PAYLOAD_BYTES
NOTICE: dict[str, Any] = {"created_by": "postroom", "sender": "postroom"}


def event(*args: Any, most: int = WHOLE, **more: Any) -> Any:
    return json.loads(event_body(to_webhook(*args, **more), most))


def test_a_message_has_what_its_reader_needs() -> None:
    shown = event("see PR 42\n", kind="task.assign", reply_to="msg_0", correlation_id="td_1", msg_id="msg_1")
    assert shown == {
        "type": "message",
        "timestamp": "2027-01-15T08:00:00.000Z",
        "data": {
            "id": "msg_1",
            "from": "ann",
            "to": "ops",
            "channel": None,
            "kind": "task.assign",
            "priority": "normal",
            "reply_to": "msg_0",
            "correlation_id": "td_1",
            "payload": "see PR 42\n",
        },
    }


def test_a_channels_message_names_the_channel() -> None:
    data = event(addressed=None, channel="team/build")["data"]
    assert (data["to"], data["channel"]) == (None, "team/build")


def test_a_ring_says_what_waits_where() -> None:
    metadata = json.dumps({"queue": "review", "todo_id": "td_1", "count": 3})
    shown = event("3 todos wait", kind="queue.ring", metadata_json=metadata, msg_id="msg_2", **NOTICE)
    assert shown["type"] == "todo.available"
    assert shown["data"] == {"id": "msg_2", "queue": "review", "todo_id": "td_1", "count": 3, "text": "3 todos wait"}


def test_a_dead_letter_says_which_and_why() -> None:
    metadata = json.dumps({"todo_id": "td_1", "reason": "exhausted", "error": "no"})
    shown = event("it is dead", kind="todo.dead", metadata_json=metadata, msg_id="msg_3", **NOTICE)
    assert shown["type"] == "todo.dead"
    assert shown["data"] == {
        "id": "msg_3",
        "todo_id": "td_1",
        "reason": "exhausted",
        "error": "no",
        "text": "it is dead",
    }


@pytest.mark.parametrize("kind", ["queue.ring", "todo.dead"])
def test_nobody_else_gives_a_message_the_name_of_a_notice(kind: str) -> None:
    assert event_type(to_webhook(kind=kind, created_by="ann").message) == "message"
    assert event_type(to_webhook(kind=kind, created_by="ann", sender="postroom").message) == "message"
    assert event_type(to_webhook(kind="status.update", **NOTICE).message) == "message"


def test_a_payload_may_be_as_long_as_a_message() -> None:
    payload = "é" * (WHOLE // 2)
    data = event(payload)["data"]
    assert data["payload"] == payload
    assert "rest" not in data


def test_a_longer_one_is_cut_and_says_how_to_read_the_rest() -> None:
    data = event("é" * 600, most=1000, msg_id="msg_9")["data"]
    assert len(data["payload"].encode()) <= 1000
    assert data["payload"].endswith("é…")
    assert data["payload_bytes"] == 1200
    assert data["rest"] == "cut: GET /v1/messages/msg_9 and `postroom message show msg_9` have the whole"
    assert event("é" * 600, most=0)["data"]["payload"] == ""


def test_the_id_is_the_messages_and_a_further_round_is_another() -> None:
    first = to_webhook(msg_id="msg_1")
    again = replace(first, delivery=replace(first.delivery, attempt_count=4))
    later = replace(first, delivery=replace(first.delivery, round=1))
    assert (event_id(first), event_id(again), event_id(later)) == ("msg_1", "msg_1", "msg_1~1")
    assert event_body(first, WHOLE) == event_body(again, WHOLE)


@given(st.text(max_size=200), st.integers(1, 3))
def test_every_key_makes_a_signature_that_the_library_takes(payload: str, many: int) -> None:
    body = event_body(to_webhook(payload), WHOLE)
    keys = [bytes([n]) * 32 for n in range(many)]
    now = int(datetime.now(UTC).timestamp())
    headers = {"webhook-id": "m", "webhook-timestamp": str(now), "webhook-signature": signatures(keys, "m", now, body)}
    for key in keys:
        assert Webhook(secret(key)).verify(body, headers) == json.loads(body)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret(b"x" * 32)).verify(body, headers)


def test_the_signature_is_what_the_library_makes() -> None:
    at = datetime.fromtimestamp(1_800_000_000, UTC)
    made = [Webhook(secret(key)).sign("msg_1", at, "{}") for key in (KEY, OLD_KEY)]
    assert signatures([KEY, OLD_KEY], "msg_1", 1_800_000_000, b"{}") == " ".join(made)
