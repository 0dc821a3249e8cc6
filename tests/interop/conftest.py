"""One gateway with the example's real MCP servers for all tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.client.streamable_http import streamable_http_client

from tests.companions import eventually
from tests.interop.example import START_S, Places, make_places, sections
from tests.running import Running, config, serving


@dataclass(frozen=True)
class Example:
    """The gateway, and where its servers work."""

    running: Running
    places: Places

    @contextlib.asynccontextmanager
    async def client(
        self, mode: ConnectMode = "auto", *, tenant: str = "acme", path: str = "/mcp"
    ) -> AsyncIterator[Client]:
        """The Python SDK's client, connected as a tenant."""
        headers = {"Authorization": f"Bearer {self.running.keys[tenant]}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(self.running.url + path, http_client=http), mode=mode) as client,
        ):
            yield client


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def example(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Example]:
    """Ready when every server is; fails with the reasons when one is not, never skips."""
    places = make_places(tmp_path_factory.mktemp("places"))
    content = sections()
    folder = tmp_path_factory.mktemp("gateway")
    async with serving(folder, config(content["upstreams"], content["tenants"]), **places.environment) as running:
        await all_ready(running, len(content["upstreams"]))
        yield Example(running, places)


async def all_ready(running: Running, count: int) -> None:
    """Wait until every upstream is ready and in the catalogue.

    Raises:
        AssertionError: one is not, with what the gateway says of it.
    """
    assert count >= 6

    async def starting() -> list[str]:
        rows = (await running.admin_get("/api/upstreams"))["upstreams"]
        assert len(rows) == count
        return [f"{row['name']}: {row['state']} {row['reason']}" for row in rows if row["state"] != "ready"]

    async def ready() -> bool:
        return not await starting()

    try:
        await eventually(ready, within_s=START_S, every_s=0.1)
    except AssertionError:
        pytest.fail(f"these servers did not start: {await starting()}")
    expected = sum(row["tools"] for row in (await running.admin_get("/api/upstreams"))["upstreams"])

    async def in_catalogue() -> bool:
        rows = {row["name"]: row["tools"] for row in (await running.admin_get("/api/tenants"))["tenants"]}
        return bool(rows["acme"] == expected)  # it sees everything

    await eventually(in_catalogue)
