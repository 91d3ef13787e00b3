"""The HTTP door: one ASGI app that lets a request in, finds its route, and tells whatever comes of it."""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from postroom.doors.http.answers import Answer, send_answer
from postroom.doors.http.api import Api
from postroom.doors.http.auth import Gate, values
from postroom.doors.http.body import LARGE, parse_body, parse_query, read_body
from postroom.doors.http.errors import Gone, error_answer, fault_answer
from postroom.doors.http.openapi import KEY_HEADER, KEY_PATTERN
from postroom.doors.http.route import Call, Route, Router, Who
from postroom.doors.http.routes import route_table
from postroom.doors.http.stream import Stream
from postroom.doors.swarm import SwarmDoor
from postroom.errors import Forbidden, Invalid, NotFound, PostroomError, Unauthenticated, Unavailable
from postroom.happening_wire import PATH as STREAM
from postroom.model import Principal

NOBODY = Principal("nobody", queues=())
"""Who asks where nobody needs to be known."""

_KEY = KEY_HEADER.lower().encode()
_KEY_SHAPE = re.compile(KEY_PATTERN)

log = logging.getLogger("postroom.http")


def build_app(api: Api) -> ASGIApp:
    """The door over an installation's services."""
    return HttpDoor(api)


class HttpDoor:
    """Answers `/v1`, `/health` and `/ready`, and passes `/swarm/`, `/mcp` and `/hooks/` on."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._gate = Gate(api)
        self._router = Router(route_table())
        self._swarm = SwarmDoor(api, self._enter)
        self._one_large = asyncio.Semaphore(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the HTTP door serves http, not {scope['type']}")
        path: str = scope["path"]
        if self._api.hooks is not None and path.startswith("/hooks/"):
            # The hooks' own app: signed by their senders, so no token, and any Host (RULINGS 38).
            await self._api.hooks(scope, receive, send)
            return
        answer: Answer | Stream | None
        try:
            if path == "/mcp" and self._api.mcp is not None:
                known = partial(self._known, scope)
                scope["state"] = {**scope.get("state", {}), "principal": await self._enter(scope), "known": known}
                answer = None
            elif path.startswith("/swarm/"):
                answer = await self._swarm.answer(scope, receive)
            else:
                answer = await self._answer(scope, receive)
            if isinstance(answer, Stream):
                await answer.run(receive, send, partial(self._known, scope), head=scope["method"] == "HEAD")
                return
        except Gone:
            return
        except PostroomError as error:
            answer = error_answer(error)
        except Exception:
            log.exception("%s %s failed", scope["method"], path[:200].encode("ascii", "backslashreplace").decode())
            answer = fault_answer()
        if answer is not None:
            await send_answer(send, answer, head=scope["method"] == "HEAD")
        elif self._api.mcp is not None:
            await self._api.mcp(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer | Stream:
        path: str = scope["path"]
        if path == "/health":
            principal = NOBODY
        elif path != STREAM and not path.startswith("/v1/"):
            self._gate.check_place(scope)
            principal = NOBODY
        else:
            # Nobody unknown is told which paths there are.
            principal = await self._enter(scope)
        route, parts = self._router.find(scope["method"], path)
        if route.who is not Who.PUBLIC and principal is NOBODY:
            raise NotFound(f"there is nothing at {path[:100]!r}", field="path")
        if route.who is Who.ADMIN and not principal.admin:
            raise Forbidden(f"{route.method} {route.shown_path} is for admins")
        key = _request_key(scope) if route.keyed else None
        asked = await self._asked(route, scope, receive)
        answer: Answer | Stream = await route.handler(Call(self._api, principal, parts, key, receive), asked)
        return answer

    async def _known(self, scope: Scope) -> bool:
        """Whether who asked would still be let in: its token may have been revoked since."""
        try:
            await self._gate.principal(scope)
        except Unauthenticated:
            return False
        except Unavailable:
            pass
        return True

    async def _enter(self, scope: Scope) -> Principal:
        """Who asks, once the place is right and there is a database to ask. Raises the family's errors."""
        self._gate.check_place(scope)
        reason = self._api.ready()
        if reason is not None:
            raise Unavailable(f"not ready: {reason}")
        return await self._gate.principal(scope)

    async def _asked(self, route: Route, scope: Scope, receive: Receive) -> Any:
        query: bytes = scope["query_string"]
        if route.query is not None:
            return parse_query(query, route.query)
        if query and route.who is not Who.PUBLIC:
            raise Invalid("this path takes no query", field="query")
        if route.body is None:
            return None
        raw = await read_body(scope["headers"], receive, route.most)
        if len(raw) <= LARGE:
            return parse_body(raw, route.body)
        async with self._one_large:
            return await asyncio.to_thread(parse_body, raw, route.body)


def _request_key(scope: Scope) -> str | None:
    given = values(scope, _KEY)
    if not given:
        return None
    if len(given) > 1 or not _KEY_SHAPE.fullmatch(given[0]):
        raise Invalid(f"{KEY_HEADER} is expected once, as 1 to 256 visible ASCII characters", field=KEY_HEADER)
    return given[0]
