"""The connectors against servers that are built on the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.model import HttpUpstream, StdioUpstream
from gateway.upstreams.base import RpcFailed
from gateway.upstreams.supervisor import Upstream
from tests.companions import free_port
from tests.upstreams.support import connected, running, state_of

SERVER = str(Path(__file__).with_name("sdk_server.py"))


@contextlib.asynccontextmanager
async def http_server(*options: str) -> AsyncIterator[HttpUpstream]:
    port = free_port()
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
        yield HttpUpstream(url=f"http://127.0.0.1:{port}/mcp")
    finally:
        process.kill()
        await process.wait()


async def works(upstream: Upstream, era: str) -> None:
    await state_of(upstream, "ready", within_s=30)
    assert (upstream.status.era, upstream.status.server) == (era, "sdk")
    assert [tool.name for tool in upstream.tools] == ["upper"]
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
