"""Our HTTP connector as the client under test: ``upstream_driver.py URL``, started by the suite once a scenario.

The suite names the scenario in ``MCP_CONFORMANCE_SCENARIO`` and gives some of them details in
``MCP_CONFORMANCE_CONTEXT``. The connector finds out the protocol version by itself, as it does in the gateway. Exit
status 0 means that everything the scenario wants done has been done; what was seen on the wire is judged by the suite.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway.config.model import HttpUpstream
from gateway.errors import GatewayError
from gateway.upstreams.base import RpcFailed
from gateway.upstreams.http import HttpConnector
from gateway.upstreams.listing import RawTool, list_tools

DEADLINE_S = 10.0
MOST_ROUNDS = 5

Tools = Mapping[str, RawTool]
Scenario = Callable[[HttpConnector, Tools], Awaitable[None]]


class User:
    """Whoever called: accepts each form as it is filled in (:class:`gateway.upstreams.base.Beside`)."""

    capabilities: Mapping[str, Any] = {"elicitation": {}}
    log_level = None
    wants_progress = False

    async def notified(self, method: str, params: bytes) -> None:
        pass

    async def asked(self, method: str, params: bytes) -> bytes:
        if method != "elicitation/create":
            raise RpcFailed("suite", -32601, "only forms are answered here")
        fields = json.loads(params)["requestedSchema"]["properties"]
        content = {name: field["default"] for name, field in fields.items() if "default" in field}
        return json.dumps({"action": "accept", "content": content}).encode()


async def call(connector: HttpConnector, name: str, arguments: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """One ``tools/call``; its whole result."""
    params = {"name": name, "arguments": arguments, **more}
    result: dict[str, Any] = json.loads(await connector.request("tools/call", params, DEADLINE_S, User()))
    return result


async def only_list(connector: HttpConnector, tools: Tools) -> None:
    pass


async def add_numbers(connector: HttpConnector, tools: Tools) -> None:
    await call(connector, "add_numbers", {"a": 5, "b": 3})


async def reconnect(connector: HttpConnector, tools: Tools) -> None:
    await call(connector, "test_reconnection", {})


async def call_all(connector: HttpConnector, tools: Tools) -> None:
    """Every tool that is left, with the least that it takes."""
    for tool in tools.values():
        properties = tool.definition["inputSchema"].get("properties", {})
        await call(connector, tool.name, {name: _sample(schema) for name, schema in properties.items()})


def _sample(schema: Mapping[str, Any]) -> Any:
    return {"string": "value", "integer": 1, "number": 1.5, "boolean": True}.get(schema.get("type", ""))


async def calls_of_the_context(connector: HttpConnector, tools: Tools) -> None:
    """Exactly the calls that the suite dictates."""
    for dictated in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await call(connector, dictated["name"], dictated["arguments"])


async def call_if_any(connector: HttpConnector, tools: Tools) -> None:
    """Some scenarios list no tool and yet want a call, others list one."""
    await call(connector, next(iter(tools), "add_numbers"), {"a": 5, "b": 3})


async def answer_questions(connector: HttpConnector, tools: Tools) -> None:
    """Calls that come back with questions are made again with the answers, until they are complete."""
    for name in ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type"):
        more: dict[str, Any] = {}
        for _ in range(MOST_ROUNDS):
            result = await call(connector, name, {}, **more)
            if result.get("resultType", "complete") == "complete":
                break
            answer = {"action": "accept", "content": {"confirmed": True}}
            more = {"inputResponses": dict.fromkeys(result.get("inputRequests", {}), answer)}
            if "requestState" in result:
                more["requestState"] = result["requestState"]
        else:
            raise SystemExit(f"{name} is not complete after {MOST_ROUNDS} rounds")


async def echo_schema(connector: HttpConnector, tools: Tools) -> None:
    """Send a schema back as it came."""
    schema = tools["json_schema_2020_12_tool"].definition["inputSchema"]
    await call(connector, "json_schema_echo", {"schema": schema})


SCENARIOS: dict[str, Scenario] = {
    "initialize": only_list,
    "json-schema-ref-no-deref": only_list,
    "tools_call": add_numbers,
    "sse-retry": reconnect,
    "request-metadata": call_if_any,
    "http-standard-headers": call_all,
    "http-custom-headers": calls_of_the_context,
    "http-invalid-tool-headers": call_all,
    "sep-2322-client-request-state": answer_questions,
    "json-schema-2020-12-preservation": echo_schema,
    "elicitation-sep1034-client-defaults": call_all,
}


async def main(url: str, scenario: Scenario) -> None:
    connector = HttpConnector("suite", HttpUpstream(url=url, client_capabilities=("elicitation",)))
    try:
        info = await connector.open(DEADLINE_S)
        listing = await list_tools(connector, "suite", info, DEADLINE_S)
        await scenario(connector, {tool.name: tool for tool in listing.tools})
    finally:
        await connector.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    try:
        # whatever is behind a login wants a tool of the server called once the client is in
        asyncio.run(main(sys.argv[-1], SCENARIOS.get(os.environ.get("MCP_CONFORMANCE_SCENARIO", ""), call_all)))
    except GatewayError as failed:
        raise SystemExit(f"{failed.error_class}: {failed}") from None
