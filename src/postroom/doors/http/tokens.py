"""Tokens over HTTP: who may come in; for admins."""

from __future__ import annotations

import re
from typing import Annotated

from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.fields import GLOB_PATTERN, NAME_PATTERN, Asked, Nothing, told
from postroom.doors.http.mail_fields import PARTIES_PATTERN
from postroom.doors.http.route import Call, Route, Who
from postroom.doors.http.schemas import TEXT, many, named, record
from postroom.errors import NotFound
from postroom.model import Role
from postroom.wire import token_view

NOUN = "tokens"

_NAMED = re.compile(r"[A-Za-z0-9._-]{1,64}")


class CreateToken(Asked):
    """A token to be made."""

    name: Annotated[str, told("Whose it is: claims and messages carry this name.", pattern=NAME_PATTERN)]
    role: Annotated[str, told("What it may do; agent by default.", enum=list(Role))] | None = None
    queues: (
        Annotated[
            list[Annotated[str, told("A queue or a glob.", pattern=GLOB_PATTERN)]],
            told("The queues it may use; all by default.", minItems=1, maxItems=100),
        ]
        | None
    ) = None
    speaks_as: (
        Annotated[
            list[Annotated[str, told("A name or a glob, as ses_*.", pattern=PARTIES_PATTERN)]],
            told("Whom it may send as, and whose inboxes it may read, besides its own name.", minItems=0, maxItems=100),
        ]
        | None
    ) = None


async def create(call: Call, asked: CreateToken) -> Answer:
    """Nothing -> a token; its secret is in this answer and nowhere else."""
    role = Role.AGENT if asked.role is None else asked.role
    queues = ("*",) if asked.queues is None else asked.queues
    speaks_as = asked.speaks_as or ()
    token, secret = await call.api.tokens.create(call.principal, asked.name, role, queues, speaks_as)
    return json_answer({"token": token_view(token), "secret": secret}, 201)


async def list_tokens(call: Call, _: None) -> Answer:
    """Every token there was."""
    return json_answer({"tokens": [token_view(token) for token in await call.api.tokens.all(call.principal)]})


async def revoke(call: Call, _: Nothing) -> Answer:
    """Valid -> revoked."""
    given = call.path["id"]
    if not _NAMED.fullmatch(given):
        raise NotFound(f"there is no valid token {given[:64]!r}", field="id")
    return json_answer({"token": token_view(await call.api.tokens.revoke(call.principal, given))})


ROUTES = (
    Route(
        "POST",
        "/v1/tokens",
        NOUN,
        "Create a token; its secret is shown in this answer alone.",
        create,
        {201: record({"token": named("Token"), "secret": TEXT})},
        who=Who.ADMIN,
        body=CreateToken,
        refusals=(409,),
    ),
    Route(
        "GET",
        "/v1/tokens",
        NOUN,
        "List every token there was, without secrets.",
        list_tokens,
        {200: record({"tokens": many(named("Token"))})},
        who=Who.ADMIN,
    ),
    Route(
        "POST",
        "/v1/tokens/{id}/revoke",
        NOUN,
        "Revoke a token by its id or name; what it had claimed goes back to its queues.",
        revoke,
        {200: record({"token": named("Token")})},
        who=Who.ADMIN,
        body=Nothing,
    ),
)
