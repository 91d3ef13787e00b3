"""The SDK's handlers of resources: lists, readings, and notices by the older subscribing and by the newer listening."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from postroom.doors.mcp import resources
from postroom.doors.mcp.notices import MOST_PLACES, following
from postroom.doors.mcp.resources import MIME, TEMPLATES, Place
from postroom.doors.mcp.results import error_result
from postroom.doors.mcp.spec import Caller
from postroom.errors import Forbidden, Invalid, NotFound, PostroomError, RateLimited

logger = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]
AsCaller = Callable[[Context, Callable[[Caller], Awaitable[Any]]], Awaitable[Any]]

RESOURCE_NOT_FOUND = -32002
"""What revisions before 2026-07-28 call a resource that is not there for the caller; since then it is bad parameters."""


class Listening:
    """Who reads resources and follows them over one server. `as_caller` runs a verb for whoever makes a request."""

    def __init__(self, as_caller: AsCaller) -> None:
        self._as_caller = as_caller
        self._streams: set[ListenHandler] = set()
        self._subscribed: dict[str, AsyncExitStack] = {}
        self._subscribing = asyncio.Lock()
        self._leaving: set[asyncio.Future[None]] = set()

    @property
    def following(self) -> int:
        """How many streams and subscriptions there are now."""
        return len(self._streams) + len(self._subscribed)

    @asynccontextmanager
    async def lifespan(self, _: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        """The server's life: what is still followed at its end is let go."""
        try:
            yield {}
        finally:
            self.hang_up()
            for uri in list(self._subscribed):
                await self._let_go(uri)

    def hang_up(self) -> None:
        """Let every listening stream end in good order."""
        for stream in list(self._streams):
            stream.close()

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """What the caller may read; of others' queues and inboxes nothing is said."""
        cursor = None if params is None else params.cursor
        page, following = await self._asked(context, None, lambda caller: resources.listed(caller, cursor))
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=one.uri, name=one.name, title=one.title, description=one.description, mime_type=MIME)
                for one in page
            ],
            next_cursor=following,
        )

    async def list_templates(
        self, _: Context, __: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """How addresses are made."""
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=one.uri, name=one.name, title=one.title, description=one.description, mime_type=MIME
                )
                for one in TEMPLATES
            ]
        )

    async def read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """What one says now."""
        place = _place(params.uri)
        text = await self._asked(context, place.uri, lambda caller: resources.read(caller, place))
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=place.uri, mime_type=MIME, text=text)])

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Revision 2026-07-28: notices of these resources on the request's own stream, until its client goes.

        Lists that never change by themselves are not promised: only resources are taken up in the acknowledgement.
        """
        places = [_place(uri) for uri in dict.fromkeys(params.notifications.resource_subscriptions or ())]
        if len(places) > MOST_PLACES:
            raise MCPError(types.INVALID_PARAMS, f"{len(places)} resources are named; expected at most {MOST_PLACES}")
        caller = await self._let_in(context, places)
        narrowed = params.model_copy(
            update={
                "notifications": types.SubscriptionFilter(
                    resource_subscriptions=[place.uri for place in places] or None
                )
            }
        )
        bus = InMemorySubscriptionBus()
        stream = ListenHandler(bus)

        def ended(task: asyncio.Task[None]) -> None:
            _log(task)
            stream.close()

        async def tell(uri: str) -> None:
            await bus.publish(ResourceUpdated(uri))

        self._streams.add(stream)
        try:
            async with AsyncExitStack() as stack:
                if places:
                    task = await self._told(places[0].uri, stack.enter_async_context(_following(caller, places, tell)))
                    task.add_done_callback(ended)
                return await stream(context, narrowed)
        finally:
            self._streams.discard(stream)

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """The handshake's revisions: notices of this resource on the connection; twice is the same."""
        place = _place(params.uri)
        async with self._subscribing:
            if place.uri in self._subscribed:
                return types.EmptyResult()
            if len(self._subscribed) >= MOST_PLACES:
                error = RateLimited(f"{MOST_PLACES} resources are subscribed to, which is the most: let go of one")
                raise _refusal(error, place.uri, context)
            caller = await self._let_in(context, [place])
            stack = AsyncExitStack()
            task = await self._told(
                place.uri,
                stack.enter_async_context(_following(caller, [place], context.session.send_resource_updated)),
            )
            self._subscribed[place.uri] = stack

            def ended(task: asyncio.Task[None]) -> None:
                # What is not followed any more can be subscribed to anew.
                _log(task)
                if self._subscribed.get(place.uri) is stack:
                    leaving = asyncio.ensure_future(self._let_go(place.uri))
                    self._leaving.add(leaving)
                    leaving.add_done_callback(self._leaving.discard)

            task.add_done_callback(ended)
            return types.EmptyResult()

    async def unsubscribe(self, _: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        """Subscribed -> not; twice is the same."""
        async with self._subscribing:
            await self._let_go(_place(params.uri).uri)
            return types.EmptyResult()

    async def _let_go(self, uri: str) -> None:
        stack = self._subscribed.pop(uri, None)
        if stack is not None:
            await stack.aclose()

    async def _let_in(self, context: Context, places: list[Place]) -> Caller:
        """The caller, who may see all of these."""

        async def themselves(caller: Caller) -> Caller:
            for place in places:
                try:
                    await resources.may_see(caller, place)
                except (NotFound, Forbidden) as error:
                    raise _refusal(error, place.uri, context) from None
            return caller

        found: Caller = await self._asked(context, None, themselves)
        return found

    async def _asked(self, context: Context, uri: str | None, verb: Callable[[Caller], Awaitable[Any]]) -> Any:
        try:
            return await self._as_caller(context, verb)
        except PostroomError as error:
            raise _refusal(error, uri, context) from None

    async def _told(self, uri: str, entering: Awaitable[asyncio.Task[None]]) -> asyncio.Task[None]:
        try:
            return await entering
        except PostroomError as error:
            raise MCPError(types.INTERNAL_ERROR, error.message, {"uri": uri, **error.as_dict()}) from None


def _following(caller: Caller, places: list[Place], tell: Callable[[str], Awaitable[Any]]) -> Any:
    assert caller.view is not None
    return following(caller.view.hear, places, tell)


def _place(uri: str) -> Place:
    try:
        return resources.place_of(uri)
    except Invalid as error:
        raise MCPError(types.INVALID_PARAMS, error.message, {"uri": uri[:200], **error.as_dict()}) from None


def _refusal(error: PostroomError, uri: str | None, context: Context) -> MCPError:
    """A refusal as an error of the protocol: what is not there for the caller, and what is wrong with the server."""
    code = types.INTERNAL_ERROR
    if isinstance(error, NotFound | Forbidden):
        code = types.INVALID_PARAMS if context.protocol_version in MODERN_PROTOCOL_VERSIONS else RESOURCE_NOT_FOUND
    elif isinstance(error, Invalid):
        code = types.INVALID_PARAMS
    data = error_result(error)["error"]
    return MCPError(code, error.message[:1000], data if uri is None else {"uri": uri, **data})


def _log(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        if isinstance(fault, PostroomError):
            logger.warning("resources are followed no longer: %s", fault.message)
        else:
            logger.error("resources are followed no longer", exc_info=fault)
