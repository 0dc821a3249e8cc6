"""What the author of a failed script is told: class, line and column, one line of text, and what to do instead."""

from __future__ import annotations

import pytest

from gateway.errors import ErrorClass
from tests.kernels.conftest import Lab

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.case("EXEC-13")
@pytest.mark.parametrize(
    ("code", "error_class", "position"),
    [
        ("x = 1\ny = (", ErrorClass.SYNTAX_ERROR, (2, 6)),
        ("if x\n    pass", ErrorClass.SYNTAX_ERROR, (1, 5)),
        ("\nclass A(Exception): pass", ErrorClass.UNSUPPORTED_SYNTAX, (2, 1)),
        ("x = 1\nimport requests", ErrorClass.UNSUPPORTED_SYNTAX, (2, 1)),
        ("def f():\n    return 1 / 0\n\nx = f()", ErrorClass.RUNTIME_ERROR, (2, 12)),
        ("{}['k']", ErrorClass.RUNTIME_ERROR, (1, 1)),
        ("assert 1 == 2", ErrorClass.RUNTIME_ERROR, (1, 8)),
        ("raise SystemExit", ErrorClass.RUNTIME_ERROR, (1, 7)),
        ("raise KeyboardInterrupt", ErrorClass.RUNTIME_ERROR, (1, 7)),
        ("x = 1\n\neval('1 / 0')", ErrorClass.RUNTIME_ERROR, (3, 1)),
        ("raise TimeoutError('mine')", ErrorClass.RUNTIME_ERROR, (1, 7)),
        ("raise NotImplementedError('mine')", ErrorClass.RUNTIME_ERROR, (1, 7)),
    ],
)
async def test_class_and_position(
    lab: Lab, code: str, error_class: ErrorClass, position: tuple[int | None, int | None]
) -> None:
    error = await lab.error(code)
    assert (error.error_class, (error.line, error.column)) == (error_class, position)


@pytest.mark.case("EXEC-10")
@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("class A(dict): pass", "@dataclass"),
        ("class A:\n    @property\n    def x(self): return 1", "plain function"),
        ("def f():\n    yield 1", "list"),
        ("d = {}\ndel d['x']", "pop"),
        ("import asyncio\nasync with asyncio.TaskGroup() as g: pass", "asyncio.gather"),
        ("import asyncio\nasyncio.create_task(up__echo())", "asyncio.gather"),
        ("import asyncio\nasyncio.wait_for(up__echo(), 1)", "asyncio.gather"),
        ("import asyncio\nawait asyncio.gather(up__echo(), return_exceptions=True)", "except Exception"),
        ("import statistics", "sum(x) / len(x)"),
        ("import requests", "no network"),
        ("import urllib.request", "no network"),
        ("import subprocess", "no operating system"),
        ("import heapq", "sorted"),
        ("import operator", "lambda"),
        ("import numpy", "built-ins"),
        ("from collections import OrderedDict", "built-ins"),
        ("sorted(['b', 'A'], key=str.lower)", "lambda"),
        ("from datetime import datetime\ndatetime.utcnow()", "timezone.utc"),
        ("input()", "nobody to ask"),
    ],
)
async def test_what_the_engine_does_not_know_comes_with_a_replacement(lab: Lab, code: str, hint: str) -> None:
    error = await lab.error(code)
    assert error.error_class == ErrorClass.UNSUPPORTED_SYNTAX
    assert error.hint
    assert hint in error.hint


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("rows", "share no state"),
        ("github__list_isues()", "docs_search"),
        ("asyncio.sleep(1)", "import it first"),
        ("await 5", "drop the `await`"),
    ],
)
async def test_common_slips_come_with_a_hint(lab: Lab, code: str, hint: str) -> None:
    error = await lab.error(code)
    assert error.error_class == ErrorClass.RUNTIME_ERROR
    assert error.hint
    assert hint in error.hint


async def test_stubs_find_mistakes_before_anything_runs(lab: Lab) -> None:
    stubs = "async def up__echo(*, n: int) -> dict[str, int]: ...\n"
    error = await lab.error("await up__echo(n=1)\nawait up__echo(m=2)", stubs=stubs)
    assert (error.error_class, error.line) == (ErrorClass.TYPE_ERROR, 2)
    assert "`m`" in error.message
    assert "main.py" not in error.message
    assert lab.calls == []
    result = await lab.run("(await up__echo(n=1))['n']", stubs=stubs)
    assert result.value == b"1"
