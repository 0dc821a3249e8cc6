"""How a script calls functions of the host, and what becomes of calls when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.errors import ErrorClass, GatewayError
from tests.kernels.conftest import Hang, Lab

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_arguments_and_results_cross_as_json_values(lab: Lab) -> None:
    assert await lab.value("await up__echo(1, (2, {3}), b=b'hi')") == {
        "args": [1, [2, [3]]],
        "b": {"$bytes": "aGk="},
    }


async def test_calls_work_inside_functions_comprehensions_and_aliases(lab: Lab) -> None:
    code = """
echo = up__echo
async def one(n):
    async def inner():
        return (await echo(n=n))["n"]
    return await inner()
[await one(i) for i in range(3)]
"""
    assert await lab.value(code) == [0, 1, 2]


async def test_only_names_of_the_script_are_looked_up(lab: Lab) -> None:
    asked: list[str] = []
    functions = dict(lab.functions)

    class Recording(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            asked.append(key)
            return functions.get(key, default)

    lab.functions = Recording()
    assert await lab.value("await up__echo(toString=1)") == {"args": [], "toString": 1}
    assert asked == ["await", "up__echo", "toString"]


@pytest.mark.case("EXEC-01")
async def test_gathered_calls_are_in_flight_together_and_one_failure_stays_its_own(lab: Lab) -> None:
    everybody = asyncio.Barrier(20)

    async def meet(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        await everybody.wait()  # passes only when all twenty calls are in flight
        if args[0] == 7:
            raise GatewayError(ErrorClass.TOOL_ERROR, "seven")
        return args[0]

    lab.functions["up__meet"] = meet
    code = """
import asyncio
async def safe(n):
    try:
        return await up__meet(n)
    except Exception as e:
        return str(e)
await asyncio.gather(*[safe(n) for n in range(20)])
"""
    assert await lab.value(code) == [*range(7), "TOOL_ERROR: seven", *range(8, 20)]


async def test_a_failed_call_can_be_caught_with_its_message_and_hint(lab: Lab) -> None:
    code = "try:\n    await up__fail()\nexcept RuntimeError as e:\n    text = str(e)\ntext"
    assert await lab.value(code) == "TOOL_ERROR: disk full\ndelete something first"


async def test_a_failed_call_that_nobody_catches_is_the_failure_of_the_script(lab: Lab) -> None:
    error = await lab.error("async def f():\n    x = 1\n    return await up__fail()\n\nawait f()")
    assert error.error_class == ErrorClass.TOOL_ERROR
    assert (error.message, error.hint) == ("disk full", "delete something first")
    assert (error.line, error.column) == (3, 12)


async def test_a_script_that_raises_the_same_text_itself_gets_no_other_class(lab: Lab) -> None:
    error = await lab.error("raise RuntimeError('TOOL_ERROR: disk full')")
    assert error.error_class == ErrorClass.RUNTIME_ERROR
    assert error.message == "RuntimeError: TOOL_ERROR: disk full"


@pytest.mark.case("EXEC-07")
async def test_a_call_that_times_out_is_caught_and_the_rest_runs(single: Lab) -> None:
    async def slow(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            raise GatewayError(ErrorClass.UPSTREAM_TIMEOUT, "upstream up did not answer within 0.01 s") from None

    single.functions["up__slow"] = slow
    before = len(asyncio.all_tasks())
    for _ in range(5):
        code = "try:\n    await up__slow()\nexcept Exception as e:\n    r = str(e)\n[r, (await up__echo(n=1))['n']]"
        assert await single.value(code) == ["UPSTREAM_TIMEOUT: upstream up did not answer within 0.01 s", 1]
    assert len(asyncio.all_tasks()) <= before
    assert single.kernel.stats().busy == 0


@pytest.mark.case("EXEC-02")
async def test_a_script_that_catches_every_refusal_is_ended(lab: Lab) -> None:
    served = 0

    async def capped(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        nonlocal served
        if served == 100:
            raise GatewayError(ErrorClass.CALL_LIMIT, "at most 100 calls")
        served += 1

    lab.functions["up__capped"] = capped
    error = await lab.error("await up__capped()\nfor _ in range(100_000): await up__capped()")
    assert (error.error_class, error.message, served) == (ErrorClass.CALL_LIMIT, "at most 100 calls", 100)
    code = "while True:\n    try:\n        await up__capped()\n    except Exception:\n        pass"
    error = await lab.error(code, max_tool_calls=1)
    assert error.error_class == ErrorClass.CALL_LIMIT
    assert served == 100


async def test_a_fault_of_a_host_function_is_told_without_its_text(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise KeyError("/internal/path")

    lab.functions["up__broken"] = broken
    error = await lab.error("await up__broken()")
    assert (error.error_class, error.message) == (
        ErrorClass.TOOL_ERROR,
        "the call of up__broken failed inside the gateway",
    )
    assert "up__broken" in caplog.text


async def test_a_call_that_is_cancelled_from_outside_is_a_failure_the_script_can_catch(lab: Lab) -> None:
    async def cancelled(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise asyncio.CancelledError

    lab.functions["up__cancelled"] = cancelled
    code = "try:\n    await up__cancelled()\nexcept Exception as e:\n    r = str(e)\nr"
    assert await lab.value(code) == "CANCELLED: the call of up__cancelled was cancelled"


@pytest.mark.parametrize(
    ("argument", "error_class"),
    [
        ("'a' * 2_000_000", ErrorClass.INVALID_ARGUMENTS),
        ("nested", ErrorClass.INVALID_ARGUMENTS),
        ("len", ErrorClass.INVALID_ARGUMENTS),
    ],
)
async def test_arguments_beyond_the_caps_never_reach_the_function(
    lab: Lab, argument: str, error_class: ErrorClass
) -> None:
    nested = "nested = []\nfor _ in range(100_000): nested = [nested]\n"
    error = await lab.error(f"{nested}await up__echo({argument})")
    assert error.error_class == error_class
    assert error.message.startswith("arguments of up__echo: ")
    assert lab.calls == []


async def test_a_result_that_is_nested_too_deeply_is_refused_before_the_script_sees_it(lab: Lab) -> None:
    async def deep(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        value: Any = 1
        for _ in range(10_000):
            value = [value]
        return value

    lab.functions["up__deep"] = deep
    error = await lab.error("await up__deep()")
    assert error.error_class == ErrorClass.OUTPUT_LIMIT


async def test_a_call_that_nobody_awaits_ends_with_the_script_and_is_reported(lab: Lab) -> None:
    hang = lab.functions["up__hang"] = Hang()
    result = await lab.run("up__hang()\nawait up__echo()\n'done'")
    assert result.value == b'"done"'
    assert result.notes == ("calls that were not awaited have been cancelled: up__hang",)
    assert hang.called.is_set()
    assert (hang.cancelled, hang.running) == (1, 0)


@pytest.mark.parametrize("end", ["1/0", "while True: pass", "x = []\nwhile True: x.append('a' * 1000)"])
async def test_calls_in_flight_are_cancelled_when_the_script_fails(lab: Lab, end: str) -> None:
    hang = lab.functions["up__hang"] = Hang()
    await lab.error(f"up__hang()\nawait up__echo()\n{end}", cpu_ms=200)
    assert hang.called.is_set()
    assert (hang.cancelled, hang.running) == (1, 0)


@pytest.mark.case("EXEC-03")
async def test_a_call_that_hangs_ends_at_the_wall_deadline(lab: Lab) -> None:
    hang = lab.functions["up__hang"] = Hang()
    begun = asyncio.get_running_loop().time()
    error = await lab.error("await up__echo()\nawait up__hang()", wall_ms=200)
    assert asyncio.get_running_loop().time() - begun < 1.2
    assert error.error_class == ErrorClass.WALL_TIMEOUT
    assert error.message == "the script did not end within its 200 ms; calls in flight (1): up__hang"
    assert (hang.cancelled, hang.running) == (1, 0)
    assert await lab.value("1") == 1


@pytest.mark.case("EXEC-09")
@pytest.mark.parametrize(
    "code",
    [
        "up__echo(x=1)",
        "[up__echo(x=1)]",
        "r = up__echo(x=1)\nr['x']",
        "r = up__echo(x=1)\nr.x",
        "for item in up__echo(): pass",
        "await (await up__echo())",
        "await 5",
        "async def f(): return 1\nf()",
    ],
)
async def test_a_forgotten_or_needless_await_is_named(lab: Lab, code: str) -> None:
    error = await lab.error(code)
    assert error.error_class == ErrorClass.RUNTIME_ERROR
    assert error.hint
    assert "await" in error.hint
    assert len(lab.calls) <= 1
