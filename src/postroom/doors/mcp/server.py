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

from postroom import __version__
from postroom.doors.mcp import results
from postroom.doors.mcp.greeting import INSTRUCTIONS, NAME, TITLE
from postroom.doors.mcp.spec import Caller, Spec
from postroom.doors.mcp.tools import TOOLS
from postroom.errors import PostroomError
from postroom.text import dump_json

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
) -> Server[Any]:
    """The server; `caller_of` tells who makes a request, `hints` has more fitting ones for some error codes.

    `refused` hears of each refusal, and says whether the call is worth making once more.
    """
    specs = {spec.name: spec for spec in TOOLS}
    listed = [tool_of(spec) for spec in TOOLS]
    schemas = {tool.name: tool.input_schema for tool in listed}
    fitting = hints or {}

    async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        spec = specs.get(params.name)
        if spec is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
        try:
            try:
                answer = await spec.call(await caller_of(context), params.arguments or {})
            except PostroomError as error:
                if not await refused(error):
                    raise
                answer = await spec.call(await caller_of(context), params.arguments or {})
            return _result(answer)
        except PostroomError as error:
            return _result(results.error_result(error, fitting.get(error.code)), is_error=True)
        except Exception:
            logger.exception("the tool %s broke", spec.name)
            broken = PostroomError(f"{spec.name} broke; nothing is known of what it did")
            return _result(results.error_result(broken), is_error=True)

    return Server(
        NAME,
        version=__version__,
        title=TITLE,
        instructions=INSTRUCTIONS,
        cache_hints={"tools/list": CacheHint(ttl_ms=_LIST_TTL_MS, scope="public")},
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _result(structured: dict[str, Any], *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=dump_json(structured))],
        structured_content=structured,
        is_error=is_error,
    )
