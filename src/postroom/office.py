"""The office: every service of an installation over one engine, in a daemon or in a caller's own process."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from postroom.carriers.whereabouts import Whereabouts
from postroom.delivery import Policy
from postroom.endpoint import Endpoint
from postroom.errors import Misconfigured
from postroom.ids import Ids, RandomIds
from postroom.limits import check_name
from postroom.model import Principal, Role
from postroom.services.addresses import AddressBook
from postroom.services.allowed import Allowance, Allowed
from postroom.services.assigning import AssigningService
from postroom.services.attaching import Place
from postroom.services.claims import ClaimService
from postroom.services.dispatch import DispatchService
from postroom.services.doorbell import Doorbell
from postroom.services.endings import EndingService
from postroom.services.events import EventService
from postroom.services.giving_back import GivingBack
from postroom.services.handover import HandoverService
from postroom.services.happenings import Happenings
from postroom.services.inbox import InboxService
from postroom.services.intake import IntakeService
from postroom.services.local import LocalDesk
from postroom.services.local_post import LocalPost
from postroom.services.local_view import LocalView
from postroom.services.owners import Owners
from postroom.services.post import PostService
from postroom.services.queues import QueueService
from postroom.services.rates import Rates
from postroom.services.receipts import ReceiptService
from postroom.services.registry import Registry
from postroom.services.replays import ReplayService
from postroom.services.replies import ReplyService
from postroom.services.requests import Requests
from postroom.services.rulesets import RuleSetService
from postroom.services.sorting import Sorter
from postroom.services.sweep import Sweep
from postroom.services.todos import TodoService
from postroom.services.tokens import TokenService
from postroom.services.trace import TraceService
from postroom.services.traffic import TrafficService
from postroom.services.trials import TrialService
from postroom.services.waiting import WaitingRoom
from postroom.services.wake import Wake
from postroom.services.watch import Watch
from postroom.services.workplaces import Directory
from postroom.sources.roster import Roster
from postroom.store.admissions import AdmissionTable
from postroom.store.assignments import AssignmentTable
from postroom.store.claims import ClaimTable
from postroom.store.deliveries import DeliveryTable
from postroom.store.endpoints import EndpointTable
from postroom.store.engine import Engine
from postroom.store.events import EventTable
from postroom.store.handovers import HandoverTable
from postroom.store.mailboxes import MailboxTable
from postroom.store.posted import PostedTable
from postroom.store.queues import QueueTable
from postroom.store.requests import RequestTable
from postroom.store.rings import RingTable
from postroom.store.rule_sets import RuleSetTable
from postroom.store.sweeps import SweepTable
from postroom.store.targets import TargetTable
from postroom.store.todos import TodoTable
from postroom.store.tokens import TokenTable
from postroom.store.traffic import TrafficTable


def wall_clock() -> int:
    """The host's clock in ms UTC."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Office:
    """Every service of one installation, over one engine."""

    engine: Engine
    todos: TodoService
    endings: EndingService
    claims: ClaimService
    giving: GivingBack
    waiting: WaitingRoom
    queues: QueueService
    events: EventService
    intake: IntakeService
    rulesets: RuleSetService
    replays: ReplayService
    trials: TrialService
    roster: Roster
    tokens: TokenService
    trace: TraceService
    traffic: TrafficService
    dispatch: DispatchService
    receipts: ReceiptService
    post: PostService
    replies: ReplyService
    inbox: InboxService
    registry: Registry
    doorbell: Doorbell
    handover: HandoverService
    assigning: AssigningService
    watch: Watch
    happenings: Happenings
    place: Place
    sweep: Sweep
    wake: Wake

    def desk(self, principal: Principal, source: str = "python") -> LocalDesk:
        """The verbs of the queue for one principal."""
        post = self.mail(principal)
        return LocalDesk(principal, self.todos, self.claims, self.endings, self.waiting, self.giving, post, source)

    def mail(self, principal: Principal, place: Place | None = None) -> LocalPost:
        """The verbs of the post for one principal; `place` knows the carriers' addresses, the office's own by default."""
        return LocalPost(
            principal, self.post, self.replies, self.receipts, self.inbox, self.registry, place or self.place
        )

    def view(self, principal: Principal) -> LocalView:
        """Queues and happenings for one principal."""
        return LocalView(principal, self.queues, self.happenings)


def make_engine(url: str, clock: Callable[[], int] = wall_clock) -> Engine:
    """The engine of a database URL, not yet opened. Raises Misconfigured for a URL of another kind."""
    if url.startswith("sqlite:///"):
        from postroom.store.sqlite import SqliteEngine

        return SqliteEngine(Path(url.removeprefix("sqlite:///")).expanduser(), clock)
    if url.startswith(("postgresql://", "postgres://")):
        from postroom.store.postgres import PostgresEngine

        return PostgresEngine(url)
    raise Misconfigured(f"database {url[:40]!r}: expected sqlite:///FILE or postgresql://…", field="database")


def compose(
    engine: Engine,
    *,
    ids: Ids | None = None,
    jitter: random.Random | None = None,
    clock: Callable[[], int] = wall_clock,
    roster: Roster | None = None,
    policy: Policy | None = None,
    place: Place | None = None,
    directory: Directory | None = None,
    carries: Callable[[Endpoint], bool] = lambda endpoint: True,
    allow: Sequence[Allowance] = (),
    rate_per_minute: int = 0,
) -> Office:
    """Every service over an engine; nothing runs yet. `roster` holds the sources, none when it is not given.

    policy: how long leases, acknowledgements and turns of the post take, the usual one when it is not given. place:
    the carriers' addresses; without it those of inboxes and sessions. directory: where an endpoint's place is, told to who
    asks who works here. carries: whether somebody carries to an endpoint; others are not rung. allow: who may write to
    whom, everybody to everybody when there is none. rate_per_minute: how many messages an agent's sender may send, 0 any
    number.
    """
    ids = ids or RandomIds()
    jitter = jitter or random.Random()
    roster = roster or Roster()
    policy = policy or Policy()
    wake = Wake(engine)
    todo_table, claim_table = TodoTable(engine.dialect), ClaimTable(engine.dialect)
    queue_table, event_table = QueueTable(), EventTable()
    requests = Requests(engine, RequestTable())
    tokens = TokenTable()
    owners = Owners(tokens)
    todos = TodoService(engine, todo_table, owners, requests, wake, ids)
    endings = EndingService(engine, todo_table, wake, jitter)
    claims = ClaimService(engine, claim_table, todo_table, queue_table, todos, endings, wake, ids, jitter)
    giving = GivingBack(claims, wake)
    events = EventService(engine, event_table)
    rulesets = RuleSetService(engine, RuleSetTable(), roster, time.monotonic)
    sorter = Sorter(rulesets, event_table, todo_table, ids)
    sweep_table, delivery_table = SweepTable(engine.dialect), DeliveryTable(engine.dialect, policy)
    dispatch = DispatchService(engine, delivery_table, TargetTable(policy), sweep_table, wake, ids)
    endpoint_table, mailbox_table = EndpointTable(policy.live), MailboxTable()
    admission_table, book = AdmissionTable(engine.dialect, policy.live), AddressBook(endpoint_table, ids)
    allowed = Allowed(allow)
    watch, posted_table = Watch(engine, mailbox_table, wake), PostedTable(engine.dialect, delivery_table)
    post = PostService(
        engine,
        admission_table,
        posted_table,
        delivery_table,
        endpoint_table,
        requests,
        wake,
        watch,
        ids,
        clock,
        allowed,
        Rates(rate_per_minute, time.monotonic),
    )
    return Office(
        engine=engine,
        todos=todos,
        endings=endings,
        claims=claims,
        giving=giving,
        waiting=WaitingRoom(engine, claim_table, queue_table, claims, giving, wake),
        queues=QueueService(engine, queue_table, wake),
        events=events,
        intake=IntakeService(engine, event_table, sorter, wake, ids),
        rulesets=rulesets,
        replays=ReplayService(engine, event_table, roster, sorter, requests, wake),
        trials=TrialService(engine, event_table, roster, rulesets),
        roster=roster,
        tokens=TokenService(engine, tokens, endpoint_table, wake, ids, time.monotonic),
        trace=TraceService(engine, todos, events, event_table, post, posted_table),
        traffic=TrafficService(engine, TrafficTable(policy.live)),
        dispatch=dispatch,
        receipts=ReceiptService(engine, delivery_table, requests, wake),
        post=post,
        replies=ReplyService(engine, posted_table, post, watch, allowed),
        inbox=InboxService(engine, mailbox_table, delivery_table, endpoint_table, watch, wake),
        registry=Registry(engine, endpoint_table, wake, ids, directory),
        doorbell=Doorbell(
            engine,
            RingTable(engine.dialect, policy.live),
            admission_table,
            delivery_table,
            book,
            wake,
            ids,
            clock,
            carries,
        ),
        handover=HandoverService(engine, HandoverTable(), admission_table, book, owners, wake, ids, clock),
        assigning=AssigningService(
            engine, AssignmentTable(), todo_table, admission_table, endpoint_table, book, owners, wake, ids, clock
        ),
        watch=watch,
        happenings=Happenings(wake, watch, clock),
        place=place or Whereabouts(),
        sweep=Sweep(engine, sweep_table, queue_table, dispatch, wake, clock),
        wake=wake,
    )


@asynccontextmanager
async def connect(url: str, *, name: str = "python") -> AsyncIterator[LocalDesk]:
    """A desk over a store in this process, for `name`, who is admin there; no daemon is needed.

    `url` is `sqlite:///FILE` (which this process then holds alone) or `postgresql://…`. Raises Misconfigured when
    another process holds the file or its schema is newer, Unavailable when the server cannot be reached.
    """
    check_name(name, "name")
    office = compose(make_engine(url))
    await office.engine.open()
    keeping = [asyncio.create_task(run()) for run in (office.sweep.run, office.handover.run, office.assigning.run)]
    try:
        yield office.desk(Principal(name, Role.ADMIN))
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        await office.waiting.close()
        await office.watch.close()
        office.happenings.close()
        await office.engine.close()
