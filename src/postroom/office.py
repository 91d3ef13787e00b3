"""The office: every service of an installation over one engine, in a daemon or in a caller's own process."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from postroom.errors import Misconfigured
from postroom.ids import Ids, RandomIds
from postroom.limits import check_name
from postroom.model import Principal, Role
from postroom.services.claims import ClaimService
from postroom.services.endings import EndingService
from postroom.services.events import EventService
from postroom.services.intake import IntakeService
from postroom.services.local import LocalDesk
from postroom.services.queues import QueueService
from postroom.services.replays import ReplayService
from postroom.services.requests import Requests
from postroom.services.rulesets import RuleSetService
from postroom.services.sorting import Sorter
from postroom.services.sweep import Sweep
from postroom.services.todos import TodoService
from postroom.services.tokens import TokenService
from postroom.services.trace import TraceService
from postroom.services.trials import TrialService
from postroom.services.waiting import WaitingRoom
from postroom.services.wake import Wake
from postroom.sources.roster import Roster
from postroom.store.claims import ClaimTable
from postroom.store.engine import Engine
from postroom.store.events import EventTable
from postroom.store.queues import QueueTable
from postroom.store.requests import RequestTable
from postroom.store.rule_sets import RuleSetTable
from postroom.store.sweeps import SweepTable
from postroom.store.todos import TodoTable
from postroom.store.tokens import TokenTable


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
    sweep: Sweep
    wake: Wake

    def desk(self, principal: Principal, source: str = "python") -> LocalDesk:
        """The verbs of the queue for one principal."""
        return LocalDesk(principal, self.todos, self.claims, self.endings, self.waiting, source)


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
) -> Office:
    """Every service over an engine; nothing runs yet. `roster` holds the sources, none when it is not given."""
    ids = ids or RandomIds()
    jitter = jitter or random.Random()
    roster = roster or Roster()
    wake = Wake(engine)
    todo_table, claim_table = TodoTable(engine.dialect), ClaimTable(engine.dialect)
    queue_table, event_table = QueueTable(), EventTable()
    requests = Requests(engine, RequestTable())
    todos = TodoService(engine, todo_table, requests, wake, ids)
    endings = EndingService(engine, todo_table, wake, jitter)
    claims = ClaimService(engine, claim_table, todo_table, queue_table, todos, endings, wake, ids, jitter)
    events = EventService(engine, event_table)
    rulesets = RuleSetService(engine, RuleSetTable(), roster, time.monotonic)
    sorter = Sorter(rulesets, event_table, todo_table, ids)
    return Office(
        engine=engine,
        todos=todos,
        endings=endings,
        claims=claims,
        waiting=WaitingRoom(engine, claim_table, queue_table, claims, wake),
        queues=QueueService(engine, queue_table, wake),
        events=events,
        intake=IntakeService(engine, event_table, sorter, wake, ids),
        rulesets=rulesets,
        replays=ReplayService(engine, event_table, roster, sorter, requests, wake),
        trials=TrialService(engine, event_table, roster, rulesets),
        roster=roster,
        tokens=TokenService(engine, TokenTable(), wake, ids, time.monotonic),
        trace=TraceService(engine, todos, events, event_table),
        sweep=Sweep(engine, SweepTable(engine.dialect), queue_table, wake, clock),
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
    sweep = asyncio.create_task(office.sweep.run())
    try:
        yield office.desk(Principal(name, Role.ADMIN))
    finally:
        sweep.cancel()
        await asyncio.gather(sweep, return_exceptions=True)
        await office.waiting.close()
        await office.engine.close()
