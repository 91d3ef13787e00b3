"""Checks of MCP: whether the daemon's own endpoint, and the process that clients start, answer as they must."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, Final

from postroom import __version__
from postroom.doors.cli.checks.call import NoAnswer
from postroom.doors.cli.checks.check import Check
from postroom.doors.cli.checks.found import Findings, fail, ok, warn
from postroom.doors.cli.checks.scene import NO_DAEMON, Scene, Skip

MODERN: Final = "2026-07-28"
HANDSHAKE: Final = "2025-11-25"
META: Final = "io.modelcontextprotocol/"
NEEDED: Final = frozenset({"claim_next", "complete", "heartbeat", "send_message"})
HTTP_S: Final = 2.7
STDIO_S: Final = 2.4
LAST_WORDS_S: Final = 0.2
MOST_BYTES: Final = 1024 * 1024
PROMPT_S: Final = 1.0
"""Clients give up on a process that lets them wait; one second leaves room for all of them."""
COMMAND: Final = (sys.executable, "-m", "postroom", "mcp")
SLOW: Final = "nothing, if this machine is busy now; ask again"


def over_http(scene: Scene) -> Findings:
    """Whether /mcp lists the tools, in the protocol's latest revision."""
    if not scene.reached():
        raise Skip(NO_DAEMON)
    client = {"name": "postroom-doctor", "version": __version__}
    meta = {META + "protocolVersion": MODERN, META + "clientInfo": client, META + "clientCapabilities": {}}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    try:
        reply = scene.call(
            "POST",
            "/mcp",
            json.dumps(asked).encode(),
            seconds=HTTP_S,
            Content_Type="application/json",
            Accept="application/json, text/event-stream",
            MCP_Protocol_Version=MODERN,
            Mcp_Method="tools/list",
        )
    except NoAnswer as silent:
        return fail(f"/mcp: {silent}", "ask again: the first request takes longest; else see the daemon's log")
    if reply.status in {401, 403}:
        raise Skip("the daemon does not let this token in")
    if reply.status == 503:
        raise Skip("the daemon is not ready")
    names = _tools(reply.table())
    missing = sorted(NEEDED - names)
    if reply.status != 200 or missing:
        words = f"lacks {', '.join(missing)}" if names else f"status {reply.status}"
        return fail(
            f"/mcp does not list the tools: {words}", "restart the daemon; is another program behind that port?"
        )
    return ok(f"{len(names)} tools in {reply.took * 1000:.0f} ms")


def _tools(answer: Mapping[str, Any]) -> frozenset[str]:
    result = answer.get("result")
    tools = result.get("tools") if isinstance(result, dict) else None
    listed = tools if isinstance(tools, list) else []
    return frozenset(str(one.get("name")) for one in listed if isinstance(one, dict))


def over_stdio(scene: Scene) -> Findings:
    """Whether `postroom mcp` introduces itself in time."""
    params = {
        "protocolVersion": HANDSHAKE,
        "capabilities": {},
        "clientInfo": {"name": "postroom-doctor", "version": __version__},
    }
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode() + b"\n"
    begun = time.monotonic()
    process = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(scene.environ),
        bufsize=0,
    )
    answers, said = _answers_of(process, asked)
    took = time.monotonic() - begun
    if not answers:
        words = said.decode("utf-8", "replace").strip().rpartition("\n")[2] or f"no answer within {STDIO_S:g} s"
        return fail(f"`postroom mcp` does not introduce itself: {words}", "run `postroom mcp </dev/null` and see")
    result = answers.get("result")
    server = result.get("serverInfo") if isinstance(result, dict) else None
    told = server.get("version") if isinstance(server, dict) else None
    if told != __version__:
        return fail(f"`postroom mcp` introduces itself as {told}", "install Postroom anew: its parts do not match")
    words = f"`postroom mcp` introduces itself in {took * 1000:.0f} ms"
    return ok(words) if took <= PROMPT_S else warn(words, SLOW)


def _answers_of(process: subprocess.Popen[bytes], asked: bytes) -> tuple[dict[str, Any], bytes]:
    """The first line that the process answers, within the deadline, and what it said on stderr if there was none."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with suppress(OSError):  # one that ended at once says why on stderr
            process.stdin.write(asked)
        line = _first_line(process.stdout, STDIO_S)
        return _object(line), b"" if line else _first_line(process.stderr, LAST_WORDS_S)
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
        process.wait()


def _first_line(pipe: IO[bytes], seconds: float) -> bytes:
    """What comes up to a line's end, the pipe's end, or the deadline."""
    until = time.monotonic() + seconds
    read = b""
    while b"\n" not in read and len(read) < MOST_BYTES:
        ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
        more = os.read(pipe.fileno(), 65536) if ready else b""
        if not more:
            break
        read += more
    return read


def _object(line: bytes) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


CHECKS: Final = (
    Check("mcp.http", over_http),
    Check("mcp.stdio", over_stdio),
)
