"""Without faults it is a correct server, in both eras, on both transports."""

import json

import pytest

from tests.companions import RawClient, faulty_http
from tests.faulty_upstream.conversation import (
    ACCEPT,
    call,
    exchange,
    legacy,
    modern,
    open_session,
    post,
    state_with,
    stdio,
)

BASE = ["echo", "add", "sleep", "put", "get", "fail", "whoami"]


async def test_modern_on_stdio() -> None:
    async with stdio() as fu:
        await fu.send(modern("server/discover"))
        assert await fu.line() == (
            b'{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"],'
            b'"capabilities":{"tools":{"listChanged":true}},"resultType":"complete","ttlMs":0,"cacheScope":"private",'
            b'"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"faulty","version":"1"}}}}\n'
        )
        listed = (await fu.ask(modern("tools/list")))["result"]
        assert [tool["name"] for tool in listed["tools"]] == BASE
        assert {"resultType", "ttlMs", "cacheScope"} <= listed.keys()
        assert "nextCursor" not in listed
        called = (await fu.ask(call("add", "seven", a=3, b=4)))["result"]
        assert called["resultType"] == "complete"
        assert called["structuredContent"] == {"sum": 7}


async def test_legacy_on_stdio() -> None:
    async with stdio() as fu:
        assert (await fu.ask(legacy("tools/list")))["error"]["code"] == -32600
        assert (await fu.initialize("2025-06-18"))["result"]["protocolVersion"] == "2025-06-18"
        await fu.send(legacy("ping", identity=2))
        assert await fu.line() == b'{"jsonrpc":"2.0","id":2,"result":{}}\n'
        assert list((await fu.ask(legacy("tools/list")))["result"]) == ["tools"]
        await fu.send(legacy("tools/call", {"name": "add", "arguments": {"a": 3, "b": 4}}))
        assert await fu.line() == (
            b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"7"}],"structuredContent":{"sum":7}}}\n'
        )


async def test_instructions_in_both_eras() -> None:
    async with stdio("--instructions", "Ask me.") as fu:
        assert (await fu.initialize())["result"]["instructions"] == "Ask me."
        assert (await fu.ask(modern("server/discover")))["result"]["instructions"] == "Ask me."


async def test_the_base_tools() -> None:
    async with stdio() as fu:
        await fu.send(
            modern("tools/call", {"name": "echo"}).replace(b'"echo"', b'"echo","arguments":{"a":1.50, "b":9e99}')
        )
        assert b'"structuredContent":{"a":1.50, "b":9e99}' in await fu.line()
        for line, text, is_error in [
            (call("sleep", ms=1), "1", False),
            (call("put", key="k", value=[1, "ü"]), "stored k", False),
            (call("get", key="k"), '[1,"ü"]', False),
            (call("get", key="other"), "nothing is stored under other", True),
            (call("fail", message="as told"), "as told", True),
            (call("add", a="3", b=4), "a must be an integer", True),
        ]:
            result = (await fu.ask(line))["result"]
            assert (result["content"][0]["text"], result.get("isError", False)) == (text, is_error)
        known = (await fu.ask(call("whoami")))["result"]["structuredContent"]
        assert known["pid"] == fu.process.pid
        assert "env_values" not in known


async def test_what_is_wrong_is_refused() -> None:
    async with stdio() as fu:
        for line, code in (
            (b"{not json", -32700),
            (b"[]", -32600),
            (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
            (b'{"jsonrpc":"2.0","id":1,"method":"server/discover"}', -32602),
            (modern("nothing/here"), -32601),
            (modern("tools/list", {"cursor": "made up"}), -32602),
            (call("no_such_tool"), -32602),
            (modern("tools/list").replace(b"2026-07-28", b"2031-01-01"), -32022),
        ):
            assert (line, (await fu.ask(line))["error"]["code"]) == (line, code)


async def test_modern_over_http() -> None:
    async with faulty_http() as fu, RawClient(fu.port) as client:
        assert fu.url == f"http://127.0.0.1:{fu.port}/mcp"
        for body in (modern("server/discover"), modern("tools/list"), call("echo", text="é")):
            await post(client, body)  # all on one connection
            response = await client.response()
            assert (response.status, response.headers["content-type"]) == (200, "application/json")
            assert response.json()["result"]["resultType"] == "complete"
        await post(client, call("echo", text="é"), Mcp_Name="=?base64?ZWNobw==?=")
        assert (await client.response()).status == 200


async def test_wrong_headers_are_refused() -> None:
    async with faulty_http() as fu:
        for headers, status, code in (
            ({"Mcp_Method": "tools/list"}, 400, -32020),
            ({"Mcp_Name": "add"}, 400, -32020),
            ({"Mcp_Name": "=?base64?!?="}, 400, -32020),
            ({"MCP_Protocol_Version": "2030-01-01"}, 400, -32020),
            ({"Accept": "application/json"}, 406, -32600),
            ({"Content_Type": "text/plain"}, 415, -32600),
        ):
            response = await exchange(fu.port, call("echo"), **headers)
            assert (headers, response.status, response.json()["error"]["code"]) == (headers, status, code)


async def test_statuses_of_the_modern_era() -> None:
    async with faulty_http() as fu, RawClient(fu.port) as client:
        assert (await exchange(fu.port, modern("nothing/here"))).status == 404
        assert (await exchange(fu.port, call("no_such_tool"))).status == 400
        assert (await exchange(fu.port, modern("tools/list"), path="/other")).status == 404
        await client.request("GET", "/mcp", headers={**ACCEPT, "MCP-Protocol-Version": "2026-07-28"})
        assert (await client.response()).status == 405


async def test_legacy_over_http() -> None:
    async with faulty_http() as fu, RawClient(fu.port) as client:
        assert (await exchange(fu.port, legacy("tools/list"))).status == 400
        session = await open_session(fu.port)
        response = await exchange(fu.port, legacy("tools/list"), **session)
        assert list(response.json()["result"]) == ["tools"]
        assert (await exchange(fu.port, legacy("tools/call", {"name": "nope"}), **session)).status == 200
        await client.request("DELETE", "/mcp", headers={"Mcp-Session-Id": session["Mcp_Session_Id"]})
        assert (await client.response()).status == 200
        assert (await exchange(fu.port, legacy("tools/list"), **session)).status == 404


async def test_a_legacy_get_opens_a_stream_for_announcements() -> None:
    async with faulty_http() as fu, RawClient(fu.port) as client:
        session = await open_session(fu.port)
        await client.request("GET", "/mcp", headers={**ACCEPT, "Mcp-Session-Id": session["Mcp_Session_Id"]})
        status, headers = await client.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        await fu.control.now(notify="list_changed")
        assert b'"notifications/tools/list_changed"' in await client.read_until(b"\n\n")


@pytest.mark.parametrize("over_http", [False, True])
async def test_listen_acknowledges_and_then_tells_of_changes(over_http: bool) -> None:
    listen = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "sub")
    changes = ("--add-tool-after", "0.3")
    expected = [
        ("notifications/subscriptions/acknowledged", "sub"),
        ("notifications/tools/list_changed", "sub"),
    ]
    lines = []
    if over_http:
        async with faulty_http(*changes) as fu, RawClient(fu.port) as client:
            await post(client, listen)
            await client.head()
            lines = [(await client.read_until(b"\n\n")).partition(b"data: ")[2] for _ in range(2)]
    else:
        async with stdio(*changes) as talk:
            await talk.send(listen)
            lines = [await talk.line() for _ in range(2)]
    seen = [json.loads(line) for line in lines]
    assert [
        (message["method"], message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]) for message in seen
    ] == expected


async def test_a_cancelled_call_on_stdio_gets_no_answer() -> None:
    async with stdio() as fu:
        await fu.send(call("sleep", 5, ms=60_000))
        await fu.send(legacy("notifications/cancelled", {"requestId": 5}, None))
        await fu.send(call("sleep", 6, ms=1))
        assert json.loads(await fu.line())["id"] == 6


async def test_closing_the_connection_cancels_in_the_modern_era() -> None:
    async with faulty_http() as fu:
        async with RawClient(fu.port) as client:
            await post(client, call("sleep", 1, ms=60_000))
            await state_with(fu.control, in_flight=1)
        await state_with(fu.control, in_flight=0, cancelled=["1"])


async def test_closing_the_connection_does_not_cancel_in_the_legacy_era_a_notification_does() -> None:
    async with faulty_http() as fu:
        session = await open_session(fu.port)
        async with RawClient(fu.port) as client:
            await post(client, legacy("tools/call", {"name": "sleep", "arguments": {"ms": 60_000}}, 2), **session)
            await state_with(fu.control, in_flight=1)
        await state_with(fu.control, connections=0, in_flight=1, cancelled=[])
        await exchange(fu.port, legacy("notifications/cancelled", {"requestId": 2}, None), **session)
        await state_with(fu.control, in_flight=0, cancelled=["2"])
