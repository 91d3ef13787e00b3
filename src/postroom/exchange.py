"""One exchange of protocol 0.1: a line to a Unix socket, a line back, and the connection is over (seed 003; T4)."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from postroom.errors import Incompatible, Invalid, PostroomError, Unavailable, from_dict

PROTOCOL = "0.1"
MOST_ANSWER_BYTES = 16 * 1024 * 1024


def ask(path: str, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """What a service says to a request, within `timeout` seconds from connecting to the answer's last byte.

    Raises what it refuses with, Unavailable when nobody answers, and Incompatible for an answer in another language.
    """
    try:
        line = json.dumps(request, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the request is expected to be plain JSON: {error}", field="request") from None
    answer = _parsed(path, _exchange(path, line, timeout))
    if answer.get("ok") is True:
        return answer
    told = answer.get("error")
    if answer.get("ok") is not False or not isinstance(told, dict):
        raise Incompatible(f"what answers on {path} does not speak protocol {PROTOCOL}")
    raise refusal_of(told)


def refusal_of(told: Mapping[str, Any]) -> PostroomError:
    """The error that a service has told, as the exception it is here."""
    return from_dict({key: value for key, value in told.items() if key != "self"})


def _exchange(path: str, line: bytes, timeout: float) -> bytes:
    """The bytes of the answer, without its line end."""
    until = time.monotonic() + timeout
    received = bytearray()

    def left() -> float:
        return max(until - time.monotonic(), 0.001)

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(left())
            connection.connect(path)
            connection.settimeout(left())
            # Who refuses a line before it has read it all has an answer none the less.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(line)
            while b"\n" not in received[-65536:]:
                if time.monotonic() >= until:
                    raise TimeoutError
                connection.settimeout(left())
                part = connection.recv(65536)
                if not part or len(received) > MOST_ANSWER_BYTES:
                    break
                received += part
    except TimeoutError:
        raise Unavailable(f"{path} gave no answer within {timeout:g} s") from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise Unavailable(f"nobody answers on {path}: {why}") from None
    head, found, _ = received.partition(b"\n")
    if not found and len(received) > MOST_ANSWER_BYTES:
        raise Incompatible(f"the answer on {path} is over {MOST_ANSWER_BYTES} bytes and has no end")
    if not found:
        raise Unavailable(f"the connection to {path} ended before its answer")
    return bytes(head)


def _parsed(path: str, line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Incompatible(f"what answers on {path} does not speak protocol {PROTOCOL}")
    return answer
