"""The protocol, by its official package: what `perdure.adapters.mcp.tools` offers, listed and called.

Each call runs in a thread, so that a slow one (the disk, a lock) holds up no other; there are at most `_AT_ONCE`.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import traceback
from typing import Any, Final

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server

from perdure.adapters.mcp.tools import INSTRUCTIONS, Tool, Toolbox
from perdure.errors import CallError, PerdureError

__all__ = ["server_of"]

_AT_ONCE: Final = 8


def server_of(toolbox: Toolbox) -> Server[dict[str, Any]]:
    """A server of the tools."""
    limiter: list[anyio.CapacityLimiter] = []

    async def list_tools(ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_shown(each) for each in toolbox.tools.values()])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if not limiter:
            limiter.append(anyio.CapacityLimiter(_AT_ONCE))
        return await anyio.to_thread.run_sync(
            _called, toolbox, params.name, dict(params.arguments or {}), limiter=limiter[0]
        )

    return Server(
        "perdure-memory",
        version=importlib.metadata.version("perdure"),
        title="perdure memory",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _called(toolbox: Toolbox, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
    try:
        found = toolbox.call(name, arguments)
    except PerdureError as error:
        if not isinstance(error, CallError):
            print(f"perdure: {name}: {error.__cause__ or error}", file=sys.stderr, flush=True)
        return _said(str(error), failed=True)
    except Exception:  # it is ours: the agent learns that it was, the log what it was
        traceback.print_exc()
        return _said(f"{name} failed for a reason of the server's own; its log says which", failed=True)
    if isinstance(found, str):
        return _said(found)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=json.dumps(found, ensure_ascii=False))], structured_content=found
    )


def _said(text: str, *, failed: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)


def _shown(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.words,
        input_schema=tool.schema(),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.reads_only,
            destructive_hint=tool.destructive,
            idempotent_hint=tool.idempotent,
            open_world_hint=False,
        ),
    )
