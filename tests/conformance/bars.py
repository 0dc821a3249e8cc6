"""The bars: what the suite is run against, at which revision of the specification, and with which baseline.

=================  ===============================================================================================
``reference``      the suite against :mod:`everything <tests.conformance.everything>` itself; nothing may fail. Not a
                   test of the gateway, so not among the defaults
``code``           ``/mcp``: an endpoint with two tools. What may fail is what asks for a fixture of the suite
``direct``         ``/mcp/direct`` in front of ``everything``, reached over HTTP, which speaks the modern era
``direct-legacy``  the same, started over stdio, and it speaks the legacy era
``upstreams``      our connectors as the client under test
=================  ===============================================================================================

Both requirement sets are run against each, so clients of either era meet upstreams of either era.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.suite import FOLDER, REVISIONS, ROOT, Verdict, client_run, companion, server_run


@dataclass(frozen=True)
class Bar:
    """One bar; ``run`` takes a revision."""

    name: str
    what: str
    run: Callable[[str], Awaitable[Verdict]]


def baseline(name: str, revision: str) -> Path:
    return FOLDER / f"expected-failures-{name}-{revision}.yml"


EVERYTHING = ("-m", "tests.conformance.everything")


async def reference(revision: str) -> Verdict:
    async with companion(*EVERYTHING, "--http") as url:
        return await server_run(url, revision, FOLDER / "expected-failures-reference.yml")


async def code(revision: str) -> Verdict:
    async with gateway({}) as url:
        return await server_run(f"{url}/mcp", revision, baseline("code", revision))


async def direct(revision: str) -> Verdict:
    async with companion(*EVERYTHING, "--http") as upstream, gateway({"url": upstream}) as url:
        return await server_run(f"{url}/mcp/direct", revision, baseline("direct", revision))


async def direct_legacy(revision: str) -> Verdict:
    async with gateway({"command": sys.executable, "args": [*EVERYTHING, "--legacy"], "cwd": str(ROOT)}) as url:
        return await server_run(f"{url}/mcp/direct", revision, baseline("direct-legacy", revision))


async def upstreams(revision: str) -> Verdict:
    command = shlex.join([sys.executable, str(FOLDER / "upstream_driver.py")])
    return await client_run(command, revision, baseline("upstreams", revision))


BARS = {
    bar.name: bar
    for bar in (
        Bar("reference", "the fixtures alone", reference),
        Bar("code", "/mcp", code),
        Bar("direct", "/mcp/direct, modern upstream over HTTP", direct),
        Bar("direct-legacy", "/mcp/direct, legacy upstream over stdio", direct_legacy),
        Bar("upstreams", "connectors", upstreams),
    )
}
DEFAULT = ("code", "direct", "direct-legacy", "upstreams")
RUNS = [(name, revision) for name in DEFAULT for revision in REVISIONS]


CAPABILITIES = ["elicitation", "sampling", "roots"]


@asynccontextmanager
async def gateway(upstream: dict[str, Any]) -> AsyncIterator[str]:
    """A gateway with one upstream, or none, under its own names; yields its address without path."""
    upstreams = {"everything": {**upstream, "prefix": "", "clientCapabilities": CAPABILITIES}} if upstream else {}
    config = {
        "version": 1,
        "server": {"port": 0},
        "admin": {"port": 0},
        "upstreams": upstreams,
        "tenants": {"suite": {"upstreams": {name: ["*"] for name in upstreams}}},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")
        async with companion("-m", "tests.conformance.serve", str(path)) as url:
            yield url
