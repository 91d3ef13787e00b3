"""A channel on stdio: what the daemon hands this process is pushed to the client it serves (DESIGN §6, RULINGS 31).

The process is a client of the daemon: it attaches an endpoint while it lives, waits there, pushes what comes as a
notification, and says so. A daemon that is away, or was set up anew, is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from postroom.doors.mcp.channel_words import NOTIFICATION
from postroom.doors.mcp.greeting import refuse
from postroom.doors.mcp.stdio import Dial, Line
from postroom.endpoint import CarrierKind, Endpoint, EndpointFilter
from postroom.errors import Conflict, Forbidden, NotFound, PostroomError
from postroom.mail_client import ClientPost

if TYPE_CHECKING:
    from postroom.doors.mcp.channel_seat import Seat
    from postroom.doors.mcp.server import Context
    from postroom.doors.mcp.spec import Caller

WAIT_S: Final = 15.0
"""How long one wait lasts; each one is a sign of life, and an endpoint that gave none for 45 s is not live."""
PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How long a daemon that is away or refuses is waited for; the last repeats."""
DETACH_S: Final = 2.0
MOST_IN_A_FOLDER: Final = 10
"""How many sessions of one folder get a name of their own."""
MOST_OF_A_NAME: Final = 60
"""With room for a number."""
NEEDS_HANDSHAKE: Final = (
    "this client did not make the initialize handshake: nothing can be pushed to it; the tools work, and swarm_read "
    "shows what comes"
)

log = logging.getLogger(__name__)


class ChannelLine(Line):
    """The line to the daemon of who sits at a channel; its claims and messages carry the seat's name."""

    def __init__(self, dial: Dial, worker: str | None, seat: Seat) -> None:
        super().__init__(dial, worker or seat.name)
        self.seat = seat
        self.mailbox: str | None = None
        """Whose inbox shows what is pushed, once the endpoint is attached."""
        self._derived = worker is None

    def sit(self, endpoint: Endpoint) -> None:
        """Attached: what is pushed stands in this endpoint's mailbox, and claims are of its name."""
        self.mailbox = endpoint.mailbox
        if self._derived and endpoint.name is not None and endpoint.name != endpoint.created_by:
            self._worker = endpoint.name

    @property
    def post(self) -> ClientPost:
        """The verbs of the post, as they are."""
        return cast("ClientPost", self.desk().post)

    async def caller(self, context: Context) -> Caller:
        """The one caller of this process, at its seat."""
        from dataclasses import replace

        from postroom.doors.mcp.channel_seat import SeatedPost

        caller = await super().caller(context)
        if self.mailbox is None:
            return caller
        return replace(caller, post=SeatedPost(self.post, self.mailbox))

    @contextlib.asynccontextmanager
    async def pushing(
        self, lines: AsyncIterable[str], push: Callable[[str], Awaitable[None]]
    ) -> AsyncIterator[AsyncIterable[str]]:
        """The client's lines, while what comes for it is pushed; at the end the endpoint ends."""
        handshake = Handshake(lines, push)
        keeper = Keeper(self, push, handshake.made)
        task = asyncio.create_task(keeper.run())
        try:
            yield handshake
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await keeper.leave()


class Handshake:
    """The client's lines, but for discovery, which is refused; `made` once it began as those do that take pushes."""

    def __init__(self, lines: AsyncIterable[str], push: Callable[[str], Awaitable[None]]) -> None:
        self._lines = lines
        self._push = push
        self._warned = False
        self.made = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._lines:
            if not self.made.is_set():
                refusal = refuse(line)
                if refusal is not None:
                    await self._push(refusal.decode())
                    continue
                self._look(line)
            yield line

    def _look(self, line: str) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        match message:
            case {"method": "notifications/initialized"}:
                self.made.set()
            case {"method": "initialize"}:
                pass
            case {"method": str(), "id": _, "params": {"_meta": {"io.modelcontextprotocol/protocolVersion": _}}}:
                if not self._warned:
                    log.warning(NEEDS_HANDSHAKE)
                self._warned = True
            case _:
                pass


class Keeper:
    """Keeps the endpoint attached while the process lives, and pushes what comes to it; `push` writes one line."""

    def __init__(self, line: ChannelLine, push: Callable[[str], Awaitable[None]], made: asyncio.Event) -> None:
        self._line = line
        self._push = push
        self._made = made
        self._endpoint: Endpoint | None = None
        self._pushing: asyncio.Task[None] | None = None
        self._said = ""

    async def run(self) -> None:
        """Attach and push until cancelled, once the client takes pushes; whatever fails is tried again."""
        await self._made.wait()
        failures = 0
        while True:
            try:
                if self._endpoint is None:
                    self._endpoint = await self._attach()
                await self._wait(self._endpoint)
                failures = 0
                self._say("")
                continue
            except PostroomError as error:
                if self._endpoint is not None and isinstance(error, NotFound | Conflict | Forbidden):
                    # It has ended, or the daemon was set up anew: another one is attached.
                    self._endpoint = None
                elif not await self._line.refused(error) or failures:
                    self._say(f"nothing can be pushed now: {error.message}")
            except Exception:
                log.exception("the channel failed and will be tried again")
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
            failures += 1

    def _say(self, words: str) -> None:
        if words == self._said:
            return
        self._said = words
        print(f"postroom: {words or 'messages are pushed again'}", file=sys.stderr, flush=True)

    async def _attach(self) -> Endpoint:
        """Nothing -> attached. Raises what the daemon refuses it with."""
        seat = self._line.seat
        try:
            endpoint = await self._attach_as(await self._free(seat.name))
        except Forbidden:
            if not seat.derived:
                raise
            # The folder's name is not the token's to use; one that begins with its own may be, and its own is.
            unnamed = await self._line.post.attach(CarrierKind.CHANNEL, {}, rings=False)
            await self._line.post.detach(unnamed.id)
            token = unnamed.created_by
            try:
                endpoint = await self._attach_as(await self._free(f"{token}-{seat.name}"[:MOST_OF_A_NAME]))
            except Forbidden:
                endpoint = await self._attach_as(token)
        self._line.sit(endpoint)
        print(f"postroom: {endpoint.mailbox} sits here ({endpoint.id})", file=sys.stderr, flush=True)
        return endpoint

    async def _attach_as(self, name: str) -> Endpoint:
        seat = self._line.seat
        return await self._line.post.attach(
            CarrierKind.CHANNEL,
            seat.address(os.getpid()),
            name=name,
            repositories=seat.repositories,
            queues=seat.queues,
            channels=seat.channels,
            ack_mode=seat.ack_mode,
            rings=seat.rings,
            pid=os.getpid(),
        )

    async def _free(self, wanted: str) -> str:
        """The name to attach as: this one, and of a folder that others sit in already the first that nobody has."""
        seat, name = self._line.seat, wanted
        for number in range(2, MOST_IN_A_FOLDER + 1):
            if not await self._others(name, seat) or not seat.derived:
                return name
            name = f"{wanted}-{number}"
        return wanted

    async def _others(self, name: str, seat: Seat) -> bool:
        """Whether somebody lives under this name. What an attachment whose answer was lost, or a process that was killed,
        left there ends."""
        others = False
        for one in await self._line.post.endpoints(EndpointFilter(name=name, live=True)):
            if one.carrier is CarrierKind.CHANNEL and _left(one.address, seat):
                with contextlib.suppress(NotFound):
                    await self._line.post.detach(one.id)
            else:
                others = True
        return others

    async def _wait(self, endpoint: Endpoint) -> None:
        """One wait. The next one begins while what came is pushed: that it stands tells the daemon that we are here."""
        parcel = await self._line.post.parcel(endpoint.id, WAIT_S)
        if parcel is not None:
            if self._pushing is not None:
                await self._pushing
            self._pushing = asyncio.create_task(self._carry(endpoint.id, parcel))

    async def _carry(self, endpoint_id: str, parcel: Mapping[str, Any]) -> None:
        await self._push(notification(parcel["content"], parcel["meta"]))
        try:
            await self._line.post.answer_parcel(endpoint_id, parcel["delivery_id"], "pushed")
        except PostroomError as error:
            log.info("%s was pushed, and could not be settled: %s", parcel["delivery_id"], error.message)

    async def leave(self) -> None:
        """Attached -> ended, within a deadline; a daemon that is away finds out by itself."""
        endpoint, self._endpoint = self._endpoint, None
        if self._pushing is not None:
            self._pushing.cancel()
            await asyncio.gather(self._pushing, return_exceptions=True)
        if endpoint is not None:
            with contextlib.suppress(PostroomError, TimeoutError):
                async with asyncio.timeout(DETACH_S):
                    await self._line.post.detach(endpoint.id)


def notification(content: str, meta: Mapping[str, str]) -> str:
    """The line that a client is pushed."""
    message = {"jsonrpc": "2.0", "method": NOTIFICATION, "params": {"content": content, "meta": dict(meta)}}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")) + "\n"


def _left(address: Mapping[str, Any], seat: Seat) -> bool:
    """Whether an endpoint is this process's own, or one of a process of this machine that is no more."""
    pid = address.get("pid")
    if seat.host is None or address.get("host") != seat.host or not isinstance(pid, int):
        return False
    if pid == os.getpid():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
