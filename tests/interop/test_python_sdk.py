"""The Python SDK's own client in both eras, against real servers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.client.client import ConnectMode
from mcp.types import CallToolResult, TextContent

from tests.interop.conftest import Example
from tests.interop.example import THREE_SERVERS, three_servers

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.real]

each_mode = pytest.mark.parametrize("mode", ["auto", "2026-07-28", "legacy"])


def text_of(result: CallToolResult) -> str:
    """The one text block of an answer."""
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def run(client: Client, code: str) -> Any:
    """The value of a script."""
    result = await client.call_tool("execute_code", {"code": code})
    assert not result.is_error, text_of(result)
    return json.loads(text_of(result))


async def failure(client: Client, code: str) -> str:
    """The error text of a script that fails."""
    result = await client.call_tool("execute_code", {"code": code})
    assert result.is_error, text_of(result)
    return text_of(result)


@each_mode
async def test_there_are_exactly_two_tools(example: Example, mode: ConnectMode) -> None:
    async with example.client(mode) as client:
        listed = await client.list_tools()
    assert {tool.name for tool in listed.tools} == {"docs_search", "execute_code"}


@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_each_mode_gets_its_era(example: Example, mode: ConnectMode, version: str) -> None:
    async with example.client(mode) as client:
        assert client.session.protocol_version == version


@each_mode
async def test_the_documentation_of_a_tool_is_found(example: Example, mode: ConnectMode) -> None:
    async with example.client(mode) as client:
        found = text_of(await client.call_tool("docs_search", {"query": "current time in a timezone"}))
        named = text_of(await client.call_tool("docs_search", {"names": ["git__git_log"]}))
    assert "async def time__get_current_time(*, timezone: str)" in found
    assert "repo_path" in named
    assert "max_count" in named


@each_mode
async def test_one_script_calls_three_servers_in_parallel_and_returns_one_value(
    example: Example, mode: ConnectMode
) -> None:
    async with example.client(mode) as client:
        result = await client.call_tool("execute_code", {"code": three_servers(example.places)})
    assert not result.is_error, text_of(result)
    assert json.loads(text_of(result)) == THREE_SERVERS
    assert result.meta is not None
    usage = result.meta["codemode-gateway/usage"]
    assert usage["toolCalls"] == 3
    assert usage["tokens"]["hidden"] > usage["tokens"]["out"]


async def test_what_one_server_knows_is_written_to_another(example: Example) -> None:
    code = f"""
text = (await files__read_text_file(path={str(example.places.files / "north.txt")!r}))["content"]
await memory__create_entities(entities=[{{"name": "north", "entityType": "place", "observations": [text.strip()]}}])
found = await memory__search_nodes(query="aurora")
[entity["name"] for entity in found["entities"]]
"""
    async with example.client() as client:
        assert await run(client, code) == ["north"]
    assert "aurora" in example.places.memory.read_text(encoding="utf-8")


@each_mode
async def test_the_error_of_a_tool_is_caught_in_the_script(example: Example, mode: ConnectMode) -> None:
    code = """
try:
    await files__read_text_file(path="/no/such/place")
except Exception as error:
    caught = str(error)
caught
"""
    async with example.client(mode) as client:
        result = await client.call_tool("execute_code", {"code": code})
    assert not result.is_error, text_of(result)
    assert "Access denied" in text_of(result)


async def test_the_error_of_a_tool_that_is_not_caught_ends_the_script(example: Example) -> None:
    async with example.client() as client:
        text = await failure(client, 'await files__read_text_file(path="/no/such/place")')
    assert text.startswith("TOOL_ERROR: ")
    assert "Access denied" in text.splitlines()[0]


@each_mode
async def test_a_tool_outside_the_view_answers_like_one_that_does_not_exist(
    example: Example, mode: ConnectMode
) -> None:
    """``beta`` does not know the memory server, whose name is like none that it sees: no tool is suggested instead."""
    hidden, unknown = "memory__read_graph", "abacus__read_graph"
    async with example.client(mode, tenant="beta") as client:
        answers = [await failure(client, f"await {name}()") for name in (hidden, unknown)]
        pages = [text_of(await client.call_tool("docs_search", {"names": [name]})) for name in (hidden, unknown)]
    async with example.client(mode) as client:
        known = text_of(await client.call_tool("docs_search", {"names": [hidden]}))
    assert answers[0].startswith("UNKNOWN_TOOL: ")
    assert answers[0].replace(hidden, "X") == answers[1].replace(unknown, "X")
    assert pages[0].replace(hidden, "X") == pages[1].replace(unknown, "X")
    assert f"async def {hidden}(" in known


async def test_what_is_suggested_instead_of_a_hidden_tool_is_in_the_view(example: Example) -> None:
    async with example.client(tenant="beta", path="/mcp/direct") as client:
        visible = {tool.name for tool in (await client.list_tools()).tools}
    async with example.client(tenant="beta") as client:
        answer = await failure(client, 'await files__write_file(path="x", content="y")')
    assert set(re.findall(r"\w+__\w+", answer)) <= visible | {"files__write_file"}
    assert "files__write_file" not in visible


@each_mode
async def test_direct_mode_lists_and_calls_the_tools_themselves(example: Example, mode: ConnectMode) -> None:
    async with example.client(mode, path="/mcp/direct") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("time__get_current_time", {"timezone": "UTC"})
    assert {"time__get_current_time", "git__git_log", "files__write_file", "memory__read_graph"} <= names
    assert len({name.partition("__")[0] for name in names}) >= 6
    assert not result.is_error
    assert json.loads(text_of(result))["timezone"] == "UTC"


@each_mode
async def test_direct_mode_hides_what_the_tenant_may_not_use(example: Example, mode: ConnectMode) -> None:
    async with example.client(mode, tenant="beta", path="/mcp/direct") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        refusals = []
        for name in ("memory__read_graph", "memory__no_such_tool"):
            with pytest.raises(MCPError) as raised:
                await client.call_tool(name, {})
            refusals.append((raised.value.error.code, raised.value.error.message.replace(name, "X")))
    assert {name.partition("__")[0] for name in names} == {"time", "git", "files"}
    assert "files__write_file" not in names
    assert refusals[0] == refusals[1]
