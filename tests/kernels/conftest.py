"""A running Python kernel, and a short way to run a script in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
import pytest_asyncio

from gateway.config.model import Manifest
from gateway.errors import ErrorClass, GatewayError
from gateway.kernels.base import ExecError, ExecRequest, ExecResult, Functions, HostFunction
from gateway.kernels.monty import MontyKernel


class Lab:
    """Runs scripts. ``functions`` is what they may call; ``calls`` are the names and arguments that arrived."""

    def __init__(self, kernel: MontyKernel) -> None:
        self.kernel = kernel
        self.calls: list[tuple[str, tuple[Any, ...], Mapping[str, Any]]] = []
        self.functions: dict[str, HostFunction] = {
            "up__echo": self._recorded("up__echo", lambda args, kwargs: {"args": list(args), **kwargs}),
            "up__fail": self._failing,
        }

    async def run(self, code: str, *, stubs: str | None = None, wall_ms: int = 10_000, **manifest: Any) -> ExecResult:
        return await self.kernel.run(
            ExecRequest(
                execution_id="test",
                fairness_key="acme",
                code=code,
                manifest=Manifest(wall_ms=wall_ms, **manifest),
                deadline=asyncio.get_running_loop().time() + wall_ms / 1000,
                functions=Functions(self.functions.get),
                stubs=stubs,
            )
        )

    async def value(self, code: str, **manifest: Any) -> Any:
        """The value of a script that must succeed."""
        result = await self.run(code, **manifest)
        assert result.error is None
        assert result.ok
        return json.loads(result.value)

    async def error(self, code: str, **manifest: Any) -> ExecError:
        """The error of a script that must fail."""
        result = await self.run(code, **manifest)
        assert not result.ok
        assert result.value == b"null"
        assert result.error is not None
        return result.error

    def _recorded(self, name: str, answer: Callable[[tuple[Any, ...], Mapping[str, Any]], Any]) -> HostFunction:
        async def function(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            self.calls.append((name, args, kwargs))
            return answer(args, kwargs)

        return function

    async def _failing(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        raise GatewayError(ErrorClass.TOOL_ERROR, "disk full", hint="delete something first")


class Hang:
    """A host function that never answers, and tells when it was called and how it ended."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.cancelled = 0
        self.running = 0

    async def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.running += 1
        self.called.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


Start = Callable[..., Awaitable[Lab]]
"""``await start(workers=1, queue_timeout_s=5.0)``: a lab on a kernel of its own, stopped when the test is over."""


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    kernels: list[MontyKernel] = []

    async def started(workers: int = 1, queue_timeout_s: float = 5.0) -> Lab:
        kernels.append(MontyKernel(workers, queue_timeout_s))
        await kernels[-1].start()
        return Lab(kernels[-1])

    yield started
    for kernel in kernels:
        await kernel.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_kernel() -> AsyncIterator[MontyKernel]:
    kernel = MontyKernel(workers=4, queue_timeout_s=5.0)
    await kernel.start()
    yield kernel
    await kernel.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_single_kernel() -> AsyncIterator[MontyKernel]:
    kernel = MontyKernel(workers=1, queue_timeout_s=5.0)
    await kernel.start()
    yield kernel
    await kernel.stop()


@pytest.fixture
def lab(shared_kernel: MontyKernel) -> Lab:
    """A kernel that the tests of a module share: no script may notice another one."""
    return Lab(shared_kernel)


@pytest.fixture
def single(shared_single_kernel: MontyKernel) -> Lab:
    """The same with one worker: what one run leaves behind would be seen by the next."""
    return Lab(shared_single_kernel)
