"""MCP over streamable HTTP: an ASGI app for `/mcp` that brings the SDK in at its first request."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from postroom.desk import Desk
from postroom.doors.mcp.results import error_result
from postroom.errors import Invalid, PostroomError, Unauthenticated, Unavailable
from postroom.model import Principal
from postroom.post import Post

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from postroom.doors.mcp.server import Context
    from postroom.doors.mcp.spec import Caller, View

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES = 4 * 1024 * 1024
CLOSE_DEADLINE_S = 5.0
LOOK_S = 15.0
"""How often it is looked whether the token of a request that takes long is still known."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class McpDoor:
    """The app. It wants an authenticated `Principal` in `scope["state"]["principal"]`, and keeps no session.

    `scope["state"]["known"]`, where there is one, tells whether that principal would still be let in.

    Every request stands alone, so a restart goes unnoticed. A client that goes away cancels its request, down to
    the desk. `allowed_hosts` are further Host names besides loopback, with or without a port; `*` allows any.
    """

    def __init__(
        self,
        desk_for: Callable[[Principal], Desk],
        post_for: Callable[[Principal], Post],
        allowed_hosts: Sequence[str] = (),
        view_for: Callable[[Principal], View] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self._desk_for = desk_for
        self._post_for = post_for
        self._view_for = view_for
        self._look_s = look_s
        self._allowed_hosts = tuple(allowed_hosts)
        self._opening: asyncio.Task[StreamableHTTPSessionManager] | None = None
        self._running: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the MCP door serves http, not {scope['type']}")
        principal = scope.get("state", {}).get("principal")
        if not isinstance(principal, Principal):
            unknown = Unauthenticated("no token was given, or it is not valid")
            await _refuse(send, 401, unknown, (b"www-authenticate", b"Bearer"))
            return
        if scope["method"] != "POST":
            # Without sessions there is nothing to listen to by GET and nothing to end by DELETE.
            only = Invalid("this endpoint takes POST alone: it keeps no sessions and has no stream to open")
            await _refuse(send, 405, only, (b"allow", b"POST"))
            return
        if self._closing.is_set():
            await _refuse(send, 503, Unavailable("the daemon is stopping"), (b"retry-after", b"1"))
            return
        await self._serve(await self._open(), scope, receive, send)

    async def close(self) -> None:
        """Cancel what is under way and stop the SDK; later requests are unavailable. May be called again."""
        self._closing.set()
        if self._opening is not None:
            await asyncio.wait([self._opening], timeout=CLOSE_DEADLINE_S)
        if self._running is not None:
            await asyncio.wait([self._running], timeout=CLOSE_DEADLINE_S)
            self._running.cancel()

    async def _open(self) -> StreamableHTTPSessionManager:
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._bring_in(), name="mcp-open")
        # The first client may go away while others already wait for the same opening.
        return await asyncio.shield(self._opening)

    async def _bring_in(self) -> StreamableHTTPSessionManager:
        # The import takes most of a second: in a thread, so that the other doors go on answering.
        for module in ("mcp.server.streamable_http_manager", "postroom.doors.mcp.server"):
            await asyncio.to_thread(importlib.import_module, module)
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from postroom.doors.mcp.server import build_server

        manager = StreamableHTTPSessionManager(
            app=build_server(self._caller_of, sessions=False),
            json_response=True,
            stateless=True,
            security_settings=self._security(),
            max_request_body_size=MAX_BODY_BYTES,
        )
        started = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run(manager, started), name="mcp-run")
        await started
        return manager

    async def _run(self, manager: StreamableHTTPSessionManager, started: asyncio.Future[None]) -> None:
        """Hold the manager's own task group, which wants to be left by the task that entered it."""
        try:
            async with manager.run():
                started.set_result(None)
                await self._closing.wait()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    def _security(self) -> Any:
        from mcp.server.transport_security import TransportSecuritySettings

        if "*" in self._allowed_hosts:
            return TransportSecuritySettings(enable_dns_rebinding_protection=False)
        hosts = [*_LOOPBACK, *self._allowed_hosts]
        patterns = [pattern for host in hosts for pattern in (host, f"{host}:*")]
        origins = [f"{scheme}://{pattern}" for scheme in ("http", "https") for pattern in patterns]
        return TransportSecuritySettings(allowed_hosts=patterns, allowed_origins=origins)

    async def _caller_of(self, context: Context) -> Caller:
        from postroom.doors.mcp.spec import Caller

        assert context.request is not None
        principal: Principal = context.request.scope["state"]["principal"]
        view = None if self._view_for is None else self._view_for(principal)
        return Caller(self._desk_for(principal), self._post_for(principal), principal.holds, view=view)

    async def _serve(self, manager: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the SDK answer, for as long as the client is there, its token is known, and the door is open.

        In JSON mode the SDK never looks whether the client still listens; so we do, once the body has been read.
        """
        read = asyncio.Event()
        gone = asyncio.Event()
        answering = ending = False

        async def relay() -> Message:
            if read.is_set():
                await gone.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.disconnect":
                gone.set()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                read.set()
            return message

        async def watch() -> None:
            await read.wait()
            while not gone.is_set():
                if (await receive())["type"] == "http.disconnect":
                    gone.set()

        async def answer(message: Message) -> None:
            nonlocal answering, ending
            answering = True
            ending = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        work = asyncio.create_task(manager.handle_request(scope, relay, answer), name="mcp-request")
        ends = [asyncio.create_task(watch()), asyncio.create_task(self._closing.wait())]
        known: Callable[[], Awaitable[bool]] | None = scope["state"].get("known")
        revoked = False
        try:
            while not revoked:
                done, _ = await asyncio.wait([work, *ends], timeout=self._look_s, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    break
                revoked = known is not None and not await known()
        finally:
            for task in (work, *ends):
                task.cancel()
            outcome = (await asyncio.gather(work, *ends, return_exceptions=True))[0]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is None or gone.is_set():
            return
        if answering:
            if not ending:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif revoked:
            await _refuse(send, 401, Unauthenticated("the token is known no longer"), (b"www-authenticate", b"Bearer"))
        else:
            await _refuse(send, 503, Unavailable("the daemon is stopping"), (b"retry-after", b"1"))


async def _refuse(send: Send, status: int, error: PostroomError, header: tuple[bytes, bytes]) -> None:
    body = json.dumps(error_result(error)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), header]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
