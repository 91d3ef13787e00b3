"""The SDK's server over the tools: one for both eras of the protocol and for both transports."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from postroom import __version__
from postroom.doors.mcp import results
from postroom.doors.mcp.channel_words import INSTRUCTIONS as CHANNEL_INSTRUCTIONS
from postroom.doors.mcp.greeting import INSTRUCTIONS, NAME, TITLE
from postroom.doors.mcp.listening import Listening
from postroom.doors.mcp.spec import Caller, Spec
from postroom.doors.mcp.tools import TOOLS
from postroom.errors import PostroomError

logger = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]
CallerOf = Callable[[Context], Awaitable[Caller]]

_LIST_TTL_MS = 3_600_000


def tool_of(spec: Spec) -> types.Tool:
    """A tool as clients are shown it."""
    return types.Tool(
        name=spec.name,
        title=spec.title,
        description=spec.description,
        input_schema=spec.input_schema,
        output_schema=dict(spec.answers),
        annotations=types.ToolAnnotations(
            title=spec.title,
            read_only_hint=spec.read_only,
            destructive_hint=False,
            idempotent_hint=spec.idempotent,
            open_world_hint=False,
        ),
    )


async def _final(_: PostroomError) -> bool:
    return False


def build_server(
    caller_of: CallerOf,
    hints: Mapping[str, str] | None = None,
    refused: Callable[[PostroomError], Awaitable[bool]] = _final,
    *,
    sessions: bool = True,
    channel: bool = False,
) -> Server[Any]:
    """The server; `caller_of` tells who makes a request, `hints` has more fitting ones for some error codes.

    `refused` hears of each refusal, and says whether the call is worth making once more. `sessions` says whether a
    connection of the handshake's revisions lasts, so that notices can be sent on it. `channel`: messages are pushed.
    """
    instructions = CHANNEL_INSTRUCTIONS if channel else INSTRUCTIONS
    specs = {spec.name: spec for spec in TOOLS}
    listed = [tool_of(spec) for spec in TOOLS]
    fitting = hints or {}

    async def as_caller(context: Context, verb: Callable[[Caller], Awaitable[Any]]) -> Any:
        try:
            return await verb(await caller_of(context))
        except PostroomError as error:
            if not await refused(error):
                raise
        return await verb(await caller_of(context))

    async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        spec = specs.get(params.name)
        if spec is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
        try:
            return _result(spec, await as_caller(context, lambda caller: spec.call(caller, params.arguments or {})))
        except PostroomError as error:
            return _result(spec, results.error_result(error, fitting.get(error.code)), is_error=True)
        except Exception:
            logger.exception("the tool %s broke", spec.name)
            broken = PostroomError(f"{spec.name} broke; nothing is known of what it did")
            return _result(spec, results.error_result(broken), is_error=True)

    listening = Listening(as_caller)
    server = Server(
        NAME,
        version=__version__,
        title=TITLE,
        instructions=instructions,
        cache_hints={
            "tools/list": CacheHint(ttl_ms=_LIST_TTL_MS, scope="public"),
            "resources/templates/list": CacheHint(ttl_ms=_LIST_TTL_MS, scope="public"),
        },
        lifespan=listening.lifespan,
        # No argument is repeated in a header, so there is no header to hold against a schema.
        get_tool_input_schema=lambda _: None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=listening.list_resources,
        on_list_resource_templates=listening.list_templates,
        on_read_resource=listening.read,
        on_subscribe_resource=listening.subscribe if sessions else None,
        on_unsubscribe_resource=listening.unsubscribe if sessions else None,
        on_subscriptions_listen=listening.listen,
    )

    async def discover(_: Context, __: types.RequestParams) -> types.DiscoverResult:
        return types.DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS),
            # The SDK's own answer would promise notices of lists that change as well.
            capabilities=types.ServerCapabilities(
                tools=types.ToolsCapability(list_changed=False),
                resources=types.ResourcesCapability(subscribe=True, list_changed=False),
            ),
            instructions=instructions,
        )

    server.add_request_handler("server/discover", types.RequestParams, discover)
    return server


def _result(spec: Spec, structured: dict[str, Any], *, is_error: bool = False) -> types.CallToolResult:
    fitted, text = results.bounded(structured, spec.name)
    if fitted is not structured:
        logger.warning("%s answered more than %d bytes", spec.name, results.MAX_RESULT_BYTES)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=fitted,
        is_error=is_error,
    )
