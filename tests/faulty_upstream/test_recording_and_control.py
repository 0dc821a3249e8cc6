"""What it remembers, and how it is changed while it runs."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.companions import Control, RawClient, faulty_http, free_port
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


async def test_log_calls_writes_each_request_before_it_is_answered(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    async with stdio("--log-calls", str(log), "--die-on", "call:1") as fu:
        await fu.ask(modern("tools/list", identity="l"))
        await fu.send(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"put","arguments":{"n": 1.50}}}')
        await fu.ended()
        listed, called = [json.loads(line) for line in log.read_text().splitlines()]
    assert (listed["point"], listed["method"], listed["id"]) == ("list", "tools/list", "l")
    assert (called["point"], called["tool"], called["id"], called["pid"]) == ("call", "put", 7, fu.process.pid)
    assert called["arguments"] == '{"n": 1.50}'


async def test_log_calls_over_http_holds_headers_and_session(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    async with faulty_http("--log-calls", str(log), "--status", "call=500") as fu, RawClient(fu.port) as client:
        session = await open_session(fu.port)
        await exchange(fu.port, legacy("tools/call", {"name": "echo"}), Authorization="Bearer x", **session)
        await client.request("DELETE", "/mcp", headers={**ACCEPT, "Mcp-Session-Id": session["Mcp_Session_Id"]})
        await client.response()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["point"] for line in lines] == ["init", "other", "call", "delete"]
    assert lines[2]["headers"]["Authorization"] == "Bearer x"
    assert lines[2]["session"] == session["Mcp_Session_Id"]


async def test_echo_headers_and_echo_env() -> None:
    async with faulty_http("--echo-headers", "--echo-env") as fu:
        answer = (await exchange(fu.port, call("whoami"), X_Canary="c1")).json()["result"]["structuredContent"]
        assert answer["header_values"]["x-canary"] == "c1"
        assert answer["env_values"].keys() == set(answer["env"])
        assert "--echo-env" in answer["argv"]
        session = await open_session(fu.port)
        asked = await exchange(fu.port, legacy("tools/call", {"name": "whoami"}), **session)
        answer = asked.json()["result"]["structuredContent"]
        assert answer["session"] == session["Mcp_Session_Id"]
        assert answer["session_headers"]["content-type"] == "application/json"


async def test_state_counts() -> None:
    async with faulty_http() as fu:
        await open_session(fu.port)
        await exchange(fu.port, modern("tools/list"))
        await exchange(fu.port, call("put", key="k", value=1))
        await asyncio.gather(*(exchange(fu.port, call("sleep", ms=100)) for _ in range(5)))
        state = await fu.control.state()
    assert state["pid"] == fu.process.pid
    assert state["handshakes"] == {"initialize": 1, "initialized": 1}
    assert (state["lists"], state["calls"], state["calls_by_tool"]) == (1, 6, {"put": 1, "sleep": 5})
    assert (state["in_flight"], state["in_flight_peak"]) == (0, 5)
    assert (state["stored"], state["puts"]) == ({"k": 1}, [["k", 1]])
    assert len(state["sessions"]) == 1
    assert state["connections_opened"] == 9


async def test_set_changes_a_fault_and_takes_it_back() -> None:
    async with faulty_http() as fu:
        await fu.control.set(error="-1:no:times=1", tools=2)
        assert "error" in (await exchange(fu.port, call("echo"))).json()
        assert "result" in (await exchange(fu.port, call("echo"))).json()
        await fu.control.set(error="-1:no:times=1")  # counts from the beginning
        assert "error" in (await exchange(fu.port, call("echo"))).json()
        await fu.control.set(error=None, status=["list=500", "call=503"])
        assert (await exchange(fu.port, call("tool_0002"))).status == 503
        assert (await exchange(fu.port, modern("tools/list"))).status == 500
        await fu.control.set(status=None)
        assert (await exchange(fu.port, call("tool_0002"))).status == 200


async def test_set_refuses_what_it_does_not_understand() -> None:
    async with faulty_http() as fu:
        for wrong in ({"bogus": 1}, {"hang": "nowhere"}, {"http": 1}):
            with pytest.raises(AssertionError):
                await fu.control.set(**wrong)


async def test_control_of_a_process_on_stdio() -> None:
    port = free_port()
    async with stdio("--control", str(port)) as fu:
        await fu.ask(call("echo"))
        await Control(port).set(result="iserror")
        assert (await fu.ask(call("echo")))["result"]["isError"]
        assert (await Control(port).state())["calls"] == 2


async def test_now_resets_connections_all_or_by_what_they_are_busy_with() -> None:
    async with faulty_http() as fu, RawClient(fu.port) as idle, RawClient(fu.port) as busy, RawClient(fu.port) as add:
        await post(idle, call("echo"))
        await idle.response()
        await post(busy, call("sleep", ms=60_000))
        await fu.control.set(call_delay="60")
        await post(add, call("add", a=1, b=2))
        await state_with(fu.control, in_flight=2)
        assert await fu.control.now(reset="call", tool="sleep") == {"reset": 1}
        with pytest.raises(ConnectionResetError):
            await busy.read()
        assert await fu.control.now(reset="connections") == {"reset": 2}
        for client in (idle, add):
            with pytest.raises(ConnectionResetError):
                await client.read()


async def test_now_forgets_sessions() -> None:
    async with faulty_http() as fu:
        session = await open_session(fu.port)
        await fu.control.now(reset="sessions")
        assert (await exchange(fu.port, legacy("tools/list"), **session)).status == 404


async def test_now_exits() -> None:
    async with faulty_http() as fu:
        with pytest.raises(asyncio.IncompleteReadError):
            await fu.control.now(exit=5)
        assert await fu.process.wait() == 5
