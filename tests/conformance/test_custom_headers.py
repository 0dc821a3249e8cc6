"""Arguments that an upstream wants in HTTP headers too, which no scenario of the suite tries through a gateway.

The upstream is on the official SDK, which refuses a call whose headers and body differ.
"""

from __future__ import annotations

from typing import Any

import httpx2

from tests.conformance.bars import EVERYTHING, gateway
from tests.conformance.suite import companion

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
NAME = "test_custom_header"


async def ask(url: str, method: str, **params: Any) -> Any:
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
        "Mcp-Name": params.get("name", ""),
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    async with httpx2.AsyncClient(timeout=30) as client:
        return (await client.post(f"{url}/mcp/direct", json=body, headers=headers)).json()["result"]


async def test_a_client_of_the_gateway_need_not_know_of_them() -> None:
    async with companion(*EVERYTHING, "--http") as upstream, gateway({"url": upstream}) as url:
        listed = await ask(url, "tools/list")
        answers = [
            await ask(url, "tools/call", name=NAME, arguments={"region": region, "query": "q"})
            for region in ("eu-west", "Köln\r\nX: 1", "", "=?base64?eA==?=")
        ]

    (tool,) = (tool for tool in listed["tools"] if tool["name"] == NAME)
    assert tool["inputSchema"]["properties"]["region"] == {"type": "string"}, "it would have to send them if it knew"
    texts = [answer["content"][0]["text"] for answer in answers]
    assert texts == ["region=eu-west", "region=Köln\r\nX: 1", "region=", "region==?base64?eA==?="]
