"""An upstream that was asked to tell when a resource changes goes on doing so, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
import pytest

from gateway.config.model import HttpUpstream, StdioUpstream
from gateway.upstreams import following
from gateway.upstreams.base import RpcFailed
from gateway.upstreams.supervisor import Upstream
from tests.companions import Control, eventually, faulty_command, faulty_http, free_port
from tests.upstreams.support import running, state_of

each_era = pytest.mark.parametrize("era", ["modern", "legacy"])
each_transport = pytest.mark.parametrize("transport", ["stdio", "http"])
UPDATED = "notifications/resources/updated"


@dataclass(frozen=True)
class Library:
    """A faulty upstream with resources, and the URIs of which it told."""

    upstream: Upstream
    control: Control
    told: list[str]

    async def change(self, uri: str) -> None:
        await self.upstream.call_tool("put", msgspec.json.encode({"key": uri, "value": 1}))

    async def tells_of(self, uri: str) -> None:
        """It tells of a change, perhaps not of the first one."""
        self.told.clear()

        async def told() -> bool:
            await self.change(uri)
            return uri in self.told

        await eventually(told, every_s=0.05)


@contextlib.asynccontextmanager
async def library(transport: str, *switches: str) -> AsyncIterator[Library]:
    told: list[str] = []

    def announced(upstream: Upstream, method: str, params: bytes) -> None:
        if method == UPDATED:
            told.append(msgspec.json.decode(params)["uri"])

    async with contextlib.AsyncExitStack() as stack:
        if transport == "http":
            fu = await stack.enter_async_context(faulty_http("--library", "x", *switches))
            config: StdioUpstream | HttpUpstream = HttpUpstream(url=fu.url)
            control = fu.control
        else:
            control = Control(free_port())
            command, args = faulty_command("--library", "x", "--control", str(control.port), *switches)
            config = StdioUpstream(command=command, args=tuple(args))
        ups = await stack.enter_async_context(running({"x": config}, on_announced=announced))
        await state_of(ups["x"], "ready")
        yield Library(ups["x"], control, told)


@each_era
@each_transport
async def test_what_is_followed_is_told_and_nothing_else(transport: str, era: str) -> None:
    async with library(transport, "--era", era) as shelf:
        await shelf.upstream.follow("note://x")
        await shelf.upstream.follow("note://shared")
        await shelf.upstream.follow("note://x")
        for uri in ("note://other", "note://x", "note://shared"):
            await shelf.change(uri)
        await eventually(lambda: len(shelf.told) == 2)
        assert shelf.told == ["note://x", "note://shared"]


@each_era
async def test_it_is_followed_again_after_a_restart(era: str) -> None:
    async with library("stdio", "--era", era) as shelf:
        await shelf.upstream.follow("note://x")
        with contextlib.suppress(OSError, AssertionError, asyncio.IncompleteReadError):
            await shelf.control.now(exit=1)
        await eventually(lambda: shelf.upstream.status.restarts == 1 and shelf.upstream.status.state == "ready", 15)
        await shelf.tells_of("note://x")


async def test_it_is_followed_again_in_a_new_session() -> None:
    async with library("http", "--era", "legacy", "--session-ttl", "2") as shelf:
        await shelf.upstream.follow("note://x")
        before = (await shelf.control.state())["handshakes"]["initialize"]
        for _ in range(4):
            await shelf.change("note://y")
        assert (await shelf.control.state())["handshakes"]["initialize"] > before

        async def twice() -> bool:
            return bool((await shelf.control.state())["requests"]["other"] >= 3)

        await eventually(twice)


async def test_a_refusal_is_told_and_forgotten() -> None:
    async with library("stdio", "--era", "legacy") as shelf:
        await shelf.control.set(error="-32602:no such resource:point=other")
        with pytest.raises(RpcFailed, match="no such resource"):
            await shelf.upstream.follow("note://x")
        await shelf.control.set(error=None)
        await shelf.upstream.follow("note://x")
        await shelf.tells_of("note://x")


async def test_of_too_many_the_first_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MAX_FOLLOWED", 2)
    async with library("http", "--era", "modern") as shelf:
        for uri in ("note://1", "note://2", "note://3"):
            await shelf.upstream.follow(uri)
        for uri in ("note://1", "note://2", "note://3"):
            await shelf.change(uri)
        await eventually(lambda: len(shelf.told) == 2)
        assert shelf.told == ["note://2", "note://3"]
