"""What the faulty upstream offers besides tools, and its paced progress."""

from __future__ import annotations

import json
import time

from tests.faulty_upstream.conversation import call, legacy, modern, stdio

PROGRESS = {"progressToken": "t"}


async def test_a_library_signs_what_it_offers() -> None:
    async with stdio("--library", "x") as fu:
        offered = (await fu.ask(modern("server/discover")))["result"]["capabilities"]
        assert set(offered) == {"tools", "resources", "prompts", "completions"}
        resources = (await fu.ask(modern("resources/list")))["result"]["resources"]
        assert [each["uri"] for each in resources] == [
            "note://shared",
            "note://x",
            "note://shared/pixel",
            "note://huge",
        ]
        templates = (await fu.ask(modern("resources/templates/list")))["result"]["resourceTemplates"]
        assert [each["uriTemplate"] for each in templates] == ["note://shared/page/{x}"]
        read = (await fu.ask(modern("resources/read", {"uri": "note://shared"})))["result"]
        assert read["contents"][0]["text"] == "x: empty at note://shared"
        assert (await fu.ask(modern("resources/read", {"uri": "note://y"})))["error"]["code"] == -32602
        prompts = (await fu.ask(modern("prompts/list")))["result"]["prompts"]
        assert [each["name"] for each in prompts] == ["greet"]
        greeting = (await fu.ask(modern("prompts/get", {"name": "greet", "arguments": {"who": "Ada"}})))["result"]
        assert greeting["messages"][0]["content"]["text"] == "x greets Ada"
        asked = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "A"}}
        completed = (await fu.ask(modern("completion/complete", asked)))["result"]
        assert completed["completion"] == {"values": ["x completes greet who=A"]}


async def test_without_a_library_there_is_none() -> None:
    async with stdio() as fu:
        assert (await fu.ask(modern("resources/list")))["error"]["code"] == -32601


async def test_putting_a_value_under_a_uri_tells_who_subscribed() -> None:
    async with stdio("--library", "x", "--era", "legacy") as fu:
        await fu.initialize()
        put = {"name": "put", "arguments": {"key": "note://x", "value": "new"}}
        assert (await fu.ask(legacy("tools/call", put)))["id"] == 1
        assert (await fu.ask(legacy("resources/subscribe", {"uri": "note://x"})))["result"] == {}
        assert await fu.ask(legacy("tools/call", put)) == {
            "jsonrpc": "2.0",
            "method": "notifications/resources/updated",
            "params": {"uri": "note://x"},
        }
        await fu.line()
        assert (await fu.ask(legacy("resources/unsubscribe", {"uri": "note://x"})))["result"] == {}
        assert (await fu.ask(legacy("tools/call", put)))["id"] == 1


async def test_a_modern_stream_tells_of_its_resources_with_its_tag() -> None:
    async with stdio("--library", "x") as fu:
        wanted = {"notifications": {"resourceSubscriptions": ["note://x"]}}
        acknowledged = await fu.ask(modern("subscriptions/listen", wanted, 7))
        assert acknowledged["params"]["notifications"] == {"resourceSubscriptions": ["note://x"]}
        told = await fu.ask(call("put", key="note://x", value=1))
        assert told["params"] == {"uri": "note://x", "_meta": {"io.modelcontextprotocol/subscriptionId": 7}}


async def test_progress_is_paced() -> None:
    async with stdio("--sse", "progress:2", "--progress-every", "0.1") as fu:
        begun = time.monotonic()
        await fu.send(modern("tools/call", {"name": "echo", "arguments": {}}, **PROGRESS))
        times = []
        for step in (1, 2):
            assert json.loads(await fu.line())["params"]["progress"] == step
            times.append(time.monotonic() - begun)
        assert times[0] >= 0.1
        assert times[1] >= 0.2
