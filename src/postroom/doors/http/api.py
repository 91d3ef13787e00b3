"""What the HTTP door stands on: the services it translates to, and what the daemon tells it of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from postroom.desk import Desk
from postroom.model import Principal
from postroom.services.claims import ClaimService
from postroom.services.endings import EndingService
from postroom.services.events import EventService
from postroom.services.queues import QueueService
from postroom.services.todos import TodoService
from postroom.services.tokens import TokenService
from postroom.services.trace import TraceService
from postroom.services.waiting import WaitingRoom


@dataclass(frozen=True, slots=True)
class Api:
    """Everything the door needs.

    ready: None when the daemon serves, else why not yet. away: why its database could not be reached when it was last
    looked at, else None; calls are let in all the same, to find out for themselves. allowed_hosts: Host names besides
    loopback, with or without a port; `*` is any. open_principal: who a caller without a token is, where tokens are not
    wanted. mcp: answers `/mcp`, with the principal in `scope["state"]`. hooks: answers everything under `/hooks/`.
    """

    todos: TodoService
    claims: ClaimService
    endings: EndingService
    waiting: WaitingRoom
    queues: QueueService
    events: EventService
    tokens: TokenService
    trace: TraceService
    desk_for: Callable[[Principal], Desk]
    status: Callable[[Principal], Awaitable[dict[str, Any]]]
    ready: Callable[[], str | None]
    away: Callable[[], str | None] = lambda: None
    allowed_hosts: Sequence[str] = ()
    open_principal: Principal | None = None
    mcp: ASGIApp | None = None
    hooks: ASGIApp | None = None
