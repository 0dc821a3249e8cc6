"""Direct mode: a tenant's tools as plain federated MCP, on /mcp/direct and, by ``mode``, on /mcp."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.companions import Control, eventually, free_port
from tests.running import META, MODERN, Answer, Running, config, faulty, gateway, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEGACY = "2025-11-25"
USAGE = "codemode-gateway/usage"
BASE = ["add", "echo", "fail", "get", "put", "sleep", "whoami"]
BARE = [
    {"name": "alpha", "description": "The upstream's words.", "inputSchema": {"type": "object"}, "title": "Alpha"},
    {"name": "omega", "description": "Kept as it is.", "inputSchema": {"type": "object"}, "_meta": {"x": [1]}},
    {"name": "gone", "description": "Nobody may see this.", "inputSchema": {"type": "object"}},
    {"name": "ping_all", "description": "Not for acme.", "inputSchema": {"type": "object"}},
]
OVERRIDES = {
    "alpha": {"alias": "first", "description": "The operator's words."},
    "gone": {"disabled": True},
}


@dataclass(frozen=True)
class House:
    """A gateway; ``odd`` answers as told; ``mortal`` stays dead once it is killed."""

    running: Running
    odd: Control
    mortal: Control
    folder: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("direct")
    (folder / "bare.json").write_text(json.dumps(BARE))
    odd, mortal = free_port(), free_port()
    upstreams = {
        "odd": faulty("--control", str(odd), "--log-calls", str(folder / "odd.jsonl")),
        "bare": faulty("--tools-file", str(folder / "bare.json"), prefix="", tools=OVERRIDES),
        "mortal": faulty("--control", str(mortal), "--switches", str(folder / "mortal")),
        "hang": faulty("--hang", "call", callTimeout="300ms"),
        "other": faulty(prefix="mine_"),
    }
    shown = ["*", "!ping_all"]
    tenants = {
        "acme": {"upstreams": {"odd": ["*"], "bare": shown, "mortal": ["*"], "hang": ["*"]}},
        "beta": {"mode": "direct", "upstreams": {"odd": ["add", "echo"], "other": ["*", "!put"]}},
        "gamma": {"mode": "auto", "upstreams": {"bare": shown}},
        "delta": {"mode": "auto", "upstreams": {"odd": ["*"]}},
    }
    async with serving(folder, config(upstreams, tenants)) as running:
        await running.wait_for(**dict.fromkeys(upstreams, "ready"))
        yield House(running, Control(odd), Control(mortal), folder)


async def listed(running: Running, tenant: str = "acme", path: str = "/mcp/direct") -> dict[str, Any]:
    """Name → definition."""
    result = (await running.rpc("tools/list", tenant=tenant, path=path))["result"]
    return {tool["name"]: tool for tool in result["tools"]}


def own(answer: Answer) -> dict[str, Any]:
    """The result without what the gateway and the era add."""
    result = {key: value for key, value in answer.result.items() if key != "resultType"}
    meta = {key: value for key, value in result.pop("_meta").items() if key not in (USAGE, META + "serverInfo")}
    return result | ({"_meta": meta} if meta else {})


def call(name: str, arguments: bytes = b"{}", *, version: str = MODERN, request_id: int | str = 1) -> dict[str, Any]:
    """Body and headers of one call; the arguments go out as these bytes."""
    meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}} if version == MODERN else {}
    body = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":%b,"arguments":%b,"_meta":%b}}' % (
        *(json.dumps(value).encode() for value in (request_id, name)),
        arguments,
        json.dumps(meta).encode(),
    )
    headers = {"MCP-Protocol-Version": version}
    if version == MODERN:
        headers |= {"Mcp-Method": "tools/call", "Mcp-Name": name}
    return {"body": body, "headers": headers, "path": "/mcp/direct"}


# ---------------------------------------------------------------- the list


async def test_tools_are_listed_as_upstream_and_tool_with_what_was_published(house: House) -> None:
    tools = await listed(house.running)
    for upstream in ("odd", "mortal", "hang"):
        assert [name for name in tools if name.startswith(f"{upstream}__")] == [f"{upstream}__{name}" for name in BASE]
    assert tools["odd__add"] == {
        "name": "odd__add",
        "description": "The sum of two integers.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
        "outputSchema": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
        "annotations": {"readOnlyHint": True, "idempotentHint": True},
    }


async def test_the_list_is_the_same_in_both_eras(house: House) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    response = await house.running.post(body, path="/mcp/direct", headers={"MCP-Protocol-Version": LEGACY})
    result = response.json()["result"]
    assert {tool["name"]: tool for tool in result["tools"]} == await listed(house.running)
    assert set(result) == {"tools"}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_lists_and_calls(house: House, mode: str) -> None:
    key = {"Authorization": f"Bearer {house.running.keys['acme']}"}
    async with (
        httpx2.AsyncClient(headers=key, timeout=30) as http,
        Client(streamable_http_client(f"{house.running.url}/mcp/direct", http_client=http), mode=mode) as client,
    ):
        assert "odd__add" in [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("odd__add", {"a": 1, "b": 2})
        assert (result.is_error, result.structured_content) == (False, {"sum": 3})


async def test_a_cursor_that_was_never_given_out_is_refused(house: House) -> None:
    answer = await house.running.rpc("tools/list", {"cursor": "x"}, path="/mcp/direct")
    assert answer["error"]["code"] == -32602


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize("version", [MODERN, LEGACY])
async def test_arguments_arrive_byte_for_byte(house: House, version: str) -> None:
    raw = '{"z": 1.0, "n": 12345678901234567890123, "e": "\\u00e9é\\ud83e\\uddf0", "a": {"b": [null, -0.0, 1E30]}}'
    response = await house.running.post(**call("odd__echo", raw.encode(), version=version))
    assert "result" in response.json(), response.text
    lines = (house.folder / "odd.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["arguments"] == raw
    assert raw.encode() in response.content  # and back again, as structuredContent


RESULTS: list[dict[str, Any]] = [
    {"content": [{"type": "text", "text": "a"}], "structuredContent": {"z": 1, "a": [None, 1.5]}},
    {"content": [{"type": "text", "text": "no"}], "isError": True},
    {"content": [], "structuredContent": {"failed": True}, "isError": True, "_meta": {"trace": {"id": "7"}}},
    {"content": [{"type": "image", "data": "AA==", "mimeType": "image/png", "annotations": {"priority": 1}}]},
    {"content": [{"type": "resource_link", "uri": "x://y", "name": "y"}, {"type": "text", "text": ""}]},
    {"content": [{"type": "new-kind", "any": {"thing": True}}], "unknownMember": ["kept"]},
    {"content": [{"type": "text", "text": "a"}], "_meta": {"example.com/a": 1, "b": None}},
]


@pytest.mark.parametrize("version", [MODERN, LEGACY])
@pytest.mark.parametrize("result", RESULTS, ids=range(len(RESULTS)))
async def test_results_pass_untouched(house: House, result: dict[str, Any], version: str) -> None:
    file = house.folder / "result.json"
    file.write_text(json.dumps(result))
    await house.odd.set(result=f"raw:{file}")
    try:
        response = await house.running.post(**call("odd__echo", version=version))
    finally:
        await house.odd.set(result=None)
    answer = response.json()["result"]
    usage = answer["_meta"].pop(USAGE)
    assert usage["toolCalls"] == 1
    if version == MODERN:
        assert answer.pop("resultType") == "complete"
        assert answer["_meta"].pop(META + "serverInfo")["name"] == "codemode-gateway"
    assert answer.pop("_meta") == result.get("_meta", {})
    assert answer == {key: value for key, value in result.items() if key != "_meta"}


@pytest.mark.parametrize("version", [MODERN, LEGACY])
@pytest.mark.parametrize(
    "meta", [None, 5, "text", [1], {META + "serverInfo": {"name": "faulty", "version": "1"}}], ids=str
)
async def test_a_meta_that_is_odd_or_meant_for_the_gateway_stops_here(house: House, meta: Any, version: str) -> None:
    file = house.folder / "result.json"
    file.write_text(json.dumps({"content": [{"type": "text", "text": "a"}], "_meta": meta}))
    await house.odd.set(result=f"raw:{file}")
    try:
        response = await house.running.post(**call("odd__echo", version=version))
    finally:
        await house.odd.set(result=None)
    result = response.json()["result"]
    assert result["content"] == [{"type": "text", "text": "a"}]
    names = {USAGE, META + "serverInfo"} if version == MODERN else {USAGE}
    assert set(result["_meta"]) == names
    assert result["_meta"].get(META + "serverInfo", {"name": "codemode-gateway"})["name"] == "codemode-gateway"


async def test_a_failed_tool_is_a_result(house: House) -> None:
    answer = await house.running.direct("odd__fail", {"message": "it broke"})
    assert own(answer) == {"content": [{"type": "text", "text": "it broke"}], "isError": True}


@pytest.mark.parametrize("version", [MODERN, LEGACY])
@pytest.mark.parametrize("code", [-32601, -32602, -32603, -32002, 7, 404])
async def test_a_json_rpc_error_of_an_upstream_passes_with_its_code(house: House, code: int, version: str) -> None:
    await house.odd.set(error=f'{code}:It says no:{{"why": ["because"]}}')
    try:
        response = await house.running.post(**call("odd__echo", version=version))
    finally:
        await house.odd.set(error=None)
    assert response.status_code == 200  # the exchange with the gateway itself was fine
    assert response.json()["error"] == {"code": code, "message": "It says no", "data": {"why": ["because"]}}


@pytest.mark.parametrize(("version", "status"), [(MODERN, 400), (LEGACY, 200)])
async def test_a_capability_that_the_client_lacks_is_the_clients_error(house: House, version: str, status: int) -> None:
    await house.odd.set(error='-32021:It wants to ask:{"requiredCapabilities": {"sampling": {}}}')
    try:
        response = await house.running.post(**call("odd__echo", version=version))
    finally:
        await house.odd.set(error=None)
    assert response.status_code == status
    assert response.json()["error"]["data"] == {"requiredCapabilities": {"sampling": {}}}


@pytest.mark.parametrize(
    "name", ["nothing", "odd__nothing", "bare__gone", "gone", "other__echo", "mine_echo", "x" * 300]
)
async def test_an_unknown_tool_and_one_of_others_is_invalid_params(house: House, name: str) -> None:
    for version, status in ((MODERN, 400), (LEGACY, 200)):
        response = await house.running.post(**call(name, version=version))
        assert response.status_code == status
        assert response.json()["error"] == {"code": -32602, "message": f"Unknown tool: {name[:128]}"}


async def test_an_upstream_that_does_not_answer_is_a_result_that_says_so(house: House) -> None:
    answer = await house.running.direct("hang__echo", {})
    assert answer.is_error
    assert answer.text.startswith("UPSTREAM_TIMEOUT: upstream hang did not answer")
    assert "0.3 s" in answer.text


async def test_every_spelling_of_a_name_is_accepted(house: House) -> None:
    for name in ("first", "bare__first", " bare__first "):
        response = await house.running.post(**call(name, version=LEGACY))
        assert response.json()["result"]["content"] == [{"type": "text", "text": "alpha"}]


async def test_a_key_without_the_scope_is_refused_with_403(house: House) -> None:
    running = house.running
    code, out, err = await gateway(
        "keys", "create", "--tenant", "acme", "--scopes", "docs:read,code:execute", folder=running.folder
    )
    assert code == 0, err
    request = call("odd__echo")
    request["headers"]["Authorization"] = f"Bearer {out.strip()}"

    async def known() -> bool:  # the gateway learns of a new key within a second
        return (await running.post(**request)).status_code != 401

    await eventually(known)
    refused = await running.post(**request)
    assert refused.status_code == 403
    assert 'scope="direct:call"' in refused.headers["www-authenticate"]


@pytest.mark.case("PASS-01")
@pytest.mark.parametrize("request_id", [17, "seventeen"])
async def test_a_legacy_cancel_ends_a_direct_call(house: House, request_id: int | str) -> None:
    running = house.running
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    opened = await running.post(
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}, path="/mcp/direct"
    )
    session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
    before = await house.odd.state()
    request = call("odd__sleep", b'{"ms": 5000}', version=LEGACY, request_id=request_id)
    request["headers"] |= session
    running_call = asyncio.create_task(running.post(**request))

    async def arrived() -> bool:
        return bool((await house.odd.state())["in_flight"] == before["in_flight"] + 1)

    async def cancelled() -> bool:
        return len((await house.odd.state())["cancelled"]) == len(before["cancelled"]) + 1

    async def cancel(target: int | str) -> int:
        body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": target}}
        headers = {"MCP-Protocol-Version": LEGACY, **session}
        return (await running.post(body, path="/mcp/direct", headers=headers)).status_code

    await eventually(arrived)
    assert await cancel("nobody") == 202
    assert await cancel(request_id) == 202
    await eventually(cancelled, within_s=1)
    assert (await running_call).content == b""
    assert await cancel(request_id) == 202


# ---------------------------------------------------------------- modes of /mcp


async def test_a_tenant_in_direct_mode_sees_its_tools_on_mcp(house: House) -> None:
    running = house.running
    expected = ["mine_add", "mine_echo", "mine_fail", "mine_get", "mine_sleep", "mine_whoami", "odd__add", "odd__echo"]
    for path in ("/mcp", "/mcp/direct"):
        assert sorted(await listed(running, "beta", path)) == expected
        answer = await running.call("mine_add", {"a": 1, "b": 2}, tenant="beta", path=path)
        assert answer.result["structuredContent"] == {"sum": 3}
        for name in ("mine_put", "odd__put", "execute_code", "docs_search"):
            refused = await running.rpc("tools/call", {"name": name, "arguments": {}}, tenant="beta", path=path)
            assert refused["error"] == {"code": -32602, "message": f"Unknown tool: {name}"}


async def test_auto_shows_a_handful_of_tools_and_hides_many_behind_two(house: House) -> None:
    running = house.running
    assert sorted(await listed(running, "gamma", "/mcp")) == ["first", "omega"]
    assert (await running.call("first", {}, tenant="gamma")).text == "alpha"
    assert sorted(await listed(running, "delta", "/mcp")) == ["docs_search", "execute_code"]
    assert (await running.run("(await odd__add(a=1, b=2))['sum']", tenant="delta")).text == "3"


# ---------------------------------------------------------------- overrides


async def reached(running: Running, name: str) -> dict[str, bool]:
    """By which ways a name leads to a tool."""
    direct = await running.rpc("tools/call", {"name": name, "arguments": {}}, path="/mcp/direct")
    script = await running.run(f"await call_tool('{name}')")
    return {
        "list": name in await listed(running),
        "search": f"# {name}: no such tool" not in await running.search(names=[name]),
        "script": not script.is_error,
        "direct": "result" in direct,
    }


async def test_an_alias_replaces_the_name_everywhere(house: House) -> None:
    running = house.running
    assert await reached(running, "first") == dict.fromkeys(("list", "search", "script", "direct"), True)
    for former in ("alpha", "bare__alpha"):
        assert await reached(running, former) == dict.fromkeys(("list", "search", "script", "direct"), False)
    assert (await running.run("(await bare__first())['tool']")).text == "alpha"
    assert "async def bare__first(" in await running.search(names=["first"])


async def test_a_description_of_the_operator_replaces_the_upstreams(house: House) -> None:
    running = house.running
    assert (await listed(running))["first"] == {**BARE[0], "name": "first", "description": "The operator's words."}
    for text in (await running.search("operator words"), await running.search(names=["bare__first"])):
        assert "The operator's words." in text
        assert "The upstream's words." not in text
    assert "bare__first" not in await running.search("upstream")


async def test_a_disabled_tool_exists_nowhere(house: House) -> None:
    running = house.running
    for name in ("gone", "bare__gone", "bare__ping_all"):
        assert await reached(running, name) == dict.fromkeys(("list", "search", "script", "direct"), False)
    assert "Nobody may see this" not in await running.search("nobody may see this")


async def test_an_empty_prefix_gives_bare_names_and_the_rest_stays_as_published(house: House) -> None:
    assert (await listed(house.running))["omega"] == BARE[1]
    assert await reached(house.running, "omega") == dict.fromkeys(("list", "search", "script", "direct"), True)


async def test_bare_names_that_collide_are_an_error_and_both_tools_stay_callable(tmp_path: Path) -> None:
    upstreams = {"a": faulty(prefix=""), "b": faulty(prefix="")}
    async with serving(tmp_path, config(upstreams)) as running:
        await running.wait_for(a="ready", b="ready")
        names = await listed(running)
        assert len(names) == 2 * len(BASE)
        pids = {(await running.direct(name, {})).text for name in names if name.endswith("whoami")}
        assert len(pids) == 2
        (line,) = await eventually(lambda: [line for line in running.log if "'whoami'" in line])
        assert '"level":"error"' in line
        assert "'a__whoami'" in line
        assert "'b__whoami'" in line


# ---------------------------------------------------------------- down; last, because it kills an upstream


async def test_a_call_of_an_upstream_that_is_down_is_a_result_that_says_so(house: House) -> None:
    (house.folder / "mortal").write_text("--die-on\nstart\n")
    os.kill((await house.mortal.state())["pid"], signal.SIGKILL)

    async def down() -> bool:
        return bool((await house.running.upstream("mortal"))["state"] == "down")

    await eventually(down)
    answer = await house.running.direct("mortal__echo", {})
    assert answer.is_error
    assert answer.text.startswith("UPSTREAM_UNAVAILABLE: upstream mortal failed")
    assert "mortal__echo" in await listed(house.running)
    assert (await house.running.direct("odd__add", {"a": 1, "b": 2})).result["structuredContent"] == {"sum": 3}
