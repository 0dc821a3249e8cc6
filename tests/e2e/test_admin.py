"""The operator's listener: health, metrics and the API; its token, and nothing of it on the tenants' side."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.companions import eventually, free_port
from tests.running import Running, config, faulty, gateway, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "operators-only-4711"
GUARDED = ("/metrics", "/api/upstreams", "/api/tenants", "/api/usage")
OPEN = ("/livez", "/readyz")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One upstream that works, one that is down, and a listener that asks for a token."""
    upstreams = {"good": faulty("--tools", "3"), "bad": {"url": f"http://127.0.0.1:{free_port()}/mcp"}}
    content = config(upstreams, ["acme", "beta"], admin={"port": 0, "token": TOKEN})
    async with serving(tmp_path_factory.mktemp("admin"), content) as running:

        async def tried() -> bool:
            states = (await get(running, "/readyz", token=None)).json()["upstreams"]
            return bool(states == {"good": "ready", "bad": "down"})

        await eventually(tried, within_s=20)
        yield running


async def get(
    running: Running, path: str, *, token: str | None = TOKEN, headers: Mapping[str, str] | None = None
) -> httpx2.Response:
    sent = dict(headers or {})
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    return await running.client.get(running.admin + path, headers=sent)


async def test_health_needs_no_token_and_a_down_upstream_does_not_make_it_unready(running: Running) -> None:
    live, ready = [await get(running, path, token=None) for path in OPEN]
    assert (live.status_code, ready.status_code) == (200, 200)
    assert live.json() == {"status": "ok"}
    assert ready.json() == {"status": "ok", "waitingFor": [], "upstreams": {"good": "ready", "bad": "down"}}


@pytest.mark.parametrize("path", GUARDED)
async def test_everything_else_needs_the_token(path: str, running: Running) -> None:
    assert (await get(running, path)).status_code == 200
    for token in (None, "wrong", TOKEN + "1", TOKEN[:-1], running.keys["acme"]):
        refused = await get(running, path, token=token)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in refused.text


async def test_the_upstreams(running: Running) -> None:
    bad, good = (await get(running, "/api/upstreams")).json()["upstreams"]
    assert (good["name"], good["state"], good["tools"], good["era"]) == ("good", "ready", 10, "modern")
    assert good["connectMs"] > 0
    assert (bad["name"], bad["state"], bad["stage"], bad["reason"]) == (
        "bad",
        "down",
        "connect",
        "the connection was refused",
    )
    assert bad["retryAt"] is not None


async def test_the_tenants(running: Running) -> None:
    async def counted() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await get(running, "/api/tenants")).json()["tenants"]
        return rows if all(row["toolsListTokens"]["direct"] for row in rows) else []

    acme, beta = await eventually(counted, within_s=20)
    assert (acme["name"], acme["mode"], acme["kernel"], acme["tools"]) == ("acme", "code", "python", 10)
    assert 0 < acme["toolsListTokens"]["code"] <= 240
    assert beta == {**acme, "name": "beta"}


async def test_usage_equals_the_command(running: Running) -> None:
    for tenant in ("acme", "acme", "beta"):
        assert (await running.run("1 + 1", tenant=tenant)).json() == 2
    everything = (await get(running, "/api/usage")).json()["usage"]
    assert {row["tenant"]: row["requests"] for row in everything} == {"acme": 2, "beta": 1}
    (acme,) = (await get(running, "/api/usage?tenant=acme&since=0")).json()["usage"]
    assert acme == everything[0]
    assert (await get(running, "/api/usage?since=9999999999")).json() == {"usage": []}
    wrong = await get(running, "/api/usage?since=yesterday")
    assert (wrong.status_code, wrong.json()) == (400, {"error": "since must be a Unix time in seconds"})
    code, out, _ = await gateway("usage", "--format", "json", folder=running.folder)
    assert code == 0
    assert (await get(running, "/api/usage")).text == '{"usage":' + out.strip().replace(", ", ",").replace(
        ": ", ":"
    ) + "}"


async def test_the_metrics_page(running: Running) -> None:
    page = await get(running, "/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    for line in ('mcp_gateway_upstream_up{upstream="good"} 1.0', 'mcp_gateway_upstream_up{upstream="bad"} 0.0'):
        assert line in page.text.splitlines()
    modern = await get(running, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.rstrip().endswith("# EOF")


@pytest.mark.parametrize("path", [*OPEN, *GUARDED, "/", "/api/", "/metrics/"])
async def test_nothing_of_it_is_on_the_tenants_listener(path: str, running: Running) -> None:
    for key in (TOKEN, running.keys["acme"]):
        for method in ("GET", "POST"):
            headers = {"Authorization": f"Bearer {key}"}
            response = await running.client.request(method, running.url + path, headers=headers)
            assert response.status_code == 404
            assert "good" not in response.text


@pytest.mark.parametrize("path", ["/mcp", "/mcp/direct", "/api/nothing", "/metrics/.."])
async def test_nothing_of_the_tenants_is_here(path: str, running: Running) -> None:
    assert (await get(running, path)).status_code == 404


@pytest.mark.parametrize("path", [*OPEN, *GUARDED])
@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "rebound.example"}, 421), ({"Host": "127.0.0.1:1"}, 421), ({"Origin": "https://evil.example"}, 403)],
    ids=["foreign host", "foreign port", "foreign origin"],
)
async def test_a_foreign_host_or_origin_is_refused_before_anything_else(
    path: str, headers: dict[str, str], status: int, running: Running
) -> None:
    response = await get(running, path, headers=headers)
    assert response.status_code == status
    assert "good" not in response.text


async def test_only_reading_is_possible(running: Running) -> None:
    for path in (*OPEN, *GUARDED):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await running.client.post(running.admin + path, headers=headers)).status_code == 405
