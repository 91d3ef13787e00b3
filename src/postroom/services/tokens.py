"""Tokens: who may come in; the secret is shown once, at its making (RULINGS 37)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from postroom.endpoint import Endpoint
from postroom.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from postroom.ids import Ids, Prefix, is_id, new_secret, secret_digest
from postroom.limits import check_name
from postroom.model import Principal, Role, Token
from postroom.services import tellings
from postroom.services.notice import SENDER
from postroom.services.wake import Wake
from postroom.store.endpoints import EndpointTable
from postroom.store.engine import Engine, Once, Reader, Tx
from postroom.store.tokens import TokenTable
from postroom.text import check_text

CACHE_SECONDS = 5.0
CACHE_SIZE = 1024

_GLOB = re.compile(r"[a-z0-9*?][a-z0-9*?._/-]{0,127}")
_PARTIES = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9*?._:/@-]{0,127}")


class TokenService:
    """The verbs over tokens, and the look-up that every request makes; `monotonic` gives seconds."""

    def __init__(
        self,
        engine: Engine,
        table: TokenTable,
        endpoints: EndpointTable,
        wake: Wake,
        ids: Ids,
        monotonic: Callable[[], float],
        secret: Callable[[], str] = new_secret,
    ) -> None:
        self._engine = engine
        self._table = table
        self._endpoints = endpoints
        self._wake = wake
        self._ids = ids
        self._monotonic = monotonic
        self._secret = secret
        self._reader = Reader(engine)
        self._cache: dict[str, tuple[float, Principal]] = {}
        self._kept: dict[str, Principal] = {}

    async def authenticate(self, secret: str) -> Principal:
        """The principal of a valid secret, remembered for 5 s at most. Raises Unauthenticated.

        The look-up is by the secret's digest, so that no comparison runs on the secret itself.
        """
        if not secret.startswith("tk_") or len(secret) > 128:
            raise Unauthenticated("the token is unknown or revoked")
        if is_id(secret, Prefix.TOKEN):
            raise Unauthenticated("this is a token's id, not its secret, which was shown when the token was made")
        digest = secret_digest(secret)
        kept = self._kept.get(digest)
        if kept is not None:
            return kept
        now = self._monotonic()
        known = self._cache.get(digest)
        if known is not None and known[0] > now:
            return known[1]
        token = await self._table.by_digest(self._reader, digest)
        if token is None:
            self._cache.pop(digest, None)
            raise Unauthenticated("the token is unknown or revoked")
        principal = token.principal
        if len(self._cache) >= CACHE_SIZE:
            self._cache.clear()
        self._cache[digest] = (now + CACHE_SECONDS, principal)
        return principal

    async def create(
        self,
        principal: Principal,
        name: str,
        role: str = "agent",
        queues: Sequence[str] = ("*",),
        speaks_as: Sequence[str] = (),
    ) -> tuple[Token, str]:
        """Nothing -> a token and its secret; for admins. Raises Conflict when the name is taken.

        speaks_as: names and globs that it may send as, and whose inboxes it may read, besides its own (RULINGS 36).
        """
        _admin(principal)
        check_name(name, "name")
        if role not in Role.__members__.values():
            raise Invalid(f"role {role[:40]!r} is expected to be one of {', '.join(Role)}", field="role")
        if not 1 <= len(queues) <= 100:
            raise Invalid(f"queues names {len(queues)}; expected 1 to 100", field="queues")
        for glob in queues:
            if not _GLOB.fullmatch(glob):
                raise Invalid(f"queues: {glob[:64]!r} is no queue name or glob", field="queues")
        if len(speaks_as) > 100:
            raise Invalid(f"speaks_as names {len(speaks_as)}; expected at most 100", field="speaks_as")
        for glob in speaks_as:
            if not _PARTIES.fullmatch(glob):
                raise Invalid(f"speaks_as: {glob[:64]!r} is nobody's name and no glob of names", field="speaks_as")
        if name == SENDER or any(kept.name == name for kept in self._kept.values()):
            raise Conflict(f"{name} is the daemon's own; take another name", field="name")
        secret = self._secret()
        token = await self._table.insert(
            Once(self._engine),
            self._ids.new(Prefix.TOKEN),
            name,
            Role(role),
            tuple(queues),
            secret_digest(secret),
            tuple(speaks_as),
        )
        if token is None:
            raise Conflict(f"there is a token {name} already; revoke it, or take another name", field="name")
        return token, secret

    def keep(self, name: str, role: Role, secret: str) -> None:
        """Let this secret in under this name, here alone: it is in no table, so daemons of one database have each theirs."""
        self._kept[secret_digest(secret)] = Principal(name, role)

    async def all(self, principal: Principal) -> list[Token]:
        """Every token there was; for admins."""
        _admin(principal)
        return await self._table.all(self._reader)

    async def revoke(self, principal: Principal, id_or_name: str) -> Token:
        """Valid -> revoked; its claims go back to their queues, and its endpoints end; for admins (RULINGS 17)."""
        _admin(principal)
        check_text(id_or_name, "id")

        async def operation(tx: Tx) -> tuple[Token, list[tuple[str, str]], list[Endpoint | None]]:
            token = await self._table.revoke(tx, id_or_name)
            if token is None:
                raise NotFound(f"there is no valid token {id_or_name[:64]!r}", field="id")
            ended = await self._endpoints.end_of(tx, token.name)
            endpoints = [await self._endpoints.get(tx, id_) for id_ in ended] if self._wake.heard else []
            return token, await self._table.release_claims(tx, token.name), endpoints

        token, released, endpoints = await self._engine.transact(operation)
        self._cache.clear()
        self._wake.told(tellings.todos_released, released, principal.name, "the token was revoked")
        self._wake.told(tellings.endpoints_ended, endpoints)
        self._wake.work({queue for _, queue in released})
        return token


def _admin(principal: Principal) -> None:
    if not principal.admin:
        raise Forbidden("only an admin handles tokens")
