"""What a script returns and prints."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import ErrorClass
from gateway.kernels.base import MAX_LOG_CHARS, MAX_VALUE_BYTES
from tests.kernels.conftest import Lab

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1 + 1", 2),
        ("x = 3\nreturn x * 2\nx", 6),
        ("x = 3", None),
        ("", None),
        ("# nothing but a comment", None),
        ("'a string with open( and import os'", "a string with open( and import os"),
        ("[1, 2.5, True, None, 'ü €']", [1, 2.5, True, None, "ü €"]),
        ("10**30", 10**30),
        ("{1: 'a', (2, 'b'): {3, 1, 2}, None: b'hi'}", {"1": "a", "2,b": [1, 2, 3], "null": {"$bytes": "aGk="}}),
        ("[float('nan'), float('inf')]", [None, None]),
        ("from datetime import datetime, timedelta\n[datetime(2024, 5, 6, 7), timedelta(minutes=1)]",
         ["2024-05-06T07:00:00", 60.0]),
        ("from decimal import Decimal\nDecimal('1.10')", "1.10"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n[P(3)]", [{"x": 3}]),
        ("class P:\n    def __init__(self):\n        self.y = 2\nP()", {"y": 2}),
        ("try:\n    int('x')\nexcept ValueError as e:\n    r = e\n[r]",
         ["ValueError: invalid literal for int() with base 10: 'x'"]),
        ("import asyncio\nasync def main():\n    return 7\nasyncio.run(main())", 7),
    ],
)  # fmt: skip
async def test_the_value_is_the_last_expression_or_a_return(lab: Lab, code: str, expected: Any) -> None:
    assert await lab.value(code) == expected


@pytest.mark.case("KERNELS-10")
@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        ("len", ErrorClass.RUNTIME_ERROR),
        ("int", ErrorClass.RUNTIME_ERROR),
        ("1j", ErrorClass.RUNTIME_ERROR),
        ("10**5000", ErrorClass.RUNTIME_ERROR),
        ("{1: 'a', '1': 'b'}", ErrorClass.RUNTIME_ERROR),
        ("x = []\nfor _ in range(100_000): x = [x]\nx", ErrorClass.OUTPUT_LIMIT),
        ("'a' * 2_000_000", ErrorClass.OUTPUT_LIMIT),
        ("[{'n': i} for i in range(120_000)]", ErrorClass.OUTPUT_LIMIT),
    ],
)
async def test_a_value_that_cannot_leave_is_an_error_with_a_hint(lab: Lab, code: str, error_class: ErrorClass) -> None:
    error = await lab.error(code, memory_limit_bytes=256 * 1024 * 1024)
    assert error.error_class == error_class
    assert error.hint
    assert "Monty" not in error.message


@pytest.mark.case("KERNELS-10")
async def test_cycles_and_generators_end_as_bounded_values(lab: Lab) -> None:
    assert await lab.value("x = []\nx.append(x)\nx") == ["[...]"]
    assert await lab.value("(i for i in range(3))") == [0, 1, 2]


async def test_a_value_just_below_the_cap_passes(lab: Lab) -> None:
    result = await lab.run(f"'a' * {MAX_VALUE_BYTES - 2}")
    assert result.ok
    assert len(result.value) == MAX_VALUE_BYTES


@pytest.mark.case("EXEC-14")
async def test_what_is_printed_is_kept_in_order_also_when_the_script_fails(lab: Lab) -> None:
    code = "import sys\nprint('a', end='', flush=True)\nprint('b')\nprint('c', file=sys.stderr)\n1/0"
    result = await lab.run(code)
    assert not result.ok
    assert result.logs == "ab\nc\n"
    assert result.logs_dropped == 0


@pytest.mark.case("EXEC-04")
async def test_a_print_flood_is_cut_and_counted(lab: Lab) -> None:
    result = await lab.run("for _ in range(3_000): print('x' * 99)\n'done'")
    assert result.value == b'"done"'
    assert len(result.logs) == MAX_LOG_CHARS
    assert result.logs_dropped == 300_000 - MAX_LOG_CHARS


@pytest.mark.case("EXEC-04")
async def test_an_endless_print_flood_ends_at_the_cpu_limit(lab: Lab) -> None:
    result = await lab.run("while True: print('spam')", cpu_ms=200)
    assert result.error
    assert result.error.error_class == ErrorClass.CPU_LIMIT
    assert len(result.logs) == MAX_LOG_CHARS


@pytest.mark.case("EXEC-05")
async def test_concurrent_scripts_do_not_mix_their_values_logs_or_calls(lab: Lab) -> None:
    async def one(token: str) -> None:
        code = f"r = []\nfor i in range(5):\n    print('{token}')\n    r.append((await up__echo(t='{token}'))['t'])\nr"
        result = await lab.run(code)
        assert result.value.decode() == '["' + '","'.join([token] * 5) + '"]'
        assert result.logs == f"{token}\n" * 5

    async with asyncio.TaskGroup() as group:
        for number in range(30):
            group.create_task(one(f"token-{number}"))
    assert len(lab.calls) == 150


@pytest.mark.case("KERNELS-07")
async def test_nothing_of_a_run_is_left_for_the_next(single: Lab) -> None:
    await single.value("import os\nleft = 1\nlen = 2\nos.environ['left'] = '1'", env={"A": "1"})
    await single.error("import json\njson.left = 1")
    error = await single.error("left")
    assert (error.error_class, error.line, error.column) == (ErrorClass.RUNTIME_ERROR, 1, 1)
    assert error.hint
    assert "share no state" in error.hint
    assert await single.value("import json, os\n[hasattr(json, 'left'), len('ab'), dict(os.environ)]") == [False, 2, {}]


async def test_usage_tells_cpu_wall_and_queue_time(lab: Lab) -> None:
    result = await lab.run("sum(i for i in range(300_000))")
    assert result.ok
    assert 0 < result.usage.cpu_ms <= result.usage.wall_ms
    assert result.usage.queue_ms >= 0
