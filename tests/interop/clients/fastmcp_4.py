"""One visit with fastmcp 4.x, which opens with the modern era.

``GATEWAY_KEY=cmg_… python fastmcp_4.py URL < plan``; the plan, and what is printed, are those of
``test_other_clients.py``. It runs in an environment of its own: nothing of this repository can be imported.
"""
# mypy: ignore-errors
# (types are checked in an environment that has no fastmcp)

from __future__ import annotations

import asyncio
import json
import os
import sys

from fastmcp import Client
from fastmcp.client.auth import BearerAuth
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError

KEY = os.environ["GATEWAY_KEY"]


def with_headers(url: str) -> Client:
    return Client(StreamableHttpTransport(url, headers={"Authorization": f"Bearer {KEY}"}))


def with_auth(url: str) -> Client:
    return Client(url, auth=BearerAuth(KEY))


WAYS = {"/mcp": with_headers, "/mcp/direct": with_auth}
"""Both ways to hand over a key, one at each address."""


async def visit(client: Client, calls: dict[str, list]) -> dict:
    async with client:
        tools = [tool.name for tool in await client.list_tools()]
        answers = {label: await call(client, name, arguments) for label, (name, arguments) in calls.items()}
        return {"version": client.protocol_version, "tools": tools, "answers": answers}


async def call(client: Client, name: str, arguments: dict) -> dict:
    try:
        result = await client.call_tool(name, arguments)
    except ToolError as failed:
        return {"error": True, "text": str(failed), "structured": None}
    return {"error": False, "text": result.content[0].text, "structured": result.structured_content}


async def main(url: str) -> None:
    plan = json.load(sys.stdin)
    print(json.dumps({path: await visit(WAYS[path](url + path), calls) for path, calls in plan.items()}))


asyncio.run(main(sys.argv[1]))
