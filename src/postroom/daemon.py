"""The roof: the one place that composes office and doors, and serves them until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from postroom.carriers.carrier import Carrier
from postroom.carriers.channel import ChannelCarrier
from postroom.carriers.courier import Courier
from postroom.carriers.opencode_server import OpencodeServer
from postroom.carriers.roll import Roll
from postroom.carriers.table import make_carriers
from postroom.carriers.whereabouts import Whereabouts
from postroom.config import Settings
from postroom.doors.tally import Tally
from postroom.endpoint import CarrierKind
from postroom.errors import Misconfigured, PostroomError, Unavailable
from postroom.ids import RandomIds
from postroom.installation import Installation, read_sources
from postroom.model import Principal, Role
from postroom.office import Office, compose, connect, make_engine, wall_clock
from postroom.services.appointed import Appointments
from postroom.services.gita import GitaRegistry, registry_file
from postroom.sources.roster import Roster
from postroom.store.endpoints import EndpointTable
from postroom.store.statements import Dialect

__all__ = ["Daemon", "Office", "compose", "connect", "make_engine", "serve", "wall_clock"]

OPEN_AGAIN = 1.0
"""Seconds between two tries to reach a database that is away."""

_M_MMAP_THRESHOLD = -3

log = logging.getLogger("postroom")


class Daemon:
    """A served installation: it answers 503 while its database is away, and keeps trying to reach it (RULINGS 20)."""

    def __init__(self, settings: Settings, office: Office, carriers: Mapping[CarrierKind, Carrier]) -> None:
        self.settings = settings
        self.courier = Courier(office.dispatch, carriers, office.wake, listening=lambda: office.engine.listening)
        channel = carriers.get(CarrierKind.CHANNEL)
        self._channel = channel if isinstance(channel, ChannelCarrier) else None
        self._roll = Roll(office.registry, carriers)
        self._webhooks = Appointments(
            office.engine,
            EndpointTable(settings.post.policy.live),
            office.wake,
            RandomIds(),
            CarrierKind.WEBHOOK,
            [place.endpoint() for place in settings.webhooks],
        )
        self._gita = GitaRegistry(registry_file(os.environ, Path.home()), required=settings.post.gita_required)
        self._carries = Whereabouts(carriers.values()).carries
        self.installation = Installation(settings, office.roster, wall_clock, RandomIds())
        self.office = office
        self.started_at = wall_clock()
        self._tally: Tally | None = None
        self._reason: str | None = "starting"
        self._stop = asyncio.Event()
        self._tried = asyncio.Event()
        self._failure: Misconfigured | None = None

    def ready(self) -> str | None:
        """None when it serves, else why not yet."""
        return self._reason

    async def status(self, principal: Principal) -> dict[str, Any]:
        """How the installation stands: engine, queues with depths, deliveries that wait and why, sweep, warnings."""
        from postroom import __version__
        from postroom.mail_wire import traffic_view
        from postroom.wire import queue_view, show_time

        queues = await self.office.queues.status(principal)
        report = self.office.sweep.report
        return {
            "version": __version__,
            "engine": str(self.office.engine.dialect),
            "engine_version": await self.office.sweep.engine_version(),
            "now": show_time(wall_clock()),
            "clock_skew_ms": await self.office.sweep.clock_skew_ms(),
            "ready": self._reason is None,
            "uptime_s": round((wall_clock() - self.started_at) / 1000, 1),
            "waiting_claims": self.office.waiting.waiting,
            "waiting_readers": self.office.watch.waiting,
            "listeners": self.office.happenings.listening,
            "queues": [queue_view(status) for status in queues],
            "sweep": {
                "last_run_at": show_time(report.last_run_at),
                "lapsed": report.lapsed,
                "due": report.due,
                "deleted": report.deleted,
                "failures": report.failures,
            },
            "deliveries": traffic_view(await self.office.traffic.now()),
            "post": dict(self.courier.status()),
            "doorbell": dict(self.office.doorbell.status()),
            "gita": {
                "file": str(self._gita.file),
                "required": self._gita.required,
                "asked": self.settings.post.gita_asked,
            },
            "sources": [source.name for source in self.office.roster],
            "hooks": self._tally.shown() if self._tally is not None and principal.admin else {},
            "warnings": [*self.office.roster.warnings, *await self.office.sweep.warnings()],
        }

    def stop(self) -> None:
        """Serving -> stopping."""
        self._stop.set()

    async def run(self, announce: Callable[[str], None]) -> int:
        """Serve until stopped: 0, or 1 when the database refuses this program for good.

        It is announced once everything is held and open, or the database was found to be away.
        """
        from postroom.doors.hooks import HooksDoor
        from postroom.doors.listeners import Listeners
        from postroom.doors.mcp.http import McpDoor
        from postroom.doors.socket.capture import Capture
        from postroom.doors.socket.lines import Lines

        chosen = self.settings
        capture = Capture(chosen.data / "protocol.jsonl", wall_clock)
        hooks = HooksDoor(self.office.roster, self.office.intake, self.ready, wall_clock)
        self._tally = hooks.tally
        mcp = McpDoor(
            lambda principal: self.office.desk(principal, "mcp"), self.office.mail, chosen.http_hosts, self.office.view
        )
        listeners = Listeners(
            self._app(hooks, mcp),
            hooks,
            host=chosen.host,
            port=chosen.port,
            path=chosen.socket,
            hooks_port=chosen.hooks_port,
            lines=Lines(self._socket_door(capture).answer),
        )
        listeners.open()
        self.installation.base, self.installation.hooks_base = listeners.base, listeners.hooks_base
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        keeper = asyncio.create_task(self._keep())
        serving = asyncio.create_task(listeners.serve())
        try:
            stopped, tried = asyncio.create_task(self._stop.wait()), asyncio.create_task(self._tried.wait())
            ends = {stopped, keeper, serving}
            await asyncio.wait({tried, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if not any(one.done() for one in ends):
                announce(listeners.said())
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            tried.cancel()
        finally:
            await self.office.waiting.close()
            await self.office.watch.close()
            self.office.happenings.close()
            if self._channel is not None:
                self._channel.hang_up()
            listeners.stop()
            await self.courier.close()
            keeper.cancel()
            await asyncio.gather(serving, keeper, return_exceptions=True)
            await mcp.close()
            listeners.close()
            capture.close()
            await self.office.engine.close()
        if self._failure is not None:
            raise self._failure
        for task in (keeper, serving):
            if not task.cancelled() and (fault := task.exception()) is not None:
                raise fault
        return 0

    async def _keep(self) -> None:
        """Reach the database, prepare it, and sweep it for ever."""
        opened = False
        while True:
            try:
                if not opened:
                    # Once: it has the file's lock from then on, or a pool and somebody who listens.
                    await self.office.engine.open()
                    opened = True
                await self._prepare()
                break
            except Misconfigured as error:
                self._failure = error
                return
            except Unavailable as error:
                self._reason = error.message
                log.warning("%s; trying again", error.message)
                self._tried.set()
                await asyncio.sleep(OPEN_AGAIN)
        self._reason = None
        self._tried.set()
        async with asyncio.TaskGroup() as tasks:
            office = self.office
            for run in (
                office.sweep.run,
                self.courier.run,
                self._roll.run,
                self._webhooks.run,
                office.doorbell.run,
                office.handover.run,
                office.assigning.run,
            ):
                tasks.create_task(run())

    async def _prepare(self) -> None:
        path = self.settings.token_file
        try:
            self.office.tokens.keep("admin", Role.ADMIN, admin_secret(path))
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(f"the admin's token {path} cannot be used: {error}", field="data") from None
        operator = Principal("admin", Role.ADMIN)
        if self.office.engine.dialect is Dialect.SQLITE:
            # The file is this process's alone, so whoever held a lease is gone.
            await self.office.dispatch.lapse_all()
        await self._webhooks.settle()
        for name, changes in self.settings.queues.items():
            try:
                await self.office.queues.put(operator, name, dict(changes))
            except Unavailable:
                raise
            except PostroomError as error:
                raise Misconfigured(
                    f"{self.settings.file}: [queue.{name}]: {error.message}", field=error.field
                ) from None

    def _socket_door(self, capture: Any) -> Any:
        from postroom.doors.socket.operations import SocketDoor

        office = self.office
        return SocketDoor(
            post=office.post,
            receipts=office.receipts,
            registry=office.registry,
            gita=self._gita,
            place=office.place,
            capture=capture,
            away=lambda: self._reason or office.sweep.away,
        )

    def _app(self, hooks: Any, mcp: Any) -> Any:
        from postroom.doors.http.api import Api
        from postroom.doors.http.app import build_app

        office = self.office
        return build_app(
            Api(
                todos=office.todos,
                claims=office.claims,
                endings=office.endings,
                giving=office.giving,
                waiting=office.waiting,
                queues=office.queues,
                events=office.events,
                replays=office.replays,
                rulesets=office.rulesets,
                trials=office.trials,
                roster=office.roster,
                installation=self.installation,
                tokens=office.tokens,
                trace=office.trace,
                post=office.post,
                replies=office.replies,
                receipts=office.receipts,
                inbox=office.inbox,
                registry=office.registry,
                happenings=office.happenings,
                place=office.place,
                carries=self._carries,
                desk_for=lambda principal: office.desk(principal, "api"),
                status=self.status,
                ready=self.ready,
                away=lambda: office.sweep.away,
                allowed_hosts=self.settings.http_hosts,
                open_principal=Principal("admin", Role.ADMIN) if self.settings.open else None,
                channel=self._channel,
                mcp=mcp,
                hooks=hooks,
            )
        )


def serve(settings: Settings) -> int:
    """Serve an installation in this process until SIGTERM or SIGINT: its exit code. Raises Misconfigured."""
    import sys

    import uvloop

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for quiet in ("uvicorn.error", "httpx2", "mcp"):
        logging.getLogger(quiet).setLevel(logging.WARNING)
    _make_folder(settings)
    sources = read_sources(settings)
    for warning in sources.warnings:
        log.warning("%s", warning)

    def announce(places: str) -> None:
        print(f"postroom serves {places}", flush=True)

    async def main() -> int:
        servers = [OpencodeServer(place.url, place.password) for place in settings.post.opencode]
        carriers = make_carriers(servers, agents=settings.data / "agents", webhooks=settings.webhooks, clock=wall_clock)
        whereabouts = Whereabouts(carriers.values())
        office = compose(
            make_engine(settings.database),
            roster=Roster(sources),
            policy=settings.post.policy,
            place=whereabouts,
            directory=whereabouts.directory,
            carries=whereabouts.carries,
            allow=settings.post.allow,
            rate_per_minute=settings.post.rate_per_minute,
        )
        return await Daemon(settings, office, carriers).run(announce)

    _give_large_buffers_back()
    # Threads that hand a short answer back must not wait 5 ms for the interpreter.
    sys.setswitchinterval(0.001)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def _give_large_buffers_back() -> None:
    """Have glibc keep large buffers apart from its heap, so that a large delivery leaves nothing behind.

    By itself it takes the first large buffer that is freed for a sign to place the following ones in the heap: they
    are copied as they grow, and what lies above them keeps their memory.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1024 * 1024)


def _make_folder(settings: Settings) -> None:
    """None -> the data folder. Raises Misconfigured, naming where its path came from."""
    path = settings.data
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        why = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
        raise Misconfigured(
            f"data: expected a folder that can be made at {path} ({settings.origins.get('data', 'default')}): {why}",
            field="data",
            hint="Name another folder: --data FOLDER, POSTROOM_DATA, or data in the settings file.",
        ) from None


def admin_secret(path: Path) -> str:
    """The admin's token in its 0600 file, made at the first start."""
    from postroom.ids import new_secret

    with contextlib.suppress(FileNotFoundError):
        secret = path.read_text("ascii").strip()
        if secret:
            return secret
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret = new_secret()
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return secret
