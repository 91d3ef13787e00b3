"""Protocol 0.1 and what is wrong with a request: each field of each operation missing, of another type, or too large."""

from __future__ import annotations

import json
from typing import Any

import pytest

from postroom.doors.socket.operations import OPERATIONS
from tests.doors.socket_rig import SocketRig, wake

ENDPOINT = "ep_01890000-0000-7000-8000-000000000005"
WHOLE: dict[str, dict[str, Any]] = {
    "ping": {"protocol": "0.1"},
    "endpoints": {"target_repo": "alpha", "live": True},
    "send": {**wake(), "endpoint_id": ENDPOINT},
    "message": {"message_id": "msg_1", "endpoint_id": ENDPOINT},
    "history": {
        "target_repo": "alpha",
        "endpoint_id": ENDPOINT,
        "client_id": "engine",
        "state": "pending",
        "cursor": "c1",
        "limit": 5,
    },
    "ack": {"message_id": "msg_1", "endpoint_id": ENDPOINT},
    "retry": {"message_id": "msg_1", "endpoint_id": ENDPOINT},
    "register": {
        "carrier": "tmux",
        "address": {"pane": "%1"},
        "repositories": ["alpha"],
        "name": "worker",
        "queues": ["review"],
        "channels": ["team"],
        "ack_mode": "acknowledged",
        "delivery_max_attempts": 9,
        "spill": True,
        "rings": False,
        "pid": 7,
    },
    "heartbeat": {"endpoint_id": ENDPOINT},
    "unregister": {"endpoint_id": ENDPOINT},
}
NEEDED = {
    "ping": {"protocol"},
    "endpoints": set(),
    "send": {"client_id", "idempotency_key", "target_repo", "body"},
    "message": {"message_id"},
    "history": set(),
    "ack": {"message_id"},
    "retry": {"message_id"},
    "register": {"carrier", "address"},
    "heartbeat": {"endpoint_id"},
    "unregister": {"endpoint_id"},
}
FIELDS = [(op, field) for op, fields in WHOLE.items() for field in fields]


def test_every_operation_is_tried() -> None:
    assert set(WHOLE) == set(OPERATIONS)
    for op, (model, _) in OPERATIONS.items():
        assert set(WHOLE[op]) - {"protocol"} == set(model.model_fields) - {"protocol"}, op


# T13 # T39
async def test_a_missing_field_is_named_where_it_is_needed(door: SocketRig) -> None:
    for op, field in FIELDS:
        answer = await door.ask(op, **{name: value for name, value in WHOLE[op].items() if name != field})
        if field in NEEDED[op]:
            error = door.error(answer, "invalid")
            assert (error["field"], error["message"]) == (field, f"{field} is missing"), (op, field)
        else:
            missing = "error" in answer and "is missing" in answer["error"]["message"]
            assert not missing, (op, field, answer)
    assert await door.count() == 0


async def test_a_field_of_another_type_is_named(door: SocketRig) -> None:
    for op, field in FIELDS:
        given = WHOLE[op][field]
        wrong: list[Any] = [[], 1.5, {"a": 1}, "text", True, 7, [1]]
        for value in wrong:
            if type(value) is type(given) and value != [1]:
                continue
            error = await door.refused("invalid", op, **{**WHOLE[op], field: value})
            assert error["field"].startswith(field), (op, field, value, error)
            assert "expected" in error["message"], (op, field, value, error)
    assert await door.count() == 0
    await door.well()


# T15 # T16
@pytest.mark.parametrize(
    ("field", "most", "much", "code"),
    [
        ("body", "x" * 8192, "x" * 8193, "too_large"),
        ("body", "é" * 4096, "é" * 4096 + "x", "too_large"),
        ("body", "\N{PILE OF POO}" * 2048, "\N{PILE OF POO}" * 2049, "too_large"),
        ("metadata", {"a": "x" * 4088}, {"a": "x" * 4089}, "too_large"),
        ("metadata", {"a": "é" * 2044}, {"a": "é" * 2044 + "x"}, "too_large"),
        ("metadata", {}, {str(n): n for n in range(1000)}, "too_large"),
        ("client_id", "c" * 128, "c" * 129, "invalid"),
        ("idempotency_key", "k" * 256, "k" * 257, "invalid"),
        ("correlation_id", "c" * 256, "c" * 257, "invalid"),
        ("provenance", "p" * 256, "p" * 257, "invalid"),
    ],
)
async def test_sizes_are_of_utf8_bytes(door: SocketRig, field: str, most: Any, much: Any, code: str) -> None:
    await door.pane(1, "alpha")
    error = await door.refused(code, "send", **wake(**{field: much}))
    assert error["field"] == field
    assert await door.count() == 0
    sent = await door.send(**{field: most})
    shown = (await door.done("message", message_id=sent["message_id"]))["message"]
    assert shown[field] == most


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("body", ""),
        ("body", "nul \x00"),
        ("client_id", ""),
        ("client_id", "two\nlines"),
        ("idempotency_key", ""),
        ("idempotency_key", "a\x1bb"),
        ("correlation_id", ""),
        ("correlation_id", "\x9b31m"),
        ("sender_repo", ""),
        ("sender_repo", "no such repository"),
        ("target_repo", "nowhere"),
        ("target_repo", "ALPHA"),
        ("provenance", "\r"),
        ("protocol", 1),
        ("metadata", []),
        ("metadata", {"a": "\x00"}),
    ],
)
async def test_text_that_says_nothing_or_acts_is_refused(door: SocketRig, field: str, value: Any) -> None:
    await door.pane(1, "alpha")
    error = await door.refused("invalid", "send", **wake(**{field: value}))
    assert error["field"].split(".")[0] == field
    assert await door.count() == 0
    await door.well()


@pytest.mark.parametrize(
    ("op", "fields", "code", "field"),
    [
        ("endpoints", {"target_repo": "\n"}, "invalid", "target_repo"),
        ("message", {"message_id": "no id"}, "not_found", "message_id"),
        ("message", {"message_id": "msg_0_nothing"}, "not_found", "message_id"),
        ("ack", {"message_id": "msg_0_nothing"}, "not_found", "message_id"),
        ("retry", {"message_id": "msg_0_nothing"}, "not_found", "message_id"),
        ("history", {"state": "gone"}, "invalid", "state"),
        ("history", {"cursor": "x"}, "invalid", "cursor"),
        ("history", {"cursor": "c" + "f" * 16}, "invalid", "cursor"),
        ("history", {"limit": 0}, "invalid", "limit"),
        ("history", {"limit": -3}, "invalid", "limit"),
        ("history", {"client_id": ""}, "invalid", "client_id"),
        ("history", {"target_repo": "x" * 257}, "invalid", "target_repo"),
        ("history", {"endpoint_id": "\x00"}, "invalid", "endpoint_id"),
        ("register", {"carrier": "pigeon", "address": {}}, "invalid", "carrier"),
        ("register", {"carrier": "webhook", "address": {}}, "invalid", "carrier"),
        ("register", {"carrier": "tmux", "address": {}}, "invalid", "address.pane"),
        ("register", {"carrier": "inbox", "address": {}}, "invalid", "name"),
        ("register", {"carrier": "inbox", "address": {"a": 1}, "name": "a"}, "invalid", "address"),
        ("register", {**WHOLE["register"], "repositories": ["nowhere"]}, "invalid", "repositories"),
        ("register", {**WHOLE["register"], "name": "a b"}, "invalid", "name"),
        ("register", {**WHOLE["register"], "queues": ["No"]}, "invalid", "queues"),
        ("register", {**WHOLE["register"], "channels": [""]}, "invalid", "channels"),
        ("register", {**WHOLE["register"], "ack_mode": "maybe"}, "invalid", "ack_mode"),
        ("register", {**WHOLE["register"], "delivery_max_attempts": 0}, "invalid", "delivery_max_attempts"),
        ("register", {**WHOLE["register"], "delivery_max_attempts": 10}, "invalid", "delivery_max_attempts"),
        ("register", {**WHOLE["register"], "pid": 0}, "invalid", "pid"),
        ("heartbeat", {"endpoint_id": "ep"}, "not_found", "endpoint_id"),
        ("heartbeat", {"endpoint_id": ENDPOINT}, "not_found", "endpoint_id"),
        ("unregister", {"endpoint_id": ENDPOINT}, "not_found", "endpoint_id"),
    ],
)
async def test_every_other_bound_is_kept(
    door: SocketRig, op: str, fields: dict[str, Any], code: str, field: str
) -> None:  # T31
    error = await door.refused(code, op, **fields)
    assert error["field"] == field
    await door.well()


# T8
async def test_what_a_later_minor_version_says_besides_is_passed_over(door: SocketRig) -> None:
    endpoint = await door.pane(1, "alpha", colour="green")
    for op, fields in WHOLE.items():
        answer = await door.ask(op, **{**fields, "endpoint_id": endpoint} if "endpoint_id" in fields else fields)
        more = await door.ask(op, **{**fields, "endpoint_id": endpoint, "future": {"a": [1]}, "protocol": "0.9"})
        assert answer["ok"] == more["ok"] or op in {"heartbeat", "unregister"}, (op, more)


# T5 # T6
@pytest.mark.parametrize("spoken", ["1.0", "2", "", "x.1", "00.1"])
async def test_another_major_version_is_refused_before_anything(door: SocketRig, spoken: str) -> None:
    await door.pane(1, "alpha")
    for op, fields in WHOLE.items():
        error = await door.refused("unsupported_protocol", op, **{**fields, "protocol": spoken})
        assert error["field"] == "protocol"
        assert "0.1" in error["message"]
    assert await door.count() == 0


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b"\n", "request"),
        (b"{\n", "request"),
        (b"{}\n", "op"),
        (b'{"op": "dance"}\n', "op"),
        (b'{"op": 1}\n', "op"),
        (b'{"op": null}\n', "op"),
        (b'{"op": true}\n', "op"),
        (b'{"op": []}\n', "op"),
        (b'{"op": {}}\n', "op"),
        (b'{"op": ["send"]}\n', "op"),
        (b'{"op": "ping", "op": "ping", "protocol": "0.1"}\n', "op"),
        (b'{"op": "ping", "protocol": NaN}\n', "request"),
        (b'{"op": "p\xffng"}\n', "request"),
        (b'\xef\xbb\xbf{"op": "ping"}\n', "request"),
        (b"[1]\n", "request"),
        (b"7\n", "request"),
        (b'"ping"\n', "request"),
        (b"null\n", "request"),
        (b"ping\n", "request"),
        (b"\x00\x01\x02\n", "request"),
        (b"\xff" * 2000 + b"\n", "request"),
        (b'{"a":' * 100 + b"1" + b"}" * 100 + b"\n", "request"),
        (b'{"op": "history", "client_id": "\\ud800"}\n', "client_id"),
    ],
)
async def test_what_is_no_request_is_told_so(door: SocketRig, line: bytes, field: str) -> None:
    error = door.error(door.told(await door.raw(line)), "invalid")
    assert error["field"] == field
    await door.well()


async def test_nothing_of_a_refusal_acts_on_a_terminal(door: SocketRig) -> None:
    for op, fields in WHOLE.items():
        for field in ("op", *fields):
            sent = json.dumps({"op": op, **fields, field: "\x1b[31m\u202e\x07"}).encode() + b"\n"
            raw = await door.raw(sent)
            assert not set(raw.decode()) & {"\x1b", "\x07", "\u202e"}, (op, field, raw)
    await door.well()
