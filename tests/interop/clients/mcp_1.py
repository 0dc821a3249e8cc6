"""One visit with the Python SDK 1.x, which knows the legacy era only.

``GATEWAY_KEY=cmg_… python mcp_1.py URL < plan``; the plan, and what is printed, are those of ``test_other_clients.py``.
It runs in an environment of its own: nothing of this repository can be imported.
"""
# mypy: ignore-errors
# (types are checked in an environment that has the SDK 2.x)

from __future__ import annotations

import asyncio
import json
import os
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

HEADERS = {"Authorization": f"Bearer {os.environ['GATEWAY_KEY']}"}


async def visit(url: str, calls: dict[str, list]) -> dict:
    async with streamablehttp_client(url, headers=HEADERS) as (read, write, _), ClientSession(read, write) as session:
        opened = await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        answers = {}
        for label, (name, arguments) in calls.items():
            result = await session.call_tool(name, arguments)
            text = result.content[0].text
            answers[label] = {"error": result.isError, "text": text, "structured": result.structuredContent}
    return {"version": opened.protocolVersion, "tools": tools, "answers": answers}


async def main(url: str) -> None:
    plan = json.load(sys.stdin)
    print(json.dumps({path: await visit(url + path, calls) for path, calls in plan.items()}))


asyncio.run(main(sys.argv[1]))
