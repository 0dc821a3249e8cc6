"""The main job, black box."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.running import Running, config, faulty, serving


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path, config({"good": faulty()})) as running:
        await running.wait_for(good="ready")
        yield running


async def test_a_script_calls_tools_and_returns_one_value(running: Running) -> None:
    answer = await running.run("(await good__add(a=1, b=2))['sum']")
    assert answer.json() == 3
