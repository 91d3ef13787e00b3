"""`opencode-send`: a message to a session through the daemon, or, without one, straight to the opencode server.

Exit codes: 0 sent, 1 refused, 2 wrong usage, 3 nobody reached.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlsplit

from postroom.doors.cli.connection import Daemon, Unreachable
from postroom.doors.cli.payload import text_of
from postroom.doors.cli.pigeon import USAGE, add_sending, aimed, send, shown, telling
from postroom.errors import Invalid, NotFound, PostroomError, Unauthenticated, Unavailable

SERVER: Final = "http://127.0.0.1:4096"
ANSWER_S: Final = 30.0
MAX_ANSWER: Final = 1024 * 1024

_SESSION: Final = re.compile(r"ses_")
_LOOPBACK: Final = {"127.0.0.1", "localhost", "::1"}
_WARNING: Final = (
    "warning: sent past the daemon: nothing keeps this message from running beside another turn of the same session, "
    "and nothing repeats it when it is lost"
)


def run(words: Sequence[str] | None = None) -> None:
    """Send what a shell's words ask for, and leave by SystemExit."""
    parser = _parser()
    asked = parser.parse_intermixed_args(words)
    target, message = aimed(parser, asked)
    raise SystemExit(telling(lambda: _send(parser, asked, target, message)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="opencode-send",
        description="Send a message to an opencode session: by the daemon's queue when the target is a session (ses_...) "
        "and the daemon is well, else straight to the opencode server.",
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", metavar="TARGET MESSAGE", help="the session and the text; - reads stdin")
    add_sending(parser)
    parser.add_argument("--direct", action="store_true", help="straight to the opencode server, come what may")
    parser.add_argument(
        "--url", default=None, help=f"the opencode server; $OPENCODE_URL, else {SERVER} (only when sent straight)"
    )
    parser.add_argument(
        "--cwd", metavar="DIR", help="the session's directory; looked up by default (only when straight)"
    )
    return parser


def _send(parser: argparse.ArgumentParser, asked: argparse.Namespace, target: str | None, message: str) -> int:
    if not asked.direct and (target is None or _SESSION.match(target)):
        try:
            well = Daemon.find(asked.data, os.environ).healthy()
        except Invalid as error:
            print(f"error: invalid: {shown(error.message)}", file=sys.stderr)
            return USAGE
        if well:
            return send(parser, asked, target, message)
        print("warning: no daemon answers", file=sys.stderr)
    if target is None:
        parser.error("a channel is the daemon's, and it is not there to be asked")
    server = Server(asked.url or os.environ.get("OPENCODE_URL") or SERVER, os.environ)
    payload = text_of(message)
    print(_WARNING, file=sys.stderr)
    directory = asked.cwd or server.directory_of(target)
    server.prompt(target, directory, payload)
    print(f"Sent to {shown(target)} (cwd={shown(directory)}, {len(payload)} chars)")
    return 0


class Server:
    """An opencode server on this machine. Raises Invalid for an address elsewhere."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if parts.scheme != "http" or host not in _LOOPBACK or parts.path not in {"", "/"}:
            raise Invalid(f"url {url[:200]!r} is no opencode server of this machine; expected {SERVER}", field="url")
        self.url = url.rstrip("/")
        self._host, self._port = host, port
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        password = environ.get("OPENCODE_SERVER_PASSWORD")
        if password:
            user = environ.get("OPENCODE_SERVER_USERNAME") or "opencode"
            secret = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
            self._headers["Authorization"] = f"Basic {secret}"

    def directory_of(self, session: str) -> str:
        """The directory of a session. Raises NotFound when the server has no such session, Unreachable."""
        status, raw = self._ask("GET", f"/session/{quote(session, safe='')}")
        if status >= 400:
            raise self._refusal(status, raw, session)
        try:
            found = json.loads(raw)["directory"]
        except (ValueError, LookupError, TypeError, RecursionError):
            found = None
        if not isinstance(found, str) or not found:
            raise Unreachable(f"what answers at {self.url} is no opencode server", "Check --url or OPENCODE_URL.")
        return found

    def prompt(self, session: str, directory: str, text: str) -> None:
        """Put a prompt into the session, and wait for nothing. Raises NotFound, Unavailable, Unreachable."""
        body = json.dumps({"parts": [{"type": "text", "text": text}]}).encode()
        plain = directory.isascii() and directory.isprintable()
        headers = {"x-opencode-directory": directory if plain else quote(directory, errors="surrogateescape")}
        status, raw = self._ask("POST", f"/session/{quote(session, safe='')}/prompt_async", body, headers)
        if status >= 300:
            raise self._refusal(status, raw, session)

    def _ask(
        self, method: str, path: str, body: bytes | None = None, more: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host or "", self._port, timeout=ANSWER_S)
        try:
            connection.request(method, path, body, {**self._headers, **(more or {})})
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(
                f"no opencode server answers at {self.url}: {why}",
                "Start `opencode serve`, or name the server with --url or OPENCODE_URL."
                if method == "GET"
                else "It may have arrived all the same: look at the session before you repeat it.",
            ) from None
        finally:
            connection.close()

    def _refusal(self, status: int, raw: bytes, session: str) -> PostroomError:
        if status == 404:
            return NotFound(f"{self.url} has no session {session[:128]!r}", field="to")
        if status == 401:
            return Unauthenticated(f"{self.url} wants a password", hint="Set OPENCODE_SERVER_PASSWORD.")
        said = raw[:200].decode("utf-8", "replace").strip()
        return Unavailable(f"{self.url} answered {status}: {said}")
