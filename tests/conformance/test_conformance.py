"""Each bar of the MCP conformance suite at each revision: nothing fails that is not listed, nothing listed passes."""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.conformance.bars import BARS, RUNS
from tests.conformance.suite import install

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.conformance]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def suite() -> None:
    await install()


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize(("bar", "revision"), RUNS)
async def test_a_bar_holds(bar: str, revision: str) -> None:
    verdict = await BARS[bar].run(revision)
    if problems := verdict.problems():
        pytest.fail("\n".join(problems), pytrace=False)
    assert verdict.passed
