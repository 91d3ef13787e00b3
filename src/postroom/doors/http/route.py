"""A route: one line of the table that the door, its OpenAPI document and its reference page are made from."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from starlette.types import Receive

from postroom.doors.http.api import Api
from postroom.doors.http.errors import WrongMethod
from postroom.doors.http.fields import Asked
from postroom.errors import NotFound
from postroom.model import Principal

Schema = Mapping[str, Any]

SMALL = 64 * 1024
ONE = 2 * 1024 * 1024 + SMALL
"""A payload of 1 MiB may be written at twice its length, with what stands around it."""
MANY = 16 * 1024 * 1024

_PARAMETER = re.compile(r"\{([a-z_]+)(:path)?\}")


class Who(StrEnum):
    """Whom a route answers."""

    PUBLIC = "public"
    AGENT = "agent"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way to a handler: who asks, the parts of the path, the request key, and the client's end."""

    api: Api
    principal: Principal
    path: Mapping[str, str]
    request_id: str | None
    receive: Receive


Handler = Callable[[Call, Any], Awaitable[Any]]
"""Gives an Answer; that of a route that streams gives a Stream."""


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path, with what it takes and gives.

    body, query: what it takes, in one of the two places. replies: the schema by status of each answer that is no
    error. refusals: the statuses of errors beyond those that every such route has. most: bytes of body at most.
    keyed: whether it takes `Idempotency-Key`. streams: its reply is a stream of events, each of them the schema's.
    `{name:path}` in a path may hold slashes.
    """

    method: str
    path: str
    noun: str
    summary: str
    handler: Handler
    replies: Mapping[int, Schema | None]
    who: Who = Who.AGENT
    body: type[Asked] | None = None
    query: type[Asked] | None = None
    refusals: tuple[int, ...] = ()
    most: int = SMALL
    keyed: bool = False
    streams: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path's parts that vary."""
        return tuple(name for name, _ in _PARAMETER.findall(self.path))

    @property
    def shown_path(self) -> str:
        """The path with each varying part as `{name}`."""
        return _PARAMETER.sub(r"{\1}", self.path)

    @property
    def pattern(self) -> re.Pattern[str]:
        """What a path must match whole; its groups are the parts that vary."""
        pieces: list[str] = []
        end = 0
        for found in _PARAMETER.finditer(self.path):
            pieces.append(re.escape(self.path[end : found.start()]))
            pieces.append(f"(?P<{found.group(1)}>{'.+' if found.group(2) else '[^/]+'})")
            end = found.end()
        return re.compile("".join(pieces) + re.escape(self.path[end:]), re.DOTALL)


class Router:
    """Finds the route of a request: fixed paths by look-up, the others by their patterns in the table's order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._fixed: dict[str, dict[str, Route]] = {}
        self._varying: dict[str, tuple[re.Pattern[str], dict[str, Route]]] = {}
        for route in routes:
            if route.parameters:
                methods = self._varying.setdefault(route.path, (route.pattern, {}))[1]
            else:
                methods = self._fixed.setdefault(route.path, {})
            methods[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """The route and the parts of the path that vary. Raises NotFound, WrongMethod."""
        fixed = self._fixed.get(path)
        if fixed is not None:
            return _of(fixed, method), {}
        for pattern, methods in self._varying.values():
            match = pattern.fullmatch(path)
            if match is not None:
                return _of(methods, method), match.groupdict()
        raise NotFound(f"there is nothing at {path[:100]!r}", field="path")


def _of(methods: Mapping[str, Route], method: str) -> Route:
    route = methods.get("GET" if method == "HEAD" else method)
    if route is None:
        allowed = [*methods, *(["HEAD"] if "GET" in methods else [])]
        raise WrongMethod(method, tuple(sorted(allowed)))
    return route
