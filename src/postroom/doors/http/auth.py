"""Who asks, and from where: bearer tokens, the Unix socket's own user, and the checks on Host and Origin (RULINGS 38)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.types import Scope

from postroom.doors.http.api import Api
from postroom.errors import Forbidden, Unauthenticated
from postroom.model import Principal, Role

SOCKET_PRINCIPAL = Principal("admin", Role.ADMIN)
"""Who a caller without a token is on the Unix socket: only its own user can open it."""

_PLAIN = frozenset({"localhost", "127.0.0.1", "[::1]"})


def over_socket(scope: Scope) -> bool:
    """Whether the request came over the Unix socket: it has a path where others have a port, and no peer address."""
    server = scope.get("server")
    return scope.get("client") is None and server is not None and server[1] is None and str(server[0]).startswith("/")


def values(scope: Scope, name: bytes) -> list[str]:
    """Every value of a header, in order."""
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]


def loopback(host: str) -> bool:
    """Whether a Host, with or without a port, names this machine to itself."""
    name = _without_port(host.lower())
    if name in _PLAIN:
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


class Gate:
    """Lets requests in: from a place that may ask, by somebody who is known."""

    def __init__(self, api: Api) -> None:
        self._tokens = api.tokens
        self._open = api.open_principal
        self._hosts = frozenset(host.lower() for host in api.allowed_hosts)

    def check_place(self, scope: Scope) -> None:
        """Pass a request whose Host is ours and whose Origin, when there is one, is that same host. Raises Forbidden.

        A page of another site can make a browser send requests here, but can set neither of the two.
        """
        if over_socket(scope):
            return
        hosts = values(scope, b"host")
        if len(hosts) != 1 or not self._ours(hosts[0]):
            shown = ", ".join(hosts)[:100]
            raise Forbidden(
                f"Host {shown!r} is not one of this daemon's; a name besides loopback goes in [http] hosts",
                field="host",
            )
        for origin in values(scope, b"origin"):
            scheme, _, authority = origin.lower().partition("://")
            same = authority == hosts[0].lower() or (authority in self._hosts and "*" not in authority)
            if scheme not in {"http", "https"} or not same:
                raise Forbidden(f"Origin {origin[:100]!r} is foreign", field="origin")

    def _ours(self, host: str) -> bool:
        host = host.lower()
        name = _without_port(host)
        return "*" in self._hosts or host in self._hosts or name in self._hosts or loopback(host)

    async def principal(self, scope: Scope) -> Principal:
        """Whose token this is, or who needs none here. Raises Unauthenticated, Unavailable."""
        given = values(scope, b"authorization")
        if not given:
            if over_socket(scope):
                return SOCKET_PRINCIPAL
            if self._open is not None:
                return self._open
            raise Unauthenticated("no token was given; expected Authorization: Bearer tk_…")
        return await self._tokens.authenticate(_secret(given))


def _secret(given: Sequence[str]) -> str:
    scheme, _, secret = given[0].partition(" ")
    if len(given) != 1 or scheme.lower() != "bearer":
        raise Unauthenticated("the authorization is of another kind; expected Authorization: Bearer tk_…")
    return secret.strip()


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and not (":" in name and not name.endswith("]")) else host
