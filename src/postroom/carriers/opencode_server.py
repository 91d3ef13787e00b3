"""One opencode server: its settings, and calls to it that each end by their deadline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from postroom.carriers.opencode_wire import MAX_ANSWER, Broken, NotReached, Take, TooLong, Wire

NO_ROUTE = frozenset({404, 405, 501})
"""What a server answers that has no such route (RULINGS 24)."""


@dataclass(frozen=True, slots=True)
class OpencodeServer:
    """A server's settings: its base URL, and the password and user of its basic authentication where it has one."""

    url: str
    password: str | None = None
    user: str = "opencode"

    def __repr__(self) -> str:
        return f"OpencodeServer({self.shown!r})"

    @property
    def shown(self) -> str:
        """The URL as people may see it, without what could be a secret in it."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether it did what it was asked for."""
        return 200 <= self.status < 300

    def value(self) -> Any:
        """The body's JSON value; None when it is none, as from a route that answers with a page."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def words(self) -> str:
        """The answer in few words, for a reason: its status and what it says went wrong."""
        value = self.value()
        said = ""
        if isinstance(value, Mapping):
            data = value.get("data")
            inner = data.get("message") if isinstance(data, Mapping) else None
            said = str(inner or value.get("message") or value.get("name") or value.get("error") or "")
        return f"{self.status} {said[:200]}".strip()


class Unreached(Exception):
    """No answer came. sent: whether the server may have got the request all the same.

    broken: the connection ended under it, so that nothing more can come of it by this way.
    """

    def __init__(self, reason: str, *, sent: bool, broken: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent
        self.broken = broken


class ServerLink:
    """Calls to one server; connections are made when they are first needed."""

    def __init__(self, server: OpencodeServer) -> None:
        self.server = server
        self.missing: dict[str, float] = {}
        """Of the routes event, status and message those that the server does not have, and when it was last asked."""
        self.problem: str | None = None
        """Why the last call got no answer; None once one did."""
        self._wire = Wire(server.url, server.user, server.password)

    @property
    def basic(self) -> bool:
        """Whether it lacks what a turn is watched by: then one in flight means one call (RULINGS 24)."""
        return bool(self.missing)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        seconds: float,
        directory: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Reply:
        """One request and its whole answer within `seconds`. Raises Unreached."""
        content, headers = b"", ""
        if body is not None:
            content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
            headers = "content-type: application/json\r\n"
        if directory is not None:
            headers += f"x-opencode-directory: {header_value(directory)}\r\n"
        try:
            async with asyncio.timeout(seconds):
                status, answer = await self._wire.ask(method, path, headers, content)
        except TimeoutError:
            raise self._unreached(f"did not answer within {seconds:g} s", sent=True) from None
        except TooLong:
            raise self._unreached(f"answered more than {MAX_ANSWER} bytes", sent=True) from None
        except NotReached as error:
            raise self._unreached(f"cannot be reached: {error}", sent=False) from None
        except Broken as error:
            raise self._unreached(f"broke the connection: {error}", sent=True, broken=True) from None
        self.problem = None
        return Reply(status, answer)

    async def listen(
        self, path: str, head: Callable[[int, str], Take | None], *, head_s: float, silence_s: float
    ) -> None:
        """A stream of events until it ends; see Wire.listen. Raises NotReached and Broken."""
        await self._wire.listen(path, "accept: text/event-stream\r\n", head, head_s=head_s, silence_s=silence_s)

    def _unreached(self, words: str, *, sent: bool, broken: bool = False) -> Unreached:
        self.problem = f"{self.server.shown} {words}"
        return Unreached(self.problem, sent=sent, broken=broken)

    async def close(self) -> None:
        """Let go of every connection."""
        self._wire.close()


def session_path(session: str, rest: str = "") -> str:
    """The path of a session; its id may hold any character."""
    return f"/session/{quote(session, safe='')}{rest}"


def header_value(directory: str) -> str:
    """A directory as a header takes it: percent-encoded, as opencode's own client sends it, where it is not plain."""
    plain = directory.isascii() and directory.isprintable()
    return directory if plain and "%" not in directory else quote(directory, safe="/:\\")
