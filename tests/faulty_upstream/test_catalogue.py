"""Catalogue switches: which tools, which pages, which changes."""

import json
from pathlib import Path
from typing import Any

from tests.companions import faulty_http
from tests.faulty_upstream.conversation import Conversation, call, exchange, legacy, modern, stdio


async def pages(fu: Conversation, limit: int = 10) -> list[dict[str, Any]]:
    """All pages of one listing, at most ``limit``."""
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    while len(found) < limit:
        result = (await fu.ask(modern("tools/list", params)))["result"]
        found.append(result)
        if "nextCursor" not in result:
            break
        params = {"cursor": result["nextCursor"]}
    return found


async def listed(fu: Conversation) -> dict[str, dict[str, Any]]:
    (page,) = await pages(fu)
    return {tool["name"]: tool for tool in page["tools"]}


async def test_tools_return_their_own_name() -> None:
    async with stdio("--tools", "2") as fu:
        assert list(await listed(fu))[-2:] == ["tool_0001", "tool_0002"]
        result = (await fu.ask(call("tool_0002", q=1)))["result"]
        assert result["content"][0]["text"] == "tool_0002"
        assert result["structuredContent"] == {"tool": "tool_0002", "arguments": {"q": 1}}


async def test_name_len_pads_in_the_middle() -> None:
    async with stdio("--tools", "2", "--name-len", "120") as fu:
        first, second = list(await listed(fu))[-2:]
        assert (len(first), len(second)) == (120, 120)
        assert first[:110] == second[:110]
        assert (await fu.ask(call(second)))["result"]["content"][0]["text"] == second


async def test_tools_file_is_sent_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_bytes('[{"name":"a/b c","inputSchema":{"n":1.50,"n":1e400}} , {"name":"ü"}]'.encode())
    async with faulty_http("--tools-file", str(file)) as http:
        body = (await exchange(http.port, modern("tools/list"))).body
        assert '"tools":[{"name":"a/b c","inputSchema":{"n":1.50,"n":1e400}},{"name":"ü"}]'.encode() in body
    async with stdio("--tools-file", str(file)) as fu:
        result = (await fu.ask(call("a/b c", x=2)))["result"]
        assert result["structuredContent"] == {"tool": "a/b c", "arguments": {"x": 2}}
        assert (await fu.ask(call("echo")))["error"]["code"] == -32602


async def test_a_tools_file_that_is_no_array_is_sent_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text('{"not":"an array"}')
    async with stdio("--tools-file", str(file)) as fu:
        assert (await fu.ask(modern("tools/list")))["result"]["tools"] == {"not": "an array"}


async def test_schema_of_added_tools(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type":"object","default":1.0}')
    async with stdio("--tools", "1", "--schema", str(file)) as fu:
        await fu.send(modern("tools/list"))
        assert b'"inputSchema":{"type":"object","default":1.0}}]' in await fu.line()


async def test_pages() -> None:
    async with stdio("--tools", "3", "--pages", "4") as fu:
        found = await pages(fu)
        assert len(found) == 4
        names = [tool["name"] for page in found for tool in page["tools"]]
        assert len(names) == len(set(names)) == 10


async def test_cursor_repeat_never_ends() -> None:
    async with stdio("--cursor", "repeat") as fu:
        assert {page["nextCursor"] for page in await pages(fu, limit=6)} == {"again"}


async def test_cursor_unicode_must_come_back_as_it_was() -> None:
    async with stdio("--cursor", "unicode") as fu:
        found = await pages(fu)
        cursor = found[0]["nextCursor"]
        assert len(found) == 3
        assert {'"', "\x00", "🧰"} <= set(cursor)
        assert len(cursor) > 4096
        assert (await fu.ask(modern("tools/list", {"cursor": cursor[:-1]})))["error"]["code"] == -32602


async def test_cursor_empty_is_not_the_end() -> None:
    async with stdio("--cursor", "empty") as fu:
        found = await pages(fu)
        assert [page.get("nextCursor") for page in found] == ["", "page-3", None]


async def test_definitions_change_after_so_many_lists() -> None:
    switches = ("--change-desc-after", "1", "--change-schema-after", "1:tool=add", "--change-annotations-after", "2")
    async with stdio(*switches) as fu:
        first, second, third = [await listed(fu) for _ in range(3)]
        assert first["echo"]["description"] != second["echo"]["description"]
        assert "changed" not in first["add"]["inputSchema"]["properties"]
        assert "changed" in second["add"]["inputSchema"]["properties"]
        assert first["echo"]["annotations"] == second["echo"]["annotations"] != third["echo"]["annotations"]
        assert first["put"] == third["put"]


async def test_a_tool_appears_another_goes_and_both_are_announced() -> None:
    async with stdio("--add-tool-after", "0.3:tool=late", "--remove-tool-after", "0.3:tool=get") as fu:
        await fu.initialize()
        assert b"list_changed" in await fu.line()
        names = list(await listed(fu))
        assert "late" in names
        assert "get" not in names
        assert (await fu.ask(call("late")))["result"]["content"][0]["text"] == "late"
        assert (await fu.ask(call("get", key="k")))["error"]["code"] == -32602


async def test_quiet_changes_are_not_announced() -> None:
    async with stdio("--add-tool-after", "0.05", "--quiet-changes", "--notify", "ping:every=0.3") as fu:
        await fu.initialize()
        assert json.loads(await fu.line())["method"] == "ping"
        assert "added_tool" in await listed(fu)


async def test_rename_between_pages() -> None:
    async with stdio("--tools", "300", "--pages", "3", "--rename-between-pages", "--quiet-changes") as fu:
        first, second, _ = await pages(fu)
        assert not any(tool["name"].endswith("_renamed") for tool in first["tools"])
        assert sum(tool["name"].endswith("_renamed") for tool in second["tools"]) == 34
        assert (await fu.ask(call("echo")))["error"]["code"] == -32602


async def test_cache_hints() -> None:
    async with stdio("--ttl", "3000", "--cache-scope", "public") as fu:
        result = (await fu.ask(modern("tools/list")))["result"]
        assert (result["ttlMs"], result["cacheScope"]) == (3000, "public")


async def test_stateful() -> None:
    async with stdio("--stateful") as fu:
        await fu.initialize()
        assert (await fu.ask(call("current")))["result"]["structuredContent"] == {"url": None}
        await fu.ask(legacy("tools/call", {"name": "open", "arguments": {"url": "http://a"}}))
        assert (await fu.ask(call("current")))["result"]["structuredContent"] == {"url": "http://a"}
