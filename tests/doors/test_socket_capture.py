"""Protocol capture: what changed something is written down, private and without secrets, and a full disk hurts nobody."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from postroom.doors.socket.capture import LEFT_OUT, Capture
from postroom.store.sqlite import SqliteEngine
from tests.doors.socket_rig import SocketRig, wake

NOON = 1_769_860_800_000
OK = {"ok": True}


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(tmp_path / "data" / "protocol.jsonl", lambda: NOON)


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# T55
async def test_what_changes_something_is_written_down(engine: SqliteEngine) -> None:
    door = await SocketRig(engine).open()
    try:
        endpoint = await door.pane(1, "alpha")
        sent = await door.send()
        await door.done("heartbeat", endpoint_id=endpoint)
        await door.done("message", message_id=sent["message_id"])
        await door.done("history")
        await door.done("endpoints")
        await door.well()
        await door.refused("conflict", "retry", message_id=sent["message_id"])
        await door.done("ack", message_id=sent["message_id"])
        await door.done("unregister", endpoint_id=endpoint)
        await door.raw(b"garbage\n")
        written = entries(door.capture.path)
    finally:
        await door.close()
    assert [one["request"]["op"] for one in written] == ["register", "send", "retry", "ack", "unregister"]
    assert written[1] == {
        "at": "2026-01-31T12:00:00.000Z",
        "request": {"op": "send", **wake()},
        "answer": sent,
    }
    assert written[2]["answer"]["error"]["code"] == "conflict"


def test_it_is_its_users_alone(capture: Capture) -> None:
    before = os.umask(0)
    try:
        capture.note({"op": "send"}, OK)
    finally:
        os.umask(before)
    assert stat.S_IMODE(capture.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(capture.path.parent.stat().st_mode) == 0o700
    capture.close()
    # One that stood there open to others is closed to them.
    capture.path.chmod(0o644)
    capture.note({"op": "send"}, OK)
    assert stat.S_IMODE(capture.path.stat().st_mode) == 0o600
    assert len(entries(capture.path)) == 2
    capture.close()


def test_it_is_written_nowhere_else(capture: Capture, tmp_path: Path) -> None:
    capture.path.parent.mkdir()
    capture.path.symlink_to(tmp_path / "elsewhere")
    capture.note({"op": "send"}, OK)
    assert not (tmp_path / "elsewhere").exists()


def test_secrets_are_left_out(capture: Capture) -> None:
    token = "tk_" + "a" * 43
    secret = {
        "op": "send",
        "idempotency_key": "lease-1",
        "body": f"use {token} or ghp_{'b' * 36} at once",
        "metadata": {
            "api_key": "12345",
            "Authorization": "Bearer xyz",
            "password": 7,
            "deep": [{"client_secret": {"value": "v"}}, f"{token}!"],
            token: 1,
            "lease_id": "lease-1",
        },
        "correlation_id": None,
        "protocol": "0.1",
    }
    capture.note(secret, {"ok": True, "message_id": "msg_1", "cookie": "c"})
    (entry,) = entries(capture.path)
    assert entry["request"] == {
        "op": "send",
        "idempotency_key": "lease-1",
        "body": f"use {LEFT_OUT} or {LEFT_OUT} at once",
        "metadata": {
            "api_key": LEFT_OUT,
            "Authorization": LEFT_OUT,
            "password": LEFT_OUT,
            "deep": [{"client_secret": LEFT_OUT}, f"{LEFT_OUT}!"],
            LEFT_OUT: 1,
            "lease_id": "lease-1",
        },
        "correlation_id": None,
        "protocol": "0.1",
    }
    assert entry["answer"] == {"ok": True, "message_id": "msg_1", "cookie": LEFT_OUT}
    assert entry["left_out"] == ["body", "metadata"]
    raw = capture.path.read_text()
    for word in ("aaaa", "bbbb", "12345", "xyz"):
        assert word not in raw
    capture.close()


PREFIXES = (
    *("tk_", "sk-", "sk-ant-", "sk_live_", "rk_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    *("glpat-", "xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-", "whsec_"),
)
SHAPES = (
    *(f"{prefix}Abcdefghijklm1" for prefix in PREFIXES),
    *("AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", f"AIza{'Sy1' * 11}Ab", "Bearer abcdefghijklmnop1234"),
    *("bearer  abcdef.GHI~jkl+mno/1234==", f"eyJhbGciOiJIUzI1NiJ9.{'eyJzdWIi1' * 4}.{'a-_' * 12}"),
    "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\nBBBB=\n-----END OPENSSH PRIVATE KEY-----",
)


@pytest.mark.parametrize("secret", SHAPES)
def test_each_kind_of_secret_is_known_by_itself(capture: Capture, secret: str) -> None:
    capture.note({"op": "send", "body": f"use {secret} now"}, OK)
    (entry,) = entries(capture.path)
    assert (entry["request"]["body"], entry["left_out"]) == (f"use {LEFT_OUT} now", ["body"])
    capture.close()


@pytest.mark.parametrize(
    "said",
    [
        {
            "body": "The task-force wants bearer authentication for sk-1 and the AKIA team; ask the secretary for a token."
        },
        {"metadata": {"tokens_used": 5, "max_tokens": 100, "token": 3, "tokens": 1.5}},
        {
            "metadata": {
                "tokens_used": {"in": 5, "out": "7"},
                "tokenizer": "bpe",
                "secretary": "Ann",
                "passwordless": "x",
            }
        },
        {"metadata": {"idempotency_key": "k", "author": "Ann", "token": None, "secret": True, "private": "no"}},
    ],
)
def test_what_only_sounds_like_a_secret_stays(capture: Capture, said: dict[str, Any]) -> None:
    capture.note({"op": "send", **said}, OK)
    (entry,) = entries(capture.path)
    assert entry["request"] == {"op": "send", **said}
    assert "left_out" not in entry
    capture.close()


@pytest.mark.parametrize(
    "name",
    [
        *("signature", "Token", "secret", "password", "passwd", "AUTHORIZATION", "cookie"),
        *("apikey", "api-key", "api_key", "private_key", "private-key", "privatekey"),
        *("accessToken", "clientSecret", "apiKey", "authtoken", "tokens", "secrets", "credentials", "passphrase"),
        *("token_of_ann", "secret.name", "TOKEN", "API_KEY_2"),
    ],
)
def test_each_name_of_a_secret_is_known_by_itself(capture: Capture, name: str) -> None:
    capture.note({"op": "send", "metadata": {f"my_{name}": "plain words"}}, OK)
    (entry,) = entries(capture.path)
    assert (entry["request"]["metadata"], entry["left_out"]) == ({f"my_{name}": LEFT_OUT}, ["metadata"])
    capture.close()


def test_it_is_rotated_and_two_older_ones_are_kept(tmp_path: Path) -> None:
    capture = Capture(tmp_path / "c.jsonl", lambda: NOON, max_bytes=2000)
    for n in range(60):
        capture.note({"op": "ack", "message_id": f"msg_{n}", "pad": "x" * 200}, OK)
    capture.close()
    files = sorted(one.name for one in tmp_path.iterdir())
    assert files == ["c.jsonl", "c.jsonl.1", "c.jsonl.2"]
    kept = []
    for name in reversed(files):
        file = tmp_path / name
        assert file.stat().st_size <= 2000
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        kept += [one["request"]["message_id"] for one in entries(file)]
    assert kept == [f"msg_{n}" for n in range(60 - len(kept), 60)]
    # A daemon that is started again goes on in the same file.
    again = Capture(tmp_path / "c.jsonl", lambda: NOON, max_bytes=2000)
    again.note({"op": "ack", "message_id": "later"}, OK)
    again.close()
    last = [one["request"]["message_id"] for one in entries(tmp_path / "c.jsonl")]
    assert last[-1] == "later"


def test_a_disk_that_refuses_is_told_once_and_hurts_nobody(
    capture: Capture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    capture.note({"op": "ack", "message_id": "first"}, OK)

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half(handle: int, data: bytes) -> int:
        return write(handle, data[: len(data) // 2])

    with caplog.at_level(logging.WARNING, logger="postroom.socket"):
        for fault in (full, half, full):
            monkeypatch.setattr(os, "write", fault)
            capture.note({"op": "ack", "message_id": "lost"}, OK)
        monkeypatch.setattr(os, "write", write)
        capture.note({"op": "ack", "message_id": "second"}, OK)
        # It is told again once it had gone well.
        monkeypatch.setattr(os, "write", full)
        capture.note({"op": "ack", "message_id": "lost"}, OK)
    assert len(caplog.records) == 2
    assert "cannot be written" in caplog.messages[0]
    assert [one["request"]["message_id"] for one in entries(capture.path)] == ["first", "second"]
    capture.close()


async def test_the_door_answers_while_the_disk_is_full(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    door = await SocketRig(engine).open()
    try:

        def full(handle: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("postroom.doors.socket.capture.os.write", full)
        await door.pane(1, "alpha")
        sent = await door.send()
        acked = await door.done("ack", message_id=sent["message_id"])
        monkeypatch.undo()
        assert acked["message"]["state"] == "acknowledged"
        assert door.capture.path.read_bytes() == b""
    finally:
        await door.close()
