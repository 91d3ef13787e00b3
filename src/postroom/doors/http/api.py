"""What the HTTP door stands on: the services it translates to, and what the daemon tells it of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import ASGIApp

from postroom.carriers.channel import ChannelCarrier
from postroom.desk import Desk
from postroom.doors.firing import Fired
from postroom.endpoint import Endpoint
from postroom.model import Principal
from postroom.services.attaching import Place
from postroom.services.claims import ClaimService
from postroom.services.endings import EndingService
from postroom.services.events import EventService
from postroom.services.giving_back import GivingBack
from postroom.services.happenings import Happenings
from postroom.services.inbox import InboxService
from postroom.services.post import PostService
from postroom.services.queues import QueueService
from postroom.services.receipts import ReceiptService
from postroom.services.registry import Registry
from postroom.services.replays import ReplayService
from postroom.services.replies import ReplyService
from postroom.services.rulesets import RuleSetService
from postroom.services.todos import TodoService
from postroom.services.tokens import TokenService
from postroom.services.trace import TraceService
from postroom.services.trials import TrialService
from postroom.services.waiting import WaitingRoom
from postroom.sources.roster import Roster


class Installation(Protocol):
    """The daemon's own place: its settings file, its data, its addresses."""

    def places(self) -> dict[str, Any]:
        """`settings_file`, `data` and `addresses`."""
        ...

    async def reload(self) -> None:
        """The settings file's sources -> in force, all or none. Raises Invalid naming file, line and key."""
        ...

    async def fire(self, name: str, kind: str | None) -> Fired:
        """A sample of this kind, signed as its sender would sign it, through the daemon's own port."""
        ...


@dataclass(frozen=True, slots=True)
class Api:
    """Everything the door needs.

    ready: None when the daemon serves, else why not yet. away: why its database could not be reached when it was last
    looked at, else None; calls are let in all the same, to find out for themselves. allowed_hosts: Host names besides
    loopback, with or without a port; `*` is any. open_principal: who a caller without a token is, where tokens are not
    wanted. place: what an endpoint's address is called, and who can carry there. carries: whether anybody does.
    channel: hands messages to the processes that wait for them; None where nobody may. mcp: answers `/mcp`, with the
    principal in `scope["state"]`. hooks: answers everything under `/hooks/`.
    """

    todos: TodoService
    claims: ClaimService
    giving: GivingBack
    endings: EndingService
    waiting: WaitingRoom
    queues: QueueService
    events: EventService
    replays: ReplayService
    rulesets: RuleSetService
    trials: TrialService
    roster: Roster
    installation: Installation
    tokens: TokenService
    trace: TraceService
    post: PostService
    replies: ReplyService
    receipts: ReceiptService
    inbox: InboxService
    registry: Registry
    happenings: Happenings
    place: Place
    desk_for: Callable[[Principal], Desk]
    status: Callable[[Principal], Awaitable[dict[str, Any]]]
    ready: Callable[[], str | None]
    away: Callable[[], str | None] = lambda: None
    allowed_hosts: Sequence[str] = ()
    open_principal: Principal | None = None
    carries: Callable[[Endpoint], bool] = lambda endpoint: True
    channel: ChannelCarrier | None = None
    mcp: ASGIApp | None = None
    hooks: ASGIApp | None = None
