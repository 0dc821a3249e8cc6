"""A small server on the official SDK, for the tests: ``python sdk_server.py`` speaks stdio, ``… PORT`` HTTP."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return types.ListToolsResult(tools=[types.Tool(name="upper", description="Upper case.", input_schema=schema)])


async def call_tool(ctx: Any, params: Any) -> types.CallToolResult:
    text = str((params.arguments or {}).get("text", "")).upper()
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content={"text": text})


def server() -> Server[Any]:
    return Server("sdk", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


async def over_stdio() -> None:
    async with stdio_server() as (read, write):
        serving = server()
        await serving.run(read, write, serving.create_initialization_options())


if __name__ == "__main__":
    if len(sys.argv) == 1:
        asyncio.run(over_stdio())
    else:
        import uvicorn

        uvicorn.run(
            server().streamable_http_app(json_response="json" in sys.argv), port=int(sys.argv[1]), log_level="warning"
        )
