"""The connectors against servers that are built on the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.model import HttpUpstream, StdioUpstream
from gateway.upstreams.base import InputRequired, RpcFailed, UpstreamFailed
from gateway.upstreams.supervisor import Upstream
from tests.companions import eventually, free_port
from tests.upstreams.listener import ADA, Listener
from tests.upstreams.support import connected, running, state_of

SERVER = str(Path(__file__).with_name("sdk_server.py"))


@contextlib.asynccontextmanager
async def http_server(*options: str, port: int = 0) -> AsyncIterator[HttpUpstream]:
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, SERVER, str(port), *options)

    async def listens() -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await writer.wait_closed()
            return True
        return False

    try:
        while not await listens():
            assert process.returncode is None
            await asyncio.sleep(0.05)
        url = f"http://127.0.0.1:{port}{'/sse' if 'old' in options else '/mcp'}"
        yield HttpUpstream(url=url, client_capabilities=("elicitation",))
    finally:
        process.kill()
        await process.wait()


async def works(upstream: Upstream, era: str) -> None:
    await state_of(upstream, "ready", within_s=30)
    assert (upstream.status.era, upstream.status.server) == (era, "sdk")
    assert [tool.name for tool in upstream.tools] == ["upper", "steps", "name", "announce"]
    results = await asyncio.gather(*(upstream.call_tool("upper", b'{"text":"n%d"}' % n) for n in range(20)))
    assert [result.structured for result in results] == [b'{"text":"N%d"}' % n for n in range(20)]


async def test_a_server_on_stdio() -> None:
    async with running({"sdk": StdioUpstream(command=sys.executable, args=(SERVER,))}) as ups:
        await works(ups["sdk"], "modern")


async def test_a_server_on_stdio_in_the_legacy_era() -> None:
    config = StdioUpstream(command=sys.executable, args=(SERVER,))
    async with connected(config, known_era="legacy") as connector:
        raw = await connector.request("tools/call", {"name": "upper", "arguments": {"text": "a"}}, 5)
    assert b'"text":"A"' in raw


@pytest.mark.parametrize("form", ["json", "sse"])
async def test_a_server_over_http_in_both_eras(form: str) -> None:
    async with http_server(form) as config:
        async with running({"sdk": config}) as ups:
            await works(ups["sdk"], "modern")
            with pytest.raises(RpcFailed):
                await ups["sdk"].request("no/such/method", {})
            assert ups["sdk"].status.state == "ready"
        async with connected(config, known_era="legacy") as connector:
            raw = await connector.request("tools/call", {"name": "upper", "arguments": {"text": "a"}}, 5)
            assert b'"text":"A"' in raw


# ------------------------------------------------------------------ beside a call

PROMPTS_CHANGED = "notifications/prompts/list_changed"


@contextlib.asynccontextmanager
async def serving(transport: str) -> AsyncIterator[StdioUpstream | HttpUpstream]:
    if transport == "stdio":
        yield StdioUpstream(command=sys.executable, args=(SERVER,), client_capabilities=("elicitation",))
        return
    async with http_server(transport) as config:
        yield config.model_copy(update={"type": "sse"}) if transport == "old" else config


@pytest.mark.parametrize("transport", ["stdio", "streams", "old"])
async def test_a_legacy_server_reports_and_asks(transport: str) -> None:
    listener = Listener(wants_progress=True, answer=ADA)
    options = {} if transport == "old" else {"known_era": "legacy"}
    name = {"name": "name", "arguments": {}}
    async with serving(transport) as config, connected(config, **options) as connector:
        await connector.request("tools/call", {"name": "steps", "arguments": {"steps": 3}}, 5, listener)
        named = await connector.request("tools/call", name, 5, listener)
        listener.answer = RpcFailed("client", -1, "no user")
        refused = await connector.request("tools/call", name, 5, listener)
        with pytest.raises(InputRequired, match="What is your name"):
            await connector.request("tools/call", name, 5)
        plain = await connector.request("tools/call", {"name": "upper", "arguments": {"text": "a"}}, 5)

    assert [params["message"] for params in listener.told("notifications/progress")] == ["step 1", "step 2", "step 3"]
    assert [params["data"] for params in listener.told("notifications/message")] == ["all steps done"]
    texts = [json.loads(raw)["structuredContent"]["text"] for raw in (named, refused, plain)]
    assert texts == ["Ada", "refused with -1: no user", "A"]


@pytest.mark.parametrize("transport", ["stdio", "streams"])
async def test_a_modern_server_reports_and_asks(transport: str) -> None:
    listener = Listener(wants_progress=True, log_level="info", capabilities={"elicitation": {}})
    async with serving(transport) as config, running({"u": config}) as ups:
        await state_of(ups["u"], "ready", within_s=30)
        await ups["u"].call_tool("steps", b'{"steps":3}', beside=listener)
        with pytest.raises(InputRequired, match="What is your name") as caught:
            await ups["u"].call_tool("name", b"{}", beside=listener)
        state = json.loads(caught.value.raw)["requestState"]
        extra = {"requestState": state, "inputResponses": {"who": ADA}}
        named = await ups["u"].call_tool("name", b"{}", beside=listener, extra=extra)

    assert [params["message"] for params in listener.told("notifications/progress")] == ["step 1", "step 2", "step 3"]
    assert [params["data"] for params in listener.told("notifications/message")] == ["all steps done"]
    assert named.structured == b'{"text":"Ada after asked"}'


@pytest.mark.parametrize("transport", ["stdio", "streams", "old"])
async def test_what_a_server_announces_is_passed_on(transport: str) -> None:
    announced: list[tuple[str, str]] = []

    def on_announced(upstream: Upstream, method: str, params: bytes) -> None:
        announced.append((upstream.name, method))

    async with serving(transport) as config, running({"u": config}, on_announced=on_announced) as ups:
        await state_of(ups["u"], "ready", within_s=30)
        assert ups["u"].status.capabilities["prompts"] == {"listChanged": True}

        async def heard() -> bool:
            await ups["u"].call_tool("announce", b"{}")  # again, until the stream for it is open
            return ("u", PROMPTS_CHANGED) in announced

        await eventually(heard)
    assert {method for _, method in announced} == {PROMPTS_CHANGED}


# ------------------------------------------------------------------ HTTP+SSE


async def test_the_old_transport_is_found_out_and_kept() -> None:
    async with (
        http_server("old") as config,
        running({"found": config, "told": config.model_copy(update={"type": "sse"})}) as ups,
    ):
        for upstream in ups.values():
            await works(upstream, "legacy")
            assert upstream.status.restarts == 0
            with pytest.raises(RpcFailed):
                await upstream.request("no/such/method", {})


async def test_a_lost_stream_fails_what_is_in_flight_and_is_opened_again() -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = contextlib.AsyncExitStack()
        await stack.enter_async_context(first)
        config = await first.enter_async_context(http_server("old"))
        ups = await stack.enter_async_context(running({"u": config}))
        await state_of(ups["u"], "ready", within_s=30)
        listener = Listener(wants_progress=True)
        arguments = b'{"steps":1000,"ms":20}'
        calls = [asyncio.create_task(ups["u"].call_tool("steps", arguments, beside=listener)) for _ in range(3)]
        await eventually(lambda: len(listener.heard) >= 3)
        await first.aclose()
        async with asyncio.timeout(5):
            for failure in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(failure, UpstreamFailed)
                assert failure.delivered
        await state_of(ups["u"], "down")
        port = int(config.url.rpartition(":")[2].partition("/")[0])
        await stack.enter_async_context(http_server("old", port=port))
        await state_of(ups["u"], "ready", within_s=20)
        assert (await ups["u"].call_tool("upper", b'{"text":"a"}')).structured == b'{"text":"A"}'
