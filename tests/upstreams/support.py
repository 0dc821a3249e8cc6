"""What the tests of this room share: faulty upstreams as configuration, and a run that must leave nothing behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from gateway.config.model import HttpUpstream, StdioUpstream
from gateway.upstreams.base import Connector
from gateway.upstreams.federation import Federation
from gateway.upstreams.http import HttpConnector
from gateway.upstreams.legacy_sse import LegacySseConnector
from gateway.upstreams.stdio import StdioConnector
from gateway.upstreams.supervisor import Upstream
from tests.companions import FaultyHttp, eventually, faulty_command

Config = StdioUpstream | HttpUpstream
AnyConnector = StdioConnector | HttpConnector | LegacySseConnector


def stdio(*switches: str, **config: Any) -> StdioUpstream:
    """A faulty upstream on stdio."""
    command, arguments = faulty_command(*switches)
    return StdioUpstream(command=command, args=tuple(arguments), **config)


def connector_for(config: Config, folder: Path = Path("/"), **options: Any) -> AnyConnector:
    if isinstance(config, HttpUpstream) and config.type == "sse":
        return LegacySseConnector("fu", config, **options)
    if isinstance(config, StdioUpstream):
        return StdioConnector("fu", config, folder, **options)
    return HttpConnector("fu", config, **options)


@asynccontextmanager
async def connected(config: Config, **options: Any) -> AsyncIterator[AnyConnector]:
    """An open connector; nothing of it may be left after the block."""
    async with nothing_left():
        connector = connector_for(config, **options)
        try:
            await connector.open(10)
            yield connector
        finally:
            await connector.close()


@asynccontextmanager
async def running(
    configs: Mapping[str, Config],
    on_change: Callable[[Upstream], None] = lambda _: None,
    folder: Path = Path("/"),
    on_announced: Callable[[Upstream, str, bytes], None] = lambda upstream, method, params: None,
) -> AsyncIterator[Mapping[str, Upstream]]:
    """A federation; nothing of it may be left after the block."""
    async with nothing_left(), Federation(configs, folder, on_change, on_announced) as federation:
        yield federation.upstreams


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Tasks and child processes are the same after the block as before it."""
    tasks, children = asyncio.all_tasks(), set(psutil.Process().children(recursive=True))
    yield
    await eventually(lambda: asyncio.all_tasks() <= tasks)
    left = {child for child in psutil.Process().children(recursive=True) if runs(child)} - children
    assert not left, f"left behind: {left}"


async def state_of(upstream: Upstream, *states: str, within_s: float = 15.0) -> None:
    """Wait until the upstream is in one of these states."""
    await eventually(lambda: upstream.status.state in states, within_s=within_s)


async def reached(fu: FaultyHttp, condition: Callable[[dict[str, Any]], Any]) -> None:
    """Wait until the counters of the faulty upstream fulfil the condition."""

    async def state() -> bool:
        return bool(condition(await fu.control.state()))

    asked: Callable[[], bool | Awaitable[bool]] = state
    await eventually(asked, within_s=15)


async def called(connector: Connector, tool: str, timeout_s: float = 15.0, **arguments: Any) -> Any:
    """``structuredContent``, or else the first text, of one call through a bare connector."""
    raw = await connector.request("tools/call", {"name": tool, "arguments": arguments}, timeout_s)
    result = json.loads(raw)
    return result.get("structuredContent") or result["content"][0]["text"]


def logged(path: Path) -> list[dict[str, Any]]:
    """What a faulty upstream with ``--log-calls`` has received."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def points(path: Path) -> list[str]:
    return [str(line["point"]) for line in logged(path)]


def runs(process: psutil.Process) -> bool:
    """Whether it is alive; a zombie is not, to collect it is the business of whoever has adopted it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
