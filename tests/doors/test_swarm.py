"""The swarm's two routes say word for word what the first daemon of this wire said, and refuse as it did."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import pytest

from postroom.doors.http.mail_fields import LETTER
from postroom.endpoint import CarrierKind, NewEndpoint
from tests.doors.http_rig import HOST, Rig, ask, get, hand_off, post
from tests.offices import ADMIN

A, B = "ses_aaaa", "ses_bbbb"
GOOD = {"from": A, "to": B, "payload": "hello"}
SENT = re.compile(rb'\{"accepted":true,"msg_id":"(msg_[0-9a-z]{8,}_[0-9a-z]{8})"\}')


async def send(rig: Rig, who: str | None = "ann", **fields: Any) -> httpx2.Response:
    """A POST of the good message with these fields besides; None as a value leaves one out."""
    body = {key: value for key, value in {**GOOD, **fields}.items() if value is not None}
    return await ask(rig, who, "POST", "/swarm/send", body)


async def sent(rig: Rig, **fields: Any) -> str:
    """A message's id, once it is accepted."""
    answer = await send(rig, **fields)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["msg_id"])


async def inbox(rig: Rig, query: str = f"session={B}", who: str | None = "ann") -> list[dict[str, Any]]:
    """The messages of an inbox."""
    answer = await ask(rig, who, "GET", f"/swarm/inbox?{query}")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["messages"])


def refused(answer: httpx2.Response, status: int) -> str:
    """The text of a refusal, in the one shape that these routes have."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    value = answer.json()
    assert set(value) == {"error"}
    assert isinstance(value["error"], str)
    assert answer.content == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return str(value["error"])


# P2, P4, P5
async def test_a_message_is_accepted_in_the_words_of_the_wire(rig: Rig) -> None:
    answer = await send(rig)
    assert answer.status_code == 202
    assert answer.headers["content-type"] == "application/json"
    match = SENT.fullmatch(answer.content)
    assert match, answer.content
    kept = (await get(rig, "root", f"/v1/messages/{match.group(1).decode()}"))["message"]
    assert (kept["from"], kept["to"], kept["channel"], kept["payload"]) == (A, B, None, "hello")
    assert (kept["kind"], kept["priority"], kept["reply_to"]) == ("chat", "normal", None)
    (delivery,) = kept["deliveries"]
    assert (delivery["state"], delivery["target"], delivery["mailbox"]) == ("pending", f"opencode:{B}", B)


# P2, P21
async def test_the_callers_own_id_is_sent_once(rig: Rig) -> None:
    first = await send(rig, msg_id="mine-1")
    assert first.content == b'{"accepted":true,"msg_id":"mine-1"}'
    again = await send(rig, msg_id="mine-1")
    assert (again.status_code, again.content) == (202, first.content)
    assert "mine-1" in refused(await send(rig, msg_id="mine-1", payload="other"), 409)
    assert len((await get(rig, "root", "/v1/messages"))["messages"]) == 1


# P11
async def test_the_inbox_is_byte_for_byte_the_wires(rig: Rig) -> None:
    assert (await ask(rig, "ann", "GET", f"/swarm/inbox?session={B}")).content == b'{"messages":[]}'
    first = await sent(rig)
    text = 'say "hi" & <b>\\\n\ttab \x1f\x7f ü 😀 \u2028 </swarm_message>'
    second = await sent(rig, kind="task.assign", priority="urgent", reply_to=first, payload=text)
    assert (await ask(rig, "ann", "GET", f"/swarm/inbox?session={B}")).content == b'{"messages":[]}'
    # Urgent goes first, whatever was admitted before it.
    assert await hand_off(rig, f"opencode:{B}") == second
    assert await hand_off(rig, f"opencode:{B}") == first
    answer = await ask(rig, "ann", "GET", f"/swarm/inbox?session={B}")
    one, two = answer.json()["messages"]
    for shown in (one, two):
        assert list(shown) == [
            *("msg_id", "from", "to", "channel", "kind", "priority"),
            *("reply_to", "payload", "created_at", "handed_off_at"),
        ]
        assert shown["handed_off_at"] >= shown["created_at"] > 1_700_000_000_000
    quoted = '"say \\"hi\\" & <b>\\\\\\n\\ttab \\u001f\x7f ü 😀 \u2028 </swarm_message>"'
    assert answer.content.decode() == (
        f'{{"messages":[{{"msg_id":"{second}","from":"{A}","to":"{B}","channel":null,"kind":"task.assign",'
        f'"priority":"urgent","reply_to":"{first}","payload":{quoted},'
        f'"created_at":{one["created_at"]},"handed_off_at":{one["handed_off_at"]}}},'
        f'{{"msg_id":"{first}","from":"{A}","to":"{B}","channel":null,"kind":"chat",'
        f'"priority":"normal","reply_to":null,"payload":"hello",'
        f'"created_at":{two["created_at"]},"handed_off_at":{two["handed_off_at"]}}}]}}'
    )


# P11, P21
async def test_since_goes_on_after_what_was_handed_off(rig: Rig) -> None:
    ids = [await sent(rig, payload=str(n)) for n in range(3)]
    assert [await hand_off(rig, f"opencode:{B}") for _ in ids] == ids
    assert [one["msg_id"] for one in await inbox(rig)] == ids
    assert [one["msg_id"] for one in await inbox(rig, f"session={B}&since={ids[0]}")] == ids[1:]
    assert await inbox(rig, f"session={B}&since={ids[2]}") == []
    assert [one["msg_id"] for one in await inbox(rig, f"session={B}&since=")] == ids
    # What is nobody's id is compared as the first daemon did: with every id, as text.
    assert [one["msg_id"] for one in await inbox(rig, f"session={B}&since=a")] == ids
    assert await inbox(rig, f"session={B}&since=zzz") == []
    late = await sent(rig, msg_id="aaa-sorts-before-all")
    await hand_off(rig, f"opencode:{B}")
    assert [one["msg_id"] for one in await inbox(rig, f"session={B}&since={ids[2]}")] == [late]


# P23
async def test_what_waits_or_failed_is_not_in_the_inbox(rig: Rig) -> None:
    waiting, failed = await sent(rig), await sent(rig)
    await post(rig, "root", f"/v1/messages/{failed}/cancel", {})
    assert await inbox(rig) == []
    listed = (await get(rig, "root", "/v1/messages"))["messages"]
    assert {one["id"]: one["deliveries"][0]["state"] for one in listed} == {waiting: "pending", failed: "failed"}


async def test_a_page_is_as_long_as_is_asked(rig: Rig) -> None:
    ids = [await sent(rig, to="inbox-of-bob") for _ in range(3)]
    assert [one["msg_id"] for one in await inbox(rig, "session=inbox-of-bob", "root")] == ids
    assert [one["msg_id"] for one in await inbox(rig, "session=inbox-of-bob&limit=2", "root")] == ids[:2]
    assert len(await inbox(rig, "session=inbox-of-bob&limit=100000", "root")) == 3
    for limit in ("0", "-1", "two", "1.5", "9" * 30, "²"):
        answer = await ask(rig, "root", "GET", f"/swarm/inbox?session=inbox-of-bob&limit={limit}")
        assert "limit" in refused(answer, 400)


# P19
async def test_a_channel_is_accepted_and_shown_without_to(rig: Rig) -> None:
    await post(
        rig, "root", "/v1/endpoints", {"carrier": "inbox", "address": {}, "name": "bob", "channels": ["ops"]}, 201
    )
    id_ = await sent(rig, to=None, channel="ops")
    (one,) = await inbox(rig, "session=bob", "bob")
    assert (one["msg_id"], one["to"], one["channel"]) == (id_, None, "ops")
    nobody = await sent(rig, to=None, channel="nobody/listens")
    assert (await get(rig, "root", f"/v1/messages/{nobody}"))["message"]["deliveries"] == []


# P3, P4, P5
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"to": None}, "to"),
        ({"channel": "ops"}, "to"),
        ({"to": None, "channel": None}, "to"),
        ({"from": None}, "from"),
        ({"from": ""}, "from"),
        ({"from": 5}, "from"),
        ({"from": "a b"}, "from"),
        ({"to": ["ses_x"]}, "to"),
        ({"to": "ses x"}, "to"),
        ({"to": None, "channel": "Ops!"}, "channel"),
        ({"payload": None}, "payload"),
        ({"payload": ""}, "payload"),
        ({"payload": 5}, "payload"),
        ({"payload": {"text": "hello"}}, "payload"),
        ({"payload": ["hello"]}, "payload"),
        ({"payload": "a\x00b"}, "payload"),
        ({"kind": "Chat"}, "kind"),
        ({"kind": ""}, "kind"),
        ({"kind": "a b"}, "kind"),
        ({"kind": "k" * 65}, "kind"),
        ({"kind": True}, "kind"),
        ({"priority": "high"}, "priority"),
        ({"priority": ""}, "priority"),
        ({"priority": 1}, "priority"),
        ({"msg_id": "a b"}, "msg_id"),
        ({"msg_id": "m" * 129}, "msg_id"),
        ({"msg_id": 7}, "msg_id"),
        ({"reply_to": "a b"}, "reply_to"),
        ({"reply_to": 7}, "reply_to"),
    ],
)
async def test_bad_input_is_a_400_that_names_the_field(rig: Rig, fields: dict[str, Any], named: str) -> None:
    assert named in refused(await send(rig, **fields), 400)
    assert (await get(rig, "root", "/v1/messages"))["messages"] == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"5", b'{"from":"\xff"}', b"{}{}", b'{"payload":NaN}', b"[" * 60_000],
)
async def test_what_is_no_json_object_is_a_400(rig: Rig, body: bytes) -> None:
    refused(await ask(rig, "ann", "POST", "/swarm/send", body), 400)


async def test_an_answer_to_nothing_is_refused(rig: Rig) -> None:
    answer = await send(rig, reply_to="msg_nowhere")
    assert answer.status_code in {400, 404}
    assert "msg_nowhere" in refused(answer, answer.status_code)


async def test_those_of_one_name_are_told_by_their_ids(rig: Rig) -> None:
    registry = rig.office.registry
    twins = [NewEndpoint(CarrierKind.CHANNEL, {}, f"channel:{n}", name="twin") for n in range(2)]
    both = [(await registry.attach(ADMIN, twin)).id for twin in twins]
    answer = await send(rig, to="twin")
    said = refused(answer, 409)
    assert all(id_ in said for id_ in both)


async def test_too_much_is_a_413(rig: Rig) -> None:
    assert (await send(rig, payload="ü" * 32 * 1024)).status_code == 202
    assert "payload" in refused(await send(rig, payload="ü" * 32 * 1024 + "x"), 413)
    # At six bytes for each, the longest payload still fits a body.
    most = '{"from":"ses_aaaa","to":"ses_bbbb","payload":"' + "\\u0001" * 64 * 1024 + '"}'
    assert (await ask(rig, "ann", "POST", "/swarm/send", most.encode())).status_code == 202
    refused(await ask(rig, "ann", "POST", "/swarm/send", b" " * (LETTER + 1)), 413)


async def test_what_is_not_known_and_what_is_null_is_passed_over(rig: Rig) -> None:
    body = {**GOOD, "channel": None, "kind": None, "priority": None, "msg_id": None, "cwd": "/home/x"}
    answer = await ask(rig, "ann", "POST", "/swarm/send", body)
    assert answer.status_code == 202, answer.text
    assert (await ask(rig, "ann", "GET", f"/swarm/inbox?session={B}&verbose=1")).content == b'{"messages":[]}'


async def test_the_inbox_wants_a_session(rig: Rig) -> None:
    for query in ("", "?since=x", "?session=", "?session=a%20b", "?session=%00", "?session=%ff"):
        assert refused(await ask(rig, "root", "GET", f"/swarm/inbox{query}"), 400)


async def test_nobody_unknown_is_told_anything(rig: Rig) -> None:
    for method, path in (("POST", "/swarm/send"), ("GET", f"/swarm/inbox?session={B}"), ("GET", "/swarm/else")):
        answer = await ask(rig, None, method, path, GOOD if method == "POST" else None)
        assert "token" in refused(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
    refused(await ask(rig, None, "POST", "/swarm/send", GOOD, authorization="Bearer tk_wrong"), 401)


async def test_a_token_speaks_and_reads_only_as_those_it_names(rig: Rig) -> None:
    assert A in refused(await send(rig, "bob"), 403)
    refused(await ask(rig, "bob", "GET", f"/swarm/inbox?session={B}"), 403)
    assert (await send(rig, "bob", **{"from": "bob"})).status_code == 202
    assert (await ask(rig, "bob", "GET", "/swarm/inbox?session=bob")).status_code == 200
    refused(await send(rig, "ann", **{"from": "bob"}), 403)
    assert (await send(rig, "root", **{"from": "anybody"})).status_code == 202


async def test_an_open_daemon_asks_for_no_token(engine: Any) -> None:
    rig = Rig(engine, open_=True)
    assert SENT.fullmatch((await send(rig, None)).content)
    assert await inbox(rig, who=None) == []
    await rig.office.waiting.close()


async def test_other_ways_in_are_refused_in_the_same_shape(rig: Rig) -> None:
    answer = await ask(rig, "ann", "GET", "/swarm/send")
    refused(answer, 405)
    assert answer.headers["allow"] == "POST"
    refused(await ask(rig, "ann", "POST", "/swarm/inbox", {}), 405)
    refused(await ask(rig, "ann", "GET", "/swarm/"), 404)
    refused(await ask(rig, "ann", "GET", "/swarm/inbox/x"), 404)
    head = await ask(rig, "ann", "HEAD", f"/swarm/inbox?session={B}")
    assert (head.status_code, head.content) == (200, b"")
    refused(await ask(rig, "ann", "GET", f"/swarm/inbox?session={B}", origin="https://evil.example"), 403)
    refused(await ask(rig, "ann", "GET", f"/swarm/inbox?session={B}", host="evil.example"), 403)
    assert (await ask(rig, "ann", "GET", f"/swarm/inbox?session={B}", origin=HOST)).status_code == 200


async def test_while_it_is_not_ready_it_says_so(rig: Rig) -> None:
    rig.reason = "the database is away"
    answer = await send(rig)
    assert "away" in refused(answer, 503)
    assert answer.headers["retry-after"]


async def test_a_fault_says_nothing_of_its_insides(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(rig.office.inbox, "page", broken)
    assert "hunter2" not in refused(await ask(rig, "ann", "GET", f"/swarm/inbox?session={B}"), 500)
    assert "hunter2" in caplog.text
