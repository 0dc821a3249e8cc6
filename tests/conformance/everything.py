"""A server with every fixture that the conformance suite asks for, on the official SDK; both eras.

``python -m tests.conformance.everything`` speaks stdio, with ``--legacy`` in the legacy era alone. With ``--http`` it
serves a free port and writes its address, as one line, to stdout.

The suite passes against it directly (the *reference* bar), so what fails with a gateway in between is the gateway's.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import warnings
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from tests.conformance.asking import Call, InputNeeded, elicitation, form
from tests.conformance.fixture_tools import BUS, LONGER, PIXEL, TOOLS, embedded

NAME = "everything"
INVALID_PARAMS = -32602
Context = ServerRequestContext[Any, Any]


# ------------------------------------------------------------------ tools


async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    published = [fixture.published() for fixture in TOOLS.values()]
    if "tools" in LONGER:
        published.append(types.Tool(name="test_extra_tool", description="Not always there.", input_schema=form()))
    return types.ListToolsResult(tools=published)


def schema_of(name: str) -> dict[str, Any] | None:
    return TOOLS[name].schema if name in TOOLS else None


async def call_tool(
    context: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    fixture = TOOLS.get(params.name)
    if fixture is None:
        raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
    try:
        return types.CallToolResult.model_validate(await fixture.run(Call(context, params)))
    except InputNeeded as needed:
        return needed.result


# ------------------------------------------------------------------ prompts

PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
"""Name → its arguments, all of them required."""


async def list_prompts(context: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    names = PROMPTS | ({"test_extra_prompt": ()} if "prompts" in LONGER else {})
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(
                name=name,
                description=f"The fixture {name}.",
                arguments=[types.PromptArgument(name=argument, required=True) for argument in arguments],
            )
            for name, arguments in names.items()
        ]
    )


async def get_prompt(
    context: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    given = params.arguments or {}
    if params.name not in PROMPTS or set(PROMPTS[params.name]) - set(given):
        raise MCPError(INVALID_PARAMS, "Unknown prompt, or an argument is missing")
    try:
        content = await _prompt_content(Call(context, params), given)
    except InputNeeded as needed:
        return needed.result
    return types.GetPromptResult.model_validate({"messages": [{"role": "user", "content": block} for block in content]})


async def _prompt_content(call: Call, given: dict[str, str]) -> list[dict[str, Any]]:
    match call.params.name:
        case "test_prompt_with_arguments":
            return [_text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
        case "test_prompt_with_embedded_resource":
            resource = embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
            return [resource, _text("Please process the embedded resource above.")]
        case "test_prompt_with_image":
            image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
            return [image, _text("Please analyze the image above.")]
        case "test_input_required_result_prompt":
            question = elicitation("What context should the prompt use?", form(context={"type": "string"}))
            answers = await call.ask(user_context=question)
            return [_text(f"Context: {answers['user_context'].get('content', {}).get('context', 'none')}")]
        case _:
            return [_text("This is a simple prompt for testing.")]


def _text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


async def complete(context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    matching = [word for word in ("paris", "park", "party") if word.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=matching, total=len(matching), has_more=False))


# ------------------------------------------------------------------ resources

RESOURCES: dict[str, tuple[str, dict[str, str]]] = {
    "test://static-text": ("text/plain", {"text": "This is the content of the static text resource."}),
    "test://static-binary": ("image/png", {"blob": PIXEL}),
    "test://watched-resource": ("text/plain", {"text": "Nothing has happened yet."}),
}
"""URI → type and content."""
TEMPLATE = ("test://template/", "/data")


async def list_resources(context: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    return types.ListResourcesResult(
        resources=[
            types.Resource(uri=uri, name=uri.rpartition("/")[2], description=f"The fixture {uri}.", mime_type=mime_type)
            for uri, (mime_type, _) in RESOURCES.items()
        ]
    )


async def list_templates(
    context: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        uri_template="{id}".join(TEMPLATE), name="template", description="One a number.", mime_type="application/json"
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    before, after = TEMPLATE
    if params.uri in RESOURCES:
        mime_type, content = RESOURCES[params.uri]
    elif params.uri.startswith(before) and params.uri.endswith(after):
        number = params.uri[len(before) : -len(after)]
        data = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
        mime_type, content = "application/json", {"text": json.dumps(data)}
    else:
        raise MCPError(INVALID_PARAMS, "Resource not found", {"uri": params.uri})
    return types.ReadResourceResult.model_validate(
        {"contents": [{"uri": params.uri, "mimeType": mime_type, **content}]}
    )


async def acknowledge(context: Context, params: Any) -> types.EmptyResult:
    """For what the suite only wants to be taken note of: subscriptions and the log level of the legacy era."""
    return types.EmptyResult()


# ------------------------------------------------------------------ the server


class Everything(Server[Any]):
    """Announces in the legacy era, too, that its lists change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changes = NotificationOptions(prompts_changed=True, tools_changed=True)
        return super().create_initialization_options(changes, experimental_capabilities, extensions)


def everything() -> Everything:
    server = Everything(
        NAME,
        version="1",
        instructions="Fixtures of the conformance suite.",
        get_tool_input_schema=schema_of,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=acknowledge,
        on_unsubscribe_resource=acknowledge,
        on_subscriptions_listen=ListenHandler(BUS),
        on_completion=complete,
        on_set_logging_level=acknowledge,
    )
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME))
    return server


class Events(EventStore):
    """All events of the legacy event streams, so that one that was ended early can be taken up again."""

    def __init__(self) -> None:
        self._events: list[tuple[str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        seen = int(last_event_id)
        stream = self._events[seen - 1][0]
        for number, (stream_id, message) in enumerate(self._events[seen:], seen + 1):
            if stream_id == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


async def over_stdio(*, legacy: bool) -> None:
    server = everything()
    options = server.create_initialization_options()
    async with stdio_server() as (read, write):
        if not legacy:
            await server.run(read, write, options)
            return
        async with server.lifespan(server) as state:
            await serve_loop(server, read, write, lifespan_state=state, init_options=options)


async def over_http() -> None:
    import uvicorn

    app = everything().streamable_http_app(event_store=Events(), retry_interval=100)
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve([listening])


if __name__ == "__main__":
    warnings.simplefilter("ignore", MCPDeprecationWarning)  # the fixtures of the legacy era are deprecated by nature
    asyncio.run(over_http() if "--http" in sys.argv else over_stdio(legacy="--legacy" in sys.argv))
