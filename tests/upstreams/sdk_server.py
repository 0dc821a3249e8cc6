"""A small server on the official SDK, for the tests.

``python sdk_server.py`` speaks stdio, ``… PORT`` streamable HTTP (``json``: answers without event streams, and then
``old``: the HTTP+SSE transport of 2024-11-05 at ``/sse``).
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from typing import Any

from mcp import types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, PromptsListChanged
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

warnings.simplefilter("ignore", MCPDeprecationWarning)  # log messages are deprecated, and still relayed

BUS = InMemorySubscriptionBus()
ANNOUNCES = NotificationOptions(prompts_changed=True)
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
TOOLS = {
    "upper": "Upper case.",
    "steps": "Reports each step, every so many milliseconds, and logs the last.",
    "name": "Asks the user for a name.",
    "announce": "Says that the prompts have changed.",
}


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return types.ListToolsResult(
        tools=[types.Tool(name=name, description=text, input_schema=schema) for name, text in TOOLS.items()]
    )


async def call_tool(ctx: Any, params: Any) -> types.CallToolResult | types.InputRequiredResult:
    arguments = params.arguments or {}
    modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    match params.name:
        case "steps":
            for step in range(1, arguments["steps"] + 1):
                await asyncio.sleep(arguments.get("ms", 0) / 1000)
                await ctx.session.report_progress(step, arguments["steps"], f"step {step}")
            await ctx.session.send_log_message("info", "all steps done", related_request_id=ctx.request_id)
        case "name" if modern:
            answers = params.input_responses or {}
            if "who" not in answers:
                return types.InputRequiredResult(input_requests={"who": _question()}, request_state="asked")
            return _text(f"{answers['who'].content['name']} after {params.request_state}")
        case "name":
            try:
                answer = await ctx.session.elicit_form("What is your name?", FORM, related_request_id=ctx.request_id)
            except MCPError as error:
                return _text(f"refused with {error.error.code}: {error.error.message}")
            return _text(answer.content["name"] if answer.content else answer.action)
        case "announce" if modern:
            await BUS.publish(PromptsListChanged())
        case "announce":
            await ctx.session.send_prompt_list_changed()
        case _:
            return _text(str(arguments.get("text", "")).upper())
    return _text("done")


def _question() -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message="What is your name?", requested_schema=FORM)
    )


def _text(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content={"text": text})


async def list_prompts(ctx: Any, params: Any) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=[])


def server() -> Server[Any]:
    return Server(
        "sdk",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_subscriptions_listen=ListenHandler(BUS),
    )


async def over_stdio() -> None:
    async with stdio_server() as (read, write):
        serving = server()
        await serving.run(read, write, serving.create_initialization_options(ANNOUNCES))


def old_app() -> Any:
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    transport = SseServerTransport("/messages/")
    serving = server()

    async def stream(request: Any) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
            await serving.run(read, write, serving.create_initialization_options(ANNOUNCES))
        return Response()

    return Starlette(
        routes=[Route("/sse", stream, methods=["GET"]), Mount("/messages/", app=transport.handle_post_message)]
    )


if __name__ == "__main__":
    if len(sys.argv) == 1:
        asyncio.run(over_stdio())
    else:
        import uvicorn

        app = old_app() if "old" in sys.argv else server().streamable_http_app(json_response="json" in sys.argv)
        uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
