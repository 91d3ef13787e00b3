"""The hooks' door and what a source's settings say of it: its size, and from where weak proofs are taken."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from postroom.config import load_settings
from postroom.errors import Misconfigured
from postroom.event import Incoming
from postroom.installation import read_sources
from postroom.sources.samples import sample
from tests.doors.http_rig import Wire
from tests.doors.test_hooks import signed
from tests.doors.test_hooks_senders import NOW, SECRET, Keeping, door
from tests.sources.signing import source_of, with_header

# Sizes.


async def test_each_source_takes_what_its_own_size_allows() -> None:
    intake = Keeping()
    app, _ = door(intake, provider="github", max_bytes=2048)
    just, over = (json.dumps({"title": "x" * (size - 13)}).encode() for size in (2048, 2049))
    assert [len(just), len(over)] == [2048, 2049]
    for body, status in ((just, 202), (over, 413)):
        for sent, more in ((body, {}), (gzip.compress(body), {"content-encoding": "gzip"})):
            wire = Wire(app, "POST", "/hooks/s", {**signed(body), "host": "x", **more})
            wire.body(sent)
            await wire.run()
            assert wire.status == status, more
    assert [delivery.body for delivery in intake.got] == [just, just]
    roomy, _ = door(intake, provider="github", max_bytes=6 * 1024 * 1024)
    body = json.dumps({"title": "x" * (5 * 1024 * 1024)}).encode()
    wire = Wire(roomy, "POST", "/hooks/s", {**signed(body), "host": "x"})
    wire.body(body)
    await wire.run()
    assert wire.status == 202


def test_a_wrong_size_stops_the_start_by_file_line_and_key(tmp_path: Path) -> None:
    table = f'[[source]]\nname = "gh"\nprovider = "github"\nsecrets = ["{SECRET}"]\nmax_bytes = 12\n'
    assert refusal(tmp_path, table) == (
        f'{tmp_path}/postroom.toml:5: source "gh": max_bytes: expected a whole number from 1024 to 33554432, got 12'
    )


def refusal(folder: Path, text: str, **flags: Any) -> str:
    """What a start with these settings is refused with."""
    (folder / "postroom.toml").write_text(text)
    with pytest.raises(Misconfigured) as caught:
        read_sources(load_settings(data=str(folder), environ={}, **flags))
    return caught.value.message


# Weak proofs: none at all, or a secret in the address.

WEAK: dict[str, dict[str, Any]] = {
    "insecure": {"provider": "generic", "insecure": True, "secrets": None},
    "query_token": {"provider": "generic", "query_token": "t", "secrets": [SECRET]},
}
HERE = {"host": "127.0.0.1:7373"}
AFAR: list[dict[str, str]] = [
    {"host": "hooks.example"},
    {},
    {"host": "127.0.0.1.example"},
    {**HERE, "origin": "http://127.0.0.1:7373"},
    {**HERE, "x-forwarded-for": "127.0.0.1"},
    {**HERE, "forwarded": "for=127.0.0.1"},
    {**HERE, "via": "1.1 tunnel"},
]


async def answered(app: Any, headers: dict[str, str], **scope: Any) -> tuple[int | None, Any]:
    wire = Wire(app, "POST", "/hooks/s", headers, query_string=b"t=It%27s+a+Secret+to+Everybody", **scope)
    wire.body(b'{"title":"x"}')
    await wire.run()
    return wire.status, wire.answer


@pytest.mark.parametrize("key", WEAK)
async def test_a_weak_proof_is_taken_from_this_machine_alone(key: str, caplog: pytest.LogCaptureFixture) -> None:
    intake = Keeping()
    app, _ = door(intake, **WEAK[key])
    for host in ("127.0.0.1:7373", "localhost", "[::1]:7373", "127.1.2.3"):
        assert (await answered(app, {"host": host}))[0] == 202
    socket = {"client": None, "server": ("/run/postroom.sock", None)}
    assert (await answered(app, {"host": "postroom"}, **socket))[0] == 202
    taken = len(intake.got)
    with caplog.at_level(logging.WARNING, "postroom.hooks"):
        answers = [await answered(app, headers) for headers in AFAR]
    forged = await answered(door(intake, provider="github")[0], HERE)
    assert forged[0] == 401
    assert answers == [forged] * len(AFAR)
    assert len(intake.got) == taken
    assert [record.getMessage().count("public = true opens it") for record in caplog.records[: len(AFAR)]] == [1] * len(
        AFAR
    )
    assert "Secret" not in caplog.text
    opened, _ = door(intake, **WEAK[key], public=True)
    assert {(await answered(opened, headers))[0] for headers in AFAR} == {202}


@pytest.mark.parametrize("key", WEAK)
def test_a_weak_proof_beside_a_hooks_port_stops_the_start(key: str, tmp_path: Path) -> None:
    said = {"insecure": "insecure = true", "query_token": f'query_token = "t"\nsecrets = ["{SECRET}"]'}[key]
    good = f'[[source]]\nname = "gh"\nprovider = "github"\nsecrets = ["{SECRET}"]\n\n'
    text = f'{good}[[source]]\nname = "ci"\nprovider = "generic"\n{said}\n'
    told = refusal(tmp_path, text, hooks_port=0)
    assert told.startswith(f'{tmp_path}/postroom.toml:9: source "ci": {key}: expected public = true beside it, or no ')
    # The port may stand in the file as well.
    assert "public = true" in refusal(tmp_path, "hooks_port = 7374\n" + text)
    (tmp_path / "postroom.toml").write_text(text)
    assert read_sources(load_settings(data=str(tmp_path), environ={})).by_name["ci"].local
    (tmp_path / "postroom.toml").write_text(text + "public = true\n")
    found = read_sources(load_settings(data=str(tmp_path), environ={}, hooks_port=0))
    assert not found.by_name["ci"].local


# A time in the body counts however the body travels.


@pytest.mark.parametrize("over", ["plain", "packed"])
@pytest.mark.parametrize(("late_s", "status"), [(0, 202), (299, 202), (301, 401), (-301, 401)])
async def test_the_time_in_a_packed_body_counts(over: str, late_s: int, status: int) -> None:
    intake = Keeping()
    app, source = door(intake, provider="linear")
    made = sample("linear", None, NOW - late_s * 1000, source.secrets[0], "d-1")
    packed = gzip.compress(made.body)
    proof = source_of("linear", secrets=[SECRET]).sender.scheme.sign(
        source.secrets[0], made.body if over == "plain" else packed, NOW, "d-1"
    )
    lines = [(name.encode(), value.encode()) for name, value in made.headers]
    for name, value in proof.headers:
        lines = with_header(lines, name, value.encode())
    wire = Wire(app, "POST", "/hooks/s", {**HERE, "content-encoding": "gzip"})
    wire.scope["headers"] += lines
    wire.body(packed)
    await wire.run()
    assert wire.status == status
    assert [kept.body for kept in intake.got] == ([made.body] if status == 202 else [])
    assert all(isinstance(kept, Incoming) for kept in intake.got)
