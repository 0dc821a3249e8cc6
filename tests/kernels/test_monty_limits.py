"""Limits of one execution: each ends the script with its own class, in time, and the next script runs."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import ErrorClass
from gateway.kernels.base import MAX_CODE_BYTES
from tests.kernels.conftest import Lab

pytestmark = pytest.mark.asyncio(loop_scope="module")

MiB = 1024 * 1024


@pytest.mark.case("KERNELS-01")
@pytest.mark.case("KERNELS-02")
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "async def f(): return 1\nwhile True: await f()",
        "x = 3\nwhile True: x = x * x",
        "import itertools\nfor i in itertools.count(): pass",
    ],
)
async def test_a_busy_script_ends_at_its_cpu_limit(single: Lab, code: str) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    result = await single.run(code, cpu_ms=300)
    assert loop.time() - begun < 0.3 + 1.0
    assert result.error
    assert result.error.error_class in (ErrorClass.CPU_LIMIT, ErrorClass.MEMORY_LIMIT)
    assert result.usage.cpu_ms > 100
    assert await single.value("1") == 1


@pytest.mark.case("KERNELS-03")
@pytest.mark.parametrize(
    "code",
    [
        "x = []\nwhile True: x.append('a' * 1000)",
        "x = 'a'\nwhile True: x = x + x",
        "'a' * (1 << 30)",
        "10 ** 10 ** 8",
        "x = {}\nfor i in range(10**9): x[i] = 10 ** 1000",
        "sorted(range(10**9))",
    ],
)
async def test_a_greedy_script_ends_at_its_memory_limit(single: Lab, code: str) -> None:
    error = await single.error(code, memory_limit_bytes=16 * MiB)
    assert error.error_class == ErrorClass.MEMORY_LIMIT
    assert "16,777,216" in error.message
    assert await single.value("1") == 1


@pytest.mark.case("KERNELS-03")
async def test_canary_a_million_items_need_more_than_two_megabytes(single: Lab) -> None:
    """Fails when an upgrade of the engine quietly turns the limit off."""
    error = await single.error("x = list(range(1_000_000))\nlen(x)", memory_limit_bytes=2 * MiB)
    assert error.error_class == ErrorClass.MEMORY_LIMIT


async def test_endless_recursion_is_named(single: Lab) -> None:
    error = await single.error("def f(n):\n    return f(n + 1)\n\nf(0)")
    assert (error.error_class, error.line) == (ErrorClass.RECURSION_LIMIT, 2)
    assert await single.value("1") == 1


@pytest.mark.case("KERNELS-17")
async def test_recursion_through_calls_is_named(single: Lab) -> None:
    error = await single.error("async def f(n):\n    await up__echo()\n    return await f(n + 1)\n\nawait f(0)")
    assert error.error_class in (ErrorClass.RECURSION_LIMIT, ErrorClass.CALL_LIMIT)


@pytest.mark.case("EXEC-12")
@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        ("(" * 5_750 + ")" * 5_750, ErrorClass.SYNTAX_ERROR),
        ("[" * 100_000, ErrorClass.SYNTAX_ERROR),
        ("\0\0\0", ErrorClass.SYNTAX_ERROR),
        ("x = '\ud800'", ErrorClass.SYNTAX_ERROR),
        ("x = 1\n" * 100_000, ErrorClass.POLICY_VIOLATION),
        ("é" * (MAX_CODE_BYTES // 2 + 1), ErrorClass.POLICY_VIOLATION),
        (", ".join(f"a{n}" for n in range(10_000)) + " = []", ErrorClass.SYNTAX_ERROR),
    ],
    ids=["parentheses", "brackets", "zeros", "half a pair", "long", "long in bytes", "many targets"],
)
async def test_extreme_source_text_is_an_error_like_any_other(single: Lab, code: str, error_class: ErrorClass) -> None:
    error = await single.error(code)
    assert error.error_class == error_class
    assert len(error.message) <= 2_000
    assert await single.value("1") == 1


async def test_sleeping_ends_at_the_wall_deadline(single: Lab) -> None:
    error = await single.error("import asyncio\nfor _ in range(100): await asyncio.sleep(0.1)", wall_ms=300)
    assert error.error_class == ErrorClass.WALL_TIMEOUT


@pytest.mark.case("KERNELS-14")
async def test_a_limit_breaks_no_later_run_of_the_same_worker(single: Lab) -> None:
    for number in range(10):
        assert not (await single.run("x = []\nwhile True: x.append('a' * 1000)", memory_limit_bytes=4 * MiB)).ok
        assert not (await single.run("def f(): return f()\nf()")).ok
        assert await single.value(f"sum(range({number}))") == sum(range(number))


@pytest.mark.case("EXEC-04")
async def test_a_huge_error_message_is_one_bounded_line(lab: Lab) -> None:
    error = await lab.error("raise ValueError('a\\nb' * 3_000_000)")
    assert error.error_class == ErrorClass.RUNTIME_ERROR
    assert len(error.message) == 2_000
    assert "\n" not in error.message


@pytest.mark.case("KERNELS-12")
async def test_the_event_loop_stays_responsive_while_a_script_is_busy(lab: Lab) -> None:
    """Another script answers while this one burns CPU: a frozen loop would let none through."""
    busy = asyncio.create_task(lab.error("while True: pass", cpu_ms=400))
    answered = 0
    while not busy.done():
        assert await lab.value("1") == 1
        answered += 1
    assert (await busy).error_class == ErrorClass.CPU_LIMIT
    assert answered >= 5
