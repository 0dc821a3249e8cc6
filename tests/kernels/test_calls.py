"""The scope of an execution's calls, without an engine: what it lets start, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.errors import ErrorClass, GatewayError
from gateway.kernels.base import Functions, HostFunction
from gateway.kernels.calls import CallScope
from tests.kernels.conftest import Hang


def scope_of(**functions: HostFunction) -> CallScope:
    return CallScope(Functions(functions.get), "test")


def lookup(scope: CallScope, name: str) -> Any:
    function = scope.lookup(name)
    assert function is not None
    return function


async def test_names_that_are_no_function_are_none() -> None:
    assert scope_of().lookup("print") is None


async def test_no_call_starts_after_the_end() -> None:
    """An engine may run the coroutine of a call that it made long ago."""
    hang = Hang()
    async with scope_of(hang=hang) as scope:
        late = lookup(scope, "hang")()
    with pytest.raises(RuntimeError, match="CANCELLED: the script has ended"):
        await asyncio.wait_for(late, 1)
    assert not hang.called.is_set()


async def test_the_end_cancels_calls_in_flight_and_waits_for_them() -> None:
    hang = Hang()
    async with scope_of(hang=hang) as scope:
        waiting = [asyncio.create_task(lookup(scope, "hang")()) for _ in range(3)]
        await hang.called.wait()
        assert hang.running == 3
    assert (hang.cancelled, hang.running) == (3, 0)
    assert scope.unfinished == ("hang", "hang", "hang")
    assert len(scope.running) == 0
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 3


async def test_a_call_that_ignores_its_cancellation_does_not_hold_the_end(caplog: pytest.LogCaptureFixture) -> None:
    called, release = asyncio.Event(), asyncio.Event()

    async def stubborn(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        called.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    scope = scope_of(stubborn=stubborn)
    waiting = asyncio.create_task(lookup(scope, "stubborn")())
    await called.wait()
    async with asyncio.timeout(3):
        await scope.close()
    assert "1 calls ignore their cancellation" in caplog.text
    release.set()
    await asyncio.wait({waiting})


async def test_failures_are_found_by_their_text_and_forgotten_when_there_are_many() -> None:
    number = 0

    async def failing(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        nonlocal number
        number += 1
        raise GatewayError(ErrorClass.TOOL_ERROR, f"failure {number}", hint="again")

    async with scope_of(failing=failing) as scope:
        for _ in range(150):
            with pytest.raises(RuntimeError, match=r"^TOOL_ERROR: failure \d+\nagain$"):
                await lookup(scope, "failing")()
        last = scope.failure("TOOL_ERROR: failure 150\nagain")
        assert last is not None
        assert (last.error_class, last.message, last.hint) == (ErrorClass.TOOL_ERROR, "failure 150", "again")
        assert scope.failure("TOOL_ERROR: failure 1\nagain") is None
        assert scope.failure("TOOL_ERROR: failure 150") is None
