"""A client of protocol 0.1 written from its contract alone: a socket, JSON, and nothing of this project.

Run as a program it goes through a script of every operation and every error, and ends with 0 when each was as the
contract says. Its arguments: the socket's path, a registered repository, another one, and one that is not registered.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

REQUIRED = {"bounded_delivery_ack_v1", "idempotent_send_v1"}


def raw(path: str, sent: bytes) -> dict[str, Any]:
    """One connection: these bytes, and the one line that comes back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(path)
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.endswith(b"\n"), received
    assert received.count(b"\n") == 1, received
    answer = json.loads(received)
    assert isinstance(answer, dict)
    assert isinstance(answer["ok"], bool)
    return answer


class Client:
    """One operation a connection."""

    def __init__(self, path: str) -> None:
        self.path = path

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """What an operation answers, done or refused."""
        line = json.dumps({"op": op, "protocol": "0.1", **fields}, ensure_ascii=False).encode() + b"\n"
        return raw(self.path, line)

    def done(self, op: str, **fields: Any) -> dict[str, Any]:
        """What an operation answers that has to be done."""
        answer = self.call(op, **fields)
        assert answer["ok"] is True, (op, fields, answer)
        return answer

    def refused(self, code: str, op: str, **fields: Any) -> dict[str, Any]:
        """The error of an operation that has to be refused so."""
        answer = self.call(op, **fields)
        assert answer["ok"] is False, (op, fields, answer)
        error: dict[str, Any] = answer["error"]
        assert error["code"] == code, (op, fields, error)
        assert isinstance(error["message"], str)
        return error


def wake(target: str, **fields: Any) -> dict[str, Any]:
    """The contract's send."""
    return {
        "client_id": "coordination-engine",
        "idempotency_key": "lease-1",
        "correlation_id": "trigger-1",
        "sender_repo": target,
        "target_repo": target,
        "provenance": "coordination_engine",
        "metadata": {"lease_id": "lease-1", "trigger_id": "trigger-1"},
        "body": "Wake up.",
        **fields,
    }


def pane(client: Client, name: str, *repositories: str, **more: Any) -> str:
    """An inbox stands for a session: its endpoint instance."""
    asked = {"carrier": "inbox", "address": {}, "name": name, "repositories": list(repositories), **more}
    return str(client.done("register", **asked)["endpoint_id"])


def handshake(client: Client) -> None:
    """Version and capabilities come first."""
    told = client.done("ping")
    assert told["protocol"].split(".")[0] == "0"
    assert set(told["capabilities"]) >= REQUIRED
    assert client.done("ping", protocol="0.7", something_new=[1])["ok"]
    for op in ("ping", "endpoints", "send", "message", "history", "ack", "retry"):
        assert raw(client.path, json.dumps({"op": op, "protocol": "1.0"}).encode() + b"\n")["error"]["code"] == (
            "unsupported_protocol"
        )


def wakes(client: Client, target: str, other: str, stranger: str) -> tuple[str, str]:
    """Resolution, admission, repeats, conflicts: the endpoint and the message in the end."""
    client.refused("unavailable", "send", **wake(target))
    assert client.done("endpoints", target_repo=target)["endpoints"] == []
    endpoint = pane(client, "ann", target)
    found = client.done("endpoints", target_repo=target)["endpoints"]
    assert [(one["endpoint_id"], one["live"], one["repositories"]) for one in found] == [(endpoint, True, [target])]
    sent = client.done("send", **wake(target, endpoint_id=endpoint))
    assert sent["endpoint_id"] == endpoint
    assert sent["deduplicated"] is False
    again = client.done("send", **wake(target, endpoint_id=endpoint))
    assert (again["message_id"], again["deduplicated"]) == (sent["message_id"], True)
    second = pane(client, "bob", target, other)
    error = client.refused("ambiguous_endpoint", "send", **wake(target, idempotency_key="lease-2"))
    assert set(error["endpoints"]) == {endpoint, second}
    client.done("send", **wake(target, idempotency_key="lease-2", endpoint_id=second))
    for change in (
        {"body": "Other words."},
        {"sender_repo": other},
        {"target_repo": other},
        {"endpoint_id": second},
    ):
        client.refused("conflict", "send", **wake(target, **change))
    for field in ("target_repo", "sender_repo"):
        assert client.refused("invalid", "send", **wake(target, **{field: stranger}))["field"] == field
    client.done("send", **wake(target, idempotency_key="lease-3", endpoint_id=endpoint, sender_repo="local"))
    return endpoint, str(sent["message_id"])


def limits(client: Client, target: str, endpoint: str) -> None:
    """8 KiB and 4 KiB, in bytes of UTF-8; what is missing or of another kind is named."""

    def send(**fields: Any) -> dict[str, Any]:
        return wake(target, endpoint_id=endpoint, **fields)

    client.done("send", **send(idempotency_key="most", body="é" * 4096, metadata={"a": "é" * 2044}))
    assert client.refused("too_large", "send", **send(idempotency_key="x", body="é" * 4096 + "x"))["field"] == "body"
    error = client.refused("too_large", "send", **send(idempotency_key="x", metadata={"a": "é" * 2044 + "x"}))
    assert error["field"] == "metadata"
    for field in ("client_id", "idempotency_key", "target_repo", "body"):
        without = {name: value for name, value in send(idempotency_key="x").items() if name != field}
        assert client.refused("invalid", "send", **without)["field"] == field
    for field, value in (("body", 7), ("metadata", []), ("metadata", "{}"), ("client_id", None), ("endpoint_id", 1)):
        error = client.refused("invalid", "send", **{**send(idempotency_key="x"), field: value})
        assert error["field"] == field
    for op in ("message", "ack", "retry"):
        client.refused("not_found", op, message_id="msg_that_never_was")
        assert client.refused("invalid", op)["field"] == "message_id"
    client.refused("invalid", "dance")
    for line in (b"\xff\n", b"{\n", b"{}\n", b"[]\n", b'{"op":"ping"', b"nothing at all\n"):
        assert raw(client.path, line)["error"]["code"] == "invalid", line
    assert raw(client.path, b"{" * 1024 * 1024)["error"]["code"] == "too_large"


def receipts(client: Client, target: str, endpoint: str, message_id: str) -> None:
    """One receipt, the history, an acknowledgement, and what a retry is for."""
    shown = client.done("message", message_id=message_id)["message"]
    for field, value in wake(target, endpoint_id=endpoint).items():
        assert shown[field] == value, field
    assert shown["state"] == "injected"
    for field in ("attempt_count", "next_attempt_at", "ack_deadline", "last_failure_reason", "lease_expires_at"):
        assert field in shown
    assert client.refused("conflict", "retry", message_id=message_id)["state"] == "injected"
    acked = client.done("ack", message_id=message_id)["message"]
    assert (acked["state"], acked["message_id"]) == ("acknowledged", message_id)
    assert client.done("ack", message_id=message_id)["message"] == acked
    client.refused("conflict", "retry", message_id=message_id)
    seen: list[str] = []
    cursor = None
    while True:
        asked = {"client_id": "coordination-engine", "limit": 2, **({"cursor": cursor} if cursor else {})}
        page = client.done("history", **asked)
        assert len(page["messages"]) <= 2
        seen += [one["message_id"] for one in page["messages"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen[-1] == message_id
    assert len(seen) == len(set(seen)) == 4
    found = client.done("history", state="acknowledged", endpoint_id=endpoint)["messages"]
    assert [one["message_id"] for one in found] == [message_id]
    client.refused("invalid", "history", state="done")
    client.refused("invalid", "history", limit=0)


def endings(client: Client, target: str, endpoint: str) -> None:
    """An endpoint that is unregistered is gone for ever, and its repository with it."""
    assert client.done("heartbeat", endpoint_id=endpoint)["endpoint_id"] == endpoint
    for one in client.done("endpoints", target_repo=target)["endpoints"]:
        client.done("unregister", endpoint_id=one["endpoint_id"])
    client.refused("conflict", "heartbeat", endpoint_id=endpoint)
    client.refused("not_found", "heartbeat", endpoint_id="ep_01890000-0000-7000-8000-000000000000")
    client.refused("unavailable", "send", **wake(target, idempotency_key="lease-9"))
    client.refused("unavailable", "send", **wake(target, idempotency_key="lease-9", endpoint_id=endpoint))
    for field, value in (("carrier", "pigeon"), ("address", []), ("repositories", "alpha"), ("ack_mode", "maybe")):
        asked: dict[str, Any] = {"carrier": "inbox", "address": {}, "name": "x", field: value}
        assert client.refused("invalid", "register", **asked)["field"] == field
    for attempts in (0, 10):
        client.refused("invalid", "register", carrier="inbox", address={}, name="x", delivery_max_attempts=attempts)


def main(path: str, target: str, other: str, stranger: str) -> None:
    """The whole script, against a daemon that has seen none of it."""
    client = Client(path)
    handshake(client)
    endpoint, message_id = wakes(client, target, other, stranger)
    limits(client, target, endpoint)
    receipts(client, target, endpoint, message_id)
    endings(client, target, endpoint)
    handshake(client)


if __name__ == "__main__":
    main(*sys.argv[1:])
    print("every answer was as the contract says")
